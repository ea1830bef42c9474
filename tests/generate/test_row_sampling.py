"""Choosing by row returns the tokens that each row's own settings choose alone."""

from __future__ import annotations

import pytest
import torch

from bytewright.errors import UsageError
from bytewright.generate import SamplingConfig
from bytewright.generate.row_sampling import RowSettings, SamplingKind, choose_by_row, filter_by_row, kind_of
from bytewright.generate.sampling import NO_TOKEN, choose_tokens
from rejection import rejects

CONFIGS = [
    SamplingConfig(temperature=0.0),
    SamplingConfig(),
    SamplingConfig(temperature=0.3),
    SamplingConfig(top_k=1),
    SamplingConfig(top_k=5, temperature=1.5),
    SamplingConfig(top_p=0.5),
    SamplingConfig(top_p=0.9, top_k=10),
    SamplingConfig(min_p=0.2),
    SamplingConfig(top_k=30, top_p=0.8, min_p=0.05, temperature=2.0),
    SamplingConfig(temperature=1e-300),
]


def make_rows(num_repeats: int = 1) -> tuple[torch.Tensor, list[SamplingConfig], RowSettings, torch.Tensor]:
    configs = CONFIGS * num_repeats
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(len(configs), 50, generator=generator, dtype=torch.float64)
    uniforms = torch.rand(len(configs), generator=generator)
    settings = RowSettings.greedy(len(configs))
    settings.write(torch.arange(len(configs)), configs)
    return logits, configs, settings, uniforms


def test_each_row_gets_the_token_of_its_own_settings() -> None:
    logits, configs, settings, uniforms = make_rows(100)
    chosen = choose_by_row(logits, settings, uniforms, SamplingKind.FILTERED)
    expected = [choose_tokens(*it) for it in zip(logits, configs, uniforms, strict=True)]
    assert chosen.tolist() == [int(id) for id in expected]


def test_a_higher_kind_chooses_the_same_tokens_for_rows_of_a_lower_kind() -> None:
    logits, configs, settings, uniforms = make_rows(20)
    by_kind = {kind: choose_by_row(logits, settings, uniforms, kind) for kind in SamplingKind}
    for row, config in enumerate(configs):
        ids = {int(by_kind[kind][row]) for kind in SamplingKind if kind >= kind_of(config)}
        assert len(ids) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(dtype: torch.dtype) -> None:
    logits, _, settings, _ = make_rows(3)
    logits = torch.nn.functional.pad(logits, (0, 1000), value=-2.0).to(dtype)
    weights = torch.softmax(logits.float(), dim=-1)
    together = filter_by_row(weights, settings)
    for row in range(len(logits)):
        rows = torch.tensor([row])
        assert torch.equal(torch.softmax(logits[rows].float(), dim=-1), weights[rows])
        assert torch.equal(filter_by_row(weights[rows], settings.at(rows)), together[rows])


@pytest.mark.parametrize("kind", SamplingKind)
def test_only_the_row_with_infinite_logits_gets_no_token(kind: SamplingKind) -> None:
    logits, _, settings, uniforms = make_rows()
    expected = choose_by_row(logits, settings, uniforms, kind)
    for value in (torch.nan, torch.inf):
        broken = logits.clone()
        broken[3, 7] = value
        chosen = choose_by_row(broken, settings, uniforms, kind)
        assert chosen[3] == NO_TOKEN
        assert chosen[:3].tolist() + chosen[4:].tolist() == expected[:3].tolist() + expected[4:].tolist()


def test_other_samplers_are_rejected() -> None:
    with rejects(UsageError, key="sampler", found="min_p"):
        kind_of(SamplingConfig(sampler="min_p"))
