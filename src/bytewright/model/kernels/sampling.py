"""Triton kernels that draw the next token of every row, without sorting the logits.

The logits are divided into tiles; a kernel has one program for each row and tile, or for each row. Every sum
has a fixed order that depends on the row alone: its additions never depend on other rows or on their number.

The tokens that `top_k` and `top_p` keep are those above a threshold, and the first of those that equal it.
A search finds the threshold: each pass compares the logits with `WAYS` thresholds, and the next pass divides
the interval between two of them. The bits of a float are ordered like an integer (`_load_tile`), so 4 passes
find a threshold in bfloat16 and 8 in float32. The token is drawn from the kept tokens in the order of ids.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from bytewright.model.kernels.decoding_products import LAST_ID, LargestLogits, advance_row

TILE = 1024
"""Logits of a program."""
WAYS = 16
"""Thresholds of a pass of the search."""
SMALLEST_TEMPERATURE = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def _wait(OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def _find_tops(tile_values, tile_ids, tops, likeliest, num_tiles, TILES: tl.constexpr, OVERLAP: tl.constexpr):
    """Find the largest logit of a row and its id, which is -1 if the logits are not finite."""
    _wait(OVERLAP)
    row, tiles = tl.program_id(0), tl.arange(0, TILES)
    at = row * num_tiles + tiles
    values = tl.load(tile_values + at, mask=tiles < num_tiles, other=float("-inf"))
    candidates = tl.load(tile_ids + at, mask=tiles < num_tiles, other=LAST_ID)
    top = tl.max(values, 0)
    id = tl.min(tl.where(values == top, candidates, LAST_ID), 0)
    tl.store(tops + row, top)
    tl.store(likeliest + row, tl.where(tl.abs(top) < float("inf"), id, -1))


@triton.jit
def _load_tile(
    logits, tops, temperatures, row, tile, stride, num_ids, TILE: tl.constexpr, KEY_SHIFT: tl.constexpr
):
    """Return integers in the order of the logits, and the weights exp((logit - top) / temperature)."""
    ids = tile * TILE + tl.arange(0, TILE)
    is_id = ids < num_ids
    x = tl.load(logits + row.to(tl.int64) * stride + ids, mask=is_id, other=float("-inf")).to(tl.float32)
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)  # -0 equals 0
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> KEY_SHIFT
    temperature = tl.maximum(tl.load(temperatures + row).to(tl.float32), SMALLEST_TEMPERATURE)
    weights = tl.exp((x - tl.load(tops + row)) / temperature)
    return keys, tl.where(is_id, weights, 0.0)


@triton.jit
def _narrow(low, sums, row, num_tiles, target, step, TILES: tl.constexpr, WAYS: tl.constexpr):
    """Return the highest of the thresholds low, low + step, … whose sum over all tiles reaches the target."""
    tiles, ways = tl.arange(0, TILES), tl.arange(0, WAYS)
    at = (row * num_tiles + tiles[:, None]) * WAYS + ways[None, :]
    totals = tl.sum(tl.load(sums + at, mask=(tiles < num_tiles)[:, None], other=0.0), 0)
    return low + tl.max(tl.where(totals >= target, ways, 0), 0) * step


@triton.jit
def _top_k_target(top_k, row, num_ids):
    return tl.minimum(tl.load(top_k + row), num_ids).to(tl.float32)


@triton.jit
def _at_threshold(parts, row, num_tiles, TILES: tl.constexpr):
    """Return the number and mass above a threshold, the number of equal tokens, and the weight of one."""
    tiles = tl.arange(0, TILES)
    at, mask = (row * num_tiles + tiles) * 4, tiles < num_tiles
    num_above = tl.sum(tl.load(parts + at, mask=mask, other=0.0), 0)
    mass_above = tl.sum(tl.load(parts + at + 1, mask=mask, other=0.0), 0)
    num_equal = tl.sum(tl.load(parts + at + 2, mask=mask, other=0.0), 0)
    weight = tl.max(tl.load(parts + at + 3, mask=mask, other=0.0), 0)
    return num_above, mass_above, num_equal, weight


@triton.jit
def _top_k_ties(top_k, parts, row, num_ids, num_tiles, TILES: tl.constexpr):
    """Return how many tokens at the threshold `top_k` keeps, and the mass of all tokens that it keeps."""
    num_above, mass_above, num_equal, weight = _at_threshold(parts, row, num_tiles, TILES)
    ties = tl.minimum(tl.maximum(_top_k_target(top_k, row, num_ids) - num_above, 0.0), num_equal)
    return ties, mass_above + ties * weight


@triton.jit
def _target(top_k, top_p, parts, row, num_ids, num_tiles, TILES: tl.constexpr, BY_MASS: tl.constexpr):
    """Return what the tokens from the threshold on must reach: `top_k` tokens, or `top_p` of their mass."""
    if BY_MASS:
        _, mass = _top_k_ties(top_k, parts, row, num_ids, num_tiles, TILES)
        target = tl.load(top_p + row).to(tl.float32) * mass
    else:
        target = _top_k_target(top_k, row, num_ids)
    return target


@triton.jit
def _search(
    logits, tops, temperatures, top_k, top_p, parts, lows_before, sums_before, lows, sums, stride, num_ids,
    BY_MASS: tl.constexpr, FIRST: tl.constexpr, LOWEST: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr, WAYS: tl.constexpr, KEY_SHIFT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Sum the tokens of a tile from each of the thresholds low, low + `STEP`, … on."""
    _wait(OVERLAP)
    row, tile, num_tiles = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if FIRST:
        low = tl.full([], LOWEST, tl.int32)
    else:
        target = _target(top_k, top_p, parts, row, num_ids, num_tiles, TILES, BY_MASS)
        low = tl.load(lows_before + row)
        low = _narrow(low, sums_before, row, num_tiles, target, STEP * WAYS, TILES, WAYS)
    keys, weights = _load_tile(logits, tops, temperatures, row, tile, stride, num_ids, TILE, KEY_SHIFT)
    ways = tl.arange(0, WAYS)
    is_above = keys[:, None] >= (low + ways * STEP)[None, :]
    amounts = weights if BY_MASS else tl.full([TILE], 1.0, tl.float32)
    tile_sums = tl.sum(tl.where(is_above, amounts[:, None], 0.0), 0)
    tl.store(sums + (row * num_tiles + tile) * WAYS + ways, tile_sums)
    if tile == 0:
        tl.store(lows + row, low)


