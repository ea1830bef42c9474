"""The weights of a model laid out for products with few rows, which is all that writing token by token does.

Such a product costs the reading of its weights, so they are packed once: q, k and v as one matrix, gate and
up as one, in the precision the model computes in, in the layout that its device reads fastest. Gains of norms
keep the precision of the parameters. A packed model is a snapshot: later training does not change it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from bytewright.model import SwiGLU, TransformerBlock
from bytewright.model.fused import join_gains, join_projections


def snapshot(weight: Float[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """Copy a weight as it is now: training that goes on does not reach the copy."""
    return weight.detach().to(dtype, copy=True)


def snapshot_gain(gain: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Copy the gain of a norm, in float32 at least: the model applies gains before it rounds."""
    return snapshot(gain, torch.promote_types(gain.dtype, torch.float32))


class PackedMatrix:
    """A weight in the layout whose products with about `num_rows` rows are fastest; they may have any number.

    On a CPU in float32 the plain product reaches half of what memory gives. One row goes twice as fast over
    weights that are stored transposed, unless the result is the shorter side; several rows go up to twice as
    fast over oneDNN's blocked layout. Elsewhere the library's own choice is best.
    """

    def __init__(self, weight: Float[Tensor, "d_out d_in"], num_rows: int) -> None:
        d_out, d_in = weight.shape
        on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
        self.blocked = on_cpu and num_rows > 1 and torch._C._has_mkldnn
        self.transposed = on_cpu and num_rows == 1 and d_out > d_in
        self.weight = (weight.T if self.transposed else weight).contiguous()
        if self.blocked:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, num_rows)

    def __call__(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Return x Wᵀ."""
        if self.blocked:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")
            return product
        return x @ self.weight if self.transposed else linear(x, self.weight)

    def add_to(
        self, residual: Float[Tensor, "rows d_out"], x: Float[Tensor, "rows d_in"]
    ) -> Float[Tensor, "rows d_out"]:
        """Return residual + x Wᵀ, without writing the product down in between."""
        if self.blocked:
            total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, None, "add")
            return total
        return torch.addmm(residual, x, self.weight if self.transposed else self.weight.T)


@dataclass(frozen=True, kw_only=True)
class PackedBlock:
    """The weights of one block."""

    qkv: PackedMatrix
    qk_gains: Float[Tensor, "heads d_head"] | None
    """Gains of the norms on q and k, head by head, where there are such norms."""
    output: PackedMatrix
    up: PackedMatrix
    """Gate and up in one where the feed-forward layer is gated."""
    gated: bool
    down: PackedMatrix
    gains: tuple[Float[Tensor, " d_model"], Float[Tensor, " d_model"]] | None
    """Gains of the norms at the attention and at the feed-forward layer, where there are norms."""


def pack_block(block: TransformerBlock, dtype: torch.dtype, num_rows: int) -> PackedBlock:
    """Pack one block for products with about `num_rows` rows."""
    attention, ffn = block.attn, block.ffn

    def packed(weight: Tensor) -> PackedMatrix:
        return PackedMatrix(snapshot(weight, dtype), num_rows)

    qk_gains = join_gains(attention)
    gated = isinstance(ffn, SwiGLU)
    return PackedBlock(
        qkv=packed(join_projections(attention, dtype)),
        qk_gains=None if qk_gains is None else snapshot_gain(qk_gains),
        output=packed(attention.output_proj.weight),
        up=packed(torch.cat((ffn.w1.weight, ffn.w3.weight)) if isinstance(ffn, SwiGLU) else ffn.w1.weight),
        gated=gated,
        down=packed(ffn.w2.weight),
        gains=None
        if block.norm == "none"
        else (snapshot_gain(block.ln1.weight), snapshot_gain(block.ln2.weight)),
    )
