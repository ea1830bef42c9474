"""What is known of a run once it is over: its settings, its curve, how it ended and what it cost, as a value.

A `RunRecord` comes out of a run's folder or out of `results.json`, the compact record that is kept when the
folders are gone; reports and tables are made of records alone. Nothing is guessed: a run is judged by its own
lines, and where they tell of no end by its `outcome.json`; but one that is said to be complete and has lost
the end of its lines is not. Knows nothing of how runs are started or shown.
"""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeGuard, get_args

from bytewright.corpus import END_OF_TEXT
from bytewright.errors import BytewrightError, FormatError, UsageError
from bytewright.storage import atomic
from bytewright.train.checkpoint import CheckpointFolder, open_checkpoint
from bytewright.train.metrics import read_metrics
from bytewright.train.recipe import check_config, flatten
from bytewright.train.resume_policy import is_over, refused_in_a_row, step_limits
from bytewright.train.run import OUTCOME

Status = Literal["complete", "stopped", "diverged", "failed"]

FLOOR = "corpus.json"
DIVERGED_RISE = 1.0
"""Nats per token above its own lowest validation loss, or above guessing, at which a run has diverged."""

STEP = re.compile("[0-9]{1,18}")
"""How a step is written in the name of a file."""

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run. `settings` is its resolved config with dotted keys; `labels` what a sweep calls it by."""

    name: str
    settings: Mapping[str, Any]
    lines: Sequence[Line]
    """Records of metrics.jsonl with a `step`, in order, without events."""
    status: Status
    reason: str = ""
    """Why it is not complete, in a few words."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[int, str] = field(default_factory=dict)
    """Texts that the model wrote, by step."""
    predicted: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    floor: float | None = None
    """Entropy of the validation text in bits per byte, where it is known."""
    validation: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the validation data, where known: of the `tokens`, and of the `text` that they encode."""

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.settings.get("seed", 0))

    @property
    def num_steps(self) -> int:
        """How many updates it has made."""
        return int(self.lines[-1]["step"]) if self.lines else 0

    def column(self, name: str) -> list[tuple[Line, float]]:
        """Give the lines that have a finite value of this name, and the value."""
        return [(line, float(line[name])) for line in self.lines if is_finite(line.get(name))]

    def last(self, name: str) -> float | None:
        """Give the last finite value of this name; a run that diverged or failed has none that counts."""
        found = self.column(name)
        return found[-1][1] if found and self.status in ("complete", "stopped") else None

    def end_of_numbers(self, by: str) -> float | None:
        """Say where a run has no numbers any more (in steps, tokens, seconds): a step after its last line."""
        if self.status != "diverged" or "not finite" not in self.reason or not self.lines:
            return None
        last = self.lines[-1]
        return float(last[by]) * (last["step"] + 1) / last["step"] if last["step"] and by in last else None

    @property
    def loss(self) -> float | None:
        """The final loss: on the validation data, or in training where there is none."""
        found = self.last("validation_loss")
        return self.last("loss") if found is None else found


def read_run(path: Path) -> RunRecord:
    """Read the record of a run out of its folder."""
    if not path.exists():
        raise UsageError(f"{path} does not exist, so there is no run to report")
    if not (path / "config.json").is_file():
        raise UsageError(f"{path}: is not a run, for it has no config.json")
    settings = read_settings(path)
    has_metrics = (path / "metrics.jsonl").is_file()
    records = list(read_metrics(path / "metrics.jsonl")) if has_metrics else []
    lines = [record for record in records if "event" not in record]
    outcome = read_object(path / OUTCOME)
    events = [record for record in records if "event" in record]
    num_steps = read_num_steps(path, settings) or _told_end(outcome, lines)
    status, reason = judge(settings, lines, events, num_steps=num_steps)
    if status == "stopped":  # what an earlier session came to does not count where the lines tell of an end
        status, reason = hear_outcome(outcome, settings, lines) or (status, reason)
    return RunRecord(
        name=path.absolute().name,
        settings=settings,
        lines=lines,
        status=status,
        reason=reason,
        labels=_object_in(outcome, "labels", path),
        environment=read_object(path / "environment.json"),
        samples=read_samples(path / "samples"),
        predicted=numbers_in(_object_in(outcome, "predicted", path)),
        measured=measure(lines) | numbers_in(_object_in(outcome, "measured", path)),
        floor=read_floor(settings.get("data.validation")),
    )


def read_settings(run: Path) -> dict[str, Any]:
    """Read the config of a run with dotted keys; the paths of its data become absolute."""
    fields = read_object(run / "config.json")
    if fields:
        check_config(fields, run / "config.json")
    settings = flatten(fields)
    for name in ("data.train", "data.validation", "data.tokenizer"):
        if isinstance(path := settings.get(name), str):
            settings[name] = os.path.normpath(os.path.join(os.path.realpath(run), path))
    return settings


def read_sampled(path: Path, model: Path) -> RunRecord:
    """Read the record of texts that were sampled, at `path`, from the model of a run."""
    outcome = read_object(path / OUTCOME)
    if not isinstance(outcome.get("figures"), dict) or not isinstance(outcome.get("sampling"), dict):
        raise UsageError(f"{path}: holds no sampled texts, for its {OUTCOME} says nothing of them")
    refuse_link(path / "stories.txt", path)
    stories = atomic.read_text(path / "stories.txt") if (path / "stories.txt").is_file() else ""
    return RunRecord(
        name=path.name,
        settings=read_settings(model) | flatten({"sampling": outcome["sampling"]}),
        lines=[{"step": 0, **outcome["figures"]}],
        status="complete",
        labels=_object_in(outcome, "labels", path),
        environment=read_object(model / "environment.json"),
        samples={0: stories.split(END_OF_TEXT)[0].strip()},
    )


def judge(
    settings: Mapping[str, Any],
    lines: Sequence[Line],
    events: Sequence[Line],
    *,
    num_steps: int | None = None,
) -> tuple[Status, str]:
    """Say how a run ended, by its lines alone; `num_steps` is its length, where a checkpoint tells it.

    It has diverged if its steps were refused to the end; if it ends `DIVERGED_RISE` above its own lowest
    validation loss, or above guessing (the logarithm of the vocabulary; one that has not learnt anything yet
    ends near it); or if it ever rose that far and above guessing, even if it came back as its rate fell. A
    validation loss that rises while the training loss falls is none of these: such a run has learnt its data
    by heart, and its numbers count.
    """
    last_step = lines[-1]["step"] if lines else 0
    refused = refused_in_a_row(events)
    if refused and refused[-1] > last_step and len(refused) >= settings.get("max_refused", 10):
        return "diverged", f"the loss or gradient was not finite from step {refused[0]} on"
    if why := _find_divergence(settings, lines):
        return "diverged", why
    if is_over(settings, lines, num_steps):
        return "complete", ""
    return "stopped", f"at step {last_step:,}" if lines else "before its first line"


def hear_outcome(
    outcome: Mapping[str, Any], settings: Mapping[str, Any], lines: Sequence[Line]
) -> tuple[Status, str] | None:
    """Say how a run ended by its `outcome.json`, whose lines tell of no end; None if that cannot tell.

    One that says complete also says at which step the lines end: with fewer, the run has lost some, and with
    more, it has gone on since. Those of earlier versions do not; then the budget says it, if it is no clock.

    >>> hear_outcome({"status": "complete", "step": 120}, {}, [{"step": 40}])
    ('failed', 'its record ends at step 40 of 120')
    """
    told: Status | None = outcome.get("status")
    if told is None or told not in get_args(Status):
        return None
    if told != "complete":
        return told, str(outcome.get("reason", ""))
    last, end = lines[-1]["step"] if lines else 0, outcome.get("step")
    has_last_line = settings.get("budget.minutes") is None and settings.get("log_every", 1)
    if end is None and has_last_line:
        end = min(step_limits(settings), default=None)
    if not isinstance(end, int):
        return ("complete", "") if lines else None
    if last < end:
        return "failed", f"its record ends at step {last:,} of {end:,}"
    return ("complete", "") if last == end else None


def _find_divergence(settings: Mapping[str, Any], lines: Sequence[Line]) -> str:
    """Say in a few words where the loss went astray; nothing if it did not."""
    name = "validation_loss" if any("validation_loss" in line for line in lines) else "loss"
    values = [(line["step"], line[name]) for line in lines if is_finite(line.get(name))]
    if not values:
        return ""
    (end, last), (lowest_step, lowest) = values[-1], min(values, key=lambda pair: pair[1])
    guessing = math.log(settings.get("model.vocab_size", math.inf))
    learnt_by_heart = _fell(lines, lowest_step, end)
    if last > guessing + DIVERGED_RISE and not learnt_by_heart:
        return f"it ends at {_word(last)}, worse than guessing ({guessing:.3g})"
    since, step, highest = _highest_rise(values)
    if highest > guessing + DIVERGED_RISE and not _fell(lines, since, step):
        return f"it rose to {_word(highest)} by step {step}, worse than guessing ({guessing:.3g})"
    if name == "validation_loss" and last > lowest + DIVERGED_RISE and not learnt_by_heart:
        return f"it ends at {last:.3g}, after {lowest:.3g} at step {lowest_step}"
    return ""


def _fell(lines: Sequence[Line], since: int, until: int) -> bool:
    """Say whether the training loss is known to be lower at the second step than at the first."""
    losses = {line["step"]: line["loss"] for line in lines if is_finite(line.get("loss"))}
    return since in losses and until in losses and losses[until] < losses[since]


def _word(loss: float) -> str:
    return f"{loss:.3g}" if loss < 1000 else f"{loss:,.0f}"


def _highest_rise(values: Sequence[tuple[int, float]]) -> tuple[int, int, float]:
    """Give the highest loss `DIVERGED_RISE` above an earlier one, after that one's step and its own."""
    rises, lowest_step, lowest = [(0, 0, -math.inf)], 0, math.inf
    for step, value in values:
        if value < lowest:
            lowest_step, lowest = step, value
        if value > lowest + DIVERGED_RISE:
            rises.append((lowest_step, step, value))
    return max(rises, key=lambda rise: rise[2])


