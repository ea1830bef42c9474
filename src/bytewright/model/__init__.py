"""The Transformer and its parts, each as a readable twin with a fast one behind the same name.

`config` (sizes and choices), `layers`, `attention` and `transformer` are read in that order; `fused` holds
the fast twins, `shapes` what a config says of its weights, `exchange` the way to other tools and back.
Imports neither the native extension nor anything that trains.
"""

from bytewright.model.attention import (
    MultiHeadSelfAttention,
    RotaryPositionalEmbedding,
    scaled_dot_product_attention,
)
from bytewright.model.config import ModelConfig
from bytewright.model.layers import Embedding, Linear, RMSNorm, SwiGLU, silu, softmax
from bytewright.model.transformer import TransformerBlock, TransformerLM

__all__ = [
    "Embedding",
    "Linear",
    "ModelConfig",
    "MultiHeadSelfAttention",
    "RMSNorm",
    "RotaryPositionalEmbedding",
    "SwiGLU",
    "TransformerBlock",
    "TransformerLM",
    "scaled_dot_product_attention",
    "silu",
    "softmax",
]
