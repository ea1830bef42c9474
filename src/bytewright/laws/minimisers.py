"""Two minimisers: non-negative least squares for few coefficients, and the method of Nelder and Mead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import combinations

import numpy as np
from jaxtyping import Float64

Vector = Float64[np.ndarray, " _"]
"""Numbers of any length: points, exponents or coefficients."""
MAX_STEPS, TOLERANCE = 400, 1e-7


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
    for _ in range(MAX_STEPS):
        order = sorted(range(len(simplex)), key=values.__getitem__)
        simplex, values = [simplex[n] for n in order], [values[n] for n in order]
        if np.abs(np.array(simplex[1:]) - simplex[0]).max() < TOLERANCE:
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
