"""Triton kernels of the matrix products of a decoding step, with the work around each product.

A product with few rows is bound by reading its weights. `multiply` therefore includes what would be a kernel
of its own: before the product of one row the embedding and the norm, after it the gate, the residual, or the
largest logit of each tile. In `_multiply_row`, for one row, each program reduces a few rows of the weight in
registers. `_multiply_rows` uses the matrix units. A norm in its loop would double the time of the loop.
The kernel that writes the rows therefore also writes them times the gains, and sums of their squares
(`ScaledRows`). The next product multiplies these rows and divides the result by their root mean square.

With `overlap` (programmatic dependent launch), a kernel starts while the one before it still runs. Until
`gdc_wait` returns, it may only read what earlier steps wrote, such as weights. So it first reads its weights,
or copies them into the L2 cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NO_GATE, SILU, SWIGLU = 0, 1, 2
LAST_ID = tl.constexpr(2**31 - 1)


@dataclass(frozen=True)
class Tiles:
    """The shape of the work of one program of a product."""

    outputs: int
    """Outputs of a program, at least 16 on the matrix units."""
    inputs: int = 1024
    """Inputs that are read at a time."""
    rows: int = 1
    """1 for `_multiply_row`; otherwise rows of a program, at least 16."""
    chains: int = 1
    """Sums of a product, 1 or 2: with 2, each adds every second block of inputs.

    A matrix instruction waits for the one before it in the same sum.
    """
    warps: int = 4
    stages: int = 1


@dataclass(frozen=True)
class LargestLogits:
    """The largest logit of each tile of the vocabulary and its id; infinite if a logit is NaN."""

    values: Tensor
    ids: Tensor


@dataclass(frozen=True)
class ScaledRows:
    """Rows whose product, divided by the root mean square, is the product of the normalised rows."""

    rows: Tensor
    """The rows of the residual stream times the gains of the norm."""
    squares: Tensor
    """Sums of squares of parts of each row, without the gains: (rows, parts)."""


class Product(NamedTuple):
    """The result of `multiply`."""

    rows: Tensor
    largest: LargestLogits | None
    scaled: ScaledRows | None
    """The rows with the gains of the next norm."""


@triton.jit
def _embedding_row(ids, row, vocab_size):
    """Return the row of the embeddings for a sequence; -1 is the last one, as in torch."""
    id = tl.load(ids + row)
    return tl.where(id < 0, id + vocab_size, id)


@triton.jit
def _apply_gate(product, other, GATE: tl.constexpr):
    if GATE != 0:
        product = product / (1.0 + tl.exp(-product))
    if GATE == 2:
        product = product * other
    return product


@triton.jit
def _multiply_row(
    x, ids, gains, weight, residual, out, tile_values, tile_ids,
    num_outputs, num_ids, vocab_size, eps, K: tl.constexpr, EMBED: tl.constexpr, NORM: tl.constexpr,
    GATE: tl.constexpr, ADD: tl.constexpr, ARGMAX: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Multiply one row by `BLOCK_N` rows of the weight."""
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    at = outputs.to(tl.int64)[:, None] * K + columns[None, :]
    is_output = outputs < num_outputs
    mask = is_output[:, None] & (columns < K)[None, :]
    if OVERLAP:
        gdc_launch_dependents()
    w = tl.load(weight + at, mask=mask, other=0.0)
    if GATE == 2:
        w_up = tl.load(weight + num_outputs.to(tl.int64) * K + at, mask=mask, other=0.0)
    if NORM:
        gain = tl.load(gains + columns, mask=columns < K, other=0.0).to(tl.float32)
    if OVERLAP:
        gdc_wait()
    if EMBED:
        x += _embedding_row(ids, 0, vocab_size) * K
    product = tl.zeros([BLOCK_N], tl.float32)
    other = tl.zeros([BLOCK_N], tl.float32)
    squares = 0.0
    for first in tl.static_range(0, K, BLOCK_K):
        here = first + columns
        if first > 0:
            mask = is_output[:, None] & (here < K)[None, :]
            w = tl.load(weight + at + first, mask=mask, other=0.0)
            if GATE == 2:
                w_up = tl.load(weight + num_outputs.to(tl.int64) * K + at + first, mask=mask, other=0.0)
            if NORM:
                gain = tl.load(gains + here, mask=here < K, other=0.0).to(tl.float32)
        row = tl.load(x + here, mask=here < K, other=0.0).to(tl.float32)
        if NORM:
            squares += tl.sum(row * row, 0)
            row *= gain
        product += tl.sum(w.to(tl.float32) * row[None, :], 1)
        if GATE == 2:
            other += tl.sum(w_up.to(tl.float32) * row[None, :], 1)
    if NORM:
        inverse_rms = tl.rsqrt(squares / K + eps)
        product *= inverse_rms
        other *= inverse_rms
    product = _apply_gate(product, other, GATE)
    if ADD == 2:
        residual += _embedding_row(ids, 0, vocab_size) * num_outputs
    if ADD != 0:
        product += tl.load(residual + outputs, mask=is_output, other=0.0).to(tl.float32)
    rounded = product.to(out.dtype.element_ty)
    tl.store(out + outputs, rounded, mask=is_output)
    if ARGMAX:
        values = tl.where(outputs < num_ids, rounded.to(tl.float32), float("-inf"))
        values = tl.where(values == values, values, float("inf"))
        best = tl.max(values, 0)
        tl.store(tile_values + tl.program_id(0), best)
        tl.store(tile_ids + tl.program_id(0), tl.min(tl.where(values == best, outputs, LAST_ID), 0))


