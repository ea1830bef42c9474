"""How good a model is on whole stories: the figure that stands beside a corpus' known entropy.

Each document is read whole, from the end token that comes before it to the end token after it: its first
token is predicted from the end token alone, and its end is predicted, too. That is how a source that writes
one document after the other is coded, so the bits of a model can be set beside the -log2 p of the source.
Windows that stand side by side, as in `evaluate`, begin in mid-story: they lack what came before, and read
higher.

    ids    = [end] + story + [end]
    bits   = sum of -log2 p(ids[i] | ids[:i]) for i = 1, 2, …
    figure = sum of bits over all stories / sum of their bytes; the end token has none

The documents are those of a token file. This module knows no text and no grammar.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Integer
from torch import Tensor

from bytewright.data.sampler import Tokens
from bytewright.errors import UsageError
from bytewright.model import TransformerLM
from bytewright.model.layers import at_least_float32

Progress = Callable[[int, int], object]
"""Hears how many stories are done, and how many there are."""


@dataclass(frozen=True)
class StoryEvaluation:
    """What each story took, in the order of the file."""

    bits: Float64[np.ndarray, " stories"]
    """-log2 p of each story and its end token."""
    num_tokens: Int64[np.ndarray, " stories"]
    """Predictions of each story: one per token, the end token included."""
    num_bytes: Int64[np.ndarray, " stories"]
    """Bytes of text of each story."""

    @property
    def bits_per_byte(self) -> float:
        """Bits that a byte of these stories takes."""
        return float(self.bits.sum() / self.num_bytes.sum())

    @property
    def loss(self) -> float:
        """Mean per prediction, in nats."""
        return float(self.bits.sum() / self.num_tokens.sum() * math.log(2))

    def gap_to(self, floor_bits: Float64[np.ndarray, " stories"]) -> tuple[float, float]:
        """Bits per byte above the floor, whose bits are given story by story, and the standard error.

        Model and floor are compared on the same stories, so what one story is harder than another cancels.
        """
        above = self.bits - floor_bits
        mean_bytes = self.num_bytes.mean()
        deviation = above - above.mean() / mean_bytes * self.num_bytes  # of a ratio, by its linear part
        error = deviation.std(ddof=1) / math.sqrt(len(above)) if len(above) > 1 else math.inf
        return float(above.mean() / mean_bytes), float(error / mean_bytes)


def split_stories(
    tokens: Tokens, end: int, max_stories: int | None = None, *, newline: int | None = None
) -> list[Tokens]:
    """Cut the ids of a token file into documents: what each end token ends, without it.

    Where end tokens stand on lines of their own, every document but the first begins with the newline after
    an end token. If `newline` is the id of that token, the first document gets one too, so that all are
    measured alike.

    >>> tokens = np.array([5, 6, 0, 1, 7, 0], dtype=np.uint16)
    >>> [story.tolist() for story in split_stories(tokens, end=0, newline=1)]
    [[1, 5, 6], [1, 7]]
    """
    ends = np.flatnonzero(tokens == end)[:max_stories]
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    stories = [tokens[first:last] for first, last in zip(starts, ends, strict=True)]
    if newline is not None and stories:
        after_end = tokens[ends[0] + 1 : ends[0] + 2]
        if after_end.tolist() == [newline] and stories[0][:1].tolist() != [newline]:
            stories[0] = np.insert(stories[0], 0, newline)  # type: ignore[assignment]
    return stories


def evaluate_stories(
    model: TransformerLM,
    stories: Sequence[Tokens],
    end: int,
    token_bytes: Int64[np.ndarray, " vocab"],
    *,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> StoryEvaluation:
    """Measure a model on whole stories; one that the context does not hold with its end token is refused."""
    check_lengths(stories, model.config.context_length)
    num_bytes = np.array([token_bytes[story].sum() for story in stories], dtype=np.int64)
    if not num_bytes.any():
        raise UsageError("there is no text to measure: its stories hold nothing beside their end tokens")
    bits = np.zeros(len(stories))
    done = 0
    for numbers in _of_like_length(stories, batch_size):
        ids, is_there = pad_stories([stories[number] for number in numbers], end)
        device = model.output_weight.device
        losses = _losses(model, ids.to(device)) * is_there.to(device)
        bits[numbers] = losses.sum(dim=-1).cpu().double().numpy() / math.log(2)
        done += len(numbers)
        if progress is not None:
            progress(done, len(stories))
    return StoryEvaluation(
        bits,
        np.array([len(story) + 1 for story in stories], dtype=np.int64),
        num_bytes,
    )


def check_lengths(stories: Sequence[Tokens], context_length: int) -> None:
    """Refuse stories of which one is too long to be read whole, or of which there are none."""
    if not stories:
        raise UsageError("there are no whole stories to measure: no end token was found")
    longest = max(range(len(stories)), key=lambda number: len(stories[number]))
    if len(stories[longest]) + 1 > context_length:
        raise UsageError(
            f"story {longest} has {len(stories[longest])} tokens, but a context of {context_length} holds"
            f" {context_length - 1} beside the end token, so it cannot be measured whole"
        )


def pad_stories(
    stories: Sequence[Tokens], end: int
) -> tuple[Integer[Tensor, "batch longest"], Bool[Tensor, "batch predictions"]]:
    """Set stories side by side, each between two end tokens; the mask says which predictions are real.

    What follows a story is of no effect on it, since every position sees only those before it.

    >>> ids, is_there = pad_stories([np.array([5, 6]), np.array([7])], end=0)
    >>> ids.tolist(), is_there.tolist()
    ([[0, 5, 6, 0], [0, 7, 0, 0]], [[True, True, True], [True, True, False]])
    """
    longest = max(map(len, stories))
    ids = torch.full((len(stories), longest + 2), end, dtype=torch.long)
    for row, story in zip(ids, stories, strict=True):
        row[1 : len(story) + 1] = torch.from_numpy(story.astype(np.int64))
    lengths = torch.tensor([len(story) + 1 for story in stories])
    return ids, torch.arange(longest + 1) < lengths.unsqueeze(-1)


def _losses(
    model: TransformerLM, ids: Integer[Tensor, "batch longest"]
) -> Float[Tensor, "batch predictions"]:
    """-ln p of every id but the first, each from those before it."""
    with torch.no_grad():
        logits = at_least_float32(model(ids[:, :-1]))
        return logits.logsumexp(dim=-1) - logits.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)


def _of_like_length(stories: Sequence[Tokens], batch_size: int) -> Iterator[list[int]]:
    """Batches of stories that need little padding beside each other, by their numbers."""
    order = sorted(range(len(stories)), key=lambda number: len(stories[number]))
    for first in range(0, len(order), batch_size):
        yield order[first : first + batch_size]
