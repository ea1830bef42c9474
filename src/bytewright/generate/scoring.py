"""Compute the loss of every token of given texts."""

from __future__ import annotations

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from bytewright.model import TransformerLM
from bytewright.model.layers import at_least_float32
from bytewright.model.loss import choose_chunk_size


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
