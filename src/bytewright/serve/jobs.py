"""Jobs of the engine: one prompt to continue, the updates that describe its progress, and its errors.

`RunningJob` is a job that was given a slot. It decides which of the chosen ids belong to the text, and why
the text ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from bytewright.errors import BytewrightError
from bytewright.generate.prompt_chunks import CHUNK_TOKENS, PromptChunk, RowDraws
from bytewright.generate.reference import Reason, find_reason
from bytewright.generate.sampling import NO_TOKEN, SamplingConfig
from bytewright.model import ModelConfig

NOT_FINITE = "the outputs of the model are not finite, so they cannot be used"


class EngineError(BytewrightError):
    """A job failed, or was ended before its time."""


class QueueFullError(BytewrightError):
    """The queue has no room for some jobs; there may be room after `retry_seconds`."""

    def __init__(self, message: str, *, retry_seconds: int) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class EngineClosedError(BytewrightError):
    """The engine accepts no more jobs, because the server is being stopped or the device is lost."""


@dataclass(frozen=True)
class TokenScore:
    """The log-probability of a token, and the likeliest tokens at its place with theirs."""

    logprob: float
    top: tuple[tuple[int, float], ...]

    @property
    def is_finite(self) -> bool:
        """Whether all log-probabilities are finite."""
        return all(map(math.isfinite, (self.logprob, *(logprob for _, logprob in self.top))))


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
    """One prompt to continue once, with the random stream that has the key (seed, random_stream).

    The tokens are those of `Generator.generate` with `first_random_stream=random_stream`.
    """

    prompt: Sequence[int]
    sampling: SamplingConfig
    random_stream: int = 0
    num_top: int | None = None
    """How many likeliest tokens to report with each token; None for no scores at all."""
    scores_prompt: bool = False
    """Whether to report scores of the prompt, too."""
    is_cancelled: bool = field(default=False, init=False)


@dataclass(eq=False)
class RunningJob:
    """A job that was given a slot, with the number of its tokens that were read and chosen.

    The engine frees the slot when the job ends, or when the steps that choose its last tokens are launched.
    In the second case another job may have the slot while these steps run (`Engine._leaving`).
    """

    job: Job
    slot: int
    """The slot that it was given; another job may have it now."""
    config: ModelConfig
    length: int = 0
    """The number of tokens of the prompt that were read, plus those that launched steps choose."""
    has_ended: bool = False
    room: int = field(init=False)
    """The largest number of tokens that it can write."""
    full_length: int = field(init=False)
    """The length at which all its tokens are chosen."""
    num_left: int = field(init=False)
    """The largest number of tokens that it can still report."""
    end_ids: frozenset[int] = field(init=False)
    """Ids that end the text: its stop tokens, and `NO_TOKEN`."""
    prompt_scores: list[TokenScore] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.room = min(self.config.context_length - len(self.job.prompt), self.job.sampling.max_new_tokens)
        self.full_length = len(self.job.prompt) + self.room
        self.num_left = self.room
        self.end_ids = frozenset((*self.job.sampling.stop_tokens, NO_TOKEN))

    @property
    def is_reading(self) -> bool:
        """Whether a part of the prompt was not read yet."""
        return self.length < len(self.job.prompt)

    def next_chunk(self) -> PromptChunk:
        """Return the next tokens of the prompt."""
        ids = self.job.prompt[self.length : self.length + CHUNK_TOKENS]
        has_next = self.room > 0 and self.length + len(ids) == len(self.job.prompt)
        draws = RowDraws(self.job.sampling, self.job.random_stream, self.room) if has_next else None
        return PromptChunk(self.slot, self.length, ids, draws)

    def has_finite_scores(self) -> bool:
        """Return whether the scores of the prompt are finite."""
        return all(score.is_finite for score in self.prompt_scores)

    def accept(self, chosen: list[int]) -> Update:
        """Return the update for newly chosen ids: those that belong to the text, and its end if it ends."""
        if len(chosen) < self.num_left and self.end_ids.isdisjoint(chosen):  # the usual case
            self.num_left -= len(chosen)
            return Update(chosen)
        ids = chosen[: self.num_left]
        end = next((place for place, id in enumerate(ids) if id in self.end_ids), None)
        if end is None:
            return Update(ids, reason=find_reason(self.config, self.job.prompt, self.room, self.job.sampling))
        if ids[end] == NO_TOKEN:
            return Update(error=NOT_FINITE)
        return Update(ids[:end], reason="stop")


def score_ids(
    logits: Float[Tensor, "rows vocab"], ids: Sequence[int], num_top: int, num_ids: int
) -> list[TokenScore]:
    """Return the score of one id for each row of logits; the likeliest tokens are ids below `num_ids`."""
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs[range(len(ids)), list(ids)].tolist()
    top_logprobs, top_ids = logprobs[:, :num_ids].topk(min(num_top, num_ids), dim=-1)
    return [
        TokenScore(logprob, tuple(zip(likeliest, values, strict=True)))
        for logprob, likeliest, values in zip(chosen, top_ids.tolist(), top_logprobs.tolist(), strict=True)
    ]
