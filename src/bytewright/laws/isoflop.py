"""IsoFLOP parabolas: for each level of compute, the best N, and the power laws of these optima.

At one level of compute C = 6 N D, the loss has a minimum as a function of ln N. Smaller models have too few
parameters, and larger ones are trained on too few tokens. A parabola through the points of the level
estimates the minimum. The procedure has a bias: the true curve is a sum of two exponentials in ln N, which is
not symmetric. So the minimum of the parabola moves if the sizes are not centred on it, and more so if they
are far apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bytewright.errors import UsageError
from bytewright.laws.minimisers import Vector
from bytewright.laws.points import Points
from bytewright.laws.power import PowerFit, fit_power_laws

LEVEL_GAP = 1.25
"""A level ends where the next larger compute is higher by more than this factor."""
MIN_SIZES = 3
"""A parabola needs three different N."""
FURTHEST_MINIMUM = 100.0
"""If ln N of the minimum is further from that of the points, the curvature is a rounding error."""


@dataclass(frozen=True, kw_only=True)
class Parabola:
    """The loss at one level of compute: lowest + curvature (ln N - ln best)^2."""

    flops: float
    best_size: float
    best_tokens: float
    lowest: float
    curvature: float
    sizes: tuple[float, float]
    """The smallest and the largest N of the level."""

    @property
    def is_inside(self) -> bool:
        """Whether the minimum lies between the sizes of the level; otherwise it is extrapolated."""
        return self.sizes[0] <= self.best_size <= self.sizes[1]

    def loss(self, sizes: Vector) -> Vector:
        """Return the loss of the parabola."""
        distance: Vector = np.log(sizes / self.best_size)
        return self.lowest + self.curvature * distance**2


def find_levels(points: Points) -> list[np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return a mask of the points of each level of compute with at least three sizes, the lowest first."""
    compute = points.compute
    order = np.argsort(compute, kind="stable")
    breaks = np.flatnonzero(compute[order][1:] > LEVEL_GAP * compute[order][:-1]) + 1
    masks = []
    for members in np.split(order, breaks):
        mask = np.zeros(len(compute), dtype=bool)
        mask[members] = True
        if len(np.unique(points.sizes[mask])) >= MIN_SIZES:
            masks.append(mask)
    return masks


def fit_parabola(points: Points, losses: Vector | None = None) -> Parabola:
    """Fit a parabola in ln N to the points of one level."""
    logs = np.log(points.sizes)
    centre = float(logs.mean())
    if (num_sizes := len(np.unique(points.sizes))) < MIN_SIZES:
        message = (
            f"a parabola needs at least {MIN_SIZES} different numbers of parameters at one compute, but there"
            f" are only {num_sizes}; add sizes at this compute, or leave the level out"
        )
        raise UsageError(message, key="parameters", expected=MIN_SIZES, found=num_sizes)
    curvature, slope, value = np.polyfit(logs - centre, points.losses if losses is None else losses, 2)
    flops = float(np.exp(np.log(points.compute).mean()))
    shift = -slope / (2 * curvature) if curvature else math.inf
    if curvature <= 0 or abs(shift) > FURTHEST_MINIMUM:
        problem = "opens downwards" if curvature < 0 else "is a line"
        message = f"the losses at {flops:.3g} FLOPs have no minimum: the parabola {problem}"
        raise UsageError(message, key="loss", found=float(curvature))
    # ln D is a line in ln N at one level, exactly so if the compute is 6 N D
    tokens = np.polyval(np.polyfit(logs - centre, np.log(points.tokens), 1), shift)
    return Parabola(
        flops=flops,
        best_size=math.exp(centre + shift),
        best_tokens=math.exp(tokens),
        lowest=float(value - slope**2 / (4 * curvature)),
        curvature=float(curvature),
        sizes=(float(points.sizes.min()), float(points.sizes.max())),
    )


def fit_parabolas(points: Points, losses: Vector | None = None) -> list[Parabola]:
    """Fit a parabola to each level of compute with at least three sizes."""
    losses = points.losses if losses is None else losses
    return [fit_parabola(points.select(mask), losses[mask]) for mask in find_levels(points)]


def fit_exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent of y as a power of x: the slope of a line through ln y against ln x.

    >>> round(fit_exponent([1.0, 4.0, 16.0], [3.0, 6.0, 12.0]), 12)
    0.5
    """
    if len(set(x)) < 2:
        raise UsageError("a power law of compute needs at least two levels", key="flops", found=len(set(x)))
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def fit_envelope(parabolas: Sequence[Parabola], *, start: PowerFit | None = None) -> PowerFit:
    """Fit E + K C^-g to the envelope, the lowest losses of the levels; `start` is a fit of similar data."""
    if len(parabolas) < 3:
        message = f"the envelope has three unknowns, so it needs three levels; there are {len(parabolas)}"
        raise UsageError(message, key="flops", expected=3, found=len(parabolas))
    flops = np.array([each.flops for each in parabolas])
    lowest = np.array([each.lowest for each in parabolas])
    if lowest.min() <= 0:
        message = f"the lowest losses of the levels must be above 0, but one is {lowest.min():.3g}"
        raise UsageError(message, key="loss", found=float(lowest.min()))
    return fit_power_laws((flops,), lowest, start=start)
