"""Model configs with a name: the GPT-2 family and the base experiment.

The GPT-2 presets have the published sizes (vocabulary, context, width, depth, heads) with our architecture.
It has rotary positions, RMSNorm, a gated feed-forward layer of 4·d_model, an untied head, and no biases. The
presets have more parameters than the original models.
"""

from __future__ import annotations

from collections.abc import Mapping

from bytewright.errors import UsageError, suggest
from bytewright.model.config import ModelConfig


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
