"""The values of an axis: a list as it is, or a range spelled out.

    [1, 2, 4]                                     these
    { from = 0.0, to = 0.9, step = 0.3 }          0.0, 0.3, 0.6, 0.9
    { from = 1, to = 64, factor = 4 }             1, 4, 16, 64
    { from = 0.0, to = 1.0, count = 5 }           0.0, 0.25, 0.5, 0.75, 1.0
    { from = 1e-4, to = 1e-1, count = 7, log = true }   evenly spaced logarithms, to three digits

The ends are what is written, whatever their digits, and between whole ends what is whole stays whole. A range
that is empty, endless or contradicts itself is refused in one sentence.
Knows nothing of what the values set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bytewright.errors import UsageError

KEYS = {"from", "to", "step", "factor", "count", "log"}
MAX_VALUES = 1000
LARGEST = 1e100
LOG_DIGITS = 3
"""Significant digits between the ends of a log range, where nobody meant the others."""
DIGITS = 12
"""Significant digits of all other values: more than anybody writes, and less than floating point has."""


def is_range(value: object) -> bool:
    """Say whether a TOML value is meant as a range rather than as a table of further keys."""
    return isinstance(value, Mapping) and "from" in value


def expand(value: object, place: str, *, repeated: bool = False) -> list[Any]:
    """Spell out the values of one axis; `place` names it in an error. Values differ, unless `repeated`.

    >>> expand({"from": 1, "to": 64, "factor": 4}, "batch_size")
    [1, 4, 16, 64]
    >>> expand({"from": 1e-4, "to": 1e-1, "count": 4, "log": True}, "lr")
    [0.0001, 0.001, 0.01, 0.1]
    >>> expand([], "lr")
    Traceback (most recent call last):
    bytewright.errors.UsageError: lr has no values; an axis needs at least one
    """
    if isinstance(value, list):
        values = list(value)
    elif is_range(value):
        values = _expand_range(value, place)  # type: ignore[arg-type]
    else:
        raise UsageError(
            f"{place} must be a list of values, or a range such as {{ from = 1, to = 64, factor = 2 }},"
            f" but is {value!r}"
        )
    if not values:
        raise UsageError(f"{place} has no values; an axis needs at least one")
    for number, item in enumerate(values):
        if item in values[:number] and not repeated:
            raise UsageError(f"{place} has the value {item!r} twice")
        if isinstance(item, list | dict):
            raise UsageError(f"{place} must hold plain values, but holds {item!r}")
    return values


def _expand_range(fields: Mapping[str, Any], place: str) -> list[float]:
    for key in fields:
        if key not in KEYS:
            raise UsageError(f"{place} has a range with {key!r}; a range has {', '.join(sorted(KEYS))}")
    for key in fields.keys() - {"log"}:
        if type(fields[key]) not in (int, float) or not -LARGEST <= fields[key] <= LARGEST:
            raise UsageError(f"{place}: {key!r} of a range must be a number, but is {fields[key]!r}")
    ways = [key for key in ("step", "factor", "count") if key in fields]
    if "to" not in fields or len(ways) != 1:
        raise UsageError(
            f"{place} has a range that needs 'from', 'to' and one of 'step', 'factor' and 'count'"
        )
    (way,) = ways
    if fields.get("log") and way != "count":
        raise UsageError(f"{place}: a range with 'log' needs a 'count'; 'factor' is a log range of its own")
    first, last, log = fields["from"], fields["to"], bool(fields.get("log"))
    values = _walk(first, last, way, fields[way], log=log, place=place)
    whole = type(first) is int and type(last) is int
    return [int(value) if whole and value == int(value) else float(value) for value in values]


def _walk(first: float, last: float, way: str, by: float, *, log: bool, place: str) -> list[float]:
    if way == "count":
        if type(by) is not int or not 1 <= by <= MAX_VALUES:
            raise UsageError(f"{place}: the count of a range must be a whole number from 1 to {MAX_VALUES}")
        if by == 1 and first != last:
            raise UsageError(f"{place}: a range from {first} to {last} has at least its ends, but count is 1")
        if log and min(first, last) <= 0:
            raise UsageError(f"{place}: a log range must lie above 0, but goes from {first} to {last}")
        shares = [number / (by - 1) for number in range(1, by - 1)]
        if log:
            inner = [_rounded(first * (last / first) ** share, LOG_DIGITS) for share in shares]
        else:
            inner = [_cleaned(first + (last - first) * share, first, last) for share in shares]
        return [first, *inner, last] if by > 1 else [first]
    if way == "step":
        length = (last - first) / by if by else -math.inf
    else:
        grows = by > 0 and by != 1 and first > 0 and last > 0
        length = math.log(last / first) / math.log(by) if grows else -math.inf
    if length < -1e-9:
        raise UsageError(f"{place}: no range leads from {first} to {last} by a {way} of {by}")
    if length >= MAX_VALUES:
        raise UsageError(
            f"{place}: a range from {first} to {last} by a {way} of {by} has more than {MAX_VALUES:,} values"
        )
    numbers = range(1, int(length + 1e-9) + 1)
    if way == "step":
        values = [first, *(_cleaned(first + by * number, first, last) for number in numbers)]
    else:
        values = [first, *(_rounded(first * by**number, DIGITS) for number in numbers)]
    return [*values[:-1], last] if numbers and abs(length - numbers[-1]) < 1e-9 else values


def _cleaned(value: float, first: float, last: float) -> float:
    """Take off what floating point has added, also to a nought: 0.3, not 0.30000000000000004."""
    return _rounded(value, DIGITS) if abs(value) > 10.0**-DIGITS * max(abs(first), abs(last)) else 0.0


def _rounded(value: float, digits: int) -> float:
    """Round to so many digits, but leave whole numbers: 1024 is meant in a range from 1 to 4096."""
    if isinstance(value, int):
        return value
    value = float(f"{value:.{DIGITS}g}")
    return value if value == int(value) else float(f"{value:.{digits}g}")
