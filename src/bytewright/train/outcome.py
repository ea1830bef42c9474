"""Why a run ended: every reason, how it is decided, and the status that the files of a run imply.

The trainer records the end of a session as the event `ended` in the metrics log. Its value is an `Ending`:
`find_budget_ending` and `ending_of_error` return it, and `Trainer` records a signal. `find_status` derives
the `RunStatus` of a run from its log; `Run.status`, `bytewright runs` and reports show that value. A session
that was killed records nothing: a run without a recorded ending that no process writes counts as killed.
Runs of earlier versions recorded no endings; their status follows from their metrics and from the
outcome.json of their sweep.
"""

from __future__ import annotations

import errno
import math
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType
from typing import Any, Literal, NamedTuple

from bytewright.errors import DivergenceError, is_out_of_memory
from bytewright.train.config import TrainConfig
from bytewright.train.metrics import is_finite

State = Literal["complete", "running", "stopped", "diverged", "failed", "imported"]
Record = Mapping[str, Any]

DIVERGED_RISE = 1.0
"""A run has diverged when its loss is this many nats above its own minimum, or above uniform guessing."""
UNPLANNED_SHARE = 0.9
"""A run of minutes whose planned length is not on record is over after this share of its minutes."""


class Ending(StrEnum):
    """Why the last session of a run ended."""

    STEPS = "steps"
    TOKENS = "tokens"
    MINUTES = "minutes"
    SIGNAL = "signal"
    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    FAILED = "failed"
    KILLED = "killed"
    """Never recorded: the log has no ending, and no process holds the lock of the run."""

    @property
    def label(self) -> str:
        """The reason in words.

        >>> Ending.OUT_OF_MEMORY.label
        'out of memory'
        """
        return self.value.replace("_", " ")


BUDGET_ENDINGS = (Ending.STEPS, Ending.TOKENS, Ending.MINUTES)
ERROR_ENDINGS = (Ending.OUT_OF_MEMORY, Ending.DISK_FULL, Ending.FAILED)


@dataclass(frozen=True)
class RunStatus:
    """The state of a run. `detail` explains in a few words why it is not complete.

    `ending` is None while the run is active, and if an earlier version did not record it. A run whose loss
    diverged has the state "diverged" with any ending: it may have reached the end of its budget.
    """

    state: State
    ending: Ending | None
    step: int
    detail: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the run spent its budget or stopped after non-finite steps."""
        return self.state in ("complete", "diverged") and self.ending in (*BUDGET_ENDINGS, Ending.DIVERGED)


# Decide why a session ends.


def find_budget_ending(
    config: TrainConfig, *, step: int, num_steps: int | None, seconds: float
) -> Ending | None:
    """Return the limit of the budget that a run has reached, or None.

    `num_steps` is the length of the run. With a budget of minutes alone it is planned to fit the minutes.
    """
    budget = config.budget
    if num_steps is not None and step >= num_steps:
        if config.num_steps is None:
            return Ending.MINUTES
        return Ending.STEPS if budget.steps is not None and step >= budget.steps else Ending.TOKENS
    if budget.minutes is not None and seconds >= 60 * budget.minutes:
        return Ending.MINUTES
    return None


def ending_of_error(error: BaseException) -> Ending:
    """Return the ending of a session that an exception terminates."""
    if isinstance(error, DivergenceError):
        return Ending.DIVERGED
    # A signal raises KeyboardInterrupt, or the command line's own exception. A part that exits has failed.
    if not isinstance(error, Exception | SystemExit):
        return Ending.SIGNAL
    if is_out_of_memory(error):
        return Ending.OUT_OF_MEMORY
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Ending.DISK_FULL
    return Ending.FAILED


class StopSignals:
    """Record the first SIGINT or SIGTERM while active, so that the trainer can save before it stops.

    A second signal of the same kind has its usual effect, so a hanging run can still be stopped. Outside the
    main thread nothing is recorded.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        signal.signal(number, self._previous.pop(self.received))


def exit_code_of(received: signal.Signals | None) -> int:
    """Return the exit code after a signal, 128 + its number as in a shell, or 0 without one."""
    return 128 + received if received else 0


# Derive the status of a run from its files.


def find_status(
    settings: Mapping[str, Any],
    records: Sequence[Record],
    *,
    outcome: Mapping[str, Any] | None = None,
    num_steps: int | None = None,
    has_checkpoints: bool = True,
    is_locked: bool = False,
) -> RunStatus:
    """Return the status of a run.

    `settings` is its config with dotted keys, `records` its metrics log, `outcome` its outcome.json.
    `num_steps` is the length that its last checkpoint planned. `is_locked` means that a process writes it.
    """
    outcome, log = outcome or {}, _Log.of(records)
    lines = log.lines
    status = _status_from_log(settings, log, num_steps or _recorded_end(outcome, lines))
    if log.ending is None and status.state == "stopped":
        status = status_from_outcome(outcome, settings, lines) or status
        if status.state == "stopped" and not has_checkpoints and lines and lines[-1].get("is_last") is True:
            status = RunStatus("complete", _first_limit(settings), log.step)
    if is_locked and status.state != "complete":  # an ending in the log is that of an earlier session
        return RunStatus("running", None, log.step)
    return status


