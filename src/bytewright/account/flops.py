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
plain implementation computes. Looking up embeddings is no product; norms, softmax and the rest of the
elementwise work are small beside these and not counted. Going backward, each product y = a·b needs two of
the same size, one for the gradient of each factor, so forward and backward together are three times the
forward pass.

Exact: equal to `torch.utils.flop_counter` on the readable twin. Knows nothing of machines or time.
"""

from __future__ import annotations

from dataclasses import dataclass

from bytewright.model.config import ModelConfig


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
        return (
            self.qkv_projections
            + self.attention_scores
            + self.attention_weighting
            + self.output_projection
            + self.feed_forward
            + self.head
        )

    @property
    def backward(self) -> int:
        """All products of the backward pass: two for each of the forward pass."""
        return 2 * self.forward

    @property
    def training(self) -> int:
        """Forward and backward."""
        return self.forward + self.backward


def count_flops(config: ModelConfig, num_tokens: int | None = None, batch_size: int = 1) -> FlopCount:
    """Count the FLOPs for `batch_size` sequences of `num_tokens` each (the full context by default).

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> count_flops(base).training / 256  # per token
    111722496.0
    """
    length = config.context_length if num_tokens is None else num_tokens
    tokens = batch_size * length
    d, f = config.d_model, config.ffn_width
    query_width, key_width = config.num_heads * config.d_head, config.kv_heads * config.d_head
    layers = config.num_layers
    return FlopCount(
        qkv_projections=layers * 2 * tokens * d * (query_width + 2 * key_width),
        attention_scores=layers * 2 * tokens * length * query_width,
        attention_weighting=layers * 2 * tokens * length * query_width,
        output_projection=layers * 2 * tokens * d * query_width,
        feed_forward=layers * (3 if config.ffn == "swiglu" else 2) * 2 * tokens * d * f,
        head=2 * tokens * d * config.vocab_size,
    )


def training_flops_per_token(config: ModelConfig) -> float:
    """FLOPs of forward and backward per token, at full context."""
    return count_flops(config).training / config.context_length


def flops_utilisation(config: ModelConfig, tokens_per_second: float, peak_flops_per_second: float) -> float:
    """Share of the machine's peak that training puts into the products above ("MFU"), 0 to 1."""
    return training_flops_per_token(config) * tokens_per_second / peak_flops_per_second
