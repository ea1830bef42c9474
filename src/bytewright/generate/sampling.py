"""From scores to the next token: temperature, the three filters, and one draw.

The caller passes the randomness in, as one uniform number per sequence and step. These numbers depend only on
the seed and on the row of the sequence (`draw_uniforms`), not on the other rows of the batch. Choosing is
tensor algebra without host synchronisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bytewright.errors import DivergenceError, UsageError
from bytewright.model.layers import at_least_float32, softmax

COLDEST = torch.finfo(torch.float32).tiny
"""A smaller temperature counts as this one: float32 has no reciprocal for it, and 0 / 0 is no score."""

NO_TOKEN = -1
"""Stands for the id where a model's scores are no numbers. The decoder uses ids as indices, of which this one
finds a row in any table: a device goes on unharmed until the host looks and calls `refuse_no_token`."""


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How tokens are chosen and when to stop; the filters work in this order, each on what the last left."""

    max_new_tokens: int = 256
    """The most tokens to write; fewer when a stop token comes first or the model's context is full."""
    temperature: float = 1.0
    """Scores are divided by it: below 1 the likely becomes likelier; 0 always takes the likeliest token."""
    top_k: int | None = None
    """Keep the k likeliest tokens."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probabilities add up to p at least."""
    min_p: float = 0.0
    """Keep the tokens that are at least p times as likely as the likeliest."""
    stop_tokens: tuple[int, ...] = ()
    """A sequence ends where one of these would come; it is not part of the result."""
    seed: int = 0
    """From 0 to 2^64 - 1. Sequence i of a batch draws from the random stream (seed, i)."""
    num_ids: int | None = None
    """Choose among the ids below this: a model may have rows for more tokens than its tokenizer has."""

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "top_k", "seed", "num_ids"):
            value = getattr(self, name)
            if not (value is None and name in ("top_k", "num_ids")) and not isinstance(value, Integral):
                raise UsageError(f"{name} must be a whole number, but is {value!r}")
        if self.max_new_tokens < 0:
            raise UsageError(f"max_new_tokens must not be negative, but is {self.max_new_tokens}")
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"temperature must be 0 or a positive number, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k must be at least 1, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min_p must be from 0 to 1, not {self.min_p}")
        if self.num_ids is not None and self.num_ids < 1:
            raise UsageError(f"num_ids must be at least 1, not {self.num_ids}")
        for token in self.stop_tokens:
            if isinstance(token, str):  # type: ignore[unreachable]  # what one writes first
                raise UsageError(f"stop_tokens must be ids, but one is {token!r}")
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"seed must be from 0 to 2^64 - 1, but is {self.seed}")


def keep_top_k(probabilities: Float[Tensor, "*batch vocab"], k: int) -> Float[Tensor, "*batch vocab"]:
    """Keep the k largest probabilities of each row and scale them to add up to 1.

    >>> keep_top_k(torch.tensor([0.5, 0.1, 0.3, 0.1]), k=2)
    tensor([0.6250, 0.0000, 0.3750, 0.0000])
    """
    values, ids = probabilities.topk(min(k, probabilities.shape[-1]), dim=-1)
    return _normalise(torch.zeros_like(probabilities).scatter(-1, ids, values))


def keep_top_p(probabilities: Float[Tensor, "*batch vocab"], p: float) -> Float[Tensor, "*batch vocab"]:
    """Keep the smallest set of largest probabilities whose sum is at least p; scale it to add up to 1.

    From the largest down, a token belongs to the set as long as those before it do not reach p by themselves.

    >>> keep_top_p(torch.tensor([0.5, 0.125, 0.25, 0.125]), p=0.6)
    tensor([0.6667, 0.0000, 0.3333, 0.0000])
    """
    values, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    mass_before = rising(values.cumsum(dim=-1), values).roll(1, dims=-1)
    mass_before[..., 0] = 0.0
    kept = torch.where(mass_before < p, values, 0.0)
    return _normalise(torch.zeros_like(probabilities).scatter(-1, ids, kept))


def keep_min_p(probabilities: Float[Tensor, "*batch vocab"], p: float) -> Float[Tensor, "*batch vocab"]:
    """Keep what is at least p times the largest probability of its row; scale it to add up to 1.

    >>> keep_min_p(torch.tensor([0.5, 0.1, 0.3, 0.1]), p=0.5)
    tensor([0.6250, 0.0000, 0.3750, 0.0000])
    """
    least = p * probabilities.amax(dim=-1, keepdim=True)
    return _normalise(torch.where(probabilities >= least, probabilities, 0.0))


