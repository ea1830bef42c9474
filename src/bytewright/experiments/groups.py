"""Group runs that differ only in their seed, and compute the mean and spread of their metrics.

Differences below the spread over seeds are not significant, so tables and charts show both. This module also
formats settings as short labels, such as "lr 1e-3, norm post".
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bytewright.experiments.records import RunRecord
from bytewright.formatting import format_scientific
from bytewright.train.metrics import is_finite
from bytewright.train.outcome import State

COMMON_SETTINGS = {"seed", "accumulate", "device", "tensorboard"}
"""Settings that do not separate groups: the seed, and settings that do not affect results."""
UNLABELLED_SETTINGS = {"eval_tokens", "keep_last", "sample_prompt"}
"""Settings that do not affect training; they are not part of labels."""

MAX_LABEL_SETTINGS = 3
"""Maximum number of settings in the label of a run outside a sweep; with more, its name is used."""


@dataclass(frozen=True)
class Group:
    """Runs of one setting; `labels` distinguishes it from other groups."""

    label: str
    labels: Mapping[str, Any]
    runs: Sequence[RunRecord]

    @property
    def status(self) -> State:
        """Complete if any run is complete, otherwise the status of the first run."""
        kinds = [run.status for run in self.runs]
        return "complete" if "complete" in kinds else kinds[0]

    @property
    def num_lost(self) -> int:
        """The number of diverged runs if others have results; the mean is over those others."""
        has_survivors = any(run.has_results for run in self.runs)
        return self.num_diverged if has_survivors else 0

    @property
    def num_diverged(self) -> int:
        """The number of diverged runs."""
        return sum(run.status == "diverged" for run in self.runs)

    @property
    def mark(self) -> str:
        """The suffix of the label in a chart: the number of diverged seeds, if not all diverged."""
        return f" ({self.num_lost} of {len(self.runs)} diverged)" if self.num_lost else ""

    @property
    def counted(self) -> Sequence[RunRecord]:
        """The runs that means are computed over: the complete ones, or all if none is complete."""
        return [run for run in self.runs if run.status == "complete"] or self.runs

    def values(self, name: str) -> list[float]:
        """Return the final values of a metric of the counted runs."""
        found = [run.last(name) for run in self.counted]
        return [value for value in found if value is not None]

    def values_by_seed(self, name: str) -> dict[int, float]:
        """Return the final values of a metric of the counted runs by their seeds."""
        found = {run.seed: run.last(name) for run in self.counted}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, name: str) -> float:
        """Return the mean of the final values, or NaN without values."""
        values = self.values(name)
        return statistics.fmean(values) if values else math.nan

    def spread(self, name: str) -> tuple[float, float]:
        """Return the lowest and highest final value."""
        values = self.values(name)
        return (min(values), max(values)) if values else (math.nan, math.nan)

    def measured(self, name: str) -> float | None:
        """Return the mean of a measured cost of the counted runs."""
        values = [run.measured[name] for run in self.counted if name in run.measured]
        return statistics.fmean(values) if values else None

    def curve(self, metric: str, by: str) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """Return the mean curve of a metric by `by` (step, tokens or seconds), and its lowest and highest.

        The curve has the steps that all counted runs without divergence have. Their last points form its last
        point, since runs with a budget of minutes end at different steps. If all runs diverged, the curve is
        the median, without spread.
        """
        converged = [run for run in self.counted if run.status != "diverged"]
        if not converged:
            return self._curve_of_diverged(metric, by), []
        by_step = [{line["step"]: (line, value) for line, value in run.column(metric)} for run in converged]
        by_step = [curve for curve in by_step if curve]
        if not by_step:
            return [], []
        together = [
            [curve[step] for curve in by_step] for step in sorted(set.intersection(*map(set, by_step)))
        ]
        ends = [curve[max(curve)] for curve in by_step]
        if not together or together[-1] != ends:
            together.append(ends)
        points, spread = [], []
        for here in together:
            xs = [float(line[by]) for line, _ in here if is_finite(line.get(by))]
            values = [value for _, value in here]
            if xs:
                points.append((statistics.fmean(xs), statistics.fmean(values)))
                spread.append((min(values), max(values)))
        return points, spread

    def _curve_of_diverged(self, metric: str, by: str) -> list[tuple[float, float]]:
        """Return the median curve of diverged runs; missing values count as infinity."""
        by_step = [{line["step"]: (line, value) for line, value in run.column(metric)} for run in self.runs]
        points = []
        for step in sorted(set().union(*by_step)):
            xs = [float(curve[step][0][by]) for curve in by_step if step in curve and by in curve[step][0]]
            values = [curve[step][1] if step in curve else math.inf for curve in by_step]
            if xs:
                points.append((statistics.fmean(xs), statistics.median(values)))
        ends = [end for run in self.runs if (end := run.end_of_numbers(by)) is not None]
        if points and 2 * len(ends) > len(self.runs):
            points.append((max(statistics.median_low(ends), points[-1][0]), math.inf))
        return points


def describe_lost(groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each setting of which only some seeds diverged, since its mean is biased."""
    return [
        f"{group.num_lost} of {len(group.runs)} seeds of {group.label} diverged; its value excludes them."
        for group in groups
        if group.num_lost
    ]


