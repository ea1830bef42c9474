"""The prediction for a run is that of `account` for its settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from bytewright.account import PRESETS, TrainingSetup, predict_training, training_memory
from bytewright.account.predict import CODE_BYTES
from bytewright.experiments.sweep import read_sweep
from bytewright.model.config import Implementation
from bytewright.train.recipe import read_recipe
from bytewright.train.session.costs import account_for_run, predict_run
from runs import TWO_CORES, make_config

CPU = torch.device("cpu")
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("model", ["reference", "fused"])
@pytest.mark.parametrize("optimizer", ["reference", "fused"])
def test_predicted_memory_depends_on_the_implementation_of_the_optimizer(
    tmp_path: Path, model: Implementation, optimizer: Implementation
) -> None:
    shape = dataclasses.replace(PRESETS["base"], context_length=64, implementation=model)
    config = make_config(
        tmp_path, model=shape.to_dict(), optimizer={"implementation": optimizer}, batch_size=1
    )
    predicted = account_for_run(config, None, CPU)["peak_memory"]
    live = training_memory(shape, optimizer_implementation=optimizer, device="cpu").peak
    assert predicted == CODE_BYTES + live


def test_predicted_memory_on_a_cpu_includes_evaluations() -> None:
    setup = TrainingSetup(batch_size=1, device_kind="cpu")
    without = predict_training(PRESETS["base"], setup)["peak_memory"] or 0.0
    setup = dataclasses.replace(setup, evaluated_at_once=2**18)
    assert without < (predict_training(PRESETS["base"], setup)["peak_memory"] or 0.0)
    on_gpu = predict_training(PRESETS["base"], TrainingSetup(batch_size=1))["peak_memory"]
    assert on_gpu == training_memory(PRESETS["base"]).peak


@pytest.mark.parametrize(
    ("name", "megabytes"), [("tiny", 102), ("smoke", 55), ("smoke", 61), ("laptop", 2052)]
)
def test_predicted_memory_of_cpu_recipes_is_near_the_measured_one(name: str, megabytes: float) -> None:
    """The measured values are those of docs/results/2026-11-18-cpu-memory.md; of laptop.toml, 12 steps."""
    recipe = next(path for path in RECIPES if path.stem == name)
    predicted = account_for_run(read_recipe(recipe), None, CPU)["peak_memory"]
    assert predicted == pytest.approx(1e6 * megabytes, rel=0.1)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_plan_on_a_cpu_predicts_the_time_of_fp32_recipes(path: Path) -> None:
    if "question = " in path.read_text():
        configs = [trial.config for trial in read_sweep(path, scale="smoke").trials]
    else:
        configs = [read_recipe(path, ["precision=fp32"])]
    for config in configs:
        assert predict_run(config, TWO_CORES, CPU)["seconds"] > 0


def test_a_reference_run_has_predicted_memory_but_no_speed(tmp_path: Path) -> None:
    for table in ("model", "optimizer"):
        config = make_config(tmp_path, **{table: {"implementation": "reference"}})
        assert set(predict_run(config, TWO_CORES, CPU)) == {"parameters", "flops_per_token", "memory_bytes"}
