"""One decoding step in few kernels, for NVIDIA GPUs: five per layer, and two for the next token.

A kernel of a captured step takes at least one or two microseconds. In a step of a small model, this is most
of the time. `FusedStep` therefore computes a block with five kernels:

    1. norm, and the product for q, k and v
    2. attention to the splits of the cache, and the combination of the splits
    3. output projection and residual
    4. norm, first feed-forward product, and gate
    5. second feed-forward product and residual

With more than `MAX_ROWS` rows, torch (cuBLAS) computes the products, which is faster there. A norm and a gate
are then kernels of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear, silu

from bytewright.generate.packed_weights import PackedNorm, PackedRMSNorm, PackedSiLU, PackedSwiGLU
from bytewright.generate.row_sampling import RowSettings, SamplingKind
from bytewright.model.fused import gate_by_silu
from bytewright.model.kernels import decoding, decoding_products, sampling
from bytewright.model.kernels.decoding_products import (
    NO_GATE,
    SILU,
    SWIGLU,
    LargestLogits,
    Product,
    ScaledRows,
    Tiles,
)
from bytewright.model.layers import EPSILON

if TYPE_CHECKING:
    from bytewright.generate.decoder import Decoder, KeyValueCache

OVERLAPPING_GPU = (9, 0)
"""The least compute capability: from Hopper on, a kernel can start before the previous one has ended."""
MAX_ROWS = 64
"""Up to this number of rows, `multiply` computes the products; above it, torch (cuBLAS)."""


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How the kernels of a step divide their work. Without tiles, torch computes a product."""

    qkv: Tiles | None = None
    output: Tiles | None = None
    up: Tiles | None = None
    down: Tiles | None = None
    head: Tiles | None = None
    split: int | None = None
    """Positions that one program of attention reads; None for what `decoding.split_for` returns."""
    overlap: bool = True
    """Whether a kernel starts while the one before it still runs."""
    max_overlapped: int | None = None
    """Attention starts early only if the cache has at most this number of positions; None means no limit.

    With several long sequences, waiting programs of attention occupy the multiprocessors that running kernels
    need.
    """


ONE_ROW = StepOptions(
    qkv=Tiles(outputs=4, inputs=1024, warps=2),
    output=Tiles(outputs=8, inputs=1024, warps=2),
    up=Tiles(outputs=4, inputs=1024, warps=2),
    down=Tiles(outputs=4, inputs=2048, warps=4),
    head=Tiles(outputs=8, inputs=1024, warps=4),
)
SOME_ROWS = StepOptions(
    qkv=Tiles(outputs=16, inputs=128, rows=32, chains=2, warps=2, stages=3),
    output=Tiles(outputs=16, inputs=128, rows=32, chains=2, warps=2, stages=3),
    up=Tiles(outputs=16, inputs=256, rows=32, warps=2, stages=3),
    down=Tiles(outputs=16, inputs=128, rows=32, chains=2, warps=2, stages=3),
    head=Tiles(outputs=128, inputs=64, rows=32, stages=3),
    max_overlapped=512,
)
MANY_ROWS = StepOptions(overlap=False)


def options_for(num_rows: int) -> StepOptions:
    """Return the fastest measured options for a number of rows (an H200; `benchmarks/decoding.py`)."""
    if num_rows == 1:
        return ONE_ROW
    return SOME_ROWS if num_rows <= MAX_ROWS else MANY_ROWS


@dataclass(frozen=True)
class TokenChoice:
    """How and where a step stores the tokens that it chooses."""

    num_chosen: Int[Tensor, " batch"]
    """The next column of each sequence."""
    chosen: Int[Tensor, "batch columns"] | None
    """Gets the tokens in the columns `num_chosen`."""
    num_ids: int
    """Only ids below this are chosen."""
    settings: RowSettings | None = None
    """How to draw tokens; a greedy choice needs neither settings nor uniform numbers."""
    uniforms: Float[Tensor, "batch columns"] | None = None
    kind: SamplingKind = SamplingKind.GREEDY
    """The highest kind of all rows."""


