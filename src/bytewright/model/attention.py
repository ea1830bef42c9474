"""Reference causal self-attention with rotary position embeddings, written from its equations.

The scores are computed in full, (seq x seq) per head. `MultiHeadSelfAttention` also supports grouped
key/value heads and norms on queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor
from torch.nn import Module

from bytewright import with_aliases
from bytewright.errors import UsageError, wrong_value
from bytewright.model.config import ModelConfig, check_heads
from bytewright.model.costs import WIDE, Component, Costs, Kept, Matmul, Pass, StepShape
from bytewright.model.layers import (
    EAGER_RMS_NORM,
    DeviceLike,
    DType,
    Layer,
    Linear,
    RMSNorm,
    check_range,
    softmax,
)
from bytewright.registry import attentions, positions

Hidden = Float[Tensor, "*batch seq d_model"]
Positions = Integer[Tensor, "*#batch seq"]


@positions.register("rope")
class RotaryPositionalEmbedding(Layer):
    """Rotate the pairs (2i, 2i + 1) of a vector at position p by the angle p·θ^(-2i/d_k).

    The dot product of two rotated vectors depends only on the difference of their angles. So scores depend on
    the distance of two tokens and not on their positions. Tables hold cos and sin for every position; they
    are not parameters and are not saved.
    """

    llama_weights: ClassVar[dict[str, str]] = {}

    cos: Tensor
    sin: Tensor

    @staticmethod
    def check_config(config: ModelConfig) -> None:
        """Raise unless the size of a head is even."""
        if config.d_head % 2:
            raise wrong_value("d_model / num_heads", "even, because RoPE rotates pairs", config.d_head)

    def __init__(self, theta: float, d_k: int, max_seq_len: int, device: DeviceLike = None) -> None:
        super().__init__()
        if d_k < 2 or d_k % 2:
            raise wrong_value("d_k", "a positive even number, because RoPE rotates pairs", d_k)
        self.theta, self.d_k, self.max_seq_len = float(theta), d_k, max_seq_len
        self._fill_tables(
            torch.get_default_device() if device is None else torch.device(device), torch.float32
        )

    def _fill_tables(self, device: torch.device, dtype: torch.dtype) -> None:
        if device.type == "meta":  # nothing is computed: arithmetic there would import torch's compiler
            cos = sin = torch.empty(self.max_seq_len, self.d_k // 2, device=device, dtype=dtype)
        else:  # on the CPU in float64, which some devices lack
            exponents = torch.arange(0, self.d_k, 2, device="cpu", dtype=torch.float64) / self.d_k
            positions = torch.arange(self.max_seq_len, device="cpu", dtype=torch.float64)
            angles = torch.outer(positions, self.theta**-exponents)
            cos, sin = angles.cos().to(device, dtype), angles.sin().to(device, dtype)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryPositionalEmbedding:
        # `model.to(torch.bfloat16)` must not round the tables: 8 bits cannot distinguish distant positions.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._fill_tables(self.cos.device, torch.promote_types(self.cos.dtype, torch.float32))
        return self

    def forward(
        self, x: Float[Tensor, "*batch seq d_k"], token_positions: Integer[Tensor, "*#batch seq"]
    ) -> Float[Tensor, "*batch seq d_k"]:
        """Return each vector of `x` rotated by the angles of its position."""
        cos, sin = self.angles_at(token_positions)
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2).to(x.dtype)

    def angles_at(
        self, token_positions: Integer[Tensor, "*batch seq"]
    ) -> tuple[Float[Tensor, "*batch seq half"], Float[Tensor, "*batch seq half"]]:
        """Return cos and sin of the angles at each position."""
        positions = token_positions.long()
        try:  # unlike self.cos[positions], torch.embedding rejects negative positions
            return torch.embedding(self.cos, positions), torch.embedding(self.sin, positions)
        except IndexError:
            check_range("token positions", positions, self.max_seq_len)
            raise


@positions.register("none")
class NoPosition(Layer):
    """No information about positions beyond the causal mask."""

    place = "nowhere"
    no_llama_because = "a Llama rotates queries and keys by their positions"

    def __init__(self) -> None:
        super().__init__()


def causal_mask(num_tokens: int, device: torch.device | None = None) -> Bool[Tensor, "seq seq"]:
    """Return the mask of the keys (columns) that each query (row) can attend to: itself and all before it.

    >>> causal_mask(3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=device).tril()


