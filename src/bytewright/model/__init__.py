"""The Transformer language model, in a reference and a fused implementation.

Read `config`, `layers`, `attention`, `parts`, `transformer` and `loss` in this order: they define the model.
`parts` documents what a norm, position encoding, attention or feed-forward layer states about itself, and
`costs` how it states its costs. `fused` computes the same with fewer operations, on NVIDIA GPUs with the
Triton kernels in `kernels`, and is used by default. `initialisation` draws initial weights by name.
`cuda_graph` captures GPU work. `exports` decides what can be exported. `hf_llama` exports to `transformers`
and imports from it. Depends on `errors`, `storage` and `data` (for keys of random streams, and the target
that does not count), not on the native extension.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bytewright.model.attention import (
        MultiHeadSelfAttention,
        RotaryPositionalEmbedding,
        scaled_dot_product_attention,
    )
    from bytewright.model.config import ModelConfig
    from bytewright.model.fused import language_model_loss
    from bytewright.model.layers import Embedding, Linear, RMSNorm, SwiGLU, silu, softmax
    from bytewright.model.transformer import TransformerBlock, TransformerLM
else:
    from bytewright import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

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
    "language_model_loss",
    "scaled_dot_product_attention",
    "silu",
    "softmax",
]
