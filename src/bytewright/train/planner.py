"""Plan the number of steps of a run whose only budget is minutes, and correct the plan while it runs.

The learning rate falls over the whole run, so the run needs a length that fits into its time. `StepPlanner`
measures the first steps and plans how many follow. Later it compares the plan with the clock. It plans fewer
steps when steps or evaluations became slower or time was lost, and more when much time would remain.
`schedules.schedule_position` spreads the rest of the schedule over the steps of a new plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from bytewright.train.config import TrainConfig
from bytewright.train.evaluate import EvaluationSet
from bytewright.train.recorder import Recorder

WARMING_STEPS = 3
"""The first steps of a session compile and capture CUDA graphs: their time is not measured."""

CHECK_SHARE = 0.05
"""Share of the minutes that is measured before the first plan, and that later checks are apart at most."""

CHECK_SHARE_LEFT = 0.25
"""Share of the time left that checks are apart at most: they become more frequent towards the end."""

RESERVE_SHARE = 0.02
"""Share of the minutes that a plan leaves free: slower steps may use half of it without a new plan."""

TOO_FEW_SHARE = 0.9
"""A plan with less than this share of the steps that fit is replaced by a longer one."""


class Mark(NamedTuple):
    """The clock of a session after a step: seconds of steps, and seconds and number of pauses."""

    num_taken: int
    stepping: float
    pausing: float
    num_pauses: int

    def per_step(self, since: Mark) -> float:
        """Return the mean seconds of a step since an earlier mark."""
        return (self.stepping - since.stepping) / (self.num_taken - since.num_taken)

    def per_pause(self, since: Mark) -> float:
        """Return the mean seconds of a pause since an earlier mark, with at least one pause in between."""
        return (self.pausing - since.pausing) / (self.num_pauses - since.num_pauses)


class StepPlanner:
    """Measures one session of a run and plans how many steps follow.

    A pause is what the loop does between two steps: evaluating, saving, sampling, recording norms.
    """

    def __init__(
        self,
        config: TrainConfig,
        recorder: Recorder,
        validation: EvaluationSet | None,
        measure: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self._limit = 60 * (config.budget.minutes or math.inf)
        intervals = (config.eval_every, config.save_every, config.sample_every, config.norms_every)
        self._steps_per_pause = min(every for every in intervals if every)
        self._recorder, self._validation, self._measure = recorder, validation, measure
        self._first: Mark | None = None
        self._last = Mark(0, 0.0, 0.0, 0)
        self._recent_step, self._per_pause = math.inf, 0.0
        self._check_step, self._check_second = WARMING_STEPS, math.inf

    def check(self, num_taken: int) -> None:
        """Plan the length of the run or correct it, if that is due after `num_taken` steps of the session."""
        if num_taken < self._check_step and self._recorder.seconds() < self._check_second:
            return  # a check waits for the device, which slows steps down
        self._recorder.process_results()
        if self._first is None:
            self._measure_evaluation()
            self._first = self._last = self._mark(num_taken)
            self._check_step = num_taken + 1
            return
        progress, before = self._recorder.progress, self._recorder.progress.num_steps
        left = self._limit - self._recorder.seconds()
        if left <= 0 or progress.step == before:
            return
        num_steps = self._num_steps(self._mark(num_taken), self._first, left)
        if num_steps is not None:
            progress.set_length(num_steps)
            self._recorder.event("planned_steps", num_steps=num_steps, before=before)

    def _num_steps(self, mark: Mark, first: Mark, left: float) -> int | None:
        """Return the length of the run by a new plan, or None if the plan stays, or is not due yet."""
        step, last, before = self._recorder.progress.step, self._last, self._recorder.progress.num_steps
        span = min(CHECK_SHARE * self._limit, CHECK_SHARE_LEFT * left)
        self._check_second = self._limit - left + 2 * span
        if last is first and mark.stepping - first.stepping <= span:
            self._check_step = mark.num_taken + (mark.num_taken - first.num_taken)
            return None
        recent = mark.per_step(last)
        # A single slow interval can be a pause of the machine; two in a row are a new speed.
        per_step = max(mark.per_step(first), min(recent, self._recent_step))
        if mark.num_pauses > last.num_pauses:
            self._per_pause = max(mark.per_pause(first), mark.per_pause(last))
        self._last, self._recent_step = mark, recent
        self._check_step = mark.num_taken + max(1, int(span / per_step))
        fitting, at_most = (
            step + self._fitting(left, share, per_step) for share in (RESERVE_SHARE, RESERVE_SHARE / 2)
        )
        if before is not None and step + TOO_FEW_SHARE * (fitting - step) <= before <= at_most:
            return None
        return fitting

    def _fitting(self, left: float, reserve_share: float, per_step: float) -> int:
        """Count the steps that fit into `left` seconds with their pauses, the one after the last included."""
        reserve = max(reserve_share * self._limit, per_step)
        # Pauses follow at most n / steps_per_pause + begun of the n steps from this one on.
        begun = (self._recorder.progress.step - 1) % self._steps_per_pause / self._steps_per_pause
        seconds = left - reserve - (1 + begun) * self._per_pause
        return max(1, int(seconds / (per_step + self._per_pause / self._steps_per_pause)))

    def _mark(self, num_taken: int) -> Mark:
        pausing, step = self._recorder.untimed_seconds, self._recorder.progress.step
        stepping = self._recorder.seconds() - pausing
        # The pause after the current step is still to come.
        return Mark(num_taken, stepping, pausing, (step - 1) // self._steps_per_pause)

    def _measure_evaluation(self) -> None:
        if self._validation is None:
            return
        with self._recorder.untimed():
            self._validation.measure_batch(self._measure)  # compiles
            start = self._recorder.seconds()
            self._validation.measure_batch(self._measure)
            self._per_pause = (self._recorder.seconds() - start) * self._validation.num_batches
