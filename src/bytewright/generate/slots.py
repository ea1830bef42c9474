"""A batch of fixed slots that sequences join and leave between steps, on the device: ids in, ids out.

Each slot has one row of the key/value cache and its own sampling settings. `read` reads the next chunk of
prompts, `start` chooses their first tokens, and `launch` steps all slots. What happens in one slot never
changes the bits of another:

- A chunk of a prompt has a shape that depends on the prompt only. A GPU reads first chunks in one shape and
  all others in another one.
- A step has the full shape, all slots and the whole context, or a smaller one. When the batch is created,
  `_find_equal_shapes` runs random tokens in every smaller shape. Shapes that changed a bit are never used:
  matrix libraries select their algorithm, and so the order of additions, by shape.

On a GPU a step of all slots is a captured CUDA graph, and so is the reading of chunks. Kernels attend to the
part of the cache that is in use, which does not change their bits. The host does not wait for copies to the
GPU; it waits for tokens only in `Round.ids`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bytewright.generate.decoder import Decoder, KeyValueCache
from bytewright.generate.row_sampling import RowSettings, SamplingKind, choose_by_row, kind_of
from bytewright.generate.sampling import SamplingConfig, draw_uniforms
from bytewright.generate.transfer import fetch, send
from bytewright.model.cuda_graph import CudaGraphFunction, capture_after_run

CHUNK_TOKENS = 64
"""The largest number of tokens of a prompt that are read between two steps."""
FIRST_CHUNK_ROWS = 32
"""On a GPU, the number of prompts whose first chunks are read at the same time."""
CHUNK_ROWS = 16
"""The same for later chunks, which also read the cache."""
NUM_PLACES = 4
"""How many numbers precede the ids of a chunk that is sent to a GPU (`_pack_chunk`)."""
FEWEST_POSITIONS = 64
"""The smallest number of cache positions that a step reads; the others are its doubles, up to the context."""

PROBED_LAYERS = 32
"""How many layers must have equal results, over all probing steps, before a number of rows is used.

