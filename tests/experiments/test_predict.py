"""The prediction for a run is that of `account` for its settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from bytewright.account import PRESETS, training_memory
from bytewright.experiments.sweep import read_sweep
from bytewright.model.config import Implementation
from bytewright.train.costs import account_for_run, predict_run
from bytewright.train.recipe import read_recipe
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
    assert predicted == training_memory(shape, optimizer_implementation=optimizer, device="cpu").peak
    # By resident memory on two cores these steps took 451 MB and 463 MB, or 1,114 MB and 1,123 MB.
    assert predicted == pytest.approx(1110e6 if optimizer == "fused" else 450e6, rel=0.1)


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
