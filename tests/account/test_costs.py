"""Costs of updates, caches and formulas, and predictions, equal counted or measured values."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from shapes import model_configs
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from bytewright.account import (
    DEVICES,
    PRESETS,
    TrainingSetup,
    account,
    count_flops,
    count_parameters,
    find_device,
    inference_memory,
    measure_device,
    predict_training,
    roofline,
    textbook_estimate,
    time_on,
    update_cost,
)
from bytewright.account.generation import flops_of_token
from bytewright.account.time import least_seconds
from bytewright.generate.decoder import KeyValueCache
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.costs import Precision
from bytewright.optim.reference import AdamW, Muon

BASE = PRESETS["base"]


class ElementwiseOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts one operation for each result of an elementwise operation and for each summand."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        moves_only = func.is_view or any(word in name for word in ("copy", "zeros", "mm", "detach"))
        counted = args[0] if "sum" in name else result
        if not moves_only and isinstance(counted, torch.Tensor) and counted.numel() > 1:
            self.count += counted.numel()
        return result


def test_the_operations_of_an_adamw_step_are_counted_exactly() -> None:
    weight = Parameter(torch.ones(7, 5))
    optimizer = AdamW([weight], weight_decay=0.1)
    weight.grad = torch.ones(7, 5)
    with ElementwiseOperations() as operations:  # type: ignore[no-untyped-call]
        optimizer.step()
    assert operations.count == AdamW.count_flops((7, 5))[1] == 14 * 35


@pytest.mark.parametrize("shape", [(5, 5), (4, 9), (9, 4)])
def test_the_operations_of_a_muon_step_are_counted_exactly(shape: tuple[int, int]) -> None:
    weight = Parameter(torch.ones(shape))
    optimizer = Muon([weight], weight_decay=0.1)
    weight.grad = torch.ones(shape)
    of_products, of_elements = Muon.count_flops(shape)
    with FlopCounterMode(display=False) as products, ElementwiseOperations() as operations:  # type: ignore[no-untyped-call]
        optimizer.step()
    assert products.get_total_flops() == of_products
    assert operations.count == of_elements


@given(model_configs())
def test_muon_updates_the_matrices_of_the_blocks(config: ModelConfig) -> None:
    model = TransformerLM(config, device="meta")
    in_blocks = [
        tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if name.startswith("layers.0.") and parameter.ndim == 2
    ]
    taken = config.num_layers * sum(rows * columns for rows, columns in in_blocks)
    rest = count_parameters(config).total - taken
    matrices = sum(sum(Muon.count_flops(shape)) for shape in in_blocks)
    assert update_cost(config, "muon").flops == 14 * rest + config.num_layers * matrices


@settings(max_examples=20)
@given(model_configs())
def test_the_cache_is_as_large_as_predicted(config: ModelConfig) -> None:
    cache = KeyValueCache(config, batch_size=3, capacity=config.context_length, dtype=torch.bfloat16)
    assert inference_memory(config, batch_size=3).cache == cache.num_bytes
    assert inference_memory(config, batch_size=3, precision="fp32").cache == 2 * cache.num_bytes


@given(model_configs())
def test_flops_of_single_tokens_sum_to_causal_flops(config: ModelConfig) -> None:
    one_by_one = sum(flops_of_token(config, position) for position in range(config.context_length))
    assert one_by_one == count_flops(config, causal=True).forward


@given(model_configs())
def test_the_printed_formula_of_the_parameters_gives_their_number(config: ModelConfig) -> None:
    textbook = textbook_estimate(config)
    sizes = {
        "L": config.num_layers, "V": config.vocab_size, "d": config.d_model, "f": config.ffn_width,
        "h": config.d_head, "c": config.kv_heads * config.d_head, "T": config.context_length,
        "H": config.num_heads,
    }  # fmt: skip
    written = str(textbook.parameters_formula)
    assert _evaluate(written, sizes) == count_parameters(config).total
    assert _evaluate(str(textbook.per_sequence_formula), sizes) == textbook.a


def _evaluate(formula: str, sizes: dict[str, int]) -> int:
    powers = {"²": "**2", "³": "**3"}
    for power, spelled in powers.items():
        formula = formula.replace(power, spelled)
    value: int = eval(formula.replace("·", "*"), {}, sizes)
    return value


def test_the_textbook_memory_is_linear_and_its_largest_batch_fits() -> None:
    textbook = textbook_estimate(PRESETS["gpt2-xl"])
    assert textbook.b == 16 * count_parameters(PRESETS["gpt2-xl"]).total
    assert textbook.peak(3) - textbook.peak(2) == textbook.a
    largest = textbook.largest_batch(80e9)
    assert textbook.peak(largest) <= 80e9 < textbook.peak(largest + 1)
    assert textbook.largest_batch(1e9) == 0


def test_products_are_arithmetic_bound_and_elementwise_parts_memory_bound() -> None:
    parts = {part.name: part for part in roofline(PRESETS["gpt2-xl"], DEVICES["h100"], batch_size=16)}
    assert parts["w1 products"].bound == "arithmetic"
    for name in ("norms and residual sums", "feed-forward gate", "loss", "update"):
        assert parts[name].bound == "memory"
    balance = DEVICES["h100"].balance("bf16")
    for part in parts.values():
        assert (part.intensity >= balance) == (part.bound == "arithmetic")


def test_a_head_costs_what_its_columns_cost_aligned_or_not() -> None:
    def head(precision: Precision, vocab_size: int) -> float:
        config = dataclasses.replace(PRESETS["gpt2-small"], vocab_size=vocab_size)
        parts = roofline(config, DEVICES["h100"], batch_size=16, precision=precision)
        return next(part for part in parts if part.name == "head products").seconds

    assert head("fp32", 50_257) / head("fp32", 50_304) == pytest.approx(50_257 / 50_304)
    assert head("bf16", 50_257) / head("bf16", 50_304) == pytest.approx(50_257 / 50_304)


def test_twice_the_batch_takes_less_than_twice_the_time() -> None:
    one, two = (least_seconds(roofline(BASE, DEVICES["h100"], batch_size=size)) for size in (64, 128))
    assert one < two < 2 * one


def test_a_stated_utilisation_decides_the_time() -> None:
    counted = account(BASE, batch_size=64)
    time = time_on(counted, DEVICES["a100"], rate="bf16", mfu=0.4)
    assert time.seconds_per_step == pytest.approx(counted.flops.training / (0.4 * 312e12))
    assert time.tokens_per_second is not None
    assert time.days_for(1e9) == pytest.approx(1e9 / time.tokens_per_second / 86_400)


def test_this_machine_has_rates_and_a_memory() -> None:
    device = measure_device("cpu")
    assert device.is_measured
    assert device.peak("fp32") > 1e8
    assert device.bytes_per_second > 1e7
    assert device.memory_bytes > 2**28


def test_a_run_on_a_known_machine_is_predicted_as_it_was_measured() -> None:
    training = TrainingSetup(
        batch_size=256, num_tokens=10**9, precision="bf16", compiled=True, device=find_device("h200")
    )
    predicted = predict_training(BASE, training)
    assert predicted["parameters"] == 22_696_448
    assert predicted["tokens_per_second"] == pytest.approx(3.84e6, rel=0.15)
    assert predicted["seconds"] == pytest.approx(261, rel=0.15)


def test_a_speed_on_an_unknown_machine_is_not_predicted() -> None:
    predicted = predict_training(BASE, TrainingSetup(batch_size=8, num_tokens=10**9, device_kind="cpu"))
    assert predicted["flops_per_token"] == 111_722_496
    assert predicted["tokens_per_second"] is None
    assert predicted["seconds"] is None


def test_an_account_is_json_with_exact_integers(tmp_path: Any) -> None:
    huge = dataclasses.replace(PRESETS["gpt2-xl"], d_model=2**20, num_heads=2**10, num_layers=400, d_ff=2**22)
    figures = account(huge, batch_size=2**20).to_dict()
    assert figures["parameters"]["total"] > 10**15
    assert isinstance(figures["training"]["fused, bf16, eager"]["peak"], int)
