"""The number of parameters of a model, computed from the shapes of its weights.

With d = d_model, f = d_ff, V = vocab_size, h = d_head, H query heads, K key/value heads and L layers, without
biases:

    embeddings        V·d
    one block         attention   q and output: H·h·d each, k and v: K·h·d each, and 2·h for qk_norm
                      ffn         3·d·f gated (w1, w2, w3), 2·d·f ungated (w1, w2)
                      norms       2·d, nothing without norms
    final norm        d, only before the head of a pre-norm model
    head              V·d, nothing if it is tied to the embeddings

for the parts of the default model. The count is exact: it equals `sum(p.numel() for p in model.parameters())`
for every `ModelConfig`, because one block is constructed on the meta device. Published sizes often leave out
some components, so the count is returned by component.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

from bytewright.model.config import ModelConfig
from bytewright.model.transformer import weight_shapes


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Parameters by component, summed over the layers."""

    embeddings: int
    """Of tokens and, if the position encoding has parameters of its own there, of positions."""
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


@functools.lru_cache(maxsize=256)
def count_parameters(config: ModelConfig) -> ParameterCount:
    """Return the number of parameters of a model by component.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> count = count_parameters(base)
    >>> count.total, count.blocks, count.without_embeddings
    (22696448, 12455936, 17576448)
    """
    one = weight_shapes(dataclasses.replace(config, num_layers=1))

    def count(*prefixes: str) -> int:
        return sum(math.prod(shape) for name, shape in one.items() if name.startswith(prefixes))

    layers, norms = config.num_layers, count("layers.0.ln1.", "layers.0.ln2.")
    return ParameterCount(
        embeddings=count("token_embeddings.", "position."),
        attention=layers * count("layers.0.attn."),
        feed_forward=layers * count("layers.0.ffn."),
        norms_in_blocks=layers * norms,
        final_norm=count("ln_final."),
        head=count("lm_head."),
    )
