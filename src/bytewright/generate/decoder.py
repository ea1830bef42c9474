"""The model with a key/value cache: reads prompts, then one token at a time, and returns logits.

This is the fused counterpart of running the model over the whole sequence. A token costs one pass over the
packed weights and over the cache. Outside attention, the tokens of all sequences are the rows of one matrix.
On an NVIDIA GPU the attention of a new token is one Triton kernel. Input and output are ids and logits;
sampling and stopping are in `sampling` and `generator`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from bytewright.generate.packed_weights import (
    PackedBlock,
    PackedMatrix,
    PackedNorm,
    pack_block,
    pack_module,
    pad_rows,
    snapshot,
)
from bytewright.model import (
    MultiHeadSelfAttention,
    RotaryPositionalEmbedding,
    TransformerBlock,
    TransformerLM,
    kernels,
)
from bytewright.model.config import ModelConfig
from bytewright.model.fused import SPLIT_HEADS
from bytewright.model.layers import EPSILON, at_least_float32

if TYPE_CHECKING:
    from bytewright.generate.fused_step import FusedStep

HEAD_SIZES = (16, 32, 64, 128, 256)
"""Head sizes that the attention kernels support."""

MAX_PACKED_HEAD = 512
"""The largest head that `read_packed` supports, in bytes.

q, k and v of 64 tokens then fit into the shared memory of all supported GPUs, which is at least 99 KiB.
"""

Attend = Callable[[int, Tensor], Tensor]
"""A function of the layer and the joined q, k, v projection that returns attention, (rows, d_model)."""


class KeyValueCache:
    """The keys and values of `batch_size` sequences of up to `capacity` tokens, for every layer.

    Each sequence has one row and fills it from the left: token t of a sequence is always at position t.
    Sequences of different lengths therefore share a batch without padding. Positions beyond a sequence's
    length are masked and overwritten later. The buffers are written in place, as a CUDA graph requires.
    """

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
        self.arrivals = torch.zeros(shape[:2], dtype=torch.int32, device=device)
        """Counts the programs of attention that have ended (`attend_and_store`); 0 between calls."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers: 2 · layers · batch · kv_heads · capacity · d_head numbers."""
        return sum(buffer.nbytes for buffer in self.keys + self.values)

    def first(self, num_rows: int) -> KeyValueCache:
        """Return a cache that shares the buffers of the first `num_rows` rows."""
        view = object.__new__(KeyValueCache)
        view.batch_size, view.capacity = num_rows, self.capacity
        view.keys = [buffer[:num_rows] for buffer in self.keys]
        view.values = [buffer[:num_rows] for buffer in self.values]
        view.arrivals = self.arrivals[:num_rows]
        return view

    def clear(self, row: int, first: int = 0) -> None:
        """Set the positions of a row from `first` on to 0.

        Tensor operations multiply values at masked positions by 0, and 0 times NaN or infinity is NaN.
        """
        for buffer in self.keys + self.values:
            buffer[row, :, first:] = 0

    def write_prompt(
        self,
        layer: int,
        keys: Float[Tensor, "batch kv_heads seq d_head"],
        values: Float[Tensor, "batch kv_heads seq d_head"],
    ) -> None:
        """Write the first positions of every row."""
        num_tokens = keys.shape[-2]
        self.keys[layer][:, :, :num_tokens] = keys
        self.values[layer][:, :, :num_tokens] = values

    def write_token(
        self,
        layer: int,
        positions: int | Int[Tensor, " batch"],
        keys: Float[Tensor, "batch kv_heads d_head"],
        values: Float[Tensor, "batch kv_heads d_head"],
    ) -> None:
        """Write one token into each row: all at the same position, or each at its own."""
        if isinstance(positions, int):
            self.keys[layer].select(2, positions).copy_(keys)
            self.values[layer].select(2, positions).copy_(values)
        else:
            rows = torch.arange(self.batch_size, device=positions.device)
            self.keys[layer][rows, :, positions] = keys
            self.values[layer][rows, :, positions] = values

    def read(
        self, layer: int, num_positions: int
    ) -> tuple[Float[Tensor, "batch kv_heads keys d_head"], Float[Tensor, "batch kv_heads keys d_head"]]:
        """Return views of the first positions of every row."""
        return self.keys[layer][:, :, :num_positions], self.values[layer][:, :, :num_positions]