def attention_weights(
    q: Float[Tensor, "*batch queries d_k"],
    k: Float[Tensor, "*batch keys d_k"],
    mask: Bool[Tensor, "*#batch queries keys"] | None = None,
) -> Float[Tensor, "*batch queries keys"]:
    """Return softmax(q kᵀ / √d_k): the weight of each key for each query.

    Where `mask` is False, the score is -∞ and the weight 0. The weights of a query without any allowed key
    are NaN.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return softmax(scores, dim=-1)


@with_aliases(Q="q", K="k", V="v")
def scaled_dot_product_attention(
    q: Float[Tensor, "*batch queries d_k"],
    k: Float[Tensor, "*batch keys d_k"],
    v: Float[Tensor, "*batch keys d_v"],
    mask: Bool[Tensor, "*#batch queries keys"] | None = None,
) -> Float[Tensor, "*batch queries d_v"]:
    """Return `attention_weights(q, k, mask)` v: for each query, the weighted average of the values."""
    return attention_weights(q, k, mask) @ v


@attentions.register("multi_head")
class MultiHeadSelfAttention(Layer):
    """Causal attention of a sequence to itself, by `num_heads` heads of d_model / num_heads dimensions each.

    With fewer `num_kv_heads`, consecutive query heads share one key/value head. `rope`, which all layers can
    share, rotates queries and keys by their positions; `qk_norm` normalises them before. Another position
    encoding than RoPE can take its place.
    """

    llama_weights: ClassVar = {
        "q_proj.weight": "q_proj.weight",
        "k_proj.weight": "k_proj.weight",
        "v_proj.weight": "v_proj.weight",
        "output_proj.weight": "o_proj.weight",
        "q_norm.weight": "q_norm.weight",
        "k_norm.weight": "k_norm.weight",
    }

    @classmethod
    def costs(cls, x: StepShape) -> Costs | None:
        """Return the costs with RoPE or without positions.

        It keeps q, k and v of every head, the scores, their exponentials, the weights, and the merged result.
        A compiler recomputes the exponentials. The products of scores and weighting are one pass, of which a
        kernel skips the masked half. Its backward pass recomputes the scores: 7 products instead of 6.
        """
        if positions[x.config.position] not in (RotaryPositionalEmbedding, NoPosition):
            return None
        d, c, h, queries = x.d, x.c, x.config.d_head, x.N * x.d
        rotates = positions[x.config.position] is RotaryPositionalEmbedding

        def per_head(name: str, component: Component, k: int, n: int) -> Matmul:
            return Matmul(name=name, component=component, times=x.B * x.H, m=x.T, k=k, n=n)

        in_kernel = [
            per_head("scores", "attention_scores", h, x.T),
            per_head("weighting", "attention_weighting", x.T, h),
        ]
        kernel_flops = sum(one.flops for one in in_kernel) * 7 // 4 * (x.T + 1) // x.T
        return Costs(
            parameters={"dd": 2, "dc": 2} | ({"h": 2} if x.config.qk_norm else {}),
            matmuls=[
                x.product("q", "qkv_projections", d, d),
                x.product("k", "qkv_projections", d, c),
                x.product("v", "qkv_projections", d, c),
                *in_kernel,
                x.product("output", "output_projection", d, d),
            ],
            kept=keep_scores(x),
            # The weights are freed; the gradient of the quotient needs five tensors of the size of the scores
            backward_bytes=(2 * x.s if x.compiled else 5 * WIDE) * x.A + x.s * queries + WIDE * d * d,
            passes=[
                Pass("attention", kernel_flops, 3 * x.s * x.N * (2 * d + 2 * c)),
                *pass_over_qk(x, rotates=rotates),
            ],
            textbook={"d": 3, "c": 2, "HT": 2},
            cached_numbers=2 * c,
        )

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        rope: Module | None = None,
        qk_norm: bool = False,
        device: DeviceLike = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_heads(d_model, num_heads, kv_heads)
        self.num_heads = num_heads
        self.num_kv_heads = kv_heads
        self.d_head = d_model // num_heads
        if isinstance(rope, RotaryPositionalEmbedding) and rope.d_k != self.d_head:
            raise wrong_value("rope.d_k", f"{self.d_head}, the size of a head", rope.d_k)
        self.rope = rope
        self.q_proj = Linear(d_model, self.num_heads * self.d_head, device, dtype)
        self.k_proj = Linear(d_model, self.num_kv_heads * self.d_head, device, dtype)
        self.v_proj = Linear(d_model, self.num_kv_heads * self.d_head, device, dtype)
        self.output_proj = Linear(self.num_heads * self.d_head, d_model, device, dtype)
        self.q_norm = RMSNorm(self.d_head, device=device, dtype=dtype) if qk_norm else None
        self.k_norm = RMSNorm(self.d_head, device=device, dtype=dtype) if qk_norm else None

    def forward(self, x: Hidden, token_positions: Positions | None = None) -> Hidden:
        """Return the attention of every position to itself and all before it; positions count from 0."""
        q, k, v = self._project(x, token_positions)
        attended = scaled_dot_product_attention(q, k, v, causal_mask(x.shape[-2], x.device))
        return self.output_proj(merge_heads(attended))

    def weights(
        self, x: Hidden, token_positions: Positions | None = None
    ) -> Float[Tensor, "*batch heads seq seq"]:
        """Return the weights by which `forward` averages the values, for each head and query."""
        q, k, _ = self._project(x, token_positions)
        return attention_weights(q, k, causal_mask(x.shape[-2], x.device))

    def _project(self, x: Hidden, token_positions: Positions | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of every query head: normalised, rotated, repeated per group."""
        q = split_heads(self.q_proj(x), self.d_head)
        k = split_heads(self.k_proj(x), self.d_head)
        v = split_heads(self.v_proj(x), self.d_head)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rope is not None:
            if token_positions is None:
                self._check_length(x.shape[-2])
                token_positions = torch.arange(x.shape[-2], device=x.device)
            positions_of_heads = token_positions.unsqueeze(-2)  # the same for every head
            q, k = self.rope(q, positions_of_heads), self.rope(k, positions_of_heads)
        group = self.num_heads // self.num_kv_heads
        return q, k.repeat_interleave(group, dim=-3), v.repeat_interleave(group, dim=-3)

    def _check_length(self, num_tokens: int) -> None:
        """Raise if the rotary tables have fewer than `num_tokens` positions."""
        if isinstance(self.rope, RotaryPositionalEmbedding) and num_tokens > self.rope.max_seq_len:
            message = (
                f"a sequence of {num_tokens} tokens is longer than max_seq_len, {self.rope.max_seq_len},"
                " of the RoPE module"
            )
            raise UsageError(message, key="x", expected=self.rope.max_seq_len, found=num_tokens)


