"""What may change in the config of a run between two sessions.

A checkpoint keeps the config that it was made with, and a resume compares it with the config.json of the run
as it is now. The rule: the steps taken so far must be steps of the run as it is now. So whatever decides what
is learned stays as it was, and is refused by its name when it does not. Free are

- where and how it is computed, which changes no more than the rounding: device, compiling, the twin, the
  number of parts a batch is cut in;
- when to look and what to keep: lines, evaluations, samples, checkpoints, and where the data lies (that it is
  the same data is checked by its SHA-256);
- budget and schedule, as long as every learning rate so far would have been the same: a constant rate, or one
  whose decay has not begun, can go on longer; half a cosine cannot.

Nothing here reads files or touches tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bytewright.errors import FormatError, UsageError
from bytewright.storage.config_reader import MAX_INTEGER, build
from bytewright.train.checkpoint import SavedState
from bytewright.train.config import TrainConfig
from bytewright.train.metrics import read_metrics
from bytewright.train.outcome import Ending, find_status
from bytewright.train.recipe import flatten, to_plain
from bytewright.train.recorder import TrainState
from bytewright.train.run_files import CONFIG, RunWriter, check_space, has_records, read_outcome
from bytewright.train.setup import Inputs, checkpoint_bytes

ONLY_ROUNDING = {"device", "compile", "accumulate", "model.implementation", "optimizer.implementation"}
ONLY_LOOKING = {
    "log_every",
    "eval_every",
    "save_every",
    "keep_last",
    "sample_every",
    "sample_prompt",
    "norms_every",
    "max_refused",
    "tensorboard",
}
ONLY_PLACES = {"data.train", "data.validation", "data.tokenizer"}
FREE = ONLY_ROUNDING | ONLY_LOOKING | ONLY_PLACES
BY_RATE = ("budget.", "schedule.")
"""Fields that act through the learning rates alone."""
MOST_COMPARED = 10_000
"""Of a long run, how many of its first steps and how many others are compared."""


def check_not_finished(writer: RunWriter, config: TrainConfig) -> None:
    """Raise if a run has ended and has no checkpoint: resuming would erase its metrics."""
    if not has_records(writer.path) or writer.checkpoints.steps():
        return
    records = list(read_metrics(writer.metrics))
    status = find_status(
        flatten(to_plain(config)), records, outcome=read_outcome(writer.path), has_checkpoints=False
    )
    if status.is_final:
        ended = "has diverged" if status.ending is Ending.DIVERGED else "is complete"
        raise UsageError(
            f"{writer.path} {ended}, and its checkpoints were not kept; there is nothing to resume",
            path=writer.path,
            found=status.ending,
        )


def check_saved(saved: SavedState | None, config: TrainConfig, inputs: Inputs, run: Path) -> TrainState:
    """Return the progress of a run's last checkpoint; raise if data, config or model do not match it.

    It allocates nothing of the sizes that config.json claims, so call it before the model is built.
    """
    if saved is None:
        check_space(run, checkpoint_bytes(config) * (config.keep_last + 2))
        return TrainState(num_steps=config.num_steps)
    if saved.rest.pop("data", None) != inputs.identity:
        raise FormatError(
            f"{run}: the data has changed since step {saved.rest['step']} was saved", path=run, key="data"
        )
    saved_config = saved.rest.pop("config", None)
    try:
        progress = build(TrainState, saved.rest, source=saved.source)
    except UsageError as error:
        raise FormatError(str(error)) from None
    if progress.step * config.batch_size > MAX_INTEGER:
        raise FormatError(f"{saved.source}: claims {progress.step} steps, more than can be counted")
    progress.plan = continue_config(
        config,
        saved_config,
        step=progress.step,
        plan=progress.plan,
        source=str(run / CONFIG),
        checkpoint=saved.source,
    )
    progress.num_steps = progress.plan[-1][1] if progress.plan else None
    saved.check_model(config.model)
    return progress


def continue_config(
    now: TrainConfig, saved: object, *, step: int, plan: list[list[int]], source: str, checkpoint: str
) -> list[list[int]]:
    """Refuse a config that would change one of the first `step` steps; return the plan of the run by it.

    `saved` holds the fields that `checkpoint` was made with, and `plan` the lengths the run has had.
    """
    before = read_saved(saved, checkpoint)
    if before.num_steps is not None and plan != [[0, before.num_steps]]:
        raise FormatError(f"{checkpoint}: its plan is {str(plan)[:60]}, its budget {before.num_steps} steps")
    changes = find_changes(to_plain(before), to_plain(now))
    for name, (old, new) in changes.items():
        if not name.startswith(BY_RATE):
            raise UsageError(
                f"{source}: {name} is {new!r}, but the {step} steps so far were taken with {old!r}; "
                "put it back, or start a new run"
            )
    if not changes:
        return plan
    new_plan = plan
    if now.budget != before.budget:  # a new budget of minutes alone is planned again
        new_plan = [] if now.num_steps is None else [[0, now.num_steps]]
    for t in steps_to_compare(step):
        if now.schedule.planned_factor(t, new_plan) != before.schedule.planned_factor(t, plan):
            name, (old, new) = next(iter(changes.items()))
            raise UsageError(
                f"{source}: {name} is {new!r} and was {old!r}, by which the learning rate of step {t}, which "
                "was taken, would have been another; put it back, or start a new run"
            )
    return new_plan


def steps_to_compare(step: int) -> list[int]:
    """List the steps up to `step` whose learning rates are compared: all of a short run, some of a long one.

    Rates that differ do so from the first step on, up to the last, or over a whole stretch of the run. So a
    checkpoint that claims 10^12 steps takes no longer than one of 10^6.

    >>> steps_to_compare(3), len(steps_to_compare(10**12)), steps_to_compare(10**12)[-1]
    ([1, 2, 3], 20000, 1000000000000)
    """
    spread = range(step, 0, -max(1, step // MOST_COMPARED))
    return sorted({*range(1, min(step, MOST_COMPARED) + 1), *spread})


def read_saved(saved: object, checkpoint: str) -> TrainConfig:
    """Read the config that a checkpoint keeps."""
    try:
        return build(TrainConfig, saved, source=checkpoint)
    except UsageError as error:
        raise FormatError(f"{error}; this is not the config of a run") from None


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """List the fields that differ and are not free: name to (before, now).

    >>> find_changes({"seed": 0, "model": {"d_model": 8}}, {"seed": 0, "model": {"d_model": 16}})
    {'model.d_model': (8, 16)}
    """
    old, new = flatten(before), flatten(now)
    return {
        name: (old.get(name), new[name]) for name in new if new[name] != old.get(name) and name not in FREE
    }