class Decoder:
    """A snapshot of the weights of `model`, packed for about `batch_size` sequences at a time.

    `model_check.reason_against_cache` states which models it can decode. It calls parts that have no packed
    version themselves, so their weights are not a snapshot.
    """

    def __init__(self, model: TransformerLM, batch_size: int = 1) -> None:
        weights = model.token_embeddings.weight
        self.config, self.device = model.config, weights.device
        self.dtype = weights.dtype if model.compute_dtype is None else model.compute_dtype
        self.embeddings = snapshot(weights, self.dtype)
        blocks = [block for block in model.layers if isinstance(block, TransformerBlock)]
        with torch.no_grad():
            self.blocks = [pack_block(block, self.dtype, batch_size) for block in blocks]
        final = model.ln_final
        self.final_norm: PackedNorm | None = (
            None if final is None else pack_module(final, self.dtype, batch_size)
        )
        head = model.output_weight
        if model.logit_scale != 1:
            head = head * model.logit_scale
        self.head = PackedMatrix(pad_rows(snapshot(head, self.dtype)), batch_size)
        self.angles = None
        self.half_angles: tuple[Tensor | None, Tensor | None] = None, None
        """Cosines and sines of half of the dimensions, as `rotate_into_cache` reads them."""
        attention = blocks[0].attn
        rope = attention.rope if isinstance(attention, MultiHeadSelfAttention) else None
        if isinstance(rope, RotaryPositionalEmbedding):
            self.angles = torch.cat((rope.cos, rope.cos), -1), torch.cat((-rope.sin, rope.sin), -1)
            self.half_angles = rope.cos, rope.sin
        self.has_kernel = kernels.on_gpu(weights) and self.config.d_head in HEAD_SIZES
        """Whether kernels compute the attention of new tokens."""
        self.fused_step: FusedStep | None = None
        """Takes the steps in few kernels, if the GPU and the parts allow it."""
        if self.has_kernel:
            from bytewright.generate import fused_step

            if fused_step.supports_fused_step(self):
                self.fused_step = fused_step.FusedStep(self)

    @property
    def can_read_packed(self) -> bool:
        """Whether `read_packed` has a kernel for this device and these heads."""
        return self.has_kernel and self.config.d_head * self.dtype.itemsize <= MAX_PACKED_HEAD

    def new_cache(self, batch_size: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for `batch_size` sequences of up to `capacity` tokens."""
        return KeyValueCache(self.config, batch_size, capacity, self.device, self.dtype)

    @torch.inference_mode()
    def read(
        self, cache: KeyValueCache, ids: Int[Tensor, "batch seq"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch vocab"]:
        """Read prompts into an empty cache; return the logits of the token after each prompt.

        Row i of `ids` holds a prompt of `lengths[i]` tokens and then padding, which the causal mask hides.
        """
        batch_size, num_tokens = ids.shape
        has_kernel = self.config.d_head in SPLIT_HEADS and kernels.supports(self.embeddings)
        positions = torch.arange(num_tokens, device=ids.device).repeat(batch_size)
        angles = None if has_kernel else self._angles_at(positions)
        grouped = self.config.kv_heads != self.config.num_heads

        def attend(layer: int, qkv: Tensor) -> Tensor:
            if has_kernel:
                q = self._rotate_into_cache(layer, qkv.view(batch_size, num_tokens, -1), cache)
            else:
                split = self._split(layer, qkv, angles)
                q, k, v = (x.view(batch_size, num_tokens, *x.shape[-2:]) for x in split)
                cache.write_prompt(layer, k.transpose(1, 2), v.transpose(1, 2))
            keys, values = cache.read(layer, num_tokens)
            attended = scaled_dot_product_attention(
                q.transpose(1, 2), keys, values, is_causal=True, enable_gqa=grouped
            )
            return attended.transpose(1, 2).reshape(len(qkv), -1)

        hidden = self._run_blocks(ids.flatten(), attend)
        last = torch.arange(batch_size, device=ids.device) * num_tokens + lengths - 1
        return self.score(hidden[last])

    @torch.inference_mode()
    def read_packed(
        self, cache: KeyValueCache, ids: Int[Tensor, " tokens"], chunks: Int[Tensor, "chunks 3"], longest: int
    ) -> Float[Tensor, "tokens d_model"]:
        """Read the first tokens of prompts, one prompt after the other; return hidden states for `score`.

        It requires `can_read_packed`. Each of `chunks` is a row of the cache, the index of its first token
        and its number of tokens, at most `longest`. Every token must be in a chunk.
        """
        from bytewright.model.kernels.prompts import attend_to_chunks

        def attend(layer: int, qkv: Tensor) -> Tensor:
            gains = self.blocks[layer].attention.qk_gains
            keys, values = cache.keys[layer], cache.values[layer]
            return attend_to_chunks(
                qkv, gains, self.angles, keys, values, chunks, longest=longest, eps=EPSILON
            )

        return self._run_blocks(ids, attend)

    @torch.inference_mode()
    def read_chunk(
        self,
        cache: KeyValueCache,
        rows: Int[Tensor, " chunks"],
        ids: Int[Tensor, "chunks seq"],
        starts: Int[Tensor, " chunks"],
        num_positions: int | None = None,
    ) -> Float[Tensor, "chunks seq d_model"]:
        """Read the next tokens of prompts into rows of the cache; return hidden states for `score`.

        Chunk i continues `rows[i]` at position `starts[i]`; the tokens before it were read by earlier calls.
        Padding at the end of a chunk is written to positions that later tokens of the row overwrite. At most
        `num_positions` positions are in use, this chunk included (default: the capacity).
        """
        num_chunks, num_tokens = ids.shape
        num_positions = cache.capacity if num_positions is None else num_positions
        # Padding beyond the capacity shares the last position. Only a prompt that fills the context uses it.
        # The padding of such a prompt is its last token (`pack_later`), which writes the same values again.
        positions = (starts.unsqueeze(-1) + torch.arange(num_tokens, device=ids.device)).clamp(
            max=cache.capacity - 1
        )
        cached = torch.arange(num_positions, device=ids.device)
        mask = (cached <= positions.unsqueeze(-1)).unsqueeze(1)
        is_used = (cached < starts.unsqueeze(-1) + num_tokens)[:, None, :, None]
        angles = self._angles_at(positions.flatten())

        def attend(layer: int, qkv: Tensor) -> Tensor:
            split = self._split(layer, qkv, angles)
            q, k, v = (x.view(num_chunks, num_tokens, *x.shape[1:]) for x in split)
            keys, values = cache.keys[layer], cache.values[layer]
            keys[rows.unsqueeze(-1), :, positions] = k
            values[rows.unsqueeze(-1), :, positions] = v
            # Unused positions may have values of an earlier sequence that are not finite; a weight of 0
            # times such a value is not 0.
            attended = scaled_dot_product_attention(
                q.transpose(1, 2),
                keys[rows, :, :num_positions].where(is_used, 0.0),
                values[rows, :, :num_positions].where(is_used, 0.0),
                attn_mask=mask,
                enable_gqa=self.config.kv_heads != self.config.num_heads,
            )
            return attended.transpose(1, 2).reshape(len(qkv), -1)

        return self._run_blocks(ids.flatten(), attend).view(num_chunks, num_tokens, -1)

    @torch.inference_mode()
    def step(
        self,
        cache: KeyValueCache,
        ids: Int[Tensor, " batch"],
        positions: Int[Tensor, " batch"],
        num_positions: int | None = None,
        *,
        aligned: bool = False,
    ) -> Float[Tensor, "batch vocab"]:
        """Read one more token of each sequence at its position; return the logits of the next token.

        At most `num_positions` positions of the cache are in use, this token included (default: the
        capacity). With `aligned`, every sequence uses exactly that many, so that no mask is needed.
        """
        if self.fused_step is not None:
            return self.fused_step.step(cache, ids, positions)
        if self.has_kernel:
            return self.score(self._run_blocks(ids, self._attend_by_kernel(cache, positions)))
        num_positions = cache.capacity if num_positions is None else num_positions
        mask = None if aligned else torch.arange(num_positions, device=ids.device) <= positions.unsqueeze(-1)
        angles = self._angles_at(positions)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            q, k, v = self._split(layer, qkv, angles)
            cache.write_token(layer, num_positions - 1 if aligned else positions, k, v)
            keys, values = cache.read(layer, num_positions)
            return attend_to_cache(q, keys, values, mask).reshape(len(qkv), -1)

        return self.score(self._run_blocks(ids, attend))

    def _attend_by_kernel(self, cache: KeyValueCache, positions: Int[Tensor, " batch"]) -> Attend:
        from bytewright.model.kernels.decoding import attend_and_store, split_for

        split = split_for(cache.batch_size, self.config.kv_heads, self.dtype)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            gains = self.blocks[layer].attention.qk_gains
            buffers = cache.keys[layer], cache.values[layer], positions, cache.arrivals
            return attend_and_store(qkv, gains, self.angles, *buffers, eps=EPSILON, split=split)

        return attend

    def _run_blocks(self, ids: Int[Tensor, " rows"], attend: Attend) -> Float[Tensor, "rows d_model"]:
        x = self.embeddings[ids]
        for layer, block in enumerate(self.blocks):
            x = self._run_block(x, layer, block, attend)
        return x

    def _run_block(
        self, x: Float[Tensor, "rows d_model"], layer: int, block: PackedBlock, attend: Attend
    ) -> Float[Tensor, "rows d_model"]:
        before, after = (block.norms, None) if block.place == "pre" else (None, block.norms)
        attended = attend(layer, block.attention.qkv(x if before is None else before[0](x)))
        x = block.attention.output.add_to(x, attended)
        x = x if after is None else after[0](x)
        x = block.ffn.add_to(x, x if before is None else before[1](x))
        return x if after is None else after[1](x)

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
        if (gains := self.blocks[layer].attention.qk_gains) is not None:
            qk = (rms_norm(at_least_float32(qk), (d_head,), eps=EPSILON) * gains).to(qk.dtype)
        if angles is not None:
            cos, sin = angles
            # Rows are packed in halves, so a roll by d_head/2 pairs dimension i with i + d_head/2.
            qk = (qk * cos + qk.roll(d_head // 2, dims=-1) * sin).to(qk.dtype)
        return qk[:, :num_heads], qk[:, num_heads:], v

    def _rotate_into_cache(
        self, layer: int, qkv: Float[Tensor, "batch seq qkv_width"], cache: KeyValueCache
    ) -> Float[Tensor, "batch seq heads d_head"]:
        """Return the queries of prompts, and write their keys and values, by one kernel."""
        from bytewright.model.kernels.prompts import rotate_into_cache

        gains = self.blocks[layer].attention.qk_gains
        keys, values = cache.keys[layer], cache.values[layer]
        return rotate_into_cache(qkv, gains, self.half_angles, keys, values, eps=EPSILON)

    @torch.inference_mode()
    def score(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows vocab"]:
        """Return the logits of the token after each hidden state."""
        logits = self.head(x if self.final_norm is None else self.final_norm(x))
        return logits[..., : self.config.vocab_size]


def attend_to_cache(
    q: Float[Tensor, "batch heads d_head"],
    k: Float[Tensor, "batch kv_heads keys d_head"],
    v: Float[Tensor, "batch kv_heads keys d_head"],
    mask: Bool[Tensor, "batch keys"] | None,
) -> Float[Tensor, "batch kv_heads group d_head"]:
    """Return the attention of one query per head and sequence to all keys that the mask allows.

    Query heads that share a key/value head are the rows of one product.
    """
    batch_size, kv_heads, _, d_head = k.shape
    if q.device.type != "cpu":
        mask = None if mask is None else mask[:, None, None, :]
        return scaled_dot_product_attention(q.reshape(batch_size, kv_heads, -1, d_head), k, v, attn_mask=mask)
    # On a CPU, two products are faster than the kernel for so few queries.
    q, k, v = q.reshape(batch_size * kv_heads, -1, d_head), k.flatten(0, 1), v.flatten(0, 1)
    scores = torch.bmm(q / math.sqrt(d_head), k.transpose(1, 2))
    if mask is not None:
        scores.view(batch_size, kv_heads, *scores.shape[1:]).masked_fill_(~mask[:, None, None, :], -math.inf)
    return torch.bmm(scores.softmax(dim=-1), v).view(batch_size, kv_heads, -1, d_head)
