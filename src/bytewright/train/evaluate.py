"""Measurements of a model: its loss on a fixed set of tokens, and the norms of its weights and activations.

Losses under different tokenizers are not comparable, since their tokens differ in length; bits per byte are.
A special token is not text: its loss counts, its bytes do not. The windows are chosen by position alone, so
every evaluation of every run on a file uses the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor
from torch.nn import Module

from bytewright.data.sampler import (
    Corpus,
    TokenStore,
    count_targets,
    gather_windows,
    in_batches,
    side_by_side_starts,
    spread_evenly,
)
from bytewright.errors import UsageError
from bytewright.formatting import Progress
from bytewright.model import TransformerLM
from bytewright.parallel.rank_group import RankGroup


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation; the loss is the mean per token, in nats."""

    loss: float
    num_tokens: int
    num_bytes: int | None

    @property
    def perplexity(self) -> float:
        """exp(loss): the number of equally likely tokens with the same loss."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """Loss in bits per byte of text, if the number of bytes is known."""
        if not self.num_bytes:
            return None
        return self.loss * self.num_tokens / self.num_bytes / math.log(2)


EVALUATED_AT_ONCE = 4096
"""Minimum number of tokens per evaluation batch, also if training batches are smaller."""


class EvaluationSet:
    """Windows of a token file that a model is evaluated on, in batches of at most `batch_size`.

    `starts` holds the positions where windows may begin; by default they are side by side. `max_tokens`
    selects windows spread evenly over them. Up to an eighth of them is left out so that all batches have the
    same size: a smaller last batch would need another compilation. `token_bytes` holds the bytes of each
    token id; without it there are no bits per byte. With a `mask`, only the tokens that it selects count;
    windows without such a token are left out.
    """

    def __init__(
        self,
        tokens: Corpus,
        device: torch.device | str,
        *,
        context_length: int,
        batch_size: int,
        starts: Int64[np.ndarray, " windows"] | None = None,
        max_tokens: int | None = None,
        token_bytes: Int64[np.ndarray, " vocab"] | None = None,
        mask: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        self.store = TokenStore(tokens, device, mask=mask)
        self.context_length = context_length
        if starts is None:
            starts = side_by_side_starts(len(tokens), context_length)
        if mask is not None:
            starts = starts[count_targets(mask, starts, context_length) > 0]
            if not len(starts):
                raise UsageError("the mask of the data leaves no token to evaluate on", key="mask")
        if max_tokens is not None:
            starts = spread_evenly(starts, _round_down(min(len(starts), -(-max_tokens // context_length))))
            batch_size = _largest_part(len(starts), batch_size)
        self.starts = starts
        self.batch_size = batch_size
        self.num_counted: Int64[np.ndarray, " windows"] | None = None
        """Tokens that count in each window; None if all do."""
        if mask is not None:
            self.num_counted = count_targets(mask, starts, context_length)
        self.num_bytes = None if token_bytes is None else self._count_bytes(tokens, mask, token_bytes)

    def _count_bytes(
        self, tokens: Corpus, mask: npt.NDArray[np.uint8] | None, token_bytes: Int64[np.ndarray, " vocab"]
    ) -> int:
        total = 0
        for batch in in_batches(self.starts, self.batch_size):
            lengths = token_bytes[gather_windows(tokens, batch, self.context_length)[:, 1:]]
            if mask is not None:
                lengths = lengths * gather_windows(mask, batch + 1, self.context_length - 1)
            total += int(lengths.sum())
        return total

    @property
    def num_tokens(self) -> int:
        """Number of tokens that count."""
        if self.num_counted is None:
            return len(self.starts) * self.context_length
        return int(self.num_counted.sum())

    @property
    def num_batches(self) -> int:
        """Number of batches of an evaluation."""
        return -(-len(self.starts) // self.batch_size)

    def measure_batch(self, measure: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Evaluate the first batch only and synchronise, to time an evaluation."""
        measure(*self.store.batch(self.starts[: self.batch_size], self.context_length)).item()

    def evaluate(
        self,
        measure: Callable[[Tensor, Tensor], Tensor],
        progress: Progress | None = None,
        *,
        ranks: RankGroup | None = None,
        is_sharded: bool = False,
    ) -> Evaluation:
        """Evaluate every window; `measure` returns the mean loss of the tokens of a batch that count.

        Synchronises with the device once, or after every batch if `progress` is given. Each rank of `ranks`
        evaluates a share of the batches; the losses are added in the order of the batches, as by one process.
        The ranks of a sharded model must evaluate equally often, so some repeat a batch.
        """
        ranks = ranks or RankGroup()
        first, last = (self.num_batches * rank // ranks.num_ranks for rank in (ranks.rank, ranks.rank + 1))
        weighted: list[Tensor] = []
        for number in range(first, last):
            chosen = slice(number * self.batch_size, (number + 1) * self.batch_size)
            starts = self.starts[chosen]
            weight = len(starts)
            if self.num_counted is not None:
                weight = int(self.num_counted[chosen].sum())
            weighted.append(measure(*self.store.batch(starts, self.context_length)) * weight)
            if progress is not None:
                weighted[-1] = weighted[-1].cpu()
                num_done = min(len(self.starts), chosen.stop)
                progress(num_done * self.context_length, len(self.starts) * self.context_length)
        longest = -(-self.num_batches // ranks.num_ranks)
        for _ in range(longest - len(weighted) if is_sharded else 0):
            measure(*self.store.batch(self.starts[: self.batch_size], self.context_length))
        losses = torch.stack(weighted) if weighted else torch.zeros(0)  # with more ranks than batches
        total = ranks.concatenate(losses).sum().item()
        divisor = len(self.starts) if self.num_counted is None else self.num_tokens
        return Evaluation(total / divisor, self.num_tokens, self.num_bytes)


def _round_down(count: int) -> int:
    """Round a count down to its four leading bits, so that large powers of two divide it.

    >>> [_round_down(count) for count in (7, 100, 1024, 1643)]
    [7, 96, 1024, 1536]
    """
    unit = 1 << max(0, count.bit_length() - 4)
    return count // unit * unit


def _largest_part(count: int, limit: int) -> int:
    """Return the largest power of two, up to `limit`, that divides `count`.

    >>> _largest_part(1536, 128), _largest_part(1536, 48), _largest_part(7, 16)
    (128, 32, 1)
    """
    part = 1
    while 2 * part <= limit and count % (2 * part) == 0:
        part *= 2
    return part


def root_mean_square(tensor: Float[Tensor, ...]) -> Float[Tensor, ""]:
    """Return the root mean square of the elements."""
    return tensor.detach().float().square().mean().sqrt()


@torch.no_grad()
def measure_norms(
    model: TransformerLM,
    ids: Integer[Tensor, "batch seq"],
    weights: Iterable[tuple[str, Tensor]] | None = None,
) -> dict[str, dict[str, float]]:
    """Return the root mean square of every weight, and of the outputs of embedding and blocks for `ids`.

    An extra forward pass of the uncompiled model computes the activations, so a compiled step is unaffected.
    `weights` are those of a model that does not hold its whole parameters itself.
    """
    activations: dict[str, Tensor] = {}

    def watch(name: str, module: Module) -> torch.utils.hooks.RemovableHandle:
        def note(_module: Module, _inputs: object, output: Tensor) -> None:
            activations[name] = root_mean_square(output)

        return module.register_forward_hook(note)

    watched: dict[str, Module] = {"token_embeddings": model.token_embeddings}
    watched |= {f"layers.{number}": layer for number, layer in enumerate(model.layers)}
    handles = [watch(name, module) for name, module in watched.items()]
    try:
        model.hidden_states(ids)
    finally:
        for handle in handles:
            handle.remove()
    named = model.named_parameters() if weights is None else weights
    of_weights = {name.removesuffix(".weight"): root_mean_square(weight) for name, weight in named}
    return {"weight_rms": _to_host(of_weights), "activation_rms": _to_host(activations)}


def _to_host(values: dict[str, Tensor]) -> dict[str, float]:
    if not values:
        return {}
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
