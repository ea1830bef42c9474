"""From values to places on paper: linear and logarithmic scales, where their ticks stand, and their wording.

A scale maps a range of values to a range of pixels. Ticks are round numbers of the kind that a person would
have chosen: 1, 2 or 5 times a power of ten. Knows nothing of SVG or of what the values mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
MISSING = "\N{EN DASH}"
"""What stands where there is no value."""


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` onto pixels from `start` to `end`.

    >>> Scale(1, 100, 0, 200, log=True)(10)
    100.0
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Give the place of a value; one that the scale cannot hold (0 on a log scale) lies at its start."""
        if self.log:
            value = max(value, math.ulp(0.0))
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def holds(self, value: float) -> bool:
        """Say whether the value lies on the scale; a millionth beyond its ends still does."""
        slack = 1e-6 * abs(self.end - self.start)
        first, last = sorted((self.start, self.end))
        return (value > 0 or not self.log) and first - slack <= self(value) <= last + slack


def fit_limits(values: Sequence[float], *, log: bool, margin: float = 0.04) -> tuple[float, float]:
    """Choose the ends of a scale that shows all values, with a little air around them.

    >>> fit_limits([2.0, 4.0], log=False, margin=0.5)
    (1.0, 5.0)
    """
    usable = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not usable:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(usable), max(usable)
    if log:
        air = (high / low) ** margin if high > low else 2.0
        return low / air, high * air
    air = (high - low) * margin if high > low else (abs(high) * 0.1 or 1.0)
    return low - air, high + air


def choose_ticks(low: float, high: float, *, log: bool, target: int = 6) -> list[float]:
    """Choose about `target` round values between `low` and `high`.

    >>> choose_ticks(0.0, 1.0, log=False)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> choose_ticks(1e-5, 1e-1, log=True)
    [1e-05, 0.0001, 0.001, 0.01, 0.1]
    >>> choose_ticks(1.0, 100.0, log=True)
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    """
    if not log or high / low < 4:
        return _linear_ticks(low, high, target)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for mantissas in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{m}e{power}") for power in range(first, last + 1) for m in mantissas]
        within = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(within) <= target + 1:
            break
    return within[:: -(-len(within) // (target + 1))] if within else _linear_ticks(low, high, target)


def _linear_ticks(low: float, high: float, target: int) -> list[float]:
    """Multiples of the round step that comes nearest to the wanted number of ticks."""
    rough = (high - low) / target
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((1, 2, 5, 10), key=lambda mantissa: abs(math.log(mantissa * power / rough))) * power
    decimals = max(0, -math.floor(math.log10(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = (round(number * step, decimals) + 0.0 for number in range(first, last + 1))  # + 0.0: no -0.0
    return sorted(set(ticks))  # where the ends are neighbours as floats go, several come to the same


def format_ticks(ticks: Sequence[float]) -> list[str]:
    """Word the ticks of one axis alike: as many decimals as they need, large ones with a prefix.

    >>> format_ticks([0.0, 0.5, 1.0]), format_ticks([0.0, 2e7, 4e7]), format_ticks([1e-4, 1e-3])
    (['0.0', '0.5', '1.0'], ['0', '20M', '40M'], ['1e-4', '1e-3'])
    >>> format_ticks([1, 32, 1024, 32768]), format_ticks([5e5, 1e6, 1.5e6])
    (['1', '32', '1024', '32,768'], ['0.5M', '1M', '1.5M'])
    """
    sizes = [abs(tick) for tick in ticks if tick]
    if not sizes:
        return ["0" for _ in ticks]
    if min(sizes) < 1e-3:
        return [_scientific(tick, 4) if 0 < abs(tick) < 0.01 else format_value(tick) for tick in ticks]
    if all(size == int(size) for size in sizes) and (
        max(sizes) < 10_000 or any(size >= 1000 and size % 100 for size in sizes)
    ):
        return [format_value(tick) for tick in ticks]
    if max(sizes) >= 1000 * min(sizes):
        return [_prefixed(tick) for tick in ticks]
    for size, prefix in PREFIXES:
        if max(sizes) >= 10 * size or (max(sizes) >= size and all(s % (size / 10) == 0 for s in sizes)):
            return [_plain(tick / size) + prefix if tick else "0" for tick in ticks]
    if max(sizes) / min(sizes) >= 50:
        return [_plain(tick) for tick in ticks]
    decimals = max(len(_plain(tick).partition(".")[2]) for tick in ticks)
    return [f"{tick:.{decimals}f}" for tick in ticks]


def format_value(value: float, digits: int = 4) -> str:
    """Word one value on its own, to so many significant digits.

    >>> [format_value(v) for v in (3e-4, 0.0123456, 1.4532, 27.0, 12345.6, 327_680_000)]
    ['3e-4', '0.01235', '1.453', '27', '12,346', '327,680,000']
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return MISSING if math.isnan(value) else "∞" if value > 0 else "-∞"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return _scientific(value, digits)
    return _plain(float(f"{value:.{digits}g}"))


def _prefixed(value: float) -> str:
    for size, prefix in PREFIXES:
        if abs(value) >= size:
            return _plain(value / size) + prefix
    return _plain(value)


def _scientific(value: float, digits: int) -> str:
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


def _plain(value: float) -> str:
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    return text if text not in ("-0", "") else "0"
