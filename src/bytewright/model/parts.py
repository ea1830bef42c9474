"""Parts of a model: how a config's names become modules, and what a part states about itself.

A part is a module class that is registered under a name (`bytewright.registry`): a norm, a position encoding,
an attention or a feed-forward layer. Its constructor declares which of these arguments it needs, by name:

    norm          d_model
    position      d_k (the size of a head), max_seq_len, theta, d_model, num_heads
    attention     d_model, num_heads, num_kv_heads, rope (the position module or None), qk_norm
    feed-forward  d_model, d_ff
    every part    device, dtype

All other parameters are options, which a config sets in the table of the part (`ffn_options`). `forward` of a
norm, an attention and a feed-forward layer maps (…, seq, d_model) to the same shape; an attention must be
causal. `forward(x, token_positions)` of a position encoding is applied where its `place` states: to the
"heads" (queries and keys, (…, heads, seq, d_k); the default), or to the "embeddings" (…, seq, d_model).

A part can state more, each by one class attribute; `stated` reads them. Without a statement the part still
works, in the way that is given in brackets:

    default_width     static method, d_model to d_ff                      [4·d_model]
    check_config      static method that raises `UsageError` if the config does not fit  [no check]
    acts_per_position True if each position is transformed separately, so that text can be generated with a
                      cache of keys and values                            [the whole text is computed again]
    costs             class method, `StepShape` to `Costs`                [measured by tracing]
    llama_weights     its weights' names in a Llama                       [export is rejected]
    llama_options     its options' names in the config.json of a Llama    [export is rejected if one is set]
    no_llama_because  the reason why it cannot be exported, a sentence

A statement describes exactly one class: subclasses do not inherit it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch.nn import Module

from bytewright.errors import UsageError
from bytewright.model.config import PARTS, Implementation, ModelConfig
from bytewright.model.layers import DeviceLike, DType
from bytewright.plugins import errors_of_part
from bytewright.registry import attentions, positions
from bytewright.storage.config_reader import list_options

if TYPE_CHECKING:
    from bytewright.model.layers import Layer as Part
else:
    Part = Module  # tests check types at run time, and a part of a user is any module

C = TypeVar("C", bound=type[Module])

FUSED_HOME = "bytewright.model.fused"
"""The module that registers the fused versions of built-in classes."""

_fused: dict[type[Module], type[Module]] = {}


def fused_version_of(reference: type[Module]) -> Callable[[C], C]:
    """Register a faster class with the parameters of `reference`; use it as a decorator.

    Models with the implementation "fused" use it. A class without a fused version is used in both.
    """

    def add(fused: C) -> C:
        _fused[reference] = fused
        return fused

    return add


def class_for(reference: type[Module], implementation: Implementation) -> type[Module]:
    """Return the class that an implementation uses for a reference class."""
    if implementation == "reference":
        return reference
    importlib.import_module(FUSED_HOME)  # by name, because reference modules import no fused ones
    return _fused.get(reference, reference)


def stated(part: Any, name: str, default: Any = None) -> Any:
    """Return what a class states about itself; what it inherits describes another class."""
    return getattr(part, name) if name in vars(part) else default


def replaced_methods(module: Module) -> list[str]:
    """Return the methods that were replaced in this instance, for example by `module.forward = f`."""
    return [name for name in vars(module) if callable(getattr(type(module), name, None))]


def make_norm(config: ModelConfig, device: DeviceLike = None, dtype: DType = None) -> Part:
    """Return a norm of the residual stream."""
    return _construct("norm", config, {"d_model": config.d_model}, device, dtype)


def make_ffn(config: ModelConfig, device: DeviceLike = None, dtype: DType = None) -> Part:
    """Return the feed-forward layer of a block."""
    return _construct("ffn", config, {"d_model": config.d_model, "d_ff": config.ffn_width}, device, dtype)


def make_attention(
    config: ModelConfig, rope: Module | None, device: DeviceLike = None, dtype: DType = None
) -> Part:
    """Return the attention of a block; `rope` is the position encoding of queries and keys, if any."""
    provided = {
        "d_model": config.d_model,
        "num_heads": config.num_heads,
        "num_kv_heads": config.kv_heads,
        "rope": rope,
        "qk_norm": config.qk_norm,
    }
    if rope is not None and "rope" not in list_options(attentions[config.attention], ()):
        message = f"the attention {config.attention!r} does not use the position encoding {config.position!r}"
        raise UsageError(f'{message}; set model.position = "none"', key="position", found=config.position)
    return _construct("attention", config, provided, device, dtype)


def position_place(config: ModelConfig) -> str:
    """Return where the position encoding is applied: to "heads", to "embeddings", or "nowhere"."""
    return str(getattr(positions[config.position], "place", "heads"))


def make_position(
    config: ModelConfig, place: str, device: DeviceLike = None, dtype: DType = None
) -> Part | None:
    """Return the position encoding if it is applied at `place`, otherwise None."""
    if position_place(config) != place:
        return None
    provided = {
        "theta": config.rope_theta,
        "d_k": config.d_head,
        "max_seq_len": config.context_length,
        "d_model": config.d_model,
        "num_heads": config.num_heads,
    }
    return _construct("position", config, provided, device, dtype)


def _construct(
    kind: str, config: ModelConfig, provided: dict[str, Any], device: DeviceLike, dtype: DType
) -> Part:
    """Construct a part with the arguments that it declares and the options of the config."""
    field = PARTS[kind]
    cls: Any = class_for(field.class_of(config), config.implementation)
    declared = list_options(cls, ())
    placed = {"device": device, "dtype": dtype}
    arguments = {name: value for name, value in (provided | placed).items() if name in declared}
    # A part that does not declare `device` or `dtype` is created on the device, and converted.
    where = nullcontext() if device is None or "device" in declared else torch.device(device)
    name = getattr(config, field.name)
    with errors_of_part(field.registry, name, "cannot be built"), where:
        module: object = cls(**arguments, **getattr(config, field.options))
    if not isinstance(module, Module):
        found = type(module).__name__
        message = (
            f"the {field.registry.kind} {name!r} must be a class of torch.nn.Module, but makes a {found}"
        )
        raise UsageError(message, key=field.registry.key, found=found)
    part = cast("Part", module)
    return part if dtype is None or "dtype" in declared else part.to(dtype)
