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

`_Problem` is the data with the objective, and `_solve_coefficients` solves the inner problem. `_GaussNewton`
improves a similar fit by Gauss-Newton steps over coefficients and exponents at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float64

from bytewright.laws.minimisers import Vector, minimise, solve_nonnegative

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
    logs = tuple(np.log(x / c) for x, c in zip(xs, centres, strict=True))
    problem = _Problem(logs, y, limit, objective)

    improved = None if start is None else _GaussNewton(problem).improve(start, centres)
    limit_found, scales, exponents = improved or _search(problem)
    return PowerFit(
        limit=limit_found,
        scales=tuple(float(c * x**p) for c, x, p in zip(scales, centres, exponents, strict=True)),
        exponents=tuple(float(each) for each in exponents),
    )


@dataclass(frozen=True)
class _Problem:
    """The data and the objective: what a prediction of y costs."""

    logs: tuple[Vector, ...]
    """ln x of each term, centred."""
    y: Vector
    limit: float | None
    """E if it is known; None if it is a coefficient."""
    objective: Objective

    @property
    def num_terms(self) -> int:
        """The number of power laws."""
        return len(self.logs)

    def split(self, coefficients: Vector) -> tuple[float, Vector]:
        """Return E, and the coefficients of the terms."""
        if self.limit is not None:
            return self.limit, coefficients
        return float(coefficients[0]), coefficients[1:]

    def columns(self, exponents: Vector) -> Float64[np.ndarray, "points _"]:
        """Return the columns of E (if it is unknown) and of each term."""
        terms = [np.exp(-p * log) for p, log in zip(exponents, self.logs, strict=True)]
        return np.stack(terms if self.limit is not None else [np.ones_like(self.y), *terms], axis=1)

    @property
    def offset(self) -> float:
        """The part of a prediction without a coefficient: the known E, or 0."""
        return self.limit or 0.0

    def evaluate(self, prediction: Vector) -> float:
        """Return the objective of predictions of y, all above 0."""
        if self.objective == "linear":
            return float(np.square(prediction - self.y).sum())
        size: Vector = np.abs(np.log(self.y / prediction))
        squares: Vector = size * size
        if self.objective == "log":
            return float(squares.sum())
        large = HUBER_THRESHOLD * (size - HUBER_THRESHOLD / 2)
        return float(np.where(size <= HUBER_THRESHOLD, squares / 2, large).sum())

    def weigh(self, residual: Vector) -> Vector:
        """Return the square root of the weight of each residual of ln y in a problem of least squares."""
        if self.objective == "log":
            return np.ones_like(residual)
        size = np.maximum(np.abs(residual), 1e-300)
        root: Vector = np.sqrt(np.minimum(1.0, HUBER_THRESHOLD / size))
        return root


def _list_inward_steps(exponents: Vector) -> Vector:
    """Return for each exponent 1 at the lower bound, -1 at the upper bound, and 0 between the bounds."""
    steps: Vector = (exponents == MIN_EXPONENT) * 1.0 - (exponents == MAX_EXPONENT)
    return steps


# Variable projection: the coefficients for given exponents, and a search over the exponents


def _search(problem: _Problem) -> Solution:
    """Search over the exponents: on a grid with the relative errors, then from its best points."""
    grid = [np.log(np.array(exponents)) for exponents in product(GRID, repeat=problem.num_terms)]
    starts = sorted(grid, key=lambda each: _solve_roughly(problem, np.exp(each)))[:NUM_STARTS]

    def limit_exponents(log_exponents: Vector) -> Vector:
        limited: Vector = np.clip(np.exp(log_exponents), MIN_EXPONENT, MAX_EXPONENT)
        return limited

    def profile(log_exponents: Vector) -> float:
        return _solve_coefficients(problem, limit_exponents(log_exponents))[0]

    exponents = limit_exponents(min((minimise(profile, first, 0.2) for first in starts), key=profile))
    _, coefficients = _solve_coefficients(problem, exponents)
    limit, scales = problem.split(coefficients)
    return limit, scales, exponents


def _solve_relative(problem: _Problem, columns: Float64[np.ndarray, "points _"]) -> Vector:
    """Return the coefficients with the least relative errors, which approximate those of ln y."""
    return solve_nonnegative(columns / problem.y[:, None], (problem.y - problem.offset) / problem.y)


def _solve_roughly(problem: _Problem, exponents: Vector) -> float:
    """Return the least sum of squared errors for given exponents: relative errors, unless it is linear."""
    if problem.objective == "linear":
        return _solve_coefficients(problem, exponents)[0]
    columns = problem.columns(exponents)
    found = _solve_relative(problem, columns)
    return float(np.square((columns @ found - (problem.y - problem.offset)) / problem.y).sum())


def _solve_coefficients(problem: _Problem, exponents: Vector) -> tuple[float, Vector]:
    """Return the objective and the best non-negative coefficients for given exponents."""
    columns, offset = problem.columns(exponents), problem.offset
    if problem.objective == "linear":
        target = problem.y - offset
        found = solve_nonnegative(columns, target)
        return float(np.square(columns @ found - target).sum()), found
    found = _solve_relative(problem, columns)
    for _ in range(INNER_STEPS):
        prediction = np.maximum(offset + columns @ found, 1e-300)
        residual = np.log(problem.y / prediction)
        weight = problem.weigh(residual) / prediction
        aim = prediction * (1 + residual) - offset
        before, found = found, solve_nonnegative(columns * weight[:, None], aim * weight)
        if np.abs(found - before).max() <= INNER_TOLERANCE * np.abs(found).max():
            break
    return problem.evaluate(np.maximum(offset + columns @ found, 1e-300)), found


