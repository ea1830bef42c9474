"""Compute the bits of every token of whole documents, also of documents that are longer than the context.

    ids    = [end] + document + [end]
    result = -log2 p(ids[i] | the ids before it that fit into the context) for i = 1, 2, …

A long document is read in overlapping windows (`generate.windows`). So every token after the first window has
at least half a context before it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64

from bytewright.data.sampler import Tokens
from bytewright.formatting import Progress
from bytewright.generate.scoring import compute_losses
from bytewright.generate.windows import plan_windows
from bytewright.model import TransformerLM


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
        (number, window)
        for number, row in enumerate(ids)
        for window in plan_windows(len(row), context_length)
    ]
    windows.sort(key=lambda each: each[1].end - each[1].start)  # similar lengths share a batch
    device = model.output_weight.device
    unfinished = Counter(document for document, _ in windows)
    done = 0
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        longest = batch[-1][1]
        rows = torch.full((len(batch), longest.end - longest.start), end, dtype=torch.long)
        for row, (document, window) in zip(rows, batch, strict=True):
            part = ids[document][window.start : window.end]
            row[: len(part)] = torch.from_numpy(part)
        found = compute_losses(model, rows.to(device)).cpu().double().numpy() / math.log(2)
        for row_bits, (document, window) in zip(found, batch, strict=True):
            kept = slice(window.first - window.start - 1, window.end - window.start - 1)
            bits[document][window.first - 1 : window.end - 1] = row_bits[kept]
            unfinished[document] -= 1
            done += not unfinished[document]
        if progress is not None:
            progress(done, len(ids))
    return bits
