"""A run that is killed with SIGKILL at any moment and resumed has the bits of an uninterrupted run."""

from __future__ import annotations

import errno
import functools
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from kill_and_resume import run_session
from rich.console import Console

import bytewright
from bytewright.errors import StorageError
from bytewright.storage import atomic, filesystem
from bytewright.train import Run, resume, train
from bytewright.train.checkpoint import CheckpointFolder
from bytewright.train.metrics_log import MetricsLog
from bytewright.train.recipe import to_plain
from bytewright.train.run_files import RunWriter
from conftest import HANG_SECONDS
from runs import digest, make_config, metrics_without_clock

pytestmark = pytest.mark.fault


def kill_and_resume(folder: Path, seed: int, num_kills: int, *kinds: str, **changes: Any) -> list[str]:
    """Train once without interruption and once with kills; compare all files; return the kills."""
    folder.mkdir(exist_ok=True)
    atomic.write_json(folder / "config.json", to_plain(make_config(folder, **changes)))
    source = str(Path(bytewright.__file__).parents[1])
    script = Path(__file__).with_name("kill_and_resume.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(seed), str(num_kills), *kinds],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    killed: list[str] = json.loads(done.stdout)
    whole = folder / "whole"
    assert metrics_without_clock(folder / "killed") == metrics_without_clock(whole)
    assert digest(folder / "killed") == digest(whole)
    left = CheckpointFolder(folder / "killed" / "checkpoints")
    assert left.steps() == CheckpointFolder(whole / "checkpoints").steps()
    assert [path.name for path in left.path.iterdir() if path.name.startswith(".")] == []
    return killed


def test_a_run_killed_during_steps_and_saves_ends_with_the_same_bits(tmp_path: Path) -> None:
    killed = kill_and_resume(tmp_path, 0, 6, "operation", "forward", budget={"steps": 40})
    assert len(killed) == 6, killed


@pytest.mark.parametrize(("seed", "num_kills"), [(0, 3), pytest.param(2, 20, marks=pytest.mark.slow)])
def test_a_run_that_started_from_weights_and_was_killed_ends_with_the_same_bits(
    tmp_path: Path, seed: int, num_kills: int
) -> None:
    """The first kills are early: before and during the write of the initial weights as a checkpoint."""
    config = make_config(tmp_path, budget={"steps": 8})
    train(config, tmp_path / "init", console=Console(file=io.StringIO()))
    changes = {"budget": {"steps": 40 if num_kills < 10 else 300}, "schedule": {"kind": "constant"}}
    killed = kill_and_resume(tmp_path, seed, num_kills, "operation", "forward", **changes)
    assert len(killed) == num_kills, killed
    assert Run(tmp_path / "killed").init == Run(tmp_path / "whole").init


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_killed_twenty_times_ends_with_the_same_bits(tmp_path: Path, optimizer: str) -> None:
    killed = kill_and_resume(
        tmp_path,
        1,
        20,
        "operation",
        "forward",
        "millisecond",
        optimizer={"name": optimizer},
        budget={"steps": 600},
    )
    assert len(killed) == 20, killed


@pytest.mark.slow
def test_a_run_killed_at_any_disk_operation_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """For each k, a new run is killed at its k-th disk operation and resumed."""
    # Sessions replace this hook: restore it after the test.
    monkeypatch.setattr(filesystem, "before_operation", filesystem.before_operation)
    request.addfinalizer(functools.partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(1)  # a forked child would wait forever for threads that it does not have
    num_operations = count_operations(tmp_path / "counted")
    for k in range(1, num_operations + 1):
        folder = tmp_path / f"{k}"
        folder.mkdir()
        atomic.write_json(folder / "config.json", to_plain(make_config(folder)))
        if (child := os.fork()) == 0:
            run_session(folder / "run", "operation", k)
            os._exit(1)  # it should have been killed
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        run_session(folder / "run", None, 0)
        assert digest(folder / "run") == digest(tmp_path / "counted" / "run")


def count_operations(folder: Path) -> int:
    folder.mkdir()
    config = make_config(folder)
    seen: list[str] = []
    filesystem.before_operation = lambda operation, *_: seen.append(operation)
    try:
        train(config, folder / "run", console=Console(file=io.StringIO()))
    finally:
        filesystem.before_operation = filesystem._do_nothing
    return len(seen)


def test_a_disk_that_fills_up_during_a_save_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With space again, the resumed run ends with the same bits."""
    train(make_config(tmp_path), tmp_path / "whole", console=Console(file=io.StringIO()))
    num_writes = 0

    def fill_up(operation: str, *paths: Path) -> None:
        nonlocal num_writes
        if operation == "write" and "step-000014" in str(paths[0]):
            num_writes += 1
            if num_writes > 3:
                raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(filesystem, "before_operation", fill_up)
    with pytest.raises(StorageError) as caught:
        train(make_config(tmp_path), tmp_path / "run", console=Console(file=io.StringIO()))
    assert caught.value.errno == errno.ENOSPC
    assert "step-000014" in str(caught.value)
    monkeypatch.undo()
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").steps() == [7]
    resume(tmp_path / "run", console=Console(file=io.StringIO()))
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


@pytest.mark.parametrize(
    ("operation", "k"), [("open", 1), ("truncate", 1), ("append", 1), ("append", 6), ("sync", 2)]
)
def test_a_log_that_cannot_be_written_stops_the_run_and_is_repaired_by_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_run: Path, operation: str, k: int
) -> None:
    """An append that fails leaves an incomplete line, as on a disk that fills up."""
    num_seen = 0

    def fail_at_the_kth(kind: str, *paths: Path) -> None:
        nonlocal num_seen
        if kind == operation and paths[0].name == "metrics.jsonl":
            num_seen += 1
            if num_seen == k:
                if kind == "append":
                    paths[0].write_bytes(paths[0].read_bytes() + b'{"step": 1')
                raise OSError(errno.ENOSPC, "No space left on device")

    quiet = Console(file=io.StringIO())
    monkeypatch.setattr(filesystem, "before_operation", fail_at_the_kth)
    with pytest.raises(StorageError) as caught:
        train(make_config(tmp_path), tmp_path / "run", console=quiet)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    resume(tmp_path / "run", console=quiet)
    assert digest(tmp_path / "run") == digest(whole_run)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    train(make_config(folder), folder / "run", console=Console(file=io.StringIO()))
    return folder / "run"


def test_a_full_disk_under_the_log_is_reported_once(tmp_path: Path) -> None:
    """/dev/full rejects every write with ENOSPC; closing the log does not write again."""
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full does not exist")
    log = MetricsLog(tmp_path / "metrics.jsonl")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._file.fileno())
    os.close(full)
    with pytest.raises(StorageError) as caught:
        log.write({"step": 1})
    assert caught.value.errno == errno.ENOSPC
    log.close()


def test_a_killed_writer_holds_no_lock(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", make_config(tmp_path))
    if (child := os.fork()) == 0:
        os._exit(0)  # the child inherited the lock
    os.waitpid(child, 0)
    assert Run.open(tmp_path / "run").is_locked
    run.close()
    assert not Run.open(tmp_path / "run").is_locked
    RunWriter.open(tmp_path / "run").close()
