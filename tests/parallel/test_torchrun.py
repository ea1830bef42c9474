"""Training on several ranks that torchrun starts: the same bits, one message per failure, nothing lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bytewright.train import Run, read_recipe, resume, train
from bytewright.train.checkpoint import CheckpointFolder
from conftest import HANG_SECONDS
from ranks import Launched, command, run_on_ranks, write_recipe
from runs import digest, make_ids, write_tokens

KINDS = {
    "adamw": [],
    "muon": ["optimizer.name=muon"],
    "six parts": ["accumulate=6"],
    "bf16": ["precision=bf16"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe of 12 parts, its data, and the run of each kind by a single process."""
    folder = tmp_path_factory.mktemp("ranks")
    write_recipe(folder)
    quiet = Console(quiet=True)
    for kind, changes in KINDS.items():
        train(read_recipe(folder / "recipe.toml", changes), folder / f"{kind}-1", console=quiet)
    return folder


def test_the_number_of_ranks_does_not_change_one_bit(folder: Path) -> None:
    for num_ranks, kinds in {2: list(KINDS), 4: ["adamw", "muon"]}.items():
        commands = [command(folder, f"{kind}-{num_ranks}", *KINDS[kind]) for kind in kinds]
        for results in run_on_ranks(num_ranks, folder, commands, HANG_SECONDS):
            assert [result["code"] for result in results] == [0] * len(commands), results
        for kind in kinds:
            assert digest(folder / f"{kind}-{num_ranks}") == digest(folder / f"{kind}-1")
            last = Run(folder / f"{kind}-{num_ranks}").metrics[-1]
            assert len(last["rank_memory_bytes"]) == num_ranks
    assert digest(folder / "adamw-1")["weights"] != digest(folder / "six parts-1")["weights"]


def test_wrong_input_ends_all_ranks_with_one_message(folder: Path) -> None:
    write_tokens(folder / "other.npy", make_ids(2000, seed=9))
    (folder / "locked").mkdir()
    (folder / "locked" / "note.txt").write_text("not a run")
    cases = {
        "accumulate is no multiple": [command(folder, "a", "accumulate=4")] * 3,
        "more ranks than parts": [command(folder, "b", "accumulate=1")] * 3,
        "another config on rank 1": [
            command(folder, "c", *(["optimizer.lr=0.5"] if rank == 1 else [])) for rank in range(3)
        ],
        "other data on rank 2": [
            command(folder, "d", *([f"data.train={folder / 'other.npy'}"] if rank == 2 else []))
            for rank in range(3)
        ],
        "no recipe on rank 1": [
            [*command(folder, "e")] if rank != 1 else ["train", str(folder / "none.toml")]
            for rank in range(3)
        ],
        "the folder is not empty": [command(folder, "locked")] * 3,
        "an unknown option": [["train", "--outt", "x"]] * 3,
        "the run exists": [command(folder, "adamw-1")] * 3,
    }
    results = run_on_ranks(
        3, folder, [list(of_rank) for of_rank in zip(*cases.values(), strict=True)], HANG_SECONDS
    )
    for number, name in enumerate(cases):
        outcomes = [of_rank[number] for of_rank in results]
        assert [outcome["code"] for outcome in outcomes] == [2, 2, 2], (name, outcomes)
        said = [outcome["err"] for outcome in outcomes if outcome["err"]]
        assert len(said) == 1, (name, said)
        assert len(said[0].splitlines()) == 1, (name, said)
    assert not any((folder / name).exists() for name in "abcde")
    assert [result["err"] for result in results[0]][2].count("rank 1") == 1


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Return a function that starts ranks; at the end all of them are killed."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(Launched(*arguments, **options))


Launch = Callable[..., Launched]
LONG = ["budget.steps=4000", "save_every=20", "schedule.kind=constant"]


@pytest.mark.fault
def test_a_killed_rank_ends_the_others_and_the_run_resumes_on_another_number(
    folder: Path, launch: Launch
) -> None:
    run = folder / "killed"
    started = launch(2, run, *command(folder, "killed", *LONG))
    started.wait_for_checkpoint(HANG_SECONDS)
    started.kill(1)
    killed = time.monotonic()
    _, errors = started.process.communicate(timeout=HANG_SECONDS)
    assert time.monotonic() - killed < HANG_SECONDS / 10  # torchrun itself waits 30 s before it kills
    said = [line for line in errors.splitlines() if line.startswith("bytewright: ")]
    assert len(said) == 1, errors
    assert "rank 1 of 2" in said[0]
    assert not Run(run).is_locked
    step = CheckpointFolder(run / "checkpoints").steps()[-1]
    end = [f"budget.steps={step + 30}", "eval_every=10"]
    resume(run, changes=dict(json_item(item) for item in end), console=Console(quiet=True))
    whole = folder / "whole"
    changes = [*LONG[1:], *end]
    train(read_recipe(folder / "recipe.toml", changes), whole, console=Console(quiet=True))
    assert digest(run)["weights"] == digest(whole)["weights"]
    assert digest(run)["optimizer"] == digest(whole)["optimizer"]


def json_item(item: str) -> tuple[str, Any]:
    key, _, value = item.partition("=")
    return key, json.loads(value)


@pytest.mark.fault
def test_torchrun_continues_a_run_after_a_rank_was_killed(folder: Path, launch: Launch) -> None:
    run = folder / "restarted"
    changes = ["budget.steps=100", "save_every=10", "eval_every=50"]
    started = launch(2, run, *command(folder, "restarted", *changes), options=("--max-restarts=3",))
    started.wait_for_checkpoint(HANG_SECONDS)
    started.kill(0)
    _, errors = started.process.communicate(timeout=HANG_SECONDS)
    assert started.process.returncode == 0, errors
    assert Run(run).status.state == "complete"
    whole = folder / "undisturbed"
    train(read_recipe(folder / "recipe.toml", changes), whole, console=Console(quiet=True))
    assert digest(run) == digest(whole)


@pytest.mark.fault
def test_a_signal_to_one_rank_saves_and_stops_all(folder: Path, launch: Launch) -> None:
    run = folder / "stopped"
    started = launch(2, run, *command(folder, "stopped", *LONG))
    started.wait_for_checkpoint(HANG_SECONDS)
    os.kill(started.pids()[1], signal.SIGTERM)
    _, errors = started.process.communicate(timeout=HANG_SECONDS)
    assert "Traceback" not in "".join(line for line in errors.splitlines() if "bytewright" in line)
    status = Run(run).status
    assert (status.state, status.ending) == ("stopped", "signal")
    assert CheckpointFolder(run / "checkpoints").steps()[-1] == status.step
