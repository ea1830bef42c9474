"""Norm and rotation of q and k between the joined projection and torch's attention, in one pass each way.

The forward pass reads q and k from the projection and writes them normalised and rotated. The backward pass
reads the gradients of q, k and v and writes the gradient of the joined projection. So no other pass joins
them. Rows of q and k are in halves (`fused.halves_from_pairs`). The gains are one row per head; their
gradient is summed in a fixed order: each program sums its tokens, and torch adds the sums of all programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

TOKENS, HEADS = 4, 8
"""Tokens and heads of a block."""

NORM_TOKENS, NORM_HEADS = 8, 4
"""The same in the backward pass of norms, which writes a sum of the gradients of the gains for each block."""


@triton.jit
def _forward(
    qkv, gains, cos, sin, out, num_tokens, length, num_rotated, width, eps,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Normalise and rotate a block of heads of q and k."""
    HALF: tl.constexpr = D // 2
    rows, columns = tl.arange(0, TOKENS * HEADS), tl.arange(0, HALF)
    token, head = tl.program_id(0) * TOKENS + rows // HEADS, tl.program_id(1) * HEADS + rows % HEADS
    mask = ((token < num_tokens) & (head < num_rotated))[:, None] & (columns < HALF)[None, :]
    place = qkv + token.to(tl.int64)[:, None] * width + head[:, None] * D + columns[None, :]
    first = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        inverse_rms = tl.rsqrt(tl.sum(first * first + second * second, 1) / D + eps)[:, None]
        at_gain = gains + head[:, None] * D + columns[None, :]
        first *= inverse_rms * tl.load(at_gain, mask=mask, other=0.0).to(tl.float32)
        second *= inverse_rms * tl.load(at_gain + HALF, mask=mask, other=0.0).to(tl.float32)
    if ROTATE:
        at_angle = (token % length)[:, None] * HALF + columns[None, :]
        c, s = tl.load(cos + at_angle, mask=mask, other=0.0), tl.load(sin + at_angle, mask=mask, other=0.0)
        first, second = first * c - second * s, second * c + first * s
    place = out + (token.to(tl.int64)[:, None] * num_rotated + head[:, None]) * D + columns[None, :]
    tl.store(place, first.to(out.dtype.element_ty), mask=mask)
    tl.store(place + HALF, second.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _load_gradient(base, batch, row, head, batch_stride, row_stride, head_stride, columns, mask):
    place = batch.to(tl.int64) * batch_stride + row.to(tl.int64) * row_stride + head * head_stride
    return tl.load(base + place[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _backward(
    dq, dk, dv, qkv, gains, cos, sin, dqkv, dgains,
    num_tokens, length, num_heads, num_rotated, all_heads, eps,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the projection for a block of heads, and sum that of their gains."""
    HALF: tl.constexpr = D // 2
    rows, columns = tl.arange(0, TOKENS * HEADS), tl.arange(0, HALF)
    token, head = tl.program_id(0) * TOKENS + rows // HEADS, tl.program_id(1) * HEADS + rows % HEADS
    batch, row = token // length, token % length
    exists = token < num_tokens
    inside = (columns < HALF)[None, :]
    is_q = (exists & (head < num_heads))[:, None] & inside
    is_k = (exists & (head >= num_heads) & (head < num_rotated))[:, None] & inside
    is_v = (exists & (head >= num_rotated) & (head < all_heads))[:, None] & inside
    first = _load_gradient(dq, batch, row, head, q_batch, q_row, q_head, columns, is_q)
    second = _load_gradient(dq, batch, row, head, q_batch, q_row, q_head, columns + HALF, is_q)
    k = head - num_heads
    first += _load_gradient(dk, batch, row, k, k_batch, k_row, k_head, columns, is_k)
    second += _load_gradient(dk, batch, row, k, k_batch, k_row, k_head, columns + HALF, is_k)
    is_rotated = is_q | is_k
    if ROTATE:
        at_angle = row[:, None] * HALF + columns[None, :]
        c = tl.load(cos + at_angle, mask=is_rotated, other=0.0)
        s = tl.load(sin + at_angle, mask=is_rotated, other=0.0)
        first, second = first * c + second * s, second * c - first * s
    place = (token.to(tl.int64) * all_heads + head)[:, None] * D + columns[None, :]
    if NORM:
        x1 = tl.load(qkv + place, mask=is_rotated, other=0.0).to(tl.float32)
        x2 = tl.load(qkv + place + HALF, mask=is_rotated, other=0.0).to(tl.float32)
        inverse_rms = tl.rsqrt(tl.sum(x1 * x1 + x2 * x2, 1) / D + eps)[:, None]
        x1, x2 = x1 * inverse_rms, x2 * inverse_rms
        normed_head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        at_sum = (tl.program_id(0) * num_rotated + normed_head)[:, None] * D + columns[None, :]
        is_normed = (normed_head < num_rotated)[:, None] & inside
        tl.store(dgains + at_sum, tl.sum(tl.reshape(first * x1, [TOKENS, HEADS, HALF]), 0), mask=is_normed)
        at_sum += HALF
        tl.store(dgains + at_sum, tl.sum(tl.reshape(second * x2, [TOKENS, HEADS, HALF]), 0), mask=is_normed)
        at_gain = gains + head[:, None] * D + columns[None, :]
        first *= tl.load(at_gain, mask=is_rotated, other=0.0).to(tl.float32)
        second *= tl.load(at_gain + HALF, mask=is_rotated, other=0.0).to(tl.float32)
        share = (tl.sum(first * x1 + second * x2, 1) / D)[:, None]
        first, second = (first - x1 * share) * inverse_rms, (second - x2 * share) * inverse_rms
    v = head - num_rotated
    first += _load_gradient(dv, batch, row, v, v_batch, v_row, v_head, columns, is_v)
    second += _load_gradient(dv, batch, row, v, v_batch, v_row, v_head, columns + HALF, is_v)
    tl.store(dqkv + place, first.to(dqkv.dtype.element_ty), mask=is_rotated | is_v)
    tl.store(dqkv + place + HALF, second.to(dqkv.dtype.element_ty), mask=is_rotated | is_v)


@torch.library.custom_op(
    "bytewright::rotate_heads",
    mutates_args=(),
    schema="(Tensor qkv, Tensor? gains, Tensor? cos, Tensor? sin, SymInt num_rotated, SymInt d_head,"
    " float eps) -> Tensor",
)
def rotate_heads(
    qkv: Tensor,
    gains: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    num_rotated: int,
    d_head: int,
    eps: float,
) -> Tensor:
    """Return q and k of the joined projection (batch, seq, width): (batch, seq, num_rotated, d_head)."""
    batch, length, width = qkv.shape
    qkv = qkv.contiguous()
    out = qkv.new_empty(batch, length, num_rotated, d_head)
    grid = (triton.cdiv(batch * length, TOKENS), triton.cdiv(num_rotated, HEADS))
    _forward[grid](
        qkv, gains, cos, sin, out, batch * length, length, num_rotated, width, eps,
        NORM=gains is not None, ROTATE=cos is not None, D=d_head, TOKENS=TOKENS, HEADS=HEADS, num_warps=4,
    )  # fmt: skip
    return out


@torch.library.custom_op(
    "bytewright::rotate_heads_backward",
    mutates_args=(),
    schema="(Tensor dq, Tensor dk, Tensor dv, Tensor? qkv, Tensor? gains, Tensor? cos, Tensor? sin,"
    " float eps) -> (Tensor, Tensor)",
)
def rotate_heads_backward(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    qkv: Tensor | None,
    gains: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the joined projection, and that of the gains (empty without a norm).

    `dq`, `dk` and `dv` are (batch, seq, heads, d_head). Only the last dimension must be contiguous.
    """
    dq, dk, dv = (x if x.stride(-1) == 1 else x.contiguous() for x in (dq, dk, dv))
    batch, length, num_heads, d_head = dq.shape
    num_rotated = num_heads + dk.shape[2]
    all_heads = num_rotated + dv.shape[2]
    dqkv = dq.new_empty(batch, length, all_heads * d_head)
    tokens, heads = (TOKENS, HEADS) if gains is None else (NORM_TOKENS, NORM_HEADS)
    num_blocks = triton.cdiv(batch * length, tokens)
    sums = dq.new_empty((0 if gains is None else num_blocks, num_rotated, d_head), dtype=torch.float32)
    _backward[(num_blocks, triton.cdiv(all_heads, heads))](
        dq, dk, dv, qkv, gains, cos, sin, dqkv, sums,
        batch * length, length, num_heads, num_rotated, all_heads, eps,
        *dq.stride()[:3], *dk.stride()[:3], *dv.stride()[:3],
        NORM=gains is not None, ROTATE=cos is not None, D=d_head, TOKENS=tokens, HEADS=heads,
        num_warps=4,
    )  # fmt: skip
    return dqkv, sums.sum(0)


@rotate_heads.register_fake
def _(qkv, gains, cos, sin, num_rotated, d_head, eps):
    return qkv.new_empty(*qkv.shape[:2], num_rotated, d_head)


@rotate_heads_backward.register_fake
def _(dq, dk, dv, qkv, gains, cos, sin, eps):
    batch, length, num_heads, d_head = dq.shape
    num_rotated = num_heads + dk.shape[2]
    width = (num_rotated + dv.shape[2]) * d_head
    return dq.new_empty(batch, length, width), dq.new_empty((num_rotated, d_head), dtype=torch.float32)


class SplitHeads(torch.autograd.Function):
    """q, k and v of a joined projection, (batch, seq, heads, d_head) each; v is a view of the projection."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        gains: Tensor | None,
        cos: Tensor | None,
        sin: Tensor | None,
        num_heads: int,
        d_head: int,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise and rotate q and k."""
        kv_heads = (qkv.shape[-1] // d_head - num_heads) // 2
        qk = rotate_heads(qkv, gains, cos, sin, num_heads + kv_heads, d_head, eps)
        ctx.save_for_backward(None if gains is None else qkv, gains, cos, sin)
        ctx.eps = eps
        v = qkv[..., (num_heads + kv_heads) * d_head :].unflatten(-1, (kv_heads, d_head))
        return qk[:, :, :num_heads], qk[:, :, num_heads:], v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the projection and of the gains."""
        dqkv, dgains = rotate_heads_backward(dq, dk, dv, *ctx.saved_tensors, ctx.eps)
        return dqkv, None if ctx.saved_tensors[1] is None else dgains, None, None, None, None, None
