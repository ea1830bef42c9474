"""Finding runs in folders, and choosing among them: what `bytewright runs` shows.

A run is a folder with a `config.json`, or with the outcome of texts that were sampled; folders are searched
to a small depth. Each run becomes a flat row: its key figures and, under their dotted names, all its settings
and what a sweep calls it by; so `lr<=1e-3`, `variant=silu` and `status=diverged` can be asked of it, and
anything can be sorted by. Knows nothing of how rows are shown.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeGuard

from bytewright.errors import BytewrightError, UsageError
from bytewright.experiments.inputs import read_record
from bytewright.experiments.records import RunRecord
from bytewright.train.metrics import METRICS
from bytewright.train.run import Run

MAX_DEPTH = 4
"""How deep below the given folder runs are looked for: runs/sweep/run, and one to spare."""
UNREADABLE = "unreadable"
"""The status of a run whose files are damaged."""
LISTED = [metric for metric in METRICS.values() if metric.is_listed]
KEY_FIGURES = ("run", "status", "ending", *(metric.name for metric in LISTED), "started")
COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}

Row = dict[str, Any]


def find_runs(folder: Path, depth: int = MAX_DEPTH) -> Iterator[Path]:
    """Yield the folders of runs at or below `folder`, in order of their names."""
    run = Run(folder)
    if (run.exists and run.has_environment) or run.has_outcome:
        yield folder
        return
    if not depth:
        return
    try:
        entries = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:  # a folder that may not be looked into holds no run of ours
        return
    for name in entries:
        if not name.startswith("."):
            yield from find_runs(folder / name, depth - 1)


def list_runs(folders: Sequence[Path]) -> list[Row]:
    """Make one row per run below the folders."""
    rows: list[Row] = []
    for folder in folders:
        if not folder.exists():
            raise UsageError(f"{folder} does not exist, so there are no runs in it")
        rows += [make_row(path) for path in find_runs(folder)]
    return rows


def make_row(path: Path) -> Row:
    """Make the row of the run at `path`; one that cannot be read says why, and hides no other."""
    try:
        record = read_record(path)
    except BytewrightError as error:
        return {"run": str(path), "status": UNREADABLE, "reason": str(error)}
    return describe(record, str(path))


def describe(record: RunRecord, name: str) -> Row:
    """Make the row of a run: its key figures, then its settings, and what a sweep calls it by.

    Texts that were sampled have figures of their own, and were not made when their model was.
    """
    last = record.lines[-1] if record.lines else {}
    is_sampled = "sampling.temperature" in record.settings
    row: Row = {
        "run": name,
        "status": record.status,
        "ending": record.ending and record.ending.label,
        "step": None if is_sampled else last.get("step", 0),
        "tokens": None if is_sampled else last.get("tokens", 0),
        **{
            metric.name: record.measured.get(metric.name) if metric.is_measured else record.last(metric.name)
            for metric in LISTED
            if metric.is_final and metric.name not in ("step", "tokens")
        },
        "started": None if is_sampled else record.environment.get("started"),
        "reason": record.reason,
    }
    more = {**record.labels, **record.settings, **(last if is_sampled else {})}
    return row | {key: value for key, value in more.items() if key not in row}


def choose(rows: Sequence[Row], conditions: Sequence[str]) -> list[Row]:
    """Keep the rows that meet every condition, such as `optimizer.lr<=1e-3` or `norm=post`.

    >>> choose([{"run": "a", "optimizer.lr": 0.1}, {"run": "b", "optimizer.lr": 0.001}], ["lr<0.01"])
    [{'run': 'b', 'optimizer.lr': 0.001}]
    """
    for condition in conditions:
        match = re.fullmatch(r"([\w.]+)\s*(<=|>=|!=|=|<|>)\s*(.*)", condition)
        if match is None:
            raise UsageError(
                f"--where {condition!r} compares nothing; write a setting, one of = != < <= > >=, and a value"
            )
        key, sign, text = match.groups()
        name = find_column(key, rows)
        values = [row.get(name) for row in rows]
        if sign not in ("=", "!=") and any(map(_is_number, values)) and not _is_spelled_number(text):
            raise UsageError(f"--where {condition!r} compares numbers with {text!r}, which is none")
        rows = [row for row, value in zip(rows, values, strict=True) if _meets(value, sign, text)]
    return list(rows)


def sort_rows(rows: Sequence[Row], key: str | None) -> list[Row]:
    """Sort by a column, downwards if its name is preceded by a minus; rows without a value come last."""
    if key is None:
        return list(rows)
    name = find_column(key.removeprefix("-"), rows)
    valued = [row for row in rows if row.get(name) is not None]
    numeric = all(isinstance(row[name], int | float) for row in valued)
    ranked = sorted(
        valued, key=lambda row: row[name] if numeric else str(row[name]), reverse=key.startswith("-")
    )
    return ranked + [row for row in rows if row.get(name) is None]


def find_column(key: str, rows: Sequence[Row]) -> str:
    """Find a column by its full name, or by its last part if only one ends so."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if key in names or not rows:
        return key
    ending = [name for name in names if name.endswith(f".{key}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise UsageError(f"{key!r} may be {' or '.join(ending)}; write which")
    close = get_close_matches(key, [*names, *(name.rpartition(".")[2] for name in names)], n=1)
    raise UsageError(f"runs have no {key!r}" + (f"; did you mean {close[0]!r}?" if close else ""))


def _meets(value: object, sign: str, text: str) -> bool:
    """Compare as numbers where both are, else as text; nothing is less or more than no value."""
    if _is_number(value):
        return COMPARE[sign](float(value), float(text)) if _is_spelled_number(text) else sign == "!="
    if sign in ("=", "!="):
        words = {None: "none", True: "true", False: "false"}.get(value, str(value))  # type: ignore[call-overload]
        return COMPARE[sign](words.lower(), text.strip().lower())
    return value is not None and COMPARE[sign](str(value), text)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_spelled_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def word_figure(name: str, value: object) -> str:
    """Word one figure for a table.

    >>> word_figure("validation_loss", 1.31474), word_figure("tokens", 327680000), word_figure("loss", None)
    ('1.3147', '327,680,000', '')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        is_measured = name in METRICS and METRICS[name].is_measured
        return format(value, METRICS[name].spec if is_measured else ".4f")
    return f"{value:,}" if isinstance(value, int) else str(value)
