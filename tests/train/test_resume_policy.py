"""Which settings of a config may change on resume, and which changes are rejected."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bytewright.errors import FormatError, StorageError, UsageError
from bytewright.storage import atomic
from bytewright.train import BudgetConfig, resume, train
from bytewright.train.checkpoint import CheckpointFolder
from bytewright.train.recipe import flatten, to_plain
from bytewright.train.run import Run
from bytewright.train.session.recorder import Recorder
from bytewright.train.session.resume_policy import FREE, find_changes
from bytewright.train.step import StepResult
from rejection import rejects
from runs import digest, make_config


def edit(run: Path, **changes: Any) -> None:
    """Change fields of a run's config.json, nested ones by `budget={"steps": 5}`."""
    fields = atomic.read_document(run / "config.json")
    for name, value in changes.items():
        fields[name] = {**fields[name], **value} if isinstance(value, dict) else value
    atomic.write_json(run / "config.json", fields)


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a run of 24 steps whose last checkpoint is lost, so that it stands at 21."""
    folder = tmp_path_factory.mktemp("stopped")
    train(make_config(folder), folder / "run", console=Console(file=io.StringIO()))
    shutil.copytree(folder / "run", folder / "whole")
    atomic.remove_folder(CheckpointFolder(folder / "run" / "checkpoints").at(24))
    return folder


@pytest.fixture
def run(tmp_path: Path, stopped_run: Path) -> Path:
    """A copy of the stopped run and its data, to be edited."""
    shutil.copytree(stopped_run, tmp_path / "copy")
    return tmp_path / "copy/run"


@pytest.mark.parametrize(
    ("changes", "key", "expected", "found"),
    [
        ({"optimizer": {"lr": 0.02}}, "optimizer.lr", 0.01, 0.02),
        ({"optimizer": {"weight_decay": 0.0}}, "optimizer.weight_decay", 0.1, 0.0),
        ({"optimizer": {"max_grad_norm": 2.0}}, "optimizer.max_grad_norm", 1.0, 2.0),
        ({"seed": 1}, "seed", 0, 1),
        ({"batch_size": 8}, "batch_size", 4, 8),
        ({"precision": "bf16"}, "precision", "fp32", "bf16"),
        ({"eval_tokens": 32}, "eval_tokens", 64, 32),
        ({"model": {"rope_theta": 500.0}}, "model.rope_theta", 10_000.0, 500.0),
        ({"schedule": {"warmup": 5}}, "schedule.warmup", 3, 5),
        ({"schedule": {"kind": "linear"}}, "schedule.kind", "cosine", "linear"),
        ({"budget": {"steps": 48}}, "budget.steps", 24, 48),
        ({"budget": {"steps": None, "minutes": 5.0}}, "budget.steps", 24, None),
    ],
)
def test_a_change_that_would_alter_completed_steps_is_rejected(
    run: Path, quiet: Console, changes: dict[str, Any], key: str, expected: object, found: object
) -> None:
    before, metrics = digest(run), (run / "metrics.jsonl").read_bytes()
    edit(run, **changes)
    with pytest.raises(UsageError) as raised:
        resume(run, console=quiet)
    error = raised.value
    assert (error.path, error.key, error.expected, error.found) == (
        run / "config.json",
        key,
        expected,
        found,
    )
    assert "\n" not in str(error)
    assert digest(run) == before
    assert (run / "metrics.jsonl").read_bytes() == metrics


def test_intervals_may_change_on_resume_without_an_effect_on_the_weights(
    run: Path, stopped_run: Path, quiet: Console
) -> None:
    edit(run, log_every=5, eval_every=3, save_every=2, keep_last=5, norms_every=4, max_refused=3)
    edit(run, budget={"minutes": 100.0})
    resume(run, console=quiet)
    ours, theirs = digest(run), digest(stopped_run / "whole")
    assert all(ours[name] == theirs[name] for name in ("step", "weights", "optimizer", "settings"))


def test_where_and_how_it_is_computed_may_change(run: Path, quiet: Console) -> None:
    edit(run, accumulate=2, model={"implementation": "reference"}, optimizer={"implementation": "reference"})
    assert resume(run, console=quiet).step == 24


def test_data_that_was_moved_is_still_the_same_data(tmp_path: Path, run: Path, quiet: Console) -> None:
    for file in run.parent.glob("*.npy*"):
        shutil.move(file, tmp_path)
    edit(run, data={name: str(tmp_path / f"{name}.npy") for name in ("train", "validation")})
    assert resume(run, console=quiet).step == 24


@pytest.mark.parametrize("schedule", [{"kind": "constant"}, {"kind": "wsd", "decay": 0.25}])
def test_a_run_extended_before_its_decay_equals_a_longer_run(
    tmp_path: Path, quiet: Console, schedule: dict[str, Any]
) -> None:
    longer = make_config(tmp_path, schedule=schedule, budget={"steps": 40}, save_every=6)
    train(longer, tmp_path / "longer", console=quiet)
    train(make_config(tmp_path, schedule=schedule, save_every=6), tmp_path / "run", console=quiet)
    atomic.remove_folder(CheckpointFolder(tmp_path / "run" / "checkpoints").at(24))
    edit(tmp_path / "run", budget={"steps": 40})
    assert resume(tmp_path / "run", console=quiet).step == 40
    ours, theirs = digest(tmp_path / "run"), digest(tmp_path / "longer")
    assert all(ours[name] == theirs[name] for name in ("step", "weights", "optimizer", "settings"))


def test_a_run_cannot_be_extended_after_its_decay_began(tmp_path: Path, quiet: Console) -> None:
    config = make_config(tmp_path, schedule={"kind": "wsd", "decay": 0.25}, save_every=7)
    train(config, tmp_path / "run", console=quiet)
    edit(tmp_path / "run", budget={"steps": 40})
    with rejects(UsageError, key="budget.steps", expected=24, found=40):
        resume(tmp_path / "run", console=quiet)


def test_more_minutes_at_a_constant_rate_are_planned_again(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "seconds", lambda recorder: 0.5 * recorder.progress.step)
    budget, schedule = {"steps": None, "minutes": 0.25}, {"kind": "constant"}
    config = make_config(tmp_path, budget=budget, schedule=schedule)
    assert train(config, tmp_path / "run", console=quiet).step == 29
    edit(tmp_path / "run", budget={"minutes": 0.5})
    assert resume(tmp_path / "run", console=quiet).step >= 57  # 60 at half a second each, planned by then


def test_a_run_of_minutes_that_gets_more_of_them_is_planned_soon_and_decays(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Recorder.add

    def add_and_stop_at_35(recorder: Recorder, step: int, result: StepResult) -> None:
        add(recorder, step, result)
        if step == 35:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Recorder, "seconds", lambda recorder: 0.5 * recorder.progress.step)
    monkeypatch.setattr(Recorder, "add", add_and_stop_at_35)
    schedule = {"kind": "wsd", "final": 0.0, "decay": 0.2}
    config = make_config(tmp_path, budget={"steps": None, "minutes": 0.5}, schedule=schedule, log_every=1)
    assert train(config, tmp_path / "run", console=quiet).received == signal.SIGTERM
    edit(tmp_path / "run", budget={"minutes": 0.52})
    assert resume(tmp_path / "run", console=quiet).step >= 60
    assert Run(tmp_path / "run").metrics[-1]["lr"] == 0.0


def test_a_checkpoint_without_a_config_is_rejected(run: Path, quiet: Console) -> None:
    last = CheckpointFolder(run / "checkpoints").at(21)
    kept = {path.name: path.read_bytes() for path in last.glob("*.safetensors")}
    about, state = atomic.open_folder(last).about, json.loads((last / "state.json").read_text())
    del state["config"]
    with atomic.write_folder(last, about=about, replace=True) as folder:
        for name, content in kept.items():
            folder.write_bytes(name, content)
        folder.write_json("state.json", state)
    with rejects(FormatError, path=run / "checkpoints/step-000021"):
        resume(run, console=quiet)


def test_a_change_of_windows_is_found_and_a_change_of_paths_is_not(tmp_path: Path) -> None:
    before = to_plain(make_config(tmp_path))
    moved = {**before, "data": {**before["data"], "train": "elsewhere.npy", "tokenizer": "tok"}}
    assert find_changes(before, moved) == {}
    cut_otherwise = {**before, "data": {**before["data"], "windows": "documents"}}
    with_option = {**before, "model": {**before["model"], "norm_options": {"eps": 1e-6}}}
    assert find_changes(before, with_option) == {"model.norm_options.eps": (None, 1e-6)}
    assert find_changes(with_option, before) == {"model.norm_options.eps": (1e-6, None)}
    assert find_changes(before, cut_otherwise) == {"data.windows": ("side by side", "documents")}


def test_every_field_of_a_config_is_either_free_or_bound(tmp_path: Path) -> None:
    """Whoever adds a field has to decide; the names in the list of free ones exist."""
    fields = set(flatten(to_plain(make_config(tmp_path))))
    assert fields >= FREE
    tables = ("budget.", "model.", "optimizer.", "schedule.", "loss.", "sampler.")
    assert {name for name in fields - FREE if not name.startswith(tables)} == {
        "batch_size",
        "data.windows",
        "eval_tokens",
        "precision",
        "seed",
    }


# Changes by `resume(run, changes=...)`


@pytest.mark.parametrize("kind", ["constant", "wsd"])
def test_a_finished_run_that_is_lengthened_has_the_bits_of_a_longer_run(
    tmp_path: Path, quiet: Console, kind: str
) -> None:
    schedule = {"kind": kind, "decay": 0.5, "warmup": 3}
    short = make_config(tmp_path, schedule=schedule, save_every=3, keep_last=1)
    train(dataclasses.replace(short, budget=BudgetConfig(steps=40)), tmp_path / "whole", console=quiet)
    train(short, tmp_path / "run", console=quiet)
    checkpoints = Run(tmp_path / "run").checkpoints
    if kind == "wsd":
        assert 12 in checkpoints.steps(), "the last checkpoint before the decay is kept"
    result = resume(tmp_path / "run", changes={"budget.steps": 40}, console=quiet)
    assert result.step == 40
    assert result.num_new_steps == (28 if kind == "wsd" else 16)
    assert Run(tmp_path / "run").config.budget.steps == 40
    assert Run(tmp_path / "run").status.state == "complete"
    ours, theirs = digest(tmp_path / "run"), digest(tmp_path / "whole")
    same = ("step", "weights", "optimizer", "settings") + (("metrics",) if kind == "wsd" else ())
    assert all(ours[name] == theirs[name] for name in same)


def test_a_run_is_lengthened_after_a_kill_between_the_two_writes(tmp_path: Path, quiet: Console) -> None:
    """The later checkpoints are removed, and the config still has the former length."""
    config = make_config(tmp_path, schedule={"kind": "wsd", "decay": 0.5}, save_every=3, keep_last=1)
    train(config, tmp_path / "run", console=quiet)
    shutil.copytree(tmp_path / "run", tmp_path / "whole")
    Run(tmp_path / "run").checkpoints.remove_after(12)
    resume(tmp_path / "run", console=quiet)
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_a_finished_cosine_cannot_be_lengthened_and_the_error_names_init(run: Path, quiet: Console) -> None:
    before = (run / "config.json").read_bytes(), digest(run)
    with pytest.raises(UsageError) as caught:
        resume(run, changes={"budget.steps": 48}, console=quiet)
    error = caught.value
    assert (error.path, error.key, error.expected, error.found) == (run, "budget.steps", 24, 48)
    assert f"--init {run}" in str(error)
    assert ((run / "config.json").read_bytes(), digest(run)) == before


@pytest.mark.parametrize("kind", ["constant", "cosine"])
def test_a_larger_limit_that_another_one_precedes_is_rejected(run: Path, quiet: Console, kind: str) -> None:
    """The run has a budget of steps; tokens alone would leave its length unchanged."""
    edit(run, schedule={"kind": kind})
    before = (run / "config.json").read_bytes()
    with pytest.raises(UsageError) as caught:
        resume(run, changes={"budget.tokens": 10**6}, console=quiet)
    assert caught.value.key == ("budget.steps" if kind == "constant" else "budget.tokens")
    assert (run / "config.json").read_bytes() == before


def test_a_decayed_run_without_an_earlier_checkpoint_cannot_be_lengthened(
    tmp_path: Path, quiet: Console
) -> None:
    config = make_config(tmp_path, schedule={"kind": "wsd", "decay": 0.9}, save_every=7, keep_last=1)
    train(config, tmp_path / "run", console=quiet)
    with pytest.raises(UsageError) as caught:
        resume(tmp_path / "run", changes={"budget.steps": 48}, console=quiet)
    assert caught.value.key == "budget.steps"
    assert Run(tmp_path / "run").config.budget.steps == 24


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"seed": 1}, "seed"), ({"budget.stepz": 5}, "budget.stepz"), ({"budget.steps": "x"}, "budget.steps")],
)
def test_other_changes_are_rejected_and_change_nothing(
    run: Path, quiet: Console, changes: dict[str, Any], key: str
) -> None:
    before = (run / "config.json").read_bytes()
    with pytest.raises(UsageError) as caught:
        resume(run, changes=changes, console=quiet)
    assert caught.value.key == key
    assert (run / "config.json").read_bytes() == before


def test_a_run_whose_data_was_moved_is_resumed_with_the_new_place(run: Path, quiet: Console) -> None:
    for name in ("train", "validation"):
        for suffix in (".npy", ".npy.json"):
            (run.parent / f"{name}{suffix}").rename(run.parent / f"moved-{name}{suffix}")
    with pytest.raises(StorageError) as caught:
        resume(run, console=quiet)
    assert "--set data.train=" in str(caught.value)
    changes = {f"data.{name}": str(run.parent / f"moved-{name}.npy") for name in ("train", "validation")}
    assert resume(run, changes=changes, console=quiet).step == 24
    assert Run(run).config.data.train == run.parent / "moved-train.npy"
