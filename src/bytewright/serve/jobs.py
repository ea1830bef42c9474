"""Jobs of the engine: one prompt to continue, the updates that describe its progress, and its errors.

`RunningJob` is a job in a slot. It decides which of the chosen ids belong to the text, and why the text ends.
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
class RunningJob:
    """A job in a slot, and how far it has come."""

    job: Job
    slot: int
    config: ModelConfig
    num_read: int = 0
    """The number of tokens of the prompt that were read."""
    num_launched: int = 0
    """The number of tokens that launched steps choose."""
    num_written: int = 0
    """The number of tokens that were reported."""
    has_ended: bool = False
    room: int = field(init=False)
    """The largest number of tokens that it can write."""
    end_ids: frozenset[int] = field(init=False)
    """Ids that end the text: its stop tokens, and `NO_TOKEN`."""
    prompt_scores: list[TokenScore] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.room = min(self.config.context_length - len(self.job.prompt), self.job.sampling.max_new_tokens)
        self.end_ids = frozenset((*self.job.sampling.stop_tokens, NO_TOKEN))

    @property
    def is_reading(self) -> bool:
        """Whether a part of the prompt was not read yet."""
        return self.num_read < len(self.job.prompt)

    @property
    def length(self) -> int:
        """The number of tokens after the next step."""
        return len(self.job.prompt) + self.num_launched

    def next_chunk(self) -> PromptChunk:
        """Return the next tokens of the prompt."""
        ids = self.job.prompt[self.num_read : self.num_read + CHUNK_TOKENS]
        has_next = self.room > 0 and self.num_read + len(ids) == len(self.job.prompt)
        draws = RowDraws(self.job.sampling, self.job.row, self.room) if has_next else None
        return PromptChunk(self.slot, self.num_read, ids, draws)

    def is_prompt_finite(self, last: Float[Tensor, " d_model"]) -> bool:
        """Return whether the scores of the prompt and the state of its last token are finite.

        The state is checked here only if no token follows; otherwise the choice of the first token checks it.
        """
        has_finite_scores = all(math.isfinite(score.logprob) for score in self.prompt_scores)
        return has_finite_scores and (self.room > 0 or bool(last.isfinite().all()))

    def accept(self, chosen: list[int]) -> Update:
        """Return the update for newly chosen ids: those that belong to the text, and its end if it ends."""
        ids = chosen[: self.room - self.num_written]
        reason: Reason | None = None
        if not self.end_ids.isdisjoint(ids):
            end = next(place for place, id in enumerate(ids) if id in self.end_ids)
            if ids[end] == NO_TOKEN:
                return Update(error=NOT_FINITE)
            ids, reason = ids[:end], "stop"
        elif self.num_written + len(ids) == self.room:
            reason = find_reason(self.config, self.job.prompt, self.room, self.job.sampling)
        self.num_written += len(ids)
        return Update(ids=ids, reason=reason)


def score_ids(
    logits: Float[Tensor, "rows vocab"], ids: Sequence[int], num_top: int, num_ids: int
) -> list[TokenScore]:
    """Return the score of one id for each row of logits; the likeliest tokens are ids below `num_ids`."""
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs[range(len(ids)), list(ids)].tolist()
    values, places = logprobs[:, :num_ids].topk(min(num_top, num_ids), dim=-1)
    return [
        TokenScore(logprob, tuple(zip(top_ids, top_values, strict=True)))
        for logprob, top_ids, top_values in zip(chosen, places.tolist(), values.tolist(), strict=True)
    ]
