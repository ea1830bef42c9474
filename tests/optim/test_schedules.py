"""Every schedule has the stated rates, also at its boundaries."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytewright.optim.schedules import constant_schedule, cosine_schedule, linear_schedule, wsd_schedule
from bytewright.train.config import ScheduleConfig, ScheduleKind


def test_the_cosine_schedule_is_the_textbook_s() -> None:
    def textbook(t: int) -> float:
        if t < 7:
            return t / 7 * 1.0
        if t <= 21:
            return 0.1 + 0.5 * (1 + math.cos((t - 7) / (21 - 7) * math.pi)) * (1.0 - 0.1)
        return 0.1

    for t in range(30):
        assert cosine_schedule(t, 1.0, 0.1, 7, 21) == pytest.approx(textbook(t), abs=1e-15)


@pytest.mark.parametrize("schedule", [cosine_schedule, linear_schedule])
def test_no_warm_up_starts_at_the_peak(schedule: object) -> None:
    assert callable(schedule)
    assert schedule(0, 1.0, 0.1, 0, 10) == 1.0
    assert schedule(10, 1.0, 0.1, 0, 10) == pytest.approx(0.1)


@pytest.mark.parametrize("schedule", [cosine_schedule, linear_schedule])
def test_a_warm_up_as_long_as_the_run_ends_at_the_peak(schedule: object) -> None:
    assert callable(schedule)
    assert schedule(9, 1.0, 0.1, 10, 10) == pytest.approx(0.9)
    assert schedule(10, 1.0, 0.1, 10, 10) == 1.0
    assert schedule(11, 1.0, 0.1, 10, 10) == pytest.approx(0.1)


def test_wsd_stays_at_the_peak_until_its_decay() -> None:
    rates = [wsd_schedule(t, 1.0, 0.0, 5, 100, 20) for t in range(101)]
    assert rates[:6] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert set(rates[5:81]) == {1.0}
    assert rates[90] == pytest.approx(0.5)
    assert rates[100] == 0.0


def test_a_wsd_decay_longer_than_the_run_starts_after_the_warm_up() -> None:
    assert wsd_schedule(5, 1.0, 0.0, 5, 10, 50) == 1.0
    assert wsd_schedule(10, 1.0, 0.0, 5, 10, 50) == 0.0


@given(
    kind=st.sampled_from(["cosine", "linear", "wsd", "constant"]),
    warmup=st.integers(0, 50),
    length=st.integers(1, 100),
    final=st.floats(0, 1),
    decay=st.floats(0, 1),
)
def test_the_factor_stays_between_0_and_1_and_never_rises_after_the_warm_up(
    kind: ScheduleKind, warmup: int, length: int, final: float, decay: float
) -> None:
    config = ScheduleConfig(kind=kind, warmup=warmup, final=final, decay=decay)
    factors = [config.factor(t, length) for t in range(length + 5)]
    assert all(-1e-12 <= factor <= 1 + 1e-12 for factor in factors)
    after = factors[warmup:]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(after))


def test_an_unknown_length_only_warms_up() -> None:
    config = ScheduleConfig(kind="cosine", warmup=4)
    assert [config.factor(t, None) for t in (1, 4, 1000)] == [
        constant_schedule(t, 1.0, 4) for t in (1, 4, 1000)
    ]
