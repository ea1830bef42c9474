"""Causal attention with the rotary embedding, from the joined q, k, v projection to the attention result.

torch's kernels require rotated q, k and v, each in its own layout. With small heads and short contexts,
rotating them and their gradients costs more than the attention itself. This kernel reads q, k and v from the
projection and rotates them while loading. The backward pass rotates the gradients back while storing them in
the layout of the projection. Rows of q and k are in halves (`fused.halves_from_pairs`), so a column and its
partner are half a head apart.

Scores are not written to memory. In the backward pass one program computes a whole head. It loops over blocks
of keys and sums their gradients in registers. The gradients of the queries are summed in a float32 buffer
that no other program uses, so atomics are not needed. There, scores have keys as rows: two of the three
products that follow use them without a transposition.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 512
"""The longest supported context; in longer ones, one program per head leaves too much of a GPU idle."""


class Blocks(NamedTuple):
    """The block sizes of a pass: queries and keys per iteration, and warps per program."""

    queries: int
    keys: int
    num_warps: int


BLOCKS = {
    32: (Blocks(128, 64, 4), Blocks(64, 128, 4)),
    64: (Blocks(128, 64, 8), Blocks(64, 128, 8)),
    128: (Blocks(128, 64, 8), Blocks(32, 128, 8)),
}
"""For each head size, the blocks of forward and backward pass; in the latter, keys are a multiple of queries.

The fastest of the tested sizes on an H200, at 256 and 512 tokens.
"""

SERVED_HEADS = (32, 64)
"""The head sizes for which models use this kernel, because it is faster than torch's compiled attention."""

LOG2E = math.log2(math.e)


@triton.jit
def _load_rows(base, rows, stride, num_rows, D: tl.constexpr):
    place = base + rows[:, None] * stride + tl.arange(0, D)[None, :]
    return tl.load(place, mask=rows[:, None] < num_rows, other=0.0)


@triton.jit
def _store_rows(base, rows, stride, num_rows, value, D: tl.constexpr):
    place = base + rows[:, None] * stride + tl.arange(0, D)[None, :]
    tl.store(place, value.to(base.dtype.element_ty), mask=rows[:, None] < num_rows)


@triton.jit
def _load_rotated(base, rows, stride, num_rows, cos, sin, ROTATE: tl.constexpr, D: tl.constexpr):
    """Load rows of q or k with each pair (x₁, x₂) rotated: (x₁ cos - x₂ sin, x₂ cos + x₁ sin)."""
    x = _load_rows(base, rows, stride, num_rows, D)
    if ROTATE:
        HALF: tl.constexpr = D // 2
        columns = tl.arange(0, D)
        mask = rows[:, None] < num_rows
        partner = tl.load(
            base + rows[:, None] * stride + ((columns + HALF) % D)[None, :], mask=mask, other=0.0
        )
        at_angle = rows[:, None] * HALF + (columns % HALF)[None, :]
        c = tl.load(cos + at_angle, mask=mask, other=0.0)
        s = tl.load(sin + at_angle, mask=mask, other=0.0)
        x = (x * c + partner * tl.where(columns[None, :] < HALF, -s, s)).to(x.dtype)
    return x


@triton.jit
def _store_unrotated(base, rows, stride, num_rows, cos, sin, x, ROTATE: tl.constexpr, D: tl.constexpr):
    """Store the gradient with respect to the rows before the rotation, given that of the rotated rows."""
    if ROTATE:
        HALF: tl.constexpr = D // 2
        first, second = tl.split(tl.permute(tl.reshape(x, [x.shape[0], 2, HALF]), (0, 2, 1)))
        c = _load_rows(cos, rows, HALF, num_rows, HALF)
        s = _load_rows(sin, rows, HALF, num_rows, HALF)
        _store_rows(base, rows, stride, num_rows, first * c + second * s, HALF)
        _store_rows(base + HALF, rows, stride, num_rows, second * c - first * s, HALF)
    else:
        _store_rows(base, rows, stride, num_rows, x, D)


