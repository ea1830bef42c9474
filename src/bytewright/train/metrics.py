"""The metrics of a run: the name, title, unit, direction and format of each.

`METRICS` declares every metric once, and where it is shown. To add a column to the report of a sweep, add its
entry here and its value to the records of the log (`metrics_log`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeGuard

from bytewright.formatting import format_memory, format_seconds


@dataclass(frozen=True)
class Metric:
    """A number that runs record. `title` names it in a report, `short` in a column or on a console."""

    name: str
    title: str
    unit: str = ""
    _: KW_ONLY
    short: str = ""
    """A shorter title; by default the title."""
    spec: str = ".4f"
    """Format of the number, as in `format`."""
    direction: Literal["lower", "higher"] | None = None
    """Which values are better."""
    is_measured: bool = False
    """Whether the clock and the machine determine it."""
    summary: Literal["last", "median", "maximum"] = "last"
    """Which of the recorded values is that of the run."""
    is_final: bool = True
    """Whether it is recorded during training, so that a report shows its final value."""
    is_kept: bool = True
    """Whether results.json keeps its curve."""
    is_listed: bool = False
    """Whether `bytewright runs` shows it."""
    is_reported: bool = False
    """Whether the tables of a sweep have a column for it: of results, or of costs if it is measured."""
    is_predicted: bool = False
    """Whether the table of costs shows the prediction next to it."""
    is_drawn: bool = False
    """Whether a report has a chart of its own for it: of a single run by steps, of sampled texts by axis."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "short", self.short or self.title)

    @property
    def axis(self) -> str:
        """The label of an axis."""
        return f"{self.title}, {self.unit}"

    @property
    def limits(self) -> tuple[float, float] | None:
        """Limits of an axis; None: chosen from the data."""
        return (-0.02, 1.02) if self.unit == "share" else None

    def heading(self, rest: str = "") -> str:
        """Return the title of a chart of final values."""
        return f"Final {self.title}{rest}" if self.is_final else f"{self.title.capitalize()}{rest}"

    def format(self, value: float) -> str:
        """Format a value for people, with its unit if it has one of its own.

        >>> METRICS["seconds"].format(90), METRICS["mfu"].format(0.4512)
        ('1 min 30 s', '45.1%')
        """
        if self.unit == "seconds":
            return format_seconds(value)
        return format_memory(value) if self.unit == "bytes" else format(value, self.spec)


def _of_samples(name: str, title: str, unit: str = "share", **fields: Any) -> Metric:
    return Metric(name, title, unit, is_final=False, **fields)


def _cost(name: str, title: str, unit: str = "", **fields: Any) -> Metric:
    return Metric(name, title, unit, is_measured=True, **fields)


NATS = "nats per token"
TRAINING_METRICS = (
    Metric("step", "step", "steps", spec=",d", is_listed=True),
    Metric("tokens", "tokens", "tokens", spec=",d", is_listed=True),
    Metric("loss", "training loss", NATS, short="loss", direction="lower", is_listed=True),
    Metric("validation_loss", "validation loss", NATS, short="validation", direction="lower", is_listed=True),
    Metric("perplexity", "perplexity", direction="lower", is_kept=False),
    Metric(
        "bits_per_byte",
        "bits per byte",
        "of validation text",
        short="bits/byte",
        direction="lower",
        is_listed=True,
    ),
    Metric(
        "document_bits_per_byte",
        "bits per byte of whole documents",
        "of validation text",
        short="whole documents",
        spec=".5f",
        direction="lower",
        is_listed=True,
        is_reported=True,
    ),
    Metric(
        "test_bits_per_byte",
        "bits per byte of test documents",
        "of test text",
        short="test documents",
        spec=".5f",
        direction="lower",
        is_reported=True,
    ),
    Metric("lr", "learning rate", short="lr", spec=".2e", is_drawn=True),
    Metric("gradient_norm", "gradient norm", spec=".3f", is_drawn=True),
)
SAMPLING_METRICS = (
    _of_samples(
        "consistent", "stories consistent throughout", direction="higher", is_listed=True, is_drawn=True
    ),
    _of_samples("well_formed", "well-formed stories", direction="higher"),
    _of_samples("sound_sentences", "grammatical sentences", direction="higher", is_drawn=True),
    _of_samples("copies", "copies of training stories", direction="lower"),
    _of_samples("distinct_stories", "distinct stories", direction="higher"),
    _of_samples("distinct_words", "distinct words", "share of all words", is_drawn=True),
    _of_samples("words_per_story", "length", "words per story"),
    _of_samples("ended", "stories ended by the model", is_listed=True),
)
COST_METRICS = (
    _cost("parameters", "parameters", spec=",.0f", is_kept=False),
    _cost("flops_per_token", "FLOPs per token", short="FLOPs", spec=",.0f", is_kept=False),
    _cost(
        "tokens_per_second",
        "tokens per second",
        short="tokens/s",
        spec=",.0f",
        direction="higher",
        summary="median",
        is_listed=True,
        is_reported=True,
    ),
    _cost(
        "mfu",
        "utilisation (MFU)",
        short="MFU",
        spec=".1%",
        direction="higher",
        summary="median",
        is_reported=True,
    ),
    _cost(
        "seconds",
        "time",
        "seconds",
        spec=",.1f",
        direction="lower",
        is_listed=True,
        is_reported=True,
        is_predicted=True,
    ),
    _cost(
        "memory_bytes",
        "peak memory",
        "bytes",
        short="memory",
        direction="lower",
        summary="maximum",
        is_kept=False,
        is_reported=True,
        is_predicted=True,
    ),
)
NUM_STORIES = Metric("num_stories", "sampled stories", spec=",d", is_final=False)
ALL_METRICS = (*TRAINING_METRICS, *SAMPLING_METRICS, NUM_STORIES, *COST_METRICS)
METRICS = {metric.name: metric for metric in ALL_METRICS}
"""Every metric by its name in the log, in the order of columns."""
RANK_MEMORY = "rank_memory_bytes"
"""The peak memory of each rank, in records of runs on several ranks."""
RANK_SENT = "rank_sent_bytes"
"""Bytes of weights and gradients that rank 0 has sent in a step, in records of runs on several ranks."""
MEASURED_FIELDS = (*(name for name, metric in METRICS.items() if metric.is_measured), RANK_MEMORY, RANK_SENT)


def is_finite(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def finite(value: Any) -> Any:
    """Return a value with non-finite numbers, which JSON lacks, replaced by None at any depth.

    >>> finite({"loss": float("nan"), "norms": [1.0, float("inf")]})
    {'loss': None, 'norms': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
