"""One decoding step in few kernels, for NVIDIA GPUs: six per layer for one row, and two for the next token.

A kernel of a captured step takes at least one or two microseconds. In a step of a small model, this is most
of the time. `FusedStep` therefore computes a block with six kernels:

    1. norm, and the product for q, k and v
    2. attention to the splits of the cache
    3. combination of the splits
    4. output projection and residual
    5. norm, first feed-forward product, and gate
    6. second feed-forward product and residual

With several rows a norm is a kernel of its own. With more than `MAX_ROWS` rows, torch (cuBLAS) computes the
products, which is faster there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear, silu

from bytewright.generate.packed_weights import PackedBlock, PackedRMSNorm, PackedSiLU, PackedSwiGLU
from bytewright.generate.row_sampling import RowSettings, SamplingKind
from bytewright.model.fused import gate_by_silu
from bytewright.model.kernels import decoding, decoding_products, sampling
from bytewright.model.kernels.decoding_products import NO_GATE, SILU, SWIGLU, LargestLogits, Tiles
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
    split: int = decoding.SPLIT
    """Positions of the cache of one program of attention."""
    max_overlapped: int | None = None
    """A kernel starts while the one before it still runs, if the cache has up to this number of positions.

    None means no limit. With several long sequences, waiting programs of attention occupy the multiprocessors
    that running kernels need.
    """


ONE_ROW = StepOptions(
    qkv=Tiles(outputs=4, inputs=1024, warps=2),
    output=Tiles(outputs=8, inputs=1024, warps=2),
    up=Tiles(outputs=4, inputs=1024, warps=2),
    down=Tiles(outputs=4, inputs=2048, warps=4),
    head=Tiles(outputs=8, inputs=1024, warps=4),
)
SOME_ROWS = StepOptions(
    qkv=Tiles(outputs=16, inputs=128, rows=32, stages=5),
    output=Tiles(outputs=16, inputs=128, rows=32, stages=5),
    up=Tiles(outputs=16, inputs=128, rows=32, stages=5),
    down=Tiles(outputs=16, inputs=128, rows=32, stages=5),
    head=Tiles(outputs=128, inputs=64, rows=32, stages=3),
    max_overlapped=512,
)
MANY_ROWS = StepOptions(max_overlapped=0)


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
    ) -> Float[Tensor, "batch vocab"]:
        """Take a step, write the next tokens to `ids`, and advance `positions` and `num_chosen`.

        Return the logits.
        """
        logits, largest = self._run(cache, ids, positions, choice.num_ids)
        assert largest is not None
        overlap = self._overlaps(len(ids), cache.capacity)
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

    def _overlaps(self, num_rows: int, capacity: int) -> bool:
        """Whether a kernel starts while the one before it still runs."""
        limit = self._options(num_rows).max_overlapped
        return self.decoder.device.type == "cuda" and (limit is None or capacity <= limit)

    def _run(
        self, cache: KeyValueCache, ids: Tensor, positions: Tensor, num_ids: int | None
    ) -> tuple[Tensor, LargestLogits | None]:
        """Return the logits, and with `num_ids` the largest of their tiles."""
        decoder, options = self.decoder, self._options(len(ids))
        # A product of one row reads the row of the embeddings itself.
        is_gathered = len(ids) == 1 and options.qkv is not None and options.output is not None
        x = decoder.embeddings if is_gathered else decoder.embeddings[ids]
        for layer, block in enumerate(decoder.blocks):
            x = self._run_block(
                x, ids if is_gathered and layer == 0 else None, layer, block, cache, positions
            )
        overlap = self._overlaps(len(ids), cache.capacity)
        head = decoder.head.weight
        return _multiply(x, head, options.head, decoder.final_norm, num_ids=num_ids, overlap=overlap)

    def _run_block(
        self,
        x: Tensor,
        ids: Tensor | None,
        layer: int,
        block: PackedBlock,
        cache: KeyValueCache,
        positions: Tensor,
    ) -> Tensor:
        """Return the block's result; with `ids`, `x` has the embeddings."""
        options = self._options(len(positions))
        overlap = self._overlaps(len(positions), cache.capacity)
        first, second = block.norms or (None, None)
        # The first kernel of a step starts after the one before it has ended. So all later kernels may read
        # the positions before they wait.
        qkv, _ = _multiply(
            x, block.attention.qkv.weight, options.qkv, first, ids=ids, overlap=overlap and ids is None
        )
        splits = decoding.attend_in_splits(
            qkv,
            block.attention.qk_gains,
            self.decoder.angles,
            cache.keys[layer],
            cache.values[layer],
            positions,
            eps=EPSILON,
            split=options.split,
            overlap=overlap,
        )
        attended = decoding.combine_splits(splits, qkv.dtype, overlap=overlap)
        output = block.attention.output.weight
        x, _ = _multiply(attended, output, options.output, residual=x, residual_ids=ids, overlap=overlap)
        ffn = block.ffn
        assert isinstance(ffn, PackedSwiGLU | PackedSiLU)
        gate = SWIGLU if isinstance(ffn, PackedSwiGLU) else SILU
        hidden, _ = _multiply(x, ffn.up.weight, options.up, second, gate=gate, overlap=overlap)
        return _multiply(hidden, ffn.down.weight, options.down, residual=x, overlap=overlap)[0]


def _multiply(
    x: Tensor,
    weight: Tensor,
    tiles: Tiles | None,
    norm: object = None,
    *,
    ids: Tensor | None = None,
    gate: int = NO_GATE,
    residual: Tensor | None = None,
    residual_ids: Tensor | None = None,
    num_ids: int | None = None,
    overlap: bool,
) -> tuple[Tensor, LargestLogits | None]:
    """Return the product of normalised rows with a weight, as `decoding_products.multiply` does."""
    assert norm is None or isinstance(norm, PackedRMSNorm)
    gains, eps = (None, 0.0) if norm is None else (norm.gain, norm.eps)
    if gains is not None and not (tiles and tiles.rows == 1):
        x, gains = decoding.rms_norm_rows(x, gains, eps=eps, overlap=overlap), None
    if tiles is not None:
        return decoding_products.multiply(
            x,
            weight,
            tiles,
            ids=ids,
            gains=gains,
            eps=eps,
            gate=gate,
            residual=residual,
            residual_ids=residual_ids,
            num_ids=num_ids,
            overlap=overlap,
        )
    product = linear(x, weight) if residual is None else torch.addmm(residual, x, weight.T)
    if gate != NO_GATE:
        product = gate_by_silu(product) if gate == SWIGLU else silu(product)
    return product, None if num_ids is None else decoding_products.find_largest(product, num_ids)


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
