"""A shape is proposed for any number of parameters, by a stated rule."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from bytewright.account import count_parameters, propose_shape
from bytewright.account.shapes import FEWEST, MOST, format_table
from bytewright.errors import UsageError
from bytewright.model import ModelConfig
from bytewright.registry import feed_forwards

NUMBERS = [FEWEST * 1.7**power for power in range(26)]


@pytest.mark.parametrize("number", [*NUMBERS, MOST])
def test_the_proposed_shape_has_the_requested_parameters(number: float) -> None:
    shape = propose_shape(number)
    count = count_parameters(shape)
    assert count.total == pytest.approx(number, rel=0.02)
    assert shape.d_model % 16 == 0
    assert shape.d_model % 128 == 0 or shape.d_model < 1024
    assert shape.d_head in (16, 32, 64, 128)
    assert 2 * count.blocks >= count.total
    if number > 1e7:
        assert 30 <= shape.d_model / shape.num_layers <= 250


@pytest.mark.parametrize("ffn", sorted(feed_forwards))
def test_given_settings_are_kept(ffn: str) -> None:
    shape = propose_shape(3e8, vocab_size=32_000, context_length=512, tie_embeddings=True, ffn=ffn)
    assert (shape.vocab_size, shape.context_length, shape.ffn) == (32_000, 512, ffn)
    assert shape.d_ff is None
    assert count_parameters(shape).total == pytest.approx(3e8, rel=0.02)


@pytest.mark.parametrize(
    ("number", "settings", "key"),
    [
        (1e3, {}, "parameters"),
        (float("nan"), {}, "parameters"),
        (1e15, {}, "parameters"),
        (1e9, {"num_layers": 4}, "num_layers"),
        (1e6, {"vocab_size": 50_257}, "vocab_size"),
    ],
)
def test_an_impossible_request_is_rejected(number: float, settings: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError) as caught:
        propose_shape(number, **settings)
    assert caught.value.key == key


def test_the_table_is_read_back_as_the_same_shape() -> None:
    shape = propose_shape(2e8, tie_embeddings=True, norm="post", rope_theta=5e5, ffn="silu")
    read = ModelConfig(**tomllib.loads(format_table(shape))["model"])
    assert count_parameters(read) == count_parameters(shape)
    assert read.to_dict() == shape.to_dict() | {"d_ff": shape.ffn_width}
