"""Which models the decoder can run: those whose modules are exactly the ones that it was written for.

The decoder does not call the modules of a model but uses their weights. It would ignore a subclass, a hook, a
parametrization or a replaced `forward`. `reason_against_cache` therefore checks every module of the model
itself, not its config. Norms and feed-forward layers without a packed version are allowed if their class
states that it acts per position (`model.parts`). The decoder calls these modules (`list_users_classes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch.nn import Module, ModuleList, Parameter

from bytewright.generate.packed_weights import PackedAttention, packed_version
from bytewright.model import (
    Embedding,
    Linear,
    ModelConfig,
    MultiHeadSelfAttention,
    RotaryPositionalEmbedding,
    TransformerBlock,
    TransformerLM,
)
from bytewright.model.fused import FusedEmbedding
from bytewright.model.layers import EPSILON
from bytewright.model.parts import replaced_methods, stated
from bytewright.registry import is_built_in

KNOWN_FORWARDS: Mapping[type[Module], object] = {
    cls: cls.forward
    for cls in (
        *(Embedding, FusedEmbedding, Linear, RotaryPositionalEmbedding),
        *(TransformerBlock, TransformerLM, ModuleList),
    )
}
"""The classes that surround the parts, and those inside the parts, with the `forward` that is replaced."""

HIDDEN_STATES = TransformerLM.hidden_states


def reason_against_cache(model: Module) -> str | None:
    """Return why the decoder cannot run a model, or None if it can.

    >>> from bytewright.model import ModelConfig
    >>> config = ModelConfig(vocab_size=50, context_length=8, d_model=16, num_layers=1, num_heads=2)
    >>> reason_against_cache(TransformerLM(config))
    >>> model = TransformerLM(config)
    >>> handle = model.layers[0].register_forward_hook(lambda module, inputs, output: output)
    >>> reason_against_cache(model)
    'layers.0 has a hook'
    """
    if torch.nn.modules.module._global_forward_hooks or torch.nn.modules.module._global_forward_pre_hooks:
        return "there are global hooks of modules"
    if not isinstance(model, TransformerLM) or type(model) is not TransformerLM:
        return f"the model is a {type(model).__name__}, not a TransformerLM"
    if type(model).hidden_states is not HIDDEN_STATES or "hidden_states" in vars(model):
        return "the method hidden_states of the model was replaced"
    if model.position is not None:
        return f"the position encoding {type(model.position).__name__} is added to the embeddings"
    if len(model.layers) != model.config.num_layers:
        return f"the model has {len(model.layers)} layers, but its config {model.config.num_layers}"
    own = {place: module for place, module in _parts_per_position(model) if packed_version(module) is None}
    for place, module in model.named_modules():
        part = next((part for part in own if f"{place}.".startswith(f"{part}.")), None)
        if part is None:
            reason = _find_change(module, model.config)
        elif part == place and not stated(type(module), "acts_per_position"):
            reason = f"is a {type(module).__name__}, which does not state that it acts per position"
        else:
            reason = _find_hook(module)
        if reason:
            return f"{place or 'the model'} {reason}"
    if len({module.rope for module in model.modules() if isinstance(module, MultiHeadSelfAttention)}) > 1:
        return "the layers have different position encodings"
    return None


def list_users_classes(model: TransformerLM) -> list[str]:
    """Return the names of the classes whose modules the decoder calls, and that a user defined or changed."""
    modules = (module for _, module in _parts_per_position(model))
    own = {type(module) for module in modules if packed_version(module) is None}
    return sorted(cls.__name__ for cls in own if not (is_built_in(cls) and is_built_in(cls.forward)))


def _parts_per_position(model: TransformerLM) -> Iterator[tuple[str, Module]]:
    """Yield the norms and the feed-forward layers."""
    for number, block in enumerate(model.layers):
        for name, child in block.named_children():
            if name != "attn":
                yield f"layers.{number}.{name}", child
    if model.ln_final is not None:
        yield "ln_final", model.ln_final


def _find_change(module: Module, config: ModelConfig) -> str | None:
    """Return how a module differs from those that the decoder was written for."""
    cls = type(module)
    if packed_version(module) is None and KNOWN_FORWARDS.get(cls) is not cls.forward:
        return f"is a {cls.__name__}, which the decoder was not written for"
    if isinstance(module, TransformerBlock) and packed_version(module.attn) is not PackedAttention:
        return f"has the attention {type(module.attn).__name__}, which the decoder was not written for"
    if isinstance(module, MultiHeadSelfAttention):
        sizes = module.num_heads, module.num_kv_heads, module.d_head
        if sizes != (config.num_heads, config.kv_heads, config.d_head):
            return "has other heads than the config"
        if any(norm is not None and norm.eps != EPSILON for norm in (module.q_norm, module.k_norm)):
            return f"has norms of queries or keys whose eps is not {EPSILON}"
    for parameter in module.parameters(recurse=False):
        if type(parameter) is not Parameter:
            return f"has a parameter of the class {type(parameter).__name__}"
    return _find_hook(module)


def _find_hook(module: Module) -> str | None:
    if module._forward_hooks or module._forward_pre_hooks:
        return "has a hook"
    replaced = replaced_methods(module)
    return f"has a {replaced[0]} of its own" if replaced else None
