"""results.json: the compact record of all runs of a sweep, which remains after their folders are removed.

Common settings are stored once. Metrics are columns, subsampled and rounded to what a chart shows. A file has
some tens of kilobytes, and its report equals the report of the folders, with the last sample of each run.
Absolute paths are reduced to their last parts, so that no folder of the machine is published.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from bytewright.errors import shorten
from bytewright.experiments.records import Line, RunRecord, numbers_in
from bytewright.storage import atomic
from bytewright.storage.json_reader import Json
from bytewright.train.metrics import METRICS, finite, is_finite
from bytewright.train.metrics_log import check_record
from bytewright.train.outcome import State, ending_on_record
from bytewright.train.recipe import check_kinds
from bytewright.train.run import STEP_NUMBER

RESULTS, SWEEP = "results.json", "sweep.json"
MODEL = "model"
"""The folder of the run that a sampling sweep samples from, within the folder of the sweep."""
FORMAT = "bytewright results 1"
MAX_LINES = 120
DIGITS = 7
"""Significant digits of numbers: as many as a float32 has."""

Design = Literal["grid", "star"]


@dataclass(frozen=True, kw_only=True)
class SweepInfo:
    """The description of a sweep: question, axes, design and baseline."""

    name: str
    question: str = ""
    expectation: str = ""
    notes: str = ""
    axes: Sequence[str] = ()
    """The varied keys in the order of the sweep file."""
    design: Design = "grid"
    baseline: Mapping[str, Any] = field(default_factory=dict)
    """The labels of the runs to compare with; empty: none."""
    missing: Sequence[str] = field(default_factory=list)
    """The planned runs that were not started when the others were read."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """The reasons for runs that could not be read, by name."""


def write_results(path: Path, about: SweepInfo | None, records: Sequence[RunRecord]) -> None:
    """Write results.json."""
    records = [without_absolute_paths(record) for record in records]
    settings = common([record.settings for record in records])
    environment = common([record.environment for record in records])
    runs = []
    for record in records:
        fields = dataclasses.asdict(record)
        del fields["lines"]
        fields["settings"] = differences(record.settings, settings)
        fields["environment"] = differences(record.environment, environment)
        fields["samples"] = {str(step): record.samples[step] for step in sorted(record.samples)[-1:]}
        fields["metrics"] = to_columns(record.lines)
        runs.append(fields)
    value = {
        "format": FORMAT,
        "about": None if about is None else dataclasses.asdict(about),
        "settings": settings,
        "environment": environment,
        "runs": runs,
    }
    text = to_text(atomic.with_checksum(finite(value)))
    atomic.write_bytes(path, text.encode(errors="backslashreplace"))  # as JSON escapes


def without_absolute_paths(record: RunRecord) -> RunRecord:
    """Return the record with absolute paths reduced to their last parts.

    Only runs of earlier versions recorded the command.
    """
    settings = {
        key: _last_parts(value, 3) if key.startswith(("data.", "init.")) else value
        for key, value in record.settings.items()
    }
    environment = dict(record.environment)
    if isinstance(command := environment.get("command"), list):
        environment["command"] = [_last_parts(word, 1) for word in command]
    reason = re.sub(r"(?<![\w/.])/[^\s:;,'\"]+", lambda match: _last_parts(match[0], 3), record.reason)
    return dataclasses.replace(record, settings=settings, environment=environment, reason=reason)


def _last_parts(value: Any, num_parts: int) -> Any:
    """Return the last parts of an absolute path, also of one in `--option=path`; other values are unchanged.

    >>> _last_parts("/home/ada/data/storybook-5MB-563d29/bpe-512/train.npy", 3)
    'storybook-5MB-563d29/bpe-512/train.npy'
    >>> _last_parts("--out=/home/ada/runs", 1)
    '--out=runs'
    """
    words = str(value)
    start = words.find("=") + 1 if words.startswith("--") else 0
    if not words.startswith("/", start):
        return value
    return words[:start] + "/".join(Path(words[start:]).parts[1:][-num_parts:])


def read_results(path: Path) -> tuple[SweepInfo | None, list[RunRecord]]:
    """Read what `write_results` wrote."""
    file = Json(atomic.read_document(path), path)
    if file.get("format").value != FORMAT:
        raise file.error(f'an object with "format": "{FORMAT}"')
    about = None if file["about"].value is None else parse_sweep_info(file["about"])
    settings, environment = file["settings"].as_object(), file["environment"].as_object()
    records = []
    for run in file["runs"].elements():
        status = run["status"].as_text()
        if status not in get_args(State):
            raise run["status"].error(f"one of {', '.join(get_args(State))}")
        check_kinds(settings | run["settings"].as_object(), path)
        records.append(
            RunRecord(
                name=run["name"].as_text(),
                settings=settings | run["settings"].as_object(),
                lines=from_columns(run["metrics"]),
                status=status,  # type: ignore[arg-type]  # checked above
                ending=ending_on_record(run.as_object(), status, run["reason"].as_text()),
                reason=run["reason"].as_text(),
                labels=run["labels"].as_object(),
                environment=environment | run["environment"].as_object(),
                samples=_parse_samples(run["samples"]),
                predicted=numbers_in(run["predicted"].as_object()),
                measured=numbers_in(run["measured"].as_object()),
                floor=numbers_in(run.as_object()).get("floor"),
                validation=_parse_digests(run.get("validation")),
            )
        )
    return about, records


def parse_sweep_info(about: Json) -> SweepInfo:
    """Return the description of a sweep."""
    about.check_keys(*(part.name for part in dataclasses.fields(SweepInfo)))
    known = about.as_object()  # records of earlier versions lack missing and unreadable
    unreadable = about["unreadable"].as_object() if "unreadable" in known else {}
    design = about["design"].as_text()
    if design not in get_args(Design):
        raise about["design"].error(f"one of {', '.join(get_args(Design))}")
    return SweepInfo(
        name=about["name"].as_text(),
        question=about["question"].as_text(),
        expectation=about["expectation"].as_text(),
        notes=about["notes"].as_text(),
        axes=[axis.as_text() for axis in about["axes"].elements()],
        design=design,  # type: ignore[arg-type]  # checked above
        baseline=about["baseline"].as_object(),
        missing=[name.as_text() for name in about["missing"].elements()] if "missing" in known else [],
        unreadable={name: about["unreadable"][name].as_text() for name in unreadable},
    )


def common(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the items that all mappings have in common.

    >>> common([{"a": 1, "b": 2}, {"a": 1, "b": 3}])
    {'a': 1}
    """
    if not mappings:
        return {}
    first, *others = mappings
    return {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
    }


