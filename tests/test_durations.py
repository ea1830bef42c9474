"""Durations read as people say them, and no part of one is ever a whole larger unit."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bytewright.cli import console
from bytewright.demo import display, show
from bytewright.durations import format_seconds
from bytewright.lab import report, tables

UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


@given(st.floats(0, 1e7))
@example(119.7)
@example(59.97)
@example(3599.6)
@example(0.99951)
def test_a_duration_is_right_to_half_its_last_digit_and_no_part_of_it_is_a_larger_unit(
    seconds: float,
) -> None:
    parts = re.findall(r"([\d.]+) (ms|s|min|h)", format_seconds(seconds))
    numbers, units = zip(*[(float(number), unit) for number, unit in parts], strict=True)
    assert sum(number * UNITS[unit] for number, unit in zip(numbers, units, strict=True)) == pytest.approx(
        seconds, abs=max(0.51 * UNITS[units[-1]] * (0.1 if units == ("s",) else 1), 1e-9)
    )
    for number, unit in zip(numbers, units, strict=True):
        assert number < {"ms": 1000, "s": 60, "min": 60, "h": 1e9}[unit]


def test_all_who_tell_durations_tell_them_alike() -> None:
    for module in (console, display, show, tables, report):
        assert module.format_seconds is format_seconds
