"""`ModelConfig` derives sizes, rejects invalid values, and states the shapes of all weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import jaxtyping
import pytest

from bytewright.errors import UsageError
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.transformer import weight_shapes
from bytewright.registry import feed_forwards
from bytewright.storage.config_reader import build
from model_choices import CHOICES, small_config

BASE: dict[str, Any] = {
    "vocab_size": 100,
    "context_length": 16,
    "d_model": 48,
    "num_layers": 2,
    "num_heads": 4,
}


@pytest.mark.parametrize(("d_model", "d_ff"), [(512, 1344), (1600, 4288), (768, 2048), (16, 64), (24, 64)])
def test_the_gated_width_is_eight_thirds_to_the_nearest_multiple_of_64(d_model: int, d_ff: int) -> None:
    assert ModelConfig(**{**BASE, "d_model": d_model}).ffn_width == d_ff


def test_the_ungated_width_is_four_times_d_model() -> None:
    assert ModelConfig(**BASE, ffn="silu").ffn_width == 192


@pytest.mark.parametrize("ffn", list(feed_forwards))
def test_an_explicit_d_ff_is_used(ffn: Any) -> None:
    assert ModelConfig(**BASE, ffn=ffn, d_ff=100).ffn_width == 100


def test_derived_sizes_follow_a_change_of_the_model() -> None:
    config = ModelConfig(**BASE)
    wider = dataclasses.replace(config, d_model=512, num_heads=16)
    assert (wider.ffn_width, wider.kv_heads, wider.d_head) == (1344, 16, 32)


@pytest.mark.parametrize(
    ("change", "key", "found"),
    [
        ({"d_model": 50}, "num_heads", 4),
        ({"num_heads": 0}, "num_heads", 0),
        ({"num_layers": -1}, "num_layers", -1),
        ({"vocab_size": 2.5}, "vocab_size", 2.5),
        ({"vocab_size": 2**28 + 1}, "vocab_size", 2**28 + 1),
        ({"context_length": True}, "context_length", True),
        ({"d_ff": 0}, "d_ff", 0),
        ({"num_kv_heads": 3}, "num_kv_heads", 3),
        ({"d_model": 20}, "d_model / num_heads", 5),
        ({"rope_theta": 0.0}, "rope_theta", 0.0),
        ({"rope_theta": 10**400}, "rope_theta", 10**400),
        ({"rope_theta": "x"}, "rope_theta", "x"),
        ({"tie_embeddings": "no"}, "tie_embeddings", "no"),
        ({"norm": "layer"}, "norm", "layer"),
        ({"position": "learned"}, "position", "learned"),
        ({"ffn": "gelu"}, "ffn", "gelu"),
        ({"ffn_options": {1: 2}}, "ffn_options.1", None),
        ({"norm_options": {1: 2}}, "norm_options.1", None),
        ({"implementation": "slow"}, "implementation", "slow"),
    ],
)
def test_an_invalid_value_is_rejected(
    change: dict[str, Any], key: str, found: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that the config itself checks
    with pytest.raises(UsageError) as rejection:
        ModelConfig(**{**BASE, **change})
    assert (rejection.value.key, rejection.value.found) == (key, found)
    assert len(str(rejection.value)) < 110


def test_the_message_about_an_invalid_value_states_expected_and_found() -> None:
    with pytest.raises(UsageError, match=r"^rope_theta must be a positive number, but is nan$"):
        ModelConfig(**BASE, rope_theta=float("nan"))


def test_an_odd_head_size_is_allowed_without_rope() -> None:
    assert ModelConfig(**{**BASE, "d_model": 20}, position="none").d_head == 5


def test_plain_fields_read_back_to_an_equal_config() -> None:
    config = ModelConfig(**BASE, norm="post", num_kv_heads=2, rope_theta=123.0)
    assert build(ModelConfig, config.to_dict(), source="config.json") == config


@pytest.mark.parametrize("implementation", ["fused", "reference"])
@pytest.mark.parametrize("choice", CHOICES)
def test_weight_shapes_are_those_of_the_built_model(choice: str, implementation: str) -> None:
    for d_ff in (None, 48):
        config = small_config(choice, implementation=implementation, d_ff=d_ff)
        weights = TransformerLM(config).state_dict()
        assert weight_shapes(config) == {name: tuple(weight.shape) for name, weight in weights.items()}
