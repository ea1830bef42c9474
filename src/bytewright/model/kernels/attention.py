"""Causal attention with the rotary embedding, from the joined q, k, v projection to the attention result.

torch's kernels require rotated q, k and v, each in its own layout. With small heads and short contexts,
rotating them and their gradients costs more than the attention itself. This kernel reads q, k and v from the
projection, and normalises and rotates them while loading. The backward pass stores the gradients in the
layout of the projection, before norm and rotation. Rows of q and k are in halves (`fused.halves_from_pairs`),
so a column and its partner are half a head apart.

Scores are not written to memory. In the backward pass one program computes a key head with all query heads
that use it. It loops over blocks of keys and sums their gradients in registers. The gradients of the queries
are summed in a float32 buffer that no other program uses, so atomics are not needed. There, scores have keys
as rows: two of the three products that follow use them without a transposition.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


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

The fastest of the tested sizes on an H200, at 256 and 512 tokens. Registers limit them: with 168 per thread,
three programs of the forward pass for heads of 32 fit on a multiprocessor; with 174, only two.
"""

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
def _store_gradient(
    base, from_base, rows, stride, num_rows, gains, eps, cos, sin, first, second,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Store the gradient of rows before norm and rotation, given the halves of that after them.

    `from_base` holds the rows themselves. Returns the terms of the gradient of the gains, in two halves.
    """
    HALF: tl.constexpr = D // 2
    terms1, terms2 = first, second
    if ROTATE:
        c = _load_rows(cos, rows, HALF, num_rows, HALF)
        s = _load_rows(sin, rows, HALF, num_rows, HALF)
        first, second = first * c + second * s, second * c - first * s
    if NORM:
        x1 = _load_rows(from_base, rows, stride, num_rows, HALF).to(tl.float32)
        x2 = _load_rows(from_base + HALF, rows, stride, num_rows, HALF).to(tl.float32)
        inverse_rms = tl.rsqrt(tl.sum(x1 * x1 + x2 * x2, 1) / D + eps)[:, None]
        x1, x2 = x1 * inverse_rms, x2 * inverse_rms
        terms1, terms2 = first * x1, second * x2  # 0 in rows beyond the end
        first *= tl.load(gains + tl.arange(0, HALF))[None, :]
        second *= tl.load(gains + HALF + tl.arange(0, HALF))[None, :]
        share = (tl.sum(first * x1 + second * x2, 1) / D)[:, None]
        first, second = (first - x1 * share) * inverse_rms, (second - x2 * share) * inverse_rms
    _store_rows(base, rows, stride, num_rows, first, HALF)
    _store_rows(base + HALF, rows, stride, num_rows, second, HALF)
    return terms1, terms2


@triton.jit
def _forward(
    qkv, gains, cos, sin, out, lse, num_rows, num_heads, scale, eps,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one block of queries of one head over all keys before them, with a running softmax."""
    # One grid axis for both: a second one has at most 65,535 programs, too few for large batches.
    num_blocks = tl.cdiv(num_rows, BLOCK_Q)
    block, pair = tl.program_id(0) % num_blocks, tl.program_id(0) // num_blocks
    head, kv_heads = pair % num_heads, num_heads // GROUP
    key_head = num_heads + head // GROUP
    start = (pair // num_heads).to(tl.int64) * num_rows
    stride = (num_heads + 2 * kv_heads) * D
    q_base, k_base = qkv + start * stride + head * D, qkv + start * stride + key_head * D
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
    qkv, gains, cos, sin, out, lse, dout, dqkv, dgains, dq_sums, num_rows, num_heads, scale_log2, scale, eps,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute all gradients of one key head of one sequence and of the query heads that use it.

    BLOCK_K must be a multiple of BLOCK_Q. `dgains` has a row for each head of q and k of each sequence. With
    norms, the gradients of the queries are finished after the loop: inside it, registers are scarce.
    """
    HALF: tl.constexpr = D // 2
    halves = tl.arange(0, HALF)
    pair, kv_heads = tl.program_id(0), num_heads // GROUP
    kv_head, sequence = pair % kv_heads, pair // kv_heads
    start = sequence.to(tl.int64) * num_rows
    stride, out_stride = (num_heads + 2 * kv_heads) * D, num_heads * D
    first_head = kv_head * GROUP
    qkv += start * stride + first_head * D
    dqkv += start * stride + first_head * D
    gains += first_head * D
    dgains += (sequence.to(tl.int64) * (num_heads + kv_heads) + first_head) * D
    to_key = (num_heads if GROUP == 1 else num_heads + kv_head - first_head) * D
    k_base, dk_base = qkv + to_key, dqkv + to_key
    v_base, dv_base = k_base + kv_heads * D, dk_base + kv_heads * D
    out += start * out_stride + first_head * D
    dout += start * out_stride + first_head * D
    lse += (start * num_heads) + first_head * num_rows
    dq_sums += ((start * num_heads) + first_head * num_rows) * D
    k_sum1, k_sum2 = tl.zeros([HALF], tl.float32), tl.zeros([HALF], tl.float32)
    for first_key in range(0, num_rows, BLOCK_K):
        keys = first_key + tl.arange(0, BLOCK_K)
        k = _load_rotated(k_base, keys, stride, num_rows, gains + to_key, eps, cos, sin, NORM, ROTATE, D)
        v = _load_rows(v_base, keys, stride, num_rows, D)
        dk = tl.zeros([BLOCK_K, D], tl.float32)
        dv = tl.zeros([BLOCK_K, D], tl.float32)
        for member in range(GROUP):
            at_q = member * D
            sums = dq_sums + member * num_rows * D
            for first_row in range(first_key, num_rows, BLOCK_Q):
                rows = first_row + tl.arange(0, BLOCK_Q)
                q = _load_rotated(
                    qkv + at_q, rows, stride, num_rows, gains + at_q, eps, cos, sin, NORM, ROTATE, D
                )
                upstream = _load_rows(dout + member * D, rows, out_stride, num_rows, D)
                attended = _load_rows(out + member * D, rows, out_stride, num_rows, D)
                delta = tl.sum(upstream.to(tl.float32) * attended.to(tl.float32), 1)
                row_lse = tl.load(lse + member * num_rows + rows, mask=rows < num_rows, other=float("inf"))
                scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale_log2
                p = tl.exp2(scores - row_lse[None, :])
                p = tl.where(rows[None, :] >= keys[:, None], p, 0.0)
                dp = tl.dot(v, tl.trans(upstream), input_precision=PRECISION)
                ds = (p * (dp - delta[None, :])).to(q.dtype)
                dv = tl.dot(p.to(q.dtype), upstream, dv, input_precision=PRECISION)
                dk = tl.dot(ds, q, dk, input_precision=PRECISION)
                dq = tl.dot(tl.trans(ds), k, input_precision=PRECISION)
                if first_key > 0:
                    dq += _load_rows(sums, rows, D, num_rows, D)
                if first_row < first_key + BLOCK_K and not NORM:  # later keys are masked for these queries
                    first, second = _split_halves(dq * scale, D)
                    _store_gradient(
                        dqkv + at_q, qkv + at_q, rows, stride, num_rows, gains, eps, cos, sin, first, second,
                        False, ROTATE, D,
                    )  # fmt: skip
                else:
                    _store_rows(sums, rows, D, num_rows, dq, D)
        tl.debug_barrier()  # the sums are read again, possibly by other threads of this program
        first, second = _split_halves(dk * scale, D)
        terms1, terms2 = _store_gradient(
            dk_base, k_base, keys, stride, num_rows, gains + to_key, eps, cos, sin, first, second,
            NORM, ROTATE, D,
        )  # fmt: skip
        if NORM:
            k_sum1 += tl.sum(terms1, 0)
            k_sum2 += tl.sum(terms2, 0)
        _store_rows(dv_base, keys, stride, num_rows, dv, D)
    if NORM:
        tl.store(dgains + to_key + halves, k_sum1)
        tl.store(dgains + to_key + HALF + halves, k_sum2)
        for member in range(GROUP):
            at_q = member * D
            sums = dq_sums + member * num_rows * D
            q_sum1, q_sum2 = tl.zeros([BLOCK_Q, HALF], tl.float32), tl.zeros([BLOCK_Q, HALF], tl.float32)
            for first_row in range(0, num_rows, BLOCK_Q):
                rows = first_row + tl.arange(0, BLOCK_Q)
                first = _load_rows(sums, rows, D, num_rows, HALF) * scale
                second = _load_rows(sums + HALF, rows, D, num_rows, HALF) * scale
                terms1, terms2 = _store_gradient(
                    dqkv + at_q, qkv + at_q, rows, stride, num_rows, gains + at_q, eps, cos, sin, first,
                    second, NORM, ROTATE, D,
                )  # fmt: skip
                q_sum1 += terms1
                q_sum2 += terms2
            tl.store(dgains + at_q + halves, tl.sum(q_sum1, 0))
            tl.store(dgains + at_q + HALF + halves, tl.sum(q_sum2, 0))


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
        qkv, qkv if gains is None else gains, cos, sin, out, lse, length, num_heads,
        LOG2E / math.sqrt(d_head), eps,
        NORM=gains is not None, ROTATE=cos is not None, D=d_head, GROUP=num_heads // kv_heads,
        BLOCK_Q=blocks.queries, BLOCK_K=blocks.keys, PRECISION=_precision(qkv), num_warps=blocks.num_warps,
        num_stages=1,
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
    if gains is not None:  # smaller blocks: the norms need registers
        blocks = blocks._replace(queries=max(16, blocks.queries // 2))
    _backward[(batch * kv_heads,)](
        qkv, qkv if gains is None else gains, cos, sin, out, lse, dout, dqkv, dgains, dq_sums,
        length, num_heads, LOG2E / math.sqrt(d_head), 1 / math.sqrt(d_head), eps,
        NORM=gains is not None, ROTATE=cos is not None, D=d_head, GROUP=num_heads // kv_heads,
        BLOCK_Q=blocks.queries, BLOCK_K=blocks.keys, PRECISION=_precision(qkv), num_warps=blocks.num_warps,
        num_stages=1,
    )  # fmt: skip
    return dqkv, dgains.sum(0)


@rotary_attention.register_fake
def _(qkv, cos, sin, num_heads, kv_heads, gains=None, eps=0.0):
    batch, length, width = qkv.shape
    return (
        qkv.new_empty(batch, length, width // (num_heads + 2 * kv_heads) * num_heads),
        qkv.new_empty(batch, num_heads, length, dtype=torch.float32),
    )


@rotary_attention_backward.register_fake
def _(dout, qkv, cos, sin, gains, out, lse, num_heads, kv_heads, eps):
    d_head = qkv.shape[-1] // (num_heads + 2 * kv_heads)
    return qkv.new_empty(qkv.shape), qkv.new_empty(num_heads + kv_heads, d_head, dtype=torch.float32)


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
