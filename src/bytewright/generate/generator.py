"""Generation with a cache: continue many prompts of different lengths at once, ids in, ids out.

All sequences of a batch step together. Each ends by itself: at a stop token, after `max_new_tokens`, or when
the model's context is full. The ids of a sequence do not depend on the other sequences. `DeviceSteps` does
the work on the device, and `_Batch` the bookkeeping on the host. On a GPU the host checks for ended sequences
only every `STEPS_BETWEEN_CHECKS` steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from bytewright.generate.decoder import Decoder
from bytewright.generate.reference import Completion, check_prompts, find_reason
from bytewright.generate.sampling import SamplingConfig, check_chosen, choose_tokens, draw_uniforms
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.cuda_graph import capture

STEPS_BETWEEN_CHECKS = 16
"""On a GPU, the number of steps between two checks whether every sequence has ended."""

DEFAULT_SAMPLING = SamplingConfig()
"""No filters and temperature 1: each token is drawn with the probability that the model assigns to it."""
MAX_GRAPHS = 8
"""On a GPU, the number of CUDA graphs that a `Generator` keeps, each with its own buffers."""


def generate(
    model: TransformerLM, prompts: Sequence[Sequence[int]], sampling: SamplingConfig = DEFAULT_SAMPLING
) -> list[Completion]:
    """Return a completion of every prompt; for repeated calls, create one `Generator`."""
    return Generator(model, len(prompts)).generate(prompts, sampling)


def stream(
    model: TransformerLM, prompts: Sequence[Sequence[int]], sampling: SamplingConfig = DEFAULT_SAMPLING
) -> Iterator[list[int | None]]:
    """Yield the next id of every sequence, step by step; None for a sequence that has ended."""
    return Generator(model, len(prompts)).stream(prompts, sampling)


class Generator:
    """A snapshot of the weights of `model`, packed for about `batch_size` prompts at a time.

    On a GPU it also keeps captured graphs with their buffers. There, one batch must be finished before the
    next one starts.
    """

    def __init__(self, model: TransformerLM, batch_size: int = 1) -> None:
        self.decoder = Decoder(model, batch_size)
        self._steps: dict[tuple[object, ...], DeviceSteps] = {}

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, *, first_row: int = 0
    ) -> list[Completion]:
        """Return a completion of every prompt; prompt i uses the random stream (seed, first_row + i)."""
        on_gpu = self.decoder.device.type == "cuda"
        batch = _Batch(self.decoder.config, prompts, sampling, first_row)
        for _ in self._run(batch, STEPS_BETWEEN_CHECKS if on_gpu else 1):
            pass
        return batch.completions()

    def generate_many(
        self, prompts: Iterable[Sequence[int]], sampling: SamplingConfig, batch_size: int
    ) -> Iterator[Completion]:
        """Yield a completion of every prompt; the ids do not depend on `batch_size`.

        Prompts are read from the iterable one batch at a time. `check_prompts` can check them beforehand.
        """
        pending, first = iter(prompts), 0
        while batch := list(islice(pending, batch_size)):
            yield from self.generate(batch, sampling, first_row=first)
            first += len(batch)

    def stream(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig
    ) -> Iterator[list[int | None]]:
        """Yield the next id of every sequence, step by step; None for a sequence that has ended.

        The ids are those of `generate`. Steps in which no sequence continues are not yielded.
        """
        return self._run(_Batch(self.decoder.config, prompts, sampling), 1)

    def _run(self, batch: _Batch, steps_between_checks: int) -> Iterator[list[int | None]]:
        if not batch.max_steps:
            return
        steps = self._steps_for(batch)
        steps.start(batch.prompts, batch.sampling.seed, batch.max_steps, batch.first_row)
        num_seen = 0
        while True:
            while steps.num_done < min(num_seen + steps_between_checks, batch.max_steps):
                steps.take()
            written = batch.record(steps.chosen[:, num_seen : steps.num_done].tolist())
            num_seen = steps.num_done
            for step in range(max(map(len, written))):
                yield [ids[step] if step < len(ids) else None for ids in written]
            if num_seen == batch.max_steps or batch.all_ended():
                return

    def _steps_for(self, batch: _Batch) -> DeviceSteps:
        """Return buffers for the batch; on a GPU they are reused for the same batch size and sampling."""
        capacity = min(batch.capacity, self.decoder.config.context_length)
        if self.decoder.device.type != "cuda":
            return DeviceSteps(self.decoder, batch.sampling, len(batch.prompts), capacity)
        capacity = min(1 << (capacity - 1).bit_length(), self.decoder.config.context_length)
        choosing = dataclasses.replace(batch.sampling, max_new_tokens=0, stop_tokens=(), seed=0)
        key = (len(batch.prompts), capacity, choosing)
        steps = self._steps.pop(key, None) or DeviceSteps(
            self.decoder, choosing, len(batch.prompts), capacity
        )
        self._steps[key] = steps  # moved to the end: the least recently used is deleted first
        if len(self._steps) > MAX_GRAPHS:
            del self._steps[next(iter(self._steps))]
        return steps


class DeviceSteps:
    """The device side of generation: read the last tokens, choose the next ones, repeat.

    Owns every tensor that a step uses, for `batch_size` sequences of up to `capacity` tokens, and writes them
    in place. On a GPU one step (model, choice and bookkeeping) is captured as a CUDA graph and replayed
    without host synchronisation.
    """

    def __init__(self, decoder: Decoder, sampling: SamplingConfig, batch_size: int, capacity: int) -> None:
        self.decoder, self.sampling, self.capacity = decoder, sampling, capacity
        device = decoder.device
        self.cache = decoder.new_cache(batch_size, capacity)
        self.uniforms = torch.zeros(batch_size, capacity, device=device)
        self.chosen = torch.zeros(batch_size, capacity, dtype=torch.long, device=device)
        """Column t holds the ids that step t chose."""
        self.column = torch.zeros(1, dtype=torch.long, device=device)
        self.ids = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.positions = torch.zeros(batch_size, dtype=torch.long, device=device)
        """The position of each of `ids` in its sequence."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.longest, self.aligned, self.num_done = 0, True, 0

    def start(self, prompts: Sequence[Sequence[int]], seed: int, max_steps: int, first_row: int = 0) -> None:
        """Read the prompts and choose the first token of each; prompt i uses random stream first_row + i."""
        lengths = [len(prompt) for prompt in prompts]
        self.longest, self.aligned = max(lengths), len(set(lengths)) == 1
        padded = torch.zeros(len(prompts), self.longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = torch.tensor(list(prompt))
        if self.sampling.temperature > 0:
            rows = range(first_row, first_row + len(prompts))
            uniforms = [draw_uniforms(seed, row, max_steps) for row in rows]
            self.uniforms[:, :max_steps] = torch.stack(uniforms).to(self.decoder.device)
        self.positions.copy_(torch.tensor(lengths))
        self.column.zero_()
        logits = self.decoder.read(self.cache, padded.to(self.decoder.device), self.positions)
        self._choose(logits)
        self.num_done = 1

    def take(self) -> None:
        """Run the model on the tokens chosen last and choose the next ones."""
        if self.decoder.device.type == "cuda" and self.sampling.has_users_sampler:
            self._advance(self.capacity, aligned=False)  # a user's sampler may synchronise with the host
        elif self.decoder.device.type == "cuda":
            if self.graph is None:
                self.graph = self._capture()
            self.graph.replay()
        else:
            num_slots = min(self.longest + self.num_done, self.capacity)
            self._advance(num_slots, aligned=self.aligned)
        self.num_done += 1

    def _advance(self, num_slots: int, *, aligned: bool) -> None:
        logits = self.decoder.step(self.cache, self.ids, self.positions, num_slots, aligned=aligned)
        # A full sequence has ended but still steps with the others: it overwrites its last slot.
        self.positions.add_(1).clamp_(max=self.capacity - 1)
        self._choose(logits)

    def _choose(self, logits: Tensor) -> None:
        uniforms = self.uniforms.index_select(1, self.column).squeeze(1)
        self.ids.copy_(choose_tokens(logits, self.sampling, uniforms))
        self.chosen.index_copy_(1, self.column, self.ids.unsqueeze(1))
        self.column.add_(1)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Capture one masked step over the whole capacity.

        A first run outside the graph lets the libraries allocate their workspaces. The state that this run
        changed is restored afterwards; its entries in the cache are overwritten by the captured step.
        """
        state = [self.column, self.ids, self.positions, self.chosen]
        before = [tensor.clone() for tensor in state]
        self._advance(self.capacity, aligned=False)
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
        graph, _ = capture(lambda: self._advance(self.capacity, aligned=False))
        return graph


class _Batch:
    """The host side of generation: the ids of each sequence, and whether it has ended."""

    def __init__(
        self,
        config: ModelConfig,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        first_row: int = 0,
    ) -> None:
        check_prompts(config, prompts)
        self.config, self.prompts, self.sampling, self.first_row = config, prompts, sampling, first_row
        self.room = [min(sampling.max_new_tokens, config.context_length - len(prompt)) for prompt in prompts]
        self.written: list[list[int]] = [[] for _ in prompts]
        self.stopped = [False] * len(prompts)
        self.stop_tokens = frozenset(sampling.stop_tokens)
        self.max_steps = max(self.room)
        self.capacity = max(len(prompt) for prompt in prompts) + self.max_steps

    def record(self, chosen: list[list[int]]) -> list[list[int]]:
        """Add the ids that the last steps chose; return those before the end of each sequence."""
        return [self._record_row(row, ids) for row, ids in enumerate(chosen)]

    def _record_row(self, row: int, ids: list[int]) -> list[int]:
        if self.stopped[row]:
            return []
        ids = ids[: self.room[row] - len(self.written[row])]
        stops = [place for place, id in enumerate(ids) if id in self.stop_tokens]
        if stops:
            self.stopped[row] = True
            ids = ids[: stops[0]]
        check_chosen(ids, len(self.written[row]), self.sampling.sampler)
        self.written[row] += ids
        return ids

    def all_ended(self) -> bool:
        return all(
            stopped or len(written) == room
            for stopped, written, room in zip(self.stopped, self.written, self.room, strict=True)
        )

    def completions(self) -> list[Completion]:
        return [
            Completion(written, find_reason(self.config, prompt, len(written), self.sampling.max_new_tokens))
            for prompt, written in zip(self.prompts, self.written, strict=True)
        ]
