"""Charts as values, and the scales that place their data: limits, ticks and number formats.

    Chart(title="Validation loss", x=Axis("tokens"), y=Axis("nats per token"),
          series=[Series("lr 1e-3", [(1e6, 3.2), (2e6, 2.7)])], references=[ReferenceLine("floor", 1.2)])

A non-finite y means that the run diverged at that x. `chart_rows` returns the data of a chart as a table.
`draw` renders charts as SVG; this module depends on neither SVG nor runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bytewright.formatting import format_scientific

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
MISSING = "\N{EN DASH}"
"""Shown in place of a missing value."""


@dataclass(frozen=True)
class Axis:
    """One axis of a chart. Limits and ticks are chosen from the data unless given."""

    label: str
    log: bool = False
    """Whether the scale is logarithmic; the chart appends "(log)" to the label."""
    origin: float = 0.0
    """Subtracted from y, such as an entropy floor. Limits and ticks are relative to it, data are not."""
    limits: tuple[float, float] | None = None
    ticks: Sequence[float] | None = None


@dataclass(frozen=True)
class Series:
    """One line of a chart: points in order of x. `spread` holds the lowest and highest y at each point."""

    label: str
    points: Sequence[tuple[float, float]]
    spread: Sequence[tuple[float, float]] | None = None
    diverged: bool = False
    """Add "(diverged)" to the label, and mark where the line leaves the chart."""
    crosses: Sequence[tuple[float, str]] = ()
    """The x and hover text of points that have a y although some repetitions diverged."""
    curve: Sequence[tuple[float, float]] | None = None
    """The line to draw instead of one through the points, such as a fitted curve; empty: no line."""

    @property
    def full_label(self) -> str:
        """The label as shown in the chart and its table."""
        return self.label + (" (diverged)" if self.diverged else "")


@dataclass(frozen=True)
class ReferenceLine:
    """A horizontal line (vertical in a `DotChart`) to compare with, such as a floor or a baseline."""

    label: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines over two axes. `ordered` series vary one quantity and are coloured along a ramp."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    description: str = ""
    references: Sequence[ReferenceLine] = ()
    ordered: bool = False


@dataclass(frozen=True)
class Dot:
    """One row of a `DotChart`: a value, optionally with the lowest and highest of its repetitions."""

    label: str
    value: float
    spread: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class DotChart:
    """One value per named row, for settings that have no order."""

    title: str
    value: Axis
    dots: Sequence[Dot]
    description: str = ""
    references: Sequence[ReferenceLine] = ()


def chart_rows(
    chart: Chart | DotChart, max_points: int | None = None
) -> tuple[list[str], list[list[str | float]]]:
    """Return the data of a chart as the headings and rows of a table.

    Series that share their x are columns of one row. If most cells would be blank, or if a series has a
    spread or several points at one x, the points are separate rows instead. A series with more than
    `max_points` is reduced to every nth point and the last one.
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
    has_one_y = all(
        len(column) == len(series.points) for column, series in zip(columns, chart.series, strict=True)
    )
    if has_one_y and 2 * sum(cell != "" for row in rows for cell in row[1:]) >= len(columns) * len(rows):
        return [chart.x.label, *(series.full_label for series in chart.series)], rows
    return ["", chart.x.label, chart.y.label], [
        [series.full_label, x, y]
        for series, shown in zip(chart.series, kept, strict=True)
        for x, y in series.points
        if x in shown
    ]


def _rows_with_spread(chart: Chart, kept: Sequence[set[float]]) -> tuple[list[str], list[list[str | float]]]:
    """Return one row per point with its spread; the name column is omitted if there is only one series."""
    rows: list[list[str | float]] = []
    for series, shown in zip(chart.series, kept, strict=True):
        bounds = series.spread or [(math.nan, math.nan)] * len(series.points)
        for (x, y), pair in zip(series.points, bounds, strict=True):
            if x in shown:
                bounds_shown = (bound if math.isfinite(bound) else "" for bound in pair)
                rows.append([series.full_label, x, y, *bounds_shown])
    if len(chart.series) == 1:
        return [chart.x.label, chart.series[0].full_label, "lowest", "highest"], [row[1:] for row in rows]
    return ["", chart.x.label, chart.y.label, "lowest", "highest"], rows


