"""The part of generation that stays on the device: read the last tokens, choose the next ones, repeat.

`Steps` owns every tensor that a step touches and writes them in place, so that on a GPU one step (model,
choice and bookkeeping) is captured once as a CUDA graph and replayed without a word from the host. Which
tokens count, and when to stop, is the host's business (`generate`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bytewright.generate.decoder import Decoder
from bytewright.generate.sampling import SamplingConfig, choose_tokens, draw_uniforms
from bytewright.model.cuda_graph import capture


class Steps:
    """Buffers and, on a GPU, the graph for `batch_size` sequences of up to `capacity` tokens."""

    def __init__(self, decoder: Decoder, sampling: SamplingConfig, batch_size: int, capacity: int) -> None:
        self.decoder, self.sampling, self.capacity = decoder, sampling, capacity
        device = decoder.device
        self.cache = decoder.new_cache(batch_size, capacity)
        self.uniforms = torch.zeros(batch_size, capacity, device=device)
        self.chosen = torch.zeros(batch_size, capacity, dtype=torch.long, device=device)
        """Column t holds what step t chose."""
        self.column = torch.zeros(1, dtype=torch.long, device=device)
        self.ids = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.positions = torch.zeros(batch_size, dtype=torch.long, device=device)
        """Where in its sequence each of `ids` stands."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.longest, self.aligned, self.num_taken = 0, True, 0

    def start(self, prompts: Sequence[Sequence[int]], seed: int, max_steps: int, first_row: int = 0) -> None:
        """Read the prompts and choose the first token of each; prompt i draws as row `first_row` + i."""
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
        self.num_taken = 1

    def take(self) -> None:
        """Let the model read the tokens chosen last, and choose the next ones."""
        if self.decoder.device.type == "cuda":
            if self.graph is None:
                self.graph = self._capture()
            self.graph.replay()
        else:
            num_slots = min(self.longest + self.num_taken, self.capacity)
            self._advance(num_slots, aligned=self.aligned)
        self.num_taken += 1

    def _advance(self, num_slots: int, *, aligned: bool) -> None:
        logits = self.decoder.step(self.cache, self.ids, self.positions, num_slots, aligned=aligned)
        # A sequence that is full has ended but goes on beside the others: its last slot takes what comes.
        self.positions.add_(1).clamp_(max=self.capacity - 1)
        self._choose(logits)

    def _choose(self, logits: Tensor) -> None:
        uniforms = self.uniforms.index_select(1, self.column).squeeze(1)
        self.ids.copy_(choose_tokens(logits, self.sampling, uniforms))
        self.chosen.index_copy_(1, self.column, self.ids.unsqueeze(1))
        self.column.add_(1)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Record one step over the whole capacity, with every position under the mask.

        A first run outside the graph lets the libraries make their workspaces. It moves the state on, so
        that is put back; what it wrote into the cache, the same step writes again.
        """
        state = [self.column, self.ids, self.positions, self.chosen]
        before = [tensor.clone() for tensor in state]
        self._advance(self.capacity, aligned=False)
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
        graph, _ = capture(lambda: self._advance(self.capacity, aligned=False))
        return graph
