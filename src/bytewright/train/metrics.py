"""The metrics of a run: their names, and the log that records them.

`METRICS` declares every metric once: title, unit, direction, number format, and where it is shown. To add a
column to the report of a sweep, add its entry here and its value to the records of the log.

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
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from bytewright.errors import FormatError, StorageError, shorten
from bytewright.formatting import format_memory, format_seconds
from bytewright.storage import filesystem
from bytewright.storage.atomic import explain, open_to_append, parse_json, read_text
from bytewright.storage.json_reader import is_damaged_name

SEALED = re.compile(r'(\{.*), "crc32": "([0-9a-f]{8})"\}')
"""A line with its CRC, which is of the text of the first group."""
MAX_LOG_BYTES = 2**28
"""The longest log that `MetricsReader` reads: about a million records."""


@dataclass(frozen=True)
class Metric:
    """A number that runs record. `title` names it in a report, `short` in a column or on a console."""

    name: str
    title: str
    unit: str = ""
    _: KW_ONLY
    short: str = ""
    """A shorter title; by default the title."""
    spec: str = ".4f"
    """Format of the number, as in `format`."""
    direction: Literal["lower", "higher"] | None = None
    """Which values are better."""
    is_measured: bool = False
    """Whether the clock and the machine determine it."""
    summary: Literal["last", "median", "maximum"] = "last"
    """Which of the recorded values is that of the run."""
    is_final: bool = True
    """Whether it is recorded during training, so that a report shows its final value."""
    is_kept: bool = True
    """Whether results.json keeps its curve."""
    is_listed: bool = False
    """Whether `bytewright runs` shows it."""
    is_reported: bool = False
    """Whether the tables of a sweep have a column for it: of results, or of costs if it is measured."""
    is_predicted: bool = False
    """Whether the table of costs shows the prediction next to it."""
    is_drawn: bool = False
    """Whether a report has a chart of its own for it: of a single run by steps, of sampled texts by axis."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "short", self.short or self.title)

    @property
    def axis(self) -> str:
        """The label of an axis."""
        return f"{self.title}, {self.unit}"

    @property
    def limits(self) -> tuple[float, float] | None:
        """Limits of an axis; None: chosen from the data."""
        return (-0.02, 1.02) if self.unit == "share" else None

    def heading(self, rest: str = "") -> str:
        """Return the title of a chart of final values."""
        return f"Final {self.title}{rest}" if self.is_final else f"{self.title.capitalize()}{rest}"

    def format(self, value: float) -> str:
        """Format a value for people, with its unit if it has one of its own.

        >>> METRICS["seconds"].format(90), METRICS["mfu"].format(0.4512)
        ('1 min 30 s', '45.1%')
        """
        if self.unit == "seconds":
            return format_seconds(value)
        return format_memory(value) if self.unit == "bytes" else format(value, self.spec)


def _of_samples(name: str, title: str, unit: str = "share", **fields: Any) -> Metric:
    return Metric(name, title, unit, is_final=False, **fields)


def _cost(name: str, title: str, unit: str = "", **fields: Any) -> Metric:
    return Metric(name, title, unit, is_measured=True, **fields)


