"""The output of a run while it trains: a live panel in a terminal, plain lines in a pipe, TensorBoard events.

A display receives the title of the run and then every record of the metrics log. The panel is redrawn at most
ten times a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bytewright.errors import UsageError, escape_controls
from bytewright.formatting import TimeLeft
from bytewright.storage import atomic
from bytewright.train.metrics import METRICS, is_finite

CURVE_WIDTH, CURVE_HEIGHT = 60, 8
BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a braille character, by row and column: a cell of the curve is 2 by 4 dots."""


@runtime_checkable
class Display(Protocol):
    """Shows a run while it trains."""

    def record(self, record: Mapping[str, Any], num_steps: int | None) -> None:
        """Show a record of metrics."""

    def close(self) -> None:
        """End the display."""


def make_display(console: Console, title: str) -> Display:
    """Return a live panel for a terminal, or plain lines for a pipe."""
    return LiveDisplay(console, title) if console.is_terminal else PlainDisplay(console, title)


class PlainDisplay:
    """One line per record: for pipes, files and logs."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._time_left = TimeLeft()
        self._print(title)

    def record(self, record: Mapping[str, Any], num_steps: int | None) -> None:
        """Print the record as one line."""
        left = estimate_time_left(self._time_left, record, num_steps)
        self._print("  ".join(filter(None, [summarise(record, num_steps), left])))

    def _print(self, sentence: str) -> None:
        self._console.print(escape_controls(sentence), soft_wrap=True, highlight=False, markup=False)

    def close(self) -> None:
        """Nothing is open."""


class LiveDisplay:
    """A panel that is redrawn in place: progress, current metrics, and the loss curve."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = Text(escape_controls(title))
        self._losses: list[float] = []
        self._validation: tuple[int, float] | None = None
        self._last: tuple[Mapping[str, Any], int | None] | None = None
        self._time_left, self._left = TimeLeft(), ""
        self._live = Live(console=console, refresh_per_second=10, transient=False, get_renderable=self._panel)
        self._live.start()

    def record(self, record: Mapping[str, Any], num_steps: int | None) -> None:
        """Redraw the panel on the next refresh; an event is printed as a line above it."""
        if "event" in record:
            sentence = escape_controls(summarise(record, num_steps))
            self._live.console.print(sentence, markup=False, highlight=False)
            return
        if is_finite(record.get("loss")):
            self._losses.append(record["loss"])
        if is_finite(record.get("validation_loss")):
            self._validation = (record["step"], record["validation_loss"])
        self._left = estimate_time_left(self._time_left, record, num_steps)
        self._last = record, num_steps

    def close(self) -> None:
        """Stop redrawing; the last panel stays."""
        self._live.stop()

    def _panel(self) -> Panel:
        if self._last is None:
            return Panel("first steps …", title=self._title, expand=False)
        record, num_steps = self._last
        figures = Table.grid(padding=(0, 2))
        step = f"{record['step']:,}" + (f" of {num_steps:,}" if num_steps else "")
        figures.add_row("step", ", ".join(filter(None, [step, self._left])))
        bar = ProgressBar(total=num_steps or 1, completed=record["step"] if num_steps else 0, width=40)
        figures.add_row("", bar)
        for name, value in figures_of(record, self._validation):
            figures.add_row(name, value)
        curve = Text("\n".join(draw_curve(self._losses, CURVE_WIDTH, CURVE_HEIGHT)), style="cyan")
        return Panel(Group(figures, curve), title=self._title, expand=False)


def estimate_time_left(time_left: TimeLeft, record: Mapping[str, Any], num_steps: int | None) -> str:
    """Return the time left of a run in words, or an empty string if it cannot be estimated.

    >>> time_left = TimeLeft()
    >>> [estimate_time_left(time_left, {"step": n, "seconds": n / 2}, 100) for n in (20, 40)]
    ['', 'about 30 s left']
    """
    if not num_steps or not is_finite(record.get("seconds")):
        return ""
    return time_left(record["seconds"], record["step"], num_steps)


