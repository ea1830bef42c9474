"""Output of the commands: results on stdout, progress and remarks on stderr.

On a terminal, progress is a bar that is redrawn at most ten times a second. In a pipe or a log it is a plain
line every few seconds, and no line for work that takes less than a second.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bytewright.errors import escape_controls
from bytewright.formatting import PhaseProgress, TimeLeft, format_bytes

PLAIN_WIDTH = 10_000  # lines in a pipe are not wrapped, so that tools can search them
# Markup such as [bold] or :owl: in a story is part of the story.
VERBATIM: Mapping[str, Any] = {"markup": False, "emoji": False, "highlight": False}
SECONDS_BEFORE_FIRST_LINE = 1.0
SECONDS_BETWEEN_LINES = 5.0


class EscapingConsole(Console):
    """A console that escapes control characters and line breaks in every `str`.

    Most output contains text from files: names, paths, reasons. A `Text` is printed unchanged.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text that rich prints for a `str` in a line or a table cell."""
        return super().render_str(escape_controls(text), **options)


def stdout() -> Console:
    """Return the console for results; in a pipe it has no colour."""
    return EscapingConsole(width=None if sys.stdout.isatty() else PLAIN_WIDTH, **VERBATIM)


def stderr() -> Console:
    """Return the console for progress and remarks."""
    return EscapingConsole(stderr=True, width=None if sys.stderr.isatty() else PLAIN_WIDTH, **VERBATIM)


def print_line(sentence: str) -> None:
    """Print a result on stdout as one line, which only a terminal wraps."""
    stdout().print(sentence, soft_wrap=True)


def print_remark(sentence: str) -> None:
    """Print a remark on stderr as one line, which only a terminal wraps."""
    stderr().print(sentence, soft_wrap=True)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of Bytewright as one line, without the line of source code; replaces `showwarning`."""
    if category.__module__.startswith("bytewright."):
        print_remark(f"warning: {message}")
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        print(text, end="", file=file or sys.stderr)


def write_model_text(text: str) -> None:
    """Write text of a model to stdout: unchanged to a pipe, with control characters escaped on a terminal."""
    sys.stdout.write(escape_controls(text, keep="\n\t") if sys.stdout.isatty() else text)


def table(*headings: str, left: Collection[int] = (0,)) -> Table:
    """Return a table; the columns in `left` are left-aligned, others right-aligned."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for position, name in enumerate(headings):
        made.add_column(name, justify="left" if position in left else "right", overflow="fold")
    return made


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str = "",
    left: Collection[int] = (0,),
) -> None:
    """Print a table on stdout, below its title; without any heading it has no row of headings."""
    made = table(*headings, left=left)
    made.show_header = any(headings)
    for row in rows:
        made.add_row(*row)
    if title:
        stdout().print(Text(title, "italic"))
    stdout().print(made)


@contextlib.contextmanager
def phase_progress(phase: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows the progress of one phase from the amount done and the total."""
    with progress() as show:
        yield lambda done, total: show(phase, done, total, unit)


@contextlib.contextmanager
def progress() -> Iterator[PhaseProgress]:
    """Yield a function that shows the progress of the block, phase by phase; it can be called often."""
    console = stderr()
    if not console.is_terminal:
        yield _plain_lines(console)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=10) as bars:
        tasks: dict[str, TaskID] = {}

        def show(phase: str, done: int, total: int, unit: str) -> None:
            amount = _amount(done, total, unit)
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total, amount=amount)
            bars.update(tasks[phase], completed=done, total=total, amount=amount)

        yield show


def _plain_lines(console: Console) -> PhaseProgress:
    estimates: dict[str, TimeLeft] = {}
    next_line = time.monotonic() + SECONDS_BEFORE_FIRST_LINE

    def show(phase: str, done: int, total: int, unit: str) -> None:
        nonlocal next_line
        now = time.monotonic()
        left = estimates.setdefault(phase, TimeLeft())(now, done, total)
        if now < next_line or not total:
            return
        next_line = now + SECONDS_BETWEEN_LINES
        parts = [f"{phase}: {done / total:.0%} ({_amount(done, total, unit)})", left]
        console.print(", ".join(filter(None, parts)))

    return show


def _amount(done: int, total: int, unit: str) -> str:
    if unit == "bytes":
        return f"{format_bytes(done)} of {format_bytes(total)}"
    return f"{done:,} of {total:,} {unit}"
