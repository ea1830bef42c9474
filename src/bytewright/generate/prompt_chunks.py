"""Chunks of prompts: which of them a `SlotBatch` reads in one call, and how they are sent to a GPU.

A GPU reads first chunks in one shape, their tokens packed one after the other. It reads later chunks, which
also need the cache, in another shape, one chunk per row. One tensor of integers has everything that such a
call needs, so that the call can be a CUDA graph.
"""

from __future__ import annotations

import itertools
import math
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bytewright.generate.row_sampling import settings_row
from bytewright.generate.sampling import SamplingConfig

CHUNK_TOKENS = 64
"""The largest number of tokens of a prompt that are read between two steps."""
FIRST_CHUNKS, FIRST_TOKENS = 32, 512
"""On a GPU, the number of prompts whose first chunks are read at the same time, and that of their tokens."""
LATER_CHUNKS = 16
"""On a GPU, the number of later chunks that are read at the same time."""

GREEDY = SamplingConfig(temperature=0.0)


@dataclass(frozen=True)
class RowDraws:
    """How a sequence chooses its tokens.

    It uses the random stream with the key (seed, random_stream); the seed is that of the settings.
    """

    sampling: SamplingConfig
    random_stream: int
    max_new_tokens: int
    """At most the room in the context."""


@dataclass(frozen=True)
class PromptChunk:
    """The next tokens of a prompt: at most `CHUNK_TOKENS`."""

    slot: int
    start: int
    """The position of the first of `ids` in the prompt."""
    ids: Sequence[int]
    draws: RowDraws | None = None
    """How to choose the token after the prompt; None if more of the prompt follows, or no token."""

    @property
    def end(self) -> int:
        """The position after the chunk."""
        return self.start + len(self.ids)


def select_chunks(chunks: Sequence[PromptChunk], *, packs_first: bool) -> list[int]:
    """Return which chunks a GPU reads in one call: the first of `chunks`, and others that fit.

    With `packs_first`, a call reads either first chunks or later ones.
    """
    is_packed = packs_first and chunks[0].start == 0
    same = [n for n, chunk in enumerate(chunks) if not packs_first or (chunk.start == 0) == is_packed]
    if not is_packed:
        return same[:LATER_CHUNKS]
    ends = itertools.accumulate(len(chunks[number].ids) for number in same)
    return [number for number, end in zip(same[:FIRST_CHUNKS], ends, strict=False) if end <= FIRST_TOKENS]


@dataclass(frozen=True)
class ChunkTable:
    """What a GPU needs of each chunk besides its ids, with a row for each chunk."""

    numbers: Int[Tensor, "chunks columns"]
    """Slot, index of the first token, number of tokens, positions of the first token and after the last,
    slot of the chosen token, and the bits of the four settings of the choice."""

    ROW = struct.Struct("=6q4d")
    """The numbers of a row on the host, as bytes: to pack them is faster than `torch.tensor`."""
    NUM_COLUMNS = ROW.size // 8

    @property
    def slots(self) -> Int[Tensor, " chunks"]:
        """The slot of each chunk."""
        return self.numbers[:, 0]

    @property
    def places(self) -> Int[Tensor, "chunks 3"]:
        """The slot, the index of the first token and the number of tokens of each chunk."""
        return self.numbers[:, :3]

    @property
    def last_tokens(self) -> Int[Tensor, " chunks"]:
        """The index of the last token of each chunk; 0 for a chunk without tokens."""
        return (self.numbers[:, 1] + self.numbers[:, 2] - 1).clamp(min=0)

    @property
    def starts(self) -> Int[Tensor, " chunks"]:
        """The position of the first token of each chunk."""
        return self.numbers[:, 3]

    @property
    def ends(self) -> Int[Tensor, " chunks"]:
        """The position after each chunk; 0 if the context is full."""
        return self.numbers[:, 4]

    @property
    def starting_slots(self) -> Int[Tensor, " chunks"]:
        """The slot of each chunk that ends its prompt and has a next token; the idle slot for others."""
        return self.numbers[:, 5]

    @property
    def settings(self) -> Float[Tensor, "chunks 4"]:
        """How to choose the tokens, as `RowSettings.write_values` expects it."""
        return self.numbers[:, 6:].contiguous().view(torch.float64)


