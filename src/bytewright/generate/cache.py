"""What attention remembers of the tokens already read: their keys and values, layer by layer.

Every sequence owns one row of fixed capacity and fills it from the left, so sequences of different lengths
share a batch without padding in front: token t of a sequence always lies at slot t. What lies beyond a
sequence's length is garbage that is never attended to and is overwritten as the sequence grows. Buffers are
allocated once and written in place, which is what a CUDA graph needs.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bytewright.model.config import ModelConfig


class KeyValueCache:
    """Keys and values of `batch_size` sequences of up to `capacity` tokens, for every layer."""

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int,
        capacity: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.batch_size, self.capacity = batch_size, capacity
        shape = (batch_size, config.kv_heads, capacity, config.d_head)
        layers = range(config.num_layers)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in layers]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in layers]

    @property
    def num_bytes(self) -> int:
        """Memory it takes: 2 · layers · batch · kv_heads · capacity · d_head numbers."""
        return sum(buffer.nbytes for buffer in self.keys + self.values)

    def write_prompt(
        self,
        layer: int,
        keys: Float[Tensor, "batch kv_heads seq d_head"],
        values: Float[Tensor, "batch kv_heads seq d_head"],
    ) -> None:
        """Fill the first slots of every row."""
        num_tokens = keys.shape[-2]
        self.keys[layer][:, :, :num_tokens] = keys
        self.values[layer][:, :, :num_tokens] = values

    def write_token(
        self,
        layer: int,
        slots: int | Int[Tensor, " batch"],
        keys: Float[Tensor, "batch kv_heads d_head"],
        values: Float[Tensor, "batch kv_heads d_head"],
    ) -> None:
        """Put one token into each row: all at the same slot, or each at its own."""
        if isinstance(slots, int):
            self.keys[layer].select(2, slots).copy_(keys)
            self.values[layer].select(2, slots).copy_(values)
        else:
            rows = torch.arange(self.batch_size, device=slots.device)
            self.keys[layer][rows, :, slots] = keys
            self.values[layer][rows, :, slots] = values

    def read(
        self, layer: int, num_slots: int
    ) -> tuple[
        Float[Tensor, "batch kv_heads slots d_head"],
        Float[Tensor, "batch kv_heads slots d_head"],
    ]:
        """Return views of the first `num_slots` slots of every row."""
        return self.keys[layer][:, :, :num_slots], self.values[layer][:, :, :num_slots]
