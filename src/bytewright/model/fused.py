"""The fast twins: the same layers with fewer and larger operations.

Each class inherits the parameters, names and initialisation of its readable twin and overrides `forward`
alone, so either loads what the other saved and an optimizer sees the same matrices. What makes them fast:

- one product for q, k and v, and one for gate and up. Their weights are joined on the way in: a copy that is
  small beside the product, and free where they are cast to bfloat16 anyway;
- rows of q and k are joined with each head's even dimensions first. Scores do not depend on the order inside
  a head as long as q and k agree, and turning two contiguous halves is cheaper than turning interleaved
  pairs;
- the library's attention kernel, which never writes the scores to memory;
- on an NVIDIA GPU in a half-precision type, kernels of our own (`kernels`) where the library and its compiler
  pass over memory more than once;
- the head and its loss in chunks: the logits of a whole batch never exist at once, let alone in float32.

Everything is traceable by `torch.compile`, which fuses the rest. Nothing here knows about training.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention, silu

from bytewright.model import kernels
from bytewright.model.attention import MultiHeadSelfAttention
from bytewright.model.layers import (
    EPSILON,
    Embedding,
    SwiGLU,
    at_least_float32,
    check_integers,
    check_range,
    rms_norm,
)
from bytewright.model.loss import check_targets, cross_entropy
from bytewright.model.transformer import LAYER_CLASSES, LayerClasses, TransformerLM

LOGITS_AT_ONCE = {"cpu": 5 * 2**20, "cuda": 2**29}
"""How many logits the loss works on at a time: what a CPU's cache holds, or enough to keep a GPU busy."""


