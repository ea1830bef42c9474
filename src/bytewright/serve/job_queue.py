"""The queue of the engine: jobs that wait for a slot. Their number and their tokens are bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bytewright.errors import UsageError
from bytewright.formatting import format_number
from bytewright.serve.jobs import Job, QueueFullError

RETRY_SHARE = 0.25
"""A rejected client should try again when about this share of the waiting tokens is done: the queue then has
room for some clients, and is not yet empty."""
MAX_RETRY_SECONDS = 60
"""The longest time after which a rejected client should try again."""


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
        self.num_tokens += sum(map(self._tokens_of, jobs))

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

    def has_room(self, jobs: Sequence[Job]) -> bool:
        """Return whether the queue can take these jobs within its bounds."""
        num_tokens = self.num_tokens + sum(map(self._tokens_of, jobs))
        return len(self) + len(jobs) <= self.max_jobs and num_tokens <= self.max_tokens

    def check_can_wait(self, jobs: Sequence[Job]) -> None:
        """Raise `UsageError` if an empty queue has no room for these jobs, either, so a retry is useless."""
        num_tokens = sum(map(self._tokens_of, jobs))
        if len(jobs) > self.max_jobs or num_tokens > self.max_tokens:
            message = (
                f"{len(jobs)} texts of {num_tokens} tokens in all are requested, but at most"
                f" {self.max_jobs} texts and {self.max_tokens} tokens can wait;"
                " reduce n, max_tokens or the number of prompts"
            )
            raise UsageError(message, key="n", expected=self.max_jobs, found=len(jobs))

    def full_error(self, tokens_per_second: float) -> QueueFullError:
        """Return the error for jobs without room; `tokens_per_second` is the speed of the engine."""
        seconds = round(RETRY_SHARE * self.num_tokens / max(tokens_per_second, 1.0))
        seconds = max(1, min(MAX_RETRY_SECONDS, seconds))
        message = (
            f"the queue is full: {len(self)} of {self.max_jobs} texts and {self.num_tokens} of"
            f" {self.max_tokens} tokens are waiting; try again in {format_number(seconds, 'second')}"
        )
        return QueueFullError(message, retry_seconds=seconds)

    def _tokens_of(self, job: Job) -> int:
        """Return the largest number of tokens that a job can have."""
        return min(len(job.prompt) + job.sampling.max_new_tokens, self.context_length)
