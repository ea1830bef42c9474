"""Durations in words, and estimates of the time left.

A figure is rounded before it is split into units, so that no part of it ever reads "60". Every package can
use this module: it imports nothing of Bytewright.
"""

from __future__ import annotations

import math


def format_seconds(seconds: float) -> str:
    """Write a duration in the largest unit that fits; whole seconds without a decimal.

    >>> format_seconds(0.0042), format_seconds(12.34), format_seconds(8), format_seconds(95)
    ('4 ms', '12.3 s', '8 s', '1 min 35 s')
    >>> format_seconds(59.96), format_seconds(119.7), format_seconds(3599.7), format_seconds(7300)
    ('1 min 0 s', '2 min 0 s', '1 h 0 min', '2 h 2 min')
    """
    if seconds < 0.9995:  # what would be rounded to 1000 ms is a second, and so on
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.0f} s" if seconds == round(seconds) else f"{seconds:.1f} s"
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest} min"


class TimeLeft:
    """Estimates how long the rest of some work takes, from the speed since the first update.

    The first update only sets the origin, so that neither work done before it nor time spent on preparation
    (compiling, for example) distorts the estimate. Work that starts again at a lower amount sets a new one.

    >>> time_left = TimeLeft()
    >>> [time_left(seconds, done, 100) for seconds, done in [(3.0, 25), (5.0, 50), (9.0, 100)]]
    ['', 'about 4 s left', '']
    """

    def __init__(self) -> None:
        self._origin = 0.0, math.inf
        self._last = math.inf

    def __call__(self, seconds: float, done: float, total: float) -> str:
        """Return the estimate in words, or "" if the speed is unknown or less than a second is left."""
        if done < self._last:
            self._origin = seconds, done
        (since, before), self._last = self._origin, done
        if done == before:
            return ""
        left = round((seconds - since) * (total - done) / (done - before))
        return f"about {format_seconds(left)} left" if left >= 1 else ""
