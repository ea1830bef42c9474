"""How many floating-point operations the matrix products of a model take, from its shape alone.

A product of (m x k) with (k x n) is m·n dot products of length k: m·n·k multiplications and as many
additions, 2·m·n·k in all. For one sequence of T tokens, with the letters of `account.parameters`:

    per layer    q, k, v       2·T·d·(H + 2K)·h
                 scores        2·T²·H·h           q kᵀ, for every head
                 weighting     2·T²·H·h           weights times values
                 output        2·T·d·H·h
                 ffn           3 · 2·T·d·f gated, 2 · 2·T·d·f plain
    once         head          2·T·d·V

The scores are counted in full, though half of them are masked: that is the field's convention, and what a
plain implementation computes. `causal=True` counts only the pairs that may attend, T·(T + 1)/2 instead of T²,
which is what a kernel that skips the masked half has to do. Looking up embeddings is no product; norms,
softmax and the rest of the elementwise work are small beside these and not counted. Going backward, each
product y = a·b needs two of the same size, one for the gradient of each factor, so forward and backward
together are three times the forward pass.

Exact: equal to `torch.utils.flop_counter` on the readable twin. Knows nothing of machines or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bytewright.errors import UsageError
from bytewright.model.config import ModelConfig

Component = Literal[
    "qkv_projections",
    "attention_scores",
    "attention_weighting",
    "output_projection",
    "feed_forward",
    "head",
]


@dataclass(frozen=True, kw_only=True)
class Matmul:
    """One product of the forward pass and how often it is done: `times` times (m x k) with (k x n)."""

    name: str
    component: Component
    times: int
    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        """Two operations for each multiplication and its addition."""
        return self.times * 2 * self.m * self.k * self.n


def list_matmuls(config: ModelConfig, num_tokens: int | None = None, batch_size: int = 1) -> list[Matmul]:
    """List the products of a forward pass over `batch_size` sequences of `num_tokens` tokens.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> for it in list_matmuls(base)[:4]:
    ...     print(f"{it.name}: {it.times} x ({it.m} x {it.k}) ({it.k} x {it.n})")
    q: 4 x (256 x 512) (512 x 512)
    k: 4 x (256 x 512) (512 x 512)
    v: 4 x (256 x 512) (512 x 512)
    scores: 64 x (256 x 32) (32 x 256)
    """
    length = config.context_length if num_tokens is None else num_tokens
    if length < 1 or batch_size < 1:
        raise UsageError(f"a batch has at least one token, not {batch_size} sequences of {length}")
    tokens, layers, heads = batch_size * length, config.num_layers, config.num_heads
    d, f, h = config.d_model, config.ffn_width, config.d_head
    c = config.kv_heads * h

    def per_layer(name: str, component: Component, k: int, n: int) -> Matmul:
        return Matmul(name=name, component=component, times=layers, m=tokens, k=k, n=n)

    def per_head(name: str, component: Component, k: int, n: int) -> Matmul:
        times = layers * batch_size * heads
        return Matmul(name=name, component=component, times=times, m=length, k=k, n=n)

    gate = [per_layer("w3", "feed_forward", d, f)] if config.ffn == "swiglu" else []
    return [
        per_layer("q", "qkv_projections", d, d),
        per_layer("k", "qkv_projections", d, c),
        per_layer("v", "qkv_projections", d, c),
        per_head("scores", "attention_scores", h, length),
        per_head("weighting", "attention_weighting", length, h),
        per_layer("output", "output_projection", d, d),
        per_layer("w1", "feed_forward", d, f),
        *gate,
        per_layer("w2", "feed_forward", f, d),
        Matmul(name="head", component="head", times=1, m=tokens, k=d, n=config.vocab_size),
    ]


@dataclass(frozen=True, kw_only=True)
class FlopCount:
    """FLOPs of a forward pass by component, summed over the layers."""

    qkv_projections: int
    attention_scores: int
    attention_weighting: int
    output_projection: int
    feed_forward: int
    head: int

    @property
    def forward(self) -> int:
        """All products of the forward pass."""
        return sum(self.by_component().values())

    @property
    def backward(self) -> int:
        """All products of the backward pass: two for each of the forward pass."""
        return 2 * self.forward

    @property
    def training(self) -> int:
        """Forward and backward."""
        return self.forward + self.backward

    def by_component(self) -> dict[Component, int]:
        """Give the FLOPs of each component, in the order of the forward pass."""
        return {
            "qkv_projections": self.qkv_projections,
            "attention_scores": self.attention_scores,
            "attention_weighting": self.attention_weighting,
            "output_projection": self.output_projection,
            "feed_forward": self.feed_forward,
            "head": self.head,
        }

    def shares(self) -> Mapping[Component, float]:
        """Give each component's share of the forward pass, 0 to 1; training has the same shares."""
        return {name: flops / self.forward for name, flops in self.by_component().items()}


def count_flops(
    config: ModelConfig, num_tokens: int | None = None, batch_size: int = 1, *, causal: bool = False
) -> FlopCount:
    """Count the FLOPs for `batch_size` sequences of `num_tokens` each (the full context by default).

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> count_flops(base).training / 256  # per token
    111722496.0
    """
    length = config.context_length if num_tokens is None else num_tokens
    totals: dict[Component, int] = {}
    for matmul in list_matmuls(config, length, batch_size):
        totals[matmul.component] = totals.get(matmul.component, 0) + matmul.flops
    if causal:
        for component in ("attention_scores", "attention_weighting"):
            totals[component] = totals[component] * (length + 1) // (2 * length)
    return FlopCount(**totals)


def training_flops_per_token(config: ModelConfig) -> float:
    """FLOPs of forward and backward per token, at full context."""
    return count_flops(config).training / config.context_length


def flops_utilisation(config: ModelConfig, tokens_per_second: float, peak_flops_per_second: float) -> float:
    """Share of the machine's peak that training puts into the products above ("MFU"), 0 to 1."""
    return training_flops_per_token(config) * tokens_per_second / peak_flops_per_second
