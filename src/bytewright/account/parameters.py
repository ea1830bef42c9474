"""The number of parameters of a model, computed from its config.

With d = d_model, f = d_ff, V = vocab_size, h = d_head, H query heads, K key/value heads and L layers, without
biases:

    embeddings        V·d
    one block         attention   q and output: H·h·d each, k and v: K·h·d each, and 2·h for qk_norm
                      ffn         3·d·f gated (w1, w2, w3), 2·d·f ungated (w1, w2)
                      norms       2·d, nothing without norms
    final norm        d, only before the head of a pre-norm model
    head              V·d, nothing if it is tied to the embeddings

The count is exact: it equals `sum(p.numel() for p in model.parameters())` for every `ModelConfig`. Published
sizes often leave out some components, so the count is returned by component.
"""

from __future__ import annotations

from dataclasses import dataclass

from bytewright.model.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Parameters by component, summed over the layers."""

    embeddings: int
    attention: int
    feed_forward: int
    norms_in_blocks: int
    final_norm: int
    head: int

    @property
    def blocks(self) -> int:
        """All parameters of the blocks."""
        return self.attention + self.feed_forward + self.norms_in_blocks

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embeddings + self.blocks + self.final_norm + self.head

    @property
    def without_embeddings(self) -> int:
        """All but the embeddings: "non-embedding parameters" in papers that count the head."""
        return self.total - self.embeddings

    @property
    def without_embeddings_and_head(self) -> int:
        """Blocks and norms only: "non-embedding parameters" in papers that do not count the head."""
        return self.blocks + self.final_norm


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Return the number of parameters of a model by component.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> count = count_parameters(base)
    >>> count.total, count.blocks, count.without_embeddings
    (22696448, 12455936, 17576448)
    """
    d, f, vocabulary, layers = config.d_model, config.ffn_width, config.vocab_size, config.num_layers
    query_width, key_width = config.num_heads * config.d_head, config.kv_heads * config.d_head
    matrices_of_attention = 2 * d * query_width + 2 * d * key_width
    gains_of_attention = 2 * config.d_head if config.qk_norm else 0
    return ParameterCount(
        embeddings=vocabulary * d,
        attention=layers * (matrices_of_attention + gains_of_attention),
        feed_forward=layers * (3 if config.ffn == "swiglu" else 2) * d * f,
        norms_in_blocks=layers * (0 if config.norm == "none" else 2 * d),
        final_norm=d if config.norm == "pre" else 0,
        head=0 if config.tie_embeddings else vocabulary * d,
    )