def settled(groups: Sequence[Group]) -> list[Group]:
    """Return the comparable groups: if any is complete, only complete and diverged ones."""
    if not any(group.status == "complete" for group in groups):
        return list(groups)
    return [group for group in groups if group.status in ("complete", "diverged")]


def group_runs(
    records: Sequence[RunRecord], axes: Sequence[str] = (), centre: Mapping[str, Any] | None = None
) -> list[Group]:
    """Group runs that differ only in their seed, in order of appearance.

    Labels come from the sweep if all runs are of one, and from the settings in which they differ otherwise.
    If these give no short label, a group is named after its first run. With the `centre` of a star design,
    labels contain only differences from it.
    """
    groups: dict[tuple[tuple[str, str], ...], tuple[dict[str, Any], list[RunRecord]]] = {}
    for labels, record in zip(_labels_of(records), records, strict=True):
        key = tuple((name, repr(value)) for name, value in labels.items())
        groups.setdefault(key, (labels, []))[1].append(record)
    varied = axes or list(dict.fromkeys(name for labels, _ in groups.values() for name in labels))
    names = short_names([name for name in varied if name != "variant"])
    named = None if are_of_one_sweep(records) else find_axes([record.settings for record in records])
    made = []
    for labels, runs in groups.values():
        shown = {
            name: value
            for name, value in labels.items()
            if (named is None or name in named) and (not centre or centre.get(name) != value)
        }
        words = format_labels(shown, names) or ("baseline" if centre else runs[0].name)
        made.append(Group(words, labels, runs))
    return made if len({group.label for group in made}) == len(made) else name_after_runs(made)


def name_after_runs(groups: Sequence[Group]) -> list[Group]:
    """Name every group after its first run."""
    return [dataclasses.replace(group, label=group.runs[0].name) for group in groups]


def find_axes(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings in which runs differ, or none if they are many or contain a path.

    >>> find_axes([{"optimizer.lr": 1e-3, "seed": 0}, {"optimizer.lr": 1e-2, "seed": 1}])
    ['optimizer.lr']
    """
    names = [
        name
        for name in differing(settings)
        if name not in UNLABELLED_SETTINGS and not name.endswith("_every")
    ]
    is_short = len(names) <= MAX_LABEL_SETTINGS and not any(name.startswith("data.") for name in names)
    return names if is_short else []


def _labels_of(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return the labels of each run in their common sweep, or the settings in which they differ."""
    if are_of_one_sweep(records):
        return [
            {name: value for name, value in record.labels.items() if name != "seed"} for record in records
        ]
    names = differing([record.settings for record in records])
    return [{name: record.settings.get(name) for name in names} for record in records]


def are_of_one_sweep(records: Sequence[RunRecord]) -> bool:
    """Return whether all runs have labels with the same names."""
    return bool(records) and bool(records[0].labels) and len({frozenset(run.labels) for run in records}) == 1


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings in which runs differ, except those in `COMMON_SETTINGS`."""
    names = list(dict.fromkeys(name for each in settings for name in each))
    return [
        name
        for name in names
        if name not in COMMON_SETTINGS and any(each.get(name) != settings[0].get(name) for each in settings)
    ]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return the last part of each setting's name, or the full name where that is ambiguous.

    >>> short_names(["optimizer.lr", "model.norm", "data.train", "corpus.train"])
    {'optimizer.lr': 'lr', 'model.norm': 'norm', 'data.train': 'data.train', 'corpus.train': 'corpus.train'}
    """
    last = [name.rpartition(".")[2] for name in names]
    return {name: short if last.count(short) == 1 else name for name, short in zip(names, last, strict=True)}


def format_labels(labels: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Format the labels of a group.

    >>> format_labels({"optimizer.lr": 0.001, "batch_size": 64}, {"optimizer.lr": "lr"})
    'lr 1e-3, batch size 64'
    """
    parts = []
    for name, value in labels.items():
        words = format_setting(value).rpartition("/")[2]  # the last part of a path
        parts.append(words if name == "variant" else f"{names.get(name, name)} {words}".replace("_", " "))
    return ", ".join(parts)


def format_setting(value: object) -> str:
    """Format the value of a setting.

    >>> [format_setting(value) for value in (0.0003, 0.95, 64, True, None, "post")]
    ['3e-4', '0.95', '64', 'yes', 'none', 'post']
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format_scientific(value, 3) if 0 < abs(value) < 0.01 else f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return str(value)
