"""The filters keep the stated tokens, and draws follow the distribution."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bytewright.errors import UsageError
from bytewright.generate import SamplingConfig
from bytewright.generate.sampling import (
    NO_TOKEN,
    choose_tokens,
    draw,
    draw_uniforms,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    make_monotonic,
    next_token_probabilities,
)
from rejection import rejects


@st.composite
def distributions(draw_value: st.DrawFn) -> Tensor:
    """Rows of probabilities in float32, with ties and zeros among them."""
    size = draw_value(st.integers(1, 40))
    weights = draw_value(
        st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 50, 1000]), min_size=size, max_size=size)
    )
    if not any(weights):
        weights[0] = 1
    row = torch.tensor(weights, dtype=torch.float64)
    return (row / row.sum()).float()


@settings(max_examples=200)
@given(distributions(), st.floats(0.01, 1.0))
def test_top_p_keeps_the_smallest_set_whose_mass_reaches_p(probabilities: Tensor, p: float) -> None:
    filtered = keep_top_p(probabilities, p)
    kept = filtered > 0
    exact = probabilities.double()
    rounding = 1e-6
    assert exact[kept].sum() >= p - rounding
    # Without its least likely member the set does not reach p, so it is the smallest set.
    assert exact[kept].sum() - exact[kept].min() < p + rounding
    if not kept.all():
        assert exact[kept].min() >= exact[~kept].max()
    assert_scaled(filtered, probabilities, kept)


@settings(max_examples=100)
@given(distributions(), st.integers(1, 50))
def test_top_k_keeps_the_k_likeliest(probabilities: Tensor, k: int) -> None:
    filtered = keep_top_k(probabilities, k)
    kept = filtered > 0
    assert kept.sum() == min(k, int((probabilities > 0).sum()))
    if not kept.all():
        assert probabilities[kept].min() >= probabilities[~kept].max()
    assert_scaled(filtered, probabilities, kept)


@settings(max_examples=100)
@given(distributions(), st.floats(0.001, 1.0))
def test_min_p_keeps_tokens_near_the_likeliest(probabilities: Tensor, p: float) -> None:
    filtered = keep_min_p(probabilities, p)
    kept = filtered > 0
    assert torch.equal(kept, (probabilities >= p * probabilities.max()) & (probabilities > 0))
    assert_scaled(filtered, probabilities, kept)


def assert_scaled(filtered: Tensor, probabilities: Tensor, kept: Tensor) -> None:
    """Kept probabilities keep their ratios and sum to 1."""
    expected = torch.where(kept, probabilities.double(), 0.0)
    torch.testing.assert_close(filtered.double(), expected / expected.sum(), rtol=1e-5, atol=1e-7)


@settings(max_examples=200)
@given(distributions(), st.integers(0, 2**23 - 1))
def test_a_draw_selects_the_id_of_its_uniform_number(probabilities: Tensor, bits: int) -> None:
    uniform = bits / 2**23
    id = int(draw(probabilities, torch.tensor(uniform)))
    assert probabilities[id] > 0
    ends = probabilities.double().cumsum(0)
    assert ends[id] > uniform - 1e-6
    assert ends[id] - probabilities[id] <= uniform + 1e-6


@settings(max_examples=200)
@given(distributions(), st.integers(0, 2**23 - 1), st.integers(0, 2**32 - 1))
def test_sums_rounded_in_any_order_never_draw_what_has_no_probability(
    probabilities: Tensor, bits: int, seed: int
) -> None:
    """Parallel sums are rounded differently; this moves each up or down by a few bits."""
    generator = torch.Generator().manual_seed(seed)
    noise = 1 + (torch.rand(probabilities.shape, generator=generator) - 0.5) * 1e-6
    ends = make_monotonic(probabilities.cumsum(0) * noise, probabilities)
    assert (ends.diff() >= 0).all()
    assert (ends.diff()[probabilities[1:] == 0] == 0).all()
    id = int((ends <= bits / 2**23 * ends[-1]).sum())
    assert probabilities[id] > 0


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    count = 20_000
    ids = draw(probabilities.expand(count, 4), draw_uniforms(0, 0, count))
    shares = torch.bincount(ids, minlength=4) / count
    # Four standard deviations of a share are below 0.015 here; the seed is fixed.
    torch.testing.assert_close(shares, probabilities, atol=0.015, rtol=0)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7)])
def test_every_row_is_filtered_separately(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    logits = torch.randn(shape)
    config = SamplingConfig(temperature=0.8, top_k=5, top_p=0.8, min_p=0.05)
    together = next_token_probabilities(logits, config).reshape(-1, 7)
    for row, logits_of_row in zip(together, logits.reshape(-1, 7), strict=True):
        torch.testing.assert_close(row, next_token_probabilities(logits_of_row, config))


def test_each_filter_applies_to_the_result_of_the_previous_one() -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    # top-k leaves 4/7, 2/7, 1/7; of those, the first two reach 0.8; min-p of 0.6 then drops the second.
    two = next_token_probabilities(logits, SamplingConfig(top_k=3, top_p=0.8))
    torch.testing.assert_close(two, torch.tensor([2 / 3, 1 / 3, 0, 0]))
    one = next_token_probabilities(logits, SamplingConfig(top_k=3, top_p=0.8, min_p=0.6))
    torch.testing.assert_close(one, torch.tensor([1.0, 0, 0, 0]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_beyond_the_tokenizer_are_never_chosen(temperature: float) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 50.0, 60.0]).expand(64, 5)
    sampling = SamplingConfig(temperature=temperature, num_ids=3)
    assert choose_tokens(logits, sampling, torch.linspace(0, 0.99, 64)).max() == 2


def test_temperature_divides_the_scores() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    expected = (logits / 0.5).exp() / (logits / 0.5).exp().sum()
    torch.testing.assert_close(next_token_probabilities(logits, SamplingConfig(temperature=0.5)), expected)


def test_the_coldest_temperatures_take_the_likeliest_token_and_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 1.0001e4], [5.0, 7.0, 6.0]])
    uniforms = torch.tensor([0.99, 0.0])
    for temperature in (0.0, 1e-30, 1e-38, 1e-46, 5e-324):
        config = SamplingConfig(temperature=temperature)
        assert choose_tokens(logits, config, uniforms).tolist() == [2, 1]


def test_a_temperature_too_small_to_divide_by_shares_between_equals() -> None:
    probabilities = next_token_probabilities(torch.tensor([3.0, 1.0, 3.0]), SamplingConfig(temperature=1e-46))
    assert probabilities.tolist() == [0.5, 0.0, 0.5]


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits = torch.zeros(1000, dtype=torch.bfloat16)
    probabilities = next_token_probabilities(logits, SamplingConfig(top_p=0.5))
    assert probabilities.dtype == torch.float32
    assert (probabilities > 0).sum() == 500


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "how", [{"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}], ids=lambda how: str(how)
)
def test_logits_that_are_not_finite_choose_no_token(how: dict[str, Any], bad: float) -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0], [1.0, bad, 3.0], [-bad, -bad, -bad], [1.0, 2.0, 3.0]])
    config, uniforms = SamplingConfig(**how), torch.tensor([0.3, 0.3, 0.3, 0.9])
    chosen = choose_tokens(scores, config, uniforms).tolist()
    assert chosen[1:3] == [NO_TOKEN, NO_TOKEN]
    assert chosen[::3] == choose_tokens(scores[::3], config, uniforms[::3]).tolist()
    assert NO_TOKEN not in chosen[::3]


def test_ties_keep_the_first_ids() -> None:
    """Which of them are kept must not depend on the sorting algorithm."""
    kept = keep_top_p(torch.full((1000,), 1e-3, dtype=torch.float64), 0.5)
    assert kept.nonzero().flatten().tolist() == list(range(int((kept > 0).sum())))
    assert (kept > 0).sum() in (500, 501)


def test_no_uniform_number_is_rounded_up_to_one() -> None:
    numbers = draw_uniforms(0, 0, 1_000_000)
    assert torch.equal(numbers * 2**23, (numbers.double() * 2**23).round().float())


def test_uniform_numbers_depend_only_on_seed_and_row() -> None:
    numbers = draw_uniforms(7, 2, 1000)
    assert torch.equal(numbers[:10], draw_uniforms(7, 2, 10))
    keys = itertools.product([0, 1, 7, 2**32, 2**64 - 1], [0, 1, 7, 2**32])
    assert len({tuple(draw_uniforms(seed, row, 4).tolist()) for seed, row in keys}) == 20
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert numbers.mean().item() == pytest.approx(0.5, abs=4 / math.sqrt(12 * 1000))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_ids", 0),
        ("seed", 1.5),
        ("seed", None),
        ("seed", -3),
        ("max_new_tokens", 2.5),
        ("max_new_tokens", -1),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("min_p", 2.0),
    ],
)
def test_an_invalid_setting_is_rejected(key: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that the config itself checks
    with pytest.raises(UsageError) as rejection:
        SamplingConfig(**{key: value})
    assert rejection.value.key == key
    assert rejection.value.found is value


def test_a_stop_token_must_be_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with rejects(UsageError, key="stop_tokens"):
        SamplingConfig(stop_tokens=("<|endoftext|>",))  # type: ignore[arg-type]
