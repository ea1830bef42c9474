"""The weights of a model in the layout that is fastest for products with few rows, as in decoding.

Such a product is bound by reading its weights. Packing joins q, k and v into one matrix, and gate and up into
another, in the precision of the computation. Gains of norms keep the precision of the parameters. Packed
weights are a snapshot: later training does not change them.

`packed_version_of` registers the packed version of a class of modules. A part without one that transforms
each position separately is called itself (`OwnForward`); `model_check` decides which modules are packed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import linear, pad, rms_norm, silu

from bytewright.model import MultiHeadSelfAttention, RMSNorm, SwiGLU, TransformerBlock, kernels
from bytewright.model.config import NormPlace
from bytewright.model.fused import FusedSelfAttention, FusedSwiGLU, gate_by_silu, join_gains, join_projections
from bytewright.model.layers import SiLUFeedForward, at_least_float32
from bytewright.registry import is_built_in

P = TypeVar("P", bound=type)

ROW_MULTIPLE = 64
"""On a GPU, the number of rows of the output embedding is a multiple of this."""

PackedNorm = Callable[[Tensor], Tensor]
"""A function that normalises rows of the residual stream."""


@runtime_checkable
class PackedFeedForward(Protocol):
    """A feed-forward layer."""

    def add_to(self, residual: Tensor, x: Tensor, /) -> Tensor:
        """Return the residual stream plus the layer's result for the rows of `x`.

        The layer may write the result into `residual`, which the caller no longer uses. Without a norm before
        the layer, `x` is the same tensor.
        """


_versions: dict[type[Module], tuple[type, object]] = {}
"""For a class of modules: its packed version, and the `forward` that this version was written for."""


def packed_version_of(*classes: type[Module]) -> Callable[[P], P]:
    """Register the packed version of exactly these classes; use it as a decorator.

    A packed version is constructed with the module, the precision of the computation and the number of rows.
    """

    def add(version: P) -> P:
        for cls in classes:
            _versions[cls] = version, cls.forward
        return version

    return add


def packed_version(module: Module) -> type | None:
    """Return the packed version of exactly the class of `module`, unless its `forward` was replaced."""
    version, forward = _versions.get(type(module), (None, None))
    return version if forward is type(module).forward else None


def pack_module(module: Module, dtype: torch.dtype, num_rows: int) -> Any:
    """Return the packed version of a module, or the module itself as `OwnForward`."""
    version: Any = packed_version(module)
    return OwnForward(module) if version is None else version(module, dtype, num_rows)


def snapshot(weight: Float[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """Return a copy of a weight that further training does not change."""
    return weight.detach().to(dtype, copy=True)


def snapshot_gain(gain: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return a copy of the gain of a norm in at least float32: the model applies gains before it rounds."""
    return snapshot(gain, torch.promote_types(gain.dtype, torch.float32))


def pad_rows(weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "padded d_in"]:
    """Return a weight with zeros below it, to a multiple of `ROW_MULTIPLE` rows on a GPU.

    For other sizes, such as the 50,257 tokens of GPT-2, cuBLAS selects a kernel that takes several times as
    long.
    """
    missing = -len(weight) % ROW_MULTIPLE if weight.is_cuda else 0
    return pad(weight, (0, 0, 0, missing)) if missing else weight


