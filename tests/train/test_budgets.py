"""A run ends at its budget of steps, tokens or minutes, and plans its steps to fit the minutes."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from bytewright.errors import UsageError
from bytewright.optim.schedules import schedule_position
from bytewright.storage.config_reader import build
from bytewright.train import resume, train
from bytewright.train.checkpoint import CheckpointFolder
from bytewright.train.config import ScheduleConfig
from bytewright.train.evaluate import EvaluationSet
from bytewright.train.metrics_log import MetricsLog, read_metrics
from bytewright.train.session.loop import Trainer
from bytewright.train.session.recorder import Recorder, StepPlanner, TrainState
from bytewright.train.step import StepResult, TrainStep
from rejection import rejects
from runs import digest, make_config, make_ids

Seconds = Callable[[int], float]


@dataclass
class Clock:
    """A clock that only steps and evaluations advance."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def half_a_second(_: int) -> float:
    return 0.5


def no_time(_: int) -> float:
    return 0.0


@dataclass(frozen=True)
class Planned:
    """What a simulated run did: the fraction of the peak rate of each step, and its plan."""

    rates: list[float]
    plan: list[list[int]]
    seconds: float
    waits: list[int]

    @property
    def is_finished(self) -> bool:
        return len(self.rates) == self.plan[-1][1]


def simulate(
    folder: Path, per_step: Seconds = half_a_second, per_evaluation: Seconds = no_time, **changes: Any
) -> Planned:
    """Plan a run whose nth step and nth evaluated batch take so many seconds, without training a model.

    The first two of the batches are those that the planner measures.
    """
    config = make_config(folder, **{"eval_every": 1000, "save_every": 1000} | changes)
    clock, progress, num_evaluations = Clock(), TrainState(), itertools.count(1)
    rates: list[float] = []
    waits: list[int] = []

    def measure(_ids: Tensor, _targets: Tensor) -> Tensor:
        clock.now += per_evaluation(next(num_evaluations))
        return torch.zeros(())

    class CountingRecorder(Recorder):
        def process_results(self) -> None:
            waits.append(self.progress.step)

    recorder = CountingRecorder(
        progress,
        MetricsLog(folder / "metrics.jsonl"),
        windows_of=lambda _: [],
        tokens_per_step=config.tokens_per_step,
        max_refused=1,
        utilisation=lambda speed: speed,
        peak_memory=lambda: None,
        clock=clock,
    )
    validation = EvaluationSet(make_ids(200), "cpu", context_length=8, batch_size=8, max_tokens=64)
    planner = StepPlanner(config, recorder, validation, measure)
    limit = 60 * (config.budget.minutes or 0)
    while clock.now < limit and progress.step != progress.num_steps:
        rates.append(config.schedule.planned_factor(progress.step + 1, progress.plan))
        progress.step += 1
        clock.now += per_step(progress.step)
        planner.check(progress.step)
        if progress.step % config.eval_every == 0 or progress.step == progress.num_steps:
            with recorder.untimed():
                validation.evaluate(measure)
    recorder.log.close()
    return Planned(rates, progress.plan, clock.now, waits)


MakeClock = Callable[..., Clock]


@pytest.fixture
def make_clock(monkeypatch: pytest.MonkeyPatch) -> MakeClock:
    """Make a clock for a real run, which its nth step advances by `per_step(n)`."""
    step = TrainStep.__call__

    def make(per_step: Seconds = half_a_second) -> Clock:
        clock, num_taken = Clock(), itertools.count(1)

        def timed_step(self: TrainStep, *args: Any) -> StepResult:
            clock.now += per_step(next(num_taken))
            return step(self, *args)

        monkeypatch.setattr(TrainStep, "__call__", timed_step)
        return clock

    return make


def lines(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run / "metrics.jsonl") if "event" not in record]


def events(run: Path) -> list[dict[str, Any]]:
    """The events of a run, without that of its end."""
    records = read_metrics(run / "metrics.jsonl")
    return [record for record in records if record.get("event", "ended") != "ended"]