def halves_from_pairs(rows: Float[Tensor, "rows ..."], d_head: int) -> Float[Tensor, "rows ..."]:
    """Reorder each head's rows from interleaved pairs to two halves: all even dimensions, then all odd ones.

    >>> halves_from_pairs(torch.arange(8.0), d_head=4)
    tensor([0., 2., 1., 3., 4., 6., 5., 7.])
    """
    return rows.reshape(-1, d_head // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def pairs_from_halves(rows: Float[Tensor, "rows ..."], d_head: int) -> Float[Tensor, "rows ..."]:
    """Undo `halves_from_pairs`."""
    return rows.reshape(-1, 2, d_head // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def rotate_halves(
    x: Float[Tensor, "*batch seq heads d_head"],
    cos: Float[Tensor, "*#batch seq half"],
    sin: Float[Tensor, "*#batch seq half"],
) -> Float[Tensor, "*batch seq heads d_head"]:
    """Turn the pairs (i, i + d_head/2) by their angles: the rotary embedding for rows in halves."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # the same for every head
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


def join_projections(
    attention: MultiHeadSelfAttention, dtype: torch.dtype
) -> Float[Tensor, "qkv_width d_model"]:
    """Rows of q, k and v as one matrix, those of q and k in halves where they will be rotated."""
    weights: list[Tensor] = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    if attention.rope is not None:
        weights[:2] = (halves_from_pairs(weight, attention.d_head) for weight in weights[:2])
    return torch.cat([weight.to(dtype) for weight in weights])


def join_gains(attention: MultiHeadSelfAttention) -> Float[Tensor, "qk_heads d_head"] | None:
    """Return the gains of the norms on q and k, if it has them, in the order of `join_projections`' rows."""
    if attention.q_norm is None or attention.k_norm is None:
        return None
    gains: list[Tensor] = [attention.q_norm.weight, attention.k_norm.weight]
    if attention.rope is not None:
        gains = [halves_from_pairs(gain, attention.d_head) for gain in gains]
    heads = attention.num_heads, attention.num_kv_heads
    return torch.cat([gain.expand(count, -1) for gain, count in zip(gains, heads, strict=True)])


class FusedSelfAttention(MultiHeadSelfAttention):
    """`MultiHeadSelfAttention` with one input projection and the library's attention kernel."""

    def forward(
        self,
        x: Float[Tensor, "*batch seq d_model"],
        token_positions: Integer[Tensor, "*#batch seq"] | None = None,
    ) -> Float[Tensor, "*batch seq d_model"]:
        """Attend; positions count from 0 unless `token_positions` says otherwise."""
        if token_positions is None:
            self._check_length(x.shape[-2])
        qkv = x @ join_projections(self, x.dtype).T
        if token_positions is None and self._kernel_serves(qkv):
            return self.output_proj(self._attend_by_kernel(qkv))
        qkv = qkv.reshape(*qkv.shape[:-1], -1, self.d_head)
        # q and k go through the norm and the rotation as one: half the operations, each on longer rows.
        qk, v = torch.split(qkv, [self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=-2)
        gains = join_gains(self)
        if gains is not None:
            qk = rms_norm(qk, gains, EPSILON)
        if self.rope is not None:
            if token_positions is None:
                cos, sin = self.rope.cos[: x.shape[-2]], self.rope.sin[: x.shape[-2]]
            else:
                cos, sin = self.rope.angles_at(token_positions)
            qk = rotate_halves(qk, cos, sin)
        q, k = torch.split(qk, [self.num_heads, self.num_kv_heads], dim=-2)
        attended = scaled_dot_product_attention(
            q.transpose(-3, -2),
            k.transpose(-3, -2),
            v.transpose(-3, -2),
            is_causal=True,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )
        return self.output_proj(attended.transpose(-3, -2).flatten(-2))

    def _kernel_serves(self, qkv: Float[Tensor, "*batch seq qkv_width"]) -> bool:
        if not kernels.can_serve(qkv):
            return False
        from bytewright.model.kernels.attention import LONGEST, SERVED_HEADS

        plain = self.q_norm is None and self.num_kv_heads == self.num_heads
        return plain and qkv.ndim == 3 and qkv.shape[-2] <= LONGEST and self.d_head in SERVED_HEADS

    def _attend_by_kernel(
        self, qkv: Float[Tensor, "batch seq qkv_width"]
    ) -> Float[Tensor, "batch seq d_model"]:
        from bytewright.model.kernels.attention import rotary_attention

        cos, sin = (None, None) if self.rope is None else (self.rope.cos, self.rope.sin)
        attended: Tensor = rotary_attention(qkv, cos, sin, self.num_heads)[0]
        return attended


class FusedEmbedding(Embedding):
    """`Embedding` whose gradient is one sort and one kernel on a GPU."""

    def forward(self, ids: Integer[Tensor, "*batch"]) -> Float[Tensor, "*batch d_model"]:
        """Look up the row of every id."""
        check_integers(ids)
        if not kernels.on_gpu(self.weight) or self.weight.dtype != torch.float32:
            return super().forward(ids)
        from bytewright.model.kernels.embedding import embed

        rows: Tensor = embed(self.weight, ids.long())
        return rows


class FusedSwiGLU(SwiGLU):
    """`SwiGLU` with one product for gate and up."""

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each position by itself."""
        joined = torch.cat((self.w1.weight.to(x.dtype), self.w3.weight.to(x.dtype)))
        return self.w2(gate_by_silu(x @ joined.T))


def gate_by_silu(joined: Float[Tensor, "*batch two_d_ff"]) -> Float[Tensor, "*batch d_ff"]:
    """Return silu(gate) * up, where gate and up are the halves of the last dimension."""
    if kernels.can_serve(joined):
        from bytewright.model.kernels.swiglu import silu_gate

        gated: Tensor = silu_gate(joined)
        return gated
    gate, up = joined.chunk(2, dim=-1)
    return silu(gate) * up


LAYER_CLASSES["fused"] = LayerClasses(FusedEmbedding, FusedSelfAttention, FusedSwiGLU)


def language_model_loss(
    model: TransformerLM, ids: Integer[Tensor, "*batch seq"], targets: Integer[Tensor, "*batch seq"]
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of predicting `targets` from `ids`, by the model's implementation."""
    if model.config.implementation == "reference":
        return cross_entropy(model(ids), targets)
    return linear_cross_entropy(model.hidden_states(ids), model.output_weight, targets)


def linear_cross_entropy(
    hidden: Float[Tensor, "*batch d_model"],
    weight: Float[Tensor, "vocab d_model"],
    targets: Integer[Tensor, "*batch"],
    *,
    chunk_size: int | None = None,
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the logits `hidden @ weightᵀ` against `targets`, in float32 at least.

    Works on `chunk_size` positions at a time and computes their gradient at once, while their logits exist:
    d loss / d logits = (softmax(logits) - onehot(target)) / count. So no product is computed twice, and
    memory grows with chunk_size x vocab instead of batch x vocab. Differentiable once.
    """
    check_targets(hidden, targets)
    if chunk_size is None:
        chunk_size = choose_chunk_size(hidden.device.type, len(weight))
    wants_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    rows, targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1).long()
    try:
        loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            rows, weight, targets, chunk_size, wants_gradient
        )
    except RuntimeError:
        check_range("targets", targets, len(weight))
        raise
    return loss


def choose_chunk_size(device_type: str, vocab_size: int) -> int:
    """Positions whose logits are worked on at a time; on a GPU a power of two, which fills its tiles."""
    if device_type == "cpu":
        return max(1, LOGITS_AT_ONCE["cpu"] // vocab_size)
    return 1 << (max(1, LOGITS_AT_ONCE["cuda"] // vocab_size).bit_length() - 1)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk_size: int, wants_gradient: bool
    ) -> Tensor:
        compute = _total_cross_entropy
        if kernels.can_serve(hidden):
            from bytewright.model.kernels.cross_entropy import total_cross_entropy

            compute = total_cross_entropy
        total, hidden_gradient, weight_gradient = compute(hidden, weight, targets, chunk_size, wants_gradient)
        ctx.count = len(targets)
        if wants_gradient:
            ctx.save_for_backward(hidden_gradient, weight_gradient)
        return total / len(targets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        scale = upstream / ctx.count  # in float32: rounded to a half type it would skew every gradient alike
        hidden_gradient = (at_least_float32(hidden_gradient) * scale).to(hidden_gradient.dtype)
        weight_gradient = (at_least_float32(weight_gradient) * scale).to(weight_gradient.dtype)
        return hidden_gradient, weight_gradient, None, None, None


def _total_cross_entropy(
    hidden: Float[Tensor, "rows d_model"],
    weight: Float[Tensor, "vocab d_model"],
    targets: Integer[Tensor, " rows"],
    chunk_size: int,
    wants_gradient: bool,
) -> tuple[Float[Tensor, ""], Tensor, Tensor]:
    """Sum of all losses, and its gradients with respect to hidden states and weight if they are wanted."""
    matrix = weight.to(hidden.dtype)
    total = torch.zeros((), device=hidden.device, dtype=torch.promote_types(hidden.dtype, torch.float32))
    hidden_gradients: list[Tensor] = []
    weight_gradient = torch.zeros_like(weight) if wants_gradient else weight.new_empty(0)
    for rows, target in zip(torch.split(hidden, chunk_size), torch.split(targets, chunk_size), strict=True):
        logits = at_least_float32(rows @ matrix.T)
        normaliser = logits.logsumexp(dim=-1, keepdim=True)
        column = target.unsqueeze(-1)
        total = total + (normaliser - logits.gather(-1, column)).sum()
        if wants_gradient:
            gradient = logits.sub_(normaliser).exp_()  # in place, for nothing needs the logits any more
            gradient.scatter_add_(-1, column, torch.full_like(normaliser, -1.0))
            gradient = gradient.to(rows.dtype)
            hidden_gradients.append(gradient @ matrix)
            weight_gradient += gradient.T @ rows
            del gradient
        del logits  # their names would keep them alive while those of the next chunk are computed
    return total, torch.cat(hidden_gradients) if wants_gradient else hidden.new_empty(0), weight_gradient