NATS = "nats per token"
TRAINING_METRICS = (
    Metric("step", "step", "steps", spec=",d", is_listed=True),
    Metric("tokens", "tokens", "tokens", spec=",d", is_listed=True),
    Metric("loss", "training loss", NATS, short="loss", direction="lower", is_listed=True),
    Metric("validation_loss", "validation loss", NATS, short="validation", direction="lower", is_listed=True),
    Metric("perplexity", "perplexity", direction="lower", is_kept=False),
    Metric(
        "bits_per_byte",
        "bits per byte",
        "of validation text",
        short="bits/byte",
        direction="lower",
        is_listed=True,
    ),
    Metric(
        "document_bits_per_byte",
        "bits per byte of whole documents",
        "of validation text",
        short="whole documents",
        spec=".5f",
        direction="lower",
        is_reported=True,
    ),
    Metric(
        "test_bits_per_byte",
        "bits per byte of test documents",
        "of test text",
        short="test documents",
        spec=".5f",
        direction="lower",
        is_reported=True,
    ),
    Metric("lr", "learning rate", short="lr", spec=".2e", is_drawn=True),
    Metric("gradient_norm", "gradient norm", spec=".3f", is_drawn=True),
)
SAMPLING_METRICS = (
    _of_samples(
        "consistent", "stories consistent throughout", direction="higher", is_listed=True, is_drawn=True
    ),
    _of_samples("well_formed", "well-formed stories", direction="higher"),
    _of_samples("sound_sentences", "grammatical sentences", direction="higher", is_drawn=True),
    _of_samples("copies", "copies of training stories", direction="lower"),
    _of_samples("distinct_stories", "distinct stories", direction="higher"),
    _of_samples("distinct_words", "distinct words", "share of all words", is_drawn=True),
    _of_samples("words_per_story", "length", "words per story"),
    _of_samples("ended", "stories ended by the model", is_listed=True),
)
COST_METRICS = (
    _cost("parameters", "parameters", spec=",.0f", is_kept=False),
    _cost("flops_per_token", "FLOPs per token", short="FLOPs", spec=",.0f", is_kept=False),
    _cost(
        "tokens_per_second",
        "tokens per second",
        short="tokens/s",
        spec=",.0f",
        direction="higher",
        summary="median",
        is_listed=True,
        is_reported=True,
    ),
    _cost(
        "mfu",
        "utilisation (MFU)",
        short="MFU",
        spec=".1%",
        direction="higher",
        summary="median",
        is_reported=True,
    ),
    _cost(
        "seconds",
        "time",
        "seconds",
        spec=",.1f",
        direction="lower",
        is_listed=True,
        is_reported=True,
        is_predicted=True,
    ),
    _cost(
        "memory_bytes",
        "peak memory",
        "bytes",
        short="memory",
        direction="lower",
        summary="maximum",
        is_kept=False,
        is_reported=True,
        is_predicted=True,
    ),
)
NUM_STORIES = Metric("num_stories", "sampled stories", spec=",d", is_final=False)
ALL_METRICS = (*TRAINING_METRICS, *SAMPLING_METRICS, NUM_STORIES, *COST_METRICS)
METRICS = {metric.name: metric for metric in ALL_METRICS}
"""Every metric by its name in the log, in the order of columns."""
RANK_MEMORY = "rank_memory_bytes"
"""The peak memory of each rank, in records of runs on several ranks."""
RANK_SENT = "rank_sent_bytes"
"""Bytes of weights and gradients that rank 0 has sent in a step, in records of runs on several ranks."""
MEASURED_FIELDS = (*(name for name, metric in METRICS.items() if metric.is_measured), RANK_MEMORY, RANK_SENT)

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
                message = f"{path}: has {found} bytes, but had {position} when the checkpoint was made"
                raise FormatError(message, path=path, expected=position, found=found)
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
        self.num_lines += 1
        place = f"{self.path}, line {self.num_lines}"
        fields: dict[str, Any] = {"path": self.path, "key": f"line {self.num_lines}"}
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
        return _with_typed_event({name: value for name, value in record.items() if name != "crc32"})

    def check_incomplete(self, rest: str) -> None:
        """Raise `FormatError` if the text after the last line end is not the start of a line."""
        if SEALED.match(rest) and not SEALED.fullmatch(rest):
            message = f"{self.path}: its last line has text after the CRC, so it was damaged or edited"
            raise FormatError(message, path=self.path)


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
                data, was_restarted = b"", self._forget()
            else:
                with open(descriptor, "rb", buffering=0) as file:
                    was_restarted = not self._continues(file) and self._forget()
                    file.seek(self._end)
                    data = file.read(MAX_LOG_BYTES + 1 - self._end) or b""
        if self._end + len(data) > MAX_LOG_BYTES:
            raise FormatError(f"{self.path}: is larger than {MAX_LOG_BYTES:,} bytes", path=self.path)
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

    def _forget(self) -> bool:
        """Start again; return whether any record had been read."""
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


def is_finite(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def finite(value: Any) -> Any:
    """Return a value with non-finite numbers, which JSON lacks, replaced by None at any depth.

    >>> finite({"loss": float("nan"), "norms": [1.0, float("inf")]})
    {'loss': None, 'norms': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
