"""Every part costs what it states, and a part that states nothing is measured."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bytewright.account import account, count_flops, count_parameters, predict_training, training_memory
from bytewright.account.generation import flops_of_token, inference_memory
from bytewright.account.memory import WORKSPACE
from bytewright.account.predict import TrainingSetup
from bytewright.account.tracing import AccountWarning, costs_of, trace_part
from bytewright.model import Linear, ModelConfig, MultiHeadSelfAttention, SwiGLU, TransformerLM
from bytewright.model.config import PARTS
from bytewright.model.costs import Precision, StepShape
from bytewright.model.parts import class_for, stated
from bytewright.registry import attentions, feed_forwards, norms, positions
from model_choices import CHOICES, SMALL, small_config
from runs import rerun_unchecked

KINDS: list[Any] = ["norm", "attention", "ffn"]


class SquaredReLU(nn.Module):
    def __init__(self, d_model: int, d_ff: int, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.up, self.down = Linear(d_model, d_ff, device, dtype), Linear(d_ff, d_model, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu().square())


class Doubled(SwiGLU):
    """Inherits the costs of `SwiGLU`, which are not its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(super().forward(x))


class MatrixNorm(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.mix = Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class Twice(MultiHeadSelfAttention):
    def forward(self, x: Tensor, token_positions: Tensor | None = None) -> Tensor:
        return super().forward(super().forward(x))


class Untraceable(SquaredReLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum().item() > 0 else x


class Learned(nn.Module):
    place = "embeddings"

    def __init__(self, d_model: int, max_seq_len: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(max_seq_len, d_model))

    def forward(self, x: Tensor, token_positions: Tensor) -> Tensor:
        return x + self.table[token_positions]


USERS: list[tuple[Any, str, type[nn.Module]]] = [
    (feed_forwards, "relu2", SquaredReLU),
    (feed_forwards, "doubled", Doubled),
    (feed_forwards, "untraceable", Untraceable),
    (norms, "matrix", MatrixNorm),
    (attentions, "twice", Twice),
    (positions, "learned", Learned),
]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for registry, name, part in USERS:
        registry.register(name)(part)
    yield
    for registry, name, _ in USERS:
        registry.remove(name)
    trace_part.cache_clear()


def shape(config: ModelConfig, precision: Precision = "fp32") -> StepShape:
    return StepShape(config=config, batch_size=3, num_tokens=16, precision=precision)


def larger(choice: str, **changes: Any) -> ModelConfig:
    """Return a config whose tensors are large compared with those that the formulas leave out."""
    sizes = {"d_model": 256, "num_heads": 8, "d_ff": 640, "context_length": 64}
    if "num_kv_heads" in CHOICES[choice]:
        changes = {"num_kv_heads": 2, **changes}
    return small_config(choice, **sizes, **changes)


@pytest.mark.parametrize("implementation", ["reference", "fused"])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_built_in_part_has_the_stated_products(choice: str, implementation: Any) -> None:
    config = small_config(choice, implementation=implementation)
    values = {"d": config.d_model, "f": config.ffn_width, "h": config.d_head}
    values["c"] = config.kv_heads * config.d_head
    for kind in KINDS:
        if stated(class_for(PARTS[kind].class_of(config), implementation), "costs") is None:
            continue
        costs, traced = costs_of(kind, shape(config)), trace_part(kind, shape(config))
        of_formula = sum(
            factor * math.prod(values[letter] for letter in letters)
            for letters, factor in costs.parameters.items()
        )
        assert of_formula == traced.parameters.get("", 0), kind
        assert sum(one.flops for one in costs.matmuls) == sum(one.flops for one in traced.matmuls), kind


def test_every_built_in_part_keeps_and_moves_the_stated_bytes(request: pytest.FixtureRequest) -> None:
    if rerun_unchecked(request):  # run-time type checks keep references to tensors
        return
    kinds_of: dict[Any, list[Any]] = {"reference": KINDS, "fused": ["norm", "ffn"]}
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    for choice, precision, implementation in itertools.product(CHOICES, precisions, kinds_of):
        config = larger(choice, implementation=implementation)
        x = StepShape(config=config, batch_size=3, num_tokens=64, precision=precision, device="cpu")
        for kind in kinds_of[implementation]:
            traced, costs = trace_part(kind, x), costs_of(kind, x)
            expected = sum(one.num_bytes for one in traced.kept)
            kept = sum(one.num_bytes for one in costs.kept)
            assert kept == pytest.approx(expected, rel=0.02), (choice, precision, implementation, kind)
            if kind == "norm" and costs is not traced:
                moved = sum(one.num_bytes for one in costs.passes)
                assert moved == pytest.approx(traced.passes[0].num_bytes, rel=0.05), (choice, precision)


@pytest.mark.parametrize(
    "changes",
    [
        {"ffn": "relu2"},
        {"ffn": "doubled"},
        {"norm_kind": "matrix"},
        {"attention": "twice"},
        {"position": "learned"},
        {"ffn": "relu2", "norm_kind": "matrix", "attention": "twice", "norm": "post"},
    ],
)
def test_parameters_and_flops_of_parts_without_statements_are_exact(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(SMALL, **changes)
    model = TransformerLM(dataclasses.replace(config, implementation="reference"), device="meta")
    assert count_parameters(config).total == sum(one.numel() for one in model.parameters())
    ids = torch.zeros(3, 16, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(ids)
    assert count_flops(config, batch_size=3).forward == counter.get_total_flops()
    figures = account(config, batch_size=3).to_dict()
    assert sum(figures["flops"]["by_component"].values()) == figures["flops"]["forward"]
    assert sum(figures["flops"]["shares"].values()) == pytest.approx(1)
    predicted = predict_training(config, TrainingSetup(batch_size=3))
    assert predicted["parameters"] == count_parameters(config).total


def test_the_memory_of_a_part_without_a_statement_is_that_of_the_same_part_with_one() -> None:
    feed_forwards.register("unstated")(type("Unstated", (SwiGLU,), {}))
    try:
        base = larger("default", implementation="reference")
        for precision in ("fp32", "bf16"):
            stated_peak, traced_peak = (
                training_memory(config, batch_size=8, precision=precision).peak - WORKSPACE["cuda"]
                for config in (base, dataclasses.replace(base, ffn="unstated"))
            )
            assert traced_peak == pytest.approx(stated_peak, rel=0.1)
    finally:
        feed_forwards.remove("unstated")


def test_an_attention_without_a_statement_has_no_cache() -> None:
    config = dataclasses.replace(SMALL, attention="twice")
    assert inference_memory(config).cache == 0
    assert flops_of_token(config, 9) == count_flops(config, num_tokens=10).forward


def test_a_part_that_cannot_be_traced_is_counted_by_its_parameters_with_a_warning() -> None:
    config = dataclasses.replace(SMALL, ffn="untraceable")
    with pytest.warns(AccountWarning, match="the costs of 'untraceable' are not counted"):
        counted = count_flops(config)
    assert counted.feed_forward == 0
    assert count_parameters(config).feed_forward == 2 * 2 * SMALL.d_model * SMALL.ffn_width
