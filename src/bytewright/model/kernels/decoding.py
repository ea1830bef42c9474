"""Triton kernels of decoding one token: its attention, and a norm with gains in float32.

`attend_and_store` starts from the joined projection of the newest token of every sequence. One launch
normalises and rotates q and k, writes the new key and value into the cache, and computes the softmax over the
positions in use. It has two kernels. In `_attend_whole` a program reads a whole sequence. In `_attend_split`
a program reads a part of it (a split), and the last one to end combines the splits. On other devices,
`generate.decoder` computes the same with tensor operations.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from bytewright.model.kernels import HALF_TYPES

BLOCK_NUMBERS = 4096
"""Numbers of keys that a program of `_attend_whole` reads at a time: 64 positions with heads of 64."""

LOG2E = math.log2(math.e)

SPLIT = 64
"""Positions of the cache in a split; constant, so that the order of additions is the same in every batch."""

ENOUGH_PROGRAMS = 256
"""From this number of programs on, sequences are not divided: about two for each multiprocessor."""


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
def load_heads(
    at, gains, cos, sin, positions, mask, eps, NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr
):
    """Load heads of q or k, normalised and rotated: the head at `at[i]` is at `positions[i]` of a text."""
    columns = tl.arange(0, D)[None, :]
    partners = (columns + D // 2) % D
    mask, at, gains = mask[:, None], at[:, None], gains[:, None]
    x = tl.load(at + columns, mask=mask, other=0.0).to(tl.float32)
    partner = tl.load(at + partners, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        inverse_rms = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        x = x * inverse_rms * tl.load(gains + columns, mask=mask, other=0.0).to(tl.float32)
        partner = partner * inverse_rms * tl.load(gains + partners, mask=mask, other=0.0).to(tl.float32)
    if ROTATE:
        at_angle = positions[:, None] * D + columns
        x = x * tl.load(cos + at_angle, mask=mask, other=0.0)
        x += partner * tl.load(sin + at_angle, mask=mask, other=0.0)
    return x


@triton.jit
def _attend_whole(
    qkv, gains, cos, sin, keys, values, positions, out, num_heads, kv_heads, capacity, scale, eps,
    NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Compute the attention of the query heads of one key/value head to all positions of one sequence.

    The query heads are the first of `ROWS` rows of the matrix units. The other rows are zeros.
    """
    kv_head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    columns, heads = tl.arange(0, D), tl.arange(0, ROWS)
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    position = tl.load(positions + row)
    qkv += row * (num_heads + 2 * kv_heads) * D
    key_head = num_heads + kv_head
    at_q = (kv_head * GROUP + heads) * D
    is_head = heads < GROUP
    q = load_heads(
        qkv + at_q, gains + at_q, cos, sin, position + heads * 0, is_head, eps, NORM, ROTATE, D
    ).to(keys.dtype.element_ty)  # fmt: skip
    k = _load_head(qkv + key_head * D, gains + key_head * D, cos, sin, position, eps, NORM, ROTATE, D)
    k = k.to(keys.dtype.element_ty)
    v = tl.load(qkv + (key_head + kv_heads) * D + columns)
    first_position = (row * kv_heads + kv_head) * capacity * D
    keys += first_position
    values += first_position
    tl.store(keys + position * D + columns, k)
    tl.store(values + position * D + columns, v)
    # The new token comes first, from registers; the loop reads the older ones from the cache.
    largest = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], 1) * scale
    total = tl.full([ROWS], 1.0, tl.float32)
    sums = tl.zeros([ROWS, D], tl.float32) + v.to(tl.float32)[None, :]
    for first in tl.range(0, position, BLOCK, num_stages=STAGES):
        places = first + tl.arange(0, BLOCK)
        is_old = places < position
        at_k = places[None, :] * D + columns[:, None]
        k_block = tl.load(keys + at_k, mask=is_old[None, :], other=0.0)
        at_v = places[:, None] * D + columns[None, :]
        v_block = tl.load(values + at_v, mask=is_old[:, None], other=0.0)
        scores = tl.dot(q, k_block, input_precision="ieee") * scale
        scores = tl.where(is_old[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp2(largest - new_largest)
        p = tl.exp2(scores - new_largest[:, None])
        total = total * shrink + tl.sum(p, 1)
        sums = tl.dot(p.to(v_block.dtype), v_block, sums * shrink[:, None], input_precision="ieee")
        largest = new_largest
    at_out = row * num_heads * D + at_q[:, None] + columns[None, :]
    tl.store(out + at_out, (sums / total[:, None]).to(out.dtype.element_ty), mask=is_head[:, None])


@triton.jit
def _combine_splits(sums, largest, totals, used, num_heads, D: tl.constexpr, SPLITS: tl.constexpr):
    """Return the attention of one head of a sequence, which uses `used` splits."""
    splits, columns = tl.arange(0, SPLITS), tl.arange(0, D)
    mask, at = splits < used, splits * num_heads
    tops = tl.load(largest + at, mask=mask, other=float("-inf"), cache_modifier=".cg")
    weights = tl.load(totals + at, mask=mask, other=0.0, cache_modifier=".cg")
    at_sum = at[:, None] * D + columns[None, :]
    parts = tl.load(sums + at_sum, mask=mask[:, None], other=0.0, cache_modifier=".cg")
    scales = tl.exp2(tops - tl.max(tops, 0))
    return tl.sum(parts * scales[:, None], 0) / tl.sum(weights * scales, 0)


@triton.jit
def _attend_split(
    qkv, gains, cos, sin, keys, values, positions, sums, largest, totals, arrivals, out,
    num_heads, kv_heads, capacity, scale, eps, NORM: tl.constexpr, ROTATE: tl.constexpr, D: tl.constexpr,
    GROUP: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Compute the attention of the query heads of one key/value head to `SPLIT` positions of one sequence.

    The split of the new token stores its key and value. The last program of these heads to arrive combines
    their splits. Which program that is does not change the order of additions.
    """
    split, kv_head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    columns = tl.arange(0, D)
    if OVERLAP:
        gdc_launch_dependents()
    position = tl.load(positions + row)
    places = split * SPLIT + tl.arange(0, SPLIT)
    if split * SPLIT <= position:
        first_position = (row * kv_heads + kv_head) * capacity * D
        at = first_position + places[:, None] * D + columns[None, :]
        is_old = (places < position)[:, None]
        k_block = tl.load(keys + at, mask=is_old, other=0.0)
        v_block = tl.load(values + at, mask=is_old, other=0.0)
        if OVERLAP:
            gdc_wait()
        qkv += row * (num_heads + 2 * kv_heads) * D
        at_k = num_heads + kv_head
        k = _load_head(qkv + at_k * D, gains + at_k * D, cos, sin, position, eps, NORM, ROTATE, D)
        k = k.to(keys.dtype.element_ty)
        v = tl.load(qkv + (at_k + kv_heads) * D + columns)
        if position < (split + 1) * SPLIT:
            tl.store(keys + first_position + position * D + columns, k)
            tl.store(values + first_position + position * D + columns, v)
        is_new = (places == position)[:, None]
        k_block = tl.where(is_new, k[None, :], k_block).to(tl.float32)
        v_block = tl.where(is_new, v[None, :], v_block).to(tl.float32)
        first_part = row * tl.num_programs(0) * num_heads + kv_head * GROUP
        for number in tl.static_range(GROUP):
            head = kv_head * GROUP + number
            q = _load_head(qkv + head * D, gains + head * D, cos, sin, position, eps, NORM, ROTATE, D)
            q = q.to(keys.dtype.element_ty).to(tl.float32) * scale
            scores = tl.where(places <= position, tl.sum(k_block * q[None, :], 1), float("-inf"))
            top = tl.max(scores, 0)
            p = tl.exp2(scores - top)
            part = first_part + split * num_heads + number
            tl.store(largest + part, top)
            tl.store(totals + part, tl.sum(p, 0))
            tl.store(sums + part * D + columns, tl.sum(p[:, None] * v_block, 0))
        # A sequence that is not in use may be longer than the part of the cache that is read.
        used = tl.minimum(position // SPLIT + 1, tl.num_programs(0))
        arrivals += row * kv_heads + kv_head
        tl.debug_barrier()  # all threads have stored their parts before one thread counts the arrival
        if tl.atomic_add(arrivals, 1, sem="acq_rel") == used - 1:
            tl.store(arrivals, 0)
            for number in tl.static_range(GROUP):
                part = first_part + number
                attended = _combine_splits(
                    sums + part * D, largest + part, totals + part, used, num_heads, D, SPLITS
                )
                at_out = (row * num_heads + kv_head * GROUP + number) * D + columns
                tl.store(out + at_out, attended.to(out.dtype.element_ty))


@triton.jit
def _rms_norm(x, gains, out, d_model, eps, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """Normalise one row in float32, and round it only when it is stored."""
    columns = tl.arange(0, BLOCK)
    mask = columns < d_model
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0).to(tl.int64) * d_model + columns
    row = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    inverse_rms = tl.rsqrt(tl.sum(row * row, 0) / d_model + eps)
    row = row * inverse_rms * tl.load(gains + columns, mask=mask, other=0.0)
    tl.store(out + at, row.to(out.dtype.element_ty), mask=mask)


def rms_norm_rows(x: Tensor, gains: Tensor, *, eps: float, overlap: bool = False) -> Tensor:
    """Return `model.layers.rms_norm` of the contiguous rows of `x`, with gains in float32.

    torch's fused norm requires gains of the type of `x`.
    """
    out = torch.empty_like(x)
    num_rows, d_model = x.shape
    _rms_norm[(num_rows,)](
        x, gains, out, d_model, eps, BLOCK=triton.next_power_of_2(d_model), OVERLAP=overlap, num_warps=4,
        **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
    return out


def split_for(num_rows: int, kv_heads: int, dtype: torch.dtype) -> int | None:
    """Return how many positions a program of attention reads; None for those of a whole sequence.

    Few sequences are divided, so that there are programs for all multiprocessors. In float32 the matrix units
    of `_attend_whole` are slow.
    """
    return None if num_rows * kv_heads >= ENOUGH_PROGRAMS and dtype in HALF_TYPES else SPLIT


def attend_and_store(
    qkv: Tensor,
    gains: Tensor | None,
    angles: tuple[Tensor, Tensor] | None,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    arrivals: Tensor,
    *,
    eps: float,
    num_positions: int | None = None,
    split: int | None = SPLIT,
    overlap: bool = False,
) -> Tensor:
    """Write one new token of every sequence into the cache, and return its attention.

    `qkv` is (batch, (heads + 2·kv_heads)·d_head); `angles` are cos and sin, (positions, d_head), the latter
    negative in the first half; `keys` and `values` are (batch, kv_heads, capacity, d_head).

    One program attends to `split` positions of a sequence, with the query heads of one key/value head; with
    None, it attends to the whole sequence. `arrivals`, (batch, kv_heads) in int32, counts the programs of
    splits that have ended. It must be 0, and is 0 again afterwards. Sequences use at most `num_positions`
    positions, the new token included (default: the capacity). The number does not change the bits of the
    result, and has no effect without splits.

    With `overlap`, the kernel may start before the one that computes `qkv` has ended; `positions` and the
    cache must have been written before that kernel started.
    """
    batch_size, kv_heads, capacity, d_head = keys.shape
    num_heads = qkv.shape[-1] // d_head - 2 * kv_heads
    group = num_heads // kv_heads
    cos, sin = (qkv, qkv) if angles is None else angles
    out = torch.empty(batch_size, num_heads * d_head, device=qkv.device, dtype=qkv.dtype)
    token = qkv, qkv if gains is None else gains, cos, sin, keys, values, positions
    sizes = num_heads, kv_heads, capacity, LOG2E / math.sqrt(d_head), eps
    flags = {
        "NORM": gains is not None,
        "ROTATE": angles is not None,
        "D": d_head,
        "GROUP": group,
        "OVERLAP": overlap,
        **({"launch_pdl": True} if overlap else {}),
    }
    if split is None:
        _attend_whole[(kv_heads, batch_size)](
            *token, out, *sizes, ROWS=max(16, triton.next_power_of_2(group)),
            BLOCK=max(16, min(64, BLOCK_NUMBERS // d_head)), STAGES=3, num_warps=1, **flags,
        )  # fmt: skip
        return out
    num_splits = triton.cdiv(capacity if num_positions is None else num_positions, split)
    shape, device = (batch_size, num_splits, num_heads), qkv.device
    sums = torch.empty(*shape, d_head, device=device)
    largest, totals = torch.empty(shape, device=device), torch.empty(shape, device=device)
    _attend_split[(num_splits, kv_heads, batch_size)](
        *token, sums, largest, totals, arrivals, out, *sizes,
        SPLIT=split, SPLITS=triton.next_power_of_2(triton.cdiv(capacity, split)), num_warps=2, **flags,
    )  # fmt: skip
    return out
