"""Triton kernels of reading prompts into a key/value cache, as a decoder does before it generates.

`rotate_into_cache` splits the joined projection of whole prompts. It normalises and rotates q and k, and
writes k and v into the cache, where torch's attention reads them. `attend_to_chunks` does the same for short
texts whose tokens are packed one after the other, and also computes their attention.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from bytewright.model.kernels.decoding import LOG2E, load_heads

TOKENS, HEADS = 4, 8
"""Tokens and heads of a program of `rotate_into_cache`."""


@triton.jit
def _rotate_into_cache(
    qkv, gains, cos, sin, out, keys, values, num_tokens, length, num_heads, kv_heads, capacity, eps,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Write a block of heads: those of q to `out`, the others to the cache."""
    HALF: tl.constexpr = D // 2
    rows, columns = tl.arange(0, TOKENS * HEADS), tl.arange(0, HALF)[None, :]
    token, head = tl.program_id(0) * TOKENS + rows // HEADS, tl.program_id(1) * HEADS + rows % HEADS
    num_rotated = num_heads + kv_heads
    exists = (token < num_tokens) & (head < num_rotated + kv_heads)
    is_rotated = (exists & (head < num_rotated))[:, None]
    at = qkv + (token.to(tl.int64) * (num_rotated + kv_heads) + head)[:, None] * D + columns
    first = tl.load(at, mask=exists[:, None], other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=exists[:, None], other=0.0).to(tl.float32)
    if NORM:
        inverse_rms = tl.rsqrt(tl.sum(first * first + second * second, 1) / D + eps)[:, None]
        at_gain = gains + head[:, None] * D + columns
        first_gain = tl.load(at_gain, mask=is_rotated, other=0.0).to(tl.float32)
        second_gain = tl.load(at_gain + HALF, mask=is_rotated, other=0.0).to(tl.float32)
        first = tl.where(is_rotated, first * inverse_rms * first_gain, first)
        second = tl.where(is_rotated, second * inverse_rms * second_gain, second)
    place = token % length
    if ROTATE:
        at_angle = place[:, None] * HALF + columns
        c = tl.load(cos + at_angle, mask=is_rotated, other=1.0)
        s = tl.load(sin + at_angle, mask=is_rotated, other=0.0)
        first, second = first * c - second * s, second * c + first * s
    first, second = first.to(out.dtype.element_ty), second.to(out.dtype.element_ty)
    is_q = (exists & (head < num_heads))[:, None]
    at = out + (token.to(tl.int64) * num_heads + head)[:, None] * D + columns
    tl.store(at, first, mask=is_q)
    tl.store(at + HALF, second, mask=is_q)
    is_k, is_v = is_rotated & (is_q == 0), exists[:, None] & (is_rotated == 0)
    kv_head = (head - num_heads) % kv_heads
    at = (((token // length).to(tl.int64) * kv_heads + kv_head) * capacity + place)[:, None] * D + columns
    tl.store(keys + at, first, mask=is_k)
    tl.store(keys + at + HALF, second, mask=is_k)
    tl.store(values + at, first, mask=is_v)
    tl.store(values + at + HALF, second, mask=is_v)


@triton.jit
def _attend_to_chunk(
    qkv, gains, cos, sin, keys, values, chunks, out, num_heads, kv_heads, capacity, scale, eps,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    """Compute the attention of one query head in one text; the first head of a group stores k and v."""
    head, chunk = tl.program_id(0), tl.program_id(1)
    row = tl.load(chunks + chunk * 3).to(tl.int64)
    first = tl.load(chunks + chunk * 3 + 1)
    length = tl.load(chunks + chunk * 3 + 2)
    kv_head = head // GROUP
    places, columns = tl.arange(0, LENGTH), tl.arange(0, D)[None, :]
    is_token = places < length
    at = qkv + (first + places).to(tl.int64) * (num_heads + 2 * kv_heads) * D
    key_head = num_heads + kv_head
    q = load_heads(
        at + head * D, gains + head * D + places * 0, cos, sin, places, is_token, eps, NORM, ROTATE, D
    ).to(keys.dtype.element_ty)  # fmt: skip
    k = load_heads(
        at + key_head * D, gains + key_head * D + places * 0, cos, sin, places, is_token, eps, NORM, ROTATE, D
    ).to(keys.dtype.element_ty)  # fmt: skip
    at_v = at[:, None] + (key_head + kv_heads) * D + columns
    v = tl.load(at_v, mask=is_token[:, None], other=0.0)
    if head % GROUP == 0:
        at_cache = (row * kv_heads + kv_head) * capacity * D + places[:, None] * D + columns
        tl.store(keys + at_cache, k, mask=is_token[:, None])
        tl.store(values + at_cache, v, mask=is_token[:, None])
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(places[None, :] <= places[:, None], scores, float("-inf"))
    p = tl.exp2(scores - tl.max(scores, 1)[:, None])
    total = tl.sum(p, 1)[:, None]
    attended = tl.dot(p.to(v.dtype), v, input_precision="ieee") / total
    at_out = out + (first + places).to(tl.int64)[:, None] * num_heads * D + head * D + columns
    tl.store(at_out, attended.to(out.dtype.element_ty), mask=is_token[:, None])


def rotate_into_cache(
    qkv: Tensor,
    gains: Tensor | None,
    half_angles: tuple[Tensor | None, Tensor | None],
    keys: Tensor,
    values: Tensor,
    *,
    eps: float,
) -> Tensor:
    """Return q of a joined projection, (batch, seq, heads, d_head), and write k and v into the cache.

    The projection is (batch, seq, width) and begins at position 0 of every sequence. `half_angles` are cos
    and sin, (positions, d_head/2), or None twice without a rotation. `keys` and `values` are (batch,
    kv_heads, capacity, d_head).
    """
    batch_size, length, width = qkv.shape
    _, kv_heads, capacity, d_head = keys.shape
    all_heads = width // d_head
    num_heads = all_heads - 2 * kv_heads
    cos, sin = half_angles
    out = torch.empty(batch_size, length, num_heads, d_head, device=qkv.device, dtype=qkv.dtype)
    grid = triton.cdiv(batch_size * length, TOKENS), triton.cdiv(all_heads, HEADS)
    _rotate_into_cache[grid](
        qkv.contiguous(), gains, cos, sin, out, keys, values, batch_size * length, length, num_heads,
        kv_heads, capacity, eps, NORM=gains is not None, ROTATE=cos is not None, D=d_head, TOKENS=TOKENS,
        HEADS=HEADS, num_warps=4,
    )  # fmt: skip
    return out


def attend_to_chunks(
    qkv: Tensor,
    gains: Tensor | None,
    angles: tuple[Tensor, Tensor] | None,
    keys: Tensor,
    values: Tensor,
    chunks: Tensor,
    *,
    longest: int,
    eps: float,
) -> Tensor:
    """Return the causal attention of packed texts, and write their keys and values into the cache.

    `qkv` is (tokens, width). Each of `chunks`, (texts, 3), is the row of the cache, the index of the first
    token, and the number of tokens, at most `longest` (0 for none). A text begins at position 0. `angles` are
    those of `attend_and_store`. Every token must be in a text: the attention of others is not initialised.
    """
    _, kv_heads, capacity, d_head = keys.shape
    num_heads = qkv.shape[-1] // d_head - 2 * kv_heads
    cos, sin = (qkv, qkv) if angles is None else angles
    out = torch.empty(len(qkv), num_heads * d_head, device=qkv.device, dtype=qkv.dtype)
    _attend_to_chunk[(num_heads, len(chunks))](
        qkv, qkv if gains is None else gains, cos, sin, keys, values, chunks.contiguous(), out,
        num_heads, kv_heads, capacity, LOG2E / math.sqrt(d_head), eps, NORM=gains is not None,
        ROTATE=angles is not None, D=d_head, GROUP=num_heads // kv_heads,
        LENGTH=max(16, triton.next_power_of_2(longest)), num_warps=4,
    )  # fmt: skip
    return out