def minutes(minutes: float) -> dict[str, Any]:
    return {"steps": None, "minutes": minutes}


def test_a_budget_of_tokens_ends_at_the_next_whole_batch(tmp_path: Path, quiet: Console) -> None:
    config = make_config(tmp_path, budget={"steps": None, "tokens": 100})
    assert train(config, tmp_path / "run", console=quiet).step == 4  # 32 tokens a step


def test_a_budget_of_minutes_alone_plans_its_steps_and_decays_to_the_end(
    tmp_path: Path, quiet: Console, make_clock: MakeClock
) -> None:
    config = make_config(tmp_path, budget=minutes(0.25), log_every=1)
    result = train(config, tmp_path / "run", console=quiet, clock=make_clock())
    assert result.step == 29  # half a second each, and one step in reserve
    rates = [record["lr"] for record in lines(tmp_path / "run")]
    assert max(rates) == pytest.approx(0.01, rel=0.01)
    assert rates[-1] == pytest.approx(0.001)
    assert events(tmp_path / "run") == [
        {"step": 5, "event": "planned_steps", "num_steps": 29, "before": None}
    ]


def test_a_run_that_measures_its_speed_seldom_waits_for_the_device(tmp_path: Path) -> None:
    """Waiting after every step would slow the steps down, and the run would plan too few of them."""
    planned = simulate(tmp_path, lambda _: 0.05, budget=minutes(0.1))
    # 8 steps after the third are more than a twentieth of the time.
    assert planned.waits[0] == 3
    assert sorted({step for step in planned.waits if step < 12}) == [3, 4, 5, 7, 11]
    assert len(set(planned.waits)) < 45 < len(planned.rates) / 2


def test_first_steps_that_compile_do_not_make_a_run_of_minutes_plan_too_few(tmp_path: Path) -> None:
    planned = simulate(tmp_path, lambda n: {1: 20.0, 2: 3.0}.get(n, 0.5), budget=minutes(2.0))
    assert len(planned.rates) == 191  # 196 would fit exactly


def test_the_first_evaluation_which_compiles_does_not_make_it_plan_too_few(tmp_path: Path) -> None:
    planned = simulate(
        tmp_path, half_a_second, lambda n: 20.0 if n == 1 else 0.0, budget=minutes(2.0), eval_every=4
    )
    assert len(planned.rates) == 195  # 200 would fit exactly


@pytest.mark.parametrize("eval_every", [4, 20, 500])
def test_a_run_of_minutes_has_time_for_its_evaluations_whether_one_was_seen_or_not(
    tmp_path: Path, eval_every: int
) -> None:
    planned = simulate(
        tmp_path, half_a_second, lambda _: 1.0, budget=minutes(2.0), eval_every=eval_every, save_every=500
    )
    assert planned.is_finished
    assert planned.rates[-1] == pytest.approx(0.1)
    assert 114 < planned.seconds < 120


def slower_half_way(n: int) -> float:
    return 0.5 if n <= 120 else 1.0


def much_slower_at_the_end(n: int) -> float:
    return 0.5 if n <= 220 else 2.0


def faster_half_way(n: int) -> float:
    return 1.0 if n <= 60 else 0.5


def paused(n: int) -> float:
    return 40.0 if n == 100 else 0.5


def paused_early(n: int) -> float:
    return 70.0 if n == 20 else 0.5


def paused_late(n: int) -> float:
    return 4.0 if n == 230 else 0.5


@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd"])
@pytest.mark.parametrize(
    "per_step",
    [slower_half_way, much_slower_at_the_end, faster_half_way, paused, paused_early, paused_late],
)
def test_a_run_whose_speed_changes_finishes_its_schedule_in_time(
    tmp_path: Path, per_step: Seconds, kind: str
) -> None:
    planned = simulate(tmp_path, per_step, budget=minutes(2.0), schedule={"kind": kind})
    assert planned.is_finished
    assert planned.rates[-1] == pytest.approx(0.1)
    assert 114 < planned.seconds <= 120  # at most a twentieth is unused
    falls = [before - after for before, after in itertools.pairwise(planned.rates[3:])]
    assert min(falls) >= -1e-12  # the rate never rises again
    assert max(falls) < 0.2  # nor does it fall all at once


