"""A run is a folder of plain files, and one process at a time writes it.

`config.json` (the resolved config), `environment.json` (where and with what it began), `tokenizer/` (if one
was given), `metrics.jsonl`, `checkpoints/` and `samples/`. `create` refuses a folder that holds anything;
`open` takes one that is there. Both hold a lock of the operating system for as long as the process lives, so
a killed writer leaves nothing to clean up. Nothing here knows how training works.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import bytewright
from bytewright.errors import BytewrightError, StorageError, UsageError
from bytewright.storage import atomic, filesystem
from bytewright.train.checkpoint import CheckpointFolder
from bytewright.train.config import TrainConfig
from bytewright.train.metrics import read_metrics
from bytewright.train.recipe import flatten, read_config, to_plain
from bytewright.train.resume_policy import End, judge_end

if TYPE_CHECKING:
    from bytewright.tokenizer import Tokenizer, Vocabulary  # at run time only where a run has one

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
LOCK = ".lock"
SAMPLES = "samples"
TOKENIZER = "tokenizer"
FOLDERS = (TOKENIZER, "checkpoints", SAMPLES, "tensorboard")
OUTCOME = "outcome.json"
"""How a run ended, written by the sweep that it is part of."""
MOVED = "resumed with"
"""How the event begins that tells of a run that went on elsewhere, or with other code."""
TRIES = 30
"""How often a lock that is held is tried, a hundredth of a second apart."""
QUIETLY: Mapping[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 10}


class RunFolder:
    """A run that this process writes. Use as a context manager: leaving it releases the lock."""

    def __init__(self, path: Path, lock: io.FileIO) -> None:
        self.path = path
        self._lock = lock
        self._config = b""
        self.checkpoints = CheckpointFolder(path / "checkpoints")
        for name in (METRICS, *FOLDERS):
            atomic.check_no_links(path / name, within=path)
        for folder in (path, self.checkpoints.path, path / SAMPLES):
            atomic.remove_leftovers(folder, within=path)

    @classmethod
    def create(cls, path: Path, config: TrainConfig) -> RunFolder:
        """Start a run in a new or empty folder."""
        refuse_existing_run(path)
        run = cls(path, _lock(path))
        with contextlib.ExitStack() as on_error:
            on_error.callback(run.close)
            refuse_existing_run(path)  # another process may have been quicker to the lock
            atomic.write_document(path / ENVIRONMENT, describe_environment(), within=path)
            atomic.write_document(path / CONFIG, to_plain(config, run=path), within=path)
            run._config = atomic.read_bytes(path / CONFIG)
            on_error.pop_all()
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open a run that exists; a run that holds symbolic links where it is written is refused."""
        config_of(path)
        lock = _lock(path)
        try:
            run = cls(path, lock)
            run._config = atomic.read_bytes(path / CONFIG)
            return run
        except BaseException:
            lock.close()
            raise

    @property
    def metrics(self) -> Path:
        """Where the metrics are."""
        return self.path / METRICS

    def write_tokenizer(self, vocabulary: Vocabulary) -> None:
        """Keep the tokenizer with the run, so that the run can write text wherever it is taken."""
        from bytewright.tokenizer.files import write_folder

        write_folder(vocabulary, self.path / TOKENIZER, replace=True, within=self.path)

    def write_sample(self, step: int, text: str) -> None:
        """Keep a sample of what the model writes at `step`."""
        atomic.write_text(self.path / SAMPLES / f"step-{step:06d}.txt", text, within=self.path)

    def refuse_removed(self) -> None:
        """Raise if the lock or config.json was removed or changed since this process opened the run.

        Without its lock a second process could write the same run. Without its config.json the run can be
        neither resumed nor reported.
        """
        filesystem.check_still_present(self.path / LOCK, self._lock.fileno())
        filesystem.check_still_present(self.path / CONFIG)
        if atomic.read_bytes(self.path / CONFIG) != self._config:
            raise StorageError(
                f"{self.path / CONFIG} was changed while it was in use; restore it, then resume"
            )

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def config_of(path: Path) -> TrainConfig:
    """Read the config that a run was started with."""
    if not (path / CONFIG).is_file():
        raise UsageError(f"{path}: is not a run, for it has no config.json")
    return read_config(path / CONFIG)


def run_of_checkpoint(checkpoint: Path) -> Path | None:
    """Give the folder that a checkpoint lies in as those of a run do; None where it lies by itself."""
    folder = checkpoint.absolute().parent
    return folder.parent if folder.name == "checkpoints" else None


def config_of_checkpoint(checkpoint: Path) -> TrainConfig | None:
    """Read the config of the run that a checkpoint is part of; an imported model has none."""
    run = run_of_checkpoint(checkpoint)
    return config_of(run) if run and (run / CONFIG).is_file() else None


