"""The reference layers without attention, written from their equations.

All layers accept any number of leading batch dimensions and have no biases. Norms and softmax compute in at
least float32 and return the type of their input. Weights are cast to the type of the activations, so that
parameters can stay in float32 while the model computes in bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import Module, Parameter

from bytewright.errors import UsageError, wrong_value
from bytewright.model.config import ModelConfig
from bytewright.model.costs import WIDE, Costs, Kept, Pass, StepShape
from bytewright.registry import feed_forwards, norms

EPSILON = 1e-5
"""Added to the mean square in every norm, so that a zero vector is not divided by zero."""


EAGER_RMS_NORM = {"fp32": 28 + 96, "bf16": 40 + 108}
"""Bytes that a norm moves per number without a compiler, forward and backward."""


DeviceLike = torch.device | str | None
DType = torch.dtype | None


class Layer(Module):
    """A module whose call returns one tensor (torch types every call as Any)."""

    if TYPE_CHECKING:

        def __call__(self, *inputs: Any) -> Tensor: ...  # noqa: D102


def at_least_float32(x: Tensor) -> Tensor:
    """Return half-precision values as float32, others unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def truncated_normal_(x: Tensor, std: float) -> Tensor:
    """Fill `x` in place with N(0, std²) truncated at ±3 std, by inverse transform sampling.

    p is uniform between the cumulative probabilities of the two bounds, and x = √2·erf⁻¹(2p - 1)·std.
    """
    if x.is_meta:
        return x  # without values
    with torch.no_grad():
        bound = math.erf(3 / math.sqrt(2))
        wide = torch.empty_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
        wide.uniform_(-bound, bound).erfinv_().mul_(math.sqrt(2) * std)
        return x.copy_(wide.clamp_(-3 * std, 3 * std))  # erf⁻¹ can round beyond the bound


def softmax(x: Float[Tensor, "*shape"], dim: int) -> Float[Tensor, "*shape"]:
    """Return exp(xᵢ) / Σⱼ exp(xⱼ) along `dim`.

    The maximum is subtracted first, which does not change the quotient, so that exp does not overflow.

    >>> softmax(torch.tensor([1000.0, 1000.0]), dim=0)
    tensor([0.5000, 0.5000])
    """
    scores = at_least_float32(x)
    weights = torch.exp(scores - scores.amax(dim, keepdim=True))
    return (weights / weights.sum(dim, keepdim=True)).to(x.dtype)


def silu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return x·sigmoid(x)."""
    return x * torch.sigmoid(x)


def rms_norm(
    x: Float[Tensor, "*batch d"], gain: Float[Tensor, "*heads d"], eps: float
) -> Float[Tensor, "*batch d"]:
    """Return x / √(mean(x²) + ε) ⊙ g: each vector scaled to unit root mean square, times the gains."""
    wide = at_least_float32(x)
    inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * inverse_rms * gain).to(x.dtype)


class Linear(Layer):
    """y = x Wᵀ, with W of shape (out_features, in_features)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        device: DeviceLike = None,
        dtype: DType = None,
        *,
        std: float | None = None,
    ) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.std = std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights: the variance is std², or 2 / (in_features + out_features) without `std`."""
        std = math.sqrt(2 / sum(self.weight.shape)) if self.std is None else self.std
        truncated_normal_(self.weight, std=std)

    def extra_repr(self) -> str:
        """Return the sizes for the module's repr."""
        return f"{self.weight.shape[1]} -> {self.weight.shape[0]}"

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Apply the matrix to the last dimension."""
        return x @ self.weight.to(x.dtype).T


class Embedding(Layer):
    """A table with one row per id; `std` is smaller than 1 if the table is also the output head."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        device: DeviceLike = None,
        dtype: DType = None,
        *,
        std: float = 1.0,
    ) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
        self.std = std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights."""
        truncated_normal_(self.weight, std=self.std)

    def extra_repr(self) -> str:
        """Return the sizes for the module's repr."""
        return f"{self.weight.shape[0]} ids -> {self.weight.shape[1]}"

    def forward(self, ids: Integer[Tensor, "*batch"]) -> Float[Tensor, "*batch d_model"]:
        """Return the row of every id; ids can have any integer type (token files have uint16)."""
        check_integers(ids)
        ids = ids.long()
        try:
            rows: Tensor = _LookUp.apply(self.weight, ids)  # type: ignore[no-untyped-call]
        except IndexError:
            check_range("ids", ids, len(self.weight))
            raise
        return rows


