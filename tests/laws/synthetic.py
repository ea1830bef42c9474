"""Points of a known law, with and without noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bytewright.laws.law import Law
from bytewright.laws.points import Point, Points

TRUE = Law(limit=430.0, size_scale=3000.0, size_exponent=0.3, data_scale=20000.0, data_exponent=0.28)


def law_points(
    *,
    noise: float = 0.0,
    num_seeds: int = 1,
    levels: Sequence[float] = (1e15, 4e15, 1.6e16, 6.4e16),
    num_sizes: int = 5,
    spread: float = 3.0,
    seed: int = 0,
    law: Law = TRUE,
) -> Points:
    """Return points at equal compute, around the best size of each level."""
    random = np.random.default_rng(seed)
    points = []
    for flops in levels:
        for size in law.best_size(flops) * np.geomspace(1 / spread, spread, num_sizes):
            tokens = flops / 6 / size
            for number in range(num_seeds):
                loss = float(law.loss(size, tokens)) * float(np.exp(noise * random.normal()))
                point = Point(
                    parameters=float(size), tokens=float(tokens), seed=number, loss=loss, floor=law.limit
                )
                points.append(point)
    return Points(points=points)