@triton.jit
def _embed_rows(
    table,
    ids,
    gains,
    out,
    scaled,
    squares,
    vocab_size,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    NEXT: tl.constexpr,
):
    """Gather one row of the embeddings, and scale it for the norm that follows."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < K
    values = tl.load(table + _embedding_row(ids, row, vocab_size) * K + columns, mask=mask, other=0.0)
    tl.store(out + row * K + columns, values, mask=mask)
    if NEXT:
        values = values.to(tl.float32)
        gain = tl.load(gains + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(scaled + row * K + columns, (values * gain).to(scaled.dtype.element_ty), mask=mask)
        tl.store(squares + row, tl.sum(values * values, 0))


@triton.jit
def _prefetch(weight, outputs, num_outputs, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Start to copy the rows `outputs` of a weight into the L2 cache, a cache line at a time."""
    LINE: tl.constexpr = 128 // (weight.dtype.element_ty.primitive_bitwidth // 8)
    LINES: tl.constexpr = BLOCK_K // LINE if BLOCK_K > LINE else 1
    lines = tl.arange(0, LINES) * LINE
    for first in tl.static_range(0, K, BLOCK_K):
        places = tl.minimum(outputs, num_outputs - 1).to(tl.int64)[:, None] * K
        places += tl.minimum(first + lines, K - 1)[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [weight + places], tl.int32, False, 1
        )


