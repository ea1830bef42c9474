"""Every schedule has the stated rates, also at its boundaries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytewright.errors import UsageError
from bytewright.optim.schedules import (
    constant_schedule,
    cosine_schedule,
    lengthenable,
    linear_schedule,
    wsd_schedule,
)
from bytewright.registry import schedules
from bytewright.storage.config_reader import build
from bytewright.train.config import ScheduleConfig


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
    kind=st.sampled_from(schedules.names()),
    warmup=st.integers(0, 50),
    length=st.integers(1, 100),
    final=st.floats(0, 1),
    decay=st.floats(0, 1),
)
def test_the_factor_stays_between_0_and_1_and_never_rises_after_the_warm_up(
    kind: str, warmup: int, length: int, final: float, decay: float
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


@pytest.fixture
def inverse_root() -> Iterator[str]:
    @schedules.register("inverse_root")
    @lengthenable
    def schedule(t: float, warmup: int, *, power: float = 0.5) -> float:
        return float(min(t / max(warmup, 1), (max(warmup, 1) / t) ** power))

    yield "inverse_root"
    schedules.remove("inverse_root")


def test_a_registered_schedule_receives_the_settings_and_options_that_it_has_as_parameters(
    inverse_root: str,
) -> None:
    config = ScheduleConfig(kind=inverse_root, warmup=4, options={"power": 1})
    assert [config.factor(t, 100) for t in (1, 4, 8)] == [0.25, 1.0, 0.5]
    assert ScheduleConfig(kind=inverse_root, warmup=4).factor(16, 100) == 0.5
    assert config.is_lengthenable
    fields = {"kind": inverse_root, "warmup": 4, "options": {"power": 1}}
    assert build(ScheduleConfig, fields, source="lab.toml") == config


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"kind": "inverse_roots"}, "schedule.kind"),
        ({"kind": "inverse_root", "options": {"pwer": 1}}, "schedule.options.pwer"),
        ({"kind": "inverse_root", "options": {"power": "1"}}, "schedule.options.power"),
        ({"kind": "inverse_root", "options": 1}, "schedule.options"),
        ({"kind": "cosine", "options": {"power": 1}}, "schedule.options.power"),
        ({"kind": "cosine", "options": {"warmup": 1}}, "schedule.options.warmup"),
    ],
)
def test_an_unknown_schedule_or_option_is_rejected_with_its_key(
    inverse_root: str, fields: dict[str, object], key: str
) -> None:
    with pytest.raises(UsageError) as rejection:
        build(ScheduleConfig, fields, source="lab.toml", path="schedule.")
    assert (rejection.value.path, rejection.value.key) == (Path("lab.toml"), key)


def test_a_rate_that_is_not_a_finite_number_is_rejected() -> None:
    schedules.register("broken")(lambda t: 1 - t)
    try:
        with pytest.raises(UsageError) as rejection:
            ScheduleConfig(kind="broken").factor(3, 10)
    finally:
        schedules.remove("broken")
    assert rejection.value.found == -2


def test_only_schedules_whose_rates_do_not_depend_on_the_length_are_lengthenable() -> None:
    """Up to a decay over a fraction of the run at its end."""
    for kind in schedules:
        config = ScheduleConfig(kind=kind, warmup=3)
        same = [config.factor(t, 100) == config.factor(t, 200) for t in range(1, 80)]
        assert config.is_lengthenable == all(same), kind
