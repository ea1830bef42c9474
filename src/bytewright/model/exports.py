"""Which models can be exported, and the names of their weights in other formats; all exporters use this.

Both formats, the folder of `transformers` ("hf") and GGUF, describe a Llama. Three conditions must hold.
Every part states its names in a Llama (`model.parts`), and a Llama can express the value of every option. The
modules of the model are those that its config names. `check_export` raises otherwise. A part or an option
without a statement is rejected, because the other program could compute something else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

from torch.nn import Module

from bytewright.errors import UsageError
from bytewright.model.config import PARTS, ModelConfig, PartField
from bytewright.model.layers import EPSILON
from bytewright.model.parts import replaced_methods, stated
from bytewright.model.transformer import TransformerLM, weight_shapes
from bytewright.storage.config_reader import list_options

ExportFormat = Literal["hf", "gguf"]

EXPORTED_OPTIONS = (
    *("vocab_size", "context_length", "d_model", "num_layers", "num_heads", "d_ff", "num_kv_heads"),
    *("rope_theta", "tie_embeddings", "mup_base_width", "implementation"),
)
"""The options of `ModelConfig` that a Llama can express with any value, or that do not affect the result."""

EXPORTED_BY_FORMAT: Mapping[ExportFormat, tuple[str, ...]] = {"hf": (), "gguf": ("qk_norm",)}
"""Further options that one format can express: GGUF has Qwen3, a Llama with norms of queries and keys."""

PLACES = {
    "ln1.": ("norm", "input_layernorm."),
    "ln2.": ("norm", "post_attention_layernorm."),
    "attn.": ("attention", "self_attn."),
    "ffn.": ("ffn", "mlp."),
}
"""The modules of a block: the kind of part that each is, and its name in a block of a Llama."""

OUTSIDE_BLOCKS = {
    "token_embeddings.": (None, "model.embed_tokens."),
    "ln_final.": ("norm", "model.norm."),
    "lm_head.": (None, "lm_head."),
}


class Obstacle(NamedTuple):
    """A reason why a model cannot be exported."""

    key: str
    expected: object
    found: object
    sentence: str


def reasons_against_export(model: TransformerLM | ModelConfig, format: ExportFormat) -> list[str]:
    """Return why a model cannot be exported, one sentence each; an empty list if it can be.

    >>> tiny = ModelConfig(vocab_size=50, context_length=8, d_model=16, num_layers=1, num_heads=2, ffn="silu")
    >>> reasons_against_export(tiny, "gguf")
    ["the model has ffn = 'silu', but the feed-forward layer of a Llama has a gate; use 'swiglu'"]
    """
    return [obstacle.sentence for obstacle in find_obstacles(model, format)]


def check_export(model: TransformerLM | ModelConfig, format: ExportFormat) -> None:
    """Raise `UsageError` with the first reason why a model cannot be exported, if there is one."""
    for key, expected, found, sentence in find_obstacles(model, format):
        raise UsageError(
            f"this model cannot be exported: {sentence}", key=key, expected=expected, found=found
        )


def find_obstacles(model: TransformerLM | ModelConfig, format: ExportFormat) -> Iterator[Obstacle]:
    """Yield the obstacles to an export."""
    if format not in get_args(ExportFormat):
        raise UsageError(f"unknown export format {format!r}", key="format", found=format)
    config = model if isinstance(model, ModelConfig) else model.config
    yield from _find_other_options(config, format)
    for part in PARTS.values():
        yield from _find_part_obstacles(config, part)
    eps = llama_settings(config).get("rms_norm_eps", EPSILON)
    if config.qk_norm and eps != EPSILON:  # a file has one eps for all norms
        sentence = (
            f"the model has norms with eps = {eps!r}, but those of queries and keys have {EPSILON!r};"
            " only equal values can be exported"
        )
        yield Obstacle("norm_options.eps", EPSILON, eps, sentence)
    if isinstance(model, TransformerLM):
        yield from _find_other_modules(model)


def _find_other_options(config: ModelConfig, format: ExportFormat) -> Iterator[Obstacle]:
    """Yield the options with values that a Llama cannot express."""
    part_fields = {name for part in PARTS.values() for name in (part.name, part.options)}
    exported = (*EXPORTED_OPTIONS, *EXPORTED_BY_FORMAT[format], *part_fields)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in exported and value != field.default:
            sentence = (
                f"the model has {field.name} = {value!r}, which a Llama cannot express; only"
                f" {field.default!r} can be exported"
            )
            yield Obstacle(field.name, field.default, value, sentence)


def _find_part_obstacles(config: ModelConfig, part: PartField) -> Iterator[Obstacle]:
    """Yield an obstacle if a part does not state its names in a Llama, else one per option that lacks one."""
    cls, name = part.class_of(config), getattr(config, part.name)
    if stated(cls, "llama_weights") is None:
        unstated = f"{cls.__name__} does not state its names in a Llama (llama_weights)"
        reason = stated(cls, "no_llama_because") or unstated
        others = {other: stated(part.registry[other], "llama_weights") for other in part.registry}
        usable = [repr(other) for other, weights in others.items() if weights is not None]
        sentence = f"the model has {part.name} = {name!r}, but {reason}; use {' or '.join(usable)}"
        yield Obstacle(part.name, getattr(ModelConfig, part.name), name, sentence)
        return
    for option, value in getattr(config, part.options).items():
        parameter = list_options(cls, part.provided).get(option)
        is_default = parameter is not None and value == parameter.default
        if option not in stated(cls, "llama_options", {}) and not is_default:
            key = f"{part.options}.{option}"
            sentence = f"the model has {key} = {value!r}, which a Llama lacks; leave it at its default"
            yield Obstacle(key, None, value, sentence)


def _find_other_modules(model: TransformerLM) -> Iterator[Obstacle]:
    """Yield the modules that are not those of the config; another class can compute something else."""
    expected = TransformerLM(model.config, device="meta")
    modules, of_config = dict(model.named_modules()), dict(expected.named_modules())
    for name in sorted(modules.keys() | of_config.keys()):
        cls, wanted = (type(one[name]) if name in one else None for one in (modules, of_config))
        if cls is not wanted:
            words = ["no module" if it is None else f"a {it.__name__}" for it in (cls, wanted)]
            place = name or "the model itself"
            sentence = (
                f"the module {place} is {words[0]}, but the config describes {words[1]};"
                " restore the module, or register its class as a part"
            )
            yield Obstacle(name, wanted, cls, sentence)
    for name, module in modules.items():
        if replaced_methods(module) or module._forward_hooks or module._forward_pre_hooks:
            place = f"the module {name}" if name else "the model"
            sentence = f"{place} has a hook or another forward, which is not exported; remove it"
            yield Obstacle(name, None, type(module), sentence)
        for setting, wanted in _settings(of_config.get(name)).items():
            if (value := getattr(module, setting, None)) != wanted:
                key = f"{name}.{setting}"
                sentence = f"{key} was changed to {value!r}, but the config describes {wanted!r}; restore it"
                yield Obstacle(key, wanted, value, sentence)


def _settings(module: Module | None) -> dict[str, Any]:
    """Return the numbers and texts that a module was constructed with, such as the eps of a norm."""
    return {
        name: value
        for name, value in ({} if module is None else vars(module)).items()
        if name != "training" and not name.startswith("_") and isinstance(value, int | float | str)
    }


def llama_names(config: ModelConfig) -> dict[str, str]:
    """Return Llama's name of every weight of a model that can be exported.

    >>> tiny = ModelConfig(vocab_size=50, context_length=8, d_model=16, num_layers=4, num_heads=2)
    >>> llama_names(tiny)["layers.3.ffn.w2.weight"]
    'model.layers.3.mlp.down_proj.weight'
    """
    return {name: _llama_name(name, config) for name in weight_shapes(config)}


def _llama_name(name: str, config: ModelConfig) -> str:
    places: Mapping[str, tuple[str | None, str]] = OUTSIDE_BLOCKS
    prefix, inside = "", name
    if name.startswith("layers."):
        _, layer, inside = name.split(".", maxsplit=2)
        places, prefix = PLACES, f"model.layers.{layer}."
    place = next(place for place in places if inside.startswith(place))
    kind, theirs = places[place]
    weight = inside.removeprefix(place)
    if kind is not None:
        weight = stated(PARTS[kind].class_of(config), "llama_weights")[weight]
    return prefix + theirs + weight


def llama_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the values of the parts' options under their names in the config.json of a Llama."""
    settings = {}
    for part in PARTS.values():
        cls = part.class_of(config)
        declared = list_options(cls, part.provided)
        for option, theirs in stated(cls, "llama_options", {}).items():
            settings[theirs] = getattr(config, part.options).get(option, declared[option].default)
    return settings
