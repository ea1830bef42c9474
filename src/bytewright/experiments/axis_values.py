"""Expand an axis of a sweep file into its values.

The values are written as a list or as a range:

    { from = 0.0, to = 0.9, step = 0.3 }                0.0, 0.3, 0.6, 0.9
    { from = 1, to = 64, factor = 4 }                   1, 4, 16, 64
    { from = 0.0, to = 1.0, count = 5 }                 0.0, 0.25, 0.5, 0.75, 1.0
    { from = 1e-4, to = 1e-1, count = 7, log = true }   evenly spaced logarithms, to three digits

The ends of a range are exact. Whole values between whole ends are integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bytewright.errors import UsageError, wrong_value

RANGE_KEYS = {"from", "to", "step", "factor", "count", "log"}
MAX_VALUES = 1000
LARGEST = 1e100
LOG_DIGITS = 3
"""Significant digits of the inner values of a log range."""
DIGITS = 12
"""Significant digits of all other inner values: fewer than a float has, so that rounding errors vanish."""


def expand_axis(value: object, key: str, *, allow_repeats: bool = False) -> list[Any]:
    """Return the values of an axis. They must differ, unless `allow_repeats`.

    >>> expand_axis({"from": 1, "to": 64, "factor": 4}, "batch_size")
    [1, 4, 16, 64]
    >>> expand_axis({"from": 1e-4, "to": 1e-1, "count": 4, "log": True}, "lr")
    [0.0001, 0.001, 0.01, 0.1]
    >>> expand_axis([], "lr")
    Traceback (most recent call last):
    bytewright.errors.UsageError: lr has no values; an axis needs at least one
    """
    if isinstance(value, list):
        values = list(value)
    elif is_range(value):
        values = _expand_range(value, key)  # type: ignore[arg-type]
    else:
        expected = "a list of values, or a range such as { from = 1, to = 64, factor = 2 }"
        raise wrong_value(key, expected, value)
    if not values:
        raise UsageError(f"{key} has no values; an axis needs at least one", key=key)
    for number, item in enumerate(values):
        if item in values[:number] and not allow_repeats:
            raise UsageError(f"{key} has the value {item!r} twice", key=key, found=item)
        if isinstance(item, list | dict):
            message = f"the values of {key} must not be lists or tables: {item!r}"
            raise UsageError(message, key=key, found=item)
    return values


def is_range(value: object) -> bool:
    """Return whether a TOML value is a range rather than a table of further keys."""
    return isinstance(value, Mapping) and "from" in value


def _expand_range(fields: Mapping[str, Any], key: str) -> list[float]:
    for name in fields:
        if name not in RANGE_KEYS:
            known = ", ".join(sorted(RANGE_KEYS))
            raise UsageError(f"the range of {key} has the unknown key {name!r}; known are {known}", key=key)
    for name in fields.keys() - {"log"}:
        if type(fields[name]) not in (int, float) or not -LARGEST <= fields[name] <= LARGEST:
            message = f"{name!r} in the range of {key} must be a number, but is {fields[name]!r}"
            raise UsageError(message, key=key, expected="a number", found=fields[name])
    if type(fields.get("log", False)) is not bool:
        message = f"'log' in the range of {key} must be true or false, but is {fields['log']!r}"
        raise UsageError(message, key=key, expected="true or false", found=fields["log"])
    ways = [name for name in ("step", "factor", "count") if name in fields]
    if "to" not in fields or len(ways) != 1:
        message = f"the range of {key} needs 'from', 'to' and one of 'step', 'factor' and 'count'"
        raise UsageError(message, key=key)
    (way,) = ways
    if fields.get("log") and way != "count":
        raise UsageError(f"the range of {key} has 'log', which needs 'count' instead of {way!r}", key=key)
    first, last, by = fields["from"], fields["to"], fields[way]
    if way == "count":
        values = _spaced_evenly(first, last, by, log=bool(fields.get("log")), key=key)
    else:
        values = _stepped(first, last, way, by, key=key)
    whole = type(first) is int and type(last) is int
    return [int(value) if whole and value == int(value) else float(value) for value in values]


def _spaced_evenly(first: float, last: float, count: float, *, log: bool, key: str) -> list[float]:
    if type(count) is not int or not 1 <= count <= MAX_VALUES:
        message = f"'count' in the range of {key} must be an integer from 1 to {MAX_VALUES}"
        raise UsageError(message, key=key, found=count)
    if count == 1 and first != last:
        message = f"the range of {key} from {first} to {last} has at least two values, but 'count' is 1"
        raise UsageError(message, key=key, found=1)
    if log and min(first, last) <= 0:
        raise UsageError(f"the log range of {key} must be above 0, but is from {first} to {last}", key=key)
    shares = [number / (count - 1) for number in range(1, count - 1)]
    if log:
        inner = [_round(first * (last / first) ** share, LOG_DIGITS) for share in shares]
    else:
        inner = [_round_near_zero(first + (last - first) * share, first, last) for share in shares]
    return [first, *inner, last] if count > 1 else [first]


def _stepped(first: float, last: float, way: str, by: float, *, key: str) -> list[float]:
    """Return the values from `first` to `last` by a step or a factor; `last` is included if it is reached."""
    if way == "step":
        length = (last - first) / by if by else -math.inf
    else:
        grows = by > 0 and by != 1 and first > 0 and last > 0
        length = math.log(last / first) / math.log(by) if grows else -math.inf
    name = f"the range of {key} from {first} to {last} by a {way} of {by}"
    if length < -1e-9:
        raise UsageError(f"{name} is empty", key=key)
    if length >= MAX_VALUES:
        raise UsageError(f"{name} has more than {MAX_VALUES:,} values", key=key, expected=MAX_VALUES)
    numbers = range(1, int(length + 1e-9) + 1)
    if way == "step":
        values = [first, *(_round_near_zero(first + by * number, first, last) for number in numbers)]
    else:
        values = [first, *(_round(first * by**number, DIGITS) for number in numbers)]
    return [*values[:-1], last] if numbers and abs(length - numbers[-1]) < 1e-9 else values


def _round_near_zero(value: float, first: float, last: float) -> float:
    """Remove rounding errors, also near zero: 0.3 instead of 0.30000000000000004."""
    return _round(value, DIGITS) if abs(value) > 10.0**-DIGITS * max(abs(first), abs(last)) else 0.0


def _round(value: float, digits: int) -> float:
    """Round to significant digits, except whole numbers: a log range from 1 to 4096 contains 1024."""
    if isinstance(value, int):
        return value
    value = float(f"{value:.{DIGITS}g}")
    return value if value == int(value) else float(f"{value:.{digits}g}")
