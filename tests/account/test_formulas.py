"""The formulas equal what a built model has and what the library counts while it runs."""

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bytewright.account import count_flops, count_parameters, flops_utilisation, training_flops_per_token
from bytewright.model import ModelConfig, TransformerLM

SMALL = ModelConfig(
    vocab_size=37,
    context_length=12,
    d_model=24,
    num_layers=2,
    num_heads=4,
    d_ff=40,
    implementation="reference",
)
BASE = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
CHOICES: list[dict[str, object]] = [
    {},
    {"norm": "post"},
    {"norm": "none"},
    {"position": "none"},
    {"ffn": "silu"},
    {"ffn": "silu", "d_ff": None},
    {"tie_embeddings": True},
    {"qk_norm": True},
    {"num_kv_heads": 2},
    {"num_kv_heads": 1, "qk_norm": True, "tie_embeddings": True, "norm": "post", "ffn": "silu"},
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_the_parameter_count_is_that_of_the_built_model(choice: dict[str, object]) -> None:
    config = dataclasses.replace(SMALL, **choice)  # type: ignore[arg-type]
    model = TransformerLM(config, device="meta")
    count = count_parameters(config)
    assert count.total == sum(p.numel() for p in model.parameters())
    in_blocks = sum(p.numel() for name, p in model.named_parameters() if name.startswith("layers."))
    assert count.blocks == in_blocks
    assert count.without_embeddings == count.total - model.token_embeddings.weight.numel()


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize(("batch_size", "num_tokens"), [(1, 12), (3, 5)])
def test_the_flop_count_is_what_the_library_counts(
    choice: dict[str, object], batch_size: int, num_tokens: int
) -> None:
    config = dataclasses.replace(SMALL, **choice)  # type: ignore[arg-type]
    model = TransformerLM(config)
    ids = torch.zeros(batch_size, num_tokens, dtype=torch.long)
    expected = count_flops(config, num_tokens, batch_size)
    with FlopCounterMode(display=False) as forward:
        logits = model(ids)
    assert forward.get_total_flops() == expected.forward
    with FlopCounterMode(display=False) as backward:
        torch.autograd.backward(logits.sum())
    assert backward.get_total_flops() == expected.backward
    assert expected.training == expected.forward + expected.backward


def test_the_base_experiment_has_its_published_sizes() -> None:
    count = count_parameters(BASE)
    assert count.total == 22_696_448
    assert count.blocks == 12_455_936
    assert count.attention + count.feed_forward == 12_451_840
    assert count.without_embeddings == 17_576_448
    assert count.without_embeddings_and_head == 12_456_448
    assert round(training_flops_per_token(BASE) / 1e6, 1) == 111.7


def test_attention_grows_from_a_sliver_to_more_than_half_with_the_context() -> None:
    xl = ModelConfig(vocab_size=50_257, context_length=1024, d_model=1600, num_layers=48, num_heads=25)

    def share(context_length: int) -> float:
        flops = count_flops(dataclasses.replace(xl, context_length=context_length))
        return (flops.attention_scores + flops.attention_weighting) / flops.forward

    assert share(1024) < 0.1
    assert share(16_384) > 0.5


def test_utilisation_is_work_done_over_work_possible() -> None:
    assert flops_utilisation(BASE, 1e6, training_flops_per_token(BASE) * 2e6) == pytest.approx(0.5)
