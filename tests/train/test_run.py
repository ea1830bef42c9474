"""The files of a run: what it writes, what it keeps, and how it handles changes from outside."""

from __future__ import annotations

import dataclasses
import errno
import json
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from bytewright.errors import StorageError, UsageError
from bytewright.experiments.listing import list_runs
from bytewright.model import TransformerLM, language_model_loss
from bytewright.model.hf_llama import write_llama
from bytewright.storage import atomic, filesystem
from bytewright.storage.atomic import write_json
from bytewright.train import Run, resume, train
from bytewright.train.metrics_log import MetricsLog, read_metrics
from bytewright.train.outcome import RunStatus
from bytewright.train.run_files import RunWriter, find_checkpoint, is_locked, read_run_config
from bytewright.train.run_model import import_llama, open_model, write_imported_model
from rejection import PowerCutError, rejects
from runs import make_config


def run_out_of_memory(model: TransformerLM, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    raise MemoryError


def test_a_run_that_cannot_start_leaves_no_folder(tmp_path: Path, quiet: Console) -> None:
    with pytest.raises(MemoryError):
        train(make_config(tmp_path), tmp_path / "run", console=quiet, loss=run_out_of_memory)
    assert not (tmp_path / "run").exists()


def test_a_run_that_cannot_start_keeps_existing_files(tmp_path: Path, quiet: Console) -> None:
    (tmp_path / "run/.git").mkdir(parents=True)
    (tmp_path / "run/.git/HEAD").write_text("ref: refs/heads/main\n")
    with pytest.raises(MemoryError):
        train(make_config(tmp_path), tmp_path / "run", console=quiet, loss=run_out_of_memory)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".git"]
    assert (tmp_path / "run/.git/HEAD").is_file()
    train(make_config(tmp_path), tmp_path / "run", console=quiet)


def test_a_checkpoint_belongs_to_a_run_only_where_runs_keep_theirs(tmp_path: Path, quiet: Console) -> None:
    train(make_config(tmp_path), tmp_path / "run", console=quiet)
    checkpoint = find_checkpoint(tmp_path / "run")
    assert open_model(checkpoint).run.path == tmp_path / "run"
    assert open_model(checkpoint).config is not None
    shutil.copytree(checkpoint, tmp_path / "foreign/models/ours")
    write_json(tmp_path / "foreign/config.json", {"architectures": ["LlamaForCausalLM"]})
    assert open_model(tmp_path / "foreign/models/ours").config is None


@pytest.mark.parametrize(
    "name", [".lock", "metrics.jsonl", "checkpoints", "samples", "tokenizer", "tensorboard"]
)
def test_a_run_folder_with_a_symbolic_link_is_rejected_before_a_write(
    tmp_path: Path, quiet: Console, name: str
) -> None:
    RunWriter.create(tmp_path / "run", make_config(tmp_path)).close()
    (tmp_path / "outside").mkdir()
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "run/.lock").unlink()
    target = "../thesis.txt" if name in (".lock", "metrics.jsonl") else "../outside"
    (tmp_path / "run" / name).symlink_to(target)
    with rejects(StorageError, path=tmp_path / "run" / name):
        resume(tmp_path / "run", console=quiet)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert list((tmp_path / "outside").iterdir()) == []
    (tmp_path / "run" / name).unlink()
    assert resume(tmp_path / "run", console=quiet).step == 24


def test_runs_in_a_folder_are_named_unless_they_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/a", "runs/.b", ".c/d"):
        (tmp_path / folder / "checkpoints/step-000001").mkdir(parents=True)
    for path, named in ((".", "runs/a"), ("runs", "runs/a"), (".c", ".c/d")):
        with rejects(UsageError, path=Path(path)) as caught:
            find_checkpoint(path)
        assert f"contains runs: {named};" in str(caught.value)


def test_an_error_states_why_a_folder_has_no_checkpoint(tmp_path: Path) -> None:
    def error() -> str:
        with rejects(UsageError, path=tmp_path) as caught:
            find_checkpoint(tmp_path)
        return str(caught.value)

    assert "is not a run" in error()
    (tmp_path / "config.json").write_text("{}")
    assert "is a run without a checkpoint" in error()
    (tmp_path / "outcome.json").write_text("{}")
    assert 'keep = "model"' in error()
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert f"bytewright import {tmp_path}" in error()
    with rejects(UsageError, path=tmp_path):
        resume(tmp_path)


def test_a_run_that_cannot_be_created_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/plugins").symlink_to("../outside")
    with rejects(StorageError, path=tmp_path / "run/plugins") as caught:
        RunWriter.create(tmp_path / "run", make_config(tmp_path))
    assert not is_locked(tmp_path / "run")
    del caught  # its traceback refers to the frame that opened the lock


