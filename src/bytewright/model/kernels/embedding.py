"""The gradient of an embedding table, summed in a fixed order.

torch's implementations use atomics, so that the last bits differ from run to run, or process the ids one by
one. Here positions are sorted by id once and cut into chunks. Each program sums the rows of each id in one
chunk. A second kernel adds up the sums of ids that extend over several chunks. So the work of a program does
not depend on how frequent an id is. No program is started for an id that does not occur.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32
"""Sorted positions per chunk."""


@triton.jit
def _sum_segments(
    upstream, ids, order, out, carried, num_rows, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum the rows of each id within one chunk of ROWS sorted positions.

    The sum of an id that began in an earlier chunk is stored in the row of this chunk in `carried`. All other
    sums are stored in the row of their id in `out`.
    """
    chunk = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    start = chunk * ROWS
    id = tl.load(ids + start)
    is_carried = (start > 0) & (tl.load(ids + start - 1, mask=start > 0, other=-1) == id)
    total = tl.zeros([COLUMNS], tl.float32)
    for place in range(start, tl.minimum(start + ROWS, num_rows)):
        row = tl.load(order + place).to(tl.int64)
        total += tl.load(upstream + row * width + columns, mask=columns < width, other=0.0).to(tl.float32)
        is_end = (place + 1 == num_rows) | (place + 1 == start + ROWS)
        next_id = tl.load(ids + place + 1, mask=place + 1 < num_rows, other=-1)
        if is_end | (next_id != id):
            if is_carried:
                tl.store(carried + chunk.to(tl.int64) * width + columns, total, mask=columns < width)
            else:
                tl.store(out + id.to(tl.int64) * width + columns, total, mask=columns < width)
            total = tl.zeros([COLUMNS], tl.float32)
            is_carried = False
        id = next_id


@triton.jit
def _add_carried(
    ids, out, carried, num_rows, width, num_chunks,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the carried sums of the id at the end of a chunk to its row, if the id began in this chunk."""
    chunk = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    start = chunk * ROWS
    id = tl.load(ids + start + ROWS - 1)
    began_before = (start > 0) & (tl.load(ids + start - 1, mask=start > 0, other=-1) == id)
    follows = tl.load(ids + start + ROWS) == id
    if follows & (began_before == 0):
        place = out + id.to(tl.int64) * width + columns
        total = tl.load(place, mask=columns < width, other=0.0)
        next = chunk + 1
        while follows:
            total += tl.load(carried + next.to(tl.int64) * width + columns, mask=columns < width, other=0.0)
            next += 1
            follows = tl.load(ids + next * ROWS, mask=next < num_chunks, other=-1) == id
        tl.store(place, total, mask=columns < width)


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
    num_chunks = triton.cdiv(len(order), ROWS)
    out = dout.new_zeros(num_embeddings, width, dtype=torch.float32)
    carried = dout.new_empty(num_chunks, width, dtype=torch.float32)
    columns = min(1024, triton.next_power_of_2(width))
    blocks = triton.cdiv(width, columns)
    _sum_segments[(num_chunks, blocks)](
        dout, sorted_ids, order, out, carried, len(order), width, ROWS=ROWS, COLUMNS=columns
    )
    if num_chunks > 1:
        _add_carried[(num_chunks - 1, blocks)](
            sorted_ids, out, carried, len(order), width, num_chunks, ROWS=ROWS, COLUMNS=columns
        )
    return out


@embed.register_fake
def _(weight, ids):
    return weight.new_empty(*ids.shape, weight.shape[-1])


@embed_backward.register_fake
def _(dout, ids, num_embeddings):
    return dout.new_empty(num_embeddings, dout.shape[-1], dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    weight, ids = inputs
    ctx.num_embeddings = len(weight)
    ctx.save_for_backward(ids)


def _differentiate(ctx: Any, dout: Tensor) -> tuple[Tensor, None]:
    (ids,) = ctx.saved_tensors
    return embed_backward(dout, ids, ctx.num_embeddings), None


embed.register_autograd(_differentiate, setup_context=_save)
