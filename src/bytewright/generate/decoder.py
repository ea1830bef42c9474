"""A model that remembers: reads prompts, then takes one token at a time, with a cache of keys and values.

The fast twin of running the model over everything so far: a token costs one pass over the packed weights and
over what the cache holds. Tokens of all sequences stand as the rows of one matrix wherever they do not look
at each other. On an NVIDIA GPU, the attention of one more token is one kernel of our own. `Decoder` turns ids
into scores and knows nothing of sampling, stopping or text.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from bytewright.generate.cache import KeyValueCache
from bytewright.generate.packed_weights import PackedBlock, PackedMatrix, pack_block, snapshot, snapshot_gain
from bytewright.model import TransformerBlock, TransformerLM, kernels
from bytewright.model.config import Norm
from bytewright.model.fused import gate_by_silu
from bytewright.model.layers import EPSILON, at_least_float32

HEAD_SIZES = (16, 32, 64, 128, 256)
"""Sizes of heads that the kernel can hold."""

Attend = Callable[[int, Tensor], Tensor]
"""From (layer, joined projection of every row) to what the rows attend to, (rows, d_model)."""


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
        self.final_gain = None if model.ln_final is None else snapshot_gain(model.ln_final.weight)
        self.head = PackedMatrix(snapshot(model.output_weight, self.dtype), batch_size)
        self.angles = None
        if (rope := blocks[0].attn.rope) is not None:
            self.angles = torch.cat((rope.cos, rope.cos), -1), torch.cat((-rope.sin, rope.sin), -1)
        self.has_kernel = kernels.on_gpu(weights) and self.config.d_head in HEAD_SIZES

    def new_cache(self, batch_size: int, capacity: int) -> KeyValueCache:
        """Make room for `batch_size` sequences of up to `capacity` tokens."""
        return KeyValueCache(self.config, batch_size, capacity, self.device, self.dtype)

    @torch.inference_mode()
    def read(
        self, cache: KeyValueCache, ids: Int[Tensor, "batch seq"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch vocab"]:
        """Read prompts into an empty cache; return the scores for the token after each.

        Row i of `ids` holds a prompt of `lengths[i]` tokens and then anything: no token sees what follows it.
        """
        batch_size, num_tokens = ids.shape
        positions = torch.arange(num_tokens, device=ids.device).repeat(batch_size)
        angles = self._angles_at(positions)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            split = self._split(layer, qkv, angles)
            q, k, v = (x.view(batch_size, num_tokens, *x.shape[1:]).transpose(1, 2) for x in split)
            cache.write_prompt(layer, k, v)
            grouped = self.config.kv_heads != self.config.num_heads
            attended = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
            return attended.transpose(1, 2).reshape(len(qkv), -1)

        x = self._run_blocks(ids.flatten(), attend)
        last = torch.arange(batch_size, device=ids.device) * num_tokens + lengths - 1
        return self._score(x[last])

    @torch.inference_mode()
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
        if self.has_kernel:
            return self._score(self._run_blocks(ids, self._attend_by_kernel(cache, positions)))
        num_slots = cache.capacity if num_slots is None else num_slots
        mask = None if aligned else torch.arange(num_slots, device=ids.device) <= positions.unsqueeze(-1)
        angles = self._angles_at(positions)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            q, k, v = self._split(layer, qkv, angles)
            cache.write_token(layer, num_slots - 1 if aligned else positions, k, v)
            keys, values = cache.read(layer, num_slots)
            return attend_to_cache(q, keys, values, mask).reshape(len(qkv), -1)

        return self._score(self._run_blocks(ids, attend))

    def _attend_by_kernel(self, cache: KeyValueCache, positions: Int[Tensor, " batch"]) -> Attend:
        from bytewright.model.kernels.decoding import attend_and_store

        def attend(layer: int, qkv: Tensor) -> Tensor:
            gains = self.blocks[layer].qk_gains
            keys, values = cache.keys[layer], cache.values[layer]
            return attend_and_store(qkv, gains, self.angles, keys, values, positions, eps=EPSILON)

        return attend

    def _run_blocks(self, ids: Int[Tensor, " rows"], attend: Attend) -> Float[Tensor, "rows d_model"]:
        x = self.embeddings[ids]
        for layer, block in enumerate(self.blocks):
            x = self._run_block(x, layer, block, attend)
        return x

    def _run_block(
        self, x: Float[Tensor, "rows d_model"], layer: int, block: PackedBlock, attend: Attend
    ) -> Float[Tensor, "rows d_model"]:
        attention_gain, ffn_gain = block.gains or (None, None)
        attended = attend(layer, block.qkv(self._norm_if("pre", x, attention_gain)))
        x = self._norm_if("post", block.output.add_to(x, attended), attention_gain)
        inner = block.up(self._norm_if("pre", x, ffn_gain))
        inner = gate_by_silu(inner) if block.gated else silu(inner)
        return self._norm_if("post", block.down.add_to(x, inner), ffn_gain)

    def _norm_if(self, place: Norm, x: Tensor, gain: Tensor | None) -> Tensor:
        return x if gain is None or self.config.norm != place else normalise(x, gain)

    def _angles_at(self, positions: Int[Tensor, " rows"]) -> tuple[Tensor, Tensor] | None:
        if self.angles is None:
            return None
        cos, sin = (table[positions].unsqueeze(1) for table in self.angles)
        return cos, sin

    def _split(
        self, layer: int, qkv: Float[Tensor, "rows qkv_width"], angles: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, normalised and rotated: (rows, heads, d_head) each."""
        num_heads, kv_heads, d_head = self.config.num_heads, self.config.kv_heads, self.config.d_head
        heads = qkv.view(len(qkv), -1, d_head)
        qk, v = heads[:, : num_heads + kv_heads], heads[:, num_heads + kv_heads :]
        if (gains := self.blocks[layer].qk_gains) is not None:
            qk = (rms_norm(at_least_float32(qk), (d_head,), eps=EPSILON) * gains).to(qk.dtype)
        if angles is not None:
            cos, sin = angles
            # Rows are packed in halves: the partner of dimension i is i + d_head/2, one roll away.
            qk = (qk * cos + qk.roll(d_head // 2, dims=-1) * sin).to(qk.dtype)
        return qk[:, :num_heads], qk[:, num_heads:], v

    def _score(self, x: Float[Tensor, "batch d_model"]) -> Float[Tensor, "batch vocab"]:
        return self.head(self._norm_if("pre", x, self.final_gain))


def normalise(x: Float[Tensor, "rows d_model"], gain: Float[Tensor, " d_model"]) -> Tensor:
    """Return `model.layers.rms_norm`: in float32 at least, gains included, and rounded once."""
    if kernels.can_serve(x):
        from bytewright.model.kernels.decoding import rms_norm as norm_by_kernel

        normalised: Tensor = norm_by_kernel(x, gain, eps=EPSILON)
        return normalised
    return rms_norm(at_least_float32(x), gain.shape, gain, EPSILON).to(x.dtype)


def attend_to_cache(
    q: Float[Tensor, "batch heads d_head"],
    k: Float[Tensor, "batch kv_heads slots d_head"],
    v: Float[Tensor, "batch kv_heads slots d_head"],
    mask: Bool[Tensor, "batch slots"] | None,
) -> Float[Tensor, "batch kv_heads group d_head"]:
    """Attend from one query per head and sequence to all slots that the mask allows.

    Query heads that share a key/value head stand as the rows of one product.
    """
    batch_size, kv_heads, _, d_head = k.shape
    if q.device.type != "cpu":
        mask = None if mask is None else mask[:, None, None, :]
        return scaled_dot_product_attention(q.reshape(batch_size, kv_heads, -1, d_head), k, v, attn_mask=mask)
    # With so few queries, two plain products beat the kernel on a CPU: they read the cache at full speed.
    q, k, v = q.reshape(batch_size * kv_heads, -1, d_head), k.flatten(0, 1), v.flatten(0, 1)
    scores = torch.bmm(q / math.sqrt(d_head), k.transpose(1, 2))
    if mask is not None:
        scores.view(batch_size, kv_heads, *scores.shape[1:]).masked_fill_(~mask[:, None, None, :], -math.inf)
    return torch.bmm(scores.softmax(dim=-1), v).view(batch_size, kv_heads, -1, d_head)