EAGER_ROTATION = {"fp32": 36 + 53, "bf16": 32 + 50}
"""Bytes per rotated number of q and k, forward and backward: four products, two sums, one concatenation."""


def keep_scores(x: StepShape) -> list[Kept]:
    """Return the tensors that the reference attention keeps."""
    d, c, queries = x.d, x.c, x.N * x.d
    kept = keep_qk_norm(x) if x.config.qk_norm else []
    kept += [Kept("q, k and v of every head", 3 * x.s * queries)]
    kept += [Kept("scores", (x.s if x.compiled else WIDE) * x.A, "attention matrices")]
    if not x.compiled:
        kept += [Kept("exponentials", WIDE * x.A, "attention matrices")]
    kept += [
        Kept("mask", x.T * x.T, "attention matrices"),
        Kept("maximum and sum of every row", 2 * WIDE * x.N * x.H),
        Kept("weights of the average", x.s * x.A, "attention matrices", is_freed_early=True),
        Kept("attended", x.s * queries, is_freed_early=True),
    ]
    if x.precision == "bf16":
        kept += [Kept("q, k and v weights", x.s * d * (d + 2 * c), "weight copies")]
        kept += [Kept("output weight in bf16", x.s * d * d, "weight copies")]
    return kept


def keep_qk_norm(x: StepShape) -> list[Kept]:
    """Return the tensors that the norms on q and k keep."""
    numbers = x.N * (x.d + x.c)
    if x.compiled:
        return [Kept("q and k before their norm", x.s * numbers)]
    return [
        Kept("q and k before their norm, widened", WIDE * numbers),
        Kept("q and k over their rms", WIDE * numbers),
    ]


def pass_over_qk(x: StepShape, *, rotates: bool, is_fused: bool = False) -> list[Pass]:
    """Return the pass that normalises and rotates q and k outside of attention.

    `is_fused`: norm and rotation are one kernel also if the step is not compiled.
    """
    numbers, has_norm = x.N * (x.d + x.c), x.config.qk_norm
    if not has_norm and not rotates:
        return []
    moved = x.s * (7 if has_norm else 4)
    if not x.compiled and not is_fused:
        moved = (EAGER_RMS_NORM[x.precision] if has_norm else 0) + (
            EAGER_ROTATION[x.precision] if rotates else 0
        )
    return [Pass("norm and rotation of q and k", 10 * numbers, moved * numbers)]


def split_heads(
    x: Float[Tensor, "*batch seq width"], d_head: int
) -> Float[Tensor, "*batch heads seq d_head"]:
    """Split the last dimension into heads and move the heads before the sequence."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // d_head, d_head).transpose(-3, -2)


def merge_heads(x: Float[Tensor, "*batch heads seq d_head"]) -> Float[Tensor, "*batch seq width"]:
    """Return the inverse of `split_heads`."""
    return x.transpose(-3, -2).flatten(-2)
