"""The queue of the engine: jobs that wait for a slot. Their number and their tokens are bounded.

A job that gets a free slot before the next step is in the queue, too, but does not count for the bounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from bytewright.errors import UsageError
from bytewright.formatting import format_number
from bytewright.serve.jobs import Job, QueueFullError

RETRY_SHARE = 0.25
"""A rejected client should try again when about this share of the waiting tokens, with those of its own, is
done: the queue then has room for some clients, and is not yet empty."""
MAX_RETRY_SECONDS = 60
"""The longest time after which a rejected client should try again."""
FIRST_RETRY_SECONDS = 2
"""The same time before the engine has completed a step, so that its speed is not known."""


class JobQueue:
    """Jobs that wait for a slot, the oldest first. The caller holds the lock of the engine."""

    def __init__(self, *, max_jobs: int, max_tokens: int, context_length: int) -> None:
        self.max_jobs, self.max_tokens, self.context_length = max_jobs, max_tokens, context_length
        self._jobs: deque[Job] = deque()
        self.num_tokens = 0
        """The largest number of tokens that all waiting jobs can have."""

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, jobs: Sequence[Job]) -> None:
        """Add jobs at the end."""
        self._jobs.extend(jobs)
        self.num_tokens += self._count_tokens(jobs)

    def take(self) -> Job:
        """Remove and return the oldest job."""
        job = self._jobs.popleft()
        self.num_tokens -= self._tokens_of(job)
        return job

    def take_all(self) -> list[Job]:
        """Remove and return all jobs."""
        jobs = list(self._jobs)
        self._jobs.clear()
        self.num_tokens = 0
        return jobs

    def remove_cancelled(self) -> None:
        """Remove the jobs that were cancelled."""
        for job in [job for job in self._jobs if job.is_cancelled]:
            self._jobs.remove(job)
            self.num_tokens -= self._tokens_of(job)

    def has_room(self, jobs: Sequence[Job], num_free: int) -> bool:
        """Return whether these jobs can be added within the bounds while `num_free` slots are free.

        The oldest `num_free` of the waiting jobs and of these leave the queue before the next step, so they
        do not count.
        """
        (num_jobs, num_tokens), (job_room, token_room) = self._demand(jobs, num_free), self._room(num_free)
        return num_jobs <= job_room and num_tokens <= token_room

    def check_can_wait(self, jobs: Sequence[Job], num_slots: int) -> None:
        """Raise `UsageError` if these jobs exceed the bounds even in an empty queue with all slots free."""
        left = jobs[num_slots:]
        num_tokens = self._count_tokens(left)
        if len(left) > self.max_jobs:
            message = (
                f"{len(jobs):,} texts are requested, but at most {num_slots:,} can be generated"
                f" and {self.max_jobs:,} can wait at the same time; reduce n or the number of prompts"
            )
            raise UsageError(message, key="n", expected=num_slots + self.max_jobs, found=len(jobs))
        if num_tokens > self.max_tokens:
            message = (
                f"{len(jobs):,} texts are requested, of which {len(left):,} with up to"
                f" {format_number(num_tokens, 'token')} must wait for a slot, but at most"
                f" {format_number(self.max_tokens, 'token')} can wait;"
                " reduce max_tokens, n or the number of prompts"
            )
            raise UsageError(message, key="max_tokens", expected=self.max_tokens, found=num_tokens)

    def full_error(self, jobs: Sequence[Job], num_free: int, tokens_per_second: float) -> QueueFullError:
        """Return the error for jobs without room.

        `tokens_per_second` is the speed of the engine, with the tokens of prompts; 0 if it is not known.
        """
        (num_jobs, num_tokens), (job_room, token_room) = self._demand(jobs, num_free), self._room(num_free)
        num_waiting = self.max_tokens - token_room
        seconds = FIRST_RETRY_SECONDS
        if tokens_per_second:
            seconds = round(RETRY_SHARE * (num_waiting + num_tokens) / tokens_per_second)
            seconds = max(1, min(MAX_RETRY_SECONDS, seconds))
        message = (
            f"the queue has no room for this request: {format_number(num_jobs, 'text')} with up to"
            f" {format_number(num_tokens, 'token')} must wait, and there is room for"
            f" {format_number(job_room, 'text')} and {format_number(token_room, 'token')};"
            f" try again in {format_number(seconds, 'second')}"
        )
        return QueueFullError(message, retry_seconds=seconds)

    def _demand(self, jobs: Sequence[Job], num_free: int) -> tuple[int, int]:
        """Return how many of these jobs get no slot at once if `num_free` are free, and their tokens."""
        left = jobs[max(0, num_free - len(self)) :]
        return len(left), self._count_tokens(left)

    def _room(self, num_free: int) -> tuple[int, int]:
        """Return how many more jobs and tokens can wait if the oldest `num_free` jobs leave."""
        num_tokens = self.num_tokens - self._count_tokens(islice(self._jobs, num_free))
        return self.max_jobs - max(0, len(self) - num_free), self.max_tokens - num_tokens

    def _count_tokens(self, jobs: Iterable[Job]) -> int:
        """Return the largest number of tokens that jobs can have in all."""
        return sum(map(self._tokens_of, jobs))

    def _tokens_of(self, job: Job) -> int:
        """Return the largest number of tokens that a job can have."""
        return min(len(job.prompt) + job.sampling.max_new_tokens, self.context_length)
