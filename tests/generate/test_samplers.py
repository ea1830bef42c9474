"""Samplers are registered functions of probabilities; generation with any of them equals the reference."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bytewright.errors import DivergenceError, UsageError
from bytewright.generate import SamplingConfig, generate
from bytewright.generate.reference import generate_reference
from bytewright.generate.sampling import next_token_probabilities
from bytewright.model import ModelConfig, TransformerLM
from bytewright.registry import samplers
from bytewright.train.session.resume_policy import find_changes
from rejection import rejects
from runs import make_config

MODEL = ModelConfig(vocab_size=40, context_length=16, d_model=16, num_layers=1, num_heads=2)


def keep_odd(probabilities: Tensor, *, factor: float = 0.0) -> Tensor:
    """Multiply the weights of even ids, which are not normalised then."""
    weights = probabilities.clone()
    weights[..., ::2] *= factor
    return weights


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    samplers.register("test_odd")(keep_odd)
    samplers.register("test_none")(lambda probabilities: 0 * probabilities)
    samplers.register("test_first")(lambda probabilities: probabilities[..., :1])
    yield
    for name in ("test_odd", "test_none", "test_first"):
        samplers.remove(name)


@pytest.mark.parametrize(("name", "option"), [("top_k", "k"), ("top_p", "p"), ("min_p", "p")])
def test_a_built_in_sampler_gives_the_same_bits_by_field_and_by_name(name: str, option: str) -> None:
    torch.manual_seed(0)
    logits, value = torch.randn(5, 40), 3 if name == "top_k" else 0.25
    by_field = SamplingConfig(temperature=0.8, **{name: value})  # type: ignore[arg-type]
    by_name = SamplingConfig(temperature=0.8, sampler=name, sampler_options={option: value})
    assert torch.equal(next_token_probabilities(logits, by_field), next_token_probabilities(logits, by_name))


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p", "test_odd"])
def test_generation_with_a_sampler_equals_the_reference(name: str) -> None:
    torch.manual_seed(0)
    model = TransformerLM(MODEL)
    sampling = SamplingConfig(max_new_tokens=12, sampler=name, seed=3)
    prompts = [[1, 2, 3], [4]]
    written = generate(model, prompts, sampling)
    assert written == [generate_reference(model, prompt, sampling, row) for row, prompt in enumerate(prompts)]
    if name == "test_odd":
        assert all(id % 2 for id in itertools.chain.from_iterable(one.ids for one in written))


def test_the_result_of_a_sampler_is_normalised() -> None:
    sampling = SamplingConfig(sampler="test_odd", sampler_options={"factor": 0.5})
    probabilities = next_token_probabilities(torch.zeros(3, 4), sampling)
    torch.testing.assert_close(probabilities, torch.tensor([[1 / 6, 1 / 3, 1 / 6, 1 / 3]]).expand(3, 4))


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"sampler": "test_od"}, "sampler"),
        ({"sampler": "test_odd", "sampler_options": {"facto": 1.0}}, "sampler_options.facto"),
        ({"sampler": "test_odd", "sampler_options": {"factor": "half"}}, "sampler_options.factor"),
        ({"sampler": "test_odd", "temperature": 0.0}, "sampler"),
        ({"sampler_options": {"factor": 1.0}}, "sampler"),
        ({"sampler": "top_k", "sampler_options": {"k": 0}}, "sampler_options.k"),
        ({"sampler": "top_p", "sampler_options": {"p": float("nan")}}, "sampler_options.p"),
        ({"sampler": "min_p", "sampler_options": {"p": -0.5}}, "sampler_options.p"),
    ],
)
def test_an_invalid_sampler_is_rejected(fields: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingConfig(**fields)
    assert caught.value.key == key


def test_a_sampler_that_leaves_no_token_or_another_shape_is_reported() -> None:
    model = TransformerLM(MODEL)
    with rejects(DivergenceError, found="test_none"):
        generate(model, [[1]], SamplingConfig(sampler="test_none"))
    with rejects(UsageError, key="sampler"):
        generate(model, [[1]], SamplingConfig(sampler="test_first"))


def test_the_sampler_of_a_run_may_change_on_resume(tmp_path: Path) -> None:
    config = make_config(tmp_path, sampler={"name": "test_odd", "options": {"factor": 0.5}})
    assert config.sampler.options == {"factor": 0.5}
    before = {"seed": 0, "sampler": {"name": "test_odd", "options": {"factor": 0.5}}}
    assert find_changes(before, {"seed": 0, "sampler": {"name": "top_p", "options": {"p": 0.5}}}) == {}
