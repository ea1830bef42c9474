"""The learning rate as a pure function of the step: warm-up, then one of four shapes.

Steps are counted from 1 for the first update, so that a warm-up of `w` steps reaches the full rate at update
`w` and no update is wasted at rate 0. Every schedule climbs linearly to `max_lr` during the warm-up. All but
the constant one are at `min_lr` from `end` on; but a warm-up that lasts up to `end` ends at `max_lr`. The
position of an update in its schedule is its number, unless the run got a new length on the way
(`schedule_position`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Plan = Sequence[Sequence[int]]
"""The lengths that a run has had: pairs of a number of completed updates and the length planned there."""


def cosine_schedule(t: float, max_lr: float, min_lr: float, warmup: int, end: int) -> float:
    """Climb to `max_lr` over `warmup` steps, fall along half a cosine to `min_lr` at `end`, stay there.

    >>> [round(cosine_schedule(t, 1.0, 0.1, 2, 6), 3) for t in range(8)]
    [0.0, 0.5, 1.0, 0.868, 0.55, 0.232, 0.1, 0.1]
    """
    if t < warmup:
        return t / warmup * max_lr
    return min_lr + (1 + math.cos(math.pi * _progress(t, warmup, end))) / 2 * (max_lr - min_lr)


def linear_schedule(t: float, max_lr: float, min_lr: float, warmup: int, end: int) -> float:
    """Climb to `max_lr` over `warmup` steps, fall along a line to `min_lr` at `end`, stay there.

    >>> [linear_schedule(t, 1.0, 0.0, 2, 6) for t in range(8)]
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    if t < warmup:
        return t / warmup * max_lr
    return max_lr + _progress(t, warmup, end) * (min_lr - max_lr)


def wsd_schedule(t: float, max_lr: float, min_lr: float, warmup: int, end: int, decay_steps: int) -> float:
    """Warm up, stay at `max_lr`, decay along a line to `min_lr` over the last `decay_steps` before `end`.

    >>> [wsd_schedule(t, 1.0, 0.0, 2, 8, 4) for t in range(9)]
    [0.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if t < warmup:
        return t / warmup * max_lr
    return max_lr + _progress(t, max(end - decay_steps, warmup), end) * (min_lr - max_lr)


def constant_schedule(t: float, max_lr: float, warmup: int) -> float:
    """Climb to `max_lr` over `warmup` steps and stay there.

    >>> [constant_schedule(t, 1.0, 4) for t in range(6)]
    [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return t / warmup * max_lr if t < warmup else max_lr


def schedule_position(t: int, plan: Plan) -> float:
    """Return the position of update `t` in a schedule of as many updates as the first plan has.

    The position is `t` under the first plan. Each later plan spreads the rest of the schedule evenly over the
    updates that are left, so the learning rate stays continuous and that of a completed update never changes.

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
    """How far `t` is from `start` to `end`, between 0 and 1; an empty stretch is behind us once we reach it.

    At `t = start` the full rate holds even when the stretch is empty: a warm-up that fills the whole run
    ends at `max_lr`, not at `min_lr`.
    """
    if t <= start:
        return 0.0
    return 1.0 if t >= end else (t - start) / (end - start)