@triton.jit
def _forward(
    qkv, cos, sin, out, lse, num_rows, num_heads, scale,
    ROTATE: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one block of queries of one head over all keys before them, with a running softmax."""
    # One grid axis for both: a second one has at most 65,535 programs, too few for large batches.
    num_blocks = tl.cdiv(num_rows, BLOCK_Q)
    block, pair = tl.program_id(0) % num_blocks, tl.program_id(0) // num_blocks
    head = pair % num_heads
    start = (pair // num_heads).to(tl.int64) * num_rows
    stride = 3 * num_heads * D
    q_base = qkv + start * stride + head * D
    k_base, v_base = q_base + num_heads * D, q_base + 2 * num_heads * D
    rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    q = _load_rotated(q_base, rows, stride, num_rows, cos, sin, ROTATE, D)
    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    sums = tl.zeros([BLOCK_Q, D], tl.float32)
    for first_key in range(0, (block + 1) * BLOCK_Q, BLOCK_K):
        keys = first_key + tl.arange(0, BLOCK_K)
        k = _load_rotated(k_base, keys, stride, num_rows, cos, sin, ROTATE, D)
        v = _load_rows(v_base, keys, stride, num_rows, D)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(rows[:, None] >= keys[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp2(largest - new_largest)
        p = tl.exp2(scores - new_largest[:, None])
        total = total * shrink + tl.sum(p, 1)
        sums = tl.dot(p.to(v.dtype), v, sums * shrink[:, None], input_precision=PRECISION)
        largest = new_largest
    out += start * num_heads * D + head * D
    _store_rows(out, rows, num_heads * D, num_rows, sums / total[:, None], D)
    tl.store(lse + pair.to(tl.int64) * num_rows + rows, largest + tl.log2(total), mask=rows < num_rows)


@triton.jit
def _backward(
    qkv, cos, sin, out, lse, dout, dqkv, dq_sums, num_rows, num_heads, scale_log2, scale,
    ROTATE: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute all gradients of one head of one sequence. BLOCK_K must be a multiple of BLOCK_Q."""
    pair = tl.program_id(0)
    head = pair % num_heads
    start = (pair // num_heads).to(tl.int64) * num_rows
    stride, out_stride = 3 * num_heads * D, num_heads * D
    q_base, dq_base = qkv + start * stride + head * D, dqkv + start * stride + head * D
    k_base, dk_base = q_base + num_heads * D, dq_base + num_heads * D
    v_base, dv_base = k_base + num_heads * D, dk_base + num_heads * D
    out += start * out_stride + head * D
    dout += start * out_stride + head * D
    lse += pair.to(tl.int64) * num_rows
    dq_sums += pair.to(tl.int64) * num_rows * D
    for first_key in range(0, num_rows, BLOCK_K):
        keys = first_key + tl.arange(0, BLOCK_K)
        k = _load_rotated(k_base, keys, stride, num_rows, cos, sin, ROTATE, D)
        v = _load_rows(v_base, keys, stride, num_rows, D)
        dk = tl.zeros([BLOCK_K, D], tl.float32)
        dv = tl.zeros([BLOCK_K, D], tl.float32)
        for first_row in range(first_key, num_rows, BLOCK_Q):
            rows = first_row + tl.arange(0, BLOCK_Q)
            q = _load_rotated(q_base, rows, stride, num_rows, cos, sin, ROTATE, D)
            upstream = _load_rows(dout, rows, out_stride, num_rows, D)
            attended = _load_rows(out, rows, out_stride, num_rows, D)
            delta = tl.sum(upstream.to(tl.float32) * attended.to(tl.float32), 1)
            row_lse = tl.load(lse + rows, mask=rows < num_rows, other=float("inf"))
            scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale_log2
            p = tl.exp2(scores - row_lse[None, :])
            p = tl.where(rows[None, :] >= keys[:, None], p, 0.0)
            dp = tl.dot(v, tl.trans(upstream), input_precision=PRECISION)
            ds = (p * (dp - delta[None, :])).to(q.dtype)
            dv = tl.dot(p.to(q.dtype), upstream, dv, input_precision=PRECISION)
            dk = tl.dot(ds, q, dk, input_precision=PRECISION)
            dq = tl.dot(tl.trans(ds), k, input_precision=PRECISION)
            if first_key > 0:
                dq += _load_rows(dq_sums, rows, D, num_rows, D)
            if first_row < first_key + BLOCK_K:  # later keys are masked for these queries
                _store_unrotated(dq_base, rows, stride, num_rows, cos, sin, dq * scale, ROTATE, D)
            else:
                _store_rows(dq_sums, rows, D, num_rows, dq, D)
        tl.debug_barrier()  # the sums are read again, possibly by other threads of this program
        _store_unrotated(dk_base, keys, stride, num_rows, cos, sin, dk * scale, ROTATE, D)
        _store_rows(dv_base, keys, stride, num_rows, dv, D)


@torch.library.custom_op(
    "bytewright::rotary_attention",
    mutates_args=(),
    schema="(Tensor qkv, Tensor? cos, Tensor? sin, SymInt num_heads) -> (Tensor, Tensor)",
)
def rotary_attention(
    qkv: Tensor, cos: Tensor | None, sin: Tensor | None, num_heads: int
) -> tuple[Tensor, Tensor]:
    """Return causal attention of the joined projection (batch, seq, 3·heads·d_head), q and k in halves.

    Returns the result, (batch, seq, heads·d_head), and the base-2 logarithm of each row's normaliser for the
    gradient. `cos` and `sin` are (at least seq, d_head/2), or None without rotation.
    """
    batch, length, width = qkv.shape
    d_head = width // (3 * num_heads)
    qkv = qkv.contiguous()
    out = qkv.new_empty(batch, length, num_heads * d_head)
    lse = qkv.new_empty(batch, num_heads, length, dtype=torch.float32)
    blocks, _ = BLOCKS[d_head]
    _forward[(triton.cdiv(length, blocks.queries) * batch * num_heads,)](
        qkv, cos, sin, out, lse, length, num_heads, LOG2E / math.sqrt(d_head),
        ROTATE=cos is not None, D=d_head, BLOCK_Q=blocks.queries, BLOCK_K=blocks.keys,
        PRECISION=_precision(qkv), num_warps=blocks.num_warps, num_stages=1,
    )  # fmt: skip
    return out, lse


@torch.library.custom_op(
    "bytewright::rotary_attention_backward",
    mutates_args=(),
    schema="(Tensor dout, Tensor qkv, Tensor? cos, Tensor? sin, Tensor out, Tensor lse, SymInt num_heads)"
    " -> Tensor",
)
def rotary_attention_backward(
    dout: Tensor,
    qkv: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    out: Tensor,
    lse: Tensor,
    num_heads: int,
) -> Tensor:
    """Return the gradient of the joined projection."""
    batch, length, width = qkv.shape
    d_head = width // (3 * num_heads)
    qkv, dout = qkv.contiguous(), dout.contiguous()
    dqkv = torch.empty_like(qkv)
    dq_sums = qkv.new_empty(batch, num_heads, length, d_head, dtype=torch.float32)
    _, blocks = BLOCKS[d_head]
    _backward[(batch * num_heads,)](
        qkv, cos, sin, out, lse, dout, dqkv, dq_sums, length, num_heads,
        LOG2E / math.sqrt(d_head), 1 / math.sqrt(d_head),
        ROTATE=cos is not None, D=d_head, BLOCK_Q=blocks.queries, BLOCK_K=blocks.keys,
        PRECISION=_precision(qkv), num_warps=blocks.num_warps, num_stages=1,
    )  # fmt: skip
    return dqkv


@rotary_attention.register_fake
def _(qkv: Tensor, cos: Tensor | None, sin: Tensor | None, num_heads: int) -> tuple[Tensor, Tensor]:
    batch, length, width = qkv.shape
    return (
        qkv.new_empty(batch, length, width // 3),
        qkv.new_empty(batch, num_heads, length, dtype=torch.float32),
    )


@rotary_attention_backward.register_fake
def _(
    dout: Tensor,
    qkv: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    out: Tensor,
    lse: Tensor,
    num_heads: int,
) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, cos, sin, ctx.num_heads = inputs
    ctx.save_for_backward(qkv, cos, sin, *output)


def _differentiate(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    qkv, cos, sin, out, lse = ctx.saved_tensors
    return rotary_attention_backward(dout, qkv, cos, sin, out, lse, ctx.num_heads), None, None, None


rotary_attention.register_autograd(_differentiate, setup_context=_save)


def _precision(x: Tensor) -> str:
    """Return the precision of products: exact for float32, which only tests use."""
    return "ieee" if x.dtype == torch.float32 else "tf32"
