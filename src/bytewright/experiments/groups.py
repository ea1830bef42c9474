"""Runs that differ in their seed alone, taken together: the mean of what they reached, and its spread.

A difference smaller than what seeds make is no difference; so wherever a table or a chart shows a number, it
shows the mean over seeds, and the lowest and highest beside it. Also words settings as people say them
("lr 1e-3, norm post"). Knows nothing of charts or pages.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bytewright.experiments.records import RunRecord
from bytewright.train.metrics import is_finite
from bytewright.train.outcome import State

IGNORED = {"seed", "accumulate", "device", "tensorboard"}
"""Settings that make no difference to a question, or are what groups are taken over."""
MARGINAL = {"eval_tokens", "keep_last", "sample_prompt"}
"""Settings that do not change what a model learns; they do not name a run."""

MOST_WORDED = 3
"""The most settings that name a run of no sweep; where more differ, the run's own name says more."""


@dataclass(frozen=True)
class Group:
    """Runs of one setting; `labels` is what tells it from the other groups."""

    label: str
    labels: Mapping[str, Any]
    runs: Sequence[RunRecord]

    @property
    def status(self) -> State:
        """Complete if any run is: the others are counted in the table."""
        kinds = [run.status for run in self.runs]
        return "complete" if "complete" in kinds else kinds[0]

    @property
    def num_lost(self) -> int:
        """How many runs diverged where others did not: the mean is of those that survived."""
        has_survivors = any(run.has_results for run in self.runs)
        return self.num_diverged if has_survivors else 0

    @property
    def num_diverged(self) -> int:
        """How many runs diverged."""
        return sum(run.status == "diverged" for run in self.runs)

    @property
    def mark(self) -> str:
        """What stands behind its label in a chart: how many of its seeds diverged, if not all did."""
        return f" ({self.num_lost} of {len(self.runs)} diverged)" if self.num_lost else ""

    @property
    def counted(self) -> Sequence[RunRecord]:
        """The runs that count: those that are complete, and only as long as none is, all of them."""
        return [run for run in self.runs if run.status == "complete"] or self.runs

    def values(self, name: str) -> list[float]:
        """Give the final values of a metric, of the runs that count and have one."""
        found = [run.last(name) for run in self.counted]
        return [value for value in found if value is not None]

    def mean(self, name: str) -> float:
        """Mean over the runs, not a number if none has it."""
        values = self.values(name)
        return statistics.fmean(values) if values else math.nan

    def spread(self, name: str) -> tuple[float, float]:
        """Lowest and highest of the runs."""
        values = self.values(name)
        return (min(values), max(values)) if values else (math.nan, math.nan)

    def measured(self, name: str) -> float | None:
        """Mean of what the runs that count took."""
        values = [run.measured[name] for run in self.counted if name in run.measured]
        return statistics.fmean(values) if values else None

    def curve(self, metric: str, by: str) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """Give the mean curve of a metric over `by` (step, tokens, seconds), and its lowest and highest.

        Steps that not all surviving runs have are left out, and so are runs that have not come to an end
        where another has. Runs of minutes end at different steps: their ends are one point, the last. Where
        none survived, the mean of what exploded and what was about to says nothing: then it is the median,
        without lowest and highest.
        """
        alive = [run for run in self.counted if run.status != "diverged"]
        if not alive:
            return self._curve_of_diverged(metric, by), []
        by_step = [{line["step"]: (line, value) for line, value in run.column(metric)} for run in alive]
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
        """Give the median of the runs: without a number a run is infinite, and so it ends if it has none."""
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
    """Say in which settings only some seeds diverged: their means look better than they are."""
    return [
        f"Of {group.label}, {group.num_lost} of {len(group.runs)} seeds diverged; its value is of the others."
        for group in groups
        if group.num_lost
    ]


def settled(groups: Sequence[Group]) -> list[Group]:
    """Keep what can be compared: once a group is complete, none that has only been stopped."""
    if not any(group.status == "complete" for group in groups):
        return list(groups)
    return [group for group in groups if group.status in ("complete", "diverged")]


