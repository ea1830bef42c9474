"""metrics.jsonl: one line of JSON per record, appended as the run goes, cut back exactly on a resume.

A line holds the fields of one step; which ones is up to the loop. `MEASURED_FIELDS` are those that the clock
and the machine decide; all others are equal in two runs of the same config. A number that is not finite is
written as null. Each line ends with its CRC-32, by which a reader detects damage. `position` is the length of
the log in bytes: a checkpoint records it, and opening at that position cuts off what was written after it,
half a line of a killed process or of a full disk included. An append is not all or nothing, unlike the writes
of `atomic`; each still calls the hook of `filesystem`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

from bytewright.errors import FormatError, StorageError
from bytewright.storage import filesystem
from bytewright.storage.atomic import explain, open_to_append, parse_json, read_text
from bytewright.storage.json_reader import is_damaged_name, shorten

SEALED = re.compile(r'(\{.*), "crc32": "([0-9a-f]{8})"\}')
"""A line with its CRC, which is of the text of the first group."""
MEASURED_FIELDS = ("seconds", "tokens_per_second", "mfu", "memory_bytes")

SENTENCES_OF_EARLIER_VERSIONS = {
    "refused: ": "refused_step",
    "resumed with ": "environment_changed",
    "planned ": "planned_steps",
    "time budget ": "budget_exhausted",
}


class MetricsLog:
    """The metrics file of one run, open for appending."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self.path = path
        # Not buffered: a buffer would repeat on closing the write that had failed.
        self._file = open_to_append(path, within=path.parent, create=not position)
        with explain("write", path), contextlib.ExitStack() as on_error:
            on_error.callback(self._file.close)
            found = self._file.tell()
            if found < position:
                raise FormatError(
                    f"{path}: has {found} bytes, but had {position} when the checkpoint was made"
                )
            filesystem.before_operation("truncate", path)
            self._file.truncate(position)
            self._file.seek(position)
            on_error.pop_all()
        self._end = position
        """Where the last whole line ends."""

    @property
    def position(self) -> int:
        """Length of the log in bytes."""
        return self._file.tell()

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line."""
        found = os.fstat(self._file.fileno()).st_size
        if found != self.position:
            raise StorageError(
                f"{self.path} was changed while it was in use: it has {found} bytes, expected {self.position}"
            )
        line = memoryview(dump_line(record))
        with explain("write", self.path):
            while line:  # the system may take less than it is given
                filesystem.before_operation("append", self.path)
                line = line[self._file.write(line) :]
        self._end = self.position
        filesystem.check_still_present(self.path, self._file.fileno())

    def write_last(self, record: Mapping[str, Any]) -> None:
        """Append one line and flush it, also after a write that failed: the part of its line is removed."""
        with explain("write", self.path):
            if self.position > self._end and os.fstat(self._file.fileno()).st_size == self.position:
                self._file.truncate(self._end)
                self._file.seek(self._end)
        self.write(record)
        self.sync()

    def sync(self) -> int:
        """Make sure that all lines survive a power cut; return the position to record in a checkpoint."""
        with explain("write", self.path):
            filesystem.before_operation("sync", self.path)
            os.fsync(self._file.fileno())
        filesystem.check_still_present(self.path, self._file.fileno())
        return self.position

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def dump_line(record: Mapping[str, Any]) -> bytes:
    r"""Return a record as one line of JSON whose last field is the CRC-32 of all that precedes it.

    >>> dump_line({"step": 1})
    b'{"step": 1, "crc32": "3daa833a"}\n'
    """
    start = json.dumps(finite(record), allow_nan=False).removesuffix("}")
    return f'{start}, "crc32": "{zlib.crc32(start.encode()):08x}"}}\n'.encode()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Read the lines of a log, and raise `FormatError` at one that is damaged.

    Half a line at the end, of a process that was killed, is passed over. Earlier versions wrote no CRC; once
    a line has one, all that follow must.
    """
    *lines, rest = read_text(path).split("\n")
    is_checked = False
    for number, line in enumerate(lines, start=1):
        place = f"{path}, line {number}"
        match = SEALED.fullmatch(line)
        if (match is None and is_checked) or (match and int(match[2], 16) != zlib.crc32(match[1].encode())):
            raise FormatError(f"{place}: does not match its CRC, so it was damaged or edited")
        is_checked = match is not None
        record = parse_json(line, place)
        if not isinstance(record, dict):
            raise FormatError(f"{place}: is not a JSON object")
        if not is_checked and any(is_damaged_name(name, "crc32") for name in record):
            raise FormatError(f"{place}: the name of its CRC was damaged")
        check_record(record, place)
        yield _with_typed_event({name: value for name, value in record.items() if name != "crc32"})
    if SEALED.match(rest) and not SEALED.fullmatch(rest):
        raise FormatError(f"{path}: its last line does not end as a line does, so it was damaged or edited")


def _with_typed_event(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with an identifier as its event; earlier versions wrote a sentence, kept as `detail`.

    >>> _with_typed_event({"step": 3, "event": "refused: the loss is not finite"})["event"]
    'refused_step'
    """
    sentence = record.get("event")
    if isinstance(sentence, str):
        for start, event in SENTENCES_OF_EARLIER_VERSIONS.items():
            if sentence.startswith(start):
                return record | {"event": event, "detail": sentence}
    return record


def check_record(record: Mapping[str, Any], place: str) -> None:
    """Raise `FormatError` unless a record has a step, and its tokens and seconds, if given, are numbers.

    By these three, lines are placed in a chart. Whatever else a line holds is used only where it is a number.

    >>> check_record({"step": 4, "seconds": "long"}, "metrics.jsonl, line 1")
    Traceback (most recent call last):
    bytewright.errors.FormatError: metrics.jsonl, line 1: seconds should be a number from 0 on, but is 'long'
    """
    if type(step := record.get("step")) is not int or step < 0:
        raise FormatError(f"{place}: step should be a whole number from 0 on, but is {shorten(step)}")
    for name in ("tokens", "seconds"):
        value = record.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise FormatError(f"{place}: {name} should be a number from 0 on, but is {shorten(value)}")


def is_finite(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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
