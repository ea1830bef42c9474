"""Which runs are comparable, by which metric, and their entropy floor.

Runs are comparable if they were validated on the same text. The metric is that of whole documents if all runs
were evaluated on them. Otherwise it is the validation loss if they read the same tokens, and bits per byte if
their tokenizers differ. If no run was validated, it is the training loss. `compare_runs` returns one
`Comparison` per validation text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from bytewright.experiments.groups import Group, are_of_one_sweep, group_runs, name_after_runs, settled
from bytewright.experiments.records import RunRecord
from bytewright.experiments.results import SweepInfo
from bytewright.train.metrics import METRICS, Metric, is_finite

FLOOR_TOLERANCE = 1e-3
"""Relative difference of floors on the same text: in records up to 0.1.0 it depends on the batch size."""


VALIDATION, TRAINING, BITS = (METRICS[name] for name in ("validation_loss", "loss", "bits_per_byte"))
DOCUMENTS, TEST = METRICS["document_bits_per_byte"], METRICS["test_bits_per_byte"]
"""The metric that chooses among settings, and the one that judges them on other documents."""


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


def choose_metric(
    records: Sequence[RunRecord], *, prefer_bits: bool = False, documents: bool = True
) -> Metric:
    """Return the metric that all complete runs have, or, if no run is complete, all evaluated runs.

    Runs that stopped or failed before their first evaluation are ignored. `prefer_bits` selects bits per
    byte, if recorded, even if all runs read the same tokens. Without `documents`, the metric is one of
    windows, which has a learning curve.
    """
    complete = [record for record in records if record.status == "complete" and record.lines]
    judged = complete or [record for record in records if record.column("validation_loss")]
    if not judged or not all(record.column("validation_loss") for record in judged):
        return TRAINING
    if documents and all(record.column(DOCUMENTS.name) for record in judged):
        return DOCUMENTS
    has_bits = all(record.column("bits_per_byte") for record in judged)
    return BITS if has_bits and (prefer_bits or not have_same_tokens(records)) else VALIDATION


def have_same_tokens(records: Sequence[RunRecord]) -> bool:
    """Return whether runs that were validated on one text read the same tokens of it."""
    digests = {record.validation.get("tokens") for record in records}
    if None not in digests:
        return len(digests) == 1
    paths = [
        (record.settings.get("data.validation"), record.settings.get("model.vocab_size"))
        for record in records
    ]
    return len(set(paths)) == 1


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
