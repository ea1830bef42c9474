"""Intervals of fitted values by resampling seeds.

A resample draws seeds with replacement. Settings with the same seeds get the same draws, so noise that a seed
causes in all settings stays common to them. The points keep their N and D. So a resample has other losses
only, and shows what other seeds would have changed. It does not show errors of the form of the law.

Settings with a single seed get deviations that are drawn from the settings with several.

The spread over resamples of n seeds is too small by the factor sqrt((n - 1) / n), which is corrected. The
interval is Student's: with n seeds it extends t(n - 1) standard errors to each side. n is the largest number
of seeds of a setting. Settings with fewer seeds make the interval too narrow. The degrees of freedom are not
added up over settings, because settings can share the noise of a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bytewright.errors import UsageError
from bytewright.laws import NUM_RESAMPLES
from bytewright.laws.inference import CONFIDENCE, student_quantile
from bytewright.laws.minimisers import Vector
from bytewright.laws.points import Points

SAME = 1e-12
"""Relative difference of values that are equal up to rounding: they have no interval."""
LARGEST_SPREAD = 300.0
"""The largest half width of an interval on a log scale; a wider one can overflow a float."""


@dataclass(frozen=True)
class Estimate:
    """A fitted value, with its standard error and interval over seeds.

    Both are None without repetitions, and if all resamples have the same value, such as a bound of the fit.
    """

    value: float
    error: float | None = None
    interval: tuple[float, float] | None = None

    def errors_from(self, true: float) -> float | None:
        """Return the distance to the true value in standard errors."""
        return (self.value - true) / self.error if self.error else None


class SeedResampler:
    """Draws the losses of points again, seed by seed."""

    def __init__(self, points: Points) -> None:
        self.losses, self.settings = points.losses, points.settings
        seeds = np.array([point.seed for point in points.points])
        order = np.lexsort((seeds, self.settings))
        self.members = [order[self.settings[order] == each] for each in np.unique(self.settings)]
        self.repeated = [each for each in self.members if len(each) > 1]
        self.num_seeds = max(map(len, self.members))
        self.random = np.random.default_rng(0)

    @property
    def can_resample(self) -> bool:
        """Whether a setting has several seeds."""
        return bool(self.repeated)

    def draw(self) -> Vector:
        """Return the losses of one resample."""
        uniform = self.random.random(self.num_seeds)
        losses = self.losses.copy()
        for each in self.members:
            if len(each) > 1:
                drawn = (uniform[: len(each)] * len(each)).astype(int)
                losses[each] = self.losses[each[drawn]]
            else:
                losses[each] += self._deviation()
        return losses

    def _deviation(self) -> float:
        """Return the deviation of a random run from the mean of its setting."""
        chosen = self.losses[self.repeated[self.random.integers(len(self.repeated))]]
        return float(chosen[self.random.integers(len(chosen))] - chosen.mean())

    def estimate(
        self, values: Mapping[str, float], resampled: Mapping[str, list[float]], *, logs: frozenset[str]
    ) -> dict[str, Estimate]:
        """Return values with errors and intervals.

        Intervals of the values in `logs` are symmetric on a log scale, if all values are positive.
        """
        correction = math.sqrt(self.num_seeds / (self.num_seeds - 1))
        t = student_quantile(CONFIDENCE, self.num_seeds - 1)
        estimates = {}
        for name, value in values.items():
            drawn = np.array(resampled[name])
            drawn = drawn[np.isfinite(drawn)]
            is_constant = len(drawn) < 2 or np.ptp(drawn) <= SAME * abs(value)
            if is_constant:  # at a bound of the fit, or without noise
                estimates[name] = Estimate(value)
                continue
            if name in logs and min(value, drawn.min()) > 0:
                error = float(np.log(drawn).std(ddof=1)) * correction
                spread = min(t * error, LARGEST_SPREAD)
                interval = (value * math.exp(-spread), value * math.exp(spread))
                estimates[name] = Estimate(value, value * error, interval)
            else:
                error = float(drawn.std(ddof=1)) * correction
                estimates[name] = Estimate(value, error, (value - t * error, value + t * error))
        return estimates


Fit = Callable[[Vector], Mapping[str, float]]
"""Returns the fitted values for given losses of the points."""


def estimate(
    points: Points,
    fit: Fit,
    *,
    values: Mapping[str, float] | None = None,
    num_resamples: int = NUM_RESAMPLES,
    logs: frozenset[str] = frozenset(),
) -> dict[str, Estimate]:
    """Return fitted values with intervals over seeds; `fit` is applied to resamples of the losses.

    The values are those of the given losses, `fit(points.losses)` unless they are given. A resample that
    cannot be fitted counts as missing. Without repeated seeds there are no intervals.
    """
    values = fit(points.losses) if values is None else values
    resampler = SeedResampler(points)
    if not resampler.can_resample:
        return {name: Estimate(value) for name, value in values.items()}
    resampled: dict[str, list[float]] = {name: [] for name in values}
    for _ in range(num_resamples):
        losses = resampler.draw()
        if losses.min() <= 0:  # a deviation was larger than the loss of a setting with one seed
            continue
        try:
            found = fit(losses)
        except UsageError:
            continue
        for name in resampled:
            resampled[name].append(found.get(name, math.nan))
    return resampler.estimate(values, resampled, logs=logs)
