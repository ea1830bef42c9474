"""Model configs: presets with a name, and a proposed shape for a number of parameters.

The presets are the base experiment and the GPT-2 family. The latter have the published sizes (vocabulary,
context, width, depth, heads) with our architecture. It has rotary positions, RMSNorm, a gated feed-forward
layer of 4·d_model, an untied head, and no biases. The presets have more parameters than the original models.

`propose_shape` follows a rule of four parts:

    width      a multiple of 16 below 256, of 32 below 512, of 64 below 1,024, and of 128 from there on
    heads      of 16 dimensions below a width of 256, of 32 below 512, of 64 below 2,048, and else of 128
    depth      about one layer per 100 columns of width. Kaplan et al. (2020) found that the loss depends
               little on this ratio. Of the shapes within `TOLERANCE` of the requested size, the rule selects
               the one with the ratio nearest to 100
    vocabulary if none is given, the largest of `VOCABULARIES` with which the blocks have at least half of the
               parameters and the ratio is from 50 to 200; in small models, that with the best ratio

The width of the feed-forward layer and all other settings are those of the given config, or their defaults.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from bytewright.account.parameters import count_parameters
from bytewright.errors import UsageError, suggest, wrong_value
from bytewright.model.config import ModelConfig

TOLERANCE = 0.02
"""The largest accepted difference between the proposed and the requested number of parameters."""
RATIO = 100
"""The width divided by the number of layers that is preferred."""
VOCABULARIES = (50_257, 32_000, 10_000, 4_096, 1_024)
CONTEXT_LENGTH = 1024
FEWEST, MOST = 1_000_000, 10**12
"""The limits of the number of parameters; below, the smallest layer is too large a step."""


# Presets


def _gpt2(d_model: int, num_layers: int, num_heads: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=50_257,
        context_length=1024,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=num_heads,
        d_ff=4 * d_model,
    )


PRESETS: Mapping[str, ModelConfig] = {
    "base": ModelConfig(
        vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16, d_ff=1344
    ),
    "gpt2-small": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
}

GPT2_FAMILY = ("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl")


def find_preset(name: str) -> ModelConfig:
    """Return the preset with this name.

    >>> find_preset("gpt2-xl").d_model
    1600
    >>> find_preset("gtp2-xl")
    Traceback (most recent call last):
    bytewright.errors.UsageError: unknown preset 'gtp2-xl'; did you mean gpt2-xl?
    """
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}{suggest(name, PRESETS)}", key="preset", found=name)
    return PRESETS[name]


# A shape for a number of parameters


def _step(width: int, wide: int) -> int:
    """Return 16, 32, 64 or 128, which grows with the width; 128 from `wide` on."""
    return 16 if width < 256 else 32 if width < 512 else 64 if width < wide else 128


def _widths(largest: int) -> list[int]:
    widths = [16]
    while widths[-1] < largest:
        widths.append(widths[-1] + _step(widths[-1], 1024))
    return widths


WIDTHS = _widths(2**17)


def propose_shape(num_parameters: float, **settings: Any) -> ModelConfig:
    """Return a model config with about `num_parameters` parameters.

    `settings` are fields of `ModelConfig`, such as `vocab_size` or `tie_embeddings`, except those that the
    rule determines: `d_model`, `num_layers` and `num_heads`.

    >>> shape = propose_shape(1e9)
    >>> shape.d_model, shape.num_layers, shape.num_heads, shape.vocab_size
    (1920, 18, 30, 50257)
    """
    if not FEWEST <= num_parameters <= MOST:
        raise wrong_value("parameters", f"a number from {FEWEST:,} to {MOST:,}", num_parameters)
    for name in ("d_model", "num_layers", "num_heads"):
        if settings.get(name) is not None:
            message = f"{name} cannot be given together with a number of parameters, which determines it"
            raise UsageError(message, key=name, found=settings[name])
    settings = {"context_length": CONTEXT_LENGTH} | settings
    sizes = [settings["vocab_size"]] if "vocab_size" in settings else VOCABULARIES
    shapes: list[ModelConfig] = []
    for vocab_size in sizes:
        shape = _nearest(num_parameters, settings | {"vocab_size": vocab_size})
        if shape is not None:
            if _has_half_in_blocks(shape) and _distance(shape) <= math.log(2):
                return shape
            shapes.append(shape)
    if not shapes:
        message = (
            f"no model of about {num_parameters:,.0f} parameters has a vocabulary of {sizes[-1]:,} and these"
            " settings; use a smaller vocabulary or another number of parameters"
        )
        raise UsageError(message, key="vocab_size", found=sizes[-1])
    return min(filter(_has_half_in_blocks, shapes), key=_distance, default=min(shapes, key=_distance))


def format_table(config: ModelConfig) -> str:
    """Return the [model] table of a recipe with this config; fields with their default are left out.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> print(format_table(base))
    [model]
    vocab_size = 10000
    context_length = 256
    d_model = 512
    num_layers = 4
    num_heads = 16
    d_ff = 1344
    """
    values = config.to_dict() | {"d_ff": config.ffn_width}
    lines = ["[model]"]
    for field in dataclasses.fields(config):
        value = values[field.name]
        default = {} if field.default_factory is not dataclasses.MISSING else field.default
        if value != default:
            lines.append(f"{field.name} = {_to_toml(value)}")
    return "\n".join(lines)


def _nearest(num_parameters: float, settings: Mapping[str, Any]) -> ModelConfig | None:
    """Return the shape with the preferred ratio among those within the tolerance, or None.

    The ratio of width and depth grows with the width. So the best shape is the first one within the tolerance
    above or below the width at which the ratio reaches `RATIO`.
    """

    def with_layers(width: int) -> ModelConfig:
        """Return the config of this width whose number of layers fits best."""
        heads = width // _step(width, 2048)
        one = ModelConfig(**settings, d_model=width, num_layers=1, num_heads=heads)
        count = count_parameters(one)
        num_layers = 1 + round((num_parameters - count.total) / count.blocks)
        return dataclasses.replace(one, num_layers=max(1, num_layers))

    def is_wide(width: int) -> bool:
        return width >= RATIO * with_layers(width).num_layers

    def first_fitting(widths: Iterable[int]) -> ModelConfig | None:
        for config in map(with_layers, widths):
            share = count_parameters(config).total / num_parameters
            if abs(share - 1) <= TOLERANCE and config.num_layers <= config.d_model:
                return config
            if (share > 1 and config.num_layers == 1) or config.num_layers > config.d_model:
                return None  # the next ones are larger, or deeper than they are wide
        return None

    middle = bisect.bisect_left(WIDTHS, True, key=is_wide)
    found = (first_fitting(reversed(WIDTHS[:middle])), first_fitting(WIDTHS[middle:]))
    return min(filter(None, found), key=_distance, default=None)


def _distance(config: ModelConfig) -> float:
    """Return how far the width divided by the number of layers is from the preferred ratio."""
    return abs(math.log(config.d_model / config.num_layers / RATIO))


def _has_half_in_blocks(config: ModelConfig) -> bool:
    count = count_parameters(config)
    return 2 * count.blocks >= count.total


def _to_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_to_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_to_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
