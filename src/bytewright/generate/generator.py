"""Continue prompts: many at once, of different lengths, token by token or all at the end; ids in, ids out.

All sequences of a batch take their steps together and each ends by itself: at a stop token, at
`max_new_tokens`, or when the model's context is full. What a sequence becomes does not depend on its
neighbours. Knows nothing of text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from bytewright.generate.decoder import Decoder
from bytewright.generate.reference import Completion, check_prompts, find_reason
from bytewright.generate.sampling import SamplingConfig, refuse_no_token
from bytewright.generate.steps import Steps
from bytewright.model import ModelConfig, TransformerLM

STEPS_BETWEEN_LOOKS = 16
"""On a GPU, steps taken before the host asks whether every sequence has ended."""

PLAIN = SamplingConfig()
"""Every token by its probability."""
MOST_GRAPHS = 8
"""On a GPU, how many graphs a `Generator` keeps, each with buffers of its own."""


def generate(
    model: TransformerLM, prompts: Sequence[Sequence[int]], sampling: SamplingConfig = PLAIN
) -> list[Completion]:
    """Continue every prompt. Whoever calls it often makes one `Generator` and asks that."""
    return Generator(model, len(prompts)).generate(prompts, sampling)


def stream(
    model: TransformerLM, prompts: Sequence[Sequence[int]], sampling: SamplingConfig = PLAIN
) -> Iterator[list[int | None]]:
    """Yield the next id of every sequence, step by step; None for a sequence that has ended."""
    return Generator(model, len(prompts)).stream(prompts, sampling)


class Generator:
    """The weights of `model` as they are now, ready to write for about `batch_size` prompts at a time.

    Keeps the packed weights from call to call, and on a GPU the captured graphs with their buffers: there,
    finish one batch before starting the next.
    """

    def __init__(self, model: TransformerLM, batch_size: int = 1) -> None:
        self.decoder = Decoder(model, batch_size)
        self._steps: dict[tuple[object, ...], Steps] = {}

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, *, first_row: int = 0
    ) -> list[Completion]:
        """Continue every prompt; prompt i draws from the random stream (seed, first_row + i)."""
        on_gpu = self.decoder.device.type == "cuda"
        batch = _Batch(self.decoder.config, prompts, sampling, first_row)
        for _ in self._run(batch, STEPS_BETWEEN_LOOKS if on_gpu else 1):
            pass
        return batch.completions()

    def generate_many(
        self, prompts: Iterable[Sequence[int]], sampling: SamplingConfig, batch_size: int
    ) -> Iterator[Completion]:
        """Continue any number of prompts, `batch_size` at a time, which does not change what is written.

        A batch is taken from `prompts` when it is due. `check_prompts` checks them before.
        """
        pending, first = iter(prompts), 0
        while batch := list(islice(pending, batch_size)):
            yield from self.generate(batch, sampling, first_row=first)
            first += len(batch)

    def stream(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig
    ) -> Iterator[list[int | None]]:
        """Yield the next id of every sequence, step by step; None for a sequence that has ended.

        The ids are those of `generate`. A step that writes nothing any more is not yielded.
        """
        return self._run(_Batch(self.decoder.config, prompts, sampling), 1)

    def _run(self, batch: _Batch, steps_between_looks: int) -> Iterator[list[int | None]]:
        if not batch.max_steps:
            return
        steps = self._steps_for(batch)
        steps.start(batch.prompts, batch.sampling.seed, batch.max_steps, batch.first_row)
        num_seen = 0
        while True:
            while steps.num_taken < min(num_seen + steps_between_looks, batch.max_steps):
                steps.take()
            written = batch.record(steps.chosen[:, num_seen : steps.num_taken].tolist())
            num_seen = steps.num_taken
            for step in range(max(map(len, written))):
                yield [ids[step] if step < len(ids) else None for ids in written]
            if num_seen == batch.max_steps or batch.all_ended():
                return

    def _steps_for(self, batch: _Batch) -> Steps:
        """Find buffers that fit, or make them; a graph holds for one batch size and one way of choosing."""
        capacity = min(batch.capacity, self.decoder.config.context_length)
        if self.decoder.device.type != "cuda":
            return Steps(self.decoder, batch.sampling, len(batch.prompts), capacity)
        capacity = min(1 << (capacity - 1).bit_length(), self.decoder.config.context_length)
        choosing = dataclasses.replace(batch.sampling, max_new_tokens=0, stop_tokens=(), seed=0)
        key = (len(batch.prompts), capacity, choosing)
        steps = self._steps.pop(key, None) or Steps(self.decoder, choosing, len(batch.prompts), capacity)
        self._steps[key] = steps  # as the last: the one not used for longest goes first
        if len(self._steps) > MOST_GRAPHS:
            del self._steps[next(iter(self._steps))]
        return steps


class _Batch:
    """What the host knows of the sequences: what each has written, and whether it has ended."""

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
        """Take in the ids that the last steps chose for each sequence; return those of them that count."""
        return [self._record_row(row, ids) for row, ids in enumerate(chosen)]

    def _record_row(self, row: int, ids: list[int]) -> list[int]:
        if self.stopped[row]:
            return []
        ids = ids[: self.room[row] - len(self.written[row])]
        stops = [place for place, id in enumerate(ids) if id in self.stop_tokens]
        if stops:
            self.stopped[row] = True
            ids = ids[: stops[0]]
        refuse_no_token(ids, len(self.written[row]))
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
