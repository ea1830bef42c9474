"""The fused layers and loss: the results of the reference modules with fewer and larger operations.

Each class inherits the parameters, names and initialisation of its reference class and overrides only
`forward`. So a state dict of one loads into the other. They are faster because of:

- one product for q, k and v, and one for gate and up. The weights are joined in each call: a copy that is
  small compared with the product, and free if they are cast to bfloat16 anyway;
- rows of q and k joined with each head's even dimensions first. Scores do not depend on the order inside a
  head if q and k agree. Rotating two contiguous halves is cheaper than rotating interleaved pairs;
- torch's attention kernel, which does not write the scores to memory;
- the Triton kernels of `kernels` on an NVIDIA GPU in a half-precision type, where torch and its compiler
  would pass over memory more than once;
- head and loss in chunks: the logits of a whole batch never exist at once.

Everything can be traced by `torch.compile`, which fuses the rest.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import Module
from torch.nn.functional import scaled_dot_product_attention, silu

from bytewright.data.sampler import IGNORED
from bytewright.errors import UsageError
from bytewright.model import kernels
from bytewright.model.attention import (
    Hidden,
    MultiHeadSelfAttention,
    Positions,
    RotaryPositionalEmbedding,
    keep_qk_norm,
    pass_over_qk,
)
from bytewright.model.costs import WIDE, Costs, Kept, Pass, StepShape
from bytewright.model.layers import (
    EPSILON,
    Embedding,
    Linear,
    RMSNorm,
    SwiGLU,
    at_least_float32,
    check_integers,
    check_range,
    rms_norm,
)
from bytewright.model.loss import (
    check_targets,
    choose_chunk_size,
    cross_entropy,
    describe_value,
    output_cross_entropy,
    supports_mask,
)
from bytewright.model.parts import fused_version_of
from bytewright.model.transformer import TransformerLM
from bytewright.registry import losses, positions

LanguageModelLoss = Callable[[TransformerLM, Tensor, Tensor], Tensor]
"""A function of a model, ids and targets that returns the mean loss of a batch."""

KERNEL_HEADS, KERNEL_CONTEXT = (32, 64), 512
"""Head sizes and the longest context for which our attention kernel is used.

For other head sizes, torch's compiled attention is faster. In longer contexts, one program per head leaves
too much of a GPU idle.
"""

SPLIT_HEADS = (32, 64, 128, 256)
"""Head sizes for which a kernel normalises and rotates q and k: powers of two."""


def is_replaceable(module: Module) -> bool:
    """Return whether the weight of a module can be used without a call of its `forward`.

    That would ignore a subclass, such as a low-rank adapter, and a hook; the reference calls the module.
    """
    is_known = type(module) in (Linear, RMSNorm, RotaryPositionalEmbedding)
    return is_known and not module._forward_hooks and not module._forward_pre_hooks


def halves_from_pairs(rows: Float[Tensor, "rows ..."], d_head: int) -> Float[Tensor, "rows ..."]:
    """Return the rows of each head with all even dimensions first, then all odd ones.

    >>> halves_from_pairs(torch.arange(8.0), d_head=4)
    tensor([0., 2., 1., 3., 4., 6., 5., 7.])
    """
    return rows.reshape(-1, d_head // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def pairs_from_halves(rows: Float[Tensor, "rows ..."], d_head: int) -> Float[Tensor, "rows ..."]:
    """Return the inverse of `halves_from_pairs`."""
    return rows.reshape(-1, 2, d_head // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def rotate_halves(
    x: Float[Tensor, "*batch seq heads d_head"],
    cos: Float[Tensor, "*#batch seq half"],
    sin: Float[Tensor, "*#batch seq half"],
) -> Float[Tensor, "*batch seq heads d_head"]:
    """Rotate the pairs (i, i + d_head/2) by their angles: the rotary embedding for rows in halves."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # the same for every head
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


