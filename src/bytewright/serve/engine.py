"""The engine: one thread that continues many prompts at once, and lets jobs join and leave between steps.

A `Job` is one prompt to continue. It waits in a bounded queue until a slot of the batch is free. The engine
reads its prompt in chunks, and then steps it with the other jobs. Between two steps the engine reads at most
one chunk, or on a GPU makes one call with chunks of several prompts. A long prompt therefore delays running
jobs by one chunk per step. The ids of a job are those of `generate`, whatever else is served (see
`generate.slots`).

The engine handles ids only and reports `Update`s of jobs to one function, which it calls from its thread.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bytewright.errors import UsageError, first_line, wrong_value
from bytewright.generate.decoder import Decoder
from bytewright.generate.model_check import list_users_classes, reason_against_cache
from bytewright.generate.prompt_chunks import PromptChunk
from bytewright.generate.reference import check_ids, check_prompts
from bytewright.generate.row_sampling import kind_of
from bytewright.generate.slots import ReadChunks, Round, SlotBatch
from bytewright.model import TransformerLM
from bytewright.serve.job_queue import JobQueue
from bytewright.serve.jobs import (
    NOT_FINITE,
    EngineClosedError,
    Job,
    RunningJob,
    TokenScore,
    Update,
    score_ids,
)

logger = logging.getLogger(__name__)

STEPS_PER_ROUND = 8
"""On a GPU, the number of steps between two copies of their tokens to the host."""


@dataclass(frozen=True)
class _LaunchedRound:
    """A round that was launched, and the job of each row whose tokens are used."""

    round: Round
    owners: Mapping[int, RunningJob]


@dataclass
class EngineStats:
    """Counters of the engine since its start, and what it does now."""

    num_slots: int
    num_slots_in_use: int = 0
    num_running: int = 0
    """The number of jobs in slots, and of those whose last tokens are being computed: these have no slot."""
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    num_steps: int = 0
    num_chunks: int = 0
    num_prompt_tokens: int = 0
    num_new_tokens: int = 0
    busy_seconds: float = 0.0
    longest_turn_seconds: float = 0.0


class Engine:
    """Runs jobs on a thread of its own, in `num_slots` slots.

    `report` is called on that thread with the updates of a round. `max_waiting` and `max_waiting_tokens`
    bound the queue. A model that the decoder cannot run is rejected.
    """

    def __init__(
        self,
        model: TransformerLM,
        report: Callable[[list[tuple[Job, Update]]], object],
        *,
        num_slots: int,
        num_ids: int | None = None,
        max_waiting: int = 256,
        max_waiting_tokens: int = 2**18,
    ) -> None:
        if reason := reason_against_cache(model):
            message = f"this model cannot be served, because it cannot use a key/value cache: {reason}"
            raise UsageError(message, key="model")
        if num_slots < 1:
            raise wrong_value("num_slots", "at least 1", num_slots)
        self.config, self.report = model.config, report
        # A product with one row uses another algorithm and other bits; two rows are the smallest batch.
        decoder = Decoder(model, max(2, num_slots))
        self.batch = SlotBatch(
            decoder,
            num_slots,
            num_ids=model.config.vocab_size if num_ids is None else num_ids,
            can_capture=not list_users_classes(model),
        )
        self._changed = threading.Condition()
        self._waiting = JobQueue(
            max_jobs=max_waiting, max_tokens=max_waiting_tokens, context_length=self.config.context_length
        )
        self._has_cancelled = False
        """Whether jobs were cancelled since the last turn."""
        self._in_slots: dict[int, RunningJob] = {}
        self._reading: dict[int, RunningJob] = {}
        """Those jobs in slots whose prompts were not read completely."""
        self._leaving: set[RunningJob] = set()
        """Jobs whose last tokens are being computed, and whose slots are free for other jobs."""
        self._num_scored = 0
        """The number of running jobs that request scores."""
        self._launched: deque[_LaunchedRound] = deque()
        self._updates: list[tuple[Job, Update]] = []
        self._is_closed = self._must_stop = False
        self.is_device_lost = False
        """Whether slots could not be released after an error; the engine then ends."""
        self._stats = EngineStats(num_slots=num_slots)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def check(self, job: Job) -> None:
        """Raise `UsageError` if the model cannot continue the prompt, or cannot score it."""
        kind_of(job.sampling)
        if job.sampling.max_new_tokens or len(job.prompt) != self.config.context_length:
            check_prompts(self.config, [job.prompt])
        else:
            check_ids(self.config, job.prompt, "the prompt")

    def submit(self, jobs: Sequence[Job]) -> None:
        """Add jobs to the queue, all or none; they were checked by `check`."""
        with self._changed:
            if self.is_device_lost:
                raise EngineClosedError("the engine has failed; restart the server")
            if self._is_closed:
                raise EngineClosedError("the server is shutting down")
            num_free = len(self._free_slots())
            if not self._waiting.has_room(jobs, num_free):
                # Jobs that would fit into an idle engine may be sent again; others are rejected for good.
                self._waiting.check_can_wait(jobs, self.batch.num_slots)
                num_done = self._stats.num_prompt_tokens + self._stats.num_new_tokens
                rate = num_done / max(self._stats.busy_seconds, 1e-3)
                raise self._waiting.full_error(jobs, num_free, rate)
            self._waiting.add(jobs)
            self._changed.notify_all()

    def cancel(self, jobs: Iterable[Job]) -> None:
        """End submitted jobs before the next step, without an update."""
        with self._changed:
            for job in jobs:
                job.is_cancelled = True
            self._has_cancelled = True
            self._changed.notify_all()

    def close(self) -> None:
        """Reject jobs from now on; those that were accepted continue."""
        with self._changed:
            self._is_closed = True

    def stop(self) -> None:
        """End all jobs with an error, and the thread."""
        with self._changed:
            self._is_closed = self._must_stop = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def stats(self) -> EngineStats:
        """Return the current counters."""
        with self._changed:
            return dataclasses.replace(
                self._stats,
                num_slots_in_use=len(self._in_slots),
                num_running=len(self._in_slots) + len(self._leaving),
                num_waiting=len(self._waiting),
                num_waiting_tokens=self._waiting.num_tokens,
            )

    @property
    def has_equal_slots(self) -> bool:
        """Whether ids do not depend on the slot of a job, down to the last bit of the logits."""
        return self.batch.has_equal_slots

    def _free_slots(self) -> list[int]:
        return [slot for slot in range(self.batch.num_slots) if slot not in self._in_slots]

    def _run(self) -> None:
        with torch.inference_mode():
            while self._wait_for_work():
                try:
                    self._take_turn()
                except Exception as error:  # such as too little memory: these jobs fail, the next may not
                    logger.exception("the running jobs failed")
                    self._fail_all(f"the engine failed: {first_line(error)}")
                self._publish()
        self._fail_all("the server was stopped before the text was complete")
        self._publish()

    def _wait_for_work(self) -> bool:
        """Wait until there is a job; return False if the thread must end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._must_stop or self._in_slots or self._leaving or self._waiting
            )
            return not self._must_stop

    def _take_turn(self) -> None:
        """Admit jobs, read chunks once, launch one round, and process the tokens that have arrived."""
        started = time.perf_counter()
        self._admit()
        self._read_chunks()
        has_launched = self._launch()
        # On a GPU one round stays in flight: the device works on it while the host processes the one before.
        keep = int(self.batch.is_on_gpu and has_launched and not self._needs_scores())
        while len(self._launched) > keep:
            self._process(self._launched.popleft())
        seconds = time.perf_counter() - started
        self._stats.busy_seconds += seconds
        self._stats.longest_turn_seconds = max(self._stats.longest_turn_seconds, seconds)

    def _admit(self) -> None:
        """Remove cancelled jobs, and give free slots to waiting ones, the lowest slot first."""
        with self._changed:
            if self._has_cancelled:
                self._remove_cancelled()
            for slot in self._free_slots()[: len(self._waiting)]:
                job = self._waiting.take()
                self._in_slots[slot] = self._reading[slot] = RunningJob(job, slot, self.config)
                self._num_scored += job.num_top is not None

    def _remove_cancelled(self) -> None:
        """Remove cancelled jobs; the caller holds the lock."""
        for running in [running for running in self._all_running() if running.job.is_cancelled]:
            self._release(running)
        self._waiting.remove_cancelled()
        self._has_cancelled = False

    def _read_chunks(self) -> None:
        """Read the next chunks of prompts in one call, first of those that have waited longest."""
        if not self._reading:
            return
        waiting = list(self._reading.values())
        chunks = [running.next_chunk() for running in waiting]
        chosen = self.batch.select(chunks)
        read = self.batch.read([chunks[number] for number in chosen])
        self._stats.num_chunks += len(chosen)
        started: dict[int, RunningJob] = {}
        for row, number in enumerate(chosen):
            running, chunk = waiting[number], chunks[number]
            if running.job.scores_prompt:
                self._score_prompt(running, chunk, read.hidden_of(row))
            running.length += len(chunk.ids)
            self._stats.num_prompt_tokens += len(chunk.ids)
            if not running.is_reading and self._end_prompt(running, read, row):
                started[row] = running
        if started:
            assert read.first is not None
            self._add_launched(read.first, started, num_steps=1)

    def _end_prompt(self, running: RunningJob, read: ReadChunks, row: int) -> bool:
        """Report the scores of a prompt that was read; return whether tokens follow it.

        `row` is the number of its last chunk in the call.
        """
        del self._reading[running.slot]
        # If a token follows, its choice checks the state.
        has_finite_state = running.room > 0 or bool(read.last[row].isfinite().all())
        if not (has_finite_state and running.has_finite_scores()):
            self._end(running, Update(error=NOT_FINITE))
            return False
        if running.prompt_scores:
            self._updates.append((running.job, Update(prompt_scores=running.prompt_scores)))
        if not running.room:
            self._end(running, Update(reason="length"))
        return running.room > 0

    def _launch(self) -> bool:
        """Launch steps for all jobs whose prompts were read; return whether there are any."""
        active = dict(self._in_slots)
        for slot in self._reading:
            del active[slot]
        if not active:
            return False
        # One step if other prompts are waiting to be read, or if every step is scored.
        has_many_steps = self.batch.is_on_gpu and not self._reading and not self._needs_scores()
        num_steps = STEPS_PER_ROUND if has_many_steps else 1
        num_tokens = max(running.length for running in active.values())
        round = self.batch.launch(list(active), num_tokens, num_steps)
        self._stats.num_steps += num_steps
        self._add_launched(round, active, num_steps)
        return True

    def _add_launched(self, round: Round, owners: Mapping[int, RunningJob], num_steps: int) -> None:
        """Add a round, and free the slots of jobs whose last tokens it computes.

        The device computes in the order of the calls, so the next jobs change the slots only after that.
        """
        self._launched.append(_LaunchedRound(round, owners))
        for running in owners.values():
            running.length += num_steps
        complete = [running for running in owners.values() if running.length >= running.full_length]
        with self._changed:
            for running in complete:
                del self._in_slots[running.slot]
                self.batch.release(running.slot)
                self._leaving.add(running)

    def _needs_scores(self) -> bool:
        """Whether logits must be read after every step."""
        return self._num_scored > 0

    def _process(self, launched: _LaunchedRound) -> None:
        """Report the tokens of a round, and end jobs that are complete."""
        chosen = launched.round.ids()
        for row, running in launched.owners.items():
            if running.has_ended:
                continue
            update = running.accept(chosen[row])
            self._stats.num_new_tokens += len(update.ids)
            if running.job.num_top is not None and update.ids:
                # A scored job takes one step per round, so these logits are those of the only id.
                logits = launched.round.logits[row : row + 1]
                scores = self._score(logits, update.ids, running.job.num_top)
                # The token can be valid nevertheless: a model may have more ids than its tokenizer, and their
                # logits count only for scores.
                is_finite = all(score.is_finite for score in scores)
                update = update._replace(scores=scores) if is_finite else Update(error=NOT_FINITE)
            if update.is_last:
                self._end(running, update)
            else:
                self._updates.append((running.job, update))

    def _score_prompt(self, running: RunningJob, chunk: PromptChunk, states: Tensor) -> None:
        """Score the tokens that follow those of a chunk in its prompt."""
        following = running.job.prompt[chunk.start + 1 : chunk.start + len(chunk.ids) + 1]
        if len(following):
            logits = self.batch.decoder.score(states[: len(following)])
            running.prompt_scores += self._score(logits, following, running.job.num_top or 0)

    def _score(self, logits: Tensor, ids: Sequence[int], num_top: int) -> list[TokenScore]:
        return score_ids(logits, ids, num_top, self.batch.num_ids)

    def _end(self, running: RunningJob, update: Update) -> None:
        self._updates.append((running.job, update))
        with self._changed:
            self._release(running)

    def _release(self, running: RunningJob) -> None:
        """Free the slot of a job, if it still has one; the caller holds the lock."""
        running.has_ended = True
        self._num_scored -= running.job.num_top is not None
        if running in self._leaving:
            self._leaving.remove(running)
            return
        del self._in_slots[running.slot]
        self._reading.pop(running.slot, None)
        self.batch.release(running.slot)

    def _all_running(self) -> list[RunningJob]:
        return [*self._in_slots.values(), *self._leaving]

    def _fail_all(self, error: str) -> None:
        """End all jobs, running and waiting, with an error."""
        with self._changed:
            self._launched.clear()
            for running in self._all_running():
                if not running.job.is_cancelled:
                    self._updates.append((running.job, Update(error=error)))
                self._release(running)
            try:
                self.batch.reset_released()
            except Exception:  # some errors of CUDA persist until the process ends
                logger.exception("the slots could not be released")
                self.is_device_lost = self._is_closed = self._must_stop = True
            if self._must_stop:
                waiting = self._waiting.take_all()
                self._updates += [(job, Update(error=error)) for job in waiting if not job.is_cancelled]

    def _publish(self) -> None:
        """Report the updates of this turn."""
        updates, self._updates = self._updates, []
        if updates:
            self.report(updates)
