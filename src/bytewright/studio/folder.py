"""Find the runs, tokenizers and reports below a folder, each with an id for requests.

An id is a hash of the path below the folder, so it is the same after a restart. Requests contain only ids: an
id that no scan has found is rejected. A scan does not follow symbolic links, is bounded in depth and in the
number of folders, and skips folders that cannot be read.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bytewright.errors import UsageError
from bytewright.experiments.listing import MAX_DEPTH
from bytewright.serve.guard import RejectedError
from bytewright.train.checkpoint_list import CHECKPOINTS
from bytewright.train.run import Run
from bytewright.train.run_files import CONFIG, ENVIRONMENT, METRICS_LOG

SCAN_SECONDS = 2.0
"""A scan is repeated after this time, when the result is needed."""
MAX_FOLDERS = 20_000
TOKENIZER_FILES = ("vocabulary.json", "tokenizer.json", "vocab.json")
"""A folder with one of these files is a tokenizer, in the format of Bytewright, Hugging Face or GPT-2."""
REPORT_SUFFIX = ".html"


@dataclass(frozen=True)
class Found:
    """A run, tokenizer or report."""

    id: str
    name: str
    """The path below the folder, as the page shows it."""
    path: Path
    modified: float


@dataclass
class Scan:
    """What a scan has found, by id."""

    runs: dict[str, Found] = field(default_factory=dict)
    tokenizers: dict[str, Found] = field(default_factory=dict)
    reports: dict[str, Found] = field(default_factory=dict)
    is_complete: bool = True
    """Whether all folders were searched; False if there are more than `MAX_FOLDERS`."""


class StudioFolder:
    """The folder that a studio shows. All methods may be called from any thread."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise UsageError(f"{path} {what}; name a folder with runs", path=path)
        self.path = path.absolute()
        self.argument = shlex.quote(str(path))
        """The folder as the user named it, quoted for the commands that the page proposes."""
        self._clock = clock
        self._lock = threading.Lock()
        self._scan: tuple[float, Scan] | None = None

    @property
    def name(self) -> str:
        """The name of the folder, as the page shows it."""
        return self.path.resolve().name or str(self.path)

    def scan(self) -> Scan:
        """Return what is below the folder; at most `SCAN_SECONDS` old."""
        with self._lock:
            now = self._clock()
            if self._scan is None or now - self._scan[0] >= SCAN_SECONDS:
                self._scan = now, _scan(self.path)
            return self._scan[1]

    def find_run(self, id: str) -> Run:
        """Return the run with an id; raise `RejectedError` with status 404 if there is none."""
        return Run(self._find(self.scan().runs, id, "run").path)

    def find_tokenizer(self, id: str) -> Found:
        """Return the tokenizer with an id; raise `RejectedError` with status 404 if there is none."""
        return self._find(self.scan().tokenizers, id, "tokenizer")

    def find_report(self, id: str) -> Found:
        """Return the report with an id; raise `RejectedError` with status 404 if there is none."""
        return self._find(self.scan().reports, id, "report")

    def _find(self, found: dict[str, Found], id: str, kind: str) -> Found:
        if id not in found:
            raise RejectedError(404, f"the folder has no such {kind}; it may have been moved or removed")
        return found[id]


def make_id(name: str) -> str:
    """Return the id of a path below the folder.

    >>> make_id("runs/tiny")
    'fe7e18884f51'
    """
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:12]


def _scan(root: Path) -> Scan:
    """Search `root` for runs, tokenizers and reports."""
    scan, budget = Scan(), MAX_FOLDERS
    pending = [(root, 0)]
    while pending:
        folder, depth = pending.pop()
        if not budget:
            scan.is_complete = False
            break
        budget -= 1
        try:
            folders = _scan_folder(scan, root, folder)
        except OSError:  # the folder or an entry of it cannot be read, or was removed meanwhile
            continue
        if depth < MAX_DEPTH:
            pending += [(each, depth + 1) for each in reversed(folders)]
    return scan


def _scan_folder(scan: Scan, root: Path, folder: Path) -> list[Path]:
    """Add what a folder contains to `scan`; return the folders in it, unless it is a run."""
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    folders = [entry.name for entry in entries if _is_folder(entry)]
    files = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    run = Run(folder)
    is_run = _is_run(run, files, folders)
    if is_run:
        _add(scan.runs, root, folder)
        if (tokenizer := run.tokenizer_path) is not None and not tokenizer.is_symlink():
            _add(scan.tokenizers, root, tokenizer)
    elif any(name in files for name in TOKENIZER_FILES):
        _add(scan.tokenizers, root, folder)
    for name in files:
        if name.endswith(REPORT_SUFFIX):
            _add(scan.reports, root, folder / name)
    return [] if is_run else [folder / name for name in folders]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")


def _is_run(run: Run, files: Sequence[str], folders: Sequence[str]) -> bool:
    """Return whether a folder holds a run, also a broken one; sampled texts of a sweep are not runs."""
    if CONFIG in files and (ENVIRONMENT in files or METRICS_LOG in files):
        return True
    try:
        return CHECKPOINTS in folders and run.is_imported
    except OSError:
        return False


def _add(found: dict[str, Found], root: Path, path: Path) -> None:
    name = os.path.relpath(path, root)
    shown = os.fsencode(root.resolve().name if name == "." else name).decode(errors="replace")
    try:
        modified = path.stat().st_mtime
    except OSError:
        return
    found[make_id(name)] = Found(make_id(name), shown, path, modified)
