"""The charts of a report: learning curves by steps, tokens and time, and what each axis did in the end.

A `Metric` says what is compared: the validation loss where all runs read the same tokens, bits per byte where
they do not, the training loss where nothing else is known. Makes charts out of groups of runs; knows nothing
of pages.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bytewright.lab.groups import Group, short_names, word_labels, word_value
from bytewright.lab.page import Figure
from bytewright.lab.plots import Axis, Chart, Dot, DotChart, Reference, Series
from bytewright.lab.records import RunRecord, is_finite
from bytewright.lab.results import About
from bytewright.lab.scales import fit_limits, format_value

BY = {"step": "steps", "tokens": "tokens", "seconds": "seconds of wall-clock time"}
MAX_CURVES = 10
"""More groups than this are shown as quiet context, but for the best, the worst and the baseline."""
MAX_SERIES, MAX_DOTS = 8, 30
FAR = 2.0
"""A floor that lies this many times the spread of all values below the lowest would only flatten a chart."""
EARLY = 0.12
"""The share of a run whose steep fall may leave the chart at the top, so that the rest can be told apart."""


@dataclass(frozen=True)
class Metric:
    """What is compared: its name in the metrics, and how it is called in a sentence and on an axis."""

    name: str
    title: str
    unit: str
    when: str = "Final "
    """What the title of a chart begins with; nothing for what is measured once."""
    limits: tuple[float, float] | None = None
    """Of the axis; None: as the data wants it."""

    @property
    def axis(self) -> str:
        """What stands on the axis."""
        return f"{self.title}, {self.unit}"

    def heading(self, rest: str = "") -> str:
        """Begin the title of a chart."""
        return f"{self.when}{self.title}{rest}" if self.when else f"{self.title.capitalize()}{rest}"


VALIDATION = Metric("validation_loss", "validation loss", "nats per token")
TRAINING = Metric("loss", "training loss", "nats per token")
BITS = Metric("bits_per_byte", "bits per byte", "of validation text")


def choose_metric(records: Sequence[RunRecord]) -> Metric:
    """Choose what can be compared between these runs."""
    if not all(record.column("validation_loss") for record in records if record.status != "diverged"):
        return TRAINING
    tokenizers = {
        (record.settings.get("data.validation"), record.settings.get("model.vocab_size"))
        for record in records
    }
    has_bits = all(record.column("bits_per_byte") for record in records if record.status != "diverged")
    return BITS if len(tokenizers) > 1 and has_bits else VALIDATION


def floor_of(records: Sequence[RunRecord], metric: Metric) -> list[Reference]:
    """Give the entropy floor in the units of the metric, where all runs have one and the same."""
    floors = set()
    for record in records:
        if record.floor is None:
            return []
        if metric is BITS:
            floors.add(record.floor)
        elif metric is VALIDATION:
            both = [
                line for line, _ in record.column("bits_per_byte") if is_finite(line.get("validation_loss"))
            ]
            if both:  # loss over bits gives the bytes per token, in which the floor is told per byte
                ratio = both[-1]["validation_loss"] / both[-1]["bits_per_byte"]
                floors.add(float(f"{record.floor * ratio:.4g}"))
    return [Reference("entropy floor", floors.pop())] if len(floors) == 1 else []


def learning_curves(groups: Sequence[Group], metric: Metric, about: About | None) -> list[Figure]:
    """Draw the metric by steps, by tokens and by wall-clock time."""
    references = floor_of([run for group in groups for run in group.runs], metric)
    shown = _worth_a_label(groups, metric, about)
    ordered = _is_ordered([group for group in groups if group in shown])
    figures = []
    for by, axis in BY.items():
        series = []
        for group in groups:
            points, spread = group.curve(metric.name, by)
            label = group.label
            if group.status == "diverged" and points and math.isfinite(points[-1][1]):
                label += " (diverged)"
            many = len(group.runs) > 1
            series.append(Series(label, points, spread if many else None, faint=group not in shown))
        chart = Chart(
            title=f"{metric.title.capitalize()} by {by.replace('step', 'steps')}",
            description=f"{metric.axis} of {len(groups)} settings, against {axis}",
            x=Axis(axis),
            y=Axis(metric.axis, limits=_limits(series, references)),
            series=series,
            references=references,
            ordered=ordered,
        )
        figures.append(Figure(chart, _curve_caption(groups, by)))
    return figures


def single_curves(record: RunRecord) -> list[Figure]:
    """Draw training and validation loss of one run together, by steps, by tokens and by wall-clock time."""
    metric = VALIDATION if record.column("validation_loss") else TRAINING
    references = floor_of([record], metric)
    figures = []
    for by, axis in BY.items():
        series = []
        for each in (TRAINING, VALIDATION):
            points = [(float(line[by]), value) for line, value in record.column(each.name) if by in line]
            if points:
                series.append(Series(each.title, points))
        if record.status == "diverged" and series and "not finite" in record.reason:
            last = series[0].points[-1][0]
            series[0] = Series(series[0].label, [*series[0].points, (last * 1.02, math.nan)])
        chart = Chart(
            title=f"Loss by {by.replace('step', 'steps')}",
            description=f"training and validation loss of {record.name}, against {axis}",
            x=Axis(axis),
            y=Axis("loss, nats per token", limits=_limits(series, references)),
            series=series,
            references=references,
        )
        figures.append(Figure(chart))
    return figures


def course_of(record: RunRecord) -> list[Figure]:
    """Draw the learning rate and the gradient norm of one run."""
    figures = []
    for name, title in (("lr", "Learning rate"), ("gradient_norm", "Gradient norm")):
        points = [(float(line["step"]), value) for line, value in record.column(name)]
        if len(points) > 1:
            log = name == "gradient_norm" and min(y for _, y in points) > 0
            chart = Chart(
                title=title,
                x=Axis("steps"),
                y=Axis(title.lower() + (" (log)" if log else ""), log=log),
                series=[Series(title.lower(), points)],
            )
            figures.append(Figure(chart))
    return figures


def axis_figures(groups: Sequence[Group], metric: Metric, about: About) -> list[Figure]:
    """Draw the final metric against every axis: lines over numbers, dots over names."""
    numeric = [axis for axis in about.axes if _is_numeric(groups, axis)]
    named = [axis for axis in about.axes if axis not in numeric and len(_values(groups, axis)) > 1]
    dots = [_dots(groups, metric, about)] if 1 < len(groups) <= MAX_DOTS else []
    figures = [_against(groups, axis, metric, about) for axis in numeric]
    if about.design == "star":
        return dots + figures
    return figures + dots if named else figures or dots


def speed_figures(groups: Sequence[Group], about: About) -> list[Figure]:
    """Draw tokens per second against the axes that change it by more than a quarter."""
    figures = []
    for axis in about.axes:
        if not _is_numeric(groups, axis):
            continue
        series = [
            Series(
                label, [(x, speed) for x, group in points if (speed := group.measured("tokens_per_second"))]
            )
            for label, points in _split(groups, axis, about)
        ]
        speeds = [y for each in series for _, y in each.points]
        if speeds and max(speeds) > 1.25 * min(speeds):
            short = short_names(about.axes)[axis].replace("_", " ")
            chart = Chart(
                title=f"Speed against {short}",
                x=_axis_of([x for each in series for x, _ in each.points], short),
                y=Axis("tokens per second", limits=(0.0, 1.05 * max(speeds))),
                series=series,
            )
            figures.append(Figure(chart, "Tokens per second while training, without evaluations and saves."))
    return figures


def _against(groups: Sequence[Group], axis: str, metric: Metric, about: About) -> Figure:
    series = []
    for label, points in _split(groups, axis, about):
        values = [(x, group.mean(metric.name)) for x, group in points]
        several = any(len(group.runs) > 1 for _, group in points)
        spread = [group.spread(metric.name) for _, group in points] if several else None
        series.append(Series(label, values, spread))
    short = short_names(about.axes)[axis].replace("_", " ")
    num_seeds = max(len(group.runs) for group in groups)
    caption = "Final value of every setting"
    caption += f", mean of up to {num_seeds} seeds with the lowest and highest." if num_seeds > 1 else "."
    if any(group.status == "diverged" for group in groups):
        caption += " A cross at the upper edge marks a setting that diverged."
    if about.design == "star":
        caption += " All else is as in the baseline."
    floor = floor_of([run for group in groups for run in group.runs], metric)
    reached = [y for each in series for _, y in each.points if math.isfinite(y)]
    if floor and reached and min(reached) - floor[0].value > FAR * (max(reached) - min(reached)):
        caption += f" The {floor[0].label}, {format_value(floor[0].value)}, lies below the chart."
        floor = []
    chart = Chart(
        title=metric.heading(f" against {short}"),
        description=f"{metric.axis} at the end of training, by {short}",
        x=_axis_of([x for each in series for x, _ in each.points], short),
        y=Axis(
            metric.axis, limits=_shared_limits(groups, metric) if about.design == "star" else metric.limits
        ),
        series=series,
        references=floor,
    )
    return Figure(chart, caption)


def _shared_limits(groups: Sequence[Group], metric: Metric) -> tuple[float, float]:
    """Give the charts of a star one scale, so that what matters little looks little."""
    return metric.limits or fit_limits(
        [bound for group in groups if group.values(metric.name) for bound in group.spread(metric.name)],
        log=False,
    )


def _axis_of(values: Sequence[float], label: str) -> Axis:
    """Use a log axis where values are spread over it; tick each value that was tried, if they are few."""
    distinct = sorted(set(values))
    log = len(distinct) > 2 and distinct[0] > 0 and distinct[-1] / distinct[0] >= 8
    ticks = distinct if 2 <= len(distinct) <= 12 else None
    return Axis(label + (" (log)" if log else ""), log=log, ticks=ticks)


def _split(groups: Sequence[Group], axis: str, about: About) -> list[tuple[str, list[tuple[float, Group]]]]:
    """Make one line per setting of the other axes; in a star, one line through the baseline."""
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
        lines.setdefault(word_labels(others, names) or "final", []).append((float(x), group))
    split = [(label, sorted(points, key=lambda point: point[0])) for label, points in lines.items()]
    return split[:MAX_SERIES]


def _dots(groups: Sequence[Group], metric: Metric, about: About) -> Figure:
    name = metric.name
    dots = [
        Dot(group.label, group.mean(name), group.spread(name) if len(group.values(name)) > 1 else None)
        for group in groups
    ]
    baseline = [group for group in groups if about.baseline and group.labels == about.baseline]
    references = (
        [Reference("baseline", baseline[0].mean(name))] if baseline and baseline[0].values(name) else []
    )
    several = any(dot.spread for dot in dots)
    chart = DotChart(
        title=metric.heading(),
        description=f"{metric.axis} at the end of training, by setting",
        value=Axis(metric.axis),
        dots=dots,
        references=references,
    )
    return Figure(chart, "Mean of the seeds; the bar goes from the lowest to the highest." if several else "")


def _limits(series: Sequence[Series], references: Sequence[Reference]) -> tuple[float, float] | None:
    """Choose what part of loss curves to show: all of the end, of the start what most curves have below it.

    The fall at the start, and the spikes of one wild run, may leave the chart at the top.
    """
    lows, peaks, ends = [reference.value for reference in references], [], []
    for each in series:
        finite = [(x, y) for x, y in each.points if math.isfinite(y)]
        if not finite:
            continue
        later = [y for x, y in finite if x >= EARLY * finite[-1][0]]
        lows.append(min(later))
        if math.isfinite(each.points[-1][1]) and not each.label.endswith("(diverged)"):
            peaks.append(max(later))
            ends.append(later[-1])
    if not peaks:
        return None
    low, high = min(lows), max(statistics.median_low(peaks), *ends)
    air = 0.05 * (high - low)
    return (low - air, high + air) if low < high else None


def _worth_a_label(groups: Sequence[Group], metric: Metric, about: About | None) -> list[Group]:
    if len(groups) <= MAX_CURVES:
        return list(groups)
    ranked = sorted(groups, key=lambda group: (math.isnan(v := group.mean(metric.name)), v))
    chosen = [*ranked[: MAX_CURVES - 3], *ranked[-2:]]
    chosen += [group for group in groups if about and group.labels == about.baseline and group not in chosen]
    return [group for group in groups if group in chosen]


def _curve_caption(groups: Sequence[Group], by: str) -> str:
    parts = []
    if any(len(group.runs) > 1 for group in groups):
        parts.append("Each curve is the mean over seeds, its band the lowest and highest.")
    if len(groups) > MAX_CURVES:
        parts.append("The best, the worst and the baseline are labelled, the others grey.")
    if by == "seconds":
        parts.append("Time includes compiling, evaluations and saves.")
    return " ".join(parts)


def _values(groups: Sequence[Group], axis: str) -> list[Any]:
    return list(dict.fromkeys(word_value(group.labels.get(axis)) for group in groups))


def _is_numeric(groups: Sequence[Group], axis: str) -> bool:
    values = [group.labels[axis] for group in groups if axis in group.labels]
    return len(set(values)) > 1 and all(is_finite(value) for value in values)


def _is_ordered(groups: Sequence[Group]) -> bool:
    """Say whether the groups are steps of one number, so that a ramp of colours means something."""
    if len(groups) < 4 or any(len(group.labels) != 1 for group in groups):
        return False
    values = [next(iter(group.labels.values())) for group in groups]
    return all(is_finite(value) for value in values) and values == sorted(values)
