"""Compute the loss of every token of given texts, in overlapping windows if a text exceeds the context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from bytewright.model import TransformerLM
from bytewright.model.layers import at_least_float32
from bytewright.model.loss import choose_chunk_size


class Window(NamedTuple):
    """A part of a text: the model reads ids `start` … `end`-1 and predicts those from `first` on."""

    start: int
    first: int
    end: int


def plan_windows(num_ids: int, context_length: int) -> Iterator[Window]:
    """Yield the windows of a text; together they predict every id but the first once.

    The first window predicts as many ids as fit. Each further window predicts half as many or, if it is the
    last one, fewer. So every id after the first window has at least half a context before it.

    >>> [tuple(window) for window in plan_windows(num_ids=10, context_length=4)]
    [(0, 1, 5), (2, 5, 7), (4, 7, 9), (5, 9, 10)]
    """
    end = min(num_ids, context_length + 1)
    yield Window(0, 1, end)
    while end < num_ids:
        first, end = end, min(num_ids, end + max(1, context_length // 2))
        yield Window(end - context_length - 1, first, end)


@torch.no_grad()
def compute_losses(
    model: TransformerLM, ids: Integer[Tensor, "batch longest"]
) -> Float[Tensor, "batch predictions"]:
    """Return -ln p of every id but the first, given the ids before it.

    The function computes a few rows of ids at a time, which bounds the memory of the logits. A row may have
    one id more than the context.
    """
    num_rows = choose_chunk_size(ids.device.type, model.config.vocab_size) // ids.shape[-1]
    losses = []
    for part in torch.split(ids, max(1, num_rows)):
        logits = at_least_float32(model(part[:, :-1]))
        target_logits = logits.gather(-1, part[:, 1:].unsqueeze(-1)).squeeze(-1)
        losses.append(logits.logsumexp(dim=-1) - target_logits)
        del logits  # free the memory before the next logits are computed
    return torch.cat(losses)
