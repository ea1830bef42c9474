"""Durations, sizes and counts as text, the types of progress callbacks, and estimates of the remaining time.

Numbers are rounded before a unit is chosen, so that no part ever reads "60 s" or "1000 MB". GB is 10⁹ bytes
and GiB is 2³⁰ bytes: the two readings of "80 GB" differ by 7 %, so units are always written out.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Sequence

from bytewright.errors import UsageError

PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")
UNITS: dict[str, int] = {f"{prefix}b".lower(): 1000**power for power, prefix in enumerate(PREFIXES[:6])}
UNITS |= {f"{prefix}ib".lower(): 1024**power for power, prefix in enumerate(PREFIXES[:6]) if prefix}
"""The number of bytes of each unit, in lower case: b, kb, mb, ..., kib, mib, ..."""

Progress = Callable[[int, int], object]
"""Called with the amount of work done and the total."""
PhaseProgress = Callable[[str, int, int, str], None]
"""Called with the name of a phase, the amount done, the total, and the unit, which may be "bytes"."""


def format_seconds(seconds: float) -> str:
    """Return a duration in the largest unit that fits; whole seconds have no decimal.

    >>> format_seconds(0.0042), format_seconds(12.34), format_seconds(8), format_seconds(95)
    ('4 ms', '12.3 s', '8 s', '1 min 35 s')
    >>> format_seconds(59.96), format_seconds(119.7), format_seconds(3599.7), format_seconds(7300)
    ('1 min 0 s', '2 min 0 s', '1 h 0 min', '2 h 2 min')
    """
    if seconds < 0.9995:  # larger values would be rounded to 1000 ms
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.0f} s" if seconds == round(seconds) else f"{seconds:.1f} s"
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest} min"


class TimeLeft:
    """Estimates the remaining time of some work from its recent speed.

    The speed is that of the last tenth of the time, but at least of `LEAST_SECONDS` and of `LEAST_UPDATES`
    updates, so that a change of the speed soon shows, and single pauses change little. The first update only
    sets the origin, so that neither work done before it nor time spent on preparation (compiling, for
    example) distorts the estimate. Work that restarts at a lower amount sets a new origin.

    >>> time_left = TimeLeft()
    >>> [time_left(seconds, done, 100) for seconds, done in [(3.0, 25), (5.0, 50), (9.0, 100)]]
    ['', 'about 4 s left', '']
    """

    RECENT_SHARE, LEAST_SECONDS, LEAST_UPDATES = 0.1, 15.0, 4

    def __init__(self) -> None:
        self._updates: deque[tuple[float, float]] = deque()
        self._origin = 0.0
        self._last = math.inf

    def __call__(self, seconds: float, done: float, total: float) -> str:
        """Return the estimate in words, or "" if the speed is unknown or less than a second is left."""
        if done < self._last:
            self._updates.clear()
            self._origin = seconds
        self._last = done
        recent = max(self.LEAST_SECONDS, self.RECENT_SHARE * (seconds - self._origin))
        while len(self._updates) > self.LEAST_UPDATES and self._updates[1][0] <= seconds - recent:
            self._updates.popleft()
        since, before = self._updates[0] if self._updates else (seconds, done)
        # Some work is updated thousands of times per second: a hundred updates are enough.
        if not self._updates or seconds - self._updates[-1][0] >= recent / 100:
            self._updates.append((seconds, done))
        if done == before:
            return ""
        left = round((seconds - since) * (total - done) / (done - before))
        return f"about {format_seconds(left)} left" if left >= 1 else ""


def format_bytes(num_bytes: float) -> str:
    """Return a size in decimal units.

    >>> format_bytes(512), format_bytes(6_100_000), format_bytes(825e9)
    ('512 B', '6.1 MB', '825.0 GB')
    """
    if abs(num_bytes) < 1000:
        return f"{num_bytes:.0f} B"
    value, power = _scale(num_bytes, 1000, ".1f", max_power=4)
    return f"{value:.1f} {PREFIXES[power]}B"


def format_size(num_bytes: float) -> str:
    """Return a size in decimal and in binary units.

    >>> format_size(34_032_921_600), format_size(1000)
    ('34.03 GB (31.70 GiB)', '1000 B')
    """
    if abs(num_bytes) < 1024:
        return f"{num_bytes:.0f} B"
    (value, power), (binary, binary_power) = (_scale(num_bytes, base, ".2f") for base in (1000, 1024))
    prefix = f"{PREFIXES[binary_power].upper()}i" if binary_power else ""
    return f"{value:.2f} {PREFIXES[power]}B ({binary:.2f} {prefix}B)"


def format_memory(num_bytes: float) -> str:
    """Return a size in MB, or in GB from 1,000 MB on.

    >>> format_memory(2.5e9), format_memory(999_600_000)
    ('2.50 GB', '1.00 GB')
    """
    num_megabytes = round(num_bytes / 1e6)
    return f"{num_bytes / 1e9:.2f} GB" if num_megabytes >= 1000 else f"{num_megabytes} MB"


def parse_bytes(text: str, *, default_unit: str = "", key: str | None = None) -> float:
    """Return the number of bytes that a size such as 80GB means; `key` names it in the error.

    >>> parse_bytes("80GB"), parse_bytes("1.5 GiB"), parse_bytes("800", default_unit="B")
    (80000000000.0, 1610612736.0, 800.0)
    >>> parse_bytes("80")
    Traceback (most recent call last):
    bytewright.errors.UsageError: '80' is not a size; write a number and a unit: 80GB (10⁹) or 80GiB (2³⁰)
    """
    if match := re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([A-Za-z]*)\s*", text):
        try:
            size = float(match[1]) * UNITS[(match[2] or default_unit).lower()]
        except (ValueError, KeyError):
            size = math.nan
        if 0 < size < math.inf:
            return size
    sentence = f"{text!r} is not a size; write a number and a unit: 80GB (10⁹) or 80GiB (2³⁰)"
    raise UsageError(f"{key} {sentence}" if key else sentence, key=key, found=text)


def format_count(number: float, unit: str = "") -> str:
    """Return a number with four digits and the prefix of its magnitude.

    >>> format_count(4_513_336_524_800, "FLOP"), format_count(2_127_057_600), format_count(999_960)
    ('4.513 TFLOP', '2.127 G', '1 M')
    """
    value, power = _scale(number, 1000, ".4g")
    digits = f"{value:.4g}" if abs(value) < 1000 else f"{value:.4e}"
    return f"{digits} {PREFIXES[power]}{unit}".strip()


def format_number(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number of things; the plural of the noun ends in s unless it is given.

    >>> format_number(1, "story", "stories"), format_number(2000, "document")
    ('1 story', '2,000 documents')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def format_count_short(number: float) -> str:
    """Return a number for a narrow place: one decimal and a prefix from 10,000 on.

    >>> format_count_short(327_680_000), format_count_short(999_960), format_count_short(1234)
    ('327.7M', '1.0M', '1,234')
    """
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        value = round(number / size, 1)
        if value >= (10 if prefix == "k" else 1):
            return f"{value:.1f}{prefix}"
    return f"{number:,.0f}"


def format_decimals(value: float, num_digits: int) -> str:
    """Format a value of at least 0 with decimals; one that would be rounded to 0 is shown as a bound.

    >>> [format_decimals(value, 4) for value in (0.25, 0.00006, 0.00004, 0.0)]
    ['0.2500', '0.0001', '<0.0001', '0']
    """
    shown = f"{value:.{num_digits}f}"
    if value == 0:
        return "0"
    return f"<{10**-num_digits:.{num_digits}f}" if float(shown) == 0 else shown


def format_names(names: Sequence[str], limit: int = 5) -> str:
    """Return the first names of a list, separated by commas.

    >>> format_names(["a", "b"]), format_names(["a", "b", "c"], limit=2)
    ('a, b', 'a, b, …')
    """
    return ", ".join([*names[:limit], *(["…"] if len(names) > limit else [])])


def format_scientific(value: float, digits: int) -> str:
    """Return a number with up to `digits` significant digits and an exponent.

    >>> format_scientific(0.0003, 3), format_scientific(0.00012345, 3)
    ('3e-4', '1.23e-4')
    """
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


def _scale(number: float, base: int, digits: str, max_power: int = len(PREFIXES) - 1) -> tuple[float, int]:
    """Return a number in the largest unit whose rounded value is at least 1, and the power of that unit."""
    power = 0
    while abs(float(f"{number:{digits}}")) >= base and power < max_power:
        number, power = number / base, power + 1
    return number, power
