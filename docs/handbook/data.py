"""Compute the figures of data.md."""

from __future__ import annotations

from math import exp

FIGURES = [
    # Windows of a run: a pure function of (data, seed, step)
    f"there are windows, {100 * exp(-1):.0f} % of",
]
GIVEN = {"step 1,000,000 can": "the example below it"}
