"""The files of a run's folder, and the one process at a time that writes them.

A run is a folder of plain files: `config.json` (the resolved config), `environment.json` (machine and
versions at its start), `costs.json` (its predicted costs), `init.json` (if it started from saved weights),
`tokenizer/` (if one was given), `metrics.jsonl`, `checkpoints/` and `samples/`. A sweep adds `outcome.json`.
A run whose config names parts of plugins has `plugins.json` and copies of these files in `plugins/`.
`RunWriter` holds a lock of the operating system. The system releases it when the process ends, also if the
process is killed. Read a run with `run.Run`.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import bytewright
from bytewright.errors import BytewrightError, StorageError, UsageError
from bytewright.plugins import COPIES, PLUGINS, check_loaded, check_recorded, write_plugins
from bytewright.storage import atomic, filesystem
from bytewright.storage.json_reader import Json
from bytewright.train.checkpoint_list import (
    CHECKPOINTS,
    STATE,
    CheckpointList,
    Which,
    format_runs_in,
    open_checkpoint,
)
from bytewright.train.config import TrainConfig
from bytewright.train.recipe import flatten, read_config, to_plain

if TYPE_CHECKING:
    from bytewright.tokenizer import Vocabulary  # at run time only if a run has a tokenizer

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
INIT = "init.json"
"""Where the weights of a run came from, if it did not start from random ones."""
METRICS_LOG = "metrics.jsonl"
COSTS = "costs.json"
"""The predicted costs of a run, and those counted on its model."""
OUTCOME = "outcome.json"
"""What a sweep records about a run: its labels, the prediction, and how it ended."""
LOCK = ".lock"
SAMPLES = "samples"
TOKENIZER = "tokenizer"
FOLDERS = (TOKENIZER, CHECKPOINTS, SAMPLES, COPIES, "tensorboard")
FILE_NAMES = (CONFIG, ENVIRONMENT, INIT, PLUGINS, METRICS_LOG, COSTS, OUTCOME, *FOLDERS)
LOCK_ATTEMPTS = 30
"""How often a held lock is tried, at intervals of 10 ms."""
QUIETLY: Mapping[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 10}


class RunWriter:
    """A run that this process writes. Use it as a context manager: leaving it releases the lock."""

    def __init__(self, path: Path, lock: io.FileIO) -> None:
        from bytewright.train.checkpoint import CheckpointFolder  # imports torch, which readers do not need

        self.path = path
        self._lock = lock
        self._config = b""
        self.checkpoints = CheckpointFolder(path / CHECKPOINTS)
        for name in (METRICS_LOG, *FOLDERS):
            atomic.check_no_links(path / name, within=path)
        for folder in (path, self.checkpoints.path, path / SAMPLES):
            atomic.remove_leftovers(folder, within=path)

    @classmethod
    def create(
        cls, path: Path, config: TrainConfig, *, init: Mapping[str, object] | None = None
    ) -> RunWriter:
        """Start a run in a new or empty folder; `init` describes the weights that it starts from."""
        check_new_run(path)
        with contextlib.ExitStack() as on_error:
            lock = _lock(path)
            on_error.callback(lock.close)
            writer = cls(path, lock)
            check_new_run(path)  # another process may have created it before this one got the lock
            atomic.write_document(path / ENVIRONMENT, describe_environment(), within=path)
            if init is not None:
                atomic.write_document(path / INIT, init, within=path)
            elif (path / INIT).exists():  # of a process that was killed before it wrote the config
                atomic.remove_if_present(path / INIT, within=path)
            write_plugins(path, flatten(to_plain(config)))
            writer.write_config(config)
            on_error.pop_all()
        return writer

    @classmethod
    def open(cls, path: Path) -> RunWriter:
        """Open an existing run; raise if a file or folder to be written is a symbolic link."""
        read_run_config(path)
        with contextlib.ExitStack() as on_error:
            lock = _lock(path)
            on_error.callback(lock.close)
            writer = cls(path, lock)
            writer._config = atomic.read_bytes(path / CONFIG)
            on_error.pop_all()
        return writer

    @property
    def metrics(self) -> Path:
        """The path of the metrics log."""
        return self.path / METRICS_LOG

    def write_tokenizer(self, vocabulary: Vocabulary) -> None:
        """Store the tokenizer in the run, so that a copy of the folder can generate text."""
        from bytewright.tokenizer.formats import write_bytewright

        write_bytewright(vocabulary, self.path / TOKENIZER, replace=True, within=self.path)

    def write_sample(self, step: int, text: str) -> None:
        """Store a text that the model wrote at `step`."""
        atomic.write_text(self.path / SAMPLES / f"step-{step:06d}.txt", text, within=self.path)

    def write_costs(self, costs: Mapping[str, Any]) -> None:
        """Store the costs of the run, which `costs.describe_costs` returns."""
        atomic.write_document(self.path / COSTS, costs, within=self.path)

    def write_config(self, config: TrainConfig) -> None:
        """Replace the config of the run."""
        atomic.write_document(self.path / CONFIG, to_plain(config, run=self.path), within=self.path)
        self._config = atomic.read_bytes(self.path / CONFIG)

    def check_unchanged(self) -> None:
        """Raise if the lock or config.json was removed or changed since this process opened the run.

        Without its lock a second process could write the same run. Without its config.json the run can be
        neither resumed nor reported.
        """
        filesystem.check_still_present(self.path / LOCK, self._lock.fileno())
        filesystem.check_still_present(self.path / CONFIG)
        if atomic.read_bytes(self.path / CONFIG) != self._config:
            message = f"{self.path / CONFIG} was changed while it was in use; restore it, then resume"
            raise StorageError(message, path=self.path / CONFIG)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_run_config(path: Path) -> TrainConfig:
    """Read the config of a run; the paths of its data become absolute, and its plugins must be loaded."""
    if not (path / CONFIG).is_file():
        if is_imported(path):
            message = f"{path} is an imported model, which has no training to continue; start a run from it"
            raise UsageError(f"{message} with `bytewright train RECIPE --init {path}`", path=path)
        raise UsageError.at(path, describe_no_run(path))
    if is_llama_folder(path):
        raise UsageError.at(path, describe_no_run(path))
    check_loaded(path)
    config = read_config(path / CONFIG)
    check_recorded(path, flatten(to_plain(config)))
    return config


def is_imported(path: Path) -> bool:
    """Return whether a folder holds an imported model: a checkpoint of step 0, without a config."""
    return not (path / CONFIG).is_file() and CheckpointList(path / CHECKPOINTS).steps() == [0]


def is_llama_folder(path: Path) -> bool:
    """Return whether a folder is a model of `transformers`, not a run or a checkpoint."""
    is_ours = (path / CHECKPOINTS).is_dir() or (path / STATE).is_file()
    return (
        not is_ours
        and (path / CONFIG).is_file()
        and Json.read(path / CONFIG).get("model_type").value is not None
    )


def describe_no_run(path: Path) -> str:
    """Return why `path` is not a run, with the runs that it contains or belongs to."""
    if path.is_file():
        return "is a file; name the folder of a run"
    if is_llama_folder(path):
        return f"is a model of transformers; make a run of it with `bytewright import {path} --out RUN`"
    if path.parent.name == CHECKPOINTS and (path.parent.parent / CONFIG).is_file():
        return f"is a checkpoint; name its run, {path.parent.parent}"
    return format_runs_in(path, ENVIRONMENT) or f"is not a run: it has no {CONFIG}"


def describe_no_checkpoint(path: Path) -> str:
    """Return why the folder `path` has no checkpoint."""
    if not (path / CONFIG).is_file() or is_llama_folder(path):
        return describe_no_run(path)
    if (path / OUTCOME).is_file():
        return 'has no checkpoint: sweeps keep the models of their runs only with keep = "model"'
    return "is a run without a checkpoint: it ended before it saved one, or its checkpoints were removed"


def find_checkpoint(path: atomic.StrPath, *, which: str = "best") -> Path:
    """Return the folder of a checkpoint: `path` itself, or the "best" or "last" one of the run at `path`."""
    path = Path(path)
    if which not in get_args(Which):
        raise UsageError(f"which must be 'best' or 'last', not {which!r}", key="which", found=which)
    if not path.exists():
        raise UsageError.at(path, "does not exist; name the folder of a run or of one checkpoint")
    if (path / STATE).is_file():
        return path
    checkpoints = CheckpointList(path / CHECKPOINTS)
    steps = checkpoints.steps()
    if not path.is_dir():
        raise UsageError.at(path, "is a file; name the folder of a run or of one checkpoint")
    if not steps:
        runs = format_runs_in(path, f"{CHECKPOINTS}/step-*")
        raise UsageError.at(path, runs or describe_no_checkpoint(path))
    if which == "best":
        best = open_checkpoint(checkpoints.at(steps[-1])).read_json(STATE)
        if isinstance(best, dict) and best.get("best_step") in steps:
            return checkpoints.at(best["best_step"])
    return checkpoints.at(steps[-1])


def read_if_present(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; a missing file is an empty object."""
    return atomic.read_document(path, max_bytes=2**26) if path.is_file() else {}


