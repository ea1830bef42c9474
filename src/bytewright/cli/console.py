"""What the commands print with: results on stdout, progress on stderr, and numbers people can read.

On a terminal progress is a bar, redrawn at most ten times a second; in a pipe or a log it is a plain line
every few seconds, and none at all for work that is over within a second. It knows nothing of what is done.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bytewright.errors import escape_controls
from bytewright.formatting import TimeLeft, format_bytes

PLAIN_WIDTH = 10_000  # in a pipe a line is never broken: whoever reads it may want to search it
# Text is shown as it is: [bold] and :owl: in a story are part of the story.
AS_IT_IS: Mapping[str, Any] = {"markup": False, "emoji": False, "highlight": False}
SECONDS_BEFORE_FIRST_LINE = 1.0
SECONDS_BETWEEN_LINES = 5.0

Report = Callable[[str, int, int, str], None]
"""Tell how far a phase is: its name, what is done, the total, and the unit ("bytes" is shown as MB)."""


class EscapingConsole(Console):
    """A console that shows control characters and line breaks of any `str` as escapes.

    Most of what is printed holds text from files: names, paths, reasons. A `Text` is printed as it is.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Make the text that rich prints for a `str`, wherever it stands: in a line or in a cell."""
        return super().render_str(escape_controls(text), **options)


def stdout() -> Console:
    """Make the console for results; in a pipe it has no colour."""
    return EscapingConsole(width=None if sys.stdout.isatty() else PLAIN_WIDTH, **AS_IT_IS)


def stderr() -> Console:
    """Make the console for progress and remarks."""
    return EscapingConsole(stderr=True, width=None if sys.stderr.isatty() else PLAIN_WIDTH, **AS_IT_IS)


def write_text(text: str) -> None:
    """Write a model's text to stdout: as it is into a pipe, without control characters on a terminal."""
    sys.stdout.write(escape_controls(text, keep="\n\t") if sys.stdout.isatty() else text)


def table(*headings: str, title: str | None = None) -> Table:
    """Start a table whose first column is words and whose others are numbers; `title` is not escaped."""
    made = Table(
        title=None if title is None else Text(title),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for position, name in enumerate(headings):
        made.add_column(name, justify="left" if position == 0 else "right", overflow="fold")
    return made


@contextlib.contextmanager
def progress() -> Iterator[Report]:
    """Show the progress of the block, phase after phase; what is yielded is called as often as one likes."""
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

        def report(phase: str, done: int, total: int, unit: str) -> None:
            amount = _amount(done, total, unit)
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total, amount=amount)
            bars.update(tasks[phase], completed=done, total=total, amount=amount)

        yield report


def _plain_lines(console: Console) -> Report:
    estimates: dict[str, TimeLeft] = {}
    next_line = time.monotonic() + SECONDS_BEFORE_FIRST_LINE

    def report(phase: str, done: int, total: int, unit: str) -> None:
        nonlocal next_line
        now = time.monotonic()
        left = estimates.setdefault(phase, TimeLeft())(now, done, total)
        if now < next_line or not total:
            return
        next_line = now + SECONDS_BETWEEN_LINES
        parts = [f"{phase}: {done / total:.0%} ({_amount(done, total, unit)})", left]
        console.print(", ".join(filter(None, parts)))

    return report


def _amount(done: int, total: int, unit: str) -> str:
    if unit == "bytes":
        return f"{format_bytes(done)} of {format_bytes(total)}"
    return f"{done:,} of {total:,} {unit}"
