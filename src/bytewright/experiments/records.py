"""`RunRecord`: the data of a run in reports and tables: settings, curve, status, cost and samples.

A record is read from a run's folder, or from `results.json`, the compact record that remains after the
folders are removed. Its status is `Run.status`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bytewright.corpus import END_OF_TEXT
from bytewright.errors import BytewrightError, FormatError, UsageError
from bytewright.storage import atomic
from bytewright.storage.manifest import manifest_path_of
from bytewright.train.checkpoint_list import CHECKPOINTS
from bytewright.train.metrics import COST_METRICS, is_finite
from bytewright.train.outcome import Ending, State
from bytewright.train.recipe import flatten
from bytewright.train.run import Run, check_no_link
from bytewright.train.run_files import read_if_present

CORPUS_FILE = "corpus.json"
"""The file of a corpus that describes its text; it has the entropy of generated text."""

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The record of a run. `settings` is its config with dotted keys; `labels` are its labels in a sweep."""

    name: str
    settings: Mapping[str, Any]
    lines: Sequence[Line]
    """Records of metrics.jsonl with a `step`, in order, without events."""
    status: State
    ending: Ending | None = None
    reason: str = ""
    """Why the run is not complete, in a few words."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[int, str] = field(default_factory=dict)
    """Generated texts by step."""
    predicted: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    floor: float | None = None
    """Entropy of the validation text in bits per byte, if known."""
    validation: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the validation data, if known: of the `tokens`, and of the `text` that they encode."""

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.settings.get("seed", 0))

    @property
    def origin(self) -> str:
        """Where the weights came from, in a few words; empty if they were random."""
        source, step = self.settings.get("init.source"), self.settings.get("init.step")
        if not isinstance(source, str):
            return ""
        parts = Path(source).parts
        name = parts[-3] if len(parts) > 2 and parts[-2] == CHECKPOINTS else Path(source).name
        return name if step is None else f"{name}, step {step}"

    @property
    def num_steps(self) -> int:
        """The number of completed steps."""
        return int(self.lines[-1]["step"]) if self.lines else 0

    @property
    def has_results(self) -> bool:
        """Whether the run is complete, or can still become so: its last values are results."""
        return self.status in ("complete", "running", "stopped")

    def column(self, name: str) -> list[tuple[Line, float]]:
        """Return the lines with a finite value of this name, and the value."""
        return [(line, float(line[name])) for line in self.lines if is_finite(line.get(name))]

    def last(self, name: str) -> float | None:
        """Return the last finite value of this name, or None if the run diverged or failed."""
        found = self.column(name)
        return found[-1][1] if found and self.has_results else None

    def end_of_numbers(self, by: str) -> float | None:
        """Return where a run became non-finite, in steps, tokens or seconds: one step after its last line."""
        if self.status != "diverged" or self.ending is not Ending.DIVERGED or not self.lines:
            return None
        last = self.lines[-1]
        return float(last[by]) * (last["step"] + 1) / last["step"] if last["step"] and by in last else None


def read_run(path: Path) -> RunRecord:
    """Read the record of a run from its folder."""
    run = Run.open(path)
    settings, records, outcome = run.settings, run.records, run.outcome
    lines = [record for record in records if "event" not in record]
    if lines:
        lines[-1] = lines[-1] | read_document_figures(outcome, lines, path)
    status = run.find_status(settings, records)
    return RunRecord(
        name=path.absolute().name,
        settings=settings,
        lines=lines,
        status=status.state,
        ending=status.ending,
        reason=status.detail,
        labels=_read_object(outcome, "labels", path),
        environment=run.environment | _describe_plugins(run),
        samples=run.samples,
        predicted=_read_numbers(run.costs, "predicted", path) | _read_numbers(outcome, "predicted", path),
        measured=_read_numbers(run.costs, "counted", path)
        | measured_costs(lines)
        | _read_numbers(outcome, "measured", path),
        floor=read_floor(settings.get("data.validation")),
    )


