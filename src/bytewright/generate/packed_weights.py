"""The weights of a model in the layout that is fastest for products with few rows, as in decoding.

Such a product is bound by reading its weights. Packing joins q, k and v into one matrix, and gate and up into
another, in the precision of the computation. Gains of norms keep the precision of the parameters. Packed
weights are a snapshot: later training does not change them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from bytewright.model import SwiGLU, TransformerBlock
from bytewright.model.fused import join_gains, join_projections


def snapshot(weight: Float[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """Return a copy of a weight that further training does not change."""
    return weight.detach().to(dtype, copy=True)


def snapshot_gain(gain: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return a copy of the gain of a norm in at least float32: the model applies gains before it rounds."""
    return snapshot(gain, torch.promote_types(gain.dtype, torch.float32))


class PackedMatrix:
    """A weight in the layout whose products with about `num_rows` rows are fastest; any number is allowed.

    On a CPU in float32, `linear` reaches half of the memory bandwidth. Transposed weights make a product with
    one row twice as fast, unless the result is the shorter side. oneDNN's blocked layout makes products with
    several rows up to twice as fast. Other devices and types use the plain layout.
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
        """Return residual + x Wᵀ without storing the product."""
        if self.blocked:
            total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, None, "add")
            return total
        return torch.addmm(residual, x, self.weight if self.transposed else self.weight.T)


@dataclass(frozen=True, kw_only=True)
class PackedBlock:
    """The weights of one block."""

    qkv: PackedMatrix
    qk_gains: Float[Tensor, "heads d_head"] | None
    """Gains of the norms on q and k for each head, or None without these norms."""
    output: PackedMatrix
    up: PackedMatrix
    """For a gated feed-forward layer, gate and up joined."""
    gated: bool
    down: PackedMatrix
    gains: tuple[Float[Tensor, " d_model"], Float[Tensor, " d_model"]] | None
    """Gains of the norms of the attention and of the feed-forward layer, or None without norms."""


def pack_block(block: TransformerBlock, dtype: torch.dtype, num_rows: int) -> PackedBlock:
    """Return one block packed for products with about `num_rows` rows."""
    attention: Any = block.attn
    ffn: Any = block.ffn
    norms: Any = block

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
        else (snapshot_gain(norms.ln1.weight), snapshot_gain(norms.ln2.weight)),
    )