def _every_nth(xs: Sequence[float], max_points: int | None) -> set[float]:
    every = -(-len(xs) // max_points) if max_points and xs else 1
    return {*xs[::every], *xs[-1:]}


# Scales


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` onto pixels from `start` to `end`.

    >>> Scale(1, 100, 0, 200, log=True)(10)
    100.0
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; that of 0 and below on a log scale is finite, far before the start."""
        if self.log:
            tiny = math.ulp(0.0)
            share = math.log(max(max(value, tiny) / self.low, tiny)) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def holds(self, value: float) -> bool:
        """Return whether the value lies on the scale, with a tolerance of a millionth of its length."""
        slack = 1e-6 * abs(self.end - self.start)
        first, last = sorted((self.start, self.end))
        return (value > 0 or not self.log) and first - slack <= self(value) <= last + slack


def fit_limits(values: Sequence[float], *, log: bool, margin: float = 0.04) -> tuple[float, float]:
    """Return limits that contain all finite values, with a margin around them.

    >>> fit_limits([2.0, 4.0], log=False, margin=0.5)
    (1.0, 5.0)
    """
    usable = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not usable:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(usable), max(usable)
    if log:
        air = (high / low) ** margin if high > low else 2.0
        return low / air, high * air
    air = (high - low) * margin if high > low else (abs(high) * 0.1 or 1.0)
    return low - air, high + air


def choose_ticks(low: float, high: float, *, log: bool, target: int = 6) -> list[float]:
    """Return about `target` round values between `low` and `high`: 1, 2 or 5 times a power of ten.

    >>> choose_ticks(0.0, 1.0, log=False)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> choose_ticks(1e-5, 1e-1, log=True)
    [1e-05, 0.0001, 0.001, 0.01, 0.1]
    >>> choose_ticks(1.0, 100.0, log=True)
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    """
    if not log or high / low < 4:
        return _linear_ticks(low, high, target)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for mantissas in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{m}e{power}") for power in range(first, last + 1) for m in mantissas]
        within = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(within) <= target + 1:
            break
    return within[:: -(-len(within) // (target + 1))] if within else _linear_ticks(low, high, target)


def _linear_ticks(low: float, high: float, target: int) -> list[float]:
    """Return multiples of the round step that gives the number of ticks closest to `target`."""
    rough = (high - low) / target
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((1, 2, 5, 10), key=lambda mantissa: abs(math.log(mantissa * power / rough))) * power
    decimals = max(0, -math.floor(math.log10(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = (round(number * step, decimals) + 0.0 for number in range(first, last + 1))  # + 0.0: no -0.0
    return sorted(set(ticks))  # between adjacent floats, several multiples round to the same value


def format_ticks(ticks: Sequence[float]) -> list[str]:
    """Format the ticks of one axis uniformly: with the decimals they need, large ones with a prefix.

    >>> format_ticks([0.0, 0.5, 1.0]), format_ticks([0.0, 2e7, 4e7]), format_ticks([1e-4, 1e-3])
    (['0.0', '0.5', '1.0'], ['0', '20M', '40M'], ['1e-4', '1e-3'])
    >>> format_ticks([1, 32, 1024, 32768]), format_ticks([5e5, 1e6, 1.5e6])
    (['1', '32', '1024', '32,768'], ['0.5M', '1M', '1.5M'])
    """
    sizes = [abs(tick) for tick in ticks if tick]
    if not sizes:
        return ["0" for _ in ticks]
    if min(sizes) < 1e-3:
        return [format_scientific(tick, 4) if 0 < abs(tick) < 0.01 else format_value(tick) for tick in ticks]
    if all(size == int(size) for size in sizes) and (
        max(sizes) < 10_000 or any(size >= 1000 and size % 100 for size in sizes)
    ):
        return [format_value(tick) for tick in ticks]
    if max(sizes) >= 1000 * min(sizes):
        return [_format_prefixed(tick) for tick in ticks]
    for size, prefix in PREFIXES:
        if max(sizes) >= 10 * size or (max(sizes) >= size and all(s % (size / 10) == 0 for s in sizes)):
            return [_format_plain(tick / size) + prefix if tick else "0" for tick in ticks]
    if max(sizes) / min(sizes) >= 50:
        return [_format_plain(tick) for tick in ticks]
    decimals = max(len(_format_plain(tick).partition(".")[2]) for tick in ticks)
    return [f"{tick:.{decimals}f}" for tick in ticks]


def format_value(value: float, digits: int = 4) -> str:
    """Format a single value to `digits` significant digits.

    >>> [format_value(v) for v in (3e-4, 0.0123456, 1.4532, 27.0, 12345.6, 327_680_000)]
    ['3e-4', '0.01235', '1.453', '27', '12,346', '327,680,000']
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return MISSING if math.isnan(value) else "∞" if value > 0 else "-∞"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return format_scientific(value, digits)
    return _format_plain(float(f"{value:.{digits}g}"))


def _format_prefixed(value: float) -> str:
    for size, prefix in PREFIXES:
        if abs(value) >= size:
            return _format_plain(value / size) + prefix
    return _format_plain(value)


def _format_plain(value: float) -> str:
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    return text if text not in ("-0", "") else "0"
