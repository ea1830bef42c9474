"""Learning-rate schedules: the rate as a function of the step, with a linear warm-up and one of four shapes.

The first update is step 1, so a warm-up of `w` steps reaches `max_lr` at update `w`, and no update has rate
0. All schedules but the constant one reach `min_lr` at `end` and stay there; a warm-up that lasts until `end`
ends at `max_lr`. The position of an update in its schedule is its number, unless the length of the run
changed during the run (`schedule_position`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Plan = Sequence[Sequence[int]]
"""The planned lengths of a run: pairs of a number of completed updates and the length planned then."""


def cosine_schedule(t: float, max_lr: float, min_lr: float, warmup: int, end: int) -> float:
    """Return the rate: linear to `max_lr` over `warmup` steps, half a cosine to `min_lr` at `end`, constant.

    >>> [round(cosine_schedule(t, 1.0, 0.1, 2, 6), 3) for t in range(8)]
    [0.0, 0.5, 1.0, 0.868, 0.55, 0.232, 0.1, 0.1]
    """
    if t < warmup:
        return t / warmup * max_lr
    return min_lr + (1 + math.cos(math.pi * _progress(t, warmup, end))) / 2 * (max_lr - min_lr)


def linear_schedule(t: float, max_lr: float, min_lr: float, warmup: int, end: int) -> float:
    """Return the rate: linear to `max_lr` over `warmup` steps, linear to `min_lr` at `end`, constant.

    >>> [linear_schedule(t, 1.0, 0.0, 2, 6) for t in range(8)]
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    if t < warmup:
        return t / warmup * max_lr
    return max_lr + _progress(t, warmup, end) * (min_lr - max_lr)


def wsd_schedule(t: float, max_lr: float, min_lr: float, warmup: int, end: int, decay_steps: int) -> float:
    """Return the rate: warm-up, constant `max_lr`, linear to `min_lr` over `decay_steps` before `end`.

    >>> [wsd_schedule(t, 1.0, 0.0, 2, 8, 4) for t in range(9)]
    [0.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if t < warmup:
        return t / warmup * max_lr
    return max_lr + _progress(t, max(end - decay_steps, warmup), end) * (min_lr - max_lr)


def constant_schedule(t: float, max_lr: float, warmup: int) -> float:
    """Return the rate: linear to `max_lr` over `warmup` steps, then constant.

    >>> [constant_schedule(t, 1.0, 4) for t in range(6)]
    [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return t / warmup * max_lr if t < warmup else max_lr


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
