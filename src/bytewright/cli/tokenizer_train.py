"""`bytewright tokenizer train`: learn a vocabulary from text, and say where the time went."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bytewright.cli import inputs, options
from bytewright.end_of_text import END_OF_TEXT
from bytewright.formatting import format_seconds
from bytewright.storage import atomic

if TYPE_CHECKING:
    from bytewright.tokenizer import Estimate, Phase, Training


@dataclass(frozen=True, kw_only=True)
class TrainTokenizer:
    """Learn a byte-level BPE vocabulary from text files, or from folders of them.

    Says first how long it will take and how much memory it will need; ends with a table of its phases.

    For example:
      bytewright tokenizer train stories.txt --out stories-10k --vocab-size 10000
      bytewright tokenizer train books/ notes.txt --out mine --vocab-size 32000 --pattern gpt4
      bytewright tokenizer train chat.txt --out chat --vocab-size 8000 --special-tokens '<|user|>' '<|end|>'
    """

    sources: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="TEXT [TEXT ...]", help_behavior_hint="(required)"),
    ]
    """Text files, or folders of them; of other formats `bytewright corpus text` makes one."""

    out: options.OutputFolder
    """Where the tokenizer goes."""

    vocab_size: int
    """How many tokens to have in the end: 256 bytes, the merges, and the special tokens."""

    special_tokens: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[TOKEN ...]")] = (END_OF_TEXT,)
    """Tokens that are never split and never counted; give the option without a value for none."""

    pattern: str = "gpt2"
    """How text is cut into words before merging: gpt2, gpt4, or a regular expression (in Rust's syntax)."""

    min_count: int = 1
    """Stop when no pair occurs this often."""

    num_threads: options.NumThreads = None

    replace: options.Replace = False

    def run(self) -> None:
        """Check everything that can be checked, train, write, and account for the time."""
        sources = [inputs.require_source(path) for path in inputs.require_some(self.sources, "a text")]
        inputs.require_at_least(1, self.min_count, "--min-count")
        inputs.require_at_least(1, self.num_threads, "--num-threads")
        atomic.check_target(self.out, folder=True, replace=self.replace)

        from bytewright.cli import console
        from bytewright.tokenizer import Progress, estimate_training, train_tokenizer
        from bytewright.tokenizer.files import write_folder

        remarks = console.stderr()
        estimate = estimate_training(
            sources, self.vocab_size, self.special_tokens, pattern=self.pattern, num_threads=self.num_threads
        )
        remarks.print(_expect(estimate))
        with console.progress() as report:

            def on_progress(progress: Progress) -> None:
                report(progress.phase, progress.done, progress.total, progress.unit)

            training = train_tokenizer(
                sources,
                self.vocab_size,
                self.special_tokens,
                pattern=self.pattern,
                min_count=self.min_count,
                num_threads=self.num_threads,
                progress=on_progress,
            )
        started = time.perf_counter()
        write_folder(training.vocabulary, self.out, replace=self.replace)
        _print(training, time.perf_counter() - started, self.out)


def _expect(estimate: Estimate) -> str:
    from bytewright.cli.console import format_bytes

    return (
        f"{format_bytes(estimate.corpus_bytes)} of text: about {format_seconds(max(estimate.seconds, 0.001))}"
        f" and {format_bytes(estimate.memory_bytes)} of memory."
    )


def _print(training: Training, seconds_writing: float, out: Path) -> None:
    from bytewright.cli import console
    from bytewright.tokenizer import Phase

    phases = [*training.phases, Phase(name="write", seconds=seconds_writing, wall_seconds=seconds_writing)]
    total = sum(phase.wall_seconds for phase in phases)
    table = console.table("phase", "time", "share", "of all threads", "throughput")
    for phase in phases:
        table.add_row(
            phase.name,
            format_seconds(phase.wall_seconds),
            f"{phase.wall_seconds / total:.0%}",
            format_seconds(phase.seconds),
            _throughput(phase, training),
        )
    table.add_row(
        "all",
        format_seconds(total),
        "100%",
        "",
        f"{console.format_bytes(training.corpus_bytes / total)}/s",
    )
    printer = console.stdout()
    printer.print(table)
    printer.print(
        f"{training.num_words:,} words, {training.num_distinct_words:,} of them distinct;"
        f" {len(training.vocabulary.merges):,} merges;"
        f" peak memory {console.format_bytes(training.peak_memory_bytes)}."
    )
    if training.stopped:
        printer.print(training.stopped)
    printer.print(f"Wrote {out}: {len(training.vocabulary.tokens):,} tokens.", soft_wrap=True)


def _throughput(phase: Phase, training: Training) -> str:
    from bytewright.cli import console

    if phase.name == "write" or not phase.wall_seconds:
        return ""
    if phase.name == "merge":
        return f"{len(training.vocabulary.merges) / phase.wall_seconds:,.0f} merges/s"
    return f"{console.format_bytes(training.corpus_bytes / phase.wall_seconds)}/s"
