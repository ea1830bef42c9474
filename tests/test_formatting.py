"""Durations and sizes use the largest unit that fits, and estimates use the recent speed."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from bytewright.cli import console
from bytewright.demo import pipeline
from bytewright.errors import UsageError
from bytewright.formatting import TimeLeft, format_bytes, format_seconds, parse_bytes
from bytewright.report import compose, tables

UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


@given(st.floats(0, 1e7))
@example(119.7)
@example(59.97)
@example(3599.6)
@example(0.99951)
def test_a_duration_is_accurate_to_half_its_last_digit_and_uses_the_largest_units(
    seconds: float,
) -> None:
    parts = re.findall(r"([\d.]+) (ms|s|min|h)", format_seconds(seconds))
    numbers, units = zip(*[(float(number), unit) for number, unit in parts], strict=True)
    assert sum(number * UNITS[unit] for number, unit in zip(numbers, units, strict=True)) == pytest.approx(
        seconds, abs=max(0.51 * UNITS[units[-1]] * (0.1 if units == ("s",) else 1), 1e-9)
    )
    for number, unit in zip(numbers, units, strict=True):
        assert number < {"ms": 1000, "s": 60, "min": 60, "h": 1e9}[unit]


@pytest.mark.parametrize(
    ("text", "size"), [("1kB", 1000), ("1.5MB", 1_500_000), ("2 GB", 2 * 10**9), ("1KiB", 1024), ("7", 7)]
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_bytes(text, default_unit="B") == size


@pytest.mark.parametrize("text", ["MB", "", "1.2.3MB", "0B", "1e999B", "80XB", "-1MB", "80"])
def test_a_text_that_is_not_a_size_is_rejected(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text, key="--size")
    assert (caught.value.key, caught.value.found) == ("--size", text)


def test_a_size_is_rounded_before_its_unit_is_chosen() -> None:
    assert (format_bytes(999.4), format_bytes(999_960)) == ("999 B", "1.0 MB")


def test_all_modules_format_durations_with_one_function() -> None:
    for module in (pipeline, tables, compose):
        assert module.format_seconds is format_seconds


def test_an_estimate_counts_only_what_was_done_since_its_first_update() -> None:
    time_left = TimeLeft()
    assert time_left(100.0, 250, 1000) == ""  # 250 were done before: nothing is known about the speed
    assert time_left(110.0, 500, 1000) == "about 20 s left"
    assert time_left(130.0, 1000, 1000) == ""
    assert time_left(140.0, 0, 1000) == ""  # the next file of the same kind
    assert time_left(141.0, 100, 1000) == "about 9 s left"


def test_an_estimate_follows_a_change_of_the_speed() -> None:
    time_left = TimeLeft()
    for second in range(101):  # 1 per second
        words = time_left(second, second, 300)
    assert words == "about 3 min 20 s left"
    for tick in range(200):  # 10 per second
        words = time_left(100 + tick / 10, 100 + tick / 10 * 0.1, 300)
    assert words == "about 33 min 0 s left"
    assert len(time_left._updates) < 150


def test_an_estimate_of_rare_updates_includes_several_of_them() -> None:
    time_left = TimeLeft()
    seconds = [0, 60, 120, 300, 360, 420]  # one pause
    assert time_left(0, 0, 10) == ""
    for done, second in enumerate(seconds[1:], start=1):
        words = time_left(second, done, 10)
    assert words == "about 7 min 30 s left"


def test_progress_lines_estimate_the_remaining_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, clock = io.StringIO(), iter([0.0, 2.0, 8.0, 14.0])
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    compose = console._plain_lines(Console(file=out, width=200))
    for done in (25, 50, 75):
        compose("encode", done, 100, "tokens")
    assert out.getvalue().splitlines() == [
        "encode: 25% (25 of 100 tokens)",
        "encode: 50% (50 of 100 tokens), about 12 s left",
        "encode: 75% (75 of 100 tokens), about 6 s left",
    ]