def check_integers(ids: Tensor) -> None:
    """Raise if ids are of a floating-point type: a cast would silently drop the fraction."""
    if ids.is_floating_point():
        raise wrong_value("ids", "integers", ids.dtype)


def check_range(name: str, indices: Tensor, size: int) -> None:
    """Raise if indices on the CPU are not all from 0 to size - 1.

    Call it after a lookup has failed: a check before each lookup would synchronise with the device and break
    compiled graphs.
    """
    if indices.device.type == "cpu" and not bool(((indices >= 0) & (indices < size)).all()):
        lowest, highest = indices.min().item(), indices.max().item()
        message = f"{name} must be from 0 to {size - 1}, but are from {lowest} to {highest}"
        raise UsageError(message, key=name, expected=size - 1, found=highest if lowest >= 0 else lowest)


class _LookUp(torch.autograd.Function):
    """weight[ids] with a deterministic gradient.

    The gradient of a row is a sum over all positions of its id. The indexing of torch, compiled or not, adds
    them in the order in which its threads finish.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.num_rows = len(weight)
        return torch.embedding(weight, ids)  # unlike weight[ids], rejects -1

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (ids,) = ctx.saved_tensors
        return sum_rows_by_id(upstream, ids, ctx.num_rows), None


@torch.library.custom_op(
    "bytewright::sum_rows_by_id",
    mutates_args=(),
    schema="(Tensor rows, Tensor ids, SymInt num_ids) -> Tensor",  # explicit, because tests wrap annotations
)
def sum_rows_by_id(rows: Tensor, ids: Tensor, num_ids: int) -> Tensor:
    """Return the sum of the rows of each id, added from the first position to the last.

    A custom operator, because the compiler would replace torch's operator by additions in any order.

    >>> sum_rows_by_id(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([2, 0, 2]), 3).flatten()
    tensor([2., 0., 5.])
    """
    sums: Tensor = torch.ops.aten.embedding_dense_backward(rows, ids, num_ids, -1, False)
    return sums


@sum_rows_by_id.register_fake
def _(rows: Tensor, ids: Tensor, num_ids: int) -> Tensor:
    return rows.new_empty(num_ids, rows.shape[-1])


class _Norm(Layer):
    """A norm with a learned gain of each dimension."""

    def __init__(
        self, d_model: int, eps: float = EPSILON, device: DeviceLike = None, dtype: DType = None
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Parameter(torch.empty(d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all gains to 1."""
        torch.nn.init.ones_(self.weight)

    def extra_repr(self) -> str:
        """Return the size for the module's repr."""
        return str(len(self.weight))


@norms.register("rmsnorm")
class RMSNorm(_Norm):
    """`rms_norm` with a learned gain."""

    acts_per_position = True
    llama_weights: ClassVar = {"weight": "weight"}
    llama_options: ClassVar = {"eps": "rms_norm_eps"}

    @staticmethod
    def check_config(config: ModelConfig) -> None:
        """Raise unless `eps` is positive."""
        eps = config.norm_options.get("eps", EPSILON)
        if not 0 < eps < math.inf:
            raise wrong_value("norm_options.eps", "a positive number", eps)

    @classmethod
    def costs(cls, x: StepShape) -> Costs:
        """Return the costs: it keeps its input in float32, the input divided by its rms, and the output.

        A compiler recomputes the second. Eager, it casts, squares, takes the mean, multiplies twice, casts.
        """
        numbers = x.N * x.d
        kept = [Kept("input", x.s * numbers, is_freed_early=True)]
        if not x.compiled:
            kept = [Kept("input, widened", WIDE * numbers)]
            kept += [Kept("input over its rms", WIDE * numbers, is_freed_early=True)]
        moved = 10 * x.s if x.compiled else EAGER_RMS_NORM[x.precision]
        return Costs(
            parameters={"d": 1},
            kept=[*kept, Kept("output", x.s * numbers, is_freed_early=True)],
            backward_bytes=5 * WIDE * numbers,
            passes=[Pass("norm", 10 * numbers, moved * numbers)],
            textbook={"d": 1},
        )

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Normalise the last dimension."""
        return rms_norm(x, self.weight, self.eps)


@norms.register("layernorm")
class LayerNorm(_Norm):
    """(x - mean(x)) / √(var(x) + ε) ⊙ g: `rms_norm` of the centred vector, with a learned gain, no bias."""

    acts_per_position = True
    no_llama_because = "a Llama normalises with RMSNorm"

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Normalise the last dimension."""
        wide = at_least_float32(x)
        return rms_norm(wide - wide.mean(dim=-1, keepdim=True), self.weight, self.eps).to(x.dtype)


