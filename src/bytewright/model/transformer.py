"""The Transformer language model: embeddings, blocks, a final norm, and logits over the vocabulary.

The reference and the fused implementation share this module, the parameters, their names and their
initialisation. `config.implementation` selects the layer classes (`LAYER_CLASSES`), so a state dict of one
implementation loads into the other. Parameters have the type `dtype`; the residual stream, and with it every
matrix product, has the type `compute_dtype` (by default the same).

`hidden_states` and `output_weight` allow a loss to compute the logits in chunks instead of all at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn import ModuleList, Parameter

from bytewright.errors import UsageError
from bytewright.model.attention import MultiHeadSelfAttention, RotaryPositionalEmbedding
from bytewright.model.config import Implementation, ModelConfig
from bytewright.model.layers import Embedding, Layer, Linear, RMSNorm, SiLUFeedForward, SwiGLU


class LayerClasses(NamedTuple):
    """The layers that an implementation can replace; all others are shared."""

    embedding: type[Embedding] = Embedding
    attention: type[MultiHeadSelfAttention] = MultiHeadSelfAttention
    swiglu: type[SwiGLU] = SwiGLU


LAYER_CLASSES: dict[Implementation, LayerClasses] = {"reference": LayerClasses()}
"""The layer classes of each implementation. `bytewright.model.fused` adds the entry "fused"."""


class TransformerBlock(Layer):
    """Attention, then the feed-forward layer, each added to the residual stream.

    With norm "pre": x + f(norm(x)); "post": norm(x + f(x)); "none": x + f(x). With position "rope", blocks
    can share one RoPE module; by default a block creates its own.
    """

    def __init__(
        self,
        config: ModelConfig,
        rope: RotaryPositionalEmbedding | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.norm = config.norm
        if config.norm != "none":
            self.ln1 = RMSNorm(config.d_model, device=device, dtype=dtype)
            self.ln2 = RMSNorm(config.d_model, device=device, dtype=dtype)
        classes = LAYER_CLASSES[config.implementation]
        if rope is None:
            rope = make_rope(config, device)
        self.attn = classes.attention(
            config.d_model,
            config.num_heads,
            num_kv_heads=config.kv_heads,
            rope=rope,
            qk_norm=config.qk_norm,
            device=device,
            dtype=dtype,
        )
        self.ffn = (classes.swiglu if config.ffn == "swiglu" else SiLUFeedForward)(
            config.d_model, config.ffn_width, device, dtype
        )

    def forward(self, x: Float[Tensor, "*batch seq d_model"]) -> Float[Tensor, "*batch seq d_model"]:
        """Apply attention, then the feed-forward layer."""
        if self.norm == "pre":
            x = x + self.attn(self.ln1(x))
            return x + self.ffn(self.ln2(x))
        if self.norm == "post":
            x = self.ln1(x + self.attn(x))
            return self.ln2(x + self.ffn(x))
        x = x + self.attn(x)
        return x + self.ffn(x)


def make_rope(
    config: ModelConfig, device: torch.device | str | None = None
) -> RotaryPositionalEmbedding | None:
    """Return the RoPE module that `config` describes, or None for position "none"."""
    if config.position == "none":
        return None
    return RotaryPositionalEmbedding(config.rope_theta, config.d_head, config.context_length, device)


class TransformerLM(Layer):
    """A decoder-only Transformer that returns logits of the next token at every position."""

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        # Tied embeddings start as small as a head; otherwise the first logits would be √d_model large
        head_std = math.sqrt(2 / (config.vocab_size + config.d_model))
        self.token_embeddings = LAYER_CLASSES[config.implementation].embedding(
            config.vocab_size, config.d_model, device, dtype, std=head_std if config.tie_embeddings else 1.0
        )
        rope = make_rope(config, device)
        self.layers = ModuleList(
            TransformerBlock(config, rope, device, dtype) for _ in range(config.num_layers)
        )
        self.ln_final = RMSNorm(config.d_model, device=device, dtype=dtype) if config.norm == "pre" else None
        self.lm_head = (
            None if config.tie_embeddings else Linear(config.d_model, config.vocab_size, device, dtype)
        )

    @property
    def output_weight(self) -> Parameter:
        """The matrix of the output head, or the embeddings if they are tied."""
        return self.token_embeddings.weight if self.lm_head is None else self.lm_head.weight

    def hidden_states(self, ids: Integer[Tensor, "*batch seq"]) -> Float[Tensor, "*batch seq d_model"]:
        """Return the input of the head: its products with `output_weight` are the logits."""
        if ids.shape[-1] > self.config.context_length:
            raise UsageError(
                f"a sequence of {ids.shape[-1]} tokens exceeds the context of {self.config.context_length}",
                key="ids",
                expected=self.config.context_length,
                found=ids.shape[-1],
            )
        x = self.token_embeddings(ids)
        if self.compute_dtype is not None:
            x = x.to(self.compute_dtype)
        for layer in self.layers:
            x = layer(x)
        return x if self.ln_final is None else self.ln_final(x)

    def forward(self, ids: Integer[Tensor, "*batch seq"]) -> Float[Tensor, "*batch seq vocab"]:
        """Return the logits: row t has one for each candidate for the token after position t."""
        x = self.hidden_states(ids)
        return x @ self.output_weight.to(x.dtype).T
