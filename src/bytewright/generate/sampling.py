"""From logits to the next token: temperature, the samplers top-k, top-p and min-p or others, and one draw.

A sampler is a registered function of the probabilities of the next token, (…, vocab). It returns the weights
with which tokens are drawn, of the same shape; they need not sum to 1. Its other parameters are options. On a
GPU the steps of a model with a user's sampler are not captured as a graph, so a sampler can do anything.

The caller passes the randomness as one uniform number per sequence and step. These numbers depend only on the
seed and on the random stream of the sequence (`draw_uniforms`), not on the rest of the batch. Choosing a
token needs no host synchronisation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bytewright.errors import DivergenceError, UsageError, wrong_value
from bytewright.model.layers import at_least_float32, softmax
from bytewright.model.loss import describe_value
from bytewright.registry import is_built_in, samplers
from bytewright.storage.config_reader import read_options

Sampler = Callable[..., Tensor]
"""A function of the probabilities and options that returns the weights with which tokens are drawn."""

PROVIDED = ("probabilities",)
"""The parameters of a sampler that are not options."""

MIN_TEMPERATURE = torch.finfo(torch.float32).tiny
"""Smaller temperatures are raised to this one, because their reciprocal overflows in float32."""

NO_TOKEN = -1
"""The id that is chosen if logits are not finite. As an index it is valid in any table, so the device
continues without an error until the host calls `check_chosen`."""


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How tokens are chosen and when to stop.

    The temperature, `top_k`, `top_p`, `min_p` and `sampler` apply in this order, each to the result of the
    one before it.
    """

    max_new_tokens: int = 256
    """The maximum number of new tokens; a stop token or a full context can end a sequence earlier."""
    temperature: float = 1.0
    """Divisor of the logits: values below 1 favour likely tokens; 0 always chooses the likeliest one."""
    top_k: int | None = None
    """Keep the k likeliest tokens."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probabilities sum to at least p."""
    min_p: float = 0.0
    """Keep the tokens that are at least p times as likely as the likeliest."""
    sampler: str | None = None
    """A registered sampler that applies last."""
    sampler_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Options of the sampler."""
    stop_tokens: tuple[int, ...] = ()
    """A sequence ends before one of these ids; it is not part of the result."""
    seed: int = 0
    """From 0 to 2^64 - 1. Sequence i of a batch uses the random stream with the key (seed, i)."""
    num_ids: int | None = None
    """Choose only ids below this; a model can have more ids than its tokenizer."""
    slide: bool = False
    """Continue past the context: from then on, each token is predicted from the last `context_length` tokens,
    as from a new text. Each of these tokens costs a pass over the whole context."""

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "top_k", "seed", "num_ids"):
            value = getattr(self, name)
            if not (value is None and name in ("top_k", "num_ids")) and not isinstance(value, Integral):
                raise wrong_value(name, "a whole number", value)
        for name, is_valid, expected in (
            ("max_new_tokens", self.max_new_tokens >= 0, "at least 0"),
            ("temperature", 0 <= self.temperature < math.inf, "0 or a positive number"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("num_ids", self.num_ids is None or self.num_ids >= 1, "at least 1"),
            ("seed", 0 <= self.seed < 2**64, "from 0 to 2^64 - 1"),
        ):
            if not is_valid:
                raise wrong_value(name, expected, getattr(self, name))
        for token in self.stop_tokens:
            if isinstance(token, str):  # type: ignore[unreachable]  # a likely mistake
                raise wrong_value("stop_tokens", "ids", token)
        self._check_sampler()

    def _check_sampler(self) -> None:
        if self.sampler is None:
            if self.sampler_options:
                raise UsageError("sampler_options need a sampler", key="sampler", found=None)
            return
        options = read_sampler_options(
            self.sampler, self.sampler_options, name_key="sampler", options_key="sampler_options"
        )
        object.__setattr__(self, "sampler_options", options)
        if self.temperature == 0:
            message = f"the sampler {self.sampler!r} has no effect at temperature 0; raise the temperature"
            raise UsageError(message, key="sampler", found=self.sampler)

    @property
    def has_users_sampler(self) -> bool:
        """Whether the sampler is not a built-in one."""
        return self.sampler is not None and not is_built_in(samplers[self.sampler])

    def samplers(self) -> list[Sampler]:
        """Return the samplers to apply, in order, as functions of the probabilities."""
        chain: list[tuple[str, Mapping[str, Any]]] = []
        if self.top_k is not None:
            chain.append(("top_k", {"k": self.top_k}))
        if self.top_p < 1:
            chain.append(("top_p", {"p": self.top_p}))
        if self.min_p > 0:
            chain.append(("min_p", {"p": self.min_p}))
        if self.sampler is not None:
            chain.append((self.sampler, self.sampler_options))
        return [functools.partial(apply_sampler, name, options) for name, options in chain]


def read_sampler_options(
    name: str, options: Mapping[str, Any], *, name_key: str, options_key: str
) -> dict[str, Any]:
    """Return the checked options of a registered sampler; errors name the keys of its name and options."""
    samplers.check(name, name_key)
    part = samplers[name]
    values = read_options(part, options, provided=PROVIDED, key=options_key)
    if name in samplers.names() and is_built_in(part):
        try:
            part(torch.tensor([0.5, 0.5]), **values)  # checks the values
        except UsageError as error:
            raise wrong_value(f"{options_key}.{error.key}", str(error.expected), error.found) from None
    return values


def apply_sampler(
    name: str, options: Mapping[str, Any], probabilities: Float[Tensor, "*batch vocab"]
) -> Float[Tensor, "*batch vocab"]:
    """Return the probabilities that a registered sampler leaves."""
    sampler = samplers[name]
    weights: Tensor = sampler(probabilities, **options)
    if is_built_in(sampler):  # normalised already; a second division would round again
        return weights
    expected, found = tuple(probabilities.shape), describe_value(weights)
    if found != expected:
        message = f"the sampler {name!r} must return weights of shape {expected}, but returned {found}"
        raise UsageError(message, key="sampler", expected=expected, found=found)
    if (weights < 0).any():
        lowest = weights.min().item()
        message = f"the sampler {name!r} must return weights of at least 0, but returned {lowest}"
        raise UsageError(message, key="sampler", expected=0, found=lowest)
    return _normalise(at_least_float32(weights))


@samplers.register("top_k")
def keep_top_k(probabilities: Float[Tensor, "*batch vocab"], k: int = 50) -> Float[Tensor, "*batch vocab"]:
    """Keep the k largest probabilities of each row and normalise them.

    >>> keep_top_k(torch.tensor([0.5, 0.1, 0.3, 0.1]), k=2)
    tensor([0.6250, 0.0000, 0.3750, 0.0000])
    """
    if k < 1:
        raise wrong_value("k", "at least 1", k)
    values, ids = probabilities.topk(min(k, probabilities.shape[-1]), dim=-1)
    return _normalise(torch.zeros_like(probabilities).scatter(-1, ids, values))


@samplers.register("top_p")
def keep_top_p(
    probabilities: Float[Tensor, "*batch vocab"], p: float = 0.95
) -> Float[Tensor, "*batch vocab"]:
    """Keep the smallest set of largest probabilities whose sum is at least p, and normalise it.

    In descending order, a token belongs to the set if the sum of those before it is below p.

    >>> keep_top_p(torch.tensor([0.5, 0.125, 0.25, 0.125]), p=0.6)
    tensor([0.6667, 0.0000, 0.3333, 0.0000])
    """
    if not 0 < p <= 1:
        raise wrong_value("p", "above 0 and at most 1", p)
    values, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    mass_before = make_monotonic(values.cumsum(dim=-1), values).roll(1, dims=-1)
    mass_before[..., 0] = 0.0
    kept = torch.where(mass_before < p, values, 0.0)
    return _normalise(torch.zeros_like(probabilities).scatter(-1, ids, kept))


@samplers.register("min_p")
def keep_min_p(
    probabilities: Float[Tensor, "*batch vocab"], p: float = 0.05
) -> Float[Tensor, "*batch vocab"]:
    """Keep the probabilities that are at least p times the largest of their row, and normalise them.

    >>> keep_min_p(torch.tensor([0.5, 0.1, 0.3, 0.1]), p=0.5)
    tensor([0.6250, 0.0000, 0.3750, 0.0000])
    """
    if not 0 <= p <= 1:
        raise wrong_value("p", "from 0 to 1", p)
    least = p * probabilities.amax(dim=-1, keepdim=True)
    return _normalise(torch.where(probabilities >= least, probabilities, 0.0))


def next_token_probabilities(
    logits: Float[Tensor, "*batch vocab"], config: SamplingConfig
) -> Float[Tensor, "*batch vocab"]:
    """Return the distribution of the next token, in at least float32; the temperature must be above 0."""
    scores = at_least_float32(logits)
    # Subtract the maximum before the division, which would overflow for a tiny temperature.
    gaps = scores - scores.amax(dim=-1, keepdim=True)
    probabilities = softmax(gaps / max(config.temperature, MIN_TEMPERATURE), dim=-1)
    for sampler in config.samplers():
        probabilities = sampler(probabilities)
    return probabilities


def draw(
    probabilities: Float[Tensor, "*batch vocab"], uniforms: Float[Tensor, "*batch"]
) -> Int[Tensor, "*batch"]:
    """Return the id at which the cumulative probability exceeds each uniform number from [0, 1).

    If probabilities are not finite, it is `NO_TOKEN`.

    >>> draw(torch.tensor([0.25, 0.0, 0.5, 0.25]).expand(4, 4), torch.tensor([0.0, 0.25, 0.7, 0.75]))
    tensor([0, 2, 2, 3])
    """
    ends = make_monotonic(probabilities.cumsum(dim=-1), probabilities)
    places = uniforms.unsqueeze(-1) * ends[..., -1:]
    return torch.where(ends[..., -1] > 0, (ends <= places).sum(dim=-1), NO_TOKEN)


def make_monotonic(
    sums: Float[Tensor, "*batch vocab"], weights: Float[Tensor, "*batch vocab"]
) -> Float[Tensor, "*batch vocab"]:
    """Return the cumulative sums of `weights`, made monotonic, and constant where a weight is 0.

    A GPU computes the sums in parallel, with different rounding for each. A sum can be slightly below the one
    before it. It can also be above it at a weight of 0, whose token could then be drawn.

    >>> make_monotonic(torch.tensor([0.5, 0.625, 0.5, 1.0]), torch.tensor([0.5, 0.0, 0.125, 0.375]))
    tensor([0.5000, 0.5000, 0.5000, 1.0000])
    """
    return torch.where(weights > 0, sums, 0.0).cummax(dim=-1).values


def choose_tokens(
    logits: Float[Tensor, "*batch vocab"], config: SamplingConfig, uniforms: Float[Tensor, "*batch"]
) -> Int[Tensor, "*batch"]:
    """Return the next token of every sequence; `NO_TOKEN` if its logits are not finite."""
    logits = logits[..., : config.num_ids]
    if config.temperature == 0:
        highest, likeliest = logits.max(dim=-1)  # NaN counts as the highest
        return torch.where(highest.abs() < math.inf, likeliest, NO_TOKEN)
    return draw(next_token_probabilities(logits, config), uniforms)


def check_chosen(ids: Sequence[int], num_before: int = 0, sampler: str | None = None) -> None:
    """Raise `DivergenceError` if one of the ids is `NO_TOKEN`; `num_before` ids precede them."""
    if NO_TOKEN in ids:
        number = num_before + list(ids).index(NO_TOKEN) + 1
        cause = f"are not finite, or the sampler {sampler!r} left none" if sampler else "are not finite"
        message = f"the logits for token {number} {cause}, so no token can be chosen"
        raise DivergenceError(message if sampler else f"{message}; the model has diverged", found=sampler)


def draw_uniforms(seed: int, random_stream: int, count: int) -> Float[Tensor, " count"]:
    """Return the first `count` uniform numbers of a random stream: multiples of 2⁻²³ below 1.

    They are the upper 23 bits of Philox with the key (seed, random_stream). `draw` requires that the float32
    product of such a number with any x is below x.
    """
    key = np.array([seed, random_stream], dtype=np.uint64)
    bits = np.random.Philox(key=key).random_raw(count) >> np.uint64(41)
    return torch.from_numpy((bits / 2**23).astype(np.float32))


def _normalise(weights: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
    return weights / weights.sum(dim=-1, keepdim=True)