def read_document_figures(outcome: Mapping[str, Any], lines: Sequence[Line], path: Path) -> dict[str, float]:
    """Return the bits per byte of whole documents: of the final model, or the last that the demo recorded."""
    found = _read_numbers(outcome, "documents", path)
    recorded = [line["story_bits_per_byte"] for line in lines if is_finite(line.get("story_bits_per_byte"))]
    return {"document_bits_per_byte": recorded[-1], **found} if recorded else found


def _describe_plugins(run: Run) -> dict[str, str]:
    """Return the plugins of a run with the start of their SHA-256, as one entry of the environment."""
    plugins = [f"{plugin.copy.name} ({plugin.sha256[:12]})" for plugin in run.plugins]
    return {"plugins": ", ".join(plugins)} if plugins else {}


def read_sampled(path: Path, model: Path) -> RunRecord:
    """Read the record of the texts at `path` that were sampled from the run at `model`."""
    outcome = Run(path).outcome
    if not isinstance(outcome.get("figures"), dict) or not isinstance(outcome.get("sampling"), dict):
        raise UsageError.at(path, "its outcome.json does not describe sampled texts")
    check_no_link(path / "stories.txt", path)
    stories = atomic.read_text(path / "stories.txt") if (path / "stories.txt").is_file() else ""
    return RunRecord(
        name=path.name,
        settings=Run(model).settings | flatten({"sampling": outcome["sampling"]}),
        lines=[{"step": 0, **outcome["figures"]}],
        status="complete",
        labels=_read_object(outcome, "labels", path),
        environment=Run(model).environment | _describe_plugins(Run(model)),
        samples={0: stories.split(END_OF_TEXT)[0].strip()},
    )


def measured_costs(lines: Sequence[Line]) -> dict[str, float]:
    """Return the measured costs of a run, each summarised as `COST_METRICS` declares."""
    measured: dict[str, float] = {}
    for metric in COST_METRICS:
        values = [float(line[metric.name]) for line in lines if is_finite(line.get(metric.name))]
        if values and (metric.summary != "last" or is_finite(lines[-1].get(metric.name))):
            summaries = {"last": values[-1], "median": statistics.median(values), "maximum": max(values)}
            measured[metric.name] = summaries[metric.summary]
    return measured


def read_floor(validation: object) -> float | None:
    """Return the entropy of a validation text in bits per byte.

    The manifest of its tokens has it, or the corpus.json near them.
    """
    manifest = _read_fields(manifest_path_of(validation)) if isinstance(validation, str) else {}
    floors = (fields.get("floor_bits_per_byte") for fields in (manifest, *_read_corpus_fields(validation)))
    return next((float(floor) for floor in floors if is_finite(floor)), None)


def read_corpus_name(data: object) -> str | None:
    """Return the name of a generated text, such as "storybook", from the corpus.json near its tokens."""
    names = (fields.get("text") for fields in _read_corpus_fields(data))
    return next((name for name in names if isinstance(name, str)), None)


def _read_corpus_fields(tokens: object) -> Iterator[dict[str, Any]]:
    """Yield the contents of corpus.json in the two folders above a token file; of a missing file, nothing."""
    for folder in Path(tokens).parents[:2] if isinstance(tokens, str) else ():
        yield _read_fields(folder / CORPUS_FILE)


def _read_fields(path: Path) -> dict[str, Any]:
    """Return the fields of a file outside the run; of a missing or damaged file, nothing."""
    try:
        return read_if_present(path)
    except (BytewrightError, OSError):
        return {}


def _read_object(outcome: Mapping[str, Any], name: str, run: Path) -> dict[str, Any]:
    value = outcome.get(name) or {}
    if not isinstance(value, dict):
        raise FormatError.at(run, f"{name} in its outcome should be a JSON object", key=name)
    return value


def _read_numbers(fields: Mapping[str, Any], name: str, run: Path) -> dict[str, float]:
    return numbers_in(_read_object(fields, name, run))


def numbers_in(fields: Mapping[str, Any]) -> dict[str, float]:
    """Return the fields that are finite numbers, since files can contain anything."""
    return {name: float(value) for name, value in fields.items() if is_finite(value)}