def read_init(path: Path) -> dict[str, Any]:
    """Read the init.json of a run, with the absolute path of the source; empty if it has none."""
    record = read_if_present(path / INIT)
    if isinstance(source := record.get("source"), str):
        record["source"] = os.path.normpath(os.path.join(os.path.realpath(path), source))
    return record


def check_new_run(path: Path) -> None:
    """Raise unless `path` is a new or empty folder."""
    if (path / CONFIG).exists():
        advice = f"continue it with `bytewright resume {path}`, or choose another name"
        raise UsageError(f"{path} holds a run already; {advice}", path=path)
    atomic.check_target(path / CONFIG)
    if path.is_dir():
        foreign = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
        if [name for name in foreign if name not in (ENVIRONMENT, INIT, PLUGINS, COPIES)]:
            message = f"{path} is not empty (it holds {foreign[0]!r}); choose another folder for the run"
            raise UsageError(message, path=path, found=foreign[0])


def discard_run(path: Path) -> None:
    """Remove the files of a run that has no metrics yet, and its folder if nothing else is in it."""
    for name in (CONFIG, ENVIRONMENT, INIT, PLUGINS, COSTS, METRICS_LOG, LOCK, *FOLDERS):
        atomic.remove_if_present(path / name, within=path)
    with contextlib.suppress(OSError):
        path.rmdir()


