"""Charts as values: lines over two axes, or one dot with its spread per row. `plots` draws them.

    Chart(title="Validation loss", x=Axis("tokens"), y=Axis("nats per token"),
          series=[Series("lr 1e-3", [(1e6, 3.2), (2e6, 2.7)])], references=[Reference("floor", 1.2)])

A y that is not finite means that the run diverged there. `chart_rows` gives the data of a chart as a table:
all of it, unless there is more than anyone reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """What an axis shows. Limits and ticks are chosen from the data unless given."""

    label: str
    log: bool = False
    """The chart says so beside the label; the label itself names the values, which are plain."""
    origin: float = 0.0
    """What a log axis of y begins above: a floor. Limits and ticks are distances from it, data are not."""
    limits: tuple[float, float] | None = None
    ticks: Sequence[float] | None = None


@dataclass(frozen=True)
class Series:
    """Points that belong together, in order of x. `spread` gives the lowest and highest y at each point."""

    label: str
    points: Sequence[tuple[float, float]]
    spread: Sequence[tuple[float, float]] | None = None
    diverged: bool = False
    """Say so beside its label, and mark where it leaves the chart."""
    crosses: Sequence[tuple[float, str]] = ()
    """Where some repetitions diverged though there is a y: the x of each, and what to say of it."""

    @property
    def words(self) -> str:
        """What it is called wherever it is shown."""
        return self.label + (" (diverged)" if self.diverged else "")


@dataclass(frozen=True)
class Reference:
    """A horizontal line (vertical in a `DotChart`) to compare with: a floor, a baseline."""

    label: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines over two axes. `ordered` series are steps of one quantity, and coloured along a ramp."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    description: str = ""
    references: Sequence[Reference] = ()
    ordered: bool = False


@dataclass(frozen=True)
class Dot:
    """One row of a `DotChart`: a value, perhaps with the lowest and highest of its repetitions."""

    label: str
    value: float
    spread: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class DotChart:
    """One value per named row: for comparing things that have no order."""

    title: str
    value: Axis
    dots: Sequence[Dot]
    description: str = ""
    references: Sequence[Reference] = ()


def chart_rows(
    chart: Chart | DotChart, max_points: int | None = None
) -> tuple[list[str], list[list[str | float]]]:
    """Give the data behind a chart: the headings and the rows of a table.

    Series that share their x stand side by side; where most cells would be blank, or where there are a lowest
    and a highest too, they stand one below the other. Of a series with more than `max_points` every nth is
    given, and the last.
    """
    if isinstance(chart, DotChart):
        has_spread = any(dot.spread for dot in chart.dots)
        headings = ["", chart.value.label, *(["lowest", "highest"] if has_spread else [])]
        return headings, [
            [dot.label, dot.value, *((dot.spread or ("", "")) if has_spread else ())] for dot in chart.dots
        ]
    kept = [_every_nth([x for x, _ in series.points], max_points) for series in chart.series]
    if any(series.spread for series in chart.series):
        return _rows_with_spread(chart, kept)
    xs = sorted(set().union(*kept))
    columns = [dict(series.points) for series in chart.series]
    rows: list[list[str | float]] = [[x, *(column.get(x, "") for column in columns)] for x in xs]
    if 2 * sum(cell != "" for row in rows for cell in row[1:]) >= len(columns) * len(rows):
        return [chart.x.label, *(series.words for series in chart.series)], rows
    return ["", chart.x.label, chart.y.label], [
        [series.words, x, y]
        for series, shown in zip(chart.series, kept, strict=True)
        for x, y in series.points
        if x in shown
    ]


def _rows_with_spread(chart: Chart, kept: Sequence[set[float]]) -> tuple[list[str], list[list[str | float]]]:
    """Give every point with its lowest and highest; a series that is alone needs no name in front."""
    rows: list[list[str | float]] = []
    for series, shown in zip(chart.series, kept, strict=True):
        bounds = series.spread or [(math.nan, math.nan)] * len(series.points)
        for (x, y), pair in zip(series.points, bounds, strict=True):
            if x in shown:
                rows.append([series.words, x, y, *(bound if math.isfinite(bound) else "" for bound in pair)])
    if len(chart.series) == 1:
        return [chart.x.label, chart.series[0].words, "lowest", "highest"], [row[1:] for row in rows]
    return ["", chart.x.label, chart.y.label, "lowest", "highest"], rows


def _every_nth(xs: Sequence[float], max_points: int | None) -> set[float]:
    every = -(-len(xs) // max_points) if max_points and xs else 1
    return {*xs[::every], *xs[-1:]}
