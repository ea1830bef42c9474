"""The gradient of an embedding table, summed in a fixed order.

torch's implementations use atomics, so that the last bits differ from run to run, or process the ids one by
one. Here positions are sorted by id once; then each program sums the rows of one id.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 64, 64
"""Block of the upstream gradient that a program adds at a time."""


@triton.jit
def _sum_rows(upstream, order, starts, out, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    id = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    start, end = tl.load(starts + id), tl.load(starts + id + 1)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        places = first + tl.arange(0, ROWS)
        rows = tl.load(order + places, mask=places < end, other=0)
        mask = (places < end)[:, None] & (columns < width)[None, :]
        values = tl.load(upstream + rows[:, None] * width + columns[None, :], mask=mask, other=0.0)
        total += values.to(tl.float32)
    tl.store(out + id.to(tl.int64) * width + columns, tl.sum(total, 0), mask=columns < width)


@torch.library.custom_op("bytewright::embed", mutates_args=(), schema="(Tensor weight, Tensor ids) -> Tensor")
def embed(weight: Tensor, ids: Tensor) -> Tensor:
    """Return the row of every id."""
    return torch.embedding(weight, ids)  # unlike weight[ids], rejects -1


@torch.library.custom_op(
    "bytewright::embed_backward",
    mutates_args=(),
    schema="(Tensor dout, Tensor ids, SymInt num_embeddings) -> Tensor",
)
def embed_backward(dout: Tensor, ids: Tensor, num_embeddings: int) -> Tensor:
    """Return the gradient of the table in float32."""
    width = dout.shape[-1]
    dout = dout.contiguous()
    sorted_ids, order = torch.sort(ids.flatten().int(), stable=True)
    every_id = torch.arange(num_embeddings + 1, device=ids.device, dtype=torch.int32)
    starts = torch.searchsorted(sorted_ids, every_id)
    out = dout.new_empty(num_embeddings, width, dtype=torch.float32)
    _sum_rows[(num_embeddings, triton.cdiv(width, COLUMNS))](
        dout, order, starts, out, width, ROWS=ROWS, COLUMNS=COLUMNS
    )
    return out


@embed.register_fake
def _(weight: Tensor, ids: Tensor) -> Tensor:
    return weight.new_empty(*ids.shape, weight.shape[-1])


@embed_backward.register_fake
def _(dout: Tensor, ids: Tensor, num_embeddings: int) -> Tensor:
    return dout.new_empty(num_embeddings, dout.shape[-1], dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    weight, ids = inputs
    ctx.num_embeddings = len(weight)
    ctx.save_for_backward(ids)


def _differentiate(ctx: Any, dout: Tensor) -> tuple[Tensor, None]:
    (ids,) = ctx.saved_tensors
    return embed_backward(dout, ids, ctx.num_embeddings), None


embed.register_autograd(_differentiate, setup_context=_save)
