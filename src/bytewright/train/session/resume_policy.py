"""Whether a run can be resumed: it has not ended, and its config and data match its last checkpoint.

A checkpoint stores the config that it was made with. A resume compares it with the current config.json. The
rule: the completed steps must be steps of the run with the current config. A change of any setting that
affects what is learned is rejected. These may change:

- where and how the run is computed, which changes only the rounding: device, compilation, reference or fused
  implementation, the number of parts of a batch, and how ranks add their gradients;
- how often to record, evaluate, sample and save, and where the data lies (its SHA-256 must be the same);
- budget and schedule, if the learning rates of all completed steps stay the same: a constant rate, or one
  whose decay has not begun, can continue longer; half a cosine cannot.

`resume(run, changes={"budget.steps": 2000})` changes the config under this rule. If the decay of a schedule
that can be lengthened has begun, the run continues from its last checkpoint before the decay. `prune` keeps
this checkpoint. So the longer run has the bits of a run that was that long from the start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from bytewright.errors import FormatError, UsageError
from bytewright.storage.config_reader import MAX_INTEGER, build, convert
from bytewright.train.checkpoint import SavedState
from bytewright.train.checkpoint_list import CheckpointList
from bytewright.train.config import TrainConfig
from bytewright.train.metrics_log import read_metrics
from bytewright.train.outcome import Ending, find_status
from bytewright.train.recipe import flatten, put, to_plain
from bytewright.train.run_files import CONFIG, OUTCOME, RunWriter, has_records, read_if_present
from bytewright.train.session.recorder import TrainState, check_plan
from bytewright.train.setup import Inputs, check_checkpoint_space

ROUNDING_SETTINGS = {
    "device",
    "compile",
    "accumulate",
    "model.implementation",
    "optimizer.implementation",
    "parallel.strategy",
    "parallel.reduction",
    "parallel.threads",
}
RECORDING_SETTINGS = {
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
DATA_PATHS = {"data.train", "data.validation", "data.tokenizer"}
FREE = ROUNDING_SETTINGS | RECORDING_SETTINGS | DATA_PATHS
"""The settings that a resume may change."""
SAMPLER = "sampler."
"""The start of the fields of the sampler, which has no effect on training."""
RATE_SETTINGS = ("budget.", "schedule.")
"""Fields that act only through the learning rates."""
MOST_COMPARED = 10_000
"""In a long run, the number of first steps, and of others, whose learning rates are compared."""


def check_not_finished(writer: RunWriter, config: TrainConfig) -> None:
    """Raise if a run has ended and has no checkpoint: resuming would erase its metrics."""
    if not has_records(writer.path) or writer.checkpoints.steps():
        return
    records, outcome = list(read_metrics(writer.metrics)), read_if_present(writer.path / OUTCOME)
    status = find_status(flatten(to_plain(config)), records, outcome=outcome, has_checkpoints=False)
    if status.is_final:
        ended = "has diverged" if status.ending is Ending.DIVERGED else "is complete"
        message = f"{writer.path} {ended}, and its checkpoints were not kept; there is nothing to resume"
        raise UsageError(message, path=writer.path, found=status.ending)


def change_config(config: TrainConfig, changes: Mapping[str, Any], run: Path) -> TrainConfig:
    """Return a config with changed values, by dotted keys; other paths than those of the run are absolute."""
    fields = to_plain(config)
    for key, value in changes.items():
        put(fields, key, value)
    changed = build(TrainConfig, fields, source=str(run / CONFIG))
    _check_effect_on_length(changed, changes, run)
    return dataclasses.replace(changed, data=changed.data.absolute())


def _check_effect_on_length(config: TrainConfig, changes: Mapping[str, Any], run: Path) -> None:
    """Raise if the changes set only a limit that the run cannot reach, because another one ends it first."""
    given = {"steps", "tokens"} & {key.removeprefix("budget.") for key in changes}
    if len(given) != 1 or config.num_steps is None:
        return
    (name,) = given
    (other,) = {"steps", "tokens"} - given
    limit, first = (getattr(config.budget, key) for key in (name, other))
    alone = dataclasses.replace(config.budget, **{other: None}).num_steps(config.tokens_per_step)
    if first is not None and alone is not None and alone > config.num_steps:
        if not config.schedule.is_lengthenable:
            raise _cannot_lengthen(run, config, f"budget.{name}", config.num_steps, alone)
        message = (
            f"budget.{name} = {limit:,} has no effect, because budget.{other} = {first:,} ends {run} after"
            f" {config.num_steps:,} steps; set budget.{other}, too"
        )
        raise UsageError(message, path=run, key=f"budget.{other}", expected=alone, found=config.num_steps)


def find_step_to_continue(checkpoints: CheckpointList, config: TrainConfig, run: Path) -> int | None:
    """Return the newest checkpoint whose steps are steps of a run with `config`; None without checkpoints.

    It is the last one, unless the decay of a schedule that can be lengthened has begun by then.
    """
    refusal: UsageError | None = None
    for step in reversed(checkpoints.steps()):
        state = checkpoints.read_state(step)
        plan = read_saved_plan(state, str(checkpoints.at(step)))
        try:
            continue_config(
                config,
                state.get("config"),
                step=step,
                plan=plan,
                source=str(run / CONFIG),
                checkpoint=str(checkpoints.at(step)),
            )
        except UsageError as error:
            if error.key is None or not error.key.startswith(RATE_SETTINGS):
                raise
            refusal = refusal or error
            if config.schedule.is_lengthenable:
                continue
            break
        else:
            return step
    if refusal is None:
        return None
    raise _cannot_lengthen(run, config, refusal.key, refusal.expected, refusal.found)


def read_saved_plan(state: Mapping[str, Any], source: str) -> list[list[int]]:
    """Return the planned lengths of a run from the state of a checkpoint, checked."""
    num_steps = state.get("num_steps")
    plan = state.get("plan") or ([] if num_steps is None else [[0, num_steps]])
    try:
        converted = cast("list[list[int]]", convert(list[list[int]], plan, source, "plan"))
        check_plan(converted, step=state["step"], num_steps=num_steps)
    except UsageError as error:
        raise FormatError(str(error), path=source, key="plan", found=plan) from None
    return converted


def _cannot_lengthen(
    run: Path, config: TrainConfig, key: str | None, expected: object, found: object
) -> UsageError:
    """Return the error that explains why a run cannot be longer, and what to do instead."""
    reason = (
        "no checkpoint from before the decay of its learning rate is left"
        if config.schedule.is_lengthenable
        else f"the learning rates of its {config.schedule.kind} schedule depend on its length"
    )
    message = (
        f"the length of {run} cannot be changed, because {reason}; start a new run from its weights with"
        f" `bytewright train RECIPE --init {run} --out FOLDER`"
    )
    return UsageError(message, path=run, key=key, expected=expected, found=found)


def find_step_before_decay(steps: Sequence[int], config: TrainConfig) -> int | None:
    """Return the last of `steps` whose learning rate would be the same in a longer run, if any is."""
    length, schedule = config.num_steps, config.schedule
    if length is None or not schedule.is_lengthenable:
        return None
    now, longer = [[0, length]], [[0, 2 * length]]
    same = (s for s in steps if schedule.planned_factor(s, now) == schedule.planned_factor(s, longer))
    return max(same, default=None)


def check_saved(saved: SavedState | None, config: TrainConfig, inputs: Inputs, run: Path) -> TrainState:
    """Return the progress of a run's last checkpoint; raise if data, config or model do not match it.

    It allocates nothing of the sizes that config.json claims, so call it before the model is built.
    """
    if saved is None:
        check_checkpoint_space(run, config)
        return TrainState(num_steps=config.num_steps)
    if saved.rest.pop("data", None) != inputs.identity:
        message = (
            f"the data has changed since step {saved.rest['step']} was saved; restore it, or start a new run"
        )
        raise FormatError.at(run, message, key="data")
    saved_config = saved.rest.pop("config", None)
    try:
        progress = build(TrainState, saved.rest, source=saved.source)
    except UsageError as error:
        raise FormatError(str(error)) from None
    if progress.step * config.batch_size > MAX_INTEGER:
        message = f"has {progress.step} steps, more than a 64-bit count of windows allows"
        raise FormatError.at(saved.source, message, key="step")
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
    """Return the plan of the run with the config `now`; raise if it changes one of the first `step` steps.

    `saved` holds the config fields of `checkpoint`, and `plan` the planned lengths so far.
    """
    before = read_saved(saved, checkpoint)
    if before.num_steps is not None and plan != [[0, before.num_steps]]:
        message = f"its plan is {str(plan)[:60]}, but its budget is {before.num_steps} steps"
        raise FormatError.at(checkpoint, message, key="plan")
    changes = find_changes(to_plain(before), to_plain(now))
    for name, (old, new) in changes.items():
        if not name.startswith(RATE_SETTINGS):
            message = (
                f"{source}: {name} is {new!r}, but the {step} completed steps used {old!r};"
                " restore it, or start a new run"
            )
            raise UsageError(message, path=source, key=name, expected=old, found=new)
    if not changes:
        return plan
    new_plan = plan
    if now.budget != before.budget:  # a new budget of minutes alone is planned again
        new_plan = [] if now.num_steps is None else [[0, now.num_steps]]
    for t in steps_to_compare(step):
        if now.schedule.planned_factor(t, new_plan) != before.schedule.planned_factor(t, plan):
            name, (old, new) = next(iter(changes.items()))
            message = (
                f"{source}: {name} is {new!r} and was {old!r}; this would change the learning rate of"
                f" completed step {t}; restore it, or start a new run"
            )
            raise UsageError(message, path=source, key=name, expected=old, found=new)
    return new_plan


def steps_to_compare(step: int) -> list[int]:
    """Return the steps up to `step` whose learning rates are compared: all, or in a long run some.

    Different schedules differ from the first step on, up to the last, or over a long interval. The number of
    compared steps is bounded, whatever a checkpoint claims.

    >>> steps_to_compare(3), len(steps_to_compare(10**12)), steps_to_compare(10**12)[-1]
    ([1, 2, 3], 20000, 1000000000000)
    """
    spread = range(step, 0, -max(1, step // MOST_COMPARED))
    return sorted({*range(1, min(step, MOST_COMPARED) + 1), *spread})


def read_saved(saved: object, checkpoint: str) -> TrainConfig:
    """Return the config that a checkpoint stores."""
    try:
        return build(TrainConfig, saved, source=checkpoint)
    except UsageError as error:
        message = f"{error}; this is not the config of a run"
        raise FormatError(message, path=checkpoint, key=error.key) from None


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ and may not change: name to (before, now).

    >>> find_changes({"seed": 0, "model": {"d_model": 8}}, {"seed": 0, "model": {"d_model": 16}})
    {'model.d_model': (8, 16)}
    """
    old, new = flatten(before), flatten(now)
    names = [
        name
        for name in {**new, **old}  # old: removed options
        if name not in FREE and not name.startswith(SAMPLER)
    ]
    return {name: (old.get(name), new.get(name)) for name in names if new.get(name) != old.get(name)}
