"""One decoding step in few kernels, for NVIDIA GPUs: five or six per layer, and two for the next token.

A short kernel of a captured step costs one or two microseconds even if it does nothing, and a step of a small
model has little else to do. `FusedStep` therefore computes a block as (1) norm and q, k, v, (2) attention to
the splits of the cache, (3) their combination, the output projection and the residual, (4) norm, first
feed-forward product and gate, (5) second product and residual. With several rows the combination is a kernel
of its own. With many rows the products are left to the library, which is faster then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bytewright.generate.packed_weights import PackedBlock, PackedRMSNorm, PackedSiLU, PackedSwiGLU
from bytewright.model.kernels import decoding, decoding_products
from bytewright.model.kernels.decoding_products import LargestLogits, Tiles
from bytewright.model.layers import EPSILON

if TYPE_CHECKING:
    from bytewright.generate.decoder import Decoder, KeyValueCache

MAX_COMBINED = 16 * 1024
"""The largest size of the splits that the output projection combines itself: number times width."""


@dataclass(frozen=True, kw_only=True)
class StepTiles:
    """How the kernels of a step divide their work."""

    qkv: Tiles
    output: Tiles
    up: Tiles
    down: Tiles
    head: Tiles


ONE_ROW = StepTiles(
    qkv=Tiles(outputs=16, inputs=1024, warps=4),
    output=Tiles(outputs=8, inputs=1024, warps=4),
    up=Tiles(outputs=16, inputs=1024, warps=8),
    down=Tiles(outputs=8, inputs=2048, warps=4),
    head=Tiles(outputs=32, inputs=1024, warps=8),
)
SOME_ROWS = StepTiles(
    qkv=Tiles(outputs=16, inputs=128, rows=32, stages=4),
    output=Tiles(outputs=16, inputs=128, rows=32, stages=4),
    up=Tiles(outputs=16, inputs=128, rows=32, stages=4),
    down=Tiles(outputs=16, inputs=128, rows=32, stages=4),
    head=Tiles(outputs=64, inputs=64, rows=32, stages=4),
)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Which kernels a step uses; tests and measurements change them."""

    one_row: StepTiles = ONE_ROW
    some_rows: StepTiles = SOME_ROWS
    max_rows: int = 64
    """Up to this number of rows, `multiply` computes the products; above it, the library."""
    split: int = decoding.SPLIT
    attention_warps: int = 4
    overlap: bool = True
    """Let a kernel start while the one before it still runs."""
    prefetch: bool = True
    """With `overlap` and several rows, request the weights before the wait."""
    combine_in_product: bool = True
    """With one row, let the output projection combine the splits."""