def read_num_steps(run: Path, settings: Mapping[str, Any]) -> int | None:
    """Read what length a run of minutes planned for itself, out of its last checkpoint.

    None if no checkpoint says, or if the budget has been another since.
    """
    if settings.get("budget.minutes") is None:
        return None
    checkpoints = CheckpointFolder(run / "checkpoints")
    try:
        state = open_checkpoint(checkpoints.at(checkpoints.steps()[-1])).read_json("state.json")
    except (IndexError, BytewrightError):  # none is there, or none that can be read
        return None
    if not isinstance(state, dict):
        return None
    config, num_steps = state.get("config"), state.get("num_steps")
    saved = flatten(config) if isinstance(config, Mapping) else {}
    is_same = all(saved.get(key) == settings[key] for key in settings if key.startswith("budget."))
    return num_steps if is_same and isinstance(num_steps, int) else None


def _told_end(outcome: Mapping[str, Any], lines: Sequence[Line]) -> int | None:
    """Give the step that the lines of a complete run went to, unless it has gone on since."""
    end = outcome.get("step") if outcome.get("status") == "complete" else None
    return end if isinstance(end, int) and lines and lines[-1]["step"] <= end else None


def measure(lines: Sequence[Line]) -> dict[str, float]:
    """Give what a run really took: seconds in all, most memory, and the median of speed and utilisation."""
    measured: dict[str, float] = {}
    if lines and is_finite(lines[-1].get("seconds")):
        measured["seconds"] = float(lines[-1]["seconds"])
    for name in ("tokens_per_second", "mfu"):
        values = [float(line[name]) for line in lines if is_finite(line.get(name))]
        if values:
            measured[name] = statistics.median(values)
    memory = [float(line["memory_bytes"]) for line in lines if is_finite(line.get("memory_bytes"))]
    return measured | ({"memory_bytes": max(memory)} if memory else {})


