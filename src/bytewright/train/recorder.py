"""What is known of a run while it goes: results fetched from the device, lines of metrics, and the clock.

Steps hand over their results as tensors on the device; `fetch` brings them to the host all at once, when a
line or a checkpoint is due. Refused steps are recorded with the windows of their batch. `Progress` is the
part that a checkpoint keeps, the steps since the last line included: so the means of a line do not depend on
whether a checkpoint, or a kill, came between.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from bytewright.errors import DivergenceError, UsageError
from bytewright.train.config import check_not_negative
from bytewright.train.console import Display
from bytewright.train.evaluate import Evaluation
from bytewright.train.metrics import MetricsLog, Sink
from bytewright.train.step import StepResult


@dataclass(kw_only=True)
class Progress:
    """How far a run is: what a checkpoint keeps beside the weights and the optimizer."""

    step: int = 0
    seconds: float = 0.0
    """Wall-clock time over all sessions."""
    num_steps: int | None = None
    """Length of the run, once it is known."""
    plan: list[list[int]] = field(default_factory=list)
    """The lengths that the run has had: pairs of a completed step and the length planned after it."""
    num_refused: int = 0
    refused_in_a_row: int = 0
    best_step: int | None = None
    best_loss: float | None = None
    metrics_position: int = 0
    since_line: list[list[float]] = field(default_factory=list)
    """Loss and gradient norm of each accepted step since the last line."""

    def __post_init__(self) -> None:
        if self.num_steps is not None and not self.plan:  # a checkpoint of a version that kept no plan
            self.plan = [[0, self.num_steps]]
        check_plan(self.plan, step=self.step, num_steps=self.num_steps)
        counts = ("step", "seconds", "num_refused", "refused_in_a_row", "metrics_position")
        check_not_negative({name: getattr(self, name) for name in counts})
        if any(len(pair) != 2 for pair in self.since_line):
            raise UsageError(f"since_line must be pairs of numbers, but is {str(self.since_line)[:60]}")

    def set_length(self, num_steps: int) -> None:
        """Plan `num_steps` for the run from this step on."""
        self.num_steps = num_steps
        self.plan.append([self.step, num_steps])


def check_plan(plan: list[list[int]], *, step: int, num_steps: int | None) -> None:
    """Raise `UsageError` unless `plan` can be that of a run of `num_steps` after `step` steps."""
    if any(len(pair) != 2 or not 0 <= pair[0] < pair[1] for pair in plan):
        raise UsageError(f"plan must be pairs of a step and a later end, but is {str(plan)[:60]}")
    starts, ends = [start for start, _ in plan], [end for _, end in plan]
    if any(not before < start < end for before, start, end in zip(starts, starts[1:], ends, strict=False)):
        raise UsageError(f"the steps of plan must increase and precede each end, but are {str(plan)[:60]}")
    if plan and (starts[-1] > step or ends[-1] != num_steps):
        raise UsageError(f"plan must end with {num_steps} steps, made at most at step {step}")


class Recorder:
    """Keeps the metrics of one session.

    `windows_of` names the windows of a step's batch; `utilisation` turns tokens per second into the MFU;
    `peak_memory` gives the bytes taken so far at the most, or None. `clock` returns seconds.
    """

    def __init__(
        self,
        progress: Progress,
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
        self.others: list[Sink] = []
        self.display: Display | None = None
        self._windows_of, self._tokens_per_step = windows_of, tokens_per_step
        self._max_refused, self._utilisation, self._peak_memory = max_refused, utilisation, peak_memory
        self._on_device: list[tuple[int, StepResult]] = []
        self._clock, self._started = clock, clock() - progress.seconds
        self.untimed_seconds = 0.0
        """Time of this session in `untimed` blocks."""
        self._line_started, self._line_step = self._stepping_seconds(), progress.step

    def add(self, step: int, result: StepResult) -> None:
        """Take the result of a step, still on the device."""
        self._on_device.append((step, result))

    def seconds(self) -> float:
        """Wall-clock time of the run, over all sessions."""
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
                self._record_refusal(step, loss, norm)

    def _record_refusal(self, step: int, loss: float, norm: float) -> None:
        self.progress.num_refused += 1
        self.progress.refused_in_a_row += 1
        cause = "gradient" if math.isfinite(loss) else "loss"
        windows = self._windows_of(step)
        self._write({"step": step, "event": "refused_step", "cause": cause, "loss": loss, "windows": windows})
        if self.progress.refused_in_a_row >= self._max_refused:
            raise DivergenceError(
                f"{self.log.path.parent}: {self.progress.refused_in_a_row} steps in a row, up to step {step},"
                " had a loss or gradient that is not finite; the run stops, its checkpoints are sound"
            )

    def line(
        self,
        *,
        lr: float,
        evaluation: Evaluation | None,
        extra: Mapping[str, Any],
        in_log_alone: bool = False,
    ) -> None:
        """Write the line of this step: means since the last line, and what was measured now."""
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
    """Mean of the values, or None if there are none."""
    return sum(values) / len(values) if values else None