def join_projections(
    attention: MultiHeadSelfAttention, dtype: torch.dtype
) -> Float[Tensor, "qkv_width d_model"]:
    """Return the rows of q, k and v as one matrix; with RoPE, those of q and k in halves."""
    weights: list[Tensor] = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    if attention.rope is not None:
        weights[:2] = (halves_from_pairs(weight, attention.d_head) for weight in weights[:2])
    return torch.cat([weight.to(dtype) for weight in weights])


def join_gains(attention: MultiHeadSelfAttention) -> Float[Tensor, "qk_heads d_head"] | None:
    """Return the gains of the norms on q and k, if any, in the order of the rows of `join_projections`."""
    if attention.q_norm is None or attention.k_norm is None:
        return None
    gains: list[Tensor] = [attention.q_norm.weight, attention.k_norm.weight]
    if attention.rope is not None:
        gains = [halves_from_pairs(gain, attention.d_head) for gain in gains]
    heads = attention.num_heads, attention.num_kv_heads
    return torch.cat([gain.expand(count, -1) for gain, count in zip(gains, heads, strict=True)])


@fused_version_of(MultiHeadSelfAttention)
class FusedSelfAttention(MultiHeadSelfAttention):
    """`MultiHeadSelfAttention` with one input projection and torch's attention kernel."""

    @classmethod
    def costs(cls, x: StepShape) -> Costs | None:
        """Return the costs: no scores are kept, but the joined projection and a normaliser of every row.

        torch has no fp32 kernel for shared key heads on a GPU; its separate products keep the weights.
        """
        costs = super().costs(x)
        if costs is None:
            return None
        d, c, stream = x.d, x.c, x.s * x.N * x.d
        rotates = positions[x.config.position] is RotaryPositionalEmbedding
        is_unfused = c != d and x.precision == "fp32" and x.device == "cuda"
        has_kernel = cls._has_kernel(x)
        splits_by_kernel = x.has_kernels and x.config.d_head in SPLIT_HEADS
        kept = keep_qk_norm(x) if x.config.qk_norm and not splits_by_kernel else []
        if kept and not x.compiled and x.precision == "fp32":
            # Views of the joined projection, which is kept anyway
            kept[0] = kept[0]._replace(num_bytes=WIDE * x.N * (d + 2 * c) if is_unfused else 0)
        if is_unfused:
            kept += [Kept("q, k and v of every head", 3 * stream)]
            kept += [Kept("weights of the average", x.s * x.A, "attention matrices")]
        else:
            kept += [Kept("q, k and v, joined", x.s * x.N * (d + 2 * c))]
            if not has_kernel and (rotates or x.config.qk_norm):
                kept += [Kept("q and k after norm and rotation", x.s * x.N * (d + c))]
            kept += [Kept("normaliser of every row", WIDE * x.N * x.H)]
        kept += [Kept("attended", stream, is_freed_early=is_unfused)]
        kept += [Kept("q, k and v weights", x.s * d * (d + 2 * c), "weight copies")]
        if x.precision == "bf16":
            kept += [Kept("output weight in bf16", x.s * d * d, "weight copies")]
        # The gradients of q, k, v and of the result, and dq again in float32 while it is summed
        in_float32 = 0 if x.precision == "fp32" else WIDE * x.N * d
        backward = 2 * stream + x.s * x.N * (d + 2 * c) + in_float32
        over_qk = pass_over_qk(x, rotates=rotates, is_fused=splits_by_kernel)
        # In fp32 with reordered rows, the gradient of v is a view of the joined gradient, which stays alive
        is_view = x.precision == "fp32" and rotates
        return dataclasses.replace(
            costs,
            kept=kept,
            backward_bytes=WIDE * d * d + (2 * WIDE * x.A + 2 * stream if is_unfused else backward),
            gradient_bytes=WIDE * d * (d + c) if is_view else 0,
            passes=costs.passes[:1] if has_kernel else [costs.passes[0], *over_qk],
        )

    @classmethod
    def _has_kernel(cls, x: StepShape) -> bool:
        return x.has_kernels and x.config.d_head in KERNEL_HEADS and x.T <= KERNEL_CONTEXT

    def forward(self, x: Hidden, token_positions: Positions | None = None) -> Hidden:
        """Return the attention of every position to itself and all before it; positions count from 0."""
        rope = self.rope
        joined = self.q_proj, self.k_proj, self.v_proj, self.q_norm, self.k_norm, rope
        if not all(is_replaceable(module) for module in joined if module is not None):
            return super().forward(x, token_positions)
        assert rope is None or isinstance(rope, RotaryPositionalEmbedding)
        if token_positions is None:
            self._check_length(x.shape[-2])
        qkv = x @ join_projections(self, x.dtype).T
        if token_positions is None and self._kernel_supports(qkv):
            return self.output_proj(self._attend_by_kernel(qkv))
        if token_positions is None and self._heads_kernel_supports(qkv):
            return self.output_proj(self._attend_after_kernel(qkv))
        qkv = qkv.reshape(*qkv.shape[:-1], qkv.shape[-1] // self.d_head, self.d_head)
        # One norm and one rotation for q and k together: half the operations, each on longer rows.
        qk, v = torch.split(qkv, [self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=-2)
        gains = join_gains(self)
        if gains is not None:
            qk = rms_norm(qk, gains, EPSILON)
        if rope is not None:
            if token_positions is None:
                cos, sin = rope.cos[: x.shape[-2]], rope.sin[: x.shape[-2]]
            else:
                cos, sin = rope.angles_at(token_positions)
            qk = rotate_halves(qk, cos, sin)
        q, k = torch.split(qk, [self.num_heads, self.num_kv_heads], dim=-2)
        return self.output_proj(self._attend(q, k, v))

    def _attend(
        self,
        q: Float[Tensor, "*batch seq heads d_head"],
        k: Float[Tensor, "*batch seq kv_heads d_head"],
        v: Float[Tensor, "*batch seq kv_heads d_head"],
    ) -> Hidden:
        """Return the attention of torch's kernel."""
        attended = scaled_dot_product_attention(
            q.transpose(-3, -2),
            k.transpose(-3, -2),
            v.transpose(-3, -2),
            is_causal=True,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )
        return attended.transpose(-3, -2).flatten(-2)

    def _heads_kernel_supports(self, qkv: Float[Tensor, "*batch seq qkv_width"]) -> bool:
        has_work = self.rope is not None or self.q_norm is not None
        return has_work and qkv.ndim == 3 and self.d_head in SPLIT_HEADS and kernels.supports(qkv)

    def _attend_after_kernel(self, qkv: Float[Tensor, "batch seq qkv_width"]) -> Hidden:
        from bytewright.model.kernels.heads import SplitHeads

        q, k, v = SplitHeads.apply(  # type: ignore[no-untyped-call]
            qkv, join_gains(self), *self._tables(), self.num_heads, self.d_head, EPSILON
        )
        return self._attend(q, k, v)

    def _kernel_supports(self, qkv: Float[Tensor, "*batch seq qkv_width"]) -> bool:
        is_short = qkv.ndim == 3 and qkv.shape[-2] <= KERNEL_CONTEXT
        return is_short and self.d_head in KERNEL_HEADS and kernels.supports(qkv)

    def _attend_by_kernel(
        self, qkv: Float[Tensor, "batch seq qkv_width"]
    ) -> Float[Tensor, "batch seq d_model"]:
        from bytewright.model.kernels.attention import rotary_attention

        heads = self.num_heads, self.num_kv_heads
        attended: Tensor = rotary_attention(qkv, *self._tables(), *heads, join_gains(self), EPSILON)[0]
        return attended

    def _tables(self) -> tuple[Tensor | None, Tensor | None]:
        """Return cos and sin of the rotary embedding, or None without it."""
        rope = self.rope
        return (rope.cos, rope.sin) if isinstance(rope, RotaryPositionalEmbedding) else (None, None)


@fused_version_of(Embedding)
class FusedEmbedding(Embedding):
    """`Embedding` whose gradient is one sort and one kernel on a GPU."""

    def forward(self, ids: Integer[Tensor, "*batch"]) -> Float[Tensor, "*batch d_model"]:
        """Return the row of every id."""
        check_integers(ids)
        if not kernels.on_gpu(self.weight) or self.weight.dtype != torch.float32:
            return super().forward(ids)
        from bytewright.model.kernels.embedding import embed

        rows: Tensor = embed(self.weight, ids.long())
        return rows


@fused_version_of(SwiGLU)
class FusedSwiGLU(SwiGLU):
    """`SwiGLU` with one product for gate and up."""

    @classmethod
    def costs(cls, x: StepShape) -> Costs:
        """Return the costs: gate and up are one tensor, and their weights are copied."""
        costs, inner = super().costs(x), x.N * x.f
        kept = [Kept("gate, up, SiLU, product", 4 * x.s * inner)]
        if x.compiled or x.has_kernels:
            kept = [Kept("gate, up, product", 3 * x.s * inner)]
        kept += [Kept("upper weights", 2 * x.s * x.d * x.f, "weight copies")]
        if x.precision == "bf16":
            kept += [Kept("w2 in bf16", x.s * x.d * x.f, "weight copies")]
        num_passes = 8 if x.compiled or x.has_kernels else 18
        passes = [Pass("feed-forward gate", 10 * inner, num_passes * x.s * inner)]
        return dataclasses.replace(costs, kept=kept, passes=passes)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each position separately."""
        if not (is_replaceable(self.w1) and is_replaceable(self.w3)):
            return super().forward(x)
        joined = torch.cat((self.w1.weight.to(x.dtype), self.w3.weight.to(x.dtype)))
        return self.w2(gate_by_silu(x @ joined.T))


def gate_by_silu(joined: Float[Tensor, "*batch two_d_ff"]) -> Float[Tensor, "*batch d_ff"]:
    """Return silu(gate) * up, where gate and up are the halves of the last dimension."""
    if kernels.supports(joined):
        from bytewright.model.kernels.swiglu import silu_gate

        gated: Tensor = silu_gate(joined)
        return gated
    gate, up = joined.chunk(2, dim=-1)
    return silu(gate) * up


def language_model_loss(
    model: TransformerLM,
    ids: Integer[Tensor, "*batch seq"],
    targets: Integer[Tensor, "*batch seq"],
    *,
    masked: bool = False,
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of predicting `targets` from `ids`, by the model's implementation.

    With `masked`, positions whose target is `IGNORED` do not count.
    """
    if model.config.implementation == "reference":
        return cross_entropy(model(ids), targets, masked=masked)
    return linear_cross_entropy(model.hidden_states(ids), model.output_weight, targets, masked=masked)


def masked_language_model_loss(
    model: TransformerLM, ids: Integer[Tensor, "*batch seq"], targets: Integer[Tensor, "*batch seq"]
) -> Float[Tensor, ""]:
    """Return `language_model_loss` of the positions whose target is not `IGNORED`."""
    return language_model_loss(model, ids, targets, masked=True)


def make_loss(name: str, options: Mapping[str, Any], *, masked: bool = False) -> LanguageModelLoss:
    """Return a registered loss with its options, as a function of a model and a batch.

    A loss can also be a class: its constructor gets the options, and its `__call__` computes the loss. With
    `masked`, positions whose target is `IGNORED` do not count.
    """
    part = losses[name]
    if part is output_cross_entropy:  # one function for training and evaluation, so that it is compiled once
        return masked_language_model_loss if masked else language_model_loss
    if masked and not supports_mask(part):
        message = (
            f"the data has a mask, which the loss {name!r} does not support; give it a parameter 'masked'"
        )
        raise UsageError(f"{message}, or make it from a function of logits", key="loss.name", found=name)
    compute = part(**options) if isinstance(part, type) else functools.partial(part, **options)
    if masked:
        compute = functools.partial(compute, masked=True)

    def loss(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        value: Tensor = compute(model.hidden_states(ids), model.output_weight, targets)
        if not isinstance(value, Tensor) or value.ndim:
            found = describe_value(value)
            message = f"the loss {name!r} must return a tensor of shape (), but returned {found}"
            raise UsageError(message, key="loss.name", expected=(), found=found)
        return value

    return loss


def linear_cross_entropy(
    hidden: Float[Tensor, "*batch d_model"],
    weight: Float[Tensor, "vocab d_model"],
    targets: Integer[Tensor, "*batch"],
    *,
    chunk_size: int | None = None,
    masked: bool = False,
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of the logits `hidden @ weightᵀ`, in at least float32.

    With `masked`, positions whose target is `IGNORED` do not count: their loss and gradient are 0, and the
    mean is over the others.

    Processes `chunk_size` positions at a time and computes their gradient while their logits exist:
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
            rows, weight, targets, chunk_size, wants_gradient, masked
        )
    except RuntimeError:
        check_range("targets", targets.masked_fill(targets == IGNORED, 0) if masked else targets, len(weight))
        raise
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        chunk_size: int,
        wants_gradient: bool,
        masked: bool,
    ) -> Tensor:
        compute = _total_cross_entropy
        if kernels.supports(hidden):
            from bytewright.model.kernels.cross_entropy import total_cross_entropy

            compute = total_cross_entropy
        total, hidden_gradient, weight_gradient = compute(
            hidden, weight, targets, chunk_size, wants_gradient, masked
        )
        count = (targets != IGNORED).sum().clamp(min=1) if masked else len(targets)
        ctx.count = None if masked else count
        if wants_gradient:
            ctx.save_for_backward(hidden_gradient, weight_gradient, *([count] if masked else []))
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        hidden_gradient, weight_gradient, *rest = ctx.saved_tensors
        # In float32: rounded to a half type it would bias all gradients
        scale = upstream / (rest[0] if rest else ctx.count)
        hidden_gradient = (at_least_float32(hidden_gradient) * scale).to(hidden_gradient.dtype)
        weight_gradient = (at_least_float32(weight_gradient) * scale).to(weight_gradient.dtype)
        return hidden_gradient, weight_gradient, None, None, None, None


def _total_cross_entropy(
    hidden: Float[Tensor, "rows d_model"],
    weight: Float[Tensor, "vocab d_model"],
    targets: Integer[Tensor, " rows"],
    chunk_size: int,
    wants_gradient: bool,
    masked: bool,
) -> tuple[Float[Tensor, ""], Tensor, Tensor]:
    """Return the sum of all losses, and its gradients with respect to hidden states and weight."""
    matrix = weight.to(hidden.dtype)
    total = torch.zeros((), device=hidden.device, dtype=torch.promote_types(hidden.dtype, torch.float32))
    hidden_gradients: list[Tensor] = []
    weight_gradient = torch.zeros_like(weight) if wants_gradient else weight.new_empty(0)
    for rows, target in zip(torch.split(hidden, chunk_size), torch.split(targets, chunk_size), strict=True):
        logits = at_least_float32(rows @ matrix.T)
        normaliser = logits.logsumexp(dim=-1, keepdim=True)
        column = target.unsqueeze(-1)
        if masked:
            ignored = column == IGNORED
            column = column.masked_fill(ignored, 0)
        losses = normaliser - logits.gather(-1, column)
        total = total + (losses.masked_fill(ignored, 0.0) if masked else losses).sum()
        if wants_gradient:
            gradient = logits.sub_(normaliser).exp_()  # in place: the logits are no longer needed
            gradient.scatter_add_(-1, column, torch.full_like(normaliser, -1.0))
            if masked:
                gradient.masked_fill_(ignored, 0.0)
            gradient = gradient.to(rows.dtype)
            hidden_gradients.append(gradient @ matrix)
            weight_gradient += gradient.T @ rows
            del gradient
        del logits  # or they would stay alive while those of the next chunk are computed
    return total, torch.cat(hidden_gradients) if wants_gradient else hidden.new_empty(0), weight_gradient
