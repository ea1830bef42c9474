"""What a report compares its runs by, which runs it can compare, and the floor under them.

Runs are comparable if they were validated on the same text. The metric is the validation loss where they read
the same tokens, bits per byte where their tokenizers differ, and the training loss where no run has been
validated. `split_by_text` separates runs that are not comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from bytewright.experiments.records import RunRecord, is_finite

SAME = 1e-3
"""Floors on the same text may differ by the windows left out: in records up to 0.1.0, by the batch's size."""


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


def choose_metric(records: Sequence[RunRecord], *, prefer_bits: bool = False) -> Metric:
    """Choose what can be compared between the runs that are complete; as long as none is, between others.

    A run that stopped or failed before its first evaluation has nothing to compare in any metric.
    `prefer_bits` chooses bits per byte, where they are known, even if all runs read the same tokens.
    """
    complete = [record for record in records if record.status == "complete" and record.lines]
    judged = complete or [record for record in records if record.column("validation_loss")]
    if not judged or not all(record.column("validation_loss") for record in judged):
        return TRAINING
    has_bits = all(record.column("bits_per_byte") for record in judged)
    return BITS if has_bits and (prefer_bits or not have_same_tokens(records)) else VALIDATION


def have_same_tokens(records: Sequence[RunRecord]) -> bool:
    """Return whether runs that were validated on one text read it as the same tokens."""
    digests = {record.validation.get("tokens") for record in records}
    if None not in digests:
        return len(digests) == 1
    paths = [
        (record.settings.get("data.validation"), record.settings.get("model.vocab_size"))
        for record in records
    ]
    return len(set(paths)) == 1


def split_by_text(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Separate runs by the text that they were validated on; the keys name the texts.

    A text is known by its SHA-256. Where some run's is unknown, the folder of a sweep's corpus, the SHA-256
    of the tokens and the path of the token file stand for it, in this order.
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


def word_differences(records: Sequence[RunRecord], metric: Metric) -> list[str]:
    """Say what to keep in mind when runs that were validated on one text are compared."""
    notes = []
    if metric is BITS and not have_same_tokens(records):
        notes.append("The tokenizers differ, so losses per token are not comparable; bits per byte are.")
    for key in ("eval_tokens", "data.windows"):
        if metric is not TRAINING and len({record.settings.get(key) for record in records}) > 1:
            notes.append(f"The runs differ in `{key}`: they were validated on different windows of the text.")
    return notes


def floor_of(records: Sequence[RunRecord], metric: Metric) -> float | None:
    """Give the entropy floor in the units of the metric, where all runs have one and the same."""
    floors = []
    for record in records:
        if record.floor is None or metric not in (BITS, VALIDATION):
            return None
        if metric is BITS:
            floors.append(record.floor)
            continue
        both = [line for line, _ in record.column("bits_per_byte") if is_finite(line.get("validation_loss"))]
        if both:  # loss over bits gives the bytes per token, in which the floor is told per byte
            floors.append(record.floor * both[-1]["validation_loss"] / both[-1]["bits_per_byte"])
    return min(floors) if floors and max(floors) - min(floors) < SAME * max(floors) else None
