"""The engine: one thread that continues many prompts at once, and lets jobs join and leave between steps.

A `Job` is one prompt to continue. It waits in a bounded queue until a slot of the batch is free. The engine
reads its prompt in chunks, and then steps it with the other jobs. Between two steps at most one chunk is
read, so running jobs never wait longer. The ids of a job are those of `generate`, whatever else is served
(see `generate.slots`).

The engine handles ids only and reports `Update`s of jobs to one function, which it calls from its thread.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from bytewright.errors import BytewrightError, UsageError, first_line
from bytewright.generate.decoder import Decoder
from bytewright.generate.model_check import list_users_classes, reason_against_cache
from bytewright.generate.reference import Reason, check_ids, check_prompts, find_reason
from bytewright.generate.row_sampling import kind_of
from bytewright.generate.sampling import NO_TOKEN, SamplingConfig
from bytewright.generate.slots import CHUNK_TOKENS, PromptChunk, Round, RowDraws, SlotBatch
from bytewright.model import TransformerLM

logger = logging.getLogger(__name__)

STEPS_PER_ROUND = 8
"""On a GPU, the number of steps between two copies of their tokens to the host."""
LONGEST_RETRY = 60
"""The largest value of `Retry-After` for a rejected client, in seconds."""
NOT_FINITE = "the outputs of the model are not finite, so they cannot be used"


class EngineError(BytewrightError):
    """A job failed, or was ended before its time."""


class QueueFullError(BytewrightError):
    """Too many jobs or tokens are waiting; `found` is the number of seconds after which to try again."""


class EngineClosedError(BytewrightError):
    """The engine accepts no more jobs, because the server is being stopped or the device is lost."""


@dataclass(frozen=True)
class TokenScore:
    """The log-probability of a token, and the likeliest tokens at its place with theirs."""

    logprob: float
    top: tuple[tuple[int, float], ...]


class Update(NamedTuple):
    """What happened to a job in one round: new ids, the scores of its prompt, or its end."""

    ids: Sequence[int] = ()
    scores: Sequence[TokenScore] = ()
    """One for each of `ids`, if the job requests scores."""
    prompt_scores: Sequence[TokenScore] = ()
    """One for each token of the prompt but the first, if the job requests them."""
    reason: Reason | None = None
    """Why the job ended; None while it continues."""
    error: str | None = None
    """Why the job failed."""

    @property
    def is_last(self) -> bool:
        """Whether the job has ended."""
        return self.reason is not None or self.error is not None


@dataclass(eq=False)
class Job:
    """One prompt to continue once; the tokens are those of `generate` for row `row` of a batch."""

    prompt: Sequence[int]
    sampling: SamplingConfig
    row: int = 0
    num_top: int | None = None
    """How many likeliest tokens to report with each token; None for no scores at all."""
    scores_prompt: bool = False
    """Whether to report scores of the prompt, too."""
    is_cancelled: bool = field(default=False, init=False)


@dataclass(eq=False)
class _Running:
    """A job in a slot."""

    job: Job
    slot: int
    room: int
    num_read: int = 0
    num_launched: int = 0
    """The number of tokens that launched steps choose."""
    num_written: int = 0
    has_ended: bool = False
    end_ids: frozenset[int] = field(init=False)
    """Ids that end the text: its stop tokens, and `NO_TOKEN`."""
    prompt_scores: list[TokenScore] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end_ids = frozenset((*self.job.sampling.stop_tokens, NO_TOKEN))

    @property
    def is_reading(self) -> bool:
        return self.num_read < len(self.job.prompt)

    @property
    def length(self) -> int:
        """The number of tokens after the next step."""
        return len(self.job.prompt) + self.num_launched


@dataclass(frozen=True)
class _LaunchedRound:
    """A round that was launched, and the job of each row whose tokens are used."""

    round: Round
    owners: Sequence[tuple[int, _Running]]


@dataclass
class EngineStats:
    """Counters of the engine since its start, and what it does now."""

    num_slots: int
    num_running: int = 0
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
            raise UsageError("num_slots must be at least 1", key="num_slots", expected=1, found=num_slots)
        self.config, self.report = model.config, report
        self.max_waiting, self.max_waiting_tokens = max_waiting, max_waiting_tokens
        # A product with one row uses another algorithm and other bits; two rows are the smallest batch.
        decoder = Decoder(model, max(2, num_slots))
        self.batch = SlotBatch(
            decoder,
            num_slots,
            num_ids=model.config.vocab_size if num_ids is None else num_ids,
            can_capture=not list_users_classes(model),
        )
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: dict[int, _Running] = {}
        self._leaving: set[_Running] = set()
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
            num_tokens = sum(map(self._max_tokens, jobs))
            num_free = len(self._free_slots()) - len(self._waiting)
            is_full = (
                len(self._waiting) + len(jobs) > self.max_waiting
                or self._stats.num_waiting_tokens + num_tokens > self.max_waiting_tokens
            )
            if is_full and len(jobs) > num_free:
                self._check_can_wait(jobs, num_tokens)
                seconds = self._seconds_of_queue()
                message = f"the queue is full: {len(self._waiting)} texts are waiting; try again later"
                raise QueueFullError(message, key="queue", expected=self.max_waiting, found=seconds)
            self._waiting.extend(jobs)
            self._stats.num_waiting_tokens += num_tokens
            self._changed.notify_all()

    def _check_can_wait(self, jobs: Sequence[Job], num_tokens: int) -> None:
        """Raise `UsageError` if even an idle engine rejects the jobs, so that a retry is useless."""
        is_too_large = len(jobs) > self.max_waiting or num_tokens > self.max_waiting_tokens
        if is_too_large and len(jobs) > self.batch.num_slots:
            message = (
                f"{len(jobs)} texts of {num_tokens} tokens in all are requested, but at most"
                f" {self.max_waiting} texts and {self.max_waiting_tokens} tokens can wait;"
                " reduce n, max_tokens or the number of prompts"
            )
            raise UsageError(message, key="n", expected=self.max_waiting, found=len(jobs))

    def cancel(self, jobs: Iterable[Job]) -> None:
        """End jobs without an update, before the next step."""
        with self._changed:
            for job in jobs:
                job.is_cancelled = True
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
                num_running=len(self._running) + len(self._leaving),
                num_waiting=len(self._waiting),
            )

    @property
    def has_equal_rows(self) -> bool:
        """Whether ids do not depend on the slot of a job, down to the last bit of the logits."""
        return self.batch.has_equal_rows

    def _max_tokens(self, job: Job) -> int:
        """Return the largest number of tokens that a job can have."""
        return min(len(job.prompt) + job.sampling.max_new_tokens, self.config.context_length)

    def _seconds_of_queue(self) -> int:
        """Return an estimate of when the queue is shorter."""
        rate = self._stats.num_new_tokens / max(self._stats.busy_seconds, 1e-3)
        seconds = self._stats.num_waiting_tokens / max(rate, 1.0) / 4
        return max(1, min(LONGEST_RETRY, round(seconds)))

    def _free_slots(self) -> list[int]:
        return [slot for slot in range(self.batch.num_slots) if slot not in self._running]

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
            self._changed.wait_for(lambda: self._must_stop or self._running or self._leaving or self._waiting)
            return not self._must_stop

    def _take_turn(self) -> None:
        """Admit jobs, read one chunk, launch one round, and process the tokens that have arrived."""
        started = time.perf_counter()
        self._admit()
        self._read_chunk()
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
            for it in [it for it in self._all_running() if it.job.is_cancelled]:
                self._release(it)
            for job in [job for job in self._waiting if job.is_cancelled]:
                self._waiting.remove(job)
                self._stats.num_waiting_tokens -= self._max_tokens(job)
            for slot in self._free_slots()[: len(self._waiting)]:
                job = self._waiting.popleft()
                self._stats.num_waiting_tokens -= self._max_tokens(job)
                room = min(self.config.context_length - len(job.prompt), job.sampling.max_new_tokens)
                self._running[slot] = _Running(job, slot, room)
                self._num_scored += job.num_top is not None

    def _read_chunk(self) -> None:
        """Read the next chunk of the prompts that have waited longest."""
        reading = [it for it in self._running.values() if it.is_reading]
        if not reading:
            return
        is_first = reading[0].num_read == 0
        reading = [it for it in reading if (it.num_read == 0) == is_first]
        reading = reading[: self.batch.chunk_rows(is_first=is_first)]
        chunks = [
            PromptChunk(it.slot, it.num_read, it.job.prompt[it.num_read : it.num_read + CHUNK_TOKENS])
            for it in reading
        ]
        states = self.batch.read(chunks)
        self._stats.num_chunks += 1
        ready: list[tuple[_Running, Tensor]] = []
        for it, chunk, hidden, last in zip(reading, chunks, states.hidden, states.last, strict=True):
            if it.job.scores_prompt:
                self._score_prompt(it, chunk, hidden[: len(chunk.ids)])
            it.num_read += len(chunk.ids)
            self._stats.num_prompt_tokens += len(chunk.ids)
            if it.is_reading:
                continue
            if not _is_finite(it, last):
                self._end(it, Update(error=NOT_FINITE))
                continue
            if it.prompt_scores:
                self._updates.append((it.job, Update(prompt_scores=it.prompt_scores)))
            if it.room:
                ready.append((it, last))
            else:
                self._end(it, Update(reason="length"))
        if ready:
            started = [it for it, _ in ready]
            draws = [RowDraws(it.job.sampling, it.job.row, it.room) for it in started]
            last_states = torch.stack([state for _, state in ready])
            first = self.batch.start([it.slot for it in started], draws, last_states)
            self._launched.append(_LaunchedRound(first, list(enumerate(started))))
            for it in started:
                it.num_launched = 1

    def _launch(self) -> bool:
        """Launch steps for all jobs that have room for more tokens; return whether there are any."""
        active = [it for it in self._running.values() if 0 < it.num_launched < it.room]
        if not active:
            return False
        # One step if other prompts are waiting to be read, or if every step is scored.
        takes_one_step = self._needs_scores() or any(it.is_reading for it in self._running.values())
        num_steps = STEPS_PER_ROUND if self.batch.is_on_gpu and not takes_one_step else 1
        num_tokens = max(it.length for it in active)
        round = self.batch.launch([it.slot for it in active], num_tokens, num_steps)
        self._launched.append(_LaunchedRound(round, [(it.slot, it) for it in active]))
        self._stats.num_steps += num_steps
        for it in active:
            it.num_launched = min(it.num_launched + num_steps, it.room)
        if self.batch.is_on_gpu and not self._needs_scores():
            self._release_early([it for it in active if it.num_launched == it.room])
        return True

    def _release_early(self, launched: Sequence[_Running]) -> None:
        """Free the slots of jobs before their last tokens arrive.

        The device computes in the order of the calls, so the next jobs change the slots only after that.
        """
        with self._changed:
            for it in launched:
                del self._running[it.slot]
                self.batch.release(it.slot)
                self._leaving.add(it)

    def _needs_scores(self) -> bool:
        """Whether logits must be read after every step."""
        return self._num_scored > 0

    def _process(self, launched: _LaunchedRound) -> None:
        """Report the tokens of a round, and end jobs that are complete."""
        chosen = launched.round.ids()
        for row, it in launched.owners:
            if it.has_ended:
                continue
            update = self._describe(it, chosen[row], launched.round.logits, row)
            it.num_written += len(update.ids)
            self._stats.num_new_tokens += len(update.ids)
            if update.is_last:
                self._end(it, update)
            elif update.ids:
                self._updates.append((it.job, update))

    def _describe(self, it: _Running, chosen: list[int], logits: Tensor, row: int) -> Update:
        """Return the update for new ids of a job: those before its end, and how it ended.

        `logits[row]` are those of the last id.
        """
        ids = chosen[: it.room - it.num_written]
        reason: Reason | None = None
        if not it.end_ids.isdisjoint(ids):
            end = next(place for place, id in enumerate(ids) if id in it.end_ids)
            if ids[end] == NO_TOKEN:
                return Update(error=NOT_FINITE)
            ids, reason = ids[:end], "stop"
        elif it.num_written + len(ids) == it.room:
            reason = find_reason(self.config, it.job.prompt, it.room, it.job.sampling)
        scores: list[TokenScore] = []
        if it.job.num_top is not None and ids:
            scores = self._score(logits[row : row + 1], ids, it.job.num_top)
        return Update(ids=ids, scores=scores, reason=reason)

    def _score_prompt(self, it: _Running, chunk: PromptChunk, states: Tensor) -> None:
        """Score the tokens that follow those of a chunk in its prompt."""
        following = it.job.prompt[chunk.start + 1 : chunk.start + len(chunk.ids) + 1]
        if len(following):
            logits = self.batch.decoder.score(states[: len(following)])
            it.prompt_scores += self._score(logits, following, it.job.num_top or 0)

    def _score(self, logits: Tensor, ids: Sequence[int], num_top: int) -> list[TokenScore]:
        """Return the scores of one id for each row of logits."""
        logprobs = logits.float().log_softmax(dim=-1)
        chosen = logprobs[range(len(ids)), list(ids)].tolist()
        values, places = logprobs[:, : self.batch.num_ids].topk(min(num_top, self.batch.num_ids), dim=-1)
        return [
            TokenScore(logprob, tuple(zip(top_ids, top_values, strict=True)))
            for logprob, top_ids, top_values in zip(chosen, places.tolist(), values.tolist(), strict=True)
        ]

    def _end(self, it: _Running, update: Update) -> None:
        self._updates.append((it.job, update))
        with self._changed:
            self._release(it)

    def _release(self, it: _Running) -> None:
        """Free the slot of a job, if it still has one; the caller holds the lock."""
        it.has_ended = True
        self._num_scored -= it.job.num_top is not None
        if it in self._leaving:
            self._leaving.remove(it)
            return
        del self._running[it.slot]
        self.batch.release(it.slot)

    def _all_running(self) -> list[_Running]:
        return [*self._running.values(), *self._leaving]

    def _fail_all(self, error: str) -> None:
        """End all jobs, running and waiting, with an error."""
        with self._changed:
            self._launched.clear()
            for it in self._all_running():
                if not it.job.is_cancelled:
                    self._updates.append((it.job, Update(error=error)))
                self._release(it)
            try:
                self.batch.reset_released()
            except Exception:  # some errors of CUDA persist until the process ends
                logger.exception("the slots could not be released")
                self.is_device_lost = self._is_closed = self._must_stop = True
            if self._must_stop:
                self._updates += [(job, Update(error=error)) for job in self._waiting if not job.is_cancelled]
                self._waiting.clear()
                self._stats.num_waiting_tokens = 0

    def _publish(self) -> None:
        """Report the updates of this turn."""
        updates, self._updates = self._updates, []
        if updates:
            self.report(updates)


def _is_finite(it: _Running, last: Tensor) -> bool:
    """Return whether the scores of a prompt and the state of its last token are finite.

    The state is checked here only if no token follows; otherwise the choice of the first token checks it.
    """
    has_finite_scores = all(math.isfinite(score.logprob) for score in it.prompt_scores)
    return has_finite_scores and (it.room > 0 or bool(last.isfinite().all()))
