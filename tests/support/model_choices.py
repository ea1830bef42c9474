"""A small model and one variant for every option of `ModelConfig`, for tests that cover all options.

Every registered part other than the default is a variant, such as "ffn-silu".
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bytewright.model import ModelConfig
from bytewright.model.config import PARTS

SMALL = ModelConfig(vocab_size=61, context_length=16, d_model=32, num_layers=2, num_heads=4, d_ff=48)

PART_CHOICES: dict[str, dict[str, Any]] = {
    f"{part.name}-{name}": {part.name: name}
    for part in PARTS.values()
    for name in part.registry
    if name != getattr(SMALL, part.name)
}

CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    **PART_CHOICES,
    "post-norm": {"norm": "post"},
    "no-norm": {"norm": "none"},
    "tied": {"tie_embeddings": True},
    "qk-norm": {"qk_norm": True},
    "qk-norm-no-position": {"qk_norm": True, "position": "none"},
    "two-kv-heads": {"num_kv_heads": 2},
    "one-kv-head": {"num_kv_heads": 1},
    "all-at-once": {
        "norm": "post",
        "ffn": "silu",
        "tie_embeddings": True,
        "qk_norm": True,
        "num_kv_heads": 2,
        "rope_theta": 500.0,
    },
}


def small_config(choice: str, **changes: Any) -> ModelConfig:
    """Return the config of the small model with a variant and further changes."""
    return dataclasses.replace(SMALL, **{**CHOICES[choice], **changes})