@triton.jit
def _multiply_rows(
    x, squares, weight, residual, out, tile_values, tile_ids, next_gains, next_scaled, next_squares,
    num_rows, num_outputs, num_ids, num_squares, eps,
    K: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, ARGMAX: tl.constexpr, NEXT: tl.constexpr,
    SQUARES: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHAINS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Multiply `ROWS` rows by `BLOCK_N` rows of the weight on the matrix units.

    With `SQUARES` > 0, `x` and `squares` are those of `ScaledRows`; `SQUARES` is not less than the parts.
    """
    tile = tl.program_id(0)
    outputs = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_K)
    is_output, is_row = outputs < num_outputs, rows < num_rows
    up = weight + num_outputs.to(tl.int64) * K
    if OVERLAP:
        gdc_launch_dependents()
        _prefetch(weight, outputs, num_outputs, K, BLOCK_K)
        if GATE == 2:
            _prefetch(up, outputs, num_outputs, K, BLOCK_K)
        gdc_wait()
    # What is only used after the loop is loaded before it, so that the loads run at the same time.
    mask = is_row[:, None] & is_output[None, :]
    out_at = rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    if SQUARES > 0:
        parts = tl.arange(0, SQUARES)
        is_part = is_row[:, None] & (parts < num_squares)[None, :]
        sums = tl.load(squares + rows[:, None] * num_squares + parts[None, :], mask=is_part, other=0.0)
    if ADD != 0:
        added = tl.load(residual + out_at, mask=mask, other=0.0).to(tl.float32)
    if NEXT:
        gain = tl.load(next_gains + outputs, mask=is_output, other=0.0).to(tl.float32)
    x_at = rows.to(tl.int64)[:, None] * K + columns[None, :]
    w_at = outputs.to(tl.int64)[None, :] * K + columns[:, None]
    product = tl.zeros([ROWS, BLOCK_N], tl.float32)
    other = tl.zeros([ROWS, BLOCK_N], tl.float32)
    product_2 = tl.zeros([ROWS, BLOCK_N], tl.float32)
    other_2 = tl.zeros([ROWS, BLOCK_N], tl.float32)
    for first in range(0, K, CHAINS * BLOCK_K):
        is_input = first + columns < K
        part = tl.load(x + x_at + first, mask=is_row[:, None] & is_input[None, :], other=0.0)
        w = tl.load(weight + w_at + first, mask=is_input[:, None] & is_output[None, :], other=0.0)
        product = tl.dot(part, w, product, input_precision="ieee")
        if GATE == 2:
            w_up = tl.load(up + w_at + first, mask=is_input[:, None] & is_output[None, :], other=0.0)
            other = tl.dot(part, w_up, other, input_precision="ieee")
        if CHAINS == 2:
            second = first + BLOCK_K
            is_input = second + columns < K
            part = tl.load(x + x_at + second, mask=is_row[:, None] & is_input[None, :], other=0.0)
            w = tl.load(weight + w_at + second, mask=is_input[:, None] & is_output[None, :], other=0.0)
            product_2 = tl.dot(part, w, product_2, input_precision="ieee")
            if GATE == 2:
                w_up = tl.load(up + w_at + second, mask=is_input[:, None] & is_output[None, :], other=0.0)
                other_2 = tl.dot(part, w_up, other_2, input_precision="ieee")
    product += product_2
    other += other_2
    if SQUARES > 0:
        inverse_rms = tl.rsqrt(tl.sum(sums, 1) / K + eps)[:, None]
        product *= inverse_rms
        if GATE == 2:
            other *= inverse_rms
    product = _apply_gate(product, other, GATE)
    if ADD != 0:
        product += added
    rounded = product.to(out.dtype.element_ty)
    tl.store(out + out_at, rounded, mask=mask)
    if NEXT:
        values = rounded.to(tl.float32)
        tl.store(next_scaled + out_at, (values * gain[None, :]).to(next_scaled.dtype.element_ty), mask=mask)
        tl.store(next_squares + rows * tl.num_programs(0) + tile, tl.sum(values * values, 1), mask=is_row)
    if ARGMAX:
        values = tl.where((outputs < num_ids)[None, :], rounded.to(tl.float32), float("-inf"))
        values = tl.where(values == values, values, float("inf"))
        best = tl.max(values, 1)
        best_ids = tl.min(tl.where(values == best[:, None], outputs[None, :], LAST_ID), 1)
        at = rows * tl.num_programs(0) + tile
        tl.store(tile_values + at, best, mask=is_row)
        tl.store(tile_ids + at, best_ids, mask=is_row)


@triton.jit
def _find_largest(logits, tile_values, tile_ids, stride, num_ids, BLOCK: tl.constexpr):
    """Find the largest of `BLOCK` logits of a row."""
    row, tile = tl.program_id(0), tl.program_id(1)
    outputs = tile * BLOCK + tl.arange(0, BLOCK)
    at = row.to(tl.int64) * stride + outputs
    values = tl.load(logits + at, mask=outputs < num_ids, other=float("-inf")).to(tl.float32)
    values = tl.where(values == values, values, float("inf"))
    best = tl.max(values, 0)
    at = row * tl.num_programs(1) + tile
    tl.store(tile_values + at, best)
    tl.store(tile_ids + at, tl.min(tl.where(values == best, outputs, LAST_ID), 0))


@triton.jit
def advance_row(row, id, ids, positions, num_chosen, chosen, capacity, num_columns, STORE: tl.constexpr):
    """Store the chosen token of a sequence, and advance the sequence."""
    tl.store(ids + row, id)
    column = tl.load(num_chosen + row)
    if STORE:
        tl.store(chosen + row.to(tl.int64) * num_columns + column, id, mask=column < num_columns)
    tl.store(num_chosen + row, tl.minimum(column + 1, num_columns - 1 + STORE))
    tl.store(positions + row, tl.minimum(tl.load(positions + row) + 1, capacity - 1))


@triton.jit
def _choose_largest(
    tile_values, tile_ids, ids, positions, num_chosen, chosen, num_tiles, capacity, num_columns,
    TILES: tl.constexpr, STORE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Choose the likeliest token of one sequence and advance the sequence."""
    row = tl.program_id(0)
    tiles = tl.arange(0, TILES)
    if OVERLAP:
        gdc_wait()
    at = row * num_tiles + tiles
    values = tl.load(tile_values + at, mask=tiles < num_tiles, other=float("-inf"))
    candidates = tl.load(tile_ids + at, mask=tiles < num_tiles, other=LAST_ID)
    best = tl.max(values, 0)
    id = tl.min(tl.where(values == best, candidates, LAST_ID), 0).to(tl.int64)
    id = tl.where(tl.abs(best) < float("inf"), id, -1)
    advance_row(row, id, ids, positions, num_chosen, chosen, capacity, num_columns, STORE)


def embed_rows(table: Tensor, ids: Tensor, next_gains: Tensor | None) -> tuple[Tensor, ScaledRows | None]:
    """Return rows of a table; with the gains of the norm that follows, also the rows scaled for it."""
    num_rows, width = len(ids), table.shape[1]
    out = torch.empty(num_rows, width, device=table.device, dtype=table.dtype)
    scaled = None if next_gains is None else _new_scaled(out, num_tiles=1)
    _embed_rows[(num_rows,)](
        table, ids, out if next_gains is None else next_gains, out, *_tensors_of(scaled, out), len(table),
        K=width, BLOCK=triton.next_power_of_2(width), NEXT=scaled is not None, num_warps=4,
    )  # fmt: skip
    return out, scaled


def multiply(
    x: Tensor | ScaledRows,
    weight: Tensor,
    tiles: Tiles,
    *,
    ids: Tensor | None = None,
    gains: Tensor | None = None,
    eps: float = 0.0,
    gate: int = NO_GATE,
    residual: Tensor | None = None,
    residual_ids: Tensor | None = None,
    next_gains: Tensor | None = None,
    num_ids: int | None = None,
    overlap: bool = False,
) -> Product:
    """Return `x` Wᵀ of contiguous rows, and with `num_ids` the largest logit of each tile below that id.

    `gate` applies SiLU to the result, or SwiGLU to the halves of the weight. `ScaledRows` are normalised with
    `eps`.

    Three arguments require one row. With `ids`, it is a row of the table `x`, and with `residual_ids` the
    residual is one of the table `residual`. With `gains`, the row is normalised first. `next_gains` requires
    tiles of several rows: the product is also returned with the gains of the norm that follows.
    """
    source = x.rows if isinstance(x, ScaledRows) else x
    num_rows, d_in = len(source) if ids is None else len(ids), source.shape[1]
    d_out, device = len(weight) // 2 if gate == SWIGLU else len(weight), weight.device
    out = torch.empty(num_rows, d_out, device=device, dtype=weight.dtype)
    num_tiles = triton.cdiv(d_out, tiles.outputs)
    largest = None if num_ids is None else _new_largest(num_rows, num_tiles, device)
    scaled = None if next_gains is None else _new_scaled(out, num_tiles)
    shared = (
        weight, residual if residual is not None else out, out, largest.values if largest else out,
        largest.ids if largest else out,
    )  # fmt: skip
    flags = {
        "K": d_in,
        "GATE": gate,
        "ADD": 0 if residual is None else 1 if residual_ids is None else 2,
        "ARGMAX": largest is not None,
        "BLOCK_N": tiles.outputs,
        "BLOCK_K": max(min(tiles.inputs, triton.next_power_of_2(d_in)), 16),
        "OVERLAP": overlap,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
        **({"launch_pdl": True} if overlap else {}),
    }
    if tiles.rows == 1:
        assert num_rows == 1
        assert scaled is None, "tiles of one row normalise the row themselves"
        assert isinstance(x, Tensor)
        index = ids if ids is not None else residual_ids
        table = x if ids is not None else residual
        vocab_size = 0 if index is None or table is None else len(table)
        _multiply_row[(num_tiles,)](
            x, x if index is None else index, x if gains is None else gains, *shared,
            d_out, num_ids or 0, vocab_size, eps, EMBED=ids is not None, NORM=gains is not None, **flags,
        )  # fmt: skip
    else:
        assert ids is gains is residual_ids is None, "only a product of one row gathers and normalises"
        squares = x.squares if isinstance(x, ScaledRows) else None
        grid = num_tiles, triton.cdiv(num_rows, tiles.rows)
        _multiply_rows[grid](
            source, source if squares is None else squares, *shared,
            out if next_gains is None else next_gains, *_tensors_of(scaled, out),
            num_rows, d_out, num_ids or 0, 0 if squares is None else squares.shape[1], eps,
            NEXT=scaled is not None,
            SQUARES=0 if squares is None else triton.next_power_of_2(squares.shape[1]),
            ROWS=tiles.rows, CHAINS=tiles.chains, **flags,
        )  # fmt: skip
    return Product(out, largest, scaled)


def _new_scaled(rows: Tensor, num_tiles: int) -> ScaledRows:
    squares = torch.empty(len(rows), num_tiles, device=rows.device)
    return ScaledRows(torch.empty_like(rows), squares)


def _tensors_of(scaled: ScaledRows | None, unused: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two tensors of `scaled`, or `unused` twice for a kernel that writes no scaled rows."""
    return (unused, unused) if scaled is None else (scaled.rows, scaled.squares)


def _new_largest(num_rows: int, num_tiles: int, device: torch.device) -> LargestLogits:
    values = torch.empty(num_rows, num_tiles, device=device)
    return LargestLogits(values, torch.empty(num_rows, num_tiles, dtype=torch.int32, device=device))


def find_largest(logits: Tensor, num_ids: int, block: int = 1024) -> LargestLogits:
    """Return the largest logits of tiles of the ids below `num_ids`."""
    num_rows, num_tiles = len(logits), triton.cdiv(num_ids, block)
    largest = _new_largest(num_rows, num_tiles, logits.device)
    _find_largest[(num_rows, num_tiles)](
        logits, largest.values, largest.ids, logits.stride(0), num_ids, BLOCK=block, num_warps=4
    )
    return largest


def choose_largest(
    largest: LargestLogits,
    ids: Tensor,
    positions: Tensor,
    num_chosen: Tensor,
    capacity: int,
    chosen: Tensor | None = None,
    *,
    num_columns: int = 2**31 - 1,
    overlap: bool = False,
) -> None:
    """Write the likeliest token of every sequence to `ids`, and advance the sequences.

    The lowest id wins a tie. The id is -1 if the logits are not finite. It is also written to column
    `num_chosen` of `chosen`, (batch, columns).
    """
    num_rows, num_tiles = largest.values.shape
    width = triton.next_power_of_2(num_tiles)
    _choose_largest[(num_rows,)](
        largest.values, largest.ids, ids, positions, num_chosen, ids if chosen is None else chosen,
        num_tiles, capacity, num_columns if chosen is None else chosen.shape[1],
        TILES=width, STORE=int(chosen is not None), OVERLAP=overlap, num_warps=16 if width > 2048 else 4,
        **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