class FusedStep:
    """The steps of a decoder whose parts `supports_fused_step` accepts."""

    def __init__(self, decoder: Decoder, options: StepOptions | None = None) -> None:
        self.decoder, self.options = decoder, options

    @torch.inference_mode()
    def step(
        self, cache: KeyValueCache, ids: Int[Tensor, " batch"], positions: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch vocab"]:
        """Read one more token of each sequence at its position; return the logits of the next token."""
        return self._run(cache, ids.contiguous(), positions.contiguous(), None)[0]

    @torch.inference_mode()
    def step_and_choose(
        self,
        cache: KeyValueCache,
        ids: Int[Tensor, " batch"],
        positions: Int[Tensor, " batch"],
        choice: TokenChoice,
        num_positions: int | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Take a step, write the next tokens to `ids`, and advance `positions` and `num_chosen`.

        Return the logits. At most `num_positions` positions of the cache are in use, this token included
        (default: the capacity).
        """
        logits, largest = self._run(cache, ids, positions, choice.num_ids, num_positions)
        assert largest is not None
        overlap = self._overlaps(self._options(len(ids)))
        chosen, capacity = choice.chosen, cache.capacity
        if choice.kind == SamplingKind.GREEDY:
            state = ids, positions, choice.num_chosen, capacity, chosen
            decoding_products.choose_largest(largest, *state, num_columns=capacity, overlap=overlap)
            return logits
        assert choice.settings is not None
        assert choice.uniforms is not None
        num_columns = capacity if chosen is None else chosen.shape[1]
        sampling.draw_tokens(
            logits,
            largest,
            choice.settings.tensors(),
            choice.uniforms,
            ids,
            num_ids=choice.num_ids,
            is_filtered=choice.kind == SamplingKind.FILTERED,
            state=(positions, choice.num_chosen, chosen, capacity, num_columns),
            overlap=overlap,
        )
        return logits

    def _options(self, num_rows: int) -> StepOptions:
        return self.options or options_for(num_rows)

    def _overlaps(self, options: StepOptions) -> bool:
        return options.overlap and self.decoder.device.type == "cuda"

    def _run(
        self,
        cache: KeyValueCache,
        ids: Tensor,
        positions: Tensor,
        num_ids: int | None,
        num_positions: int | None = None,
    ) -> tuple[Tensor, LargestLogits | None]:
        """Return the logits, and with `num_ids` the largest of their tiles."""
        decoder, options = self.decoder, self._options(len(ids))
        overlap = self._overlaps(options)
        limit = options.max_overlapped
        split = options.split or self._split(len(ids))
        norms = iter(
            [*(norm for block in decoder.blocks for norm in block.norms or (None, None)), decoder.final_norm]
        )
        stream = self._embed(ids, options, next(norms))
        for layer, block in enumerate(decoder.blocks):
            attention, ffn = block.attention, block.ffn
            assert isinstance(ffn, PackedSwiGLU | PackedSiLU)
            # The first kernel of a step does not overlap, so `positions` have been written when it starts.
            # All later kernels may therefore read them before they wait.
            qkv = _multiply(stream, attention.qkv.weight, options.qkv, overlap=overlap).rows
            attended = decoding.attend_and_store(
                qkv,
                attention.qk_gains,
                decoder.angles,
                cache.keys[layer],
                cache.values[layer],
                positions,
                cache.arrivals,
                eps=EPSILON,
                num_positions=num_positions,
                split=split,
                overlap=overlap and (limit is None or cache.capacity <= limit),
            )
            stream = _add_product(
                stream, attended, attention.output.weight, options.output, next(norms), overlap=overlap
            )
            gate = SWIGLU if isinstance(ffn, PackedSwiGLU) else SILU
            hidden = _multiply(stream, ffn.up.weight, options.up, gate=gate, overlap=overlap).rows
            stream = _add_product(stream, hidden, ffn.down.weight, options.down, next(norms), overlap=overlap)
        logits = _multiply(stream, decoder.head.weight, options.head, num_ids=num_ids, overlap=overlap)
        return logits.rows[:, : decoder.config.vocab_size], logits.largest

    def reads_whole_sequences(self, num_rows: int) -> bool:
        """Return whether the work of attention does not depend on `num_positions`."""
        return (self._options(num_rows).split or self._split(num_rows)) is None

    def _split(self, num_rows: int) -> int | None:
        return decoding.split_for(num_rows, self.decoder.config.kv_heads, self.decoder.dtype)

    def _embed(self, ids: Int[Tensor, " batch"], options: StepOptions, norm: PackedNorm | None) -> _Stream:
        """Return the residual stream before the first block.

        For one row, the products gather the row of the embeddings themselves.
        """
        assert norm is None or isinstance(norm, PackedRMSNorm)
        table = self.decoder.embeddings
        if len(ids) == 1 and options.qkv is not None and options.output is not None:
            return _Stream(table, norm, ids=ids)
        if options.qkv is None:
            return _Stream(table[ids], norm)
        rows, scaled = decoding_products.embed_rows(table, ids, None if norm is None else norm.gain)
        return _Stream(rows, norm, scaled=scaled)


@dataclass(frozen=True)
class _Stream:
    """The residual stream of the newest tokens, and the norm before its next product."""

    rows: Tensor
    norm: PackedRMSNorm | None
    ids: Tensor | None = None
    """If not None, `rows` is the table of embeddings, and the stream is its rows with these ids."""
    scaled: ScaledRows | None = None
    """The rows with the gains of the norm, if the kernel that wrote them also wrote these."""


def _multiply(
    stream: _Stream,
    weight: Tensor,
    tiles: Tiles | None,
    *,
    gate: int = NO_GATE,
    num_ids: int | None = None,
    overlap: bool,
) -> Product:
    """Return the product of the normalised stream with a weight, as `decoding_products.multiply` does."""
    x: Tensor | ScaledRows = stream.rows
    gains, eps = (None, 0.0) if stream.norm is None else (stream.norm.gain, stream.norm.eps)
    if gains is not None and not (tiles and tiles.rows == 1):
        if tiles and stream.scaled is not None:
            x = stream.scaled
        else:
            x = decoding.rms_norm_rows(stream.rows, gains, eps=eps, overlap=overlap)
        gains = None
    if tiles is not None:
        overlap = overlap and stream.ids is None
        return decoding_products.multiply(
            x,
            weight,
            tiles,
            ids=stream.ids,
            gains=gains,
            eps=eps,
            gate=gate,
            num_ids=num_ids,
            overlap=overlap,
        )
    assert isinstance(x, Tensor)
    product = linear(x, weight)
    if gate != NO_GATE:
        product = gate_by_silu(product) if gate == SWIGLU else silu(product)
    largest = None if num_ids is None else decoding_products.find_largest(product, num_ids)
    return Product(product, largest, None)


def _add_product(
    stream: _Stream,
    x: Tensor,
    weight: Tensor,
    tiles: Tiles | None,
    norm: PackedNorm | None,
    *,
    overlap: bool,
) -> _Stream:
    """Return the stream plus the product of `x` with a weight; `norm` is the norm that follows."""
    assert norm is None or isinstance(norm, PackedRMSNorm)
    if tiles is None:
        return _Stream(stream.rows.addmm_(x, weight.T), norm)
    product = decoding_products.multiply(
        x,
        weight,
        tiles,
        residual=stream.rows,
        residual_ids=stream.ids,
        next_gains=None if norm is None or tiles.rows == 1 else norm.gain,
        overlap=overlap,
    )
    return _Stream(product.rows, norm, scaled=product.scaled)


def supports_fused_step(decoder: Decoder) -> bool:
    """Return whether `FusedStep` has kernels for all parts of a decoder, and the GPU can overlap kernels."""
    norms = [norm for block in decoder.blocks for norm in block.norms or ()]
    norms += [] if decoder.final_norm is None else [decoder.final_norm]
    return (
        decoder.dtype in (torch.bfloat16, torch.float32)
        and (decoder.device.type != "cuda" or torch.cuda.get_device_capability() >= OVERLAPPING_GPU)
        and all(isinstance(norm, PackedRMSNorm) for norm in norms)
        and all(block.place != "post" for block in decoder.blocks)
        and all(isinstance(block.ffn, PackedSwiGLU | PackedSiLU) for block in decoder.blocks)
    )
