"""The progress of a session: results copied from the device, metrics, the clock, and the plan of steps.

Steps return their results as tensors on the device. `Recorder` copies them to the host all at once, when a
record or a checkpoint is due. A checkpoint stores `TrainState` besides weights and optimizer. It
includes the steps since the last record, so the means of a record do not depend on checkpoints or kills.

A run whose only budget is minutes needs a number of steps, since its learning rate falls over the whole run.
`StepPlanner` measures the first steps and plans how many follow. Later it plans fewer steps when steps or
evaluations became slower or time was lost, and more when much time would remain.
`schedules.schedule_position` spreads the rest of the schedule over the steps of a new plan.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bytewright.errors import DivergenceError, UsageError, wrong_value
from bytewright.train.checkpoint_list import CHECKPOINTS, CheckpointList
from bytewright.train.config import TrainConfig, check_not_negative
from bytewright.train.evaluate import Evaluation, EvaluationSet
from bytewright.train.metrics_log import MetricsLog
from bytewright.train.session.console import Display, TensorBoard
from bytewright.train.step import StepResult

WARMING_STEPS = 3
"""The first steps of a session compile and capture CUDA graphs: their time is not measured."""

CHECK_SHARE = 0.05
"""Share of the time budget: measured before the first plan, and the longest interval between later checks."""

CHECK_SHARE_LEFT = 0.25
"""Share of the remaining time: the longest interval between checks, which shortens towards the end."""

RESERVE_SHARE = 0.02
"""Share of the time budget that a plan leaves free: slower steps may use half of it without a new plan."""

TOO_FEW_SHARE = 0.9
"""A plan with less than this share of the steps that fit is replaced by a longer one."""


@dataclass(kw_only=True)
class TrainState:
    """The progress of a run: what a checkpoint stores besides the weights and the optimizer."""

    step: int = 0
    seconds: float = 0.0
    """Wall-clock time over all sessions."""
    num_steps: int | None = None
    """Length of the run, once it is known."""
    plan: list[list[int]] = field(default_factory=list)
    """The planned lengths of the run: pairs of a completed step and the length planned after it."""
    num_refused: int = 0
    refused_in_a_row: int = 0
    best_step: int | None = None
    best_loss: float | None = None
    metrics_position: int = 0
    """Length of the metrics log in bytes; a resume truncates the log to it."""
    since_line: list[list[float]] = field(default_factory=list)
    """Loss and gradient norm of each accepted step since the last line."""

    def __post_init__(self) -> None:
        if self.num_steps is not None and not self.plan:  # a checkpoint of an earlier version, without a plan
            self.plan = [[0, self.num_steps]]
        check_plan(self.plan, step=self.step, num_steps=self.num_steps)
        counts = ("step", "seconds", "num_refused", "refused_in_a_row", "metrics_position")
        check_not_negative({name: getattr(self, name) for name in counts})
        if any(len(pair) != 2 for pair in self.since_line):
            raise wrong_value("since_line", "pairs of numbers", self.since_line)

    def set_length(self, num_steps: int) -> None:
        """Plan `num_steps` for the run from this step on."""
        self.num_steps = num_steps
        self.plan.append([self.step, num_steps])


def check_plan(plan: list[list[int]], *, step: int, num_steps: int | None) -> None:
    """Raise `UsageError` unless `plan` is valid for a run of `num_steps` after `step` steps."""
    if any(len(pair) != 2 or not 0 <= pair[0] < pair[1] for pair in plan):
        raise wrong_value("plan", "pairs of a step and a later end", plan)
    starts, ends = [start for start, _ in plan], [end for _, end in plan]
    if any(not before < start < end for before, start, end in zip(starts, starts[1:], ends, strict=False)):
        message = f"the steps of plan must increase and precede each end, but are {str(plan)[:60]}"
        raise UsageError(message, key="plan")
    if plan and (starts[-1] > step or ends[-1] != num_steps):
        raise UsageError(f"plan must end with {num_steps} steps, made at most at step {step}", key="plan")


class Recorder:
    """Collects the results of one session's steps and writes its metrics.

    `windows_of` returns the windows of a step's batch, and `utilisation` the MFU for a speed in tokens per
    second. `peak_memory` returns the peak of allocated bytes, or None if unknown, and `clock` seconds.
    """

    def __init__(
        self,
        progress: TrainState,
        log: MetricsLog,
        *,
        windows_of: Callable[[int], list[int]],
        tokens_per_step: int,
        max_refused: int,
        utilisation: Callable[[float], float],
        peak_memory: Callable[[], int | None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.progress = progress
        self.log = log
        self.others: list[TensorBoard] = []
        self.display: Display | None = None
        self._windows_of, self._tokens_per_step = windows_of, tokens_per_step
        self._max_refused, self._utilisation, self._peak_memory = max_refused, utilisation, peak_memory
        self._on_device: list[tuple[int, StepResult]] = []
        self._clock, self._started = clock, clock() - progress.seconds
        self.untimed_seconds = 0.0
        """Time of this session in `untimed` blocks."""
        self._line_started, self._line_step = self._stepping_seconds(), progress.step

    def add(self, step: int, result: StepResult) -> None:
        """Add the result of a step; its tensors stay on the device."""
        self._on_device.append((step, result))

    def seconds(self) -> float:
        """Return the wall-clock time of the run, over all sessions."""
        return self._clock() - self._started

    @contextlib.contextmanager
    def untimed(self) -> Iterator[None]:
        """Exclude the time of the block (an evaluation, a save) from the tokens per second."""
        self.process_results()  # so that steps still in flight are not counted as part of the block
        start = self.seconds()
        yield
        self.untimed_seconds += self.seconds() - start

    def _stepping_seconds(self) -> float:
        return self.seconds() - self.untimed_seconds

    def process_results(self) -> None:
        """Copy the results of all steps so far to the host, in one synchronisation, and check them.

        Records each refused step. Raises `DivergenceError` after `max_refused` refused steps in a row.
        """
        if not self._on_device:
            return
        steps = [step for step, _ in self._on_device]
        numbers = torch.stack(
            [torch.stack([part.float() for part in result]) for _, result in self._on_device]
        )
        self._on_device.clear()
        for step, (loss, norm, accepted) in zip(steps, numbers.tolist(), strict=True):
            if accepted:
                self.progress.since_line.append([loss, norm])
                self.progress.refused_in_a_row = 0
            else:
                self._record_refusal(step, loss)

    def _record_refusal(self, step: int, loss: float) -> None:
        self.progress.num_refused += 1
        self.progress.refused_in_a_row += 1
        cause = "gradient" if math.isfinite(loss) else "loss"
        windows = self._windows_of(step)
        self._write({"step": step, "event": "refused_step", "cause": cause, "loss": loss, "windows": windows})
        if self.progress.refused_in_a_row >= self._max_refused:
            run, refused = self.log.path.parent, self.progress.refused_in_a_row
            saved = CheckpointList(run / CHECKPOINTS).steps()
            kept = f"its last checkpoint is that of step {saved[-1]:,}" if saved else "it has no checkpoint"
            message = (
                f"{refused} steps in a row, up to step {step:,}, had a loss or gradient that is not finite;"
                f" the run stops, and {kept}"
            )
            raise DivergenceError.at(run, message, found=refused)

    def line(
        self,
        *,
        lr: float,
        evaluation: Evaluation | None,
        extra: Mapping[str, Any],
        in_log_alone: bool = False,
    ) -> None:
        """Record the metrics of this step: means since the last record, and current measurements."""
        self.process_results()
        progress, step = self.progress, self.progress.step
        spent = max(self._stepping_seconds() - self._line_started, 1e-9)
        speed = (step - self._line_step) * self._tokens_per_step / spent
        record: dict[str, Any] = {
            "step": step,
            "tokens": step * self._tokens_per_step,
            "seconds": round(self.seconds(), 3),
            "loss": mean([loss for loss, _ in progress.since_line]),
            "lr": lr,
            "gradient_norm": mean([norm for _, norm in progress.since_line]),
            "tokens_per_second": round(speed, 1),
            "mfu": self._utilisation(speed),
        }
        if (peak_memory := self._peak_memory()) is not None:
            record["memory_bytes"] = peak_memory
        if evaluation:
            record["validation_loss"] = evaluation.loss
            record["perplexity"] = evaluation.perplexity
            if evaluation.bits_per_byte is not None:
                record["bits_per_byte"] = evaluation.bits_per_byte
        progress.since_line.clear()
        self._write(record | dict(extra), in_log_alone=in_log_alone)
        self._line_started, self._line_step = self._stepping_seconds(), step

    def event(self, event: str, **fields: Any) -> None:
        """Record an event at this step; `console.describe_event` puts it in words."""
        self._write({"step": self.progress.step, "event": event, **fields})

    def flush(self) -> None:
        """Bring `progress` up to date for a checkpoint, and flush the log to disk."""
        self.process_results()
        self.progress.seconds = self.seconds()
        self.progress.metrics_position = self.log.sync()

    def _write(self, record: dict[str, Any], *, in_log_alone: bool = False) -> None:
        self.log.write(record)
        for sink in [] if in_log_alone else self.others:
            sink.write(record)
        if self.display:
            self.display.record(record, self.progress.num_steps)


def mean(values: list[float]) -> float | None:
    """Return the mean of the values, or None if there are none."""
    return sum(values) / len(values) if values else None


class ClockReading(NamedTuple):
    """The clock of a session after a step: seconds in steps, seconds in pauses, number of pauses."""

    num_taken: int
    stepping: float
    pausing: float
    num_pauses: int

    def per_step(self, since: ClockReading) -> float:
        """Return the mean seconds of a step since an earlier reading."""
        return (self.stepping - since.stepping) / (self.num_taken - since.num_taken)

    def per_pause(self, since: ClockReading) -> float:
        """Return the mean seconds of a pause since an earlier reading, with at least one pause in between."""
        return (self.pausing - since.pausing) / (self.num_pauses - since.num_pauses)


class StepPlanner:
    """Measures one session of a run and plans how many steps follow.

    A pause is the work between two steps: evaluating, saving, sampling, recording norms.
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
        self._first: ClockReading | None = None
        self._last = ClockReading(0, 0.0, 0.0, 0)
        self._recent_step, self._per_pause = math.inf, 0.0
        self._check_step, self._check_second = WARMING_STEPS, math.inf

    def check(self, num_taken: int) -> None:
        """Plan the length of the run or correct it, if that is due after `num_taken` steps of the session."""
        if num_taken < self._check_step and self._recorder.seconds() < self._check_second:
            return  # a check waits for the device, which slows steps down
        self._recorder.process_results()
        if self._first is None:
            self._measure_evaluation()
            self._first = self._last = self._read_clock(num_taken)
            self._check_step = num_taken + 1
            return
        progress, before = self._recorder.progress, self._recorder.progress.num_steps
        left = self._limit - self._recorder.seconds()
        if left <= 0 or progress.step == before:
            return
        num_steps = self._num_steps(self._read_clock(num_taken), self._first, left)
        if num_steps is not None:
            progress.set_length(num_steps)
            self._recorder.event("planned_steps", num_steps=num_steps, before=before)

    def _num_steps(self, now: ClockReading, first: ClockReading, left: float) -> int | None:
        """Return the length of the run by a new plan, or None if the plan stays, or is not due yet."""
        step, last, before = self._recorder.progress.step, self._last, self._recorder.progress.num_steps
        span = min(CHECK_SHARE * self._limit, CHECK_SHARE_LEFT * left)
        self._check_second = self._limit - left + 2 * span
        if last is first and now.stepping - first.stepping <= span:
            self._check_step = now.num_taken + (now.num_taken - first.num_taken)
            return None
        recent = now.per_step(last)
        # A single slow interval can be a pause of the machine; two in a row are a new speed.
        per_step = max(now.per_step(first), min(recent, self._recent_step))
        if now.num_pauses > last.num_pauses:
            self._per_pause = max(now.per_pause(first), now.per_pause(last))
        self._last, self._recent_step = now, recent
        self._check_step = now.num_taken + max(1, int(span / per_step))
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

    def _read_clock(self, num_taken: int) -> ClockReading:
        pausing, step = self._recorder.untimed_seconds, self._recorder.progress.step
        stepping = self._recorder.seconds() - pausing
        # The pause after the current step is still to come.
        return ClockReading(num_taken, stepping, pausing, (step - 1) // self._steps_per_pause)

    def _measure_evaluation(self) -> None:
        if self._validation is None:
            return
        with self._recorder.untimed():
            self._validation.measure_batch(self._measure)  # compiles
            start = self._recorder.seconds()
            self._validation.measure_batch(self._measure)
            self._per_pause = (self._recorder.seconds() - start) * self._validation.num_batches