def figures_of(record: Mapping[str, Any], validation: tuple[int, float] | None) -> list[tuple[str, str]]:
    """Return titles and values of the metrics in the panel."""
    rows = [("loss", _format("loss", record))]
    if validation:
        rows.append(
            ("validation", f"{METRICS['validation_loss'].format(validation[1])} (step {validation[0]:,})")
        )
    rows += [(METRICS[name].title, _format(name, record)) for name in ("lr", "gradient_norm")]
    if is_finite(record.get("tokens_per_second")):
        mfu = f", MFU {_format('mfu', record)}" if is_finite(record.get("mfu")) else ""
        rows.append(("tokens/s", _format("tokens_per_second", record) + mfu))
    return rows


def summarise(record: Mapping[str, Any], num_steps: int | None) -> str:
    """Return a record as one line.

    >>> summarise({"step": 20, "loss": 3.25, "lr": 1e-3, "tokens_per_second": 1000.0}, 100)
    'step 20/100  loss 3.2500  lr 1.00e-03  1,000 tokens/s'
    """
    parts = [f"step {record['step']}" + (f"/{num_steps}" if num_steps else "")]
    if "event" in record:
        return f"{parts[0]}  {describe_event(record)}"
    for name in ("loss", "validation_loss", "bits_per_byte", "lr"):
        if name in ("loss", "lr") or is_finite(record.get(name)):
            parts.append(f"{METRICS[name].short} {_format(name, record)}")
    if is_finite(record.get("tokens_per_second")):
        parts.append(f"{_format('tokens_per_second', record)} tokens/s")
    return "  ".join(parts)


def describe_event(record: Mapping[str, Any]) -> str:
    """Return an event of the metrics log in words.

    >>> describe_event({"step": 5, "event": "planned_steps", "num_steps": 1200, "before": None})
    'planned 1,200 steps for the time budget'
    """
    match record:
        case {"event": "ended", "ending": str() as ending}:
            detail = f" ({record['detail']})" if record.get("detail") else ""
            return f"ended: {ending.replace('_', ' ')}{detail}"
        case {"detail": str() as detail}:
            return detail
        case {"event": "refused_step", "cause": cause}:
            return f"refused: the {cause} is not finite"
        case {"event": "environment_changed", "changes": dict() as changes}:
            return "resumed with " + ", ".join(f"{name} {b} (was {a})" for name, (a, b) in changes.items())
        case {"event": "planned_steps", "num_steps": num_steps, "before": before}:
            instead = "" if before is None else f" instead of {before:,}"
            return f"planned {num_steps:,} steps{instead} for the time budget"
        case {"event": "budget_exhausted"}:
            return "time budget exhausted before the schedule finished"
    return str(record.get("event"))


def draw_curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """Draw values as a curve of braille dots, `width` by `height` characters, the newest at the right.

    >>> for line in draw_curve([3, 2, 1, 0], 2, 1): print(line)
    ⠑⢄
    """
    columns, rows = 2 * width, 4 * height
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return [" " * width] * height
    if len(values) > columns:  # the mean of each interval, so that the whole run stays visible
        edges = [i * len(values) // columns for i in range(columns + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    cells = [[0x2800] * width for _ in range(height)]
    for column, value in enumerate(values):
        row = round((high - value) / (high - low) * (rows - 1)) if high > low else rows - 1
        cells[row // 4][column // 2] |= BRAILLE[row % 4][column % 2]
    return ["".join(map(chr, line)) for line in cells]


def _format(name: str, record: Mapping[str, Any]) -> str:
    value = record.get(name)
    return METRICS[name].format(value) if is_finite(value) else "not finite"


def import_summary_writer() -> Any:
    """Import the writer of TensorBoard events; raise `UsageError` if the package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "tensorboard = true needs the package tensorboard, which is not installed; install it with: pip"
            " install tensorboard, or omit the setting: metrics.jsonl is written in any case",
            key="tensorboard",
        ) from None
    return SummaryWriter


class TensorBoard:
    """Writes the numbers of each record as TensorBoard scalars; hides existing ones from `first_step` on."""

    def __init__(self, folder: Path, first_step: int) -> None:
        atomic.check_no_links(folder, within=folder.parent)
        self._writer = import_summary_writer()(str(folder), purge_step=first_step)

    def write(self, record: Mapping[str, Any]) -> None:
        """Add every number of the record at its step."""
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()