class PackedMatrix:
    """A weight in the layout whose products with about `num_rows` rows are fastest; any number is allowed.

    On a CPU in float32, `linear` reaches half of the memory bandwidth. Transposed weights make a product with
    one row twice as fast, unless the result is the shorter side. The blocked layout of oneDNN makes products
    with several rows up to twice as fast. Other devices and types use the plain layout.
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
        """Return residual + x Wᵀ without storing the product; `residual` may be overwritten."""
        if self.blocked:
            total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, None, "add")
            return total
        return residual.addmm_(x, self.weight if self.transposed else self.weight.T)


class OwnForward:
    """A part that transforms each position separately and is called itself.

    A built-in part is copied, so that it is a snapshot. The part of a user may not support that.
    """

    def __init__(self, module: Module) -> None:
        self.module = copy.deepcopy(module) if is_built_in(type(module)) else module

    def __call__(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
        """Return the result for the rows, which are positions of any sequences."""
        result: Tensor = self.module(x)
        return result

    def add_to(
        self, residual: Float[Tensor, "rows d_model"], x: Float[Tensor, "rows d_model"]
    ) -> Float[Tensor, "rows d_model"]:
        """Return the residual stream plus the result."""
        return residual + self(x)


@packed_version_of(RMSNorm)
class PackedRMSNorm:
    """`RMSNorm` on rows: computed in at least float32, gains included, and rounded once."""

    def __init__(self, module: RMSNorm, dtype: torch.dtype, num_rows: int) -> None:
        self.gain, self.eps = snapshot_gain(module.weight), module.eps

    def __call__(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
        """Return the normalised rows."""
        if kernels.supports(x):
            from bytewright.model.kernels.decoding import rms_norm_rows

            normalised: Tensor = rms_norm_rows(x, self.gain, eps=self.eps)
            return normalised
        return rms_norm(at_least_float32(x), self.gain.shape, self.gain, self.eps).to(x.dtype)


@packed_version_of(SwiGLU, FusedSwiGLU)
class PackedSwiGLU:
    """`SwiGLU` with gate and up joined."""

    def __init__(self, module: SwiGLU, dtype: torch.dtype, num_rows: int) -> None:
        joined = torch.cat((module.w1.weight, module.w3.weight))
        self.up = PackedMatrix(snapshot(joined, dtype), num_rows)
        self.down = PackedMatrix(snapshot(module.w2.weight, dtype), num_rows)

    def add_to(
        self, residual: Float[Tensor, "rows d_model"], x: Float[Tensor, "rows d_model"]
    ) -> Float[Tensor, "rows d_model"]:
        """Return the residual stream plus the result."""
        return self.down.add_to(residual, gate_by_silu(self.up(x)))


@packed_version_of(SiLUFeedForward)
class PackedSiLU:
    """`SiLUFeedForward`."""

    def __init__(self, module: SiLUFeedForward, dtype: torch.dtype, num_rows: int) -> None:
        self.up = PackedMatrix(snapshot(module.w1.weight, dtype), num_rows)
        self.down = PackedMatrix(snapshot(module.w2.weight, dtype), num_rows)

    def add_to(
        self, residual: Float[Tensor, "rows d_model"], x: Float[Tensor, "rows d_model"]
    ) -> Float[Tensor, "rows d_model"]:
        """Return the residual stream plus the result."""
        return self.down.add_to(residual, silu(self.up(x)))


@packed_version_of(MultiHeadSelfAttention, FusedSelfAttention)
class PackedAttention:
    """The projections of `MultiHeadSelfAttention`; the decoder attends to its cache."""

    def __init__(self, module: MultiHeadSelfAttention, dtype: torch.dtype, num_rows: int) -> None:
        self.qkv = PackedMatrix(snapshot(join_projections(module, dtype), dtype), num_rows)
        gains = join_gains(module)
        self.qk_gains = None if gains is None else snapshot_gain(gains)
        """Gains of the norms on q and k for each head, or None without these norms."""
        self.output = PackedMatrix(snapshot(module.output_proj.weight, dtype), num_rows)


@dataclass(frozen=True, kw_only=True)
class PackedBlock:
    """The parts of one block."""

    place: NormPlace
    """Where the norms are."""
    norms: tuple[PackedNorm, PackedNorm] | None
    """The norms of the attention and of the feed-forward layer, or None without norms."""
    attention: PackedAttention
    ffn: PackedFeedForward


def pack_block(block: TransformerBlock, dtype: torch.dtype, num_rows: int) -> PackedBlock:
    """Return one block packed for products with about `num_rows` rows."""
    norms = None
    if block.norm != "none":
        norms = pack_module(block.ln1, dtype, num_rows), pack_module(block.ln2, dtype, num_rows)
    return PackedBlock(
        place=block.norm,
        norms=norms,
        attention=cast("PackedAttention", pack_module(block.attn, dtype, num_rows)),
        ffn=pack_module(block.ffn, dtype, num_rows),
    )
