"""The expected time of a run: its steps at the speed of a few timed ones, and its evaluations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console

from bytewright.train import train
from bytewright.train.run import Run
from bytewright.train.session import timing
from bytewright.train.session.timing import count_evaluations, expected_seconds, measure_slowdown
from runs import make_config

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("eval_every", "save_every"), [(6, 9), (5, 50), (50, 7), (100, 100), (24, 3), (7, 11)]
)
def test_evaluations_are_counted_as_a_run_makes_them(
    tmp_path: Path, quiet: Console, eval_every: int, save_every: int
) -> None:
    config = make_config(tmp_path, eval_every=eval_every, save_every=save_every, sample_every=0)
    train(config, tmp_path / "run", console=quiet)
    evaluated = [record for record in Run(tmp_path / "run").records if "validation_loss" in record]
    assert count_evaluations(config) == len(evaluated)


def test_the_expected_time_contains_evaluations_with_the_measured_slowdown(tmp_path: Path) -> None:
    config = make_config(tmp_path, budget={"steps": 10}, eval_every=5, save_every=10, eval_tokens=300)
    steps = config.tokens_per_step * 10 / 100
    predicted = {"tokens_per_second": 100.0, "seconds": steps}
    assert expected_seconds(config, predicted) == pytest.approx(steps + 2 * 300 / 300)
    assert expected_seconds(config, predicted, slowdown=3.0) == pytest.approx(3 * (steps + 2))
    assert expected_seconds(config, {}) is None


def test_only_short_steps_that_are_not_compiled_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, device="cpu")
    fast, slow = ({"tokens_per_second": config.tokens_per_step / seconds} for seconds in (0.001, 10.0))
    before = torch.random.get_rng_state()
    assert measure_slowdown(config, fast, CPU) > 0
    assert torch.equal(torch.random.get_rng_state(), before)
    monkeypatch.setattr(timing, "_time_step", lambda *_: 0.004)
    assert measure_slowdown(config, fast, CPU) == pytest.approx(4.0)
    compiled = make_config(tmp_path, device="cpu", compile="on")
    assert [measure_slowdown(config, slow, CPU), measure_slowdown(compiled, fast, CPU)] == [1.0, 1.0]
    assert measure_slowdown(config, {}, CPU) == 1.0
