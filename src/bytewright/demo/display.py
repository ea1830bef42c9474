"""Training seen against its floor: bits per byte, how far above the known entropy, and a curve that falls.

On a terminal a panel is drawn over itself; in a pipe there is a line every ten seconds or so. The curve is
that of the training loss, told in bits per byte; where whole validation stories were measured, that figure
stands beside it. Knows nothing of training but its records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bytewright.formatting import TimeLeft
from bytewright.train.console import draw_curve, estimate_time_left, is_number

CURVE_WIDTH, CURVE_HEIGHT = 64, 9
SECONDS_BETWEEN_LINES = 10


class FloorDisplay:
    """Shows a run whose entropy floor is known, in bits per byte."""

    def __init__(self, console: Console, title: str, floor: float, bytes_per_token: float) -> None:
        self._console, self._title, self._floor = console, Text(title), floor
        self._bits_per_nat = 1 / bytes_per_token / math.log(2)
        self._curve: list[float] = []
        self._measured: float | None = None
        self._last_line = 0.0
        self._time_left, self._left = TimeLeft(), ""
        self._live = Live(console=console, refresh_per_second=10) if console.is_terminal else None
        if self._live:
            self._live.start()
        else:
            self.say(title)

    def record(self, record: Mapping[str, Any], num_steps: int | None) -> None:
        """Show a record of metrics."""
        if "event" in record:
            self.say(f"step {record['step']}: {record['event']}")
            return
        if is_number(record.get("loss")):
            self._curve.append(record["loss"] * self._bits_per_nat)
        if is_number(record.get("story_bits_per_byte")):
            self._measured = record["story_bits_per_byte"]
        self._left = estimate_time_left(self._time_left, record, num_steps)
        if self._live:
            self._live.update(self._panel(record, num_steps or 1))
        elif "story_bits_per_byte" in record or self._is_time(record):
            self.say(self._line(record, num_steps))
            self._last_line = record.get("seconds") or 0.0

    def say(self, sentence: str) -> None:
        """Show a sentence."""
        self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the last panel standing."""
        if self._live:
            self._live.stop()

    def _is_time(self, record: Mapping[str, Any]) -> bool:
        return (record.get("seconds") or 0.0) >= self._last_line + SECONDS_BETWEEN_LINES

    def _line(self, record: Mapping[str, Any], num_steps: int | None) -> str:
        if (measured := record.get("story_bits_per_byte")) is not None:
            above = f"{measured - self._floor:.4f} above the floor of {self._floor:.4f}"
            seen = f"validation stories {measured:.4f} bits per byte, {above}"
        else:
            seen = f"training {self._curve[-1]:.4f} bits per byte" if self._curve else "training"
        speed = f"{record.get('tokens_per_second') or 0:,.0f} tokens/s"
        return "  ".join(filter(None, [f"step {record['step']}/{num_steps}", seen, speed, self._left]))

    def _panel(self, record: Mapping[str, Any], num_steps: int) -> Panel:
        figures = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=num_steps, completed=record["step"], width=40)
        figures.add_row(f"step {record['step']:,} of {num_steps:,}", bar)
        if self._curve:
            figures.add_row("training", f"{self._curve[-1]:.3f} bits per byte")
        if self._measured is not None:
            above = self._measured - self._floor
            figures.add_row("whole stories", f"{self._measured:.3f}, {above:.3f} above the floor")
        figures.add_row("floor", f"{self._floor:.3f} bits per byte, the entropy of these stories")
        speed = record.get("tokens_per_second")
        if is_number(speed):
            figures.add_row("speed", f"{speed:,.0f} tokens/s  {self._left}".rstrip())
        # The floor is the curve's last point, so that it is in the picture; it is drawn as a line below.
        lines = draw_curve([*self._curve, self._floor], CURVE_WIDTH, CURVE_HEIGHT)
        curve = Text("\n".join(lines), style="cyan")
        floor = Text("─" * CURVE_WIDTH + f" floor {self._floor:.3f}", style="green")
        return Panel(Group(figures, curve, floor), title=self._title, expand=False)
