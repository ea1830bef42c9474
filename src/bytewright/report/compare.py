"""Which runs are comparable, and their entropy floor.

Runs are comparable if they were validated on the same text. `compare_runs` returns one `Comparison` per
validation text, with the metric that `choose_metric` selects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from bytewright.experiments.groups import Group, are_of_one_sweep, group_runs, name_after_runs, settled
from bytewright.experiments.loss_metric import (
    BITS,
    DOCUMENTS,
    TRAINING,
    VALIDATION,
    choose_metric,
    have_same_tokens,
)
from bytewright.experiments.records import RunRecord
from bytewright.experiments.results import SweepInfo
from bytewright.train.metrics import METRICS, Metric, is_finite

FLOOR_TOLERANCE = 1e-3
"""Relative difference of floors on the same text: in records up to 0.1.0 it depends on the batch size."""

TEST = METRICS["test_bits_per_byte"]
"""The metric that judges settings, on other documents than those that choose among them (`DOCUMENTS`)."""


@dataclass(frozen=True)
class Comparison:
    """Runs that were validated on one text, grouped by setting, and the metric that compares them."""

    text: str
    groups: Sequence[Group]
    metric: Metric
    best: Group | None
    curve_metric: Metric
    """The metric of the learning curves: whole documents are evaluated only once, at the end."""

    @property
    def runs(self) -> list[RunRecord]:
        """All runs of all groups."""
        return [run for group in self.groups for run in group.runs]


def compare_runs(records: Sequence[RunRecord], about: SweepInfo) -> list[Comparison]:
    """Return the comparable runs, one `Comparison` per validation text."""
    texts = split_by_text(records)
    comparisons = []
    for text, runs in texts.items():
        groups = group_by_setting(runs, about)
        if len(texts) > 1 and not are_of_one_sweep(records):  # settings identify a run only on one text
            groups = name_after_runs(groups)
        metric = choose_metric(runs, prefer_bits=len(texts) > 1)
        curve_metric = choose_metric(runs, prefer_bits=len(texts) > 1, documents=False)
        comparisons.append(Comparison(text, groups, metric, _find_best(groups, metric), curve_metric))
    return comparisons


def group_by_setting(records: Sequence[RunRecord], about: SweepInfo) -> list[Group]:
    """Group the runs of a sweep by their settings; groups of a star design are named by their differences."""
    return group_runs(records, about.axes, about.baseline if about.design == "star" else None)


def _find_best(groups: Sequence[Group], metric: Metric) -> Group | None:
    """Return the group with the lowest mean; groups with diverged seeds count only if there are no others."""
    reached = [group for group in settled(groups) if group.values(metric.name)]
    without_loss = [group for group in reached if not group.num_lost]
    return min(without_loss or reached, key=lambda group: group.mean(metric.name), default=None)


def split_by_text(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Return runs by the name of the text that they were validated on.

    Texts are identified by their SHA-256. If one is unknown, a text is identified by the folder of the
    corpus, else by the SHA-256 of the tokens, else by the path of the token file.
    """
    have_digests = all("text" in record.validation for record in records)
    found: dict[str, list[RunRecord]] = {}
    for record in records:
        path = PurePath(str(record.settings.get("data.validation") or ""))
        place = str(_corpus_of(path) or record.validation.get("tokens") or path)
        found.setdefault(record.validation["text"] if have_digests else place, []).append(record)
    names = [_name_text(runs[0]) for runs in found.values()]
    return {
        name if names.count(name) == 1 else f"{name} ({number})": runs
        for number, (name, runs) in enumerate(zip(names, found.values(), strict=True), 1)
    }


def _corpus_of(path: PurePath) -> PurePath | None:
    """Return the folder of a sweep's corpus that holds a token file; its name contains a hash of the text."""
    return path.parent.parent if path.parent.name.startswith("bpe-") else None


def _name_text(record: RunRecord) -> str:
    path = PurePath(str(record.settings.get("data.validation") or "no validation data"))
    return (_corpus_of(path) or path).name


def comparison_notes(records: Sequence[RunRecord], metric: Metric) -> list[str]:
    """Return caveats for comparing runs that were validated on one text."""
    notes = []
    if metric is BITS and not have_same_tokens(records):
        notes.append("The tokenizers differ, so losses per token are not comparable; bits per byte are.")
    for key in ("eval_tokens", "data.windows"):
        if metric is not TRAINING and len({record.settings.get(key) for record in records}) > 1:
            notes.append(f"The runs differ in `{key}`: they were validated on different windows of the text.")
    return notes


def floor_of(records: Sequence[RunRecord], metric: Metric) -> float | None:
    """Return the entropy floor in the unit of the metric, or None unless all runs have the same floor."""
    floors = []
    for record in records:
        if record.floor is None or metric not in (BITS, VALIDATION, DOCUMENTS):
            return None
        if metric in (BITS, DOCUMENTS):
            floors.append(record.floor)
            continue
        both = [line for line, _ in record.column("bits_per_byte") if is_finite(line.get("validation_loss"))]
        if both:  # the ratio of loss to bits per byte converts the floor to nats per token
            floors.append(record.floor * both[-1]["validation_loss"] / both[-1]["bits_per_byte"])
    return min(floors) if floors and max(floors) - min(floors) < FLOOR_TOLERANCE * max(floors) else None