def group_runs(
    records: Sequence[RunRecord], axes: Sequence[str] = (), centre: Mapping[str, Any] | None = None
) -> list[Group]:
    """Put runs together that differ in their seed alone, in order of appearance.

    Labels come from the sweep where all are of one, else from the settings in which the runs differ. Where
    these do not make a short name, a group is named after its first run. Around the `centre` of a star, a
    group is named by what differs from it.
    """
    labelled = list(zip(_labels_of(records), records, strict=True))
    groups: dict[tuple[tuple[str, str], ...], list[RunRecord]] = {}
    labels_of: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for labels, record in labelled:
        key = tuple((name, repr(value)) for name, value in labels.items())
        groups.setdefault(key, []).append(record)
        labels_of[key] = labels
    varied = axes or list(dict.fromkeys(name for labels in labels_of.values() for name in labels))
    names = short_names([name for name in varied if name != "variant"])
    worded = None if are_of_one_sweep(records) else find_axes([record.settings for record in records])
    made = []
    for key, runs in groups.items():
        labels = labels_of[key]
        telling = {
            name: value
            for name, value in labels.items()
            if (worded is None or name in worded) and (not centre or centre.get(name) != value)
        }
        words = format_labels(telling, names) or ("baseline" if centre else runs[0].name)
        made.append(Group(words, labels, runs))
    return made if len({group.label for group in made}) == len(made) else name_after_runs(made)


def name_after_runs(groups: Sequence[Group]) -> list[Group]:
    """Name every group after its first run."""
    return [dataclasses.replace(group, label=group.runs[0].name) for group in groups]


def find_axes(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the settings that tell runs of no sweep apart, if they are few and none is a path.

    >>> find_axes([{"optimizer.lr": 1e-3, "seed": 0}, {"optimizer.lr": 1e-2, "seed": 1}])
    ['optimizer.lr']
    """
    names = [name for name in differing(settings) if name not in MARGINAL and not name.endswith("_every")]
    is_short = len(names) <= MOST_WORDED and not any(name.startswith("data.") for name in names)
    return names if is_short else []


def _labels_of(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Give each run its labels in the sweep that all are of, or else the settings in which they differ."""
    if are_of_one_sweep(records):
        return [
            {name: value for name, value in record.labels.items() if name != "seed"} for record in records
        ]
    names = differing([record.settings for record in records])
    return [{name: record.settings.get(name) for name in names} for record in records]


def are_of_one_sweep(records: Sequence[RunRecord]) -> bool:
    """Return whether all runs have labels, of the same names."""
    return bool(records) and bool(records[0].labels) and len({frozenset(run.labels) for run in records}) == 1


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the settings in which runs differ, but for those that make no difference to a question."""
    names = list(dict.fromkeys(name for each in settings for name in each))
    return [
        name
        for name in names
        if name not in IGNORED and any(each.get(name) != settings[0].get(name) for each in settings)
    ]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Call settings by the last part of their names, as far as that is clear.

    >>> short_names(["optimizer.lr", "model.norm", "data.train", "corpus.train"])
    {'optimizer.lr': 'lr', 'model.norm': 'norm', 'data.train': 'data.train', 'corpus.train': 'corpus.train'}
    """
    last = [name.rpartition(".")[2] for name in names]
    return {name: short if last.count(short) == 1 else name for name, short in zip(names, last, strict=True)}


def format_labels(labels: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Word what a group is.

    >>> format_labels({"optimizer.lr": 0.001, "batch_size": 64}, {"optimizer.lr": "lr"})
    'lr 1e-3, batch size 64'
    """
    parts = []
    for name, value in labels.items():
        words = format_setting(value).rpartition("/")[2]  # of a path, its last part
        parts.append(words if name == "variant" else f"{names.get(name, name)} {words}".replace("_", " "))
    return ", ".join(parts)


def format_setting(value: object) -> str:
    """Word the value of a setting.

    >>> [format_setting(value) for value in (0.0003, 0.95, 64, True, None, "post")]
    ['3e-4', '0.95', '64', 'yes', 'none', 'post']
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if 0 < abs(value) < 0.01:
            mantissa, _, power = f"{value:.2e}".partition("e")
            return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
        return f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return str(value)
