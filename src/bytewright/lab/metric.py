"""What a report compares its runs by, and the floor under it.

A `Metric` says how a number is called: the validation loss where all runs read the same tokens, bits per byte
where they do not, the training loss where nothing else is known. Made of records alone; knows nothing of
charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bytewright.lab.records import RunRecord, is_finite

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


def choose_metric(records: Sequence[RunRecord]) -> Metric:
    """Choose what can be compared between the runs that are complete; as long as none is, between others.

    One that was stopped or failed before its first evaluation has nothing to compare in any metric.
    """
    complete = [record for record in records if record.status == "complete" and record.lines]
    judged = complete or [record for record in records if record.column("validation_loss")]
    if not judged or not all(record.column("validation_loss") for record in judged):
        return TRAINING
    tokenizers = {
        (record.settings.get("data.validation"), record.settings.get("model.vocab_size"))
        for record in records
    }
    has_bits = all(record.column("bits_per_byte") for record in judged)
    return BITS if len(tokenizers) > 1 and has_bits else VALIDATION


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
