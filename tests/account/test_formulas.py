"""Parameters and FLOPs equal those of a built model exactly."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import model_configs
from torch.utils.flop_counter import FlopCounterMode

from bytewright.account import (
    PRESETS,
    count_flops,
    count_parameters,
    flops_utilisation,
    list_matmuls,
    training_flops_per_token,
)
from bytewright.account.flops import growth
from bytewright.model import ModelConfig, TransformerLM
from model_choices import CHOICES, small_config

BASE = PRESETS["base"]


def assert_parameters_are_counted(config: ModelConfig) -> None:
    model = TransformerLM(config, device="meta")
    count = count_parameters(config)
    assert count.total == sum(p.numel() for p in model.parameters())
    in_blocks = sum(p.numel() for name, p in model.named_parameters() if name.startswith("layers."))
    assert count.blocks == in_blocks
    assert count.without_embeddings == count.total - model.token_embeddings.weight.numel()
    head = 0 if model.lm_head is None else model.lm_head.weight.numel()
    assert count.without_embeddings_and_head == count.without_embeddings - head


def assert_flops_are_counted(config: ModelConfig, batch_size: int, num_tokens: int) -> None:
    model = TransformerLM(dataclasses.replace(config, implementation="reference"), device="meta")
    ids = torch.zeros(batch_size, num_tokens, dtype=torch.long, device="meta")
    expected = count_flops(config, num_tokens, batch_size)
    with FlopCounterMode(display=False) as forward:
        logits = model(ids)
    assert forward.get_total_flops() == expected.forward
    with FlopCounterMode(display=False) as backward:
        torch.autograd.backward(logits.sum())
    assert backward.get_total_flops() == expected.backward
    assert expected.training == expected.forward + expected.backward


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("implementation", ["reference", "fused"])
def test_the_parameter_count_is_that_of_the_built_model(choice: str, implementation: str) -> None:
    assert_parameters_are_counted(small_config(choice, implementation=implementation))


@settings(max_examples=40)
@given(model_configs())
def test_the_parameter_count_is_that_of_any_built_model(config: ModelConfig) -> None:
    assert_parameters_are_counted(config)


@pytest.mark.parametrize("choice", CHOICES)
def test_the_flop_count_equals_that_of_the_library(choice: str) -> None:
    assert_flops_are_counted(small_config(choice), batch_size=3, num_tokens=5)


@settings(max_examples=25)
@given(model_configs(), st.integers(2, 5), st.data())
def test_the_flop_count_of_any_shape_equals_that_of_the_library(
    config: ModelConfig, batch_size: int, data: st.DataObject
) -> None:
    assert_flops_are_counted(config, batch_size, data.draw(st.integers(2, config.context_length)))


@given(model_configs(), st.integers(1, 5))
def test_the_products_add_up_to_the_count(config: ModelConfig, batch_size: int) -> None:
    products = list_matmuls(config, batch_size=batch_size)
    count = count_flops(config, batch_size=batch_size)
    assert sum(product.flops for product in products) == count.forward
    assert sum(count.shares().values()) == pytest.approx(1)


@given(model_configs())
def test_causal_attention_counts_each_pair_that_may_attend_once(config: ModelConfig) -> None:
    length, full, causal = config.context_length, count_flops(config), count_flops(config, causal=True)
    pairs = sum(1 for query in range(length) for key in range(length) if key <= query)
    assert causal.attention_scores == config.num_layers * 2 * pairs * config.d_model
    assert causal.attention_weighting == causal.attention_scores
    assert causal.feed_forward == full.feed_forward
    assert causal.head == full.head


def test_the_base_experiment_has_its_published_sizes() -> None:
    count = count_parameters(BASE)
    assert count.total == 22_696_448
    assert count.blocks == 12_455_936
    assert count.attention + count.feed_forward == 12_451_840
    assert count.without_embeddings == 17_576_448
    assert count.without_embeddings_and_head == 12_456_448
    assert round(training_flops_per_token(BASE) / 1e6, 1) == 111.7


def test_shares_move_with_size_and_context() -> None:
    shares = {(row.name, row.context_length): row.shares() for row in growth()}
    for name in ("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl"):
        assert shares[name, 1024]["attention"] < 0.12
        assert shares[name, 16_384]["attention"] > 0.5
    heads = [shares[name, 1024]["head"] for name in ("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl")]
    assert heads == sorted(heads, reverse=True)


@pytest.mark.parametrize("changes", [{"d_model": 2**20, "num_heads": 2**10, "num_layers": 400}])
def test_huge_sizes_are_counted_exactly(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(PRESETS["gpt2-xl"], d_ff=None, **changes)
    count = count_parameters(config)
    assert count.total > 10**15
    assert (
        count.total
        == 2 * 50_257 * 2**20 + 400 * (4 * 2**40 + 3 * 2**20 * config.ffn_width + 2 * 2**20) + 2**20
    )
    assert count_flops(config, batch_size=10**6).training > 10**24


def test_utilisation_is_work_done_over_work_possible() -> None:
    assert flops_utilisation(BASE, 1e6, training_flops_per_token(BASE) * 2e6) == pytest.approx(0.5)
