"""Triton kernels of decoding one token: its attention, and a norm with gains in float32.

`attend_and_store` starts from the joined projection of the newest token of every sequence. In one launch it
normalises and rotates q and k, writes the new key and value into the cache, and computes a running softmax
over the slots in use. `generate.decoder` computes the same with tensor operations on other devices.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Slots of the cache that a program processes at a time."""

LOG2E = math.log2(math.e)


@triton.jit
def _load_head(
    base, gains, cos, sin, position, eps, NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr
):
    """Load one head of q or k, normalised and rotated."""
    columns = tl.arange(0, D)
    partners = (columns + D // 2) % D
    x = tl.load(base + columns).to(tl.float32)
    partner = tl.load(base + partners).to(tl.float32)
    if NORM:
        inverse_rms = tl.rsqrt(tl.sum(x * x, 0) / D + eps)
        x = x * inverse_rms * tl.load(gains + columns).to(tl.float32)
        partner = partner * inverse_rms * tl.load(gains + partners).to(tl.float32)
    if ROTATE:
        c, s = tl.load(cos + position * D + columns), tl.load(sin + position * D + columns)
        x = x * c + partner * s
    return x


@triton.jit
def _attend(
    qkv, gains, cos, sin, keys, values, positions, out, num_heads, kv_heads, capacity, scale, eps,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the key and value of one head of one sequence, and compute its attention."""
    row, head = tl.program_id(0), tl.program_id(1)
    group = num_heads // kv_heads
    kv_head = head // group
    columns = tl.arange(0, D)
    position = tl.load(positions + row)
    qkv += row.to(tl.int64) * (num_heads + 2 * kv_heads) * D
    at_k = num_heads + kv_head
    q = _load_head(qkv + head * D, gains + head * D, cos, sin, position, eps, NORM, ROTATE, D)
    k = _load_head(qkv + at_k * D, gains + at_k * D, cos, sin, position, eps, NORM, ROTATE, D)
    k = k.to(keys.dtype.element_ty)
    v = tl.load(qkv + (at_k + kv_heads) * D + columns)
    slots = (row.to(tl.int64) * kv_heads + kv_head) * capacity
    keys += slots * D
    values += slots * D
    if head % group == 0:
        tl.store(keys + position * D + columns, k)
        tl.store(values + position * D + columns, v)
    q = q.to(keys.dtype.element_ty).to(tl.float32) * scale
    largest = tl.sum(q * k.to(tl.float32), 0)  # the new token itself, from registers
    total = tl.full([], 1.0, tl.float32)
    sums = v.to(tl.float32)
    for first in range(0, position, BLOCK):
        places = first + tl.arange(0, BLOCK)
        mask = places < position
        at = places[:, None] * D + columns[None, :]
        k_block = tl.load(keys + at, mask=mask[:, None], other=0.0).to(tl.float32)
        v_block = tl.load(values + at, mask=mask[:, None], other=0.0).to(tl.float32)
        scores = tl.where(mask, tl.sum(k_block * q[None, :], 1), float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 0))
        shrink = tl.exp2(largest - new_largest)
        p = tl.exp2(scores - new_largest)
        total = total * shrink + tl.sum(p, 0)
        sums = sums * shrink + tl.sum(p[:, None] * v_block, 0)
        largest = new_largest
    out += (row.to(tl.int64) * num_heads + head) * D
    tl.store(out + columns, (sums / total).to(out.dtype.element_ty))


@triton.jit
def _rms_norm(x, gains, out, d_model, eps, BLOCK: tl.constexpr):
    """Normalise one row in float32, and round it only when it is stored."""
    columns = tl.arange(0, BLOCK)
    mask = columns < d_model
    at = tl.program_id(0).to(tl.int64) * d_model + columns
    row = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    inverse_rms = tl.rsqrt(tl.sum(row * row, 0) / d_model + eps)
    row = row * inverse_rms * tl.load(gains + columns, mask=mask, other=0.0)
    tl.store(out + at, row.to(out.dtype.element_ty), mask=mask)


def rms_norm_rows(x: Tensor, gains: Tensor, *, eps: float) -> Tensor:
    """Return `model.layers.rms_norm` of the contiguous rows of `x`, with gains in float32.

    torch's fused norm requires gains of the type of `x`.
    """
    out = torch.empty_like(x)
    num_rows, d_model = x.shape
    _rms_norm[(num_rows,)](x, gains, out, d_model, eps, BLOCK=triton.next_power_of_2(d_model), num_warps=4)
    return out


def attend_and_store(
    qkv: Tensor,
    gains: Tensor | None,
    angles: tuple[Tensor, Tensor] | None,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    *,
    eps: float,
) -> Tensor:
    """Write one new token of every sequence into the cache, and return its attention.

    `qkv` is (batch, (heads + 2·kv_heads)·d_head); `angles` are cos and sin, (positions, d_head), the latter
    negative in the first half; `keys` and `values` are (batch, kv_heads, capacity, d_head).
    """
    batch_size, kv_heads, capacity, d_head = keys.shape
    num_heads = qkv.shape[-1] // d_head - 2 * kv_heads
    cos, sin = (qkv, qkv) if angles is None else angles
    out = torch.empty(batch_size, num_heads * d_head, device=qkv.device, dtype=qkv.dtype)
    _attend[(batch_size, num_heads)](
        qkv, qkv if gains is None else gains, cos, sin, keys, values, positions, out,
        num_heads, kv_heads, capacity, LOG2E / math.sqrt(d_head), eps,
        NORM=gains is not None, ROTATE=angles is not None, D=d_head, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return out
