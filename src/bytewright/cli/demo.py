"""`bytewright demo`: from nothing to a model that tells stories, and a page about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bytewright.cli import options


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Make stories, a tokenizer and a small model that tells stories; check them, and write a report.

    Takes about four minutes on two cores, downloads nothing, and says before each stage what it will do and
    how long that takes. It can be interrupted and started again; what is done is not done twice.

    For example:
      bytewright demo
      bytewright demo --out elsewhere
    """

    out: options.OutputFolder = Path("demo")
    """Where everything goes: a new folder, or that of an earlier demo, which is continued."""

    def run(self) -> int:
        """Show it."""
        from bytewright.cli import console
        from bytewright.demo import run_demo
        from bytewright.train.signals import exit_code_of

        return exit_code_of(run_demo(self.out, out=console.stdout(), progress=console.progress).received)
