"""How many steps a run of minutes takes: fixed once, as soon as its speed is known.

The learning rate falls over the whole run, so a run that only the clock ends would be cut off in mid-decay.
`Pace` watches its first steps and says how many are to follow. It counts what steps take, and beside it the
evaluations to come, whether or not one has been seen by then; what happens once, as compiling does, is over
before it begins to measure. Knows nothing of learning rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from bytewright.train.config import TrainConfig
from bytewright.train.evaluate import EvaluationSet
from bytewright.train.recorder import Recorder

PLANNING_SHARE = 0.05
"""The speed is measured for this share of the minutes at least."""

WARMING_STEPS = 3
"""The first steps of a session compile and are recorded for replay: they say nothing about its speed."""

USED_SHARE = 0.98
"""The share of the time left that is planned for; the rest is for saving and for slower steps."""


class Pace:
    """Measures one session of a run and plans its length."""

    def __init__(
        self,
        config: TrainConfig,
        recorder: Recorder,
        validation: EvaluationSet | None,
        measure: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self._limit = 60 * (config.budget.minutes or math.inf)
        self._steps_between_evaluations = min(config.eval_every, config.save_every)
        self._recorder, self._validation, self._measure = recorder, validation, measure
        self._began, self._aside, self._per_evaluation = 0.0, 0.0, 0.0

    def steps_left(self, num_taken: int) -> int | None:
        """Say how many steps are to follow those that the session has taken, or None: not known yet."""
        measured = num_taken - WARMING_STEPS
        if measured < 0 or measured & (measured - 1):
            return None  # waiting for the device slows the steps that are measured: after 1, 2, 4, 8 … it is
        self._recorder.fetch()
        if measured == 0:
            self._begin()
            return None
        now = self._recorder.seconds()
        if now - self._began <= PLANNING_SHARE * self._limit:
            return None
        aside = self._recorder.aside_seconds - self._aside
        per_step = (now - self._began - aside) / measured
        beside = max(aside / measured, self._per_evaluation / self._steps_between_evaluations)
        left = USED_SHARE * (self._limit - now) - self._per_evaluation  # the last one comes after all steps
        return max(1, int(left / (per_step + beside)))

    def _begin(self) -> None:
        if self._validation is not None:
            with self._recorder.aside():
                self._validation.measure_batch(self._measure)  # compiles
                start = self._recorder.seconds()
                self._validation.measure_batch(self._measure)
                self._per_evaluation = (self._recorder.seconds() - start) * self._validation.num_batches
        self._began, self._aside = self._recorder.seconds(), self._recorder.aside_seconds
