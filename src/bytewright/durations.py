"""Durations as people say them: the one place that knows how many seconds are a minute.

A figure is rounded before it is cut into units, so that no part of it ever reads "60". Imports nothing, so
that every package, and a command that must start at once, can use it.
"""

from __future__ import annotations


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
