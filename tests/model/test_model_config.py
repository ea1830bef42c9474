from __future__ import annotations

import dataclasses
from typing import Any

import jaxtyping
import pytest

from bytewright.errors import UsageError
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.config import weight_shapes
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


def test_the_plain_width_is_four_times_the_model() -> None:
    assert ModelConfig(**BASE, ffn="silu").ffn_width == 192


@pytest.mark.parametrize("ffn", ["swiglu", "silu"])
def test_an_explicit_width_wins(ffn: Any) -> None:
    assert ModelConfig(**BASE, ffn=ffn, d_ff=100).ffn_width == 100


def test_derived_sizes_follow_a_change_of_the_model() -> None:
    config = ModelConfig(**BASE)
    wider = dataclasses.replace(config, d_model=512, num_heads=16)
    assert (wider.ffn_width, wider.kv_heads, wider.d_head) == (1344, 16, 32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"d_model": 50}, ["d_model (50)", "num_heads (4)"]),
        ({"num_heads": 0}, ["num_heads", "positive", "0"]),
        ({"num_layers": -1}, ["num_layers", "-1"]),
        ({"vocab_size": 2.5}, ["vocab_size", "2.5"]),
        ({"context_length": True}, ["context_length", "True"]),
        ({"d_ff": 0}, ["d_ff", "0"]),
        ({"num_kv_heads": 3}, ["num_heads (4)", "num_kv_heads (3)"]),
        ({"d_model": 20}, ["even", "5"]),
        ({"rope_theta": 0.0}, ["rope_theta", "0.0"]),
        ({"rope_theta": float("nan")}, ["rope_theta", "nan"]),
        ({"rope_theta": 10**400}, ["rope_theta", "positive number"]),
        ({"rope_theta": "x"}, ["rope_theta", "x"]),
        ({"tie_embeddings": "no"}, ["tie_embeddings", "true or false", "'no'"]),
        ({"norm": "layer"}, ["norm", "pre, post, none", "'layer'"]),
        ({"position": "learned"}, ["position", "rope, none"]),
        ({"ffn": "gelu"}, ["ffn", "swiglu, silu"]),
        ({"implementation": "slow"}, ["implementation", "fused, reference"]),
    ],
)
def test_an_impossible_shape_is_refused_in_one_sentence(
    change: dict[str, Any], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the check is to be the config's own
    with pytest.raises(UsageError) as refusal:
        ModelConfig.from_dict({**BASE, **change})
    message = str(refusal.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_an_odd_head_is_allowed_where_nothing_is_rotated() -> None:
    assert ModelConfig(**{**BASE, "d_model": 20}, position="none").d_head == 5


def test_an_unknown_option_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"unknown model option num_layer; did you mean num_layers\?"):
        ModelConfig.from_dict({**BASE, "num_layer": 3})
    with pytest.raises(UsageError, match="unknown model option zzz; known are vocab_size"):
        ModelConfig.from_dict({**BASE, "zzz": 3})


def test_a_missing_option_is_named() -> None:
    with pytest.raises(UsageError, match="'d_model' is missing"):
        ModelConfig.from_dict({key: value for key, value in BASE.items() if key != "d_model"})


def test_plain_fields_read_back_to_an_equal_config() -> None:
    config = ModelConfig(**BASE, norm="post", num_kv_heads=2, rope_theta=123.0)
    assert ModelConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("implementation", ["fused", "reference"])
@pytest.mark.parametrize("choice", CHOICES)
def test_weight_shapes_are_those_of_the_built_model(choice: str, implementation: str) -> None:
    for d_ff in (None, 48):
        config = small_config(choice, implementation=implementation, d_ff=d_ff)
        weights = TransformerLM(config).state_dict()
        assert weight_shapes(config) == {name: tuple(weight.shape) for name, weight in weights.items()}
