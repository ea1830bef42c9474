"""metrics.jsonl: one line of JSON per record, appended as the run goes, cut back exactly on a resume.

A line holds the fields of one step; which ones is up to the loop. `MEASURED_FIELDS` are those that the clock
and the machine decide; all others are equal in two runs of the same config. A number that is not finite is
written as null. `position` is the length of the log in bytes: a checkpoint records it, and opening at that
position cuts off what was written after it, half a line of a killed process or of a full disk included. An
append is the one write of ours that is not whole or absent (`durable`); each still announces itself to the
seam of `disk`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bytewright import disk
from bytewright.durable import explain, open_in_place, parse_json, read_text
from bytewright.errors import FormatError

MEASURED_FIELDS = ("seconds", "tokens_per_second", "mfu", "memory_bytes")


class MetricsLog:
    """The metrics file of one run, open for appending."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self.path = path
        # Not buffered: a buffer would repeat on closing the write that had failed.
        self._file = open_in_place(path, within=path.parent, create=not position)
        with explain("write", path), contextlib.ExitStack() as on_error:
            on_error.callback(self._file.close)
            found = self._file.tell()
            if found < position:
                raise FormatError(
                    f"{path}: has {found} bytes, but had {position} when the checkpoint was made"
                )
            disk.before_operation("truncate", path)
            self._file.truncate(position)
            self._file.seek(position)
            on_error.pop_all()

    @property
    def position(self) -> int:
        """Length of the log in bytes."""
        return self._file.tell()

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line."""
        line = memoryview(json.dumps(finite(record), allow_nan=False).encode() + b"\n")
        with explain("write", self.path):
            while line:  # the system may take less than it is given
                disk.before_operation("append", self.path)
                line = line[self._file.write(line) :]
        disk.refuse_removed(self.path, self._file.fileno())

    def sync(self) -> int:
        """Make sure that all lines survive a power cut; return the position to record in a checkpoint."""
        with explain("write", self.path):
            disk.before_operation("sync", self.path)
            os.fsync(self._file.fileno())
        disk.refuse_removed(self.path, self._file.fileno())
        return self.position

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Read the lines of a log; half a line at the end, of a process that was killed, is passed over."""
    lines = read_text(path).split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        record = parse_json(line, f"{path}, line {number}")
        if not isinstance(record, dict):
            raise FormatError(f"{path}, line {number}: is not a JSON object")
        yield record


def finite(value: Any) -> Any:
    """Replace numbers that JSON does not know by None, at any depth.

    >>> finite({"loss": float("nan"), "norms": [1.0, float("inf")]})
    {'loss': None, 'norms': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


@runtime_checkable
class Sink(Protocol):
    """Somewhere else that records go."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Take one record."""

    def close(self) -> None:
        """Take no more."""