def differences(mapping: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items of a mapping whose keys are not in `shared`."""
    return {key: value for key, value in mapping.items() if key not in shared}


def to_columns(lines: Sequence[Line]) -> dict[str, list[float | None]]:
    """Return lines as columns; of many lines, those with an evaluation and a subsample of the others."""
    every = -(-len(lines) // MAX_LINES) if lines else 1
    kept = [
        line
        for number, line in enumerate(lines)
        if "validation_loss" in line or number % every == 0 or number == len(lines) - 1
    ]
    columns = {}
    for name in (name for name, metric in METRICS.items() if metric.is_kept):
        values = [line.get(name) for line in kept]
        if any(value is not None for value in values):
            columns[name] = [rounded(value) if is_finite(value) else None for value in values]
    return columns


def from_columns(columns: Json) -> list[dict[str, Any]]:
    """Return the lines of columns."""
    lists = {name: columns[name].as_array() for name in columns.as_object()}
    length = len(lists.get("step", []))
    for name in lists:
        if len(lists[name]) != length:
            raise columns[name].error(f"a list of {length} numbers, as many as there are steps")
    lines = [
        {name: values[row] for name, values in lists.items() if values[row] is not None}
        for row in range(length)
    ]
    for row, line in enumerate(lines):
        check_record(line, f"{columns.file}: {columns.place}, row {row}")
    return lines


def rounded(value: float) -> float:
    """Round a float to `DIGITS` significant digits."""
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def _parse_samples(samples: Json) -> dict[int, str]:
    for step in samples.as_object():
        if not STEP_NUMBER.fullmatch(step):
            raise samples.error(f"texts by their steps (one is called {shorten(step)})")
    return {int(step): samples[step].as_text() for step in samples.as_object()}


def _parse_digests(value: Json) -> dict[str, str]:
    """Read an object of strings; records of earlier versions lack it."""
    return {} if value.value is None else {key: value[key].as_text() for key in value.as_object()}


def to_text(value: object, indent: str = "") -> str:
    """Return JSON that is readable in diffs: objects are indented, lists of numbers are on one line."""
    import json

    inner = indent + " "
    if isinstance(value, dict) and value:
        parts = [
            f"{inner}{json.dumps(str(k), ensure_ascii=False)}: {to_text(v, inner)}" for k, v in value.items()
        ]
        text = "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    elif isinstance(value, list | tuple) and any(isinstance(item, dict | list) for item in value):
        text = "[\n" + ",\n".join(inner + to_text(item, inner) for item in value) + f"\n{indent}]"
    else:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text if indent else text + "\n"
