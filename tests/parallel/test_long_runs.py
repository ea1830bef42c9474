"""Runs of 200 steps and more on up to eight ranks, eager and compiled, and killed at random moments."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from rich.console import Console

from bytewright.train import Run, read_recipe, train
from bytewright.train.checkpoint import CheckpointFolder
from conftest import HANG_SECONDS
from ranks import Launched, command, run_on_ranks, write_recipe
from runs import digest

EIGHT_PARTS = ["accumulate=8", "batch_size=8", "budget.steps=200", "eval_every=100", "save_every=100"]
KINDS = {
    f"{optimizer}-{precision}-{compiled}": [
        f"optimizer.name={optimizer}",
        f"precision={precision}",
        f"compile={compiled}",
    ]
    for optimizer in ("adamw", "muon")
    for precision in ("fp32", "bf16")
    for compiled in ("off", "on")
}
NUM_KILLS = 20


@pytest.mark.slow
def test_200_steps_have_the_same_bits_on_1_2_4_and_8_ranks(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    for num_ranks in (1, 2, 4, 8):
        commands = [
            command(tmp_path, f"{kind}-{num_ranks}", *EIGHT_PARTS, *changes)
            for kind, changes in KINDS.items()
        ]
        for results in run_on_ranks(num_ranks, tmp_path, commands, 4 * HANG_SECONDS):
            assert [result["code"] for result in results] == [0] * len(commands), results
    for kind in KINDS:
        expected = digest(tmp_path / f"{kind}-1")
        assert expected["step"] == "step-000200"
        assert [digest(tmp_path / f"{kind}-{num_ranks}") for num_ranks in (2, 4, 8)] == [expected] * 3, kind
    assert len({digest(tmp_path / f"{kind}-1")["weights"] for kind in KINDS}) == len(KINDS)


@pytest.mark.slow
@pytest.mark.fault
def test_kills_and_other_numbers_of_ranks_do_not_change_one_bit(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    chance = random.Random(0)
    changes = ["budget.steps=400", "save_every=4", "eval_every=40", "log_every=4"]
    train(read_recipe(tmp_path / "recipe.toml", changes), tmp_path / "whole", console=Console(quiet=True))
    run, num_ranks = tmp_path / "killed", 0
    for number in range(NUM_KILLS):
        num_ranks = chance.choice([number for number in (1, 2, 3, 4) if number != num_ranks])
        step = max(CheckpointFolder(run / "checkpoints").steps(), default=0)
        arguments = ["resume", str(run)] if number else command(tmp_path, "killed", *changes)
        with Launched(num_ranks, run, *arguments) as launched:
            launched.wait_for_checkpoint(HANG_SECONDS, after=step)
            time.sleep(chance.uniform(0, 0.1))
            launched.kill(chance.randrange(num_ranks))
            launched.process.communicate(timeout=HANG_SECONDS)
        assert Run(run).status.state != "complete", f"complete at kill {number}: kill earlier"
    with Launched(4, run, "resume", run) as launched:
        _, errors = launched.process.communicate(timeout=HANG_SECONDS)
        assert launched.process.returncode == 0, errors
    assert digest(run) == digest(tmp_path / "whole")
