"""What is predicted for a run is what the accountant says of that run's own settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from bytewright.account import PRESETS, training_memory
from bytewright.lab.predict import account
from bytewright.model.config import Implementation
from runs import make_config

CPU = torch.device("cpu")


@pytest.mark.parametrize("model", ["reference", "fused"])
@pytest.mark.parametrize("optimizer", ["reference", "fused"])
def test_the_memory_of_a_run_heeds_the_twin_of_its_update_rule(
    tmp_path: Path, model: Implementation, optimizer: Implementation
) -> None:
    shape = dataclasses.replace(PRESETS["base"], context_length=64, implementation=model)
    config = make_config(
        tmp_path, model=shape.to_dict(), optimizer={"implementation": optimizer}, batch_size=1
    )
    predicted = account(config, None, CPU)["peak_memory"]
    assert predicted == training_memory(shape, optimizer_implementation=optimizer, device="cpu").peak
    # By resident memory on two cores these steps took 451 MB and 463 MB, or 1,114 MB and 1,123 MB.
    assert predicted == pytest.approx(1110e6 if optimizer == "fused" else 450e6, rel=0.1)