@dataclass(frozen=True)
class ChunkLayout:
    """How chunks are packed into one tensor."""

    idle_slot: int
    """A slot that belongs to no sequence: unused rows are written to it."""
    idle_id: int
    """The token of unused places; its embedding is finite."""
    capacity: int
    """The number of positions of a slot."""

    @property
    def width(self) -> int:
        """The largest number of tokens of a chunk."""
        return min(CHUNK_TOKENS, self.capacity)

    def pack_first(self, chunks: Sequence[PromptChunk]) -> tuple[Int[Tensor, " numbers"], list[range]]:
        """Return the table and the ids of first chunks, and where the tokens of each chunk are.

        Additional chunks of the idle slot contain the unused places: the attention of a token that is in no
        chunk is not initialised.
        """
        ids = [id for chunk in chunks for id in chunk.ids]
        ends = itertools.accumulate(len(chunk.ids) for chunk in chunks)
        places = [range(end - len(chunk.ids), end) for chunk, end in zip(chunks, ends, strict=True)]
        num_rows = FIRST_CHUNKS + math.ceil(FIRST_TOKENS / self.width)
        rows = self._rows_of(chunks, places, FIRST_CHUNKS)
        for first in range(len(ids), FIRST_TOKENS, self.width):
            rows.append(self._idle_row(first, min(self.width, FIRST_TOKENS - first)))
        rows += [self._idle_row()] * (num_rows - len(rows))
        ids += [self.idle_id] * (FIRST_TOKENS - len(ids))
        return _join(rows, ids), places

    def _rows_of(self, chunks: Sequence[PromptChunk], places: Sequence[range], num_rows: int) -> list[bytes]:
        """Return rows of the table for chunks whose tokens are at these places, and for unused rows."""
        rows = []
        for chunk, place in zip(chunks, places, strict=True):
            sampling, starting = GREEDY, self.idle_slot
            if chunk.draws is not None:
                sampling, starting = chunk.draws.sampling, chunk.slot
            end = chunk.end % self.capacity
            numbers = chunk.slot, place.start, len(place), chunk.start, end, starting
            rows.append(ChunkTable.ROW.pack(*numbers, *settings_row(sampling)))
        return rows + [self._idle_row()] * (num_rows - len(chunks))

    def _idle_row(self, first: int = 0, num_tokens: int = 0) -> bytes:
        """Return the row of unused places, none by default."""
        numbers = self.idle_slot, first, num_tokens, 0, 0, self.idle_slot
        return ChunkTable.ROW.pack(*numbers, *settings_row(GREEDY))

    def repeat_first(self, ids: Sequence[int]) -> list[PromptChunk]:
        """Return first chunks with these tokens, all of the idle slot, as many as one call can read."""
        return [PromptChunk(self.idle_slot, 0, ids)] * min(FIRST_CHUNKS, FIRST_TOKENS // len(ids))

    def unpack_first(
        self, packed: Int[Tensor, " numbers"]
    ) -> tuple[ChunkTable, Int[Tensor, "all_chunks 3"], Int[Tensor, " tokens"]]:
        """Return the table of first chunks, the places of these and of additional chunks, and the ids."""
        numbers = packed[:-FIRST_TOKENS].view(-1, ChunkTable.NUM_COLUMNS)
        return ChunkTable(numbers[:FIRST_CHUNKS]), ChunkTable(numbers).places, packed[-FIRST_TOKENS:]

    def pack_later(self, chunks: Sequence[PromptChunk]) -> tuple[Int[Tensor, " numbers"], list[range]]:
        """Return the table and the ids of later chunks, and where the tokens of each chunk are.

        The ids of a chunk are padded with one of their own: another token may have values that are not
        finite, and they would be written to the cache.
        """
        firsts = range(0, len(chunks) * self.width, self.width)
        places = [range(first, first + len(chunk.ids)) for first, chunk in zip(firsts, chunks, strict=True)]
        ids: list[int] = []
        for chunk in chunks:
            ids += [*chunk.ids, *[chunk.ids[-1]] * (self.width - len(chunk.ids))]
        ids += [self.idle_id] * (LATER_CHUNKS * self.width - len(ids))
        return _join(self._rows_of(chunks, places, LATER_CHUNKS), ids), places

    def unpack_later(self, packed: Int[Tensor, " numbers"]) -> tuple[ChunkTable, Int[Tensor, "chunks seq"]]:
        """Return the table and the ids of later chunks."""
        num_ids = LATER_CHUNKS * self.width
        table = packed[:-num_ids].view(LATER_CHUNKS, ChunkTable.NUM_COLUMNS)
        return ChunkTable(table), packed[-num_ids:].view(LATER_CHUNKS, self.width)


def _join(rows: Sequence[bytes], ids: Sequence[int]) -> Int[Tensor, " numbers"]:
    """Return the rows of a table and ids in one tensor."""
    return torch.frombuffer(bytearray(b"".join([*rows, array("q", ids)])), dtype=torch.long)