class _Log(NamedTuple):
    """The metrics log of a run."""

    records: Sequence[Record]
    lines: Sequence[Record]
    """The records of metrics, without events."""
    ended: Record
    """The event `ended` of the last session; empty if it recorded none."""
    ending: Ending | None
    step: int

    @classmethod
    def of(cls, records: Sequence[Record]) -> _Log:
        lines = [record for record in records if "event" not in record]
        ended = records[-1] if records and records[-1].get("event") == "ended" else {}
        recorded = ended.get("ending")
        ending = Ending(recorded) if recorded in list(Ending) else None
        return cls(records, lines, ended, ending, max(_last_step(lines), ended.get("step", 0)))


def _last_step(lines: Sequence[Record]) -> int:
    step: int = lines[-1]["step"] if lines else 0
    return step


def _status_from_log(settings: Mapping[str, Any], log: _Log, num_steps: int | None) -> RunStatus:
    refused = refused_in_a_row(log.records)
    lines, ended, ending, step = log.lines, log.ended, log.ending, log.step
    # A run that ends with weights that are not finite records how many steps it had refused in a row by then.
    # There are none if the update of its last step made the weights infinite or NaN.
    limit = ended.get("limit") if ending is Ending.DIVERGED else None
    if limit == 0:
        return RunStatus("diverged", Ending.DIVERGED, step, f"the weights were not finite after step {step}")
    max_refused = limit if isinstance(limit, int) else settings.get("max_refused", 10)
    if refused and refused[-1] > _last_step(lines) and len(refused) >= max_refused:
        detail = f"the loss or gradient was not finite from step {refused[0]} on"
        return RunStatus("diverged", Ending.DIVERGED, step, detail)
    by_budget = _find_spent_limit(settings, log, num_steps)
    if divergence := find_divergence(settings, lines):
        return RunStatus("diverged", by_budget or ending or Ending.KILLED, step, divergence)
    if by_budget:
        return RunStatus("complete", by_budget, step)
    at_step = f"at step {step:,}" if lines or step else "before its first line"
    if ending in ERROR_ENDINGS:
        return RunStatus("failed", ending, step, f"{ending.label} {at_step}: {ended.get('detail', '')}")
    if ending is Ending.SIGNAL:
        return RunStatus("stopped", ending, step, f"{ended.get('detail') or 'signal'} {at_step}")
    if ending is not None:  # the budget or max_refused was raised after the run had ended
        return RunStatus("stopped", ending, step, f"{ending.label} {at_step}; its limit was raised since")
    return RunStatus("stopped", Ending.KILLED, step, f"killed {at_step}")


def _find_spent_limit(settings: Mapping[str, Any], log: _Log, num_steps: int | None) -> Ending | None:
    """Return the limit that the run has reached, by its recorded ending or by its last line."""
    if log.ending in BUDGET_ENDINGS:
        now, reached = settings.get(f"budget.{log.ending}"), log.ended.get("limit")
        if is_finite(now) and is_finite(reached) and now <= reached:
            return log.ending
    if not log.lines:
        return None
    last, minutes = log.lines[-1], settings.get("budget.minutes")
    seconds = last.get("seconds")
    limits = step_limits(settings)
    for limit, at_step in limits.items():
        if last["step"] >= at_step:
            return limit
    if num_steps is not None and last["step"] >= num_steps:
        return Ending.MINUTES
    # A run of minutes alone plans its steps to end within them: its last line is a little short of them.
    share = 1.0 if limits or num_steps is not None else UNPLANNED_SHARE
    if minutes is not None and is_finite(seconds) and seconds >= round(60 * minutes * share, 3):
        return Ending.MINUTES
    return None