def test_a_run_whose_evaluations_become_slower_finishes_its_schedule_in_time(tmp_path: Path) -> None:
    planned = simulate(
        tmp_path, half_a_second, lambda n: 0.2 if n < 10 else 4.0, budget=minutes(2.0), eval_every=10
    )
    assert planned.is_finished
    assert planned.rates[-1] == pytest.approx(0.1)
    assert 110 < planned.seconds <= 120


@pytest.mark.parametrize("seed", range(20))
def test_a_run_on_a_busy_machine_finishes_its_schedule_in_time(tmp_path: Path, seed: int) -> None:
    """Steps and evaluations of random length, slowed down by other work that comes and goes."""
    source = random.Random(seed)
    loads = [source.choice([1.0, 1.0, 1.7, 2.5]) for _ in range(100)]

    def busy(seconds: float) -> Seconds:
        return lambda n: seconds * loads[n // 15 % 100] * source.uniform(0.8, 1.6)

    planned = simulate(tmp_path, busy(0.4), busy(1.0), budget=minutes(2.0), eval_every=20, save_every=50)
    assert planned.is_finished
    assert planned.rates[-1] == pytest.approx(0.1)
    assert 108 < planned.seconds <= 122  # the last evaluation may be slower than all before it


def test_a_run_whose_steps_keep_their_speed_keeps_its_first_plan(tmp_path: Path) -> None:
    planned = simulate(
        tmp_path, lambda n: (0.49, 0.51)[n % 2], lambda _: 1.0, budget=minutes(2.0), eval_every=8
    )
    assert len(planned.plan) == 1


def test_an_exhausted_time_budget_is_recorded_if_the_schedule_is_not_finished(
    tmp_path: Path, quiet: Console, make_clock: MakeClock
) -> None:
    """As after a pause that is longer than the time left."""
    config = make_config(tmp_path, budget=minutes(0.5))
    clock = make_clock(lambda n: 60.0 if n == 20 else 0.5)
    assert train(config, tmp_path / "run", console=quiet, clock=clock).step == 20
    assert events(tmp_path / "run")[1:] == [{"step": 20, "event": "budget_exhausted"}]


def test_an_exhausted_time_budget_before_the_first_plan_is_recorded(
    tmp_path: Path, quiet: Console, make_clock: MakeClock
) -> None:
    config = make_config(tmp_path, budget=minutes(0.1))
    train(config, tmp_path / "run", console=quiet, clock=make_clock(lambda _: 2.0))
    assert events(tmp_path / "run") == [{"step": 3, "event": "budget_exhausted"}]


def test_a_line_has_the_rate_that_was_used_even_where_the_run_is_planned(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch, make_clock: MakeClock
) -> None:
    """A plan is made after a step, and changes the rate from the next one on."""
    used: list[float] = []
    advance = Trainer._advance

    def advance_and_note(trainer: Trainer) -> None:
        advance(trainer)
        used.append(trainer.optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(Trainer, "_advance", advance_and_note)
    config = make_config(tmp_path, budget=minutes(0.5), log_every=1)
    clock = make_clock(lambda n: 0.25 if n < 50 else 0.5)
    train(config, tmp_path / "run", console=quiet, clock=clock)
    assert len(events(tmp_path / "run")) > 1
    assert [record["lr"] for record in lines(tmp_path / "run")] == pytest.approx(used)


def stop_at(monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    add = Recorder.add

    def add_and_stop(recorder: Recorder, step: int, result: StepResult) -> None:
        add(recorder, step, result)
        if step == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Recorder, "add", add_and_stop)


def test_a_resumed_run_follows_the_plan_of_its_checkpoint_bit_for_bit(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch, make_clock: MakeClock
) -> None:
    """The plan was corrected before the run stopped, and both runs have the same speed after that."""
    config = make_config(tmp_path, budget=minutes(0.5), save_every=1000, eval_every=1000, log_every=1)
    train(config, tmp_path / "whole", console=quiet, clock=make_clock(lambda n: 0.5 if n <= 20 else 1.0))
    stop_at(monkeypatch, 32)
    train(config, tmp_path / "run", console=quiet, clock=make_clock(lambda n: 0.5 if n <= 20 else 1.0))
    saved = CheckpointFolder(tmp_path / "run" / "checkpoints").read_last()
    assert saved is not None
    assert saved.rest["step"] == 32
    assert len(saved.rest["plan"]) > 1
    resume(tmp_path / "run", console=quiet, clock=make_clock(lambda _: 1.0))
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_a_resumed_run_that_became_slower_gets_a_new_plan(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch, make_clock: MakeClock
) -> None:
    """Its completed steps keep their rates."""
    config = make_config(tmp_path, budget=minutes(0.5), log_every=1)
    stop_at(monkeypatch, 25)
    train(config, tmp_path / "run", console=quiet, clock=make_clock())
    before = lines(tmp_path / "run")
    resume(tmp_path / "run", console=quiet, clock=make_clock(lambda n: 5.0 if n == 1 else 1.0))
    after = lines(tmp_path / "run")
    assert [record["lr"] for record in after[:25]] == [record["lr"] for record in before[:25]]
    assert after[-1]["lr"] == pytest.approx(0.001)
    assert 27 < after[-1]["seconds"] <= 30


@pytest.mark.parametrize(
    "plan",
    [[[0, 0]], [[-1, 24]], [[0, 40], [5]], [[5, 24], [5, 24]], [[0, 5], [7, 24]], [[0, 23]], [[22, 24]]],
)
def test_a_checkpoint_with_an_invalid_plan_is_rejected(plan: list[list[int]]) -> None:
    with rejects(UsageError, key="plan"):
        build(TrainState, {"step": 21, "num_steps": 24, "plan": plan}, source="state.json")


def test_a_checkpoint_without_a_plan_has_that_of_its_length() -> None:
    assert build(TrainState, {"step": 21, "num_steps": 24}, source="state.json").plan == [[0, 24]]


def test_a_new_plan_spreads_the_rest_of_the_schedule_and_keeps_the_completed_part() -> None:
    plan = [[5, 100], [40, 70], [60, 200]]
    for length in (1, 2):
        step = plan[length][0]
        for t in range(1, step + 1):
            assert schedule_position(t, plan[:length]) == schedule_position(t, plan)
    positions = [schedule_position(t, plan) for t in range(201)]
    assert positions[40:71:10] == pytest.approx([40, 60, 80, 80 + 20 / 14])
    assert positions[200] == 100
    assert all(before < after for before, after in itertools.pairwise(positions))


def test_updates_before_the_first_plan_only_warm_up() -> None:
    schedule = ScheduleConfig(kind="linear", warmup=2, final=0.0)
    assert [schedule.planned_factor(t, [[4, 10]]) for t in (1, 2, 4, 6, 10)] == [0.5, 1.0, 1.0, 0.5, 0.0]


def test_a_deadline_that_passes_between_two_checks_ends_in_a_checkpoint(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes with every look at the clock, so that each possible moment is the one when it strikes."""
    for num_looks in range(1, 12):
        looks = itertools.count(1)

        def clock(looks: itertools.count[int] = looks, limit: int = num_looks) -> float:
            return 0.0 if next(looks) <= limit else 61.0

        run = tmp_path / f"run{num_looks}"
        result = train(make_config(tmp_path, budget={"minutes": 1.0}), run, console=quiet, clock=clock)
        assert result.step == (CheckpointFolder(run / "checkpoints").steps() or [0])[-1]
