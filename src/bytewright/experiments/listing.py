"""Find, filter and sort runs, for `bytewright runs`.

Folders are searched to a small depth for runs and sampled texts. Each run is a flat row: its key figures, and
under their dotted names its settings and its labels in a sweep. Rows can be filtered by conditions such as
`lr<=1e-3`, `variant=silu` and `status=diverged`, and sorted by any column.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from bytewright.errors import BytewrightError, UsageError, find_closest
from bytewright.experiments.inputs import read_record
from bytewright.train.metrics import METRICS
from bytewright.train.run import Run

MAX_DEPTH = 4
"""Search depth below a folder: one more than runs/sweep/run needs."""
UNREADABLE = "unreadable"
"""The status of a run whose files cannot be read."""
LISTED = [metric for metric in METRICS.values() if metric.is_listed]
KEY_FIGURES = ("run", "status", "ending", "init", *(metric.name for metric in LISTED), "plugins", "started")
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
    if (run.exists and run.has_environment) or run.has_outcome or run.is_imported:
        yield folder
        return
    if not depth:
        return
    try:
        entries = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:  # a folder without permission to read it
        return
    for name in entries:
        if not name.startswith("."):
            yield from find_runs(folder / name, depth - 1)


def list_runs(folders: Sequence[Path], *, where: Sequence[str] = (), sort: str | None = None) -> list[Row]:
    """Return one row per run below the folders that meets every condition, sorted by a column."""
    rows: list[Row] = []
    for folder in folders:
        if not folder.exists():
            raise UsageError(f"{folder} does not exist", path=folder)
        if not folder.is_dir():
            raise UsageError(f"{folder} is a file; name a folder with runs", path=folder)
        rows += [make_row(path) for path in find_runs(folder)]
    return sort_rows(filter_rows(rows, where), sort)


def make_row(path: Path) -> Row:
    """Return the key figures, labels and settings of a run; if it cannot be read, the row has the reason.

    Sampled texts have scores instead of steps, tokens and a start time, which are those of their model.
    """
    try:
        record = read_record(path)
    except BytewrightError as error:
        return {"run": str(path), "status": UNREADABLE, "reason": str(error)}
    last = record.lines[-1] if record.lines else {}
    is_sampled = "sampling.temperature" in record.settings
    row: Row = {
        "run": str(path),
        "status": record.status,
        "ending": record.ending and record.ending.label,
        "init": record.origin or None,
        "step": None if is_sampled else last.get("step", 0),
        "tokens": None if is_sampled else last.get("tokens", 0),
        **{
            metric.name: record.measured.get(metric.name) if metric.is_measured else record.last(metric.name)
            for metric in LISTED
            if metric.is_final and metric.name not in ("step", "tokens")
        },
        "plugins": record.environment.get("plugins"),
        "started": None if is_sampled else record.environment.get("started"),
        "reason": record.reason,
    }
    more = {**record.labels, **record.settings, **(last if is_sampled else {})}
    return row | {key: value for key, value in more.items() if key not in row}


def filter_rows(rows: Sequence[Row], conditions: Sequence[str]) -> list[Row]:
    """Return the rows that meet every condition, such as `optimizer.lr<=1e-3` or `norm=post`.

    >>> filter_rows([{"run": "a", "optimizer.lr": 0.1}, {"run": "b", "optimizer.lr": 0.001}], ["lr<0.01"])
    [{'run': 'b', 'optimizer.lr': 0.001}]
    """
    for condition in conditions:
        match = re.fullmatch(r"([\w.]+)\s*(<=|>=|!=|=|<|>)\s*(.*)", condition)
        if match is None:
            message = (
                f"the condition {condition!r} is not a comparison; write a setting, one of = != < <= > >=,"
                " and a value"
            )
            raise UsageError(message, key="condition", found=condition)
        key, sign, text = match.groups()
        name = find_column(key, rows)
        values = [row.get(name) for row in rows]
        if sign not in ("=", "!=") and any(map(_is_number, values)) and not _is_number_text(text):
            message = f"the condition {condition!r} compares numbers with {text!r}, which is not a number"
            raise UsageError(message, key="condition", expected="a number", found=text)
        rows = [row for row, value in zip(rows, values, strict=True) if _meets(value, sign, text)]
    return list(rows)


def sort_rows(rows: Sequence[Row], key: str | None) -> list[Row]:
    """Sort by a column, in descending order with a minus before its name; rows without a value come last."""
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
    """Return the full name of a column, given that or an unambiguous last part of it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if key in names or not rows:
        return key
    ending = [name for name in names if name.endswith(f".{key}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        message = f"{key!r} is ambiguous: {' or '.join(ending)}; write the full name"
        raise UsageError(message, key=key, expected=ending)
    close = find_closest(key, [*names, *(name.rpartition(".")[2] for name in names)])
    hint = f"; did you mean {close!r}?" if close else ""
    raise UsageError(f"no run has a figure or setting {key!r}{hint}", key=key)


def _meets(value: object, sign: str, text: str) -> bool:
    """Compare as numbers if both are numbers, else as text; order comparisons with None are false."""
    if _is_number(value):
        return COMPARE[sign](float(value), float(text)) if _is_number_text(text) else sign == "!="
    if sign in ("=", "!="):
        return COMPARE[sign](str(value).lower(), text.strip().lower())
    return value is not None and COMPARE[sign](str(value), text)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_number_text(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def format_figure(name: str, value: object) -> str:
    """Format one figure for a table.

    >>> format_figure("validation_loss", 1.31474), format_figure("tokens", 327680000)
    ('1.3147', '327,680,000')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        is_measured = name in METRICS and METRICS[name].is_measured
        return format(value, METRICS[name].spec if is_measured else ".4f")
    return f"{value:,}" if isinstance(value, int) else str(value)