@dataclass(frozen=True)
class FusedStep:
    """The steps of a decoder whose parts `supports_fused_step` accepts."""

    decoder: Decoder
    options: StepOptions = field(default_factory=StepOptions)

    @torch.inference_mode()
    def step(
        self, cache: KeyValueCache, ids: Int[Tensor, " batch"], positions: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch vocab"]:
        """Read one more token of each sequence at its position; return the logits of the next token."""
        x = self._run_blocks(cache, ids.contiguous(), positions.contiguous())
        return self._score(x, None)[0]

    @torch.inference_mode()
    def step_and_choose(
        self,
        cache: KeyValueCache,
        ids: Int[Tensor, " batch"],
        positions: Int[Tensor, " batch"],
        num_chosen: Int[Tensor, " batch"],
        chosen: Int[Tensor, "batch columns"] | None,
        num_ids: int | None,
    ) -> Float[Tensor, "batch vocab"]:
        """Take a step and write the likeliest tokens to `ids`; advance `positions` and `num_chosen`.

        The tokens are also written to the columns `num_chosen` of `chosen`. Return the logits.
        """
        num_ids = self.decoder.config.vocab_size if num_ids is None else num_ids
        logits, largest = self._score(self._run_blocks(cache, ids, positions), num_ids)
        assert largest is not None
        decoding_products.choose_largest(
            largest,
            ids,
            positions,
            num_chosen,
            cache.capacity,
            chosen,
            num_columns=cache.capacity,
            overlap=self.options.overlap,
        )
        return logits

    def _tiles(self, num_rows: int) -> StepTiles | None:
        """Return the tiles of the products, or None if the library computes them."""
        if num_rows == 1:
            return self.options.one_row
        return self.options.some_rows if num_rows <= self.options.max_rows else None

    def _run_blocks(self, cache: KeyValueCache, ids: Tensor, positions: Tensor) -> Tensor:
        decoder, options = self.decoder, self.options
        tiles = self._tiles(len(ids))

        def attend(layer: int, qkv: Tensor) -> decoding.Splits:
            return decoding.attend_in_splits(
                qkv,
                decoder.blocks[layer].attention.qk_gains,
                decoder.angles,
                cache.keys[layer],
                cache.values[layer],
                positions,
                eps=EPSILON,
                split=options.split,
                warps=options.attention_warps,
                overlap=options.overlap,
            )

        if tiles is None:
            return decoder._run_blocks(
                ids, lambda layer, qkv: decoding.combine_splits(attend(layer, qkv), qkv.dtype)
            )
        x: Tensor = decoder.embeddings
        for layer, block in enumerate(decoder.blocks):
            x = self._run_block(x, ids if layer == 0 else None, layer, block, attend, tiles)
        return x

    def _run_block(
        self,
        x: Tensor,
        ids: Tensor | None,
        layer: int,
        block: PackedBlock,
        attend: Callable[[int, Tensor], decoding.Splits],
        tiles: StepTiles,
    ) -> Tensor:
        """Return the block's result; with `ids`, `x` has the embeddings, and no earlier kernel overlaps."""
        multiply = decoding_products.multiply
        options = self.options
        first, second = block.norms or (None, None)
        overlap: dict[str, Any] = {"overlap": options.overlap, "prefetch": options.prefetch}
        qkv, _ = multiply(
            x,
            block.attention.qkv.weight,
            tiles.qkv,
            ids=ids,
            **_norm(first),
            overlap=options.overlap and ids is None,
            prefetch=options.prefetch,
        )
        splits = attend(layer, qkv)
        can_combine = len(qkv) == 1 and splits.sums.numel() <= MAX_COMBINED
        attended = (
            splits
            if can_combine and options.combine_in_product
            else decoding.combine_splits(splits, qkv.dtype, overlap=options.overlap)
        )
        x, _ = multiply(
            attended, block.attention.output.weight, tiles.output, residual=x, residual_ids=ids, **overlap
        )
        ffn = block.ffn
        assert isinstance(ffn, PackedSwiGLU | PackedSiLU)
        gate = decoding_products.SWIGLU if isinstance(ffn, PackedSwiGLU) else decoding_products.SILU
        hidden, _ = multiply(x, ffn.up.weight, tiles.up, **_norm(second), gate=gate, **overlap)
        x, _ = multiply(hidden, ffn.down.weight, tiles.down, residual=x, **overlap)
        return x

    def _score(self, x: Tensor, num_ids: int | None) -> tuple[Tensor, LargestLogits | None]:
        decoder, options = self.decoder, self.options
        tiles = self._tiles(len(x))
        if tiles is None:
            logits = decoder.score(x)
            return logits, None if num_ids is None else decoding_products.find_largest(logits, num_ids)
        return decoding_products.multiply(
            x,
            decoder.head.weight,
            tiles.head,
            **_norm(decoder.final_norm),
            num_ids=num_ids,
            overlap=options.overlap,
            prefetch=options.prefetch,
        )


def supports_fused_step(decoder: Decoder) -> bool:
    """Return whether `FusedStep` has kernels for all parts of a decoder."""
    norms = [norm for block in decoder.blocks for norm in block.norms or ()]
    norms += [] if decoder.final_norm is None else [decoder.final_norm]
    return (
        decoder.dtype in (torch.bfloat16, torch.float32)
        and all(isinstance(norm, PackedRMSNorm) for norm in norms)
        and all(block.place != "post" for block in decoder.blocks)
        and all(isinstance(block.ffn, PackedSwiGLU | PackedSiLU) for block in decoder.blocks)
    )


def _norm(norm: object) -> dict[str, Any]:
    """Return the arguments of `multiply` for a norm before the product."""
    if norm is None:
        return {}
    assert isinstance(norm, PackedRMSNorm)
    return {"gains": norm.gain, "eps": norm.eps}
