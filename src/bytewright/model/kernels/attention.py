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
def _load_rotated(
    base, rows, stride, num_rows, gains, eps, cos, sin,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Load rows of q or k, normalised and rotated.

    A pair (x₁, x₂) becomes (x₁ cos - x₂ sin, x₂ cos + x₁ sin).
    """
    x = _load_rows(base, rows, stride, num_rows, D)
    if NORM or ROTATE:
        HALF: tl.constexpr = D // 2
        dtype = x.dtype
        columns = tl.arange(0, D)
        partners = (columns + HALF) % D
        mask = rows[:, None] < num_rows
        if NORM:
            x = x.to(tl.float32)
            inverse_rms = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
            x = x * inverse_rms * tl.load(gains + columns)[None, :]
        if ROTATE:
            partner = tl.load(base + rows[:, None] * stride + partners[None, :], mask=mask, other=0.0)
            if NORM:
                partner = partner.to(tl.float32) * inverse_rms * tl.load(gains + partners)[None, :]
            at_angle = rows[:, None] * HALF + (columns % HALF)[None, :]
            c = tl.load(cos + at_angle, mask=mask, other=0.0)
            s = tl.load(sin + at_angle, mask=mask, other=0.0)
            x = x * c + partner * tl.where(columns[None, :] < HALF, -s, s)
        x = x.to(dtype)
    return x


@triton.jit
def _split_halves(x, D: tl.constexpr):
    return tl.split(tl.permute(tl.reshape(x, [x.shape[0], 2, D // 2]), (0, 2, 1)))


@triton.jit
def _store_unrotated(
    base, rows, stride, num_rows, gains, eps, cos, sin, from_base, x,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Store the gradient of rows before norm and rotation, given that of the rows after them.

    `from_base` holds the rows themselves. Returns the terms of the gradient of the gains, summed over the
    rows, in two halves.
    """
    HALF: tl.constexpr = D // 2
    first_sum, second_sum = tl.zeros([HALF], tl.float32), tl.zeros([HALF], tl.float32)
    if NORM or ROTATE:
        first, second = _split_halves(x, D)
        if ROTATE:
            c = _load_rows(cos, rows, HALF, num_rows, HALF)
            s = _load_rows(sin, rows, HALF, num_rows, HALF)
            first, second = first * c + second * s, second * c - first * s
        if NORM:
            x1 = _load_rows(from_base, rows, stride, num_rows, HALF).to(tl.float32)
            x2 = _load_rows(from_base + HALF, rows, stride, num_rows, HALF).to(tl.float32)
            inverse_rms = tl.rsqrt((tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / D + eps)[:, None]
            x1, x2 = x1 * inverse_rms, x2 * inverse_rms
            # Rows beyond the end have no gradient, and x is 0 there
            first_sum, second_sum = tl.sum(first * x1, 0), tl.sum(second * x2, 0)
            first *= tl.load(gains + tl.arange(0, HALF))[None, :]
            second *= tl.load(gains + HALF + tl.arange(0, HALF))[None, :]
            share = ((tl.sum(first * x1, 1) + tl.sum(second * x2, 1)) / D)[:, None]
            first, second = (first - x1 * share) * inverse_rms, (second - x2 * share) * inverse_rms
        _store_rows(base, rows, stride, num_rows, first, HALF)
        _store_rows(base + HALF, rows, stride, num_rows, second, HALF)
    else:
        _store_rows(base, rows, stride, num_rows, x, D)
    return first_sum, second_sum


@triton.jit
def _forward(
    qkv, gains, cos, sin, out, lse, num_rows, num_heads, kv_heads, scale, eps,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one block of queries of one head over all keys before them, with a running softmax."""
    # One grid axis for both: a second one has at most 65,535 programs, too few for large batches.
    num_blocks = tl.cdiv(num_rows, BLOCK_Q)
    block, pair = tl.program_id(0) % num_blocks, tl.program_id(0) // num_blocks
    head = pair % num_heads
    key_head = num_heads + head // (num_heads // kv_heads)
    start = (pair // num_heads).to(tl.int64) * num_rows
    stride = (num_heads + 2 * kv_heads) * D
    qkv += start * stride
    q_base, k_base = qkv + head * D, qkv + key_head * D
    v_base = k_base + kv_heads * D
    rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    q = _load_rotated(q_base, rows, stride, num_rows, gains + head * D, eps, cos, sin, NORM, ROTATE, D)
    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    sums = tl.zeros([BLOCK_Q, D], tl.float32)
    for first_key in range(0, (block + 1) * BLOCK_Q, BLOCK_K):
        keys = first_key + tl.arange(0, BLOCK_K)
        k = _load_rotated(
            k_base, keys, stride, num_rows, gains + key_head * D, eps, cos, sin, NORM, ROTATE, D
        )
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
    qkv, gains, cos, sin, out, lse, dout, dqkv, dgains, dq_sums, num_rows, num_heads, kv_heads, scale_log2,
    scale, eps,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute all gradients of one key head of one sequence and of the query heads that use it.

    BLOCK_K must be a multiple of BLOCK_Q. `dgains` has a row for each head of q and k of each sequence.
    """
    pair = tl.program_id(0)
    kv_head, sequence = pair % kv_heads, pair // kv_heads
    all_heads = num_heads + 2 * kv_heads
    start = sequence.to(tl.int64) * num_rows
    stride, out_stride = all_heads * D, num_heads * D
    key_head = num_heads + kv_head
    qkv += start * stride
    dqkv += start * stride
    dgains += sequence.to(tl.int64) * (num_heads + kv_heads) * D
    k_base, dk_base = qkv + key_head * D, dqkv + key_head * D
    v_base, dv_base = k_base + kv_heads * D, dk_base + kv_heads * D
    HALF: tl.constexpr = D // 2
    halves = tl.arange(0, HALF)
    k_sum1, k_sum2 = tl.zeros([HALF], tl.float32), tl.zeros([HALF], tl.float32)
    for first_key in range(0, num_rows, BLOCK_K):
        keys = first_key + tl.arange(0, BLOCK_K)
        k = _load_rotated(
            k_base, keys, stride, num_rows, gains + key_head * D, eps, cos, sin, NORM, ROTATE, D
        )
        v = _load_rows(v_base, keys, stride, num_rows, D)
        dk = tl.zeros([BLOCK_K, D], tl.float32)
        dv = tl.zeros([BLOCK_K, D], tl.float32)
        for member in range(GROUP):
            head = kv_head * GROUP + member
            q_base, dq_base = qkv + head * D, dqkv + head * D
            row_pair = sequence.to(tl.int64) * num_heads + head
            q_sum1, q_sum2 = tl.zeros([HALF], tl.float32), tl.zeros([HALF], tl.float32)
            for first_row in range(first_key, num_rows, BLOCK_Q):
                rows = first_row + tl.arange(0, BLOCK_Q)
                q = _load_rotated(
                    q_base, rows, stride, num_rows, gains + head * D, eps, cos, sin, NORM, ROTATE, D
                )
                upstream = _load_rows(dout + start * out_stride + head * D, rows, out_stride, num_rows, D)
                attended = _load_rows(out + start * out_stride + head * D, rows, out_stride, num_rows, D)
                delta = tl.sum(upstream.to(tl.float32) * attended.to(tl.float32), 1)
                row_lse = tl.load(lse + row_pair * num_rows + rows, mask=rows < num_rows, other=float("inf"))
                scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale_log2
                p = tl.exp2(scores - row_lse[None, :])
                p = tl.where(rows[None, :] >= keys[:, None], p, 0.0)
                dp = tl.dot(v, tl.trans(upstream), input_precision=PRECISION)
                ds = (p * (dp - delta[None, :])).to(q.dtype)
                dv = tl.dot(p.to(q.dtype), upstream, dv, input_precision=PRECISION)
                dk = tl.dot(ds, q, dk, input_precision=PRECISION)
                dq = tl.dot(tl.trans(ds), k, input_precision=PRECISION)
                sums = dq_sums + row_pair * num_rows * D
                if first_key > 0:
                    dq += _load_rows(sums, rows, D, num_rows, D)
                if first_row < first_key + BLOCK_K:  # later keys are masked for these queries
                    terms1, terms2 = _store_unrotated(
                        dq_base, rows, stride, num_rows, gains + head * D, eps, cos, sin, q_base, dq * scale,
                        NORM, ROTATE, D,
                    )  # fmt: skip
                    if NORM:
                        q_sum1 += terms1
                        q_sum2 += terms2
                else:
                    _store_rows(sums, rows, D, num_rows, dq, D)
            if NORM:
                at_gain = dgains + head * D + halves
                if first_key > 0:
                    q_sum1 += tl.load(at_gain)
                    q_sum2 += tl.load(at_gain + HALF)
                    tl.debug_barrier()
                tl.store(at_gain, q_sum1)
                tl.store(at_gain + HALF, q_sum2)
        tl.debug_barrier()  # the sums are read again, possibly by other threads of this program
        terms1, terms2 = _store_unrotated(
            dk_base, keys, stride, num_rows, gains + key_head * D, eps, cos, sin, k_base, dk * scale,
            NORM, ROTATE, D,
        )  # fmt: skip
        if NORM:
            k_sum1 += terms1
            k_sum2 += terms2
        _store_rows(dv_base, keys, stride, num_rows, dv, D)
    if NORM:
        tl.store(dgains + key_head * D + halves, k_sum1)
        tl.store(dgains + key_head * D + HALF + halves, k_sum2)


@torch.library.custom_op(
    "bytewright::rotary_attention",
    mutates_args=(),
    schema="(Tensor qkv, Tensor? cos, Tensor? sin, SymInt num_heads, SymInt kv_heads, Tensor? gains=None,"
    " float eps=0.0) -> (Tensor, Tensor)",
)
def rotary_attention(
    qkv: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    num_heads: int,
    kv_heads: int,
    gains: Tensor | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return causal attention of the joined projection (batch, seq, (heads + 2·kv_heads)·d_head).

    q and k are in halves. Returns the result, (batch, seq, heads·d_head), and the base-2 logarithm of each
    row's normaliser for the gradient. `cos` and `sin` are (at least seq, d_head/2), or None without rotation.
    `gains` are those of the norms of q and k, (heads + kv_heads, d_head), or None.
    """
    batch, length, width = qkv.shape
    d_head = width // (num_heads + 2 * kv_heads)
    qkv = qkv.contiguous()
    out = qkv.new_empty(batch, length, num_heads * d_head)
    lse = qkv.new_empty(batch, num_heads, length, dtype=torch.float32)
    blocks, _ = BLOCKS[d_head]
    _forward[(triton.cdiv(length, blocks.queries) * batch * num_heads,)](
        qkv, qkv if gains is None else gains, cos, sin, out, lse, length, num_heads, kv_heads,
        LOG2E / math.sqrt(d_head), eps,
        NORM=gains is not None, ROTATE=cos is not None, D=d_head, BLOCK_Q=blocks.queries,
        BLOCK_K=blocks.keys, PRECISION=_precision(qkv), num_warps=blocks.num_warps, num_stages=1,
    )  # fmt: skip
    return out, lse


@torch.library.custom_op(
    "bytewright::rotary_attention_backward",
    mutates_args=(),
    schema="(Tensor dout, Tensor qkv, Tensor? cos, Tensor? sin, Tensor? gains, Tensor out, Tensor lse,"
    " SymInt num_heads, SymInt kv_heads, float eps) -> (Tensor, Tensor)",
)
def rotary_attention_backward(
    dout: Tensor,
    qkv: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    gains: Tensor | None,
    out: Tensor,
    lse: Tensor,
    num_heads: int,
    kv_heads: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the joined projection, and that of the gains (empty without a norm)."""
    batch, length, width = qkv.shape
    d_head = width // (num_heads + 2 * kv_heads)
    qkv, dout = qkv.contiguous(), dout.contiguous()
    dqkv = torch.empty_like(qkv)
    dq_sums = qkv.new_empty(batch, num_heads, length, d_head, dtype=torch.float32)
    sequences = 0 if gains is None else batch
    dgains = qkv.new_empty(sequences, num_heads + kv_heads, d_head, dtype=torch.float32)
    _, blocks = BLOCKS[d_head]
    _backward[(batch * kv_heads,)](
        qkv, qkv if gains is None else gains, cos, sin, out, lse, dout, dqkv, dgains, dq_sums,
        length, num_heads, kv_heads, LOG2E / math.sqrt(d_head), 1 / math.sqrt(d_head), eps,
        NORM=gains is not None, ROTATE=cos is not None, D=d_head, BLOCK_Q=blocks.queries,
        BLOCK_K=blocks.keys, PRECISION=_precision(qkv), GROUP=num_heads // kv_heads,
        num_warps=blocks.num_warps, num_stages=1,
    )  # fmt: skip
    return dqkv, dgains.sum(0)


@rotary_attention.register_fake
def _(
    qkv: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    num_heads: int,
    kv_heads: int,
    gains: Tensor | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor]:
    batch, length, width = qkv.shape
    return (
        qkv.new_empty(batch, length, width // (num_heads + 2 * kv_heads) * num_heads),
        qkv.new_empty(batch, num_heads, length, dtype=torch.float32),
    )


@rotary_attention_backward.register_fake
def _(
    dout: Tensor,
    qkv: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    gains: Tensor | None,
    out: Tensor,
    lse: Tensor,
    num_heads: int,
    kv_heads: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    d_head = qkv.shape[-1] // (num_heads + 2 * kv_heads)
    return (
        qkv.new_empty(qkv.shape),
        qkv.new_empty(num_heads + kv_heads, d_head, dtype=torch.float32),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, cos, sin, ctx.num_heads, ctx.kv_heads, gains, ctx.eps = inputs
    ctx.save_for_backward(qkv, cos, sin, gains, *output)


def _differentiate(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    qkv, cos, sin, gains, out, lse = ctx.saved_tensors
    dqkv, dgains = rotary_attention_backward(
        dout, qkv, cos, sin, gains, out, lse, ctx.num_heads, ctx.kv_heads, ctx.eps
    )
    return dqkv, None, None, None, None, None if gains is None else dgains, None


rotary_attention.register_autograd(_differentiate, setup_context=_save)


def _precision(x: Tensor) -> str:
    """Return the precision of products: exact for float32, which only tests use."""
    return "ieee" if x.dtype == torch.float32 else "tf32"
