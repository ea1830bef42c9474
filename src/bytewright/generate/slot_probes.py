"""Probes of the steps of a `SlotBatch`: which shapes of a step give equal bits, and whether all slots do.

Matrix libraries select their algorithm, and so the order of additions, by shape. The probes run random tokens
on random contents of the cache, and compare logits bit for bit. They run once, when the batch is created.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from bytewright.generate.decoder import Decoder, KeyValueCache

FEWEST_POSITIONS = 64
"""The smallest number of cache positions that a step reads; the others are its doubles, up to the context."""

PROBED_LAYERS = 32
"""How many layers must have equal results, over all probing steps, before a number of rows is used.

One step does not suffice, since some differences occur for some values only. In a model of two layers, they
occurred in 9 to 17 of 20 steps.
"""


@torch.inference_mode()
def find_equal_shapes(decoder: Decoder, cache: KeyValueCache, num_slots: int) -> set[tuple[int, int]]:
    """Return the shapes of a step, rows and positions, whose logits equal those of the full shape.

    The order of additions does not depend on the values, so one draw shows whether it differs. An operation
    such as `silu` may round the last elements of a batch differently, and only for some values. Several draws
    find this. The contents of the cache are replaced.
    """
    generator = torch.Generator().manual_seed(0)
    for buffer in cache.keys + cache.values:
        first = torch.randn(buffer.shape[1:], generator=generator)
        for row in range(num_slots):
            buffer[row] = first.roll(row, dims=1)
    slots = cache.first(num_slots)
    row_counts = list_doubles(1, num_slots)
    for _ in range(math.ceil(PROBED_LAYERS / decoder.config.num_layers)):
        row_counts = _find_equal_row_counts(decoder, slots, row_counts, slots.capacity, generator)
    shapes: set[tuple[int, int]] = set()
    for num_positions in list_doubles(FEWEST_POSITIONS, slots.capacity):
        equal = _find_equal_row_counts(decoder, slots, row_counts, num_positions, generator)
        shapes.update((num_rows, num_positions) for num_rows in equal)
    return shapes


def _find_equal_row_counts(
    decoder: Decoder,
    slots: KeyValueCache,
    row_counts: Sequence[int],
    num_positions: int,
    generator: torch.Generator,
) -> list[int]:
    """Return the numbers of rows whose logits for one draw of tokens equal those of the full shape."""
    ids = torch.randint(decoder.config.vocab_size, (slots.batch_size,), generator=generator)
    positions = torch.randint(num_positions, (slots.batch_size,), generator=generator)
    full = decoder.step(slots, ids, positions, slots.capacity)
    equal = []
    for num_rows in row_counts:
        part = decoder.step(slots.first(num_rows), ids[:num_rows], positions[:num_rows], num_positions)
        if torch.equal(part, full[:num_rows]):
            equal.append(num_rows)
    return equal


@torch.inference_mode()
def compare_slots(decoder: Decoder, cache: KeyValueCache, num_slots: int, id: int) -> bool:
    """Return whether a token after the same text has the same logits in every slot; it clears the cache."""
    generator = torch.Generator(decoder.device).manual_seed(0)
    for buffer in cache.keys + cache.values:
        buffer.copy_(torch.randn(buffer.shape[1:], generator=generator, device=buffer.device))
    ids = torch.full((num_slots,), id, device=decoder.device)
    positions = torch.full_like(ids, cache.capacity // 2)
    logits = decoder.step(cache.first(num_slots), ids, positions)
    for buffer in cache.keys + cache.values:
        buffer.zero_()
    return torch.equal(logits, logits[:1].expand_as(logits))


def list_doubles(first: int, last: int) -> list[int]:
    """Return first, 2·first, 4·first, …, and `last` at the end.

    >>> list_doubles(64, 300), list_doubles(64, 16)
    ([64, 128, 256, 300], [16])
    """
    numbers = []
    while first < last:
        numbers.append(first)
        first *= 2
    return [*numbers, last]
