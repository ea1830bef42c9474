"""The charts of a report: learning curves by steps, tokens and time, and final values by axis of a sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bytewright.experiments.groups import (
    Group,
    describe_lost,
    differing,
    format_labels,
    format_setting,
    short_names,
)
from bytewright.experiments.loss_metric import TRAINING, VALIDATION
from bytewright.experiments.records import RunRecord
from bytewright.experiments.results import SweepInfo
from bytewright.report.charts import Axis, Chart, Dot, DotChart, ReferenceLine, Series, fit_limits
from bytewright.report.compare import floor_of
from bytewright.report.page import Figure
from bytewright.train.metrics import TRAINING_METRICS, Metric, is_finite

BY = {"step": "steps", "tokens": "tokens", "seconds": "seconds of wall-clock time"}
MAX_SERIES, MAX_DOTS = 8, 30
ChartLine = tuple[str, list[tuple[float, Group]]]
"""The label of a line of a chart, and the x and group of each point."""
CROSS = "A cross marks where a diverged run leaves the chart."
EARLY = 0.12
"""The initial share of a run that does not determine the limits of y, since the loss falls steeply there."""


def learning_curves(groups: Sequence[Group], metric: Metric) -> list[Figure]:
    """Return charts of the metric by steps, by tokens and by wall-clock time."""
    floor = floor_of([run for group in groups for run in group.runs], metric)
    figures = []
    for by in BY:
        series = []
        for group in groups:
            points, spread = group.curve(metric.name, by)
            has_band = spread and len(group.runs) > 1
            label, diverged = group.label + group.mark, group.status == "diverged"
            series.append(Series(label, points, spread if has_band else None, diverged))
        chart, caption = _curve_chart(metric.title.capitalize(), by, metric.axis, series, floor)
        description = f"{metric.axis} of {len(groups)} settings, against {BY[by]}"
        chart = replace(chart, description=description, ordered=_is_ordered(groups))
        figures.append(Figure(chart, " ".join([*caption, *_curve_caption(groups, by)])))
    return figures


def single_curves(record: RunRecord) -> list[Figure]:
    """Return charts of training and validation loss of one run by steps, tokens and wall-clock time."""
    metric = VALIDATION if record.column("validation_loss") else TRAINING
    figures = []
    for by in BY:
        series, crosses = [], []
        for each in (TRAINING, VALIDATION):
            points = [(float(line[by]), value) for line, value in record.column(each.name) if by in line]
            if points:
                series.append(Series(each.title, points))
        if series and (end := record.end_of_numbers(by)) is not None:
            series[0] = Series(series[0].label, [*series[0].points, (end, math.inf)])
            crosses = [CROSS]
        floor = floor_of([record], metric)
        chart, caption = _curve_chart("Loss", by, "loss, nats per token", series, floor)
        description = f"training and validation loss of {record.name}, against {BY[by]}"
        figures.append(Figure(replace(chart, description=description), " ".join(caption + crosses)))
    return figures


def _curve_chart(
    title: str, by: str, label: str, series: Sequence[Series], floor: float | None
) -> tuple[Chart, list[str]]:
    """Return a chart of losses by steps, tokens or seconds, and a sentence for its caption."""
    axis, references, caption = _loss_axis(label, series, floor)
    title = f"{title} by {by.replace('step', 'steps')}"
    return Chart(title=title, x=Axis(BY[by]), y=axis, series=series, references=references), caption


def _loss_axis(
    label: str, series: Sequence[Series], floor: float | None
) -> tuple[Axis, list[ReferenceLine], list[str]]:
    """Return the axis of a loss, its reference lines, and a sentence for the caption.

    If all values lie above a floor, the axis shows the distance to the floor on a log scale. Differences near
    the floor are then visible despite the steep start and despite bad settings.
    """
    converged = [each for each in series if not each.diverged] or series
    if floor is None or not any(each.points for each in converged):
        return Axis(label, limits=_choose_limits(converged, [])), [], []
    if min(min(_finite_values(each), default=math.inf) for each in series) <= floor:
        return (
            Axis(label, limits=_choose_limits(converged, [floor])),
            [ReferenceLine("entropy floor", floor)],
            [],
        )
    limits = fit_limits([value - floor for each in converged for value in _finite_values(each)], log=True)
    caption = f"Distance to the entropy floor of {floor:.4f}, on a log axis."
    return Axis(label, log=True, origin=floor, limits=limits), [], [caption]


def schedule_figures(record: RunRecord) -> list[Figure]:
    """Return charts by steps of the metrics of one run that have a chart of their own."""
    figures = []
    for metric in (metric for metric in TRAINING_METRICS if metric.is_drawn):
        points = [(float(line["step"]), value) for line, value in record.column(metric.name)]
        if len(points) > 1:
            log = metric.name == "gradient_norm" and min(y for _, y in points) > 0
            chart = Chart(
                title=metric.title.capitalize(),
                x=Axis("steps"),
                y=Axis(metric.title, log=log),
                series=[Series(metric.title, points)],
            )
            figures.append(Figure(chart))
    return figures


def axis_figures(groups: Sequence[Group], metric: Metric, about: SweepInfo) -> list[Figure]:
    """Return charts of the final metric against every axis: lines for numbers, dots for names."""
    numeric = [axis for axis in about.axes if _is_numeric(groups, axis)]
    named = [axis for axis in about.axes if axis not in numeric and len(_distinct_values(groups, axis)) > 1]
    dots = [_dot_figure(groups, metric, about)] if 1 < len(groups) <= MAX_DOTS else []
    figures = [_axis_figure(groups, axis, metric, about) for axis in numeric]
    if about.design == "star":
        return dots + figures
    return figures + dots if named else figures or dots


def speed_figures(groups: Sequence[Group], about: SweepInfo) -> list[Figure]:
    """Return charts of tokens per second against the axes that change it by more than a quarter."""
    figures = []
    for axis in about.axes:
        if not _is_numeric(groups, axis):
            continue
        lines = _split_into_lines(groups, axis, about)
        series = [
            Series(
                label, [(x, speed) for x, group in points if (speed := group.measured("tokens_per_second"))]
            )
            for label, points in lines[:MAX_SERIES]
        ]
        speeds = [y for each in series for _, y in each.points]
        if speeds and max(speeds) > 1.25 * min(speeds):
            short = short_names(about.axes)[axis].replace("_", " ")
            chart = Chart(
                title=f"Speed against {short}",
                x=_make_axis([x for each in series for x, _ in each.points], short),
                y=Axis("tokens per second", limits=(0.0, 1.05 * max(speeds))),
                series=series,
            )
            caption = ["Tokens per second during training, without evaluations and checkpoints."]
            caption += _describe_companions(lines, axis) + _describe_omitted(len(lines))
            figures.append(Figure(chart, " ".join(caption)))
    return figures


def _axis_figure(groups: Sequence[Group], axis: str, metric: Metric, about: SweepInfo) -> Figure:
    series = []
    lines = _split_into_lines(groups, axis, about)
    for label, points in lines[:MAX_SERIES]:
        values = [(x, group.mean(metric.name)) for x, group in points]
        several = any(len(group.runs) > 1 for _, group in points)
        spread = [group.spread(metric.name) for _, group in points] if several else None
        crosses = [(x, group.label + group.mark) for x, group in points if group.num_lost]
        series.append(Series(label, values, spread, crosses=crosses))
    short = short_names(about.axes)[axis].replace("_", " ")
    y, references, caption = _final_axis(groups, metric)
    chart = Chart(
        title=metric.heading(f" against {short}"),
        description=f"{metric.axis} at the end of training, by {short}",
        x=_make_axis([x for each in series for x, _ in each.points], short),
        y=y,
        series=series,
        references=references,
    )
    sentences = _axis_caption(groups, about) + _describe_companions(lines, axis) + caption
    return Figure(chart, " ".join(sentences + _describe_omitted(len(lines))))


def _final_axis(groups: Sequence[Group], metric: Metric) -> tuple[Axis, list[ReferenceLine], list[str]]:
    """Return one axis for all charts of final values, so that their effects are comparable."""
    if metric.limits:
        return Axis(metric.axis, limits=metric.limits), [], []
    values = [(0.0, bound) for group in groups for bound in group.spread(metric.name)]
    floor = floor_of([run for group in groups for run in group.runs], metric)
    return _loss_axis(metric.axis, [Series("", values)], floor)


def _axis_caption(groups: Sequence[Group], about: SweepInfo) -> list[str]:
    num_seeds = max(len(group.runs) for group in groups)
    seeds = f", the mean of up to {num_seeds} seeds with the lowest and highest" if num_seeds > 1 else ""
    caption = [f"Final value of every setting{seeds}."]
    if any(group.status == "diverged" for group in groups):
        caption.append("A cross at the upper edge marks a setting that diverged.")
    if lost := describe_lost(groups):
        caption += ["A cross above a point marks a setting of which some seeds diverged.", *lost]
    if about.design == "star":
        caption.append("All other settings are those of the baseline.")
    return caption


def _make_axis(values: Sequence[float], label: str) -> Axis:
    """Return a log axis for values that span a factor of 8; up to twelve values each get a tick."""
    distinct = sorted(set(values))
    log = len(distinct) > 2 and distinct[0] > 0 and distinct[-1] / distinct[0] >= 8
    ticks = distinct if 2 <= len(distinct) <= 12 else None
    return Axis(label, log=log, ticks=ticks)


def _describe_companions(lines: Sequence[ChartLine], axis: str) -> list[str]:
    """Return a sentence on the settings that vary together with an axis, since they may cause its effect."""
    found: dict[str, list[str]] = {}
    for _, points in lines:
        settings = [group.runs[0].settings for _, group in points]
        for name in differing(settings):
            ends = f"{format_setting(settings[0].get(name))} to {format_setting(settings[-1].get(name))}"
            found.setdefault(name, []).append(ends)
    own = axis.rpartition(".")[2]  # corpus.vocab_size and model.vocab_size are the same quantity
    moved = [
        f"`{name}`" + (f" ({ends[0]})" if len(set(ends)) == 1 else "")
        for name, ends in found.items()
        if name.rpartition(".")[2] != own and not name.startswith("data.") and not name.endswith("_every")
    ]
    if not moved:
        return []
    listed = " and ".join(filter(None, [", ".join(moved[:-1]), moved[-1]]))
    return [f"Varied together with the {own.replace('_', ' ')}: {listed}."]


def _split_into_lines(groups: Sequence[Group], axis: str, about: SweepInfo) -> list[ChartLine]:
    """Return one line per setting of the other axes; in a star design, one line through the baseline."""
    names = short_names([name for name in about.axes if name != "variant"])
    lines: dict[str, list[tuple[float, Group]]] = {}
    for group in groups:
        x = group.labels.get(axis)
        if not is_finite(x):
            continue
        others = {name: value for name, value in group.labels.items() if name != axis}
        if about.design == "star":
            if any(about.baseline.get(name) != value for name, value in others.items()):
                continue
            others = {}
        lines.setdefault(format_labels(others, names) or "final", []).append((float(x), group))
    return [(label, sorted(points, key=lambda point: point[0])) for label, points in lines.items()]


def _describe_omitted(num_lines: int) -> list[str]:
    """Return a sentence if a chart does not show all lines."""
    if num_lines <= MAX_SERIES:
        return []
    return [f"The chart shows the first {MAX_SERIES} of {num_lines} lines; the table has all."]


def _dot_figure(groups: Sequence[Group], metric: Metric, about: SweepInfo) -> Figure:
    name = metric.name
    dots = [
        Dot(
            group.label + group.mark,
            group.mean(name),
            group.spread(name) if len(group.values(name)) > 1 else None,
        )
        for group in groups
    ]
    baseline = [group for group in groups if about.baseline and group.labels == about.baseline]
    references = (
        [ReferenceLine("baseline", baseline[0].mean(name))] if baseline and baseline[0].values(name) else []
    )
    several = any(dot.spread for dot in dots)
    chart = DotChart(
        title=metric.heading(),
        description=f"{metric.axis} at the end of training, by setting",
        value=Axis(metric.axis),
        dots=dots,
        references=references,
    )
    caption = ["Mean over seeds; bars extend from the lowest to the highest."] if several else []
    return Figure(chart, " ".join(caption + describe_lost(groups)))


def _finite_values(series: Series) -> list[float]:
    values = [y for _, y in series.points] + [bound for pair in series.spread or () for bound in pair]
    return [value for value in values if math.isfinite(value)]


def _choose_limits(series: Sequence[Series], lows: Sequence[float]) -> tuple[float, float] | None:
    """Return limits of y that contain `lows` and the curves after their steep start."""
    shown = list(lows)
    for each in series:
        finite = [(x, y) for x, y in each.points if math.isfinite(y)]
        shown += [y for x, y in finite if x >= EARLY * finite[-1][0]]
    return fit_limits(shown, log=False) if shown else None


def _curve_caption(groups: Sequence[Group], by: str) -> list[str]:
    parts = []
    diverged = [group for group in groups if group.status == "diverged"]
    if any(len(group.runs) > 1 for group in groups):
        parts.append("Each curve is the mean over seeds, with the lowest and highest.")
        if any(len(group.runs) > 1 for group in diverged):
            parts.append("If all seeds diverged, it is the median.")
        parts += describe_lost(groups)
    if diverged:
        parts.append(CROSS)
    if by == "seconds":
        parts.append("Time includes compilation, evaluations and checkpoints.")
    return parts


def _distinct_values(groups: Sequence[Group], axis: str) -> list[Any]:
    return list(dict.fromkeys(format_setting(group.labels.get(axis)) for group in groups))


def _is_numeric(groups: Sequence[Group], axis: str) -> bool:
    values = [group.labels[axis] for group in groups if axis in group.labels]
    return len(set(values)) > 1 and all(is_finite(value) for value in values)


def _is_ordered(groups: Sequence[Group]) -> bool:
    """Return whether the groups are increasing values of one number, which a colour ramp can show."""
    if len(groups) < 4 or any(len(group.labels) != 1 for group in groups):
        return False
    values = [next(iter(group.labels.values())) for group in groups]
    return all(is_finite(value) for value in values) and values == sorted(values)
