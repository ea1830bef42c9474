"""Statistics for comparisons over seeds: Student's t distribution, paired differences, and Holm's correction.

A mean over n seeds has an uncertain standard error, because the spread is estimated from the same n values.
Student's t distribution accounts for it: with three seeds, an interval of 95 % extends 4.3 standard errors to
each side, not 2. If several settings are compared with one baseline, some difference looks large by chance.
Holm's correction keeps the probability of any such error below the stated level.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), by its continued fraction.

    >>> round(incomplete_beta(0.5, 2.0, 3.0), 12)
    0.6875
    """
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - incomplete_beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    numerator, denominator = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1), tiny)
    fraction = denominator
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            denominator = 1 / _away_from_zero(1 + term * denominator, tiny)
            numerator = _away_from_zero(1 + term / numerator, tiny)
            change *= numerator * denominator
        fraction *= change
        if abs(change - 1) < 1e-15:
            break
    return front * fraction / a


def _away_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


def student_tail(t: float, degrees: float) -> float:
    """Return the probability that a value of Student's t distribution is further from 0 than t.

    >>> round(student_tail(2.776445, 4), 6)
    0.05
    """
    return incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def student_quantile(confidence: float, degrees: float) -> float:
    """Return the t such that the values from -t to t have the given probability.

    >>> round(student_quantile(0.95, 2), 4), round(student_quantile(0.95, 30), 4)
    (4.3027, 2.0423)
    """
    low, high = 0.0, 1.0
    while student_tail(high, degrees) > 1 - confidence:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, degrees) > 1 - confidence else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Difference:
    """The difference of two means, with its standard error and degrees of freedom."""

    value: float
    error: float
    degrees: float
    is_paired: bool
    """Whether both settings have the same seeds, so that differences were formed seed by seed."""

    def half_width(self) -> float:
        """Return half the width of the t interval."""
        return student_quantile(CONFIDENCE, self.degrees) * self.error

    @property
    def p_value(self) -> float:
        """The probability of a difference at least as large if the means were equal."""
        if self.error == 0:
            return float(self.value == 0)
        return student_tail(self.value / self.error, self.degrees)


def compare_means(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Return the difference of the means of two settings, given their values by seed.

    Seeds that both settings have are compared in pairs, if there are two or more. Runs with one seed read the
    same batches, so part of the noise cancels. Otherwise the two means are independent (Welch's test). None
    if both have too few seeds for a standard error.
    """
    shared = sorted(ours.keys() & theirs.keys())
    if len(shared) > 1:
        pairs = [ours[seed] - theirs[seed] for seed in shared]
        error = statistics.stdev(pairs) / math.sqrt(len(pairs))
        return Difference(statistics.fmean(pairs), error, len(pairs) - 1, is_paired=True)
    if len(ours) < 2 or len(theirs) < 2:
        return None
    parts = [statistics.variance(values.values()) / len(values) for values in (ours, theirs)]
    value = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
    spread = sum(part**2 / (len(v) - 1) for part, v in zip(parts, (ours, theirs), strict=True))
    degrees = sum(parts) ** 2 / spread if spread else len(ours) + len(theirs) - 2
    return Difference(value, math.sqrt(sum(parts)), degrees, is_paired=False)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values with Holm's correction: of n, the k-th smallest is multiplied by n + 1 - k.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = largest
    return corrected