def read_samples(folder: Path) -> dict[int, str]:
    """Read the texts that a run's model wrote."""
    found = {}
    for path in sorted(folder.glob("step-*.txt")) if folder.is_dir() else ():
        number = path.stem.removeprefix("step-")
        if STEP.fullmatch(number):
            refuse_link(path, folder.parent)
            found[int(number)] = atomic.read_bytes(path, max_bytes=2**20).decode(errors="replace")
    return found


def refuse_link(path: Path, run: Path) -> None:
    """Raise if a text of a run lies behind a symbolic link: a report must not show files from elsewhere."""
    links = [each for each in (path, *path.parents) if each.is_relative_to(run) and each != run]
    if any(each.is_symlink() for each in links):
        raise FormatError(f"{path}: is read through a symbolic link; replace the link by a copy")


def read_floor(validation: object) -> float | None:
    """Read the entropy of a validation text, in bits per byte, from the record beside its tokens."""
    if not isinstance(validation, str):
        return None
    for folder in Path(validation).parents[:2]:
        floor = read_object(folder / FLOOR).get("floor_bits_per_byte")
        if is_finite(floor):
            return float(floor)
    return None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; a file that is not there is an empty one."""
    if not path.is_file():
        return {}
    return atomic.read_document(path, max_bytes=2**26)


def _object_in(outcome: Mapping[str, Any], name: str, run: Path) -> dict[str, Any]:
    value = outcome.get(name) or {}
    if not isinstance(value, dict):
        raise FormatError(f"{run / OUTCOME}: {name} should be a JSON object")
    return value


def numbers_in(fields: Mapping[str, Any]) -> dict[str, float]:
    """Return the fields that are finite numbers; the files of a run may hold anything."""
    return {name: float(value) for name, value in fields.items() if is_finite(value)}


def is_finite(value: object) -> TypeGuard[float]:
    """Say whether a value is a number that can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
