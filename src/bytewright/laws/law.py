"""The law of two terms, L = E + A/N^a + B/D^b: its fit, and the best use of compute that follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bytewright.errors import UsageError
from bytewright.laws.minimisers import Vector
from bytewright.laws.points import FLOPS_PER_PARAMETER_AND_TOKEN, Points
from bytewright.laws.power import Objective, PowerFit, fit_power_laws

MIN_DISTINCT = 3
"""The least number of different N and of different D: two do not distinguish a power law from a constant."""
LAW_FIELDS = ("limit", "size_scale", "size_exponent", "data_scale", "data_exponent")
SYMBOLS = dict(zip(LAW_FIELDS, ("E", "A", "a", "B", "b"), strict=True))


@dataclass(frozen=True, kw_only=True)
class Law:
    """L(N, D) = limit + size_scale / N^size_exponent + data_scale / D^data_exponent."""

    limit: float
    size_scale: float
    size_exponent: float
    data_scale: float
    data_exponent: float

    def loss(self, sizes: Vector | float, tokens: Vector | float) -> Vector:
        """Return L."""
        return self.as_power_fit().predict(sizes, tokens)

    def as_power_fit(self) -> PowerFit:
        """Return the law as a sum of power laws."""
        return PowerFit(
            self.limit, (self.size_scale, self.data_scale), (self.size_exponent, self.data_exponent)
        )

    def best_size(self, flops: float) -> float:
        """Return the N with the lowest loss for C = 6 N D: the derivative along this curve is 0.

        It is infinite if the loss does not depend on D, or if a float cannot hold it.
        """
        if self.data_scale == 0:
            return math.inf
        a, b = self.size_exponent, self.data_exponent
        ratio = a * self.size_scale / (b * self.data_scale)
        try:
            return float((ratio * (flops / FLOPS_PER_PARAMETER_AND_TOKEN) ** b) ** (1 / (a + b)))
        except OverflowError:
            return math.inf

    @property
    def best_size_exponent(self) -> float:
        """The exponent of the best N as a power of compute: b / (a + b)."""
        return self.data_exponent / (self.size_exponent + self.data_exponent)

    @property
    def envelope_exponent(self) -> float:
        """The exponent of compute in the lowest loss: L = E + K C^-g with g = a b / (a + b)."""
        a, b = self.size_exponent, self.data_exponent
        return a * b / (a + b)


def fit_law(
    points: Points,
    *,
    objective: Objective = "log",
    known_limit: bool = False,
    losses: Vector | None = None,
    start: Law | None = None,
) -> Law:
    """Fit the law to points; with `known_limit`, E is the floor of the points.

    `losses` replaces those of the points, as resampling does; `start` is a law close to the solution.
    """
    check_enough(points, known_limit=known_limit)
    fit = fit_power_laws(
        (points.sizes, points.tokens),
        points.losses if losses is None else losses,
        limit=points.floor if known_limit else None,
        objective=objective,
        start=None if start is None else start.as_power_fit(),
    )
    return Law(
        limit=fit.limit,
        size_scale=fit.scales[0],
        size_exponent=fit.exponents[0],
        data_scale=fit.scales[1],
        data_exponent=fit.exponents[1],
    )


def check_enough(points: Points, *, known_limit: bool) -> None:
    """Raise `UsageError` if the points cannot determine the law."""
    if known_limit and points.floor is None:
        raise UsageError("the points state no floor, so E is not known; state it, or fit E", key="floor")
    for name, values in (("parameters", points.sizes), ("tokens", points.tokens)):
        if (count := len(np.unique(values))) < MIN_DISTINCT:
            message = (
                f"a law needs at least {MIN_DISTINCT} different numbers of {name}; the points have {count}"
            )
            raise UsageError(message, key=name, expected=MIN_DISTINCT, found=count)
    num_unknown = len(LAW_FIELDS) - known_limit
    if (num_settings := len(np.unique(points.settings))) <= num_unknown:
        message = f"a law with {num_unknown} unknowns needs more settings of N and D than {num_settings}"
        raise UsageError(message, expected=num_unknown + 1, found=num_settings)
