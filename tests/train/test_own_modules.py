"""A user's module that draws random numbers: runs are reproducible, and evaluations are without dropout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from bytewright.registry import feed_forwards
from bytewright.train import AdamW, Run, resume, train
from bytewright.train.config import TrainConfig
from bytewright.train.step import TrainStep
from runs import make_config

QUIET = Console(quiet=True)


class Dropped(torch.nn.Module):
    """A linear layer and dropout."""

    acts_per_position = True

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(d_model, d_model)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position."""
        dropped: Tensor = self.dropout(self.linear(x))
        return dropped


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    feed_forwards.register("dropped")(Dropped)
    yield
    feed_forwards.remove("dropped")


def config_of(folder: Path, steps: int) -> TrainConfig:
    return make_config(
        folder,
        model={"ffn": "dropped"},
        budget={"steps": steps},
        schedule={"kind": "constant"},
        eval_every=1,
        save_every=2,
    )


def test_a_resumed_run_draws_the_dropout_of_an_uninterrupted_one(tmp_path: Path) -> None:
    train(config_of(tmp_path, 4), tmp_path / "whole", console=QUIET)
    train(config_of(tmp_path, 2), tmp_path / "resumed", console=QUIET)
    torch.rand(5)  # another state of the random numbers
    resume(tmp_path / "resumed", changes={"budget.steps": 4}, console=QUIET)
    weights = [
        Run.open(tmp_path / name).load_model(which="last").state_dict() for name in ("whole", "resumed")
    ]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=0, atol=0)


def test_evaluations_and_loaded_models_are_without_dropout(tmp_path: Path) -> None:
    train(config_of(tmp_path, 2), tmp_path / "run", console=QUIET)
    run = Run.open(tmp_path / "run")
    model = run.load_model(which="last")
    assert not model.training
    ids = torch.arange(6)[None]
    torch.testing.assert_close(model(ids), model(ids), rtol=0, atol=0)
    trained = run.load_model(which="last").train()
    step = TrainStep(trained, AdamW(trained.parameters()))
    torch.testing.assert_close(step.measure(ids, ids), step.measure(ids, ids), rtol=0, atol=0)
    assert trained.training
    assert not trained(ids).equal(trained(ids))
