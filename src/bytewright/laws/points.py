"""`Points`: the sizes, tokens, seeds and losses of the runs that a law is fitted to.

They are read from a finished sweep, or from a JSON file:

    {"unit": "bits per byte", "points": [
      {"parameters": 1200000, "tokens": 50000000, "seed": 0, "loss": 0.31, "floor": 0.2}, …]}

`seed`, `floor` and `flops` (of the whole training; 6 N D by default) are optional; other keys are ignored.
`excess` may state the bits above the floor by kind of choice, as `bytewright evaluate` measures them on the
world book. The object may have `title`, `world` (`seed`, `exponent`, `people`) and `mentions_per_token`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from bytewright.corpus.worldbook import World
from bytewright.errors import FormatError, UsageError, wrong_value
from bytewright.experiments.inputs import read_inputs
from bytewright.experiments.loss_metric import BITS, DOCUMENTS, choose_metric
from bytewright.experiments.records import RunRecord
from bytewright.storage.json_reader import Json, read_json
from bytewright.train.metrics import is_finite

FLOOR_TOLERANCE = 1e-6
"""Relative difference of floors that are the same up to rounding."""
FLOPS_PER_PARAMETER_AND_TOKEN = 6
RANGES: Mapping[str, tuple[float, float]] = {
    "parameters": (1e-6, 1e20),
    "tokens": (1e-6, 1e20),
    "flops": (1e-12, 1e42),
    "loss": (1e-12, 1e12),
    "floor": (0.0, 1e12),
    "mentions_per_token": (1e-12, 1e12),
}
"""The smallest and the largest value: a fit computes squares of their powers, which must be floats."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """The end of one run."""

    parameters: float
    tokens: float
    loss: float
    seed: int = 0
    floor: float | None = None
    """The entropy of the validation text, in the unit of the loss."""
    flops: float | None = None
    """The compute of the whole training; None: 6 N D."""
    excess: Mapping[str, float] = field(default_factory=dict)
    """The bits above the floor by kind of choice, in the unit of the loss."""

    @property
    def compute(self) -> float:
        """The compute of the whole training in FLOPs."""
        if self.flops is not None:
            return self.flops
        return FLOPS_PER_PARAMETER_AND_TOKEN * self.parameters * self.tokens

    def describe(self) -> str:
        """Return the name of the point in a message."""
        return f"N = {self.parameters:.4g}, D = {self.tokens:.4g}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Points:
    """The points of one sweep, checked: in range, distinct, not below the floor, with one floor at most."""

    points: Sequence[Point]
    unit: str = "bits per byte"
    title: str = "Scaling law"
    world: World | None = None
    """The world of the world book, which predicts the exponents."""
    mentions_per_token: float | None = None
    """The mean number of people that a token of the training text mentions."""
    excess_of: str | None = None
    """The kind of choice whose excess is the loss; None if the loss is that of the whole text."""

    def __post_init__(self) -> None:
        check_points(self.points)
        if expected := _describe_violated_range("mentions_per_token", self.mentions_per_token):
            raise wrong_value("mentions_per_token", expected, self.mentions_per_token)

    def __len__(self) -> int:
        return len(self.points)

    def column(self, name: str) -> Float64[np.ndarray, " points"]:
        """Return one field of all points."""
        return np.array([getattr(point, name) for point in self.points], dtype=np.float64)

    @property
    def sizes(self) -> Float64[np.ndarray, " points"]:
        """N of each point."""
        return self.column("parameters")

    @property
    def tokens(self) -> Float64[np.ndarray, " points"]:
        """D of each point."""
        return self.column("tokens")

    @property
    def losses(self) -> Float64[np.ndarray, " points"]:
        """L of each point."""
        return self.column("loss")

    @property
    def compute(self) -> Float64[np.ndarray, " points"]:
        """The FLOPs of each point."""
        return self.column("compute")

    @property
    def floor(self) -> float | None:
        """The known E, or None if the points do not state it."""
        floors = [point.floor for point in self.points]
        return None if None in floors else math.fsum(f for f in floors if f is not None) / len(floors)

    @property
    def settings(self) -> Int64[np.ndarray, " points"]:
        """The number of the setting (N, D) of each point, from 0 in order of appearance."""
        numbers: dict[tuple[float, float], int] = {}
        keys = [(point.parameters, point.tokens) for point in self.points]
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)

    def select(self, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Points:
        """Return the points for which the mask is true."""
        kept = [point for point, is_kept in zip(self.points, mask, strict=True) if is_kept]
        return dataclasses.replace(self, points=kept)

    def select_kind(self, name: str) -> Points:
        """Return the points with the excess of one kind of choice as the loss, and 0 as the floor."""
        kinds = sorted({kind for point in self.points for kind in point.excess})
        if not all(name in point.excess for point in self.points):
            listed = ", ".join(kinds) or "none"
            message = f"not every point states the excess of {name!r}; stated kinds: {listed}"
            raise UsageError(message, key="excess", expected=kinds, found=name)
        low = min(self.points, key=lambda point: point.excess[name])
        if low.excess[name] <= 0:
            message = (
                f"the excess of {name!r} must be above 0 to fit a law to it; it is {low.excess[name]:.3g}"
                f" of {low.describe()}"
            )
            raise UsageError(message, key="excess", found=low.excess[name])
        points = [dataclasses.replace(each, loss=each.excess[name], floor=0.0) for each in self.points]
        return dataclasses.replace(self, points=points, title=f"{self.title}: {name}", excess_of=name)


def check_points(points: Sequence[Point]) -> None:
    """Raise `UsageError` if a point is out of range, repeated or below its floor, or if floors differ."""
    if not points:
        raise UsageError("there are no points to fit; state the runs in `points`", key="points", found=0)
    seen: set[tuple[float, float, int]] = set()
    floors = [point.floor for point in points if point.floor is not None]
    for point in points:
        _check_numbers(point)
        key = (point.parameters, point.tokens, point.seed)
        if key in seen:
            message = f"two points have {point.describe()}; give repetitions different seeds"
            raise UsageError(message, key="seed", found=key)
        seen.add(key)
        if point.floor is not None and point.loss < point.floor:
            message = (
                f"the loss {point.loss:.6g} of {point.describe()} is below the floor {point.floor:.6g};"
                " state both in the same unit and for the same text"
            )
            raise UsageError(message, key="loss", expected=point.floor, found=point.loss)
    if floors and max(floors) - min(floors) > FLOOR_TOLERANCE * max(floors):
        message = f"the points have floors from {min(floors):.6g} to {max(floors):.6g}; evaluate on one text"
        raise UsageError(message, key="floor", found=(min(floors), max(floors)))


def _check_numbers(point: Point) -> None:
    """Raise `UsageError` if a value of a point is outside of its range, or not a number."""
    numbers = {name: getattr(point, name) for name in ("parameters", "tokens", "loss", "floor")}
    for name, value in (numbers | {"flops": point.compute}).items():
        if expected := _describe_violated_range(name, value):
            message = (
                f"{name} of the point {point.describe()} must be {expected}, but is {value:.6g};"
                " correct it, or leave this run out"
            )
            raise UsageError(message, key=name, expected=expected, found=value)


def _describe_violated_range(name: str, value: float | None) -> str:
    """Return the range that a value should have; an empty text if it is within the range."""
    least, largest = RANGES[name]
    return "" if value is None or least <= value <= largest else f"from {least:g} to {largest:g}"


def read_points(path: Path) -> Points:
    """Read points from the folder of a sweep, its results.json, or a JSON file of points."""
    if path.is_file():
        file = Json(read_json(path), path)
        if isinstance(file.value, list) or "points" in file.as_object():
            return parse_points(file)
    about, records = read_inputs([path])
    return points_of_runs(records, about.name if about else path.name)


def parse_points(file: Json) -> Points:
    """Return the points of a JSON file: an object with `points`, or a list of points."""
    if isinstance(file.value, list):
        return Points(points=[_parse_point(each) for each in file.elements()])
    points = [_parse_point(each) for each in file["points"].elements()]
    known = file.as_object()
    texts = {name: file[name].as_text() for name in ("unit", "title") if name in known}
    mentions = file.get("mentions_per_token")
    return Points(
        points=points,
        world=_parse_world(file["world"]) if known.get("world") else None,
        mentions_per_token=None if mentions.value is None else _parse_number(mentions),
        **texts,
    )


def _parse_number(value: Json) -> float:
    if not is_finite(value.value):
        raise value.error("a number")
    return float(value.value)


def _parse_point(point: Json) -> Point:
    fields = point.as_object()
    optional = {
        name: _parse_number(point[name]) for name in ("floor", "flops") if fields.get(name) is not None
    }
    excess = point["excess"].as_object() if fields.get("excess") else {}
    return Point(
        parameters=_parse_number(point["parameters"]),
        tokens=_parse_number(point["tokens"]),
        loss=_parse_number(point["loss"]),
        seed=point["seed"].as_integer() if "seed" in fields else 0,
        excess={name: _parse_number(point["excess"][name]) for name in excess},
        **optional,
    )


def _parse_world(world: Json) -> World:
    fields = world.as_object()
    try:
        exponent = Decimal(str(fields.get("exponent", "1.25")))
    except InvalidOperation:
        raise world["exponent"].error("a number, such as 1.25") from None
    names = {"seed": "seed", "exponent": "exponent", "num_people": "people"}
    integers = {
        field: world[names[field]].as_integer() for field in ("seed", "num_people") if names[field] in fields
    }
    try:
        return World(exponent=exponent, **integers)
    except UsageError as error:
        raise world[names[str(error.key)]].error(str(error.expected)) from None


def points_of_runs(records: Sequence[RunRecord], title: str) -> Points:
    """Return the points of the complete runs of a sweep.

    The loss is in bits per byte, like the floor: losses per token depend on the tokenizer. It is the loss of
    whole documents if all runs were evaluated on them, and of windows otherwise.
    """
    points = []
    metric = DOCUMENTS if choose_metric(records, prefer_bits=True) is DOCUMENTS else BITS
    for record in (record for record in records if record.status == "complete"):
        costs = {**record.predicted, **record.measured}
        loss, tokens = record.last(metric.name), record.last("tokens")
        if loss is None or tokens is None or "parameters" not in costs:
            continue
        per_token = costs.get("flops_per_token")
        points.append(
            Point(
                parameters=costs["parameters"],
                tokens=tokens,
                loss=loss,
                seed=record.seed,
                floor=record.floor,
                flops=None if per_token is None else per_token * tokens,
            )
        )
    if not points:
        message = "no run of the sweep is complete with parameters, tokens and bits per byte"
        raise FormatError(message, key="points")
    return Points(points=points, title=title)
