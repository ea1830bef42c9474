"""A run ends where its budget says: after so many tokens, or by the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import Tensor

from bytewright.train import train
from bytewright.train.checkpoint import CheckpointFolder
from bytewright.train.loop import Trainer
from bytewright.train.metrics import read_metrics
from bytewright.train.recorder import Recorder
from bytewright.train.step import TrainStep
from runs import make_config


def lines(run: Path) -> list[dict[str, Any]]:
    return list(read_metrics(run / "metrics.jsonl"))


def test_a_budget_of_tokens_ends_at_the_next_whole_batch(tmp_path: Path, quiet: Console) -> None:
    config = make_config(tmp_path, budget={"steps": None, "tokens": 100})
    assert train(config, tmp_path / "run", console=quiet).step == 4  # 32 tokens a step


def test_a_budget_of_minutes_alone_plans_its_steps_and_decays_to_the_end(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "seconds", lambda recorder: 0.5 * recorder.progress.step)
    config = make_config(tmp_path, budget={"steps": None, "minutes": 0.25}, log_every=1)
    result = train(config, tmp_path / "run", console=quiet)
    assert result.step == 29  # half a second each, and a fiftieth of the time for the rest
    rates = [record["lr"] for record in lines(tmp_path / "run")]
    assert max(rates) == pytest.approx(0.01, rel=0.01)
    assert rates[-1] == pytest.approx(0.001)


def test_a_run_that_measures_its_speed_seldom_waits_for_the_device(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting after every step would slow the steps down, and the run would plan too few of them."""
    waits: list[int] = []
    fetch = Recorder.fetch

    def fetch_and_note(recorder: Recorder) -> None:
        waits.append(recorder.progress.step)
        fetch(recorder)

    monkeypatch.setattr(Recorder, "fetch", fetch_and_note)
    monkeypatch.setattr(Recorder, "seconds", lambda recorder: 0.05 * recorder.progress.step)
    every = {"log_every": 1000, "eval_every": 1000, "save_every": 1000}
    config = make_config(tmp_path, budget={"steps": None, "minutes": 0.1}, **every)
    train(config, tmp_path / "run", console=quiet)
    # 8 steps after the third are more than a twentieth of the time.
    assert sorted({step for step in waits if step < 100}) == [3, 4, 5, 7, 11]


def test_first_steps_that_compile_do_not_make_a_run_of_minutes_plan_too_few(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(recorder: Recorder) -> float:
        step = recorder.progress.step
        return sum((20.0, 3.0)[:step]) + 0.5 * max(0, step - 2)

    monkeypatch.setattr(Recorder, "seconds", seconds)
    budget = {"steps": None, "minutes": 2.0}
    result = train(make_config(tmp_path, budget=budget), tmp_path / "run", console=quiet)
    assert result.step == 192  # of 196 for which there is time


def test_the_first_evaluation_which_compiles_does_not_make_it_plan_too_few(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling = [0.0]
    measure = TrainStep.measure

    def measure_and_compile_first(step: TrainStep, *batch: Tensor) -> Tensor:
        compiling[0] = 20.0
        return measure(step, *batch)

    monkeypatch.setattr(TrainStep, "measure", measure_and_compile_first)
    monkeypatch.setattr(Recorder, "seconds", lambda recorder: 0.5 * recorder.progress.step + compiling[0])
    config = make_config(tmp_path, budget={"steps": None, "minutes": 2.0}, eval_every=4)
    result = train(config, tmp_path / "run", console=quiet)
    assert result.step == 196  # of 200 for which there is time


@pytest.mark.parametrize("eval_every", [4, 20, 500])
def test_a_run_of_minutes_has_time_for_its_evaluations_whether_one_was_seen_or_not(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch, eval_every: int
) -> None:
    """And its rate has fallen when it ends."""
    evaluating = [0.0]
    measure = TrainStep.measure

    def measure_slowly(step: TrainStep, *batch: Tensor) -> Tensor:
        evaluating[0] += 1.0
        return measure(step, *batch)

    monkeypatch.setattr(TrainStep, "measure", measure_slowly)
    monkeypatch.setattr(Recorder, "seconds", lambda recorder: 0.5 * recorder.progress.step + evaluating[0])
    every = {"eval_every": eval_every, "save_every": 1000, "log_every": 1}
    config = make_config(tmp_path, budget={"steps": None, "minutes": 2.0}, **every)
    train(config, tmp_path / "run", console=quiet)
    last = lines(tmp_path / "run")[-1]
    assert last["lr"] == pytest.approx(0.001)
    assert 110 < last["seconds"] < 120


def test_a_run_that_the_clock_ends_before_its_schedule_says_so(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that becomes slower after the plan was made."""

    def seconds(recorder: Recorder) -> float:
        step = recorder.progress.step
        return 0.5 * step + 0.5 * max(0, step - 20)

    monkeypatch.setattr(Recorder, "seconds", seconds)
    train(make_config(tmp_path, budget={"steps": None, "minutes": 0.5}), tmp_path / "run", console=quiet)
    events = [record for record in lines(tmp_path / "run") if "event" in record]
    sentence = "the minutes are over before the schedule has come to its end"
    assert events == [{"step": 40, "event": sentence}]


def test_a_run_whose_minutes_are_over_before_it_could_plan_says_so(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "seconds", lambda recorder: 2.0 * recorder.progress.step)
    train(make_config(tmp_path, budget={"steps": None, "minutes": 0.1}), tmp_path / "run", console=quiet)
    assert [record["step"] for record in lines(tmp_path / "run") if "event" in record] == [3]


def test_a_line_has_the_rate_that_was_used_even_where_the_run_is_planned(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is made after a step, and bends the schedule from the next one on."""
    used: list[float] = []
    advance = Trainer._advance

    def advance_and_note(trainer: Trainer) -> None:
        advance(trainer)
        used.append(trainer.optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(Trainer, "_advance", advance_and_note)
    monkeypatch.setattr(Recorder, "seconds", lambda recorder: 0.5 * recorder.progress.step)
    config = make_config(tmp_path, budget={"steps": None, "minutes": 0.25}, log_every=1)
    train(config, tmp_path / "run", console=quiet)
    assert [record["lr"] for record in lines(tmp_path / "run")] == pytest.approx(used)


def test_a_clock_that_strikes_between_two_looks_still_ends_in_a_checkpoint(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes with every look at the clock, so that each possible moment is the one when it strikes."""
    for num_looks in range(1, 12):
        looks = [0]

        def seconds(recorder: Recorder, looks: list[int] = looks, limit: int = num_looks) -> float:
            looks[0] += 1
            return 59.0 if looks[0] < limit else 61.0

        monkeypatch.setattr(Recorder, "seconds", seconds)
        run = tmp_path / f"run{num_looks}"
        result = train(make_config(tmp_path, budget={"minutes": 1.0}), run, console=quiet)
        assert result.step == (CheckpointFolder(run / "checkpoints").steps() or [0])[-1]