@triton.jit
def _split_at_threshold(
    logits, tops, temperatures, top_k, top_p, parts, lows, sums, thresholds, new_parts, stride, num_ids,
    BY_MASS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, WAYS: tl.constexpr,
    KEY_SHIFT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """End a search; count the tokens of a tile above the threshold, and those that equal it."""
    _wait(OVERLAP)
    row, tile, num_tiles = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    target = _target(top_k, top_p, parts, row, num_ids, num_tiles, TILES, BY_MASS)
    threshold = _narrow(tl.load(lows + row), sums, row, num_tiles, target, 1, TILES, WAYS)
    keys, weights = _load_tile(logits, tops, temperatures, row, tile, stride, num_ids, TILE, KEY_SHIFT)
    at = new_parts + (row * num_tiles + tile) * 4
    tl.store(at, tl.sum((keys > threshold).to(tl.float32), 0))
    tl.store(at + 1, tl.sum(tl.where(keys > threshold, weights, 0.0), 0))
    tl.store(at + 2, tl.sum((keys == threshold).to(tl.float32), 0))
    tl.store(at + 3, tl.max(tl.where(keys == threshold, weights, 0.0), 0))
    if tile == 0:
        tl.store(thresholds + row, threshold)


@triton.jit
def _kept_weights(
    logits, tops, temperatures, top_k, top_p, min_p, k_thresholds, k_parts, p_thresholds, p_parts,
    row, tile, stride, num_ids, num_tiles, FILTER: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
    KEY_SHIFT: tl.constexpr,
):  # fmt: skip
    """Return the weights of a tile, with 0 for tokens that are not kept."""
    keys, weights = _load_tile(logits, tops, temperatures, row, tile, stride, num_ids, TILE, KEY_SHIFT)
    if FILTER:
        threshold, p_threshold = tl.load(k_thresholds + row), tl.load(p_thresholds + row)
        ties, mass = _top_k_ties(top_k, k_parts, row, num_ids, num_tiles, TILES)
        p = tl.load(top_p + row).to(tl.float32)
        _, mass_above, _, weight = _at_threshold(p_parts, row, num_tiles, TILES)
        # A token belongs to the nucleus if the mass before it is below the target.
        p_ties = tl.maximum(tl.ceil((p * mass - mass_above) / tl.maximum(weight, 1e-30)), 1.0)
        is_nucleus = (p < 1) & (p_threshold >= threshold)
        p_ties = tl.where(p_threshold == threshold, tl.minimum(ties, p_ties), p_ties)
        ties = tl.where(is_nucleus, p_ties, ties)
        threshold = tl.where(is_nucleus, p_threshold, threshold)
        tiles = tl.arange(0, TILES)
        at, mask = (row * num_tiles + tiles) * 4 + 2, tiles < tile
        k_before = tl.sum(tl.load(k_parts + at, mask=mask, other=0.0), 0)
        p_before = tl.sum(tl.load(p_parts + at, mask=mask, other=0.0), 0)
        before = tl.where(is_nucleus, p_before, k_before)
        is_equal = (keys == threshold).to(tl.float32)
        is_tie = (keys == threshold) & (before + tl.cumsum(is_equal, 0) <= ties)
        is_likely = weights >= tl.load(min_p + row).to(tl.float32)
        weights = tl.where(((keys > threshold) | is_tie) & is_likely, weights, 0.0)
    return weights


@triton.jit
def _sum_kept(
    logits, tops, temperatures, top_k, top_p, min_p, k_thresholds, k_parts, p_thresholds, p_parts, masses,
    stride, num_ids, FILTER: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, KEY_SHIFT: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Sum the weights of the kept tokens of a tile."""
    _wait(OVERLAP)
    row, tile, num_tiles = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    weights = _kept_weights(
        logits, tops, temperatures, top_k, top_p, min_p, k_thresholds, k_parts, p_thresholds, p_parts,
        row, tile, stride, num_ids, num_tiles, FILTER, TILE, TILES, KEY_SHIFT,
    )  # fmt: skip
    tl.store(masses + row * num_tiles + tile, tl.sum(weights, 0))


@triton.jit
def _find_place(weights, place, SIZE: tl.constexpr):
    """Return the first index whose cumulative weight exceeds the place, and the weight before it.

    The index never has a weight of 0, whatever the rounding of the sums.
    """
    numbers = tl.arange(0, SIZE)
    ends = tl.cumsum(weights, 0)
    first = tl.min(tl.where((weights > 0) & (ends > place), numbers, SIZE), 0)
    last = tl.max(tl.where(weights > 0, numbers, 0), 0)
    index = tl.minimum(first, last)
    return index, tl.sum(tl.where(numbers == index - 1, ends, 0.0), 0)


@triton.jit
def _draw(
    logits, tops, temperatures, top_k, top_p, min_p, k_thresholds, k_parts, p_thresholds, p_parts, masses,
    likeliest, uniforms, ids, positions, num_chosen, chosen, stride, num_ids, num_tiles, num_uniforms,
    capacity, num_columns, FILTER: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
    KEY_SHIFT: tl.constexpr, ADVANCE: tl.constexpr, STORE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Choose the token of a row: the likeliest at temperature 0, otherwise draw one."""
    _wait(OVERLAP)
    row, tiles = tl.program_id(0), tl.arange(0, TILES)
    at = row.to(tl.int64) * num_uniforms
    if ADVANCE:
        at += tl.load(num_chosen + row)
    tile_masses = tl.load(masses + row * num_tiles + tiles, mask=tiles < num_tiles, other=0.0)
    place = tl.load(uniforms + at) * tl.sum(tile_masses, 0)
    tile, before = _find_place(tile_masses, place, TILES)
    weights = _kept_weights(
        logits, tops, temperatures, top_k, top_p, min_p, k_thresholds, k_parts, p_thresholds, p_parts,
        row, tile, stride, num_ids, num_tiles, FILTER, TILE, TILES, KEY_SHIFT,
    )  # fmt: skip
    index, _ = _find_place(weights, place - before, TILE)
    top_id = tl.load(likeliest + row)
    is_greedy = (top_id < 0) | (tl.load(temperatures + row) == 0)
    id = tl.where(is_greedy, top_id, tile * TILE + index).to(tl.int64)
    if ADVANCE:
        advance_row(row, id, ids, positions, num_chosen, chosen, capacity, num_columns, STORE)
    else:
        tl.store(ids + row, id)


def draw_tokens(
    logits: Tensor,
    largest: LargestLogits,
    settings: tuple[Tensor, Tensor, Tensor, Tensor],
    uniforms: Tensor,
    ids: Tensor,
    *,
    num_ids: int,
    is_filtered: bool,
    state: tuple[Tensor, Tensor, Tensor | None, int, int] | None = None,
    overlap: bool = False,
) -> None:
    """Write the next token of every row to `ids`; -1 if its logits are not finite.

    `settings` are the temperature, `top_k`, `top_p` and `min_p` of the rows; the last three have an effect
    only with `is_filtered`. `uniforms` has one number per row. With `state`, it has one per row and column,
    and the rows advance: `state` has positions, `num_chosen`, `chosen`, the capacity and the number of
    columns, as in `choose_largest`.
    """
    num_rows, num_tiles = len(logits), triton.cdiv(num_ids, TILE)
    launch: dict[str, Any] = {"OVERLAP": overlap, **({"launch_pdl": True} if overlap else {})}
    tops, likeliest = _find_largest_of_rows(largest, launch)
    shared: dict[str, Any] = {
        "stride": logits.stride(0),
        "num_ids": num_ids,
        "TILE": TILE,
        "TILES": triton.next_power_of_2(num_tiles),
        "KEY_SHIFT": 16 if logits.dtype == torch.bfloat16 else 0,
        "num_warps": 8,
        **launch,
    }
    *others, min_p = settings
    rows = logits, tops, *others
    found = [(likeliest, tops)] * 2  # not used without filters
    if is_filtered:
        by_count = _find_threshold(rows, None, num_tiles, shared)
        found = [by_count, _find_threshold(rows, by_count[1], num_tiles, shared)]
    masses = torch.empty(num_rows, num_tiles, device=logits.device)
    kept = *rows, min_p, *found[0], *found[1], masses
    _sum_kept[(num_rows, num_tiles)](*kept, FILTER=is_filtered, **shared)
    positions, num_chosen, chosen, capacity, num_columns = state or (ids, ids, None, 0, 0)
    _draw[(num_rows,)](
        *kept, likeliest, uniforms, ids, positions, num_chosen, ids if chosen is None else chosen,
        num_tiles=num_tiles, num_uniforms=uniforms.stride(0), capacity=capacity, num_columns=num_columns,
        FILTER=is_filtered, ADVANCE=state is not None, STORE=int(chosen is not None), **shared,
    )  # fmt: skip


def _find_largest_of_rows(largest: LargestLogits, launch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each row, and its id."""
    num_rows, num_tiles = largest.values.shape
    tops = torch.empty(num_rows, device=largest.values.device)
    likeliest = torch.empty(num_rows, dtype=torch.int32, device=tops.device)
    width = triton.next_power_of_2(num_tiles)
    _find_tops[(num_rows,)](
        largest.values, largest.ids, tops, likeliest, num_tiles, TILES=width,
        num_warps=16 if width > 2048 else 4, **launch,
    )  # fmt: skip
    return tops, likeliest


def _find_threshold(
    rows: tuple[Tensor, ...], parts: Tensor | None, num_tiles: int, shared: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return the threshold of each row, and what `_split_at_threshold` stores for its tiles.

    The threshold is that of `top_k`; with the `parts` of that threshold, it is the one of `top_p`.
    """
    num_rows, device = len(rows[0]), rows[0].device
    grid, by_mass = (num_rows, num_tiles), parts is not None
    unused = rows[1]
    before = unused if parts is None else parts
    lows, sums = unused, unused
    for bits in range(32 - shared["KEY_SHIFT"] - 4, -1, -4):
        new_lows = torch.empty(num_rows, dtype=torch.int32, device=device)
        new_sums = torch.empty(num_rows, num_tiles, WAYS, device=device)
        _search[grid](
            *rows, before, lows, sums, new_lows, new_sums, BY_MASS=by_mass, FIRST=lows is unused,
            LOWEST=-(2**31) >> shared["KEY_SHIFT"], STEP=1 << bits, WAYS=WAYS, **shared,
        )  # fmt: skip
        lows, sums = new_lows, new_sums
    thresholds = torch.empty_like(lows)
    new_parts = torch.empty(num_rows, num_tiles, 4, device=device)
    _split_at_threshold[grid](
        *rows, before, lows, sums, thresholds, new_parts, BY_MASS=by_mass, WAYS=WAYS, **shared
    )
    return thresholds, new_parts