def feed_forward_costs(x: StepShape, upper: Sequence[str], kept: Kept, *, num_passes: int) -> Costs:
    """Return the costs of a layer with these upper matrices, SiLU, and the lower matrix w2."""
    inner, matrix = x.N * x.f, x.d * x.f
    copies = []
    if x.precision == "bf16":
        copies = [
            Kept("upper weights", len(upper) * x.s * matrix, "weight copies"),
            Kept("w2 in bf16", x.s * matrix, "weight copies"),
        ]
    products = [x.product(name, "feed_forward", x.d, x.f) for name in upper]
    return Costs(
        parameters={"df": len(upper) + 1},
        matmuls=[*products, x.product("w2", "feed_forward", x.f, x.d)],
        kept=[kept, *copies],
        # The gradients of the product and of both factors, minus the product itself, which is freed;
        # the upstream gradient; the gradient of w2
        backward_bytes=2 * x.s * inner + x.s * x.N * x.d + WIDE * matrix,
        passes=[Pass("feed-forward gate", 10 * inner, num_passes * x.s * inner)],
        textbook={"f": 2 * len(upper), "d": 1},
    )


@feed_forwards.register("swiglu")
class SwiGLU(Layer):
    """The gated feed-forward layer W2(SiLU(W1 x) ⊙ W3 x)."""

    acts_per_position = True
    llama_weights: ClassVar = {
        "w1.weight": "gate_proj.weight",
        "w2.weight": "down_proj.weight",
        "w3.weight": "up_proj.weight",
    }

    @staticmethod
    def default_width(d_model: int) -> int:
        """Return 8/3·d_model to a multiple of 64: three matrices with as many parameters as two of 4·d_model.

        >>> SwiGLU.default_width(512)  # 8/3·d_model = 64·(d_model/24), to the nearest
        1344
        """
        return max(64, 64 * ((d_model + 12) // 24))

    @classmethod
    def costs(cls, x: StepShape) -> Costs:
        """Return the costs; a compiler recomputes the sigmoid and SiLU in the backward pass."""
        kept = Kept("gate, its sigmoid, SiLU, up, product", 5 * x.s * x.N * x.f)
        if x.compiled:
            kept = Kept("gate, up, product", 3 * x.s * x.N * x.f)
        return feed_forward_costs(x, ("w1", "w3"), kept, num_passes=8 if x.compiled else 18)

    def __init__(self, d_model: int, d_ff: int, device: DeviceLike = None, dtype: DType = None) -> None:
        super().__init__()
        self.w1 = Linear(d_model, d_ff, device, dtype)
        self.w2 = Linear(d_ff, d_model, device, dtype)
        self.w3 = Linear(d_model, d_ff, device, dtype)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each position separately."""
        return self.w2(silu(self.w1(x)) * self.w3(x))


@feed_forwards.register("silu")
class SiLUFeedForward(Layer):
    """The ungated feed-forward layer W2 SiLU(W1 x)."""

    acts_per_position = True
    no_llama_because = "the feed-forward layer of a Llama has a gate"

    @classmethod
    def costs(cls, x: StepShape) -> Costs:
        """Return the costs; a compiler recomputes the sigmoid in the backward pass."""
        kept = Kept("inner, its sigmoid, SiLU", (2 if x.compiled else 3) * x.s * x.N * x.f)
        return feed_forward_costs(x, ("w1",), kept, num_passes=5 if x.compiled else 18)

    def __init__(self, d_model: int, d_ff: int, device: DeviceLike = None, dtype: DType = None) -> None:
        super().__init__()
        self.w1 = Linear(d_model, d_ff, device, dtype)
        self.w2 = Linear(d_ff, d_model, device, dtype)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each position separately."""
        return self.w2(silu(self.w1(x)))
