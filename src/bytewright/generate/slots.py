"""A batch of fixed slots that sequences join and leave between steps, on the device: ids in, ids out.

Each slot has one row of the key/value cache and its own sampling settings. `read` reads the next chunks of
prompts and chooses the tokens after them, and `launch` steps all slots. What happens in one slot never
changes the bits of another:

- A chunk of a prompt is read in a shape that depends on the prompt only. A GPU reads first chunks in one
  shape, their tokens packed one after the other, and later chunks in another one. When the batch is created,
  `_compare_packed` reads one text at many places of the first shape. If a bit differs, this shape is not
  used, and first chunks are read like later ones.
- A step has the full shape, all slots and the whole context, or a smaller one. When the batch is created,
  `slot_probes` runs random tokens in every smaller shape. Shapes that changed a bit are never used.

On a GPU, a step of all slots is a captured CUDA graph, and so is a call that reads chunks. Attention kernels
read only the part of the cache that is in use, which does not change a bit of the result. The host does not
wait for copies to the GPU; it waits for tokens only in `Round.ids`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bytewright.generate.decoder import Decoder, KeyValueCache
from bytewright.generate.prompt_chunks import ChunkLayout, ChunkTable, PromptChunk, select_chunks
from bytewright.generate.row_sampling import RowSettings, SamplingKind, choose_by_row, kind_of
from bytewright.generate.sampling import draw_uniforms
from bytewright.generate.slot_probes import FEWEST_POSITIONS, compare_slots, find_equal_shapes, list_doubles
from bytewright.generate.transfer import fetch, send
from bytewright.model.cuda_graph import CudaGraphFunction, capture_after_run

PROBED_TOKENS = 15
"""The length of the text that `_compare_packed` reads. It is odd, so texts begin at many offsets of tiles."""


@dataclass(frozen=True)
class Round:
    """The tokens that one or more steps choose, which may still be running on a GPU."""

    ids: Callable[[], list[list[int]]]
    """Waits for the steps; returns the ids that they chose, for every row."""
    logits: Float[Tensor, "rows vocab"]
    """The logits of the last step; on a GPU the next launch overwrites them."""


@dataclass(frozen=True)
class ReadChunks:
    """The results of reading some chunks."""

    hidden: Float[Tensor, "tokens d_model"]
    """Hidden states of all tokens."""
    places: Sequence[range]
    """Where the tokens of each chunk are in `hidden`."""
    last: Float[Tensor, "chunks d_model"]
    """Hidden states of the last token of each chunk; on a GPU, unused rows follow."""
    first: Round | None
    """The first new tokens: row i is that of chunk i if it has `draws`. None if no chunk has `draws`."""

    def hidden_of(self, chunk: int) -> Float[Tensor, "seq d_model"]:
        """Return the hidden states of one chunk."""
        place = self.places[chunk]
        return self.hidden[place.start : place.stop]


class SlotBatch:
    """`num_slots` sequences of a decoder, each of up to `context_length` tokens."""

    def __init__(self, decoder: Decoder, num_slots: int, *, num_ids: int, can_capture: bool = True) -> None:
        self.decoder, self.num_slots, self.num_ids = decoder, num_slots, num_ids
        self.capacity, device = decoder.config.context_length, decoder.device
        self.is_on_gpu = device.type == "cuda"
        self.is_captured = self.is_on_gpu and can_capture
        # One more row than slots, which belongs to no sequence: unused parts of a call are written to it.
        num_rows = num_slots + 1
        self.cache = decoder.new_cache(num_rows, self.capacity)
        # The token of slots without a sequence; its values are finite even in a model with broken weights.
        self._idle_id = int(decoder.embeddings.isfinite().all(dim=-1).int().argmax())
        self._chunks = ChunkLayout(num_slots, self._idle_id, self.capacity)
        self._all_ids = torch.full((num_rows,), self._idle_id, device=device)
        self._all_positions = torch.zeros(num_rows, dtype=torch.long, device=device)
        self._all_settings = RowSettings.greedy(num_rows, device)
        self._all_uniforms = torch.zeros(num_rows, self.capacity, device=device)
        self._all_num_chosen = torch.zeros(num_rows, dtype=torch.long, device=device)
        self.ids = self._all_ids[:num_slots]
        self.positions = self._all_positions[:num_slots]
        """The position of each of `ids` in its sequence."""
        self.settings = self._all_settings.first(num_slots)
        self.uniforms = self._all_uniforms[:num_slots]
        self.num_chosen = self._all_num_chosen[:num_slots]
        """How many tokens each sequence has chosen: the index of its next uniform number."""
        self.kinds = [SamplingKind.GREEDY] * num_slots
        self._views = {num_slots: self.cache.first(num_slots)}
        self._graphs: dict[tuple[SamplingKind, int, int], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._readers: dict[tuple[bool, SamplingKind | None], Callable[..., tuple[Tensor, ...]]] = {}
        self._released: set[int] = set()
        self._shapes = set() if self.is_on_gpu else find_equal_shapes(decoder, self.cache, num_slots)
        self.packs_first = self.is_on_gpu and decoder.can_read_packed and self._compare_packed()
        """Whether a GPU reads the first chunks of prompts packed one after the other."""
        self.has_equal_slots = compare_slots(decoder, self.cache, num_slots, self._idle_id)
        """Whether a token has the same bits in every slot."""

    def release(self, slot: int) -> None:
        """Mark a slot as unused.

        The next `read` or `launch` gives it the idle token, unless that `read` ends the prompt of its next
        sequence. Steps may continue to compute it.
        """
        self._released.add(slot)

    def reset_released(self) -> None:
        """Prepare released slots for steps without a sequence; it raises if the device is lost."""
        if self._released:
            slots = send(torch.tensor(sorted(self._released)), self.decoder.device)
            self.ids.index_fill_(0, slots, self._idle_id)
            self.positions.index_fill_(0, slots, 0)
            self._released.clear()

    def select(self, chunks: Sequence[PromptChunk]) -> list[int]:
        """Return which chunks the next call of `read` may get: the first, and others that fit."""
        if not self.is_on_gpu:
            return [0]
        return select_chunks(chunks, packs_first=self.packs_first)

    def _is_packed(self, chunk: PromptChunk) -> bool:
        """Return whether a GPU reads the tokens of a chunk packed with those of others."""
        return self.packs_first and chunk.start == 0

    def read(self, chunks: Sequence[PromptChunk]) -> ReadChunks:
        """Read chunks that `select` has chosen, and choose the tokens after prompts that are complete."""
        for chunk in chunks:
            self._prepare(chunk)
        self.reset_released()
        self._write_uniforms(chunks)
        kind = max((self.kinds[chunk.slot] for chunk in chunks if chunk.draws), default=None)
        if not self.is_on_gpu:
            return self._read_on_cpu(chunks[0], kind)
        is_packed = self._is_packed(chunks[0])
        packed, places = (self._chunks.pack_first if is_packed else self._chunks.pack_later)(chunks)
        if (is_packed, kind) not in self._readers:
            read = functools.partial(self._read_first if is_packed else self._read_later, kind)
            self._readers[is_packed, kind] = CudaGraphFunction(read) if self.is_captured else read
        hidden, last, *chosen = self._readers[is_packed, kind](send(packed, self.decoder.device))
        first = None
        if chosen:
            ids, logits = chosen
            first = Round(fetch(ids[: len(chunks)].unsqueeze(-1)), logits)
        return ReadChunks(hidden, places, last, first)

    def _prepare(self, chunk: PromptChunk) -> None:
        """Prepare the slot of a chunk for the choice of tokens, if the prompt ends with it."""
        if chunk.draws is None:
            return
        self._released.discard(chunk.slot)  # the call writes its id and its position
        self.kinds[chunk.slot] = kind_of(chunk.draws.sampling)
        # Earlier sequences in this slot may have written NaN to the positions after the prompt: one that
        # failed, or on a GPU one whose round continued after its last token. The attention kernels load only
        # positions that the current sequence has written.
        if not self.decoder.has_kernel:
            self.cache.clear(chunk.slot, chunk.end)

    def _write_uniforms(self, chunks: Sequence[PromptChunk]) -> None:
        """Write the random numbers of sequences that start to draw tokens."""
        drawn = {
            chunk.slot: draw_uniforms(draws.sampling.seed, draws.random_stream, draws.max_new_tokens)
            for chunk in chunks
            if (draws := chunk.draws) and self.kinds[chunk.slot] != SamplingKind.GREEDY
        }
        if drawn:
            slots = send(torch.tensor(list(drawn)), self.decoder.device)
            uniforms = send(pad_sequence(list(drawn.values()), batch_first=True), self.decoder.device)
            self.uniforms[:, : uniforms.shape[1]].index_copy_(0, slots, uniforms)

    def _read_on_cpu(self, chunk: PromptChunk, kind: SamplingKind | None) -> ReadChunks:
        rows, starts = torch.tensor([chunk.slot]), torch.tensor([chunk.start])
        self.positions[chunk.slot] = chunk.end % self.capacity
        ids = torch.tensor([list(chunk.ids)])
        (hidden,) = self.decoder.read_chunk(self.cache, rows, ids, starts, chunk.end)
        first = None
        if chunk.draws is not None and kind is not None:
            self.settings.write(rows, [chunk.draws.sampling])
            chosen, logits = self._choose_first(rows, hidden[-1:], kind)
            first = Round(fetch(chosen.unsqueeze(-1)), logits)
        return ReadChunks(hidden, [range(len(hidden))], hidden[-1:], first)

    def _read_first(self, kind: SamplingKind | None, packed: Int[Tensor, " numbers"]) -> tuple[Tensor, ...]:
        """Read packed first chunks on a GPU; return hidden states, those of last tokens, and choices."""
        table, places, ids = self._chunks.unpack_first(packed)
        hidden = self.decoder.read_packed(self.cache, ids, places, self._chunks.width)
        return self._finish_reading(kind, table, hidden)

    def _read_later(self, kind: SamplingKind | None, packed: Int[Tensor, " numbers"]) -> tuple[Tensor, ...]:
        """Read chunks one per row on a GPU; return the same."""
        table, ids = self._chunks.unpack_later(packed)
        hidden = self.decoder.read_chunk(self.cache, table.slots, ids, table.starts)
        return self._finish_reading(kind, table, hidden.flatten(0, 1))

    def _finish_reading(
        self, kind: SamplingKind | None, table: ChunkTable, hidden: Float[Tensor, "tokens d_model"]
    ) -> tuple[Tensor, ...]:
        """Write the positions after chunks, and the first tokens of complete prompts."""
        self._all_positions.index_copy_(0, table.slots, table.ends)
        last = hidden[table.last_tokens]
        if kind is None:
            return hidden, last
        self._all_settings.write_values(table.starting_slots, table.settings)
        return hidden, last, *self._choose_first(table.starting_slots, last, kind)

    def _choose_first(
        self, rows: Int[Tensor, " rows"], last: Float[Tensor, "rows d_model"], kind: SamplingKind
    ) -> tuple[Int[Tensor, " rows"], Float[Tensor, "rows vocab"]]:
        """Choose the first tokens of sequences from the hidden states of the last tokens of their prompts."""
        logits = self.decoder.score(last)
        settings, uniforms = self._all_settings.at(rows), self._all_uniforms[rows, 0]
        chosen = choose_by_row(logits[:, : self.num_ids], settings, uniforms, kind)
        self._all_ids.index_copy_(0, rows, chosen)
        self._all_num_chosen.index_fill_(0, rows, 1)
        return chosen, logits

    def launch(self, active: Sequence[int], num_tokens: int, num_steps: int = 1) -> Round:
        """Step all slots; tokens are chosen for the active ones, whose longest sequence has `num_tokens`.

        `num_tokens` includes the token that the first step reads. On a GPU the call returns before the steps
        end.
        """
        self.reset_released()
        if self.is_on_gpu:
            kind = max(self.kinds[slot] for slot in active)
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
        fused = self.decoder.fused_step
        if fused is not None and not fused.reads_whole_sequences(self.num_slots):
            # The last steps of a round may exceed the context of a sequence that ends before them.
            num_tokens = min(num_tokens, self.capacity)
            num_positions = next(n for n in list_doubles(FEWEST_POSITIONS, self.capacity) if n >= num_tokens)
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
    def _compare_packed(self) -> bool:
        """Return whether a packed text has the same hidden states at every place of the call."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(self.decoder.config.vocab_size, (PROBED_TOKENS,), generator=generator).tolist()
        packed, places = self._chunks.pack_first(self._chunks.repeat_first(ids[: self.capacity]))
        hidden, *_ = self._read_first(None, send(packed, self.decoder.device))
        texts = [hidden[place.start : place.stop] for place in places]
        return all(torch.equal(text, texts[0]) for text in texts)
