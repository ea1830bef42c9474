"""Compute the bits of every token of whole documents, also of documents that are longer than the context.

    ids    = [end] + document + [end]
    result = -log2 p(ids[i] | the ids before it that fit into the context) for i = 1, 2, …

A long document is read in overlapping windows. The first window predicts as many tokens as fit. Each further
window predicts half as many, so that every token has at least half a context before it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Integer
from torch import Tensor

from bytewright.data.sampler import Tokens
from bytewright.formatting import Progress
from bytewright.model import TransformerLM
from bytewright.model.layers import at_least_float32
from bytewright.model.loss import choose_chunk_size


@dataclass(frozen=True)
class Window:
    """A part of a document: the model reads ids `start` … `end`-1 and predicts those from `first` on."""

    document: int
    start: int
    first: int
    end: int


def plan_windows(document: int, num_ids: int, context_length: int) -> Iterator[Window]:
    """Yield the windows of a document; together they predict every id but the first once.

    >>> [(each.start, each.first, each.end) for each in plan_windows(0, num_ids=10, context_length=4)]
    [(0, 1, 5), (2, 5, 7), (4, 7, 9), (5, 9, 10)]
    """
    end = min(num_ids, context_length + 1)
    yield Window(document, 0, 1, end)
    while end < num_ids:
        first, end = end, min(num_ids, end + max(1, context_length // 2))
        yield Window(document, end - context_length - 1, first, end)


def evaluate_tokens(
    model: TransformerLM,
    documents: Sequence[Tokens],
    end: int,
    *,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> list[Float64[np.ndarray, " _"]]:
    """Return the bits of each token of each document, its end token included."""
    ids = [np.concatenate(([end], document, [end])).astype(np.int64) for document in documents]
    bits = [np.zeros(len(each) - 1) for each in ids]
    context_length = model.config.context_length
    windows = [
        each for number, row in enumerate(ids) for each in plan_windows(number, len(row), context_length)
    ]
    windows.sort(key=lambda window: window.end - window.start)  # similar lengths share a batch
    device = model.output_weight.device
    unfinished = Counter(window.document for window in windows)
    done = 0
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        rows = torch.full((len(batch), batch[-1].end - batch[-1].start), end, dtype=torch.long)
        for row, window in zip(rows, batch, strict=True):
            part = ids[window.document][window.start : window.end]
            row[: len(part)] = torch.from_numpy(part)
        found = compute_losses(model, rows.to(device)).cpu().double().numpy() / math.log(2)
        for row_bits, window in zip(found, batch, strict=True):
            kept = slice(window.first - window.start - 1, window.end - window.start - 1)
            bits[window.document][window.first - 1 : window.end - 1] = row_bits[kept]
            unfinished[window.document] -= 1
            done += not unfinished[window.document]
        if progress is not None:
            progress(done, len(ids))
    return bits


def compute_losses(
    model: TransformerLM, ids: Integer[Tensor, "batch longest"]
) -> Float[Tensor, "batch predictions"]:
    """Return -ln p of every id but the first, given the ids before it.

    The function computes a few rows of ids at a time, which bounds the memory of the logits.
    """
    num_rows = choose_chunk_size(ids.device.type, model.config.vocab_size) // ids.shape[-1]
    losses = []
    with torch.no_grad():
        for part in torch.split(ids, max(1, num_rows)):
            logits = at_least_float32(model(part[:, :-1]))
            target_logits = logits.gather(-1, part[:, 1:].unsqueeze(-1)).squeeze(-1)
            losses.append(logits.logsumexp(dim=-1) - target_logits)
            del logits  # free the memory before the next logits are computed
    return torch.cat(losses)
