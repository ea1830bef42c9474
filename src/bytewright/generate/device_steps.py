"""The device side of generation: buffers, the step that chooses the next tokens, and its CUDA graphs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bytewright.generate.decoder import Decoder
from bytewright.generate.row_sampling import RowSettings, SamplingKind, choose_by_row, kind_of
from bytewright.generate.sampling import SamplingConfig, choose_tokens, draw_uniforms
from bytewright.generate.transfer import send
from bytewright.model import kernels
from bytewright.model.cuda_graph import CudaGraphFunction, capture_after_run

MAX_GRAPHS = 8
"""On a GPU, the number of CUDA graphs of steps, and of readers of prompts, that are kept."""
MAX_CAPTURED_TOKENS = 4096
"""On a GPU, the largest number of tokens of prompts whose reading is captured. Prompts with more tokens in
all are not captured: the time to launch kernels is then negligible."""
PROMPT_MULTIPLE = 16
"""On a GPU, prompts are padded to a multiple of this number of tokens, so that calls share graphs."""


class DeviceSteps:
    """The device side of generation: read the last tokens, choose the next ones, repeat.

    Owns every tensor that a step uses, for `batch_size` sequences of up to `capacity` tokens, and writes them
    in place. On a GPU one step (model, choice and bookkeeping) is captured as a CUDA graph and replayed
    without host synchronisation.
    """

    def __init__(
        self, decoder: Decoder, sampling: SamplingConfig, batch_size: int, capacity: int, *, captured: bool
    ) -> None:
        self.decoder, self.sampling, self.capacity, self.captured = decoder, sampling, capacity, captured
        device = decoder.device
        self.cache = decoder.new_cache(batch_size, capacity)
        self.uniforms = torch.zeros(batch_size, capacity, device=device)
        self.chosen = torch.zeros(batch_size, capacity, dtype=torch.long, device=device)
        """Column t holds the ids that step t chose."""
        self.num_chosen = torch.zeros(batch_size, dtype=torch.long, device=device)
        """The next column of each sequence; all are equal."""
        self.ids = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.positions = torch.zeros(batch_size, dtype=torch.long, device=device)
        """The position of each of `ids` in its sequence."""
        self.settings, self.kind = None, SamplingKind.GREEDY
        """The settings of the kernels that draw tokens on an NVIDIA GPU."""
        if sampling.sampler is None and kernels.on_gpu(self.ids):
            self.settings, self.kind = RowSettings.of(sampling, batch_size, device), kind_of(sampling)
        self.graph: torch.cuda.CUDAGraph | None = None
        self._readers: dict[int, CudaGraphFunction] = {}
        self.longest, self.aligned, self.num_done = 0, True, 0

    def start(
        self, prompts: Sequence[Sequence[int]], seed: int, max_steps: int, first_random_stream: int = 0
    ) -> None:
        """Read the prompts and choose the first token of each.

        Prompt i uses the random stream with the key (seed, first_random_stream + i).
        """
        lengths = [len(prompt) for prompt in prompts]
        self.longest, self.aligned = max(lengths), len(set(lengths)) == 1
        width = self.longest
        if self.captured:
            width = min(-(-width // PROMPT_MULTIPLE) * PROMPT_MULTIPLE, self.capacity)
        padded = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = torch.frombuffer(array("q", list(prompt)), dtype=torch.long)
        if self.sampling.temperature > 0:
            streams = range(first_random_stream, first_random_stream + len(prompts))
            uniforms = [draw_uniforms(seed, stream, max_steps) for stream in streams]
            self.uniforms[:, :max_steps] = send(torch.stack(uniforms), self.decoder.device)
        self.positions.copy_(send(torch.tensor(lengths), self.decoder.device))
        self.num_chosen.zero_()
        self._reader(padded)(send(padded, self.decoder.device))
        self.num_done = 1

    def _reader(self, padded: Tensor) -> Callable[[Tensor], object]:
        """Return what reads prompts of a shape and chooses the first tokens; captured if they are short."""
        if not self.captured or padded.numel() > MAX_CAPTURED_TOKENS:
            return self._read
        width = padded.shape[1]
        reader = self._readers.pop(width, None) or CudaGraphFunction(self._read)
        self._readers[width] = reader  # moved to the end
        if len(self._readers) > MAX_GRAPHS:
            del self._readers[next(iter(self._readers))]
        return reader

    def _read(self, ids: Tensor) -> tuple[Tensor, ...]:
        self._choose(self.decoder.read(self.cache, ids, self.positions))
        return ()

    def take(self) -> None:
        """Run the model on the tokens chosen last and choose the next ones."""
        if self.captured:
            if self.graph is None:
                self.graph = self._capture()
            self.graph.replay()
        else:
            num_positions = min(self.longest + self.num_done, self.capacity)
            self._advance(num_positions, aligned=self.aligned)
        self.num_done += 1

    def _advance(self, num_positions: int, *, aligned: bool) -> None:
        fused = self.decoder.fused_step
        if fused is not None and self.settings is not None:
            from bytewright.generate.fused_step import TokenChoice

            num_ids = self.sampling.num_ids or self.decoder.config.vocab_size
            choice = TokenChoice(
                self.num_chosen, self.chosen, num_ids, self.settings, self.uniforms, self.kind
            )
            fused.step_and_choose(self.cache, self.ids, self.positions, choice)
            return
        logits = self.decoder.step(self.cache, self.ids, self.positions, num_positions, aligned=aligned)
        # A full sequence has ended but still steps with the others: it overwrites its last position.
        self.positions.add_(1).clamp_(max=self.capacity - 1)
        self._choose(logits)

    def _choose(self, logits: Tensor) -> None:
        columns = self.num_chosen.unsqueeze(1)
        uniforms = self.uniforms.gather(1, columns).squeeze(1)
        if self.settings is None:
            ids = choose_tokens(logits, self.sampling, uniforms)
        else:
            ids = choose_by_row(logits[:, : self.sampling.num_ids], self.settings, uniforms, self.kind)
        self.ids.copy_(ids)
        self.chosen.scatter_(1, columns, self.ids.unsqueeze(1))
        self.num_chosen.add_(1)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Capture one masked step over the whole capacity; it overwrites what the run before it cached."""
        state = [self.num_chosen, self.ids, self.positions, self.chosen]
        graph, _ = capture_after_run(lambda: self._advance(self.capacity, aligned=False), state)
        return graph
