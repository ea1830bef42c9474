"""Read the inputs of a report: a run, several runs, the folder of a sweep, or a results.json.

An unreadable run does not hide the others: the report names it and the reason. Files in the folder of a
sweep that are not runs are skipped, so `FOLDER/*` selects its runs. Several runs get distinct names, and the
SHA-256 of their validation text, which decides whether they are comparable.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bytewright.errors import BytewrightError, UsageError
from bytewright.experiments.groups import find_axes
from bytewright.experiments.records import RunRecord, read_run, read_sampled
from bytewright.experiments.results import MODEL, RESULTS, SWEEP, SweepInfo, parse_sweep_info, read_results
from bytewright.formatting import format_names
from bytewright.storage import atomic
from bytewright.storage.config_reader import build
from bytewright.storage.json_reader import Json
from bytewright.storage.manifest import is_plain_name
from bytewright.train.recipe import unflatten
from bytewright.train.run import Run

if TYPE_CHECKING:
    from bytewright.data.tokenfile import TokenFile

TOKENS_AT_ONCE = 2**20


def read_inputs(paths: Sequence[Path]) -> tuple[SweepInfo | None, list[RunRecord]]:
    """Read the runs at `paths`: folders of runs, one folder of a sweep, or one results.json."""
    if len(paths) == 1:
        (path,) = paths
        if path.is_file():
            return read_results(path)
        if (path / SWEEP).is_file():
            return read_sweep_folder(path)
        # A run's folder may hold an earlier report of it, but the run may have continued since.
        if (path / RESULTS).is_file() and not _has_started(path):
            return read_results(path / RESULTS)
        return None, [_with_costs(read_record(path))]
    runs = [path for path in paths if not _is_skipped(path, paths)]
    for path in runs:
        if (path / SWEEP).is_file():
            raise UsageError(f"{path} is a sweep; expected either one sweep or several runs", path=path)
        if path.is_file():
            raise UsageError(f"{path} is a file; expected one results.json, or folders of runs", path=path)
        if not _has_started(path):
            read_record(path)  # raises the reason
    records, unreadable = _read_each(dict.fromkeys(runs))
    return describe_runs(records, unreadable) if unreadable else None, records


def read_record(path: Path) -> RunRecord:
    """Read the record of a run, or of sampled texts, from its folder."""
    run = Run(path)
    if not run.exists and "sampling" in run.outcome:
        return read_sampled(path, path.absolute().with_name(MODEL))
    return read_run(path)


def _with_costs(record: RunRecord) -> RunRecord:
    """Return a record with predictions and counts; runs of earlier versions have not recorded them."""
    if record.predicted and "flops_per_token" in record.measured:
        return record
    return with_recomputed_costs(record)


def with_recomputed_costs(record: RunRecord) -> RunRecord:
    """Return a record with the costs that its version did not record, as far as they can be computed."""
    if "sampling.temperature" in record.settings:
        return record
    import torch

    from bytewright.train.config import TrainConfig
    from bytewright.train.session.costs import describe_costs

    try:
        fields = unflatten(record.settings)
        fields.pop("init", None)
        config = build(TrainConfig, fields, source=record.name)
    except UsageError:  # written by another version with other settings
        return record
    name = record.environment.get("cuda")
    device = torch.device("cuda" if name and config.device in ("auto", "cuda") else "cpu")
    costs = describe_costs(config, device, str(name))
    return dataclasses.replace(
        record,
        predicted=costs["predicted"] | dict(record.predicted),  # those made before the run take precedence
        measured=costs["counted"] | dict(record.measured),
    )


def describe_runs(records: Sequence[RunRecord], unreadable: Mapping[str, str] | None = None) -> SweepInfo:
    """Return the description of runs that are not of one sweep; the settings that differ are the axes."""
    names = format_names([record.name for record in records], limit=4)
    axes = find_axes([record.settings for record in records])
    return SweepInfo(name=f"{len(records)} runs", question=names, axes=axes, unreadable=unreadable or {})


def describe_missing(about: SweepInfo) -> list[str]:
    """Return sentences on runs that were not started or cannot be read."""
    waiting = [f"Not started: {', '.join(about.missing)}."] if about.missing else []
    return waiting + [f"Unreadable: {name}: {reason}." for name, reason in about.unreadable.items()]


def _has_started(path: Path) -> bool:
    return Run(path).exists or Run(path).has_outcome or Run(path).is_imported


def _is_skipped(path: Path, given: Sequence[Path]) -> bool:
    """Return whether a path in a sweep's folder is not a run, or is the model of sampled texts in `given`."""
    folder = path.absolute().parent
    if not (folder / SWEEP).is_file() or not path.exists() or (path / SWEEP).is_file():
        return False
    if path.absolute().name == MODEL:
        siblings = [other for other in given if other.absolute().parent == folder]
        return any(_has_started(other) and not Run(other).exists for other in siblings)
    return not _has_started(path)


