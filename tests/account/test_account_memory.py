"""Predicted memory equals the bytes of all storages that are alive after each operation of a step."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import large_configs

from bytewright.account import PRESETS, count_parameters, largest_batch, training_memory
from bytewright.account.devices import DEVICES
from bytewright.account.memory import ALLOWANCE, WORKSPACE
from bytewright.account.optimizers import eager_update_bytes
from bytewright.account.summary import PRECISIONS
from bytewright.account.time import roofline
from bytewright.errors import UsageError
from bytewright.model import ModelConfig
from bytewright.model.config import Implementation
from bytewright.model.costs import WIDE, Precision
from bytewright.model.fused import KERNEL_HEADS
from bytewright.registry import optimizers
from model_choices import PART_CHOICES
from rejection import rejects
from runs import rerun_unchecked

pytest.importorskip("triton", reason="Triton is not installed")

MIB = 2**20


def assert_peak_is_predicted(
    config: ModelConfig, batch_size: int, precision: Precision, **optimizer: Any
) -> None:
    from live_bytes import measure_step

    measured = measure_step(config, batch_size=batch_size, precision=precision, **optimizer)
    predicted = training_memory(config, batch_size=batch_size, precision=precision, **optimizer)
    peak = predicted.peak - WORKSPACE["cuda"]
    allowed = max(0.03 * measured.peak, 4 * MIB)  # workspaces of the matrix library are not simulated
    assert abs(peak - measured.peak) <= allowed, (
        f"predicted {peak:,} at {predicted.peak_moment.name}, "
        f"found {measured.peak:,} in {measured.phase} at {measured.operation}"
    )


def test_the_peak_of_an_eager_step_is_predicted_within_three_per_cent(
    request: pytest.FixtureRequest,
) -> None:
    if rerun_unchecked(request):
        return

    @settings(max_examples=40)
    @given(
        large_configs(), st.sampled_from(["reference", "fused"]), st.sampled_from(["fp32", "bf16"]),
        st.sampled_from([1, 8, 64, 256]),
    )  # fmt: skip
    def check(
        config: ModelConfig, implementation: Implementation, precision: Precision, batch_size: int
    ) -> None:
        assert_peak_is_predicted(
            dataclasses.replace(config, implementation=implementation), batch_size, precision
        )

    check()


def test_the_peak_of_every_update_rule_is_predicted(request: pytest.FixtureRequest) -> None:
    if rerun_unchecked(request):
        return
    small = ModelConfig(vocab_size=600, context_length=16, d_model=256, num_layers=2, num_heads=8, d_ff=768)
    for optimizer in optimizers:
        for implementation in ("fused", "reference"):
            if optimizer == "muon" and implementation == "fused":
                continue  # its products use bf16 only on a real GPU
            for config in (small, dataclasses.replace(small, vocab_size=20_000, implementation="reference")):
                assert_peak_is_predicted(
                    config, 1, "fp32", optimizer=optimizer, optimizer_implementation=implementation
                )


def test_the_traffic_of_an_eager_step_is_predicted_within_five_per_cent(
    request: pytest.FixtureRequest,
) -> None:
    if rerun_unchecked(request):
        return
    from live_bytes import measure_step

    shapes = (("base", 64), ("gpt2-small", 8))
    options: list[dict[str, Any]] = [
        {},
        {"norm": "post"},
        {"norm": "none"},
        {"qk_norm": True},
        *PART_CHOICES.values(),
    ]
    cases = list(itertools.product(shapes, PRECISIONS, options))
    for (name, batch_size), precision, changes in cases:
        config = dataclasses.replace(PRESETS[name], num_layers=3, **changes)
        parts = roofline(config, DEVICES["h200"], batch_size=batch_size, precision=precision, compiled=False)
        predicted = {part.name: part.num_bytes for part in parts if "products" not in part.name}
        predicted.pop("attention")
        moved = measure_step(config, batch_size=batch_size, precision=precision).moved
        if precision == "bf16":  # the rows of the loss are read and written inside its operator
            predicted.pop("loss")
        found = pytest.approx(sum(moved.values()), rel=0.05)
        assert sum(predicted.values()) == found, (name, precision, changes)


def test_the_traffic_of_every_eager_update_is_predicted(request: pytest.FixtureRequest) -> None:
    if rerun_unchecked(request):
        return
    from live_bytes import measure_step

    config = dataclasses.replace(PRESETS["base"], num_layers=2)
    for optimizer in optimizers:
        moved = measure_step(config, batch_size=1, optimizer=optimizer).moved["update"]
        moved -= 2 * WIDE * count_parameters(config).total  # gathering of the gradients
        predicted = eager_update_bytes(config, optimizer, "cpu")  # Muon's rounds use fp32 on a CPU
        assert predicted == pytest.approx(moved, rel=0.001), optimizer


def test_the_attention_kernel_has_blocks_for_all_heads_that_use_it() -> None:
    from bytewright.model.kernels import attention

    assert set(KERNEL_HEADS) <= attention.BLOCKS.keys()


@settings(max_examples=25)
@given(large_configs(), st.sampled_from(["fp32", "bf16"]), st.booleans())
def test_the_largest_batch_fits_and_one_more_does_not(
    config: ModelConfig, precision: Precision, compiled: bool
) -> None:
    def peak(batch_size: int) -> int:
        return training_memory(config, batch_size=batch_size, precision=precision, compiled=compiled).peak

    found = largest_batch(config, 80e9, precision=precision, compiled=compiled)
    usable = 80e9 * (1 - ALLOWANCE)
    assert found == 0 or peak(found) <= usable
    assert peak(found + 1) > usable


@settings(max_examples=25)
@given(large_configs(), st.sampled_from([1, 7, 64]))
def test_a_compiled_step_never_needs_more_memory_than_an_eager_one(
    config: ModelConfig, batch_size: int
) -> None:
    for precision in PRECISIONS:
        eager, compiled = (
            training_memory(config, batch_size=batch_size, precision=precision, compiled=compiled)
            for compiled in (False, True)
        )
        assert compiled.peak <= eager.peak
        assert compiled.activations <= eager.activations


def test_only_the_reference_keeps_attention_matrices() -> None:
    base = PRESETS["base"]
    reference = training_memory(dataclasses.replace(base, implementation="reference"), batch_size=32)
    assert reference.attention_matrices > 0.4 * reference.activations
    assert training_memory(base, batch_size=32).attention_matrices == 0


def test_an_empty_batch_is_rejected() -> None:
    with rejects(UsageError, key="batch_size", found=0):
        training_memory(PRESETS["base"], batch_size=0)
    with rejects(UsageError, key="num_tokens", found=0):
        training_memory(PRESETS["base"], num_tokens=0)
