"""Render charts as SVG: lines over linear or logarithmic axes, and dots with their spread.

`draw_chart` returns SVG that scales with the page, follows light and dark mode, and is readable in black and
white. It has a title and a description for screen readers. A cross marks where a diverged series leaves the
chart. Lines are labelled at their ends if there is room, and in a legend below otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from bytewright.report import svg
from bytewright.report.charts import (
    Axis,
    Chart,
    Dot,
    DotChart,
    ReferenceLine,
    Scale,
    Series,
    choose_ticks,
    fit_limits,
    format_ticks,
    format_value,
)

WIDE, NARROW = 720, 360
"""Widths of the two drawings of a chart, for desktop and phone; the font size is the same in both."""
LINE = 16
FEW_POINTS = 16
"""A series of at most this many points has a mark at each and its spread as bars; a longer one has a band."""
MAX_POINTS = 500
LONG_LABEL = 26
"""Labels with more characters are placed in a legend below the plot instead of next to the lines."""
NAMES_SHARE = 0.45
"""Names of dots that need more than this share of the width are placed above the dots."""
FAR_AWAY = 1e4
"""Points are clamped to this many pixels above the plot; the visible part of a line stays the same."""
STYLE = (Path(__file__).with_name("chart.css")).read_text()


def draw_chart(chart: Chart | DotChart, *, width: int = WIDE, standalone: bool = True) -> str:
    """Return a chart as an SVG element; a standalone one includes its style and can be saved as a file."""
    height, content = _draw_lines(chart, width) if isinstance(chart, Chart) else _draw_dots(chart, width)
    parts = [
        svg.element("title", svg.escape(chart.title)),
        svg.element("desc", svg.escape(chart.description or chart.title)),
        *([svg.element("style", STYLE)] if standalone else []),
        *content,
    ]
    return svg.element(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height:g}",
        width=width if standalone else None,
        height=height if standalone else None,
        role="img",
        aria_label=chart.title,
        class_="bw-chart",
    )


# Lines


def _draw_lines(chart: Chart, width: int) -> tuple[float, list[str]]:
    chart = replace(chart, series=[_thin(_subtract_origin(series, chart.y)) for series in chart.series])
    labelled = chart.series
    wide, single = width > 500, len(labelled) == 1
    x_axis, y_axis = _complete_axis(chart.x, _xs(chart), width // 110), _complete_axis(chart.y, _ys(chart), 6)
    y_labels = format_ticks(y_axis.ticks or ())
    left = 10 + svg.CHARACTER_WIDTH * max(map(len, y_labels), default=1)
    longest = max((len(series.full_label) for series in labelled), default=0)
    side_labels = wide and not single and longest <= LONG_LABEL
    right = 26 + svg.CHARACTER_WIDTH * longest if side_labels else 14.0
    top, plot_height = 2.4 * LINE, width * (0.44 if wide else 0.66)
    if side_labels:
        plot_height = max(plot_height, LINE * len(labelled))
    x = _make_scale(x_axis, left, width - right)
    y = _make_scale(y_axis, top + plot_height, top)
    head = chart.y.label + (f" above {chart.y.origin:.4f}" if chart.y.origin else "") + _log_suffix(y_axis)
    content = [svg.text(0, LINE - 4, head, class_="head")]
    content += _draw_grid(x, y, x_axis, y_axis, y_labels)
    below = chart.x.label + _log_suffix(x_axis)
    content.append(svg.text(x.end, y.start + 2.6 * LINE, below, text_anchor="end", class_="quiet"))
    content += _draw_references(chart.references, x, y)
    content += _clip_to_plot(x, y, [_draw_series(series, chart, labelled, x, y) for series in chart.series])
    height = y.start + 3 * LINE
    if single:
        return height, content
    if side_labels:
        return height, content + _draw_side_labels(labelled, chart.ordered, x, y)
    legend_height, legend = _draw_legend(labelled, chart.ordered, height + 4, width)
    return height + legend_height, content + legend


def _subtract_origin(series: Series, axis: Axis) -> Series:
    """Subtract the origin of the axis from all values of a series."""
    spread = [(low - axis.origin, high - axis.origin) for low, high in series.spread or ()]
    points = [(x, y - axis.origin) for x, y in series.points]
    curve = None if series.curve is None else [(x, y - axis.origin) for x, y in series.curve]
    return replace(series, points=points, curve=curve, spread=spread if spread else None)


def _thin(series: Series) -> Series:
    """Reduce a long series to the lowest and highest point of every bin, and both ends."""
    if len(series.points) <= MAX_POINTS or series.curve is not None:
        return series
    per_bin = -(-2 * len(series.points) // MAX_POINTS)
    kept = {0, len(series.points) - 1}
    for first in range(0, len(series.points), per_bin):
        indices = range(first, min(first + per_bin, len(series.points)))
        kept |= {
            min(indices, key=lambda i: series.points[i][1]),
            max(indices, key=lambda i: series.points[i][1]),
        }
    order = sorted(kept)
    spread = [series.spread[index] for index in order] if series.spread else None
    return replace(series, points=[series.points[index] for index in order], spread=spread)


def _xs(chart: Chart) -> list[float]:
    return [x for series in chart.series for x, _ in [*series.points, *(series.curve or ())]]


def _ys(chart: Chart) -> list[float]:
    ys = [y for series in chart.series for _, y in [*series.points, *(series.curve or ())]]
    ys += [bound for series in chart.series for pair in series.spread or () for bound in pair]
    return ys + [reference.value for reference in chart.references]


def _complete_axis(axis: Axis, values: Sequence[float], target: int) -> Axis:
    """Choose the limits and ticks of an axis; a log axis without a positive value becomes linear."""
    log = axis.log and any(value > 0 for value in values)
    low, high = axis.limits or fit_limits(values, log=log)
    ticks = axis.ticks if axis.ticks is not None else choose_ticks(low, high, log=log, target=target)
    return replace(axis, log=log, limits=(low, high), ticks=[t for t in ticks if low <= t <= high])


def _log_suffix(axis: Axis) -> str:
    return " (log)" if axis.log else ""


def _make_scale(axis: Axis, start: float, end: float) -> Scale:
    assert axis.limits is not None
    return Scale(*axis.limits, start, end, log=axis.log)


def _draw_grid(x: Scale, y: Scale, x_axis: Axis, y_axis: Axis, y_labels: Sequence[str]) -> list[str]:
    """Draw horizontal rules, and ticks below the lower edge; omit labels that would overlap."""
    content = []
    for value, label in zip(y_axis.ticks or (), y_labels, strict=True):
        content.append(svg.line(x.start, y(value), x.end, y(value), "grid"))
        content.append(svg.text(x.start - 6, y(value) + 4, label, text_anchor="end", class_="quiet"))
    content.append(svg.line(x.start, y.start, x.end, y.start, "axis"))
    for value in x_axis.ticks or ():
        content.append(svg.line(x(value), y.start, x(value), y.start + 4, "axis"))
    content += _draw_tick_labels(x, x_axis, y.start + 1.2 * LINE)
    return content


def _draw_tick_labels(x: Scale, axis: Axis, y: float) -> list[str]:
    """Write the values of the ticks in a row; omit labels that would overlap."""
    content, free_from = [], -math.inf
    for value, label in zip(axis.ticks or (), format_ticks(axis.ticks or ()), strict=True):
        half = svg.CHARACTER_WIDTH * len(label) / 2
        if x(value) - half >= free_from:
            content.append(svg.text(x(value), y, label, text_anchor="middle", class_="quiet"))
            free_from = x(value) + half + 3
    return content


def _draw_references(references: Sequence[ReferenceLine], x: Scale, y: Scale) -> list[str]:
    content = []
    for reference in references:
        place = y(reference.value)
        words = f"{reference.label} {format_value(reference.value)}"
        below = place + 0.7 * LINE  # the data lie above a floor, so its label goes below
        label_y = below if below <= y.start else place - 5
        content.append(svg.line(x.start, place, x.end, place, "floor"))
        content.append(svg.text(x.end, label_y, words, text_anchor="end", class_="halo"))
    return content


def _clip_to_plot(x: Scale, y: Scale, drawn: Sequence[str]) -> list[str]:
    """Clip drawings to the plot, with room for marks on its edges; an inner svg element clips its content."""
    room, width, height = 7, x.end - x.start, y.start - y.end
    box = (x.start - room, y.end - room, width + 2 * room, height + room + 1)
    view = " ".join(f"{value:.1f}" for value in box)
    return [svg.element("svg", *drawn, x=box[0], y=box[1], width=box[2], height=box[3], viewBox=view)]


def _draw_series(series: Series, chart: Chart, labelled: Sequence[Series], x: Scale, y: Scale) -> str:
    """Draw one series: its band or bars, its line, its marks, and crosses where it leaves the chart."""
    places = [
        (x(px), max(y(py), y.end - FAR_AWAY) if math.isfinite(py) else y.end - LINE)
        for px, py in series.points
    ]
    few, index = len(series.points) <= FEW_POINTS or series.curve is not None, labelled.index(series)
    parts = _draw_spread(series, x, y, bars=few)
    if series.curve is not None:
        lines = [[(x(px), y(py)) for px, py in series.curve]]
    else:
        lines = [places] if series.diverged else _split_at_gaps(series, places)
    for whole in lines:
        for piece in svg.clip(whole, y.end, y.start):
            d = svg.path(piece)
            parts.append(svg.element("path", d=d, class_="line", stroke_dasharray=svg.dash_of(index)))
    stride = 1 if few else max(1, len(places) // 5)
    for number in range(0 if few else stride // 2, len(places), stride):
        px, py = series.points[number]
        if math.isfinite(py) and y.holds(py):
            parts.append(svg.mark(index, *places[number], title=f"{series.label}: {_format_point(px, py)}"))
    parts += [
        svg.cross(px, y.end, title=f"{series.label}: diverged") for px in _find_exits(series, places, y)
    ]
    parts += [svg.cross(x(px), y.end, title=words) for px, words in series.crosses]
    style = svg.colour_of(index, count=len(labelled), ordered=chart.ordered)
    return svg.element("g", *parts, style=style) if parts else ""


def _split_at_gaps(series: Series, places: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Split the line at non-finite points, which are settings that diverged."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for place, (_, value) in zip(places, series.points, strict=True):
        if math.isfinite(value):
            pieces[-1].append(place)
        else:
            pieces.append([])
    return pieces


def _find_exits(series: Series, places: Sequence[tuple[float, float]], y: Scale) -> list[float]:
    """Return the x pixels of the crosses on the upper edge that mark divergence.

    A diverged run has one cross, where its line first crosses the edge upwards. If the line starts above the
    edge and does not fall from there, the cross is at its start. Any other line shows final values, and has
    a cross at every setting without a finite value.
    """
    if not series.diverged:
        both = zip(places, series.points, strict=True)
        return [px for (px, _), (_, value) in both if not math.isfinite(value)]
    is_out = [py < y.end for _, py in places]
    before = places[: is_out.index(False) if False in is_out else None]
    if any(py < before[0][1] for _, py in before) or (before and len(before) == len(places)):
        return [places[0][0]]
    for ((x0, y0), (x1, y1)), leaves in zip(pairwise(places), pairwise(is_out), strict=True):
        if leaves == (False, True):
            return [x0 + (x1 - x0) * (y0 - y.end) / (y0 - y1)]
    return []


def _format_point(x: float, y: float) -> str:
    return f"{format_value(y)} at {format_value(x)}"


def _draw_spread(series: Series, x: Scale, y: Scale, *, bars: bool) -> list[str]:
    if not series.spread:
        return []
    bounds = [
        (x(px), y(low), y(high))
        for (px, _), (low, high) in zip(series.points, series.spread, strict=True)
        if math.isfinite(low) and math.isfinite(high)
    ]
    if bars:
        return [
            svg.element("path", d=svg.path([(px, low), (px, high)]), class_="bar") for px, low, high in bounds
        ]
    outline = [(px, high) for px, _, high in bounds] + [(px, low) for px, low, _ in reversed(bounds)]
    return [svg.element("path", d=svg.path(outline, closed=True), class_="band")] if bounds else []


def _draw_side_labels(labelled: Sequence[Series], ordered: bool, x: Scale, y: Scale) -> list[str]:
    """Write each label next to the end of its line, moved apart where labels would overlap."""
    ends = [series.points[-1] if series.points else (x.high, y.low) for series in labelled]
    at_edge = [(x(px), min(max(y(py), y.end), y.start) if math.isfinite(py) else y.end) for px, py in ends]
    places = svg.spread_labels([py for _, py in at_edge], LINE - 1, y.end, y.start)
    content = []
    for index, (series, (ex, ey), place) in enumerate(zip(labelled, at_edge, places, strict=True)):
        style = svg.colour_of(index, count=len(labelled), ordered=ordered)
        elbow = [(max(ex + 6, x.end + 2), ey), (x.end + 9, place)]
        parts = [svg.element("path", d=svg.path(elbow), class_="leader"), svg.mark(index, x.end + 14, place)]
        parts.append(svg.text(x.end + 22, place + 4, series.full_label, class_="label"))
        content.append(svg.element("g", *parts, style=style))
    return content


def _draw_legend(
    labelled: Sequence[Series], ordered: bool, top: float, width: int
) -> tuple[float, list[str]]:
    """List the series below the plot, each with a sample of its line."""
    content, left, row = [], 0.0, 0
    for index, series in enumerate(labelled):
        needed = 44 + svg.CHARACTER_WIDTH * len(series.full_label)
        if left and left + needed > width:
            left, row = 0.0, row + 1
        y = top + row * 1.25 * LINE
        sample = svg.element(
            "path",
            d=svg.path([(left, y), (left + 28, y)]),
            class_="line",
            stroke_dasharray=svg.dash_of(index),
        )
        style = svg.colour_of(index, count=len(labelled), ordered=ordered)
        label = svg.text(left + 34, y + 4, series.full_label, class_="label")
        parts = [sample, svg.mark(index, left + 14, y), label]
        content.append(svg.element("g", *parts, style=style))
        left += needed
    return (row + 1) * 1.25 * LINE, content


# Dots


def _draw_dots(chart: DotChart, width: int) -> tuple[float, list[str]]:
    values = [bound for dot in chart.dots for bound in (dot.value, *(dot.spread or ()))]
    values += [reference.value for reference in chart.references]
    left = 16 + svg.CHARACTER_WIDTH * max((len(dot.label) for dot in chart.dots), default=0)
    names_left = left <= NAMES_SHARE * width
    left = left if names_left else 8.0
    row, top = (1.6 * LINE if names_left else 2.3 * LINE), (2.4 if not chart.references else 3.4) * LINE
    bottom = top + row * len(chart.dots)
    axis = _complete_axis(chart.value, values, int(width - left) // 100)
    x = _make_scale(axis, left, width - 60)
    content = [svg.text(0, LINE - 4, chart.value.label, class_="head")]
    content += [svg.line(x(value), top - 4, x(value), bottom, "grid") for value in axis.ticks or ()]
    content += _draw_tick_labels(x, axis, bottom + 1.1 * LINE)
    for reference in chart.references:
        place = x(reference.value)
        words = f"{reference.label} {reference.value:,.{_count_decimals(x)}f}"
        anchor = "start" if place < (x.start + x.end) / 2 else "end"
        content.append(svg.line(place, top - 4, place, bottom, "floor"))
        content.append(svg.text(place, top - 0.6 * LINE, words, text_anchor=anchor, class_="halo"))
    for number, dot in enumerate(chart.dots):
        middle = top + (number + (0.5 if names_left else 0.65)) * row
        content.append(_draw_dot(dot, x, middle, names_left=names_left))
    return bottom + 1.5 * LINE, content


def _count_decimals(x: Scale) -> int:
    """Return the number of decimals of the values next to the dots: the same as in the tables."""
    return 4 if x.high < 1000 else 0


def _draw_dot(dot: Dot, x: Scale, y: float, *, names_left: bool) -> str:
    parts = [
        svg.text(x.start - 10, y + 4, dot.label, text_anchor="end")
        if names_left
        else svg.text(x.start, y - 9, dot.label, class_="halo")
    ]
    if dot.spread and all(map(math.isfinite, dot.spread)):
        parts += _draw_bar(dot.spread, x, y)
    if math.isfinite(dot.value):
        end = min(x(max(dot.value, *(dot.spread or (dot.value,)))), x.end)
        parts.append(svg.mark(0, x(dot.value), y, size=4.2, title=f"{dot.label}: {format_value(dot.value)}"))
        parts.append(svg.text(end + 9, y + 4, f"{dot.value:,.{_count_decimals(x)}f}", class_="halo"))
    else:
        parts.append(svg.cross(x.end, y, title=f"{dot.label}: diverged"))
        parts.append(svg.text(x.end - 10, y + 4, "diverged", text_anchor="end", class_="halo"))
    return svg.element("g", *parts, style=svg.colour_of(0, count=1, ordered=False))


def _draw_bar(spread: tuple[float, float], x: Scale, y: float) -> list[str]:
    """Draw a spread as a bar; where it leaves the chart, the bar ends with the head of an arrow."""
    places = [x(bound) for bound in spread]
    low, high = (min(max(place, x.start), x.end) for place in places)
    lines = [[(low, y), (high, y)]]
    for place, end, side in ((places[0], low, 5), (places[1], high, -5)):
        if abs(place - end) > 0.5:
            lines.append([(end + side, y - 4), (end, y), (end + side, y + 4)])
    return [svg.element("path", d=svg.path(line), class_="bar") for line in lines]