def step_limits(settings: Mapping[str, Any]) -> dict[Ending, int]:
    """Return the step at which each limit of the budget is reached, for limits in steps and in tokens."""
    per_step = settings.get("batch_size", 1) * settings.get("model.context_length", 1)
    steps, tokens = settings.get("budget.steps"), settings.get("budget.tokens")
    limits = {Ending.STEPS: steps, Ending.TOKENS: None if tokens is None else -(-tokens // per_step)}
    return {ending: limit for ending, limit in limits.items() if limit is not None}


def _first_limit(settings: Mapping[str, Any]) -> Ending | None:
    return next((ending for ending in BUDGET_ENDINGS if settings.get(f"budget.{ending}") is not None), None)


def refused_in_a_row(records: Sequence[Record]) -> list[int]:
    """Return the last refused steps that directly follow each other."""
    row: list[int] = []
    for record in records:
        if record.get("event") == "refused_step":
            if row and record["step"] != row[-1] + 1:
                row = []
            row.append(record["step"])
    return row


# The outcome.json of a sweep, which records the end of runs of earlier versions.


def status_from_outcome(
    outcome: Mapping[str, Any], settings: Mapping[str, Any], lines: Sequence[Record]
) -> RunStatus | None:
    """Return the status that an outcome.json records, or None if it does not apply to these lines.

    A complete outcome names the last step. With fewer lines, the run has lost some of its record. With more,
    it was continued. Outcomes of earlier versions lack the step; then the budget in steps determines it.

    >>> status_from_outcome({"status": "complete", "step": 120}, {}, [{"step": 40}])
    RunStatus(state='failed', ending=None, step=40, detail='its record ends at step 40 of 120')
    """
    state: Any = outcome.get("status")
    if state not in ("complete", "stopped", "diverged", "failed"):
        return None
    last, end = _last_step(lines), outcome.get("step")
    if state != "complete":
        reason = str(outcome.get("reason", ""))
        return RunStatus(state, ending_on_record(outcome, state, reason), last, reason)
    has_last_line = settings.get("budget.minutes") is None and settings.get("log_every", 1)
    if end is None and has_last_line:
        end = min(step_limits(settings).values(), default=None)
    complete = RunStatus("complete", _first_limit(settings), last)
    if not isinstance(end, int):
        return complete if lines else None
    if last < end:
        return RunStatus("failed", None, last, f"its record ends at step {last:,} of {end:,}")
    return complete if last == end else None


def ending_on_record(fields: Mapping[str, Any], state: object, reason: str) -> Ending | None:
    """Return the ending in an outcome.json or results.json.

    Earlier versions recorded none. Their reason for a run that stopped after non-finite steps contains "was
    not finite".
    """
    if fields.get("ending") in list(Ending):
        return Ending(fields["ending"])
    return Ending.DIVERGED if state == "diverged" and "not finite" in reason else None


def _recorded_end(outcome: Mapping[str, Any], lines: Sequence[Record]) -> int | None:
    """Return the last step of a run that its outcome records as complete, unless it was continued."""
    end = outcome.get("step") if outcome.get("status") == "complete" else None
    return end if isinstance(end, int) and lines and lines[-1]["step"] <= end else None


# The rule of divergence.


def find_divergence(settings: Mapping[str, Any], lines: Sequence[Record]) -> str:
    """Return in a few words how the loss curve diverged, or an empty string.

    A run has diverged if it ends `DIVERGED_RISE` above its own lowest validation loss or above uniform
    guessing (the logarithm of the vocabulary), or if its last validation loss is not finite. So has a run
    whose loss rises that far above guessing and then falls. A validation loss that rises while the training
    loss falls is overfitting, not divergence.
    """
    evaluated = [line for line in lines if "validation_loss" in line]
    name = "validation_loss" if evaluated else "loss"
    if evaluated and not is_finite(evaluated[-1]["validation_loss"]):
        return f"the validation loss was not finite at step {evaluated[-1]['step']}"
    values = [(line["step"], line[name]) for line in lines if is_finite(line.get(name))]
    is_cross_entropy = settings.get("loss.name", "cross_entropy") == "cross_entropy"
    if not values or (name == "loss" and not is_cross_entropy):  # other losses have another scale
        return ""
    (end, last), (lowest_step, lowest) = values[-1], min(values, key=lambda pair: pair[1])
    guessing = math.log(settings.get("model.vocab_size", math.inf))
    overfits = _training_loss_fell(lines, lowest_step, end)
    if last > guessing + DIVERGED_RISE and not overfits:
        return f"it ends at {_format_loss(last)}, worse than guessing ({guessing:.3g})"
    since, step, highest = _highest_rise(values)
    if highest > guessing + DIVERGED_RISE and not _training_loss_fell(lines, since, step):
        return f"it rose to {_format_loss(highest)} by step {step}, worse than guessing ({guessing:.3g})"
    if name == "validation_loss" and last > lowest + DIVERGED_RISE and not overfits:
        return f"it ends at {last:.3g}, after {lowest:.3g} at step {lowest_step}"
    return ""


def _training_loss_fell(lines: Sequence[Record], since: int, until: int) -> bool:
    losses = {line["step"]: line["loss"] for line in lines if is_finite(line.get("loss"))}
    return since in losses and until in losses and losses[until] < losses[since]


def _highest_rise(values: Sequence[tuple[int, float]]) -> tuple[int, int, float]:
    """Return the highest loss `DIVERGED_RISE` above an earlier one, after the steps of both."""
    rises, lowest_step, lowest = [(0, 0, -math.inf)], 0, math.inf
    for step, value in values:
        if value < lowest:
            lowest_step, lowest = step, value
        if value > lowest + DIVERGED_RISE:
            rises.append((lowest_step, step, value))
    return max(rises, key=lambda rise: rise[2])


def _format_loss(loss: float) -> str:
    return f"{loss:.3g}" if loss < 1000 else f"{loss:,.0f}"
