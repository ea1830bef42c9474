"""A model that remembers: reads prompts, then takes one token at a time, with a cache of keys and values.

The fast twin of running the model over everything so far: a token costs one pass over the packed weights and
over what the cache holds. `Decoder` turns ids into scores and knows nothing of sampling, stopping or text.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from bytewright.generate.cache import KeyValueCache
from bytewright.generate.packed import PackedBlock, PackedMatrix, pack_block, snapshot
from bytewright.model import TransformerBlock, TransformerLM
from bytewright.model.config import Norm
from bytewright.model.fused import rotate_halves
from bytewright.model.layers import EPSILON

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries, keys, values), all of them (batch, seq, heads, d_head), to what was attended to."""


class Decoder:
    """The weights of `model` as they are now, packed for `batch_size` sequences; any number works."""

    def __init__(self, model: TransformerLM, batch_size: int = 1) -> None:
        weights = model.token_embeddings.weight
        self.config, self.device = model.config, weights.device
        self.dtype = weights.dtype if model.compute_dtype is None else model.compute_dtype
        self.embeddings = snapshot(weights, self.dtype)
        blocks = [block for block in model.layers if isinstance(block, TransformerBlock)]
        with torch.no_grad():
            self.blocks = [pack_block(block, self.dtype, batch_size) for block in blocks]
        self.final_gain = None if model.ln_final is None else snapshot(model.ln_final.weight, self.dtype)
        self.head = PackedMatrix(snapshot(model.output_weight, self.dtype), batch_size)
        self.rope = blocks[0].attn.rope

    def new_cache(self, batch_size: int, capacity: int) -> KeyValueCache:
        """Make room for `batch_size` sequences of up to `capacity` tokens."""
        return KeyValueCache(self.config, batch_size, capacity, self.device, self.dtype)

    @torch.no_grad()
    def read(
        self, cache: KeyValueCache, ids: Int[Tensor, "batch seq"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch vocab"]:
        """Read prompts into an empty cache; return the scores for the token after each.

        Row i of `ids` holds a prompt of `lengths[i]` tokens and then anything: no token sees what follows it.
        """

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            cache.write_prompt(layer, k, v)
            grouped = self.config.kv_heads != self.config.num_heads
            attended = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
            return attended.transpose(1, 2)

        positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        x = self._run_blocks(ids, positions, attend)
        return self._score(x[torch.arange(len(x), device=x.device), lengths - 1])

    @torch.no_grad()
    def step(
        self,
        cache: KeyValueCache,
        ids: Int[Tensor, " batch"],
        positions: Int[Tensor, " batch"],
        num_slots: int | None = None,
        *,
        aligned: bool = False,
    ) -> Float[Tensor, "batch vocab"]:
        """Read one more token of each sequence, each at its own position; return the scores for the next.

        `num_slots` bounds what the cache holds, this token included (its capacity unless told otherwise).
        `aligned` promises that every sequence has exactly that many, which saves the mask.
        """
        num_slots = cache.capacity if num_slots is None else num_slots
        mask = None
        if not aligned:
            mask = torch.arange(num_slots, device=ids.device) <= positions.unsqueeze(-1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if aligned:
                cache.write_column(layer, num_slots - 1, k[:, 0], v[:, 0])
            else:
                cache.write_token(layer, positions, k[:, 0], v[:, 0])
            keys, values = cache.read(layer, num_slots)
            # Query heads that share a key/value head stand as the rows of one product.
            queries = q.reshape(len(q), self.config.kv_heads, -1, self.config.d_head)
            return attend_to_cache(queries, keys, values, mask).reshape(q.shape)

        return self._score(self._run_blocks(ids.unsqueeze(-1), positions.unsqueeze(-1), attend)[:, 0])

    def _run_blocks(
        self, ids: Int[Tensor, "batch seq"], positions: Int[Tensor, "batch seq"], attend: Attend
    ) -> Float[Tensor, "batch seq d_model"]:
        angles = None if self.rope is None else (self.rope.cos[positions], self.rope.sin[positions])
        x = self.embeddings[ids]
        for layer, block in enumerate(self.blocks):
            x = self._run_block(x, layer, block, angles, attend)
        return x

    def _run_block(
        self,
        x: Float[Tensor, "batch seq d_model"],
        layer: int,
        block: PackedBlock,
        angles: tuple[Tensor, Tensor] | None,
        attend: Attend,
    ) -> Float[Tensor, "batch seq d_model"]:
        attention_gain, ffn_gain = block.gains or (None, None)
        q, k, v = self._project(block, self._norm_if("pre", x, attention_gain), angles)
        x = self._norm_if("post", x + block.output(attend(layer, q, k, v).flatten(2)), attention_gain)
        inner = block.up(self._norm_if("pre", x, ffn_gain))
        if block.gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = silu(gate) * up
        else:
            inner = silu(inner)
        return self._norm_if("post", x + block.down(inner), ffn_gain)

    def _norm_if(self, place: Norm, x: Tensor, gain: Tensor | None) -> Tensor:
        return x if gain is None or self.config.norm != place else rms_norm(x, gain.shape, gain, EPSILON)

    def _project(
        self,
        block: PackedBlock,
        x: Float[Tensor, "batch seq d_model"],
        angles: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, normalised and rotated: (batch, seq, heads, d_head) each."""
        num_heads, kv_heads, d_head = self.config.num_heads, self.config.kv_heads, self.config.d_head
        qkv = block.qkv(x).reshape(*x.shape[:-1], -1, d_head)
        qk, v = torch.split(qkv, [num_heads + kv_heads, kv_heads], dim=-2)
        if block.qk_gains is not None:
            qk = rms_norm(qk, (d_head,), eps=EPSILON) * block.qk_gains
        if angles is not None:
            qk = rotate_halves(qk, *angles)
        q, k = torch.split(qk, [num_heads, kv_heads], dim=-2)
        return q, k, v

    def _score(self, x: Float[Tensor, "batch d_model"]) -> Float[Tensor, "batch vocab"]:
        return self.head(self._norm_if("pre", x, self.final_gain))


def attend_to_cache(
    q: Float[Tensor, "batch heads queries d_head"],
    k: Float[Tensor, "batch heads slots d_head"],
    v: Float[Tensor, "batch heads slots d_head"],
    mask: Bool[Tensor, "batch slots"] | None,
) -> Float[Tensor, "batch heads queries d_head"]:
    """Attend from a few queries per head to all slots that the mask allows."""
    if mask is not None:
        mask = mask[:, None, None, :]
    if q.device.type != "cpu":
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)
    # With so few queries, two plain products beat the kernel on a CPU: they read keys and values at full
    # speed.
    scores = q / math.sqrt(q.shape[-1]) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1) @ v