def load_tokenizer_of(path: Path) -> Tokenizer:
    """Load the tokenizer that a run keeps, given the run or one of its checkpoints."""
    from bytewright.tokenizer import Tokenizer
    from bytewright.tokenizer.files import read_vocabulary

    for folder in (path, run_of_checkpoint(path)):
        if folder and (folder / TOKENIZER).is_dir():
            return Tokenizer.from_vocabulary(read_vocabulary(folder / TOKENIZER))
    raise UsageError(f"{path} keeps no tokenizer, so it has ids but no text; train with data.tokenizer set")


def find_end(path: Path, config: TrainConfig) -> End | None:
    """Return how a run ended that keeps no checkpoint; None if it has not ended, or keeps one."""
    if not has_lines(path) or CheckpointFolder(path / "checkpoints").steps():
        return None
    outcome = atomic.read_document(path / OUTCOME) if (path / OUTCOME).is_file() else {}
    return judge_end(flatten(to_plain(config)), list(read_metrics(path / METRICS)), outcome)


def refuse_finished(path: Path, config: TrainConfig) -> None:
    """Raise if a run has ended and keeps no checkpoint, as those of sweeps: its metrics would be erased."""
    end = find_end(path, config)
    if end is not None:
        ended = "is complete" if end == "complete" else "has diverged"
        raise UsageError(f"{path} {ended}, and its checkpoints were not kept; there is nothing to resume")


def refuse_existing_run(path: Path) -> None:
    """Raise if `path` is anything but a new or empty folder."""
    if (path / CONFIG).exists():
        raise UsageError(
            f"{path} holds a run already; continue it with `bytewright resume {path}`, or choose another name"
        )
    atomic.check_target(path / CONFIG)
    if path.is_dir():
        foreign = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
        if [name for name in foreign if name != ENVIRONMENT]:
            raise UsageError(
                f"{path} is not empty (it holds {foreign[0]!r}); choose another folder for the run"
            )


def discard_run(path: Path) -> None:
    """Remove what `create` and a first step have made of a run, and the folder if nothing else is in it."""
    for name in (CONFIG, ENVIRONMENT, METRICS, LOCK, *FOLDERS):
        atomic.remove_if_present(path / name, within=path)
    with contextlib.suppress(OSError):
        path.rmdir()


def refuse_without_space(path: Path, num_bytes: int) -> None:
    """Raise if the disk of `path` has less than `num_bytes` left."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        raise StorageError(
            f"{path}: the checkpoints of this run need {num_bytes / 1e6:,.0f} MB, "
            f"but the disk has {free / 1e6:,.0f} MB left"
        )


def describe_environment() -> dict[str, object]:
    """Say where and with what a run runs."""
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
    except OSError:  # no Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None


def describe_move(run: Path) -> str | None:
    """Say what is not as it was where the run at `run` began: its environment.json tells; None: all is."""
    try:
        before = atomic.read_document(run / ENVIRONMENT)
    except BytewrightError:
        return None  # it only informs, and a run goes on without it
    changes = [
        f"{name} {now} (was {before[name]})"
        for name, now in describe_environment().items()
        if name != "started" and name in before and before[name] != now
    ]
    return f"{MOVED} {', '.join(changes)}" if changes else None


def find_commit() -> str | None:
    """Name the commit of the source that runs, with "-dirty" if files differ from it; None if nobody knows.

    The environment variable BYTEWRIGHT_COMMIT has the first word: a mere copy of
    the source has no history.
    """
    if told := os.environ.get("BYTEWRIGHT_COMMIT"):
        return told
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        # Only where git keeps this very file: an installed package may lie in someone else's repository.
        subprocess.run(["git", "-C", here, "ls-files", "--error-unmatch", __file__], check=True, **QUIETLY)
        return subprocess.run(command, check=True, text=True, **QUIETLY).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def has_lines(path: Path) -> bool:
    """Say whether the run at `path` has come as far as a line of metrics."""
    metrics = path / METRICS
    return metrics.is_file() and metrics.stat().st_size > 0


def is_being_written(path: Path) -> bool:
    """Say whether some process holds the lock of the run at `path` right now."""
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


def _take(lock: io.FileIO) -> bool:
    """Take a lock unless it stays with another; who only looks (`is_being_written`) is gone in a moment."""
    for _ in range(TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        else:
            return True
    return False


def _lock(path: Path) -> io.FileIO:
    """Take the lock of a run folder; raise an error that names the process that holds it."""
    lock = atomic.open_to_append(path / LOCK)
    with atomic.explain("write", path), contextlib.ExitStack() as on_error:
        on_error.callback(lock.close)
        if not _take(lock):
            lock.seek(0)
            holder = lock.read(100).decode(errors="replace").strip() or "another process"
            raise UsageError(f"{path} is being written by {holder}; a run has one writer at a time")
        lock.truncate(0)
        lock.write(f"process {os.getpid()}\n".encode())
        on_error.pop_all()
    return lock
