"""The metrics log of a run: write it, read it, and follow it while another process writes it.

metrics.jsonl has one line of JSON per record. Metrics that are not `is_measured` are equal in two runs of
the same config; a number that is not finite is written as null. Each line ends with its CRC-32, which
reveals damage. A checkpoint records the length of the log in bytes, and a resume truncates the log to it.
This removes later records and the incomplete line of a killed process or a full disk. An append is not
atomic, unlike the writes of `storage.atomic`.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bytewright.errors import FormatError, StorageError, shorten
from bytewright.storage import filesystem
from bytewright.storage.atomic import explain, open_to_append, parse_json, read_text
from bytewright.storage.json_reader import is_damaged_name
from bytewright.train.metrics import finite

SEALED = re.compile(r'(\{.*), "crc32": "([0-9a-f]{8})"\}')
"""A line with its CRC, which is of the text of the first group."""
MAX_LOG_BYTES = 2**28
"""The longest log that `MetricsReader` reads: about a million records."""
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
                message = f"has {found} bytes, but had {position} when the checkpoint was made"
                raise FormatError.at(path, message, expected=position, found=found)
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
            message = (
                f"{self.path} was changed while it was in use: it has {found} bytes, expected {self.position}"
            )
            raise StorageError(message, path=self.path, expected=self.position, found=found)
        line = memoryview(dump_line(record))
        with explain("write", self.path):
            while line:  # the system may write fewer bytes than requested
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
        """Flush all lines to disk; return the position for a checkpoint to record."""
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
    """Yield the records of a log; raise `FormatError` at a damaged line.

    An incomplete last line, of a killed process, is ignored. Earlier versions wrote no CRC; once a line has
    one, all following lines must have one.
    """
    *lines, rest = read_text(path).split("\n")
    parser = _LineParser(path)
    for line in lines:
        yield parser.parse(line)
    parser.check_incomplete(rest)


class _LineParser:
    """Parses the lines of one log in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_lines = 0
        self._is_checked = False
        """Whether the last line had a CRC."""

    def parse(self, line: str) -> dict[str, Any]:
        """Return the record of the next line; raise `FormatError` if it is damaged."""
        number = self.num_lines + 1
        place = f"{self.path}, line {number}"
        fields: dict[str, Any] = {"path": self.path, "key": f"line {number}"}
        match = SEALED.fullmatch(line)
        is_damaged = match and int(match[2], 16) != zlib.crc32(match[1].encode())
        if (match is None and self._is_checked) or is_damaged:
            raise FormatError(f"{place}: does not match its CRC, so it was damaged or edited", **fields)
        self._is_checked = match is not None
        try:
            record = parse_json(line, place)
        except FormatError as error:
            raise FormatError(str(error), **fields) from None
        if not isinstance(record, dict):
            raise FormatError(f"{place}: is not a JSON object", **fields)
        if not self._is_checked and any(is_damaged_name(name, "crc32") for name in record):
            raise FormatError(f"{place}: the name of its CRC was damaged", **fields)
        check_record(record, place)
        self.num_lines = number
        return _with_typed_event({name: value for name, value in record.items() if name != "crc32"})

    def check_incomplete(self, rest: str) -> None:
        """Raise `FormatError` if the text after the last line end is not the start of a line."""
        if SEALED.match(rest) and not SEALED.fullmatch(rest):
            message = "its last line has text after the CRC, so it was damaged or edited"
            raise FormatError.at(self.path, message)


class MetricsReader:
    """Reads a log that another process appends to: each `update` reads only what is new.

    `records` are all records so far. A log that was truncated or replaced, as by a resume, is read again from
    its start, and `num_restarts` counts that. A log may have at most `MAX_LOG_BYTES`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_restarts = 0
        self._restart()

    def _restart(self) -> None:
        self.records: list[dict[str, Any]] = []
        self._parser = _LineParser(self.path)
        self._end, self._last_line = 0, b""

    def update(self) -> bool:
        """Read new records and return whether there are any, or whether the log was read again."""
        with explain("read", self.path):
            try:
                descriptor = filesystem.open_regular(self.path, os.O_RDONLY | os.O_NOFOLLOW)
            except FileNotFoundError:
                data, was_restarted = b"", self._start_again()
            else:
                with open(descriptor, "rb", buffering=0) as file:
                    was_restarted = not self._continues(file) and self._start_again()
                    file.seek(self._end)
                    data = file.read(MAX_LOG_BYTES + 1 - self._end) or b""
        if self._end + len(data) > MAX_LOG_BYTES:
            raise FormatError.at(self.path, f"is larger than {MAX_LOG_BYTES:,} bytes")
        *lines, _ = data.split(b"\n")
        for line in lines:
            try:
                text = line.decode()
            except UnicodeDecodeError:
                message = f"{self.path}, line {self._parser.num_lines + 1}: is not UTF-8"
                raise FormatError(message, path=self.path) from None
            self.records.append(self._parser.parse(text))
            self._end += len(line) + 1
            self._last_line = line + b"\n"
        return bool(lines) or was_restarted

    def _continues(self, file: io.FileIO) -> bool:
        """Return whether the file still has the last line that was read, at its place."""
        file.seek(self._end - len(self._last_line))
        return file.read(len(self._last_line)) == self._last_line

    def _start_again(self) -> bool:
        """Discard all records; return whether there were any."""
        had_records = bool(self.records)
        self.num_restarts += had_records
        self._restart()
        return had_records


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

    Charts place records by these three. Other fields are used only if they are numbers.

    >>> check_record({"step": 4, "seconds": "?"}, "metrics.jsonl, line 1")
    Traceback (most recent call last):
    bytewright.errors.FormatError: metrics.jsonl, line 1: seconds should be a number of at least 0, but is '?'
    """
    if type(step := record.get("step")) is not int or step < 0:
        message = f"{place}: step should be a whole number of at least 0, but is {shorten(step)}"
        raise FormatError(message, key="step", found=step)
    for name in ("tokens", "seconds"):
        value = record.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            message = f"{place}: {name} should be a number of at least 0, but is {shorten(value)}"
            raise FormatError(message, key=name, found=value)