def next_token_probabilities(
    logits: Float[Tensor, "*batch vocab"], config: SamplingConfig
) -> Float[Tensor, "*batch vocab"]:
    """Return the distribution that the next token is drawn from, in float32 at least; temperature above 0."""
    scores = at_least_float32(logits)
    # Taking the largest off first keeps a tiny temperature from overflowing; softmax does not mind.
    gaps = scores - scores.amax(dim=-1, keepdim=True)
    probabilities = softmax(gaps / max(config.temperature, COLDEST), dim=-1)
    if config.top_k is not None:
        probabilities = keep_top_k(probabilities, config.top_k)
    if config.top_p < 1:
        probabilities = keep_top_p(probabilities, config.top_p)
    if config.min_p > 0:
        probabilities = keep_min_p(probabilities, config.min_p)
    return probabilities


def draw(
    probabilities: Float[Tensor, "*batch vocab"], uniforms: Float[Tensor, "*batch"]
) -> Int[Tensor, "*batch"]:
    """Lay the probabilities end to end and return the id that each uniform number from [0, 1) falls on.

    Where the probabilities are no numbers it is `NO_TOKEN`.

    >>> draw(torch.tensor([0.25, 0.0, 0.5, 0.25]).expand(4, 4), torch.tensor([0.0, 0.25, 0.7, 0.75]))
    tensor([0, 2, 2, 3])
    """
    ends = rising(probabilities.cumsum(dim=-1), probabilities)
    places = uniforms.unsqueeze(-1) * ends[..., -1:]
    return torch.where(ends[..., -1] > 0, (ends <= places).sum(dim=-1), NO_TOKEN)


def rising(
    sums: Float[Tensor, "*batch vocab"], weights: Float[Tensor, "*batch vocab"]
) -> Float[Tensor, "*batch vocab"]:
    """Make sums of `weights` up to each place rise at every positive weight or stay, and stay at every zero.

    A GPU adds up in parallel: neighbouring sums are rounded along different paths, so they may fall by a bit,
    or rise at a weight of 0, whose token could then be drawn.

    >>> rising(torch.tensor([0.5, 0.625, 0.5, 1.0]), torch.tensor([0.5, 0.0, 0.125, 0.375]))
    tensor([0.5000, 0.5000, 0.5000, 1.0000])
    """
    return torch.where(weights > 0, sums, 0.0).cummax(dim=-1).values


def choose_tokens(
    logits: Float[Tensor, "*batch vocab"], config: SamplingConfig, uniforms: Float[Tensor, "*batch"]
) -> Int[Tensor, "*batch"]:
    """Choose the next token of every sequence; `NO_TOKEN` where the scores are no numbers."""
    logits = logits[..., : config.num_ids]
    if config.temperature == 0:
        highest, likeliest = logits.max(dim=-1)  # a score that is no number, if there is one
        return torch.where(highest.abs() < math.inf, likeliest, NO_TOKEN)
    return draw(next_token_probabilities(logits, config), uniforms)


def refuse_no_token(ids: Sequence[int], num_before: int = 0) -> None:
    """Raise if one of the ids is `NO_TOKEN`; so many of the sequence were written before them."""
    if NO_TOKEN in ids:
        raise DivergenceError(
            f"the model's scores for token {num_before + list(ids).index(NO_TOKEN) + 1} of its text are not"
            " finite, so there is nothing to choose from"
        )


def draw_uniforms(seed: int, row: int, count: int) -> Float[Tensor, " count"]:
    """Return the first `count` uniform numbers of a row: multiples of 2⁻²³ below 1.

    They are the upper 23 bits of the outputs of Philox with the key (seed, row), so no two rows of any seeds
    share a stream. In float32 the product of such a number with any x is below x, which `draw` relies on.
    """
    bits = np.random.Philox(key=np.array([seed, row], dtype=np.uint64)).random_raw(count) >> np.uint64(41)
    return torch.from_numpy((bits / 2**23).astype(np.float32))


def _normalise(weights: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
    return weights / weights.sum(dim=-1, keepdim=True)