def describe_environment() -> dict[str, object]:
    """Return the machine and the versions that a run uses."""
    import torch

    return {
        "bytewright": bytewright.__version__,
        "commit": find_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": _find_processor(),
        "num_cores": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _find_processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None


def find_environment_changes(run: Path) -> dict[str, list[object]]:
    """Return what differs from the environment that a run started in: name to [before, now]."""
    try:
        before = atomic.read_document(run / ENVIRONMENT)
    except BytewrightError:
        return {}  # the file is informative only: a run can be resumed without it
    return {
        name: [before[name], now]
        for name, now in describe_environment().items()
        if name != "started" and name in before and before[name] != now
    }


def find_commit() -> str | None:
    """Return the commit of the running source, with "-dirty" if files differ from it, or None if unknown.

    The environment variable BYTEWRIGHT_COMMIT takes precedence: a copy of the source has no history.
    """
    if commit := os.environ.get("BYTEWRIGHT_COMMIT"):
        return commit
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        # Only if git tracks this file: an installed package may lie in another repository.
        subprocess.run(["git", "-C", here, "ls-files", "--error-unmatch", __file__], check=True, **QUIETLY)
        return subprocess.run(command, check=True, text=True, **QUIETLY).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def has_records(path: Path) -> bool:
    """Return whether the metrics log of the run at `path` has any record."""
    metrics = path / METRICS_LOG
    return metrics.is_file() and metrics.stat().st_size > 0


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of the run at `path`."""
    try:
        lock = filesystem.open_regular(path / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _acquire(lock: io.FileIO) -> bool:
    """Acquire a lock, with retries: `is_locked` holds it for a moment."""
    for _ in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        else:
            return True
    return False


def _lock(path: Path) -> io.FileIO:
    """Lock a run folder, or raise an error that names the process that holds the lock."""
    lock = atomic.open_to_append(path / LOCK)
    with atomic.explain("write", path), contextlib.ExitStack() as on_error:
        on_error.callback(lock.close)
        if not _acquire(lock):
            lock.seek(0)
            holder = lock.read(100).decode(errors="replace").strip() or "another process"
            message = f"{path} is being written by {holder}; wait until it ends or stop it, then try again"
            raise UsageError(message, path=path, found=holder)
        lock.truncate(0)
        lock.write(f"process {os.getpid()}\n".encode())
        on_error.pop_all()
    return lock
