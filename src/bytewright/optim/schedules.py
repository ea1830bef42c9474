"""Learning-rate schedules: the rate as a function of the step, registered by name.

A schedule is a function that returns the rate of update `t`. A run passes it those of these arguments that it
has as parameters; all others are its options (`[schedule.options]`):

    t              the number of the update, from 1; not always whole (`schedule_position`)
    warmup, end    the updates of the warm-up, and the number of updates of the run
    max_lr         1.0: a run multiplies the peak learning rates by the result
    min_lr         `schedule.final`, the fraction of the peak at the end
    decay_steps    `schedule.decay` of `end`, as a number of updates

`@lengthenable` states that a finished run can be lengthened: only the rates of a decay at the end depend on
the length of the run.

The four schedules here start with a linear warm-up. The first update is step 1, so a warm-up of `w` steps
reaches `max_lr` at update `w`, and no update has rate 0. All but the constant one reach `min_lr` at `end` and
stay there; a warm-up that lasts until `end` ends at `max_lr`. The position of an update in its schedule is
its number, unless the length of the run changed during the run (`schedule_position`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from bytewright import with_aliases
from bytewright.errors import wrong_value
from bytewright.registry import schedules

Schedule = Callable[..., float]
S = TypeVar("S", bound=Schedule)

PROVIDED = ("t", "warmup", "end", "max_lr", "min_lr", "decay_steps")
"""The parameters of a schedule that a run passes; all others are options."""

Plan = Sequence[Sequence[int]]
"""The planned lengths of a run: pairs of a number of completed updates and the length planned then."""


def lengthenable(schedule: S) -> S:
    """State that a finished run with this schedule can be lengthened; use it as a decorator."""
    schedule.is_lengthenable = True  # type: ignore[attr-defined]
    return schedule


def is_lengthenable(name: str) -> bool:
    """Return whether a finished run with this schedule can be lengthened.

    >>> [name for name in ("cosine", "linear", "wsd", "constant") if is_lengthenable(name)]
    ['wsd', 'constant']
    """
    return bool(getattr(schedules[name], "is_lengthenable", False))


@schedules.register("cosine")
@with_aliases(
    it="t",
    max_learning_rate="max_lr",
    min_learning_rate="min_lr",
    warmup_iters="warmup",
    cosine_cycle_iters="end",
)
def cosine_schedule(t: float, max_lr: float, min_lr: float, warmup: int, end: int) -> float:
    """Return the rate: linear to `max_lr` over `warmup` steps, half a cosine to `min_lr` at `end`, constant.

    >>> [round(cosine_schedule(t, 1.0, 0.1, 2, 6), 3) for t in range(8)]
    [0.0, 0.5, 1.0, 0.868, 0.55, 0.232, 0.1, 0.1]
    """
    if t < warmup:
        return t / warmup * max_lr
    return min_lr + (1 + math.cos(math.pi * _progress(t, warmup, end))) / 2 * (max_lr - min_lr)


@schedules.register("linear")
def linear_schedule(t: float, max_lr: float, min_lr: float, warmup: int, end: int) -> float:
    """Return the rate: linear to `max_lr` over `warmup` steps, linear to `min_lr` at `end`, constant.

    >>> [linear_schedule(t, 1.0, 0.0, 2, 6) for t in range(8)]
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    if t < warmup:
        return t / warmup * max_lr
    return max_lr + _progress(t, warmup, end) * (min_lr - max_lr)


@schedules.register("wsd")
@lengthenable
def wsd_schedule(t: float, max_lr: float, min_lr: float, warmup: int, end: int, decay_steps: int) -> float:
    """Return the rate: warm-up, constant `max_lr`, linear to `min_lr` over `decay_steps` before `end`.

    >>> [wsd_schedule(t, 1.0, 0.0, 2, 8, 4) for t in range(9)]
    [0.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if t < warmup:
        return t / warmup * max_lr
    return max_lr + _progress(t, max(end - decay_steps, warmup), end) * (min_lr - max_lr)


@schedules.register("constant")
@lengthenable
def constant_schedule(t: float, max_lr: float, warmup: int) -> float:
    """Return the rate: linear to `max_lr` over `warmup` steps, then constant.

    >>> [constant_schedule(t, 1.0, 4) for t in range(6)]
    [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return t / warmup * max_lr if t < warmup else max_lr


def evaluate_schedule(name: str, arguments: Mapping[str, float], options: Mapping[str, Any]) -> float:
    """Return the rate of a registered schedule; `arguments` are those of `PROVIDED`.

    >>> evaluate_schedule("constant", {"t": 2, "warmup": 4, "end": 8, "max_lr": 1.0}, {})
    0.5
    """
    schedule = schedules[name]
    wanted = _parameters_of(schedule)
    rate = schedule(**{key: value for key, value in arguments.items() if key in wanted}, **options)
    try:
        is_valid = 0 <= float(rate) < math.inf
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        place = f"the rate of the schedule {name!r} at update {arguments['t']}"
        raise wrong_value(place, "a number of at least 0", rate)
    return float(rate)


@cache
def _parameters_of(schedule: Schedule) -> frozenset[str]:
    return frozenset(inspect.signature(schedule).parameters)


def schedule_position(t: int, plan: Plan) -> float:
    """Return the position of update `t` in a schedule with the length of the first plan.

    Under the first plan the position is `t`. Each later plan spreads the rest of the schedule evenly over the
    remaining updates. The learning rate stays continuous, and that of a completed update never changes.

    >>> [schedule_position(t, [(10, 100), (50, 75)]) for t in (49, 50, 51, 75)]
    [49, 50, 52.0, 100.0]
    """
    (_, length), *later = plan
    start, end, rest = 0, length, float(length)
    for step, new_end in later:
        if t <= step:
            break
        rest *= (end - step) / (end - start)
        start, end = step, new_end
    if not start:
        return t
    return length - rest * (end - t) / (end - start)


def _progress(t: float, start: float, end: float) -> float:
    """Return the progress of `t` from `start` to `end`, between 0 and 1.

    At `t = start` it is 0 even if the interval is empty, so that a warm-up of the whole run ends at `max_lr`.
    """
    if t <= start:
        return 0.0
    return 1.0 if t >= end else (t - start) / (end - start)
