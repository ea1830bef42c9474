"""Fit sums of power laws, y = E + sum over k of c_k x_k^-p_k, by variable projection.

For given exponents p the model is linear in E and c. The method *variable projection* solves this inner
problem exactly and searches only over the exponents: one for an envelope, two for a law in N and D. All
coefficients are non-negative. With at most three of them, the inner problem is solved for every set of
positive ones.

Objectives:

    linear   sum of (prediction - y)^2
    log      sum of (ln prediction - ln y)^2
    huber    sum of Huber's function of ln prediction - ln y, with a threshold of 0.001, as in Chinchilla

The last two have inner problems that are not linear. They are solved by Gauss-Newton steps with the weights
of the objective, each of which is a linear problem.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float64

Objective = Literal["linear", "log", "huber"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
HUBER_THRESHOLD = 1e-3
"""Larger residuals of the logarithm count linearly; the value of Hoffmann et al. (2022)."""
MIN_EXPONENT, MAX_EXPONENT = 0.005, 5.0
GRID = tuple(float(each) for each in np.geomspace(0.03, 2.0, 10))
"""The exponents of the first search."""
NUM_STARTS = 3
"""The number of grid points from which the search is refined."""
INNER_STEPS, INNER_TOLERANCE = 40, 1e-9
IMPROVING_STEPS = 300
"""The most Gauss-Newton steps from a similar fit; those of `huber` converge slowly, but each is fast."""
OUTER_STEPS, OUTER_TOLERANCE = 400, 1e-7

Vector = Float64[np.ndarray, " _"]
"""Numbers of any length: points, exponents or coefficients."""
Solution = tuple[float, Vector, Vector]
"""E, the coefficients of the terms with centred x, and the exponents."""


@dataclass(frozen=True)
class PowerFit:
    """A fitted sum of power laws."""

    limit: float
    """E: the value for infinite x."""
    scales: tuple[float, ...]
    """c of each term."""
    exponents: tuple[float, ...]
    """p of each term."""

    def predict(self, *xs: Vector | float) -> Float64[np.ndarray, "*points"]:
        """Return y for the x of each term."""
        terms = (c * np.asarray(x) ** -p for c, x, p in zip(self.scales, xs, self.exponents, strict=True))
        total: Float64[np.ndarray, "*points"] = np.asarray(self.limit + sum(terms), dtype=np.float64)
        return total


def fit_power_laws(
    xs: tuple[Vector, ...],
    y: Vector,
    *,
    limit: float | None = None,
    objective: Objective = "log",
    start: PowerFit | None = None,
) -> PowerFit:
    """Fit y = E + sum of c_k x_k^-p_k; `limit` is E if it is known.

    `start` is a fit of similar data, such as of the points that were resampled. Gauss-Newton steps over all
    values at once improve it, which is faster than a search. If they fail, the search is made.
    """
    centres = tuple(float(np.exp(np.mean(np.log(x)))) for x in xs)
    inner = _Inner(tuple(np.log(x / c) for x, c in zip(xs, centres, strict=True)), y, limit, objective)

    improved = None if start is None else inner.improve(start, centres)
    limit_found, scales, exponents = improved or _search(inner, len(xs))
    return PowerFit(
        limit=limit_found,
        scales=tuple(float(c * x**p) for c, x, p in zip(scales, centres, exponents, strict=True)),
        exponents=tuple(float(each) for each in exponents),
    )


def _search(inner: _Inner, num_terms: int) -> Solution:
    """Search over the exponents: on a grid with the relative errors, then from its best points."""
    grid = [np.log(np.array(exponents)) for exponents in product(GRID, repeat=num_terms)]
    starts = sorted(grid, key=lambda each: inner.solve(np.exp(each), is_rough=True)[0])[:NUM_STARTS]

    def profile(log_exponents: Vector) -> float:
        return inner.solve(np.exp(log_exponents))[0]

    found = min((minimise(profile, first, 0.2) for first in starts), key=profile)
    return (*inner.split(inner.solve(np.exp(found))[1]), np.exp(found))


class _Inner:
    """The inner problem: the best non-negative coefficients for given exponents."""

    def __init__(
        self, logs: tuple[Vector, ...], y: Vector, limit: float | None, objective: Objective
    ) -> None:
        self.logs, self.y, self.objective = logs, y, objective
        self.offset = limit or 0.0
        self.has_limit = limit is not None

    def split(self, coefficients: Vector) -> tuple[float, Vector]:
        """Return E, and the coefficients of the terms."""
        if self.has_limit:
            return self.offset, coefficients
        return float(coefficients[0]), coefficients[1:]

    def columns(self, exponents: Vector) -> Float64[np.ndarray, "points _"]:
        """Return the columns of E (if it is unknown) and of each term."""
        terms = [np.exp(-p * log) for p, log in zip(exponents, self.logs, strict=True)]
        return np.stack(terms if self.has_limit else [np.ones_like(self.y), *terms], axis=1)

    def solve(self, exponents: Vector, *, is_rough: bool = False) -> tuple[float, Vector]:
        """Return the objective and the coefficients; `is_rough`: of relative errors, without iteration."""
        if exponents.min() < MIN_EXPONENT or exponents.max() > MAX_EXPONENT:
            return np.inf, np.zeros(len(exponents) + 1)
        columns, target = self.columns(exponents), self.y - self.offset
        if self.objective == "linear":
            found = solve_nonnegative(columns, target)
            return float(np.square(columns @ found - target).sum()), found
        # Relative residuals approximate those of the logarithm.
        found = solve_nonnegative(columns / self.y[:, None], target / self.y)
        if is_rough:
            return float(np.square((columns @ found - target) / self.y).sum()), found
        for _ in range(INNER_STEPS):
            prediction = np.maximum(self.offset + columns @ found, 1e-300)
            residual = np.log(self.y / prediction)
            weight = self._weight(residual) / prediction
            aim = prediction * (1 + residual) - self.offset
            before, found = found, solve_nonnegative(columns * weight[:, None], aim * weight)
            if np.abs(found - before).max() <= INNER_TOLERANCE * np.abs(found).max():
                break
        residual = np.log(self.y / np.maximum(self.offset + columns @ found, 1e-300))
        return float(self._loss(residual).sum()), found

    def improve(self, start: PowerFit, centres: tuple[float, ...]) -> Solution | None:
        """Return the solution near a fit by Gauss-Newton steps over all values; None if they fail.

        A coefficient that a step would make negative becomes 0 and stays 0. If another value would be better
        in the end, the steps have failed.
        """
        exponents = np.array(start.exponents)
        scales = [c * x**-p for c, x, p in zip(start.scales, centres, exponents, strict=True)]
        values = np.array([*([] if self.has_limit else [start.limit]), *scales, *exponents])
        current, num_terms = np.inf, len(exponents)
        num_coefficients = len(values) - num_terms
        is_free = np.concatenate([values[:-num_terms] > 0, np.array(scales) > 0])
        for _ in range(IMPROVING_STEPS):
            jacobian, residual = self._linearise(values)
            step = np.zeros_like(values)
            step[is_free] = np.linalg.lstsq(jacobian[:, is_free], residual, rcond=None)[0]
            size, bounded = 1.0, None
            falls = np.flatnonzero(step[:num_coefficients] < -values[:num_coefficients])
            if len(falls):
                bounded = falls[np.argmin(values[falls] / -step[falls])]
                size = float(values[bounded] / -step[bounded])
            while True:
                aim = values + size * step
                if bounded is not None:
                    aim[bounded] = 0.0
                found = self._objective(aim)
                if found <= current and found < np.inf:
                    break
                size, bounded = size / 2, None
                if size < 1e-3:
                    return None
            values = aim
            if bounded is not None:
                is_free[bounded] = False
                if bounded >= num_coefficients - num_terms:  # the exponent of a term that is 0 has no effect
                    is_free[bounded + num_terms] = False
            elif current - found <= 1e-9 * found:
                coefficients, exponents = values[:-num_terms], values[-num_terms:]
                return None if self._can_grow(values) else (*self.split(coefficients), exponents)
            current = found
        return None

    def _linearise(self, values: Vector) -> tuple[Float64[np.ndarray, "points _"], Vector]:
        """Return the derivatives by coefficients and exponents, and the residuals, both with weights."""
        num_terms = len(self.logs)
        columns = self.columns(values[-num_terms:])
        prediction = self.offset + columns @ values[:-num_terms]
        slopes = -columns[:, -num_terms:] * values[-2 * num_terms : -num_terms] * np.stack(self.logs, 1)
        jacobian = np.concatenate([columns, slopes], axis=1)
        if self.objective == "linear":
            return jacobian, self.y - prediction
        residual = np.log(self.y / prediction)
        weight = self._weight(residual)
        return jacobian * (weight / prediction)[:, None], residual * weight

    def _can_grow(self, values: Vector) -> bool:
        """Return whether a coefficient of 0 should be larger, for a term with some exponent of the grid."""
        num_terms = len(self.logs)
        for number in np.flatnonzero(values[:-num_terms] == 0):
            trial = values.copy()
            term = number - (len(values) - 2 * num_terms)  # negative for E
            for exponent in GRID if term >= 0 else (0.0,):
                if term >= 0:
                    trial[len(values) - num_terms + term] = exponent
                jacobian, residual = self._linearise(trial)
                slope = jacobian[:, number]
                if slope @ residual > 1e-6 * np.linalg.norm(slope) * np.linalg.norm(residual):
                    return True
        return False

    def _objective(self, values: Vector) -> float:
        """Return the objective of coefficients and exponents; infinite if one is not allowed."""
        num_terms = len(self.logs)
        coefficients, exponents = values[:-num_terms], values[-num_terms:]
        if values.min() < 0 or exponents.min() < MIN_EXPONENT or exponents.max() > MAX_EXPONENT:
            return np.inf
        prediction = self.offset + self.columns(exponents) @ coefficients
        if prediction.min() <= 0:
            return np.inf
        if self.objective == "linear":
            return float(np.square(prediction - self.y).sum())
        return float(self._loss(np.log(self.y / prediction)).sum())

    def _weight(self, residual: Vector) -> Vector:
        """Return the square root of the weight of each residual in a problem of least squares."""
        if self.objective == "log":
            return np.ones_like(residual)
        size = np.maximum(np.abs(residual), 1e-300)
        root: Vector = np.sqrt(np.minimum(1.0, HUBER_THRESHOLD / size))
        return root

    def _loss(self, residual: Vector) -> Vector:
        size: Vector = np.abs(residual)
        squares: Vector = size * size
        if self.objective == "log":
            return squares
        large = HUBER_THRESHOLD * (size - HUBER_THRESHOLD / 2)
        loss: Vector = np.where(size <= HUBER_THRESHOLD, squares / 2, large)
        return loss


@functools.cache
def _subsets(size: int) -> list[list[int]]:
    """Return all sets of positive coefficients, the largest first."""
    return [list(each) for count in range(size, 0, -1) for each in combinations(range(size), count)]


def solve_nonnegative(
    columns: Float64[np.ndarray, "n k"], target: Float64[np.ndarray, " n"]
) -> Float64[np.ndarray, " k"]:
    """Return the non-negative coefficients with the least sum of squares.

    The solution is the unconstrained one on the set of its positive coefficients. If the unconstrained
    solution on all columns is not negative, it is the solution; otherwise all smaller sets are tried.

    >>> solve_nonnegative(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -3.0])).tolist()
    [2.0, 0.0]
    """
    size = columns.shape[1]
    best, least = np.zeros(size), np.inf
    for subset in _subsets(size):
        part = columns[:, subset]
        found = np.linalg.lstsq(part, target, rcond=None)[0]
        if (found < 0).any():
            continue
        value = float(np.square(part @ found - target).sum())
        if value < least:
            best, least = np.zeros(size), value
            best[subset] = found
        if len(subset) == size:
            break
    return best


def minimise(function: Callable[[Vector], float], start: Vector, size: float) -> Vector:
    """Return a local minimum by the method of Nelder and Mead, from a simplex of the given size.

    >>> found = minimise(lambda x: float((x[0] - 1) ** 2 + (x[1] + 2) ** 2), np.zeros(2), 0.5)
    >>> found.round(6).tolist()
    [1.0, -2.0]
    """
    simplex = [start, *(start + size * row for row in np.eye(len(start)))]
    values = [function(corner) for corner in simplex]
    for _ in range(OUTER_STEPS):
        order = sorted(range(len(simplex)), key=values.__getitem__)
        simplex, values = [simplex[n] for n in order], [values[n] for n in order]
        if np.abs(np.array(simplex[1:]) - simplex[0]).max() < OUTER_TOLERANCE:
            break
        centre = np.mean(simplex[:-1], axis=0)

        def at(step: float, centre: Vector = centre, worst: Vector = simplex[-1]) -> tuple[float, Vector]:
            corner = centre + step * (worst - centre)
            return function(corner), corner

        value, corner = at(-1.0)
        if value < values[0]:
            further = at(-2.0)
            value, corner = min((value, corner), further, key=lambda pair: pair[0])
        elif value >= values[-2]:
            value, corner = at(-0.5 if value < values[-1] else 0.5)
            if value >= values[-1]:
                simplex = [simplex[0], *((simplex[0] + each) / 2 for each in simplex[1:])]
                values = [values[0], *(function(each) for each in simplex[1:])]
                continue
        simplex[-1], values[-1] = corner, value
    return simplex[int(np.argmin(values))]
