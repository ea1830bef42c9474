"""What a report is made of: the records of one run, of some runs, of a sweep's folder, or of a results.json.

A run that cannot be read hides no other: it is named, and why. What else lies in the folder of a sweep is
passed over, so that `FOLDER/*` names its runs. Knows nothing of what a report shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bytewright import durable
from bytewright.checked import Json
from bytewright.errors import BytewrightError, UsageError
from bytewright.lab.groups import differing
from bytewright.lab.predict import compare_record
from bytewright.lab.records import RunRecord, read_object, read_run, read_sampled
from bytewright.lab.results import MODEL, RESULTS, SWEEP, About, parse_about, read_results
from bytewright.train.run_folder import OUTCOME


def read_inputs(paths: Sequence[Path]) -> tuple[About | None, list[RunRecord]]:
    """Read the runs that the paths name: folders of runs, one folder of a sweep, or one results.json."""
    if len(paths) == 1:
        (path,) = paths
        if path.is_file():
            return read_results(path)
        if (path / SWEEP).is_file():
            return read_sweep_folder(path)
        # A report of one run is written into its folder: the run knows better, for it may have gone on.
        if (path / RESULTS).is_file() and not _is_begun(path):
            return read_results(path / RESULTS)
        return None, [compare_record(read_record(path))]
    runs = [path for path in paths if not _is_passed_over(path, paths)]
    for path in runs:
        if (path / SWEEP).is_file():
            raise UsageError(f"{path} is a sweep, and a report is of one sweep alone, or of runs")
        if path.is_file():
            raise UsageError(f"{path} is a file; a report is of one results.json, or of the folders of runs")
        if not _is_begun(path):
            read_record(path)  # to say what is wrong: this is no damage, but a mistake
    records, unreadable = _read_each(dict.fromkeys(runs))
    return guess_about(records, unreadable) if unreadable else None, records


def read_record(path: Path) -> RunRecord:
    """Read the record of a run, or of texts that a sweep sampled, out of its folder."""
    if not (path / "config.json").is_file() and "sampling" in read_object(path / OUTCOME):
        return read_sampled(path, path.absolute().with_name(MODEL))
    return read_run(path)


def guess_about(records: Sequence[RunRecord], unreadable: Mapping[str, str] | None = None) -> About:
    """Describe runs that no sweep made: what differs between them is what was varied."""
    names = ", ".join(record.name for record in records[:4]) + (", …" if len(records) > 4 else "")
    axes = differing([record.settings for record in records])
    return About(name=f"{len(records)} runs", question=names, axes=axes, unreadable=unreadable or {})


def word_missing(about: About) -> list[str]:
    """Say which runs are not there, and why."""
    waiting = [f"Not started yet: {', '.join(about.missing)}."] if about.missing else []
    return waiting + [
        f"Left out: {name}, which cannot be read: {reason}." for name, reason in about.unreadable.items()
    ]


def _is_begun(path: Path) -> bool:
    return any((path / name).is_file() for name in ("config.json", OUTCOME))


def _is_passed_over(path: Path, given: Sequence[Path]) -> bool:
    """Say whether what lies in a sweep's folder is no run of it, or the model of runs that are given too."""
    folder = path.absolute().parent
    if not (folder / SWEEP).is_file() or not path.exists() or (path / SWEEP).is_file():
        return False
    if path.absolute().name == MODEL:
        beside = [other for other in given if other.absolute().parent == folder]
        return any(_is_begun(other) and not (other / "config.json").is_file() for other in beside)
    return not _is_begun(path)


def read_sweep_folder(folder: Path) -> tuple[About, list[RunRecord]]:
    """Read the runs of a sweep that have been started, in the order of its plan."""
    plan = Json(durable.read_document(folder / SWEEP), folder / SWEEP)
    about = parse_about(plan["about"])
    runs, missing = {}, []
    for run in plan["runs"].elements():
        name, labels = run["name"].as_text(), run["labels"].as_object()
        if _is_begun(folder / name):
            runs[folder / name] = labels
        else:
            missing.append(name)
    records, unreadable = _read_each(runs)
    return dataclasses.replace(about, missing=missing, unreadable=unreadable), records


def _read_each(runs: Mapping[Path, Mapping[str, Any] | None]) -> tuple[list[RunRecord], dict[str, str]]:
    """Read runs, and give them the labels that are known; name those that cannot be read, and say why.

    Where none can be, there is nothing to report but the first reason.
    """
    records, unreadable, first = [], {}, None
    for path, labels in runs.items():
        try:
            record = compare_record(read_record(path))
        except BytewrightError as error:
            # Where it lay is nobody's business, unless two have one name.
            name = path.absolute().name
            name = str(path) if name in unreadable else name
            unreadable[name] = str(error).replace(f"{path.parent}/", "")
            first = first or error
        else:
            records.append(record if labels is None else dataclasses.replace(record, labels=labels))
    if first and not records:
        raise first
    return records, unreadable