One step does not suffice, since some differences occur for some values only. In a model of two layers, they
occurred in 9 to 17 of 20 steps.
"""


@dataclass(frozen=True)
class PromptChunk:
    """The next tokens of a prompt: at most `CHUNK_TOKENS`."""

    slot: int
    start: int
    """The position of the first of `ids` in the prompt."""
    ids: Sequence[int]


@dataclass(frozen=True)
class ReadChunks:
    """The hidden states of chunks that were read."""

    hidden: Float[Tensor, "chunks seq d_model"]
    """Those of all tokens; on a GPU followed by padding."""
    last: Float[Tensor, "chunks d_model"]
    """Those of the last token of each chunk."""


@dataclass(frozen=True)
class RowDraws:
    """How a sequence chooses its tokens: by the settings and the random stream (seed, row)."""

    sampling: SamplingConfig
    row: int
    max_new_tokens: int
    """At most the room in the context."""


@dataclass(frozen=True)
class Round:
    """The tokens that one or more steps choose, which may still be running on a GPU."""

    ids: Callable[[], list[list[int]]]
    """Waits for the steps; returns the ids that they chose, for every row."""
    logits: Float[Tensor, "rows vocab"]
    """The logits of the last step; the next step overwrites them on a GPU."""


class SlotBatch:
    """`num_slots` sequences of a decoder, each of up to `context_length` tokens."""

    def __init__(self, decoder: Decoder, num_slots: int, *, num_ids: int, can_capture: bool = True) -> None:
        self.decoder, self.num_slots, self.num_ids = decoder, num_slots, num_ids
        self.capacity, device = decoder.config.context_length, decoder.device
        self.is_on_gpu = device.type == "cuda"
        self.is_captured = self.is_on_gpu and can_capture
        # One more row, which belongs to no sequence: unused chunks of a call are written to it.
        self.cache = decoder.new_cache(num_slots + 1, self.capacity)
        # The token of slots without a sequence; its values are finite even in a model with broken weights.
        self._idle_id = int(decoder.embeddings.isfinite().all(dim=-1).int().argmax())
        self.ids = torch.full((num_slots,), self._idle_id, device=device)
        self.positions = torch.zeros(num_slots, dtype=torch.long, device=device)
        """The position of each of `ids` in its sequence."""
        self.settings = RowSettings.greedy(num_slots, device)
        self.kinds = [SamplingKind.GREEDY] * num_slots
        self.uniforms = torch.zeros(num_slots, self.capacity, device=device)
        self.num_chosen = torch.zeros(num_slots, dtype=torch.long, device=device)
        """How many tokens each sequence has chosen: the index of its next uniform number."""
        self._num_read = [0] * num_slots
        """How many tokens of its prompt each sequence has read."""
        self._views = {num_slots: self.cache.first(num_slots)}
        self._graphs: dict[tuple[SamplingKind, int, int], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._readers: dict[bool, Callable[..., tuple[Tensor, ...]]] = {
            True: self._read_first_chunks,
            False: self._read_later_chunks,
        }
        if self.is_captured:
            self._readers = {is_first: CudaGraphFunction(read) for is_first, read in self._readers.items()}
        self._released: set[int] = set()
        self._shapes: set[tuple[int, int]] = set()
        if not self.is_on_gpu:
            self._find_equal_shapes()
        self.has_equal_rows = self._compare_rows()
        """Whether a token has the same bits in every slot."""

    def release(self, slot: int) -> None:
        """Mark a slot as unused; steps still compute it, until `read` and `start` prepare it again."""
        self._released.add(slot)

    def reset_released(self) -> None:
        """Prepare released slots for steps without a sequence; it raises if the device is lost."""
        if self._released:
            slots = send(torch.tensor(sorted(self._released)), self.decoder.device)
            self.ids.index_fill_(0, slots, self._idle_id)
            self.positions.index_fill_(0, slots, 0)
            self._released.clear()

    def chunk_rows(self, *, is_first: bool) -> int:
        """Return the number of chunks that one call of `read` accepts."""
        if not self.is_on_gpu:
            return 1
        return FIRST_CHUNK_ROWS if is_first else CHUNK_ROWS

    def read(self, chunks: Sequence[PromptChunk]) -> ReadChunks:
        """Read one chunk of each of up to `chunk_rows` prompts.

        On a GPU, either all chunks are the first of their prompts, or none is.
        """
        self.reset_released()
        for chunk in chunks:
            self._num_read[chunk.slot] = chunk.start + len(chunk.ids)
        if not self.is_on_gpu:
            (chunk,) = chunks
            end = chunk.start + len(chunk.ids)
            rows, starts = torch.tensor([chunk.slot]), torch.tensor([chunk.start])
            self.positions[chunk.slot] = end % self.capacity
            hidden = self.decoder.read_chunk(self.cache, rows, torch.tensor([list(chunk.ids)]), starts, end)
            return ReadChunks(hidden, hidden[:, -1])
        num_chunks, is_first = len(chunks), chunks[0].start == 0
        width = min(CHUNK_TOKENS, self.capacity)
        values = [self._pack_chunk(chunk, width) for chunk in chunks]
        unused = [self.num_slots, *[0] * (NUM_PLACES - 1 + width)]
        values += [unused] * (self.chunk_rows(is_first=is_first) - num_chunks)
        packed = send(torch.tensor(values), self.decoder.device)
        rows, ends, _, _ = packed[:num_chunks, :NUM_PLACES].unbind(dim=1)
        self.positions.index_copy_(0, rows, ends)
        hidden, last = self._readers[is_first](packed)
        return ReadChunks(hidden[:num_chunks], last[:num_chunks])

    def _pack_chunk(self, chunk: PromptChunk, width: int) -> list[int]:
        """Return the slot, the position after the chunk, its start, the index of its last token, and its ids.

        The ids are padded with one of their own: another token may have values that are not finite.
        """
        num_ids = len(chunk.ids)
        end = (chunk.start + num_ids) % self.capacity
        padding = [chunk.ids[-1]] * (width - num_ids)
        return [chunk.slot, end, chunk.start, num_ids - 1, *chunk.ids, *padding]

    def _read_first_chunks(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        rows, _, _, last = packed[:, :NUM_PLACES].unbind(dim=1)
        hidden = self.decoder.read_first_chunk(self.cache, rows, packed[:, NUM_PLACES:])
        return hidden, _take_last(hidden, last)

    def _read_later_chunks(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        rows, _, starts, last = packed[:, :NUM_PLACES].unbind(dim=1)
        hidden = self.decoder.read_chunk(self.cache, rows, packed[:, NUM_PLACES:], starts)
        return hidden, _take_last(hidden, last)

    def start(
        self, slots: Sequence[int], draws: Sequence[RowDraws], hidden: Float[Tensor, "rows d_model"]
    ) -> Round:
        """Choose the first tokens of sequences whose prompts were read: row i of the result is `slots[i]`.

        `hidden` has the hidden states of the last tokens of the prompts.
        """
        rows = send(torch.tensor(list(slots)), self.decoder.device)
        self.settings.write(rows, [draw.sampling for draw in draws])
        for slot, draw in zip(slots, draws, strict=True):
            self._clear_unused(slot)
            self.kinds[slot] = kind_of(draw.sampling)
            if self.kinds[slot] != SamplingKind.GREEDY:
                uniforms = draw_uniforms(draw.sampling.seed, draw.row, draw.max_new_tokens)
                self.uniforms[slot, : draw.max_new_tokens] = send(uniforms, self.decoder.device)
        # Always the same number of rows on a GPU, where the shape of a product determines its rounding.
        padding = self.chunk_rows(is_first=True) - len(slots)
        logits = self.decoder.score(torch.cat((hidden, hidden[:1].expand(padding, -1))))[: len(slots)]
        kind = max(self.kinds[slot] for slot in slots)
        uniforms = self.uniforms[rows, 0]
        chosen = choose_by_row(logits[:, : self.num_ids], self.settings.at(rows), uniforms, kind)
        self.ids[rows] = chosen
        self.num_chosen[rows] = 1
        return Round(fetch(chosen.unsqueeze(-1)), logits)

    def _clear_unused(self, slot: int) -> None:
        """Clear the positions after the prompt, where steps of earlier sequences may have written NaN.

        A sequence that failed may have written it. So may one that ended on a GPU, since steps in flight
        continue after its last checked token. The attention kernels load only positions of the sequence
        itself, so they do not need this.
        """
        if not self.decoder.has_kernel:
            self.cache.clear(slot, self._num_read[slot])

    def launch(self, active: Sequence[int], num_tokens: int, num_steps: int = 1) -> Round:
        """Step all slots; tokens are chosen for the active ones, whose longest sequence has `num_tokens`.

        `num_tokens` includes the token that the first step reads. On a GPU the call returns before the steps
        end.
        """
        self.reset_released()
        kind = max(self.kinds[slot] for slot in active)
        if self.is_on_gpu:
            return self._launch_on_gpu(kind, num_tokens + num_steps - 1, num_steps)
        assert num_steps == 1
        num_rows, num_positions = self._shape_for(max(active) + 1, num_tokens)
        cache = self._view(num_rows)
        logits = self.decoder.step(cache, self.ids[:num_rows], self.positions[:num_rows], num_positions)
        self.positions[:num_rows].add_(1).clamp_(max=self.capacity - 1)
        # Rows of one kind at a time, so that filters of one row do not slow down another.
        for kind in {self.kinds[slot] for slot in active}:
            rows = torch.tensor([slot for slot in active if self.kinds[slot] == kind])
            uniforms = self.uniforms[rows, self.num_chosen[rows]]
            self.ids[rows] = choose_by_row(
                logits[rows, : self.num_ids], self.settings.at(rows), uniforms, kind
            )
            self.num_chosen[rows] = (self.num_chosen[rows] + 1).clamp(max=self.capacity - 1)
        return Round(fetch(self.ids[:num_rows].unsqueeze(-1)), logits)

    def _launch_on_gpu(self, kind: SamplingKind, num_tokens: int, num_steps: int) -> Round:
        num_positions = self.capacity
        if self.decoder.fused_step is not None:
            # The last steps of a round may exceed the context of a sequence that ends before them.
            num_tokens = min(num_tokens, self.capacity)
            num_positions = next(n for n in doubles(FEWEST_POSITIONS, self.capacity) if n >= num_tokens)
        if not self.is_captured:
            chosen, logits = self._run_steps(kind, num_positions, num_steps)
            return Round(fetch(chosen), logits)
        shape = kind, num_positions, num_steps
        if shape not in self._graphs:
            state = [self.ids, self.positions, self.num_chosen]
            graph, results = capture_after_run(lambda: self._run_steps(*shape), state)
            self._graphs[shape] = graph, *results
        graph, chosen, logits = self._graphs[shape]
        graph.replay()
        return Round(fetch(chosen), logits)

    def _run_steps(self, kind: SamplingKind, num_positions: int, num_steps: int) -> tuple[Tensor, Tensor]:
        """Run steps of the full shape; return the ids that they chose, and the logits of the last one."""
        chosen = torch.empty(self.num_slots, num_steps, dtype=torch.long, device=self.decoder.device)
        for step in range(num_steps):
            logits = self._advance(kind, num_positions)
            chosen[:, step].copy_(self.ids)
        return chosen, logits

    def _advance(self, kind: SamplingKind, num_positions: int) -> Float[Tensor, "slots vocab"]:
        """Run one step of the full shape without host synchronisation."""
        if (fused := self.decoder.fused_step) is not None:
            from bytewright.generate.fused_step import TokenChoice

            choice = TokenChoice(self.num_chosen, None, self.num_ids, self.settings, self.uniforms, kind)
            cache = self._view(self.num_slots)
            return fused.step_and_choose(cache, self.ids, self.positions, choice, num_positions)
        logits = self.decoder.step(self._view(self.num_slots), self.ids, self.positions)
        self.positions.add_(1).clamp_(max=self.capacity - 1)
        uniforms = self.uniforms.gather(1, self.num_chosen.unsqueeze(1)).squeeze(1)
        self.ids.copy_(choose_by_row(logits[:, : self.num_ids], self.settings, uniforms, kind))
        self.num_chosen.add_(1).clamp_(max=self.capacity - 1)
        return logits

    def _view(self, num_rows: int) -> KeyValueCache:
        if num_rows not in self._views:
            self._views[num_rows] = self.cache.first(num_rows)
        return self._views[num_rows]

    def _shape_for(self, num_rows: int, num_positions: int) -> tuple[int, int]:
        """Return the smallest shape for a number of rows and of cache positions."""
        fitting = [shape for shape in self._shapes if shape[0] >= num_rows and shape[1] >= num_positions]
        return min(fitting, default=(self.num_slots, self.capacity))

    @torch.inference_mode()
    def _find_equal_shapes(self) -> None:
        """Find the shapes of a step whose logits equal those of the full shape, bit for bit.

        The order of additions does not depend on the values, so one draw shows whether it differs. An
        operation such as `silu` may round the last elements of a batch differently, and only for some values.
        Several draws find this.
        """
        generator = torch.Generator().manual_seed(0)
        for buffer in self.cache.keys + self.cache.values:
            first = torch.randn(buffer.shape[1:], generator=generator)
            for row in range(self.num_slots):
                buffer[row] = first.roll(row, dims=1)
        row_counts = doubles(1, self.num_slots)
        for _ in range(math.ceil(PROBED_LAYERS / self.decoder.config.num_layers)):
            row_counts = self._find_equal_row_counts(row_counts, self.capacity, generator)
        for num_positions in doubles(FEWEST_POSITIONS, self.capacity):
            equal = self._find_equal_row_counts(row_counts, num_positions, generator)
            self._shapes.update((num_rows, num_positions) for num_rows in equal)

    def _find_equal_row_counts(
        self, row_counts: Sequence[int], num_positions: int, generator: torch.Generator
    ) -> list[int]:
        """Return the numbers of rows whose logits for one draw of tokens equal those of the full shape."""
        ids = torch.randint(self.decoder.config.vocab_size, (self.num_slots,), generator=generator)
        positions = torch.randint(num_positions, (self.num_slots,), generator=generator)
        full = self.decoder.step(self._view(self.num_slots), ids, positions, self.capacity)
        equal = []
        for num_rows in row_counts:
            part = self.decoder.step(
                self._view(num_rows), ids[:num_rows], positions[:num_rows], num_positions
            )
            if torch.equal(part, full[:num_rows]):
                equal.append(num_rows)
        return equal

    @torch.inference_mode()
    def _compare_rows(self) -> bool:
        """Return whether the same token after the same text has the same logits in every slot."""
        generator = torch.Generator(self.decoder.device).manual_seed(0)
        for buffer in self.cache.keys + self.cache.values:
            buffer.copy_(torch.randn(buffer.shape[1:], generator=generator, device=buffer.device))
        ids = torch.full_like(self.ids, self._idle_id)
        positions = torch.full_like(self.ids, self.capacity // 2)
        logits = self.decoder.step(self._view(self.num_slots), ids, positions)
        for buffer in self.cache.keys + self.cache.values:
            buffer.zero_()
        return torch.equal(logits, logits[:1].expand_as(logits))


def _take_last(
    hidden: Float[Tensor, "chunks seq d_model"], last: Int[Tensor, " chunks"]
) -> Float[Tensor, "chunks d_model"]:
    """Return the hidden state of one token of each chunk."""
    return hidden[torch.arange(len(last), device=last.device), last]


def doubles(first: int, last: int) -> list[int]:
    """Return first, 2·first, 4·first, …, and `last` at the end.

    >>> doubles(64, 300), doubles(64, 16)
    ([64, 128, 256, 300], [16])
    """
    numbers = []
    while first < last:
        numbers.append(first)
        first *= 2
    return [*numbers, last]