def test_a_resume_removes_the_leftovers_of_killed_processes(tmp_path: Path, quiet: Console) -> None:
    run = tmp_path / "run"
    train(make_config(tmp_path), run, console=quiet)
    (run / "samples").mkdir()
    leftovers = [
        run / ".config.json.01234567.bytewright-tmp",
        run / ".tokenizer.01234567.bytewright-tmp",
        run / "samples/.step-000003.txt.01234567.bytewright-tmp",
        run / "checkpoints/..step-000003.01234567.bytewright-tmp.89abcdef.bytewright-tmp",
    ]
    for path in leftovers:
        path.touch()
    resume(run, console=quiet)
    assert not any(path.exists() for path in leftovers)


@pytest.mark.parametrize("name", [".", ".lock", "metrics.jsonl", "config.json"])
@pytest.mark.parametrize("changes", [{}, {"save_every": 100, "log_every": 100, "eval_every": 100}])
def test_a_run_removed_during_training_fails_with_the_missing_path(
    tmp_path: Path, quiet: Console, name: str, changes: dict[str, Any]
) -> None:
    run = tmp_path / "run"
    calls = 0

    def removing(model: TransformerLM, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 5:
            shutil.rmtree(run) if name == "." else (run / name).unlink()
        return language_model_loss(model, ids, targets)

    with rejects(StorageError, path=run / name):
        train(make_config(tmp_path, **changes), run, console=quiet, loss=removing, final_checkpoint=False)
    assert run.exists() == (name != ".")


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json"])
def test_a_run_whose_files_are_overwritten_while_it_is_trained_fails(
    tmp_path: Path, quiet: Console, name: str
) -> None:
    run = tmp_path / "run"
    calls = 0

    def overwriting(model: TransformerLM, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 15:
            (run / name).write_text("{}")
        return language_model_loss(model, ids, targets)

    with rejects(StorageError, path=run / name):
        train(make_config(tmp_path), run, console=quiet, loss=overwriting)


def test_a_run_removed_during_a_save_fails_with_its_path(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_run(operation: str, *paths: Path) -> None:
        if operation == "create" and "step-000007" in str(paths[0]):
            shutil.rmtree(tmp_path / "run", ignore_errors=True)

    monkeypatch.setattr(filesystem, "before_operation", remove_run)
    with rejects(StorageError, path=tmp_path / "run"):
        train(make_config(tmp_path), tmp_path / "run", console=quiet)


def test_a_log_replaced_during_training_is_detected(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl").rename(tmp_path / "old.jsonl")
    (tmp_path / "metrics.jsonl").touch()
    with rejects(StorageError, path=tmp_path / "metrics.jsonl"):
        log.write({"step": 1})
    log.close()


def test_a_checkpoint_without_its_log_is_rejected_and_no_log_is_created(
    tmp_path: Path, quiet: Console
) -> None:
    train(make_config(tmp_path), tmp_path / "run", console=quiet)
    (tmp_path / "run/metrics.jsonl").unlink()
    with rejects(StorageError, path=tmp_path / "run/metrics.jsonl"):
        resume(tmp_path / "run", console=quiet)
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_a_run_records_no_host_name_no_absolute_path_and_no_command_line(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bytewright", "train", "secret.toml", "--out=/home/ada/secret"])
    monkeypatch.setattr(platform, "node", lambda: "host-of-ada")
    run = tmp_path / "runs/run"
    train(make_config(tmp_path), run, console=quiet)
    texts = {
        path: path.read_text() for path in run.rglob("*") if path.suffix != ".safetensors" and path.is_file()
    }
    assert {path.name for path in texts} >= {".lock", "config.json", "environment.json", "state.json"}
    for path, text in texts.items():
        assert not any(words in text for words in (str(tmp_path), "secret", "host-of-ada")), path
    assert json.loads(texts[run / "config.json"])["data"]["train"] == "../../train.npy"


@pytest.mark.parametrize("place", ["moved", "through a link", "elsewhere"])
def test_a_run_finds_its_data_from_anywhere_and_when_all_is_moved(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    config = make_config(project / "data", budget={"steps": 2})
    train(config, project / "runs/run", console=quiet)
    monkeypatch.chdir("/")
    run = project / "runs/run"
    if place == "moved":
        project.rename(tmp_path / "moved")
        run = tmp_path / "moved/runs/run"
    elif place == "through a link":
        (tmp_path / "link").symlink_to(run)
        run = tmp_path / "link"
    assert resume(run, console=quiet).step == 2
    data = run.resolve().parents[1] / "data"
    assert read_run_config(run).data.train == data / "train.npy"


def test_a_run_that_was_moved_away_from_its_data_names_the_place_to_correct(
    tmp_path: Path, quiet: Console
) -> None:
    train(make_config(tmp_path, budget={"steps": 2}), tmp_path / "run", console=quiet)
    (tmp_path / "far/away").mkdir(parents=True)
    shutil.move(tmp_path / "run", tmp_path / "far/away/run")
    with rejects(StorageError, path=tmp_path / "far/away/train.npy", exit_code=2) as caught:
        resume(tmp_path / "far/away/run", console=quiet)
    assert "--set data.train=" in str(caught.value)


def test_a_run_of_an_earlier_version_with_absolute_paths_is_resumed(tmp_path: Path, quiet: Console) -> None:
    run = tmp_path / "run"
    train(make_config(tmp_path), run, console=quiet)
    shutil.rmtree(find_checkpoint(run, which="last"))
    fields = atomic.read_document(run / "config.json")
    fields["data"] |= {name: str(tmp_path / f"{name}.npy") for name in ("train", "validation")}
    write_json(run / "config.json", fields)
    assert resume(run, console=quiet).num_new_steps == 3


def test_a_path_that_goes_up_from_a_link_is_the_one_that_the_system_finds(
    tmp_path: Path, quiet: Console
) -> None:
    (tmp_path / "disk/data").mkdir(parents=True)
    config = make_config(tmp_path / "disk", budget={"steps": 2})
    (tmp_path / "link").symlink_to("disk/data")
    data = dataclasses.replace(config.data, train=tmp_path / "link/../train.npy")
    train(dataclasses.replace(config, data=data), tmp_path / "run", console=quiet)
    assert resume(tmp_path / "run", console=quiet).step == 2


def events(run: Path) -> list[dict[str, Any]]:
    """The events of a run, without that of its end."""
    records = read_metrics(run / "metrics.jsonl")
    return [record for record in records if record.get("event", "ended") != "ended"]


def test_a_resume_in_another_environment_records_the_changes(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_power(model: TransformerLM, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise PowerCutError

    monkeypatch.setenv("BYTEWRIGHT_COMMIT", "first")
    with pytest.raises(PowerCutError):
        train(make_config(tmp_path), tmp_path / "run", console=quiet, loss=lose_power)
    monkeypatch.setenv("BYTEWRIGHT_COMMIT", "second")
    resume(tmp_path / "run", console=quiet)
    assert events(tmp_path / "run") == [
        {"step": 0, "event": "environment_changed", "changes": {"commit": ["first", "second"]}}
    ]


def test_a_complete_run_records_no_environment_changes(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make_config(tmp_path), tmp_path / "run", console=quiet)
    monkeypatch.setenv("BYTEWRIGHT_COMMIT", "another")
    resume(tmp_path / "run", console=quiet)
    assert events(tmp_path / "run") == []


def test_a_resume_in_the_same_environment_records_no_changes(tmp_path: Path, quiet: Console) -> None:
    train(make_config(tmp_path), tmp_path / "run", console=quiet)
    shutil.rmtree(find_checkpoint(tmp_path / "run", which="last"))
    resume(tmp_path / "run", console=quiet)
    assert events(tmp_path / "run") == []


def test_an_imported_model_is_a_run_without_training(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = TransformerLM(make_config(tmp_path).model)
    write_llama(model, tmp_path / "llama")
    run = import_llama(tmp_path / "llama", tmp_path / "runs" / "imported", with_tokenizer=False)
    opened = Run.open(run.path)
    assert opened.is_imported
    assert opened.status == RunStatus("imported", None, 0)
    assert opened.settings["model.d_model"] == 16
    manifest = atomic.open_folder(opened.checkpoints.at(0))
    assert opened.init == {
        "source": str(tmp_path / "llama"),
        "sha256": manifest.files["model.safetensors"].sha256,
        "step": None,
        "optimizer": False,
    }
    assert opened.environment["torch"] == torch.__version__
    with pytest.raises(UsageError) as caught:
        opened.resume()
    assert caught.value.path == run.path
    assert "--init" in str(caught.value)
    (row,) = list_runs([tmp_path / "runs"])
    assert (row["status"], row["init"], row["model.d_model"]) == ("imported", "llama", 16)


def test_an_import_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_disk(operation: str, path: Path, *_: Path) -> None:
        if operation == "write" and path.name == "model.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")

    model = TransformerLM(make_config(tmp_path).model)
    monkeypatch.setattr(filesystem, "before_operation", fill_disk)
    with pytest.raises(StorageError):
        write_imported_model(tmp_path / "run", model, None)
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    assert write_imported_model(tmp_path / "run", model, None).is_imported


def test_an_imported_model_of_an_earlier_version_is_listed(tmp_path: Path) -> None:
    run = write_imported_model(tmp_path / "old", TransformerLM(make_config(tmp_path).model), None)
    for name in ("environment.json", "costs.json"):
        (run.path / name).unlink()
    (row,) = list_runs([tmp_path / "old"])
    assert (row["status"], row["init"]) == ("imported", None)
