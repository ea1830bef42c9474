"""The Transformer language model: embeddings, blocks, a final norm, and logits over the vocabulary.

The reference and the fused implementation share this module, the parameters, their names and their
initialisation. `parts` constructs the parts that the config names, with the classes of its implementation. A
state dict of one implementation loads into the other. Parameters have the type `dtype`; the residual stream,
and with it every matrix product, has the type `compute_dtype` (by default the same).

`hidden_states` and `output_weight` allow a loss to compute the logits in chunks instead of all at once.

**Maximal update parametrisation.** With `mup_base_width`, a step changes every activation by about the same
amount at every width. So the best learning rate is also about the same. With r = d_model / mup_base_width:

    embeddings, gains    initial values and rates do not depend on the width
    matrices of blocks   initial variance 2 / (in + out), as always; AdamW's rate is divided by r, and its
                         weight decay multiplied by r, so the decay per step is the same (`optim.build`)
    head                 initial variance 2 / (vocab_size + mup_base_width); logits are divided by r

Keep `d_head` and the number of layers equal across widths: the rules do not cover them. At r = 1 the model is
the standard one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn import Module, ModuleList

from bytewright.errors import UsageError
from bytewright.model.config import ModelConfig
from bytewright.model.layers import DeviceLike, DType, Embedding, Layer, Linear
from bytewright.model.parts import class_for, make_attention, make_ffn, make_norm, make_position

Shape = tuple[int, ...]

MAX_CONTEXT = 2**20
"""The longest context that is accepted from a file: the model allocates RoPE tables of this length."""


class TransformerBlock(Layer):
    """Attention, then the feed-forward layer, each added to the residual stream.

    With norm "pre": x + f(norm(x)); "post": norm(x + f(x)); "none": x + f(x). `rope` is the position encoding
    of queries and keys, which blocks can share; by default a block creates its own.
    """

    def __init__(
        self, config: ModelConfig, rope: Module | None = None, device: DeviceLike = None, dtype: DType = None
    ) -> None:
        super().__init__()
        self.norm = config.norm
        if config.norm != "none":
            self.ln1 = make_norm(config, device, dtype)
            self.ln2 = make_norm(config, device, dtype)
        self.attn = make_attention(
            config, rope or make_position(config, "heads", device, dtype), device, dtype
        )
        self.ffn = make_ffn(config, device, dtype)

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


class TransformerLM(Layer):
    """A decoder-only Transformer that returns logits of the next token at every position."""

    def __init__(
        self,
        config: ModelConfig,
        device: DeviceLike = None,
        dtype: DType = None,
        *,
        compute_dtype: DType = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        # Tied embeddings start as small as a head; otherwise the first logits would be √d_model large
        head_std = math.sqrt(2 / (config.vocab_size + (config.mup_base_width or config.d_model)))
        self.logit_scale = 1 / config.width_ratio
        embedding = cast("type[Embedding]", class_for(Embedding, config.implementation))
        self.token_embeddings = embedding(
            config.vocab_size, config.d_model, device, dtype, std=head_std if config.tie_embeddings else 1.0
        )
        self.position = make_position(config, "embeddings", device, dtype)
        rope = make_position(config, "heads", device, dtype)
        if rope is not None and any(True for _ in rope.parameters()):
            rope = None  # each block has its own, and a state dict holds every parameter once
        self.layers = ModuleList(
            TransformerBlock(config, rope, device, dtype) for _ in range(config.num_layers)
        )
        self.ln_final = make_norm(config, device, dtype) if config.norm == "pre" else None
        self.lm_head = (
            None
            if config.tie_embeddings
            else Linear(config.d_model, config.vocab_size, device, dtype, std=head_std)
        )

    @property
    def output_weight(self) -> Tensor:
        """The matrix of the output head, or the embeddings if they are tied."""
        return self.token_embeddings.weight if self.lm_head is None else self.lm_head.weight

    def hidden_states(self, ids: Integer[Tensor, "*batch seq"]) -> Float[Tensor, "*batch seq d_model"]:
        """Return the input of the head: its products with `output_weight` are the logits."""
        if ids.shape[-1] > self.config.context_length:
            found, expected = ids.shape[-1], self.config.context_length
            message = f"a sequence of {found} tokens exceeds the context of {expected}"
            raise UsageError(message, key="ids", expected=expected, found=found)
        x = self.token_embeddings(ids)
        if self.position is not None:
            x = self.position(x, torch.arange(ids.shape[-1], device=ids.device))
        if self.compute_dtype is not None:
            x = x.to(self.compute_dtype)
        for layer in self.layers:
            x = layer(x)
        return self.head_input(x)

    def head_input(self, x: Float[Tensor, "*batch seq d_model"]) -> Float[Tensor, "*batch seq d_model"]:
        """Return the residual stream after the final norm, times the scale of the logits."""
        if self.ln_final is not None:
            x = self.ln_final(x)
        return x if self.logit_scale == 1 else x * self.logit_scale

    def forward(self, ids: Integer[Tensor, "*batch seq"]) -> Float[Tensor, "*batch seq vocab"]:
        """Return the logits: row t has one for each candidate for the token after position t."""
        x = self.hidden_states(ids)
        if self.lm_head is not None:  # the module itself, so that its hooks run
            return self.lm_head(x)
        return x @ self.output_weight.to(x.dtype).T


def weights_with_scale(model: TransformerLM) -> dict[str, Tensor]:
    """Return the state dict with the scale of the logits in the gains of the final norm.

    With these weights, a model without `mup_base_width` computes the same logits, also in other programs.
    """
    weights: dict[str, Tensor] = model.state_dict()
    if model.logit_scale != 1:
        weights["ln_final.weight"] = weights["ln_final.weight"] * model.logit_scale
    return weights


@functools.lru_cache(maxsize=64)
def weight_shapes(config: ModelConfig) -> Mapping[str, Shape]:
    """Return the shape of every weight by name, as in `TransformerLM(config).state_dict()`.

    One block is constructed on the meta device, which allocates nothing. Readers check a file against these
    shapes before they build a model.

    >>> tiny = ModelConfig(vocab_size=50, context_length=8, d_model=16, num_layers=1, num_heads=2)
    >>> shapes = weight_shapes(tiny)
    >>> shapes["token_embeddings.weight"], shapes["layers.0.attn.q_proj.weight"], len(shapes)
    ((50, 16), (16, 16), 12)
    """
    one = TransformerLM(dataclasses.replace(config, num_layers=1), device="meta")
    shapes: dict[str, Shape] = {}
    for name, weight in one.state_dict().items():
        layers = range(config.num_layers if name.startswith("layers.0.") else 1)
        for layer in layers:
            shapes[name.replace("layers.0.", f"layers.{layer}.", 1)] = tuple(weight.shape)
    return MappingProxyType(shapes)


def too_few_for_layers(weights: Mapping[str, Tensor], config: ModelConfig) -> bool:
    """Return whether there are too few weights for the layers of a config, without building these.

    A block has at least six weights: four projections of attention and two of the feed-forward layer.
    """
    return len(weights) < 6 * config.num_layers