def read_sweep_folder(folder: Path) -> tuple[SweepInfo, list[RunRecord]]:
    """Read the started runs of a sweep in the order of its plan."""
    plan = Json(atomic.read_document(folder / SWEEP), folder / SWEEP)
    about = parse_sweep_info(plan["about"])
    runs, missing = {}, []
    for run in plan["runs"].elements():
        name, labels = run["name"].as_text(), run["labels"].as_object()
        if not is_plain_name(name):
            raise run["name"].error("the name of a folder next to it")
        if _has_started(folder / name):
            runs[folder / name] = labels
        else:
            missing.append(name)
    records, unreadable = _read_each(runs)
    return dataclasses.replace(about, missing=missing, unreadable=unreadable), records


def _read_each(runs: Mapping[Path, Mapping[str, Any] | None]) -> tuple[list[RunRecord], dict[str, str]]:
    """Read runs, with the labels that are given; return the records, and the reasons for unreadable runs.

    Raises the first error if no run can be read.
    """
    records, unreadable, first = [], {}, None
    names = _name_each(list(runs))
    for path, labels in runs.items():
        try:
            record = _with_costs(read_record(path))
        except BytewrightError as error:
            unreadable[names[path]] = str(error).replace(f"{path.parent}/", "")
            first = first or error
        else:
            labels = record.labels if labels is None else labels
            validation = _identify_validation(path, record)
            records.append(
                dataclasses.replace(record, name=names[path], labels=labels, validation=validation)
            )
    if first and not records:
        raise first
    return records, unreadable


def _name_each(runs: Sequence[Path]) -> dict[Path, str]:
    """Name each run by the fewest last parts of its path that distinguish it from the others.

    >>> list(_name_each([Path("a/tiny"), Path("b/tiny"), Path("b/base")]).values())
    ['a/tiny', 'b/tiny', 'base']
    """
    parts = {path: path.absolute().parts for path in runs}
    names = {}
    for path, own in parts.items():
        others = [other for other in parts.values() if other != own]
        unique = (n for n in range(1, len(own)) if own[-n:] not in {other[-n:] for other in others})
        count = next(unique, len(own))
        names[path] = "/".join(own[-count:])
    return names


def _identify_validation(run: Path, record: RunRecord) -> dict[str, str]:
    """Return the SHA-256 of a run's validation tokens, and of their text if it can still be decoded."""
    path = record.settings.get("data.validation")
    if not isinstance(path, str):
        return {}
    from bytewright.data.tokenfile import TokenFile  # imports numpy; `bytewright runs` does not need it

    try:
        file = TokenFile.open(path)
    except (BytewrightError, ValueError):  # ValueError: the system does not accept the path
        file = None
    recorded = Run(run).data_digests.get("validation")
    if file is None or recorded not in (None, file.manifest.sha256):  # moved or replaced
        return {"tokens": recorded} if isinstance(recorded, str) else {}
    text = _digest_text(file, Run(run).tokenizer_path)
    return {"tokens": file.manifest.sha256} | ({} if text is None else {"text": text})


_texts: dict[tuple[str, str], str] = {}
"""SHA-256 of texts by those of their tokens and tokenizer: the runs of a sweep share them."""


def _digest_text(file: TokenFile, tokenizer: Path | None) -> str | None:
    """Return the SHA-256 of the text that a token file encodes, or None without its tokenizer."""
    if tokenizer is None:
        return None
    from bytewright.tokenizer import Tokenizer  # needs the native extension; most reports do not
    from bytewright.tokenizer.formats import read_vocabulary_of

    key = file.manifest.sha256, file.manifest.tokenizer_fingerprint
    if key not in _texts:
        digest = hashlib.sha256()
        try:
            vocabulary = read_vocabulary_of(file, tokenizer)
        except BytewrightError:
            return None
        decoder = Tokenizer.from_vocabulary(vocabulary)
        for start in range(0, len(file), TOKENS_AT_ONCE):
            digest.update(decoder.decode_bytes(file.tokens[start : start + TOKENS_AT_ONCE]))
        _texts[key] = digest.hexdigest()
    return _texts[key]
