"""`bytewright demo`: generate stories, train a model on them, and write a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bytewright.cli import console, options


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Generate stories, train a tokenizer and a small model on them, check its stories, and write a report.

    Takes about four minutes on two cores and downloads nothing. Before each stage it prints what the stage
    does and how long it takes. After an interruption, the same command continues; finished stages are kept.

    For example:
      bytewright demo
      bytewright demo --out elsewhere
    """

    out: options.OutputFolder = Path("demo")
    """The folder for all results: a new one, or that of an earlier demo, which is continued."""

    def run(self) -> int:
        """Run all stages."""
        from bytewright.demo import run_demo
        from bytewright.train.outcome import exit_code_of

        return exit_code_of(run_demo(self.out, out=console.stdout(), progress=console.progress).received)
