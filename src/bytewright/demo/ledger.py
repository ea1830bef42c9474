"""What an earlier run of the demo has made already, recognised by fingerprints: nothing is done twice.

For each stage a small file in `stages/` keeps three things: the fingerprint of everything that the stage
depends on, the size and SHA-256 of every file that it made, and its figures. A stage whose fingerprint is the
same and whose files are still what they were is not done again; anything else is. The file is written last,
through `durable`: a stage that was interrupted has none. This module does not know what the stages do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bytewright
from bytewright.errors import BytewrightError
from bytewright.storage import atomic
from bytewright.storage.manifest import measure

FORMAT = "bytewright demo stage 1"
STAGES, PLAN = "stages", "plan.json"
"""The folder of the records; that it is there marks a folder as the demo's own."""
MAX_RECORD_BYTES = 2**24


@dataclass(frozen=True, kw_only=True)
class Record:
    """A stage that is done: its figures, how long it took when it was done, and what identifies it."""

    facts: Mapping[str, Any]
    seconds: float
    identity: str
    """Fingerprint of its results: what a later stage depends on."""


class StageCache:
    """The stages of one folder that are done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, plan: Mapping[str, Any]) -> None:
        """Mark the folder as ours, and write down what will be made in it."""
        atomic.write_json(self.folder / STAGES / PLAN, plan)

    def leave(self) -> None:
        """Take the mark off a folder in which nothing was made."""
        with contextlib.suppress(OSError):
            made = {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}
            if made == {STAGES, f"{STAGES}/{PLAN}"}:
                (self.folder / STAGES / PLAN).unlink()
                (self.folder / STAGES).rmdir()
                self.folder.rmdir()

    def find(self, stage: str, inputs: Mapping[str, Any]) -> Record | None:
        """Return what is known of a stage if it was done with these inputs and its files are intact."""
        try:
            kept = atomic.read_document(self._path(stage), max_bytes=MAX_RECORD_BYTES)
        except BytewrightError:
            return None  # never done, or not by us: then it is done now
        if kept.get("fingerprint") != fingerprint(stage, inputs):
            return None
        files = kept.get("files")
        if not isinstance(files, dict) or self._measure(files) != files:
            return None
        return _record(kept)

    def keep(
        self,
        stage: str,
        inputs: Mapping[str, Any],
        files: Iterable[str],
        facts: Mapping[str, Any],
        seconds: float,
    ) -> Record:
        """Write down that a stage is done, and what it made."""
        kept = {
            "format": FORMAT,
            "fingerprint": fingerprint(stage, inputs),
            "seconds": seconds,
            "facts": facts,
            "files": self._measure(files),
        }
        atomic.write_document(self._path(stage), kept)
        return _record(kept)

    def do(
        self,
        stage: str,
        inputs: Mapping[str, Any],
        files: Iterable[str],
        work: Callable[[], Mapping[str, Any]],
    ) -> Record:
        """Do a stage and write that down; `work` returns its figures."""
        started = time.perf_counter()
        facts = work()
        return self.keep(stage, inputs, files, facts, time.perf_counter() - started)

    def _path(self, stage: str) -> Path:
        return self.folder / STAGES / f"{stage}.json"

    def _measure(self, names: Iterable[str]) -> dict[str, Any]:
        found = {}
        for name in names:
            path = self.folder / name
            entry = measure(path) if path.is_file() else None
            found[name] = entry and {"bytes": entry.num_bytes, "sha256": entry.sha256}
        return found


def fingerprint(stage: str, inputs: Mapping[str, Any]) -> str:
    """Fold the name of a stage, everything that it depends on and the version of the program into one hash.

    >>> fingerprint("stories", {"seed": 1}) == fingerprint("stories", {"seed": 1})
    True
    >>> fingerprint("stories", {"seed": 1}) == fingerprint("stories", {"seed": 2})
    False
    """
    return _hash([FORMAT, bytewright.__version__, stage, inputs])


def _record(kept: Mapping[str, Any]) -> Record:
    # The figures are results, too, but how long something took is not.
    identity = _hash([kept["fingerprint"], kept["files"], kept["facts"]])
    return Record(facts=kept["facts"], seconds=kept["seconds"], identity=identity)


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
