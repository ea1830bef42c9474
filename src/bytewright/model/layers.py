"""The layers without attention, written from their equations: the readable twins.

Everything here is plain tensor algebra with any number of leading batch dimensions, an explicit device and
dtype, and no biases. Whatever needs range or precision (norms, softmax) is computed in float32 at least and
handed back in the type it came in. A weight follows the type of the activations it meets, so that parameters
may stay in float32 while the model runs in bfloat16.

Nothing here knows about attention, caches, losses or training.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import Module, Parameter

from bytewright.errors import UsageError

EPSILON = 1e-5
"""What every norm of the model adds to the mean square, so that a zero vector stays one."""


class Layer(Module):
    """A module whose call returns one tensor (the library types every call as Any)."""

    if TYPE_CHECKING:

        def __call__(self, *inputs: Any) -> Tensor: ...  # noqa: D102


def at_least_float32(x: Tensor) -> Tensor:
    """Widen half-precision values to float32; leave float32 and float64 as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def truncated_normal_(x: Tensor, std: float) -> Tensor:
    """Fill `x` in place with N(0, std²) cut at ±3 std, by the inverse of the normal's cumulative function.

    A uniform draw between the probabilities of the two cuts, sent through Φ⁻¹(p) = √2·erf⁻¹(2p - 1), lands
    between the cuts with exactly the right density.
    """
    with torch.no_grad():
        bound = math.erf(3 / math.sqrt(2))
        wide = torch.empty_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
        wide.uniform_(-bound, bound).erfinv_().mul_(math.sqrt(2) * std)
        return x.copy_(wide.clamp_(-3 * std, 3 * std))  # erf⁻¹ may round past the cut


def softmax(x: Float[Tensor, "*shape"], dim: int) -> Float[Tensor, "*shape"]:
    """Turn scores along `dim` into probabilities: exp(xᵢ) / Σⱼ exp(xⱼ).

    Subtracting the maximum first changes nothing in the quotient and keeps exp from overflowing.

    >>> softmax(torch.tensor([1000.0, 1000.0]), dim=0)
    tensor([0.5000, 0.5000])
    """
    scores = at_least_float32(x)
    weights = torch.exp(scores - scores.amax(dim, keepdim=True))
    return (weights / weights.sum(dim, keepdim=True)).to(x.dtype)


def silu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return x·sigmoid(x): close to x for large x, close to 0 for very negative x, smooth between."""
    return x * torch.sigmoid(x)


def rms_norm(
    x: Float[Tensor, "*batch d"], gain: Float[Tensor, "*heads d"], eps: float
) -> Float[Tensor, "*batch d"]:
    """Return x / √(mean(x²) + ε) ⊙ g: each vector scaled to unit root mean square, then by its gains."""
    wide = at_least_float32(x)
    inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * inverse_rms * gain).to(x.dtype)


class Linear(Layer):
    """y = x Wᵀ, with W of shape (out_features, in_features)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        truncated_normal_(self.weight, std=math.sqrt(2 / (in_features + out_features)))

    def extra_repr(self) -> str:
        """Tell the sizes where the module is printed."""
        return f"{self.weight.shape[1]} -> {self.weight.shape[0]}"

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Apply the matrix to the last dimension."""
        return x @ self.weight.to(x.dtype).T


class Embedding(Layer):
    """A table with one row of numbers per id; `std` is 1 unless the rows double as an output head."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        std: float = 1.0,
    ) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
        truncated_normal_(self.weight, std=std)

    def extra_repr(self) -> str:
        """Tell the sizes where the module is printed."""
        return f"{self.weight.shape[0]} ids -> {self.weight.shape[1]}"

    def forward(self, ids: Integer[Tensor, "*batch"]) -> Float[Tensor, "*batch d_model"]:
        """Look up the row of every id; ids of any integer type (token files hold uint16)."""
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
        raise UsageError(f"ids must be integers, but these are {ids.dtype}", key="ids", found=ids.dtype)


def check_range(name: str, indices: Tensor, size: int) -> None:
    """Raise if indices on the CPU are not all from 0 to size - 1.

    Call it when a lookup has failed. A check before each lookup would synchronise with the device and break
    compiled graphs.
    """
    if indices.device.type == "cpu" and not bool(((indices >= 0) & (indices < size)).all()):
        lowest, highest = indices.min().item(), indices.max().item()
        raise UsageError(f"{name} must be from 0 to {size - 1}, but these are from {lowest} to {highest}")


class _LookUp(torch.autograd.Function):
    """weight[ids], with a gradient that is the same bits every time.

    The gradient of a row is the sum over all places where its id stands. The library's own indexing adds them
    up in whatever order its threads arrive, and so does what torch.compile makes of it.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.num_rows = len(weight)
        return torch.embedding(weight, ids)  # unlike weight[ids], it takes no -1 for the last row

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (ids,) = ctx.saved_tensors
        return sum_rows_by_id(upstream, ids, ctx.num_rows), None


@torch.library.custom_op(
    "bytewright::sum_rows_by_id",
    mutates_args=(),
    schema="(Tensor rows, Tensor ids, SymInt num_ids) -> Tensor",  # annotations are wrapped in tests
)
def sum_rows_by_id(rows: Tensor, ids: Tensor, num_ids: int) -> Tensor:
    """Add up the rows of each id, from the first place to the last.

    An operator of its own because the compiler would turn the library's into additions in any order.

    >>> sum_rows_by_id(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([2, 0, 2]), 3).flatten()
    tensor([2., 0., 5.])
    """
    sums: Tensor = torch.ops.aten.embedding_dense_backward(rows, ids, num_ids, -1, False)
    return sums


@sum_rows_by_id.register_fake
def _(rows: Tensor, ids: Tensor, num_ids: int) -> Tensor:
    return rows.new_empty(num_ids, rows.shape[-1])


class RMSNorm(Layer):
    """`rms_norm` with a learned gain."""

    def __init__(
        self,
        d_model: int,
        eps: float = EPSILON,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Parameter(torch.ones(d_model, device=device, dtype=dtype))

    def extra_repr(self) -> str:
        """Tell the size where the module is printed."""
        return str(len(self.weight))

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Normalise the last dimension."""
        return rms_norm(x, self.weight, self.eps)


class SwiGLU(Layer):
    """W2(SiLU(W1 x) ⊙ W3 x): the feed-forward layer with a gate."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.w1 = Linear(d_model, d_ff, device, dtype)
        self.w2 = Linear(d_ff, d_model, device, dtype)
        self.w3 = Linear(d_model, d_ff, device, dtype)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each position by itself."""
        return self.w2(silu(self.w1(x)) * self.w3(x))


class SiLUFeedForward(Layer):
    """W2 SiLU(W1 x): the feed-forward layer without a gate."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.w1 = Linear(d_model, d_ff, device, dtype)
        self.w2 = Linear(d_ff, d_model, device, dtype)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each position by itself."""
        return self.w2(silu(self.w1(x)))