# Coefficients and exponents at once, from a similar fit


class _GaussNewton:
    """Gauss-Newton steps over all unknowns: one vector of the coefficients and then the exponents."""

    def __init__(self, problem: _Problem) -> None:
        self.problem, num_terms = problem, problem.num_terms
        num_limits = int(problem.limit is None)
        self.coefficients = slice(0, num_limits + num_terms)
        """The place of E, if it is unknown, and of the coefficients of the terms."""
        self.scales = slice(num_limits, num_limits + num_terms)
        """The place of the coefficients of the terms."""
        self.exponents = slice(num_limits + num_terms, num_limits + 2 * num_terms)

    def exponent_of(self, coefficient: int) -> int | None:
        """Return the place of the exponent of the term with this coefficient; None for E."""
        term = coefficient - self.scales.start
        return self.exponents.start + term if term >= 0 else None

    def improve(self, start: PowerFit, centres: tuple[float, ...]) -> Solution | None:
        """Return the solution near a fit; None if the steps fail.

        A coefficient that a step would make negative becomes 0 and stays 0. An exponent that is at a bound at
        the start stays there. If another value would be better in the end, the steps have failed.
        """
        limits = [start.limit] if self.problem.limit is None else []
        scales = [c * x**-p for c, x, p in zip(start.scales, centres, start.exponents, strict=True)]
        values = np.array([*limits, *scales, *start.exponents])
        is_free = values > 0
        is_free[self.exponents] = is_free[self.scales] & (_list_inward_steps(values[self.exponents]) == 0)
        current = np.inf
        for _ in range(IMPROVING_STEPS):
            advanced = self._advance(values, is_free, current)
            if advanced is None:
                return None
            values, found, bounded = advanced
            if bounded is not None:
                is_free[bounded] = False
                exponent = self.exponent_of(bounded)
                if exponent is not None:  # the exponent of a term has no effect if its coefficient is 0
                    is_free[exponent] = False
            elif current - found <= 1e-9 * found:
                if self._can_grow(values) or self._can_leave_bound(values):
                    return None
                return (*self.problem.split(values[self.coefficients]), values[self.exponents])
            current = found
        return None

    def _advance(
        self, values: Vector, is_free: np.ndarray[tuple[int], np.dtype[np.bool_]], current: float
    ) -> tuple[Vector, float, int | None] | None:
        """Take one step that does not increase the objective; None if there is none.

        The result has the values, their objective, and the coefficient that the step has made 0, if any.
        """
        jacobian, residual = self._linearise(values)
        step = np.zeros_like(values)
        step[is_free] = np.linalg.lstsq(jacobian[:, is_free], residual, rcond=None)[0]
        size, bounded = 1.0, None
        falls = np.flatnonzero(step[self.coefficients] < -values[self.coefficients])
        if len(falls):
            bounded = int(falls[np.argmin(values[falls] / -step[falls])])
            size = float(values[bounded] / -step[bounded])
        while True:
            aim = values + size * step
            if bounded is not None:
                aim[bounded] = 0.0
            found = self._evaluate(aim)
            if found <= current and found < np.inf:
                return aim, found, bounded
            size, bounded = size / 2, None
            if size < 1e-3:
                return None

    def _predict(self, values: Vector) -> tuple[Float64[np.ndarray, "points _"], Vector]:
        """Return the columns of the coefficients, and the predictions of y."""
        columns = self.problem.columns(values[self.exponents])
        return columns, self.problem.offset + columns @ values[self.coefficients]

    def _linearise(self, values: Vector) -> tuple[Float64[np.ndarray, "points _"], Vector]:
        """Return the derivatives by coefficients and exponents, and the residuals, both with weights."""
        problem = self.problem
        columns, prediction = self._predict(values)
        slopes = -columns[:, self.scales] * values[self.scales] * np.stack(problem.logs, 1)
        jacobian = np.concatenate([columns, slopes], axis=1)
        if problem.objective == "linear":
            return jacobian, problem.y - prediction
        residual = np.log(problem.y / prediction)
        weight = problem.weigh(residual)
        return jacobian * (weight / prediction)[:, None], residual * weight

    def _can_grow(self, values: Vector) -> bool:
        """Return whether a coefficient of 0 should be larger, for a term with some exponent of the grid."""
        for coefficient in np.flatnonzero(values[self.coefficients] == 0):
            place = self.exponent_of(int(coefficient))
            for exponent in GRID if place is not None else (None,):
                trial = values.copy()
                if place is not None:
                    trial[place] = exponent
                jacobian, residual = self._linearise(trial)
                slope = jacobian[:, coefficient]
                if slope @ residual > 1e-6 * np.linalg.norm(slope) * np.linalg.norm(residual):
                    return True
        return False

    def _can_leave_bound(self, values: Vector) -> bool:
        """Return whether an exponent at a bound should be within its bounds."""
        jacobian, residual = self._linearise(values)
        slopes = jacobian[:, self.exponents] * _list_inward_steps(values[self.exponents])
        least = 1e-6 * np.linalg.norm(slopes, axis=0) * np.linalg.norm(residual)
        return bool((residual @ slopes > least).any())

    def _evaluate(self, values: Vector) -> float:
        """Return the objective of coefficients and exponents; infinite if one is beyond its bounds."""
        exponents = values[self.exponents]
        if values.min() < 0 or exponents.min() < MIN_EXPONENT or exponents.max() > MAX_EXPONENT:
            return np.inf
        _, prediction = self._predict(values)
        return self.problem.evaluate(prediction) if prediction.min() > 0 else np.inf
