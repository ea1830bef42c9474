"""The roofline counts the traffic of each option, and predictions use it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from bytewright.account import (
    DEVICES,
    PRESETS,
    Device,
    StepPart,
    TrainingSetup,
    account,
    devices,
    roofline,
    time_on,
)
from bytewright.account.devices import Rate, find_known, peak_flops
from bytewright.account.predict import tokens_per_second, usual_efficiency
from bytewright.account.time import least_seconds
from bytewright.model.config import Implementation
from bytewright.model.costs import WIDE, Precision
from runs import TWO_CORES as CPU

BASE, H200 = PRESETS["base"], DEVICES["h200"]
NORMS, ON_Q_AND_K = "norms and residual sums", "norm and rotation of q and k"


def parts_of(
    device: Device = H200, changes: dict[str, Any] | None = None, **options: Any
) -> dict[str, StepPart]:
    config = dataclasses.replace(BASE, **(changes or {}))
    return {part.name: part for part in roofline(config, device, **({"batch_size": 8} | options))}


def test_the_cost_of_norms_follows_their_number() -> None:
    pre, post, none = (parts_of(changes={"norm": norm})[NORMS].num_bytes for norm in ("pre", "post", "none"))
    stream = 2 * 8 * 256 * 512
    assert pre - post == 10 * stream  # the one before the head
    assert none == 2 * BASE.num_layers * 6 * stream  # residual sums alone: two read, one written, each way
    assert none < post


@pytest.mark.parametrize("compiled", [True, False])
def test_a_norm_of_queries_and_keys_is_counted(compiled: bool) -> None:
    def moved(**changes: Any) -> int:
        parts = parts_of(changes=changes, precision="fp32", compiled=compiled)
        return parts[ON_Q_AND_K].num_bytes if ON_Q_AND_K in parts else 0

    assert moved(position="none") == 0
    assert 0 < moved() < moved(qk_norm=True)
    assert 0 < moved(position="none", qk_norm=True) <= moved(qk_norm=True)
    assert moved(num_kv_heads=8) == 0.75 * moved()  # the keys of half as many heads


@pytest.mark.parametrize("compiled", [True, False])
def test_only_our_attention_kernel_includes_the_rotation(compiled: bool) -> None:
    assert ON_Q_AND_K not in parts_of(compiled=compiled)
    assert ON_Q_AND_K in parts_of(changes={"context_length": 1024}, compiled=compiled)
    assert ON_Q_AND_K in parts_of(CPU, compiled=compiled)


def test_the_cost_of_an_update_follows_its_state() -> None:
    for compiled in (True, False):
        adamw, sgd = (
            parts_of(optimizer=name, compiled=compiled)["update"].num_bytes for name in ("adamw", "sgd")
        )
        assert sgd < 0.6 * adamw
    muon = parts_of(optimizer="muon")["update"]
    assert muon.num_bytes < parts_of()["update"].num_bytes  # one mean for each weight of a matrix, not two
    assert muon.flops > 100 * parts_of()["update"].flops


def test_muon_multiplies_in_bf16_on_a_gpu_in_any_precision() -> None:
    half, single = (parts_of(optimizer="muon", precision=name)["update"] for name in ("bf16", "fp32"))
    assert half.seconds_of_flops == single.seconds_of_flops == half.flops / H200.peak("bf16")
    on_cpu = parts_of(CPU, optimizer="muon", precision="bf16")["update"]
    assert on_cpu.seconds_of_flops == on_cpu.flops / CPU.peak("fp32")


@pytest.mark.parametrize("compiled", [True, False])
def test_accumulation_updates_once_per_batch(compiled: bool) -> None:
    whole = parts_of(compiled=compiled)
    parts = parts_of(compiled=compiled, accumulate=16)
    gradients = WIDE * 22_696_448
    for name, part in parts.items():
        times = 1 if name == "update" else 16
        more = 15 * gradients if "gathering" in name else 0  # added to the sum, which is read as well
        assert part.num_bytes == times * whole[name].num_bytes + more
        assert part.flops == times * whole[name].flops


def test_accumulation_costs_less_than_an_update_per_part() -> None:
    def speed(batch_size: int, accumulate: int) -> float:
        found = tokens_per_second(
            BASE,
            TrainingSetup(
                batch_size=batch_size, accumulate=accumulate, precision="bf16", compiled=True, device=H200
            ),
        )
        assert found is not None
        return found

    whole, eighths, small = speed(128, 1), speed(16, 8), speed(4, 32)
    assert whole > eighths > 0.85 * whole
    assert eighths > small > speed(4, 1)


def test_a_prediction_depends_on_compilation() -> None:
    eager, compiled = (TrainingSetup(batch_size=8, compiled=it, device=CPU) for it in (False, True))
    for training in (eager, compiled):
        parts = roofline(BASE, CPU, batch_size=8, precision="fp32", compiled=training.compiled)
        efficiency = usual_efficiency(CPU, precision="fp32", compiled=training.compiled, model="fused")
        assert efficiency is not None
        seconds = least_seconds(parts) / efficiency
        assert tokens_per_second(BASE, training) == pytest.approx(8 * 256 / seconds)


@pytest.mark.parametrize(
    ("precision", "compiled", "measured"),
    [("fp32", True, 1358.1), ("fp32", False, 2048 / 1.62), ("bf16", True, 2286.0)],
)
def test_the_predicted_step_on_two_cores_equals_the_measured_one(
    precision: Precision, compiled: bool, measured: float
) -> None:
    training = TrainingSetup(batch_size=8, precision=precision, compiled=compiled, device=CPU)
    assert tokens_per_second(BASE, training) == pytest.approx(measured, rel=0.01)


ON_A_GPU = TrainingSetup(batch_size=8, precision="bf16", compiled=True, device=H200)
ON_A_CPU = TrainingSetup(batch_size=8, precision="fp32", device=CPU)


@pytest.mark.parametrize(
    ("training", "changes"),
    [
        (ON_A_GPU, {"compiled": False}),
        (ON_A_GPU, {"precision": "fp32"}),
        (ON_A_GPU, {"optimizer_implementation": "reference"}),
        (ON_A_CPU, {"precision": "bf16"}),
        (ON_A_CPU, {"optimizer_implementation": "reference"}),
        (ON_A_CPU, {"device": dataclasses.replace(CPU, is_measured=False)}),
    ],
)
def test_no_speed_is_predicted_where_no_efficiency_was_measured(
    training: TrainingSetup, changes: dict[str, Any]
) -> None:
    changed = dataclasses.replace(training, **changes)
    assert tokens_per_second(BASE, training) is not None
    assert tokens_per_second(BASE, changed) is None
    stated = tokens_per_second(BASE, dataclasses.replace(changed, efficiency=0.5))
    assert stated is not None
    assert stated > 0


@pytest.mark.parametrize("training", [ON_A_GPU, ON_A_CPU])
def test_no_speed_is_predicted_for_the_reference_implementation(training: TrainingSetup) -> None:
    assert tokens_per_second(dataclasses.replace(BASE, implementation="reference"), training) is None


def test_an_account_uses_the_default_settings_of_the_device() -> None:
    counted = account(BASE, batch_size=8)
    ways: list[tuple[Device, Precision, bool]] = [(H200, "bf16", True), (CPU, "fp32", False)]
    for device, precision, compiled in ways:
        time = time_on(counted, device)
        assert time.parts == roofline(BASE, device, batch_size=8, precision=precision, compiled=compiled)
        training = TrainingSetup(batch_size=8, precision=precision, compiled=compiled, device=device)
        assert time.tokens_per_second == pytest.approx(tokens_per_second(BASE, training))


@pytest.mark.parametrize(
    ("device", "rate", "implementation"),
    [
        (H200, "fp32", "fused"),
        (H200, "tf32", "fused"),
        (H200, "bf16", "reference"),
        (CPU, "bf16", "fused"),
        (dataclasses.replace(CPU, is_measured=False), "fp32", "fused"),
    ],
)
def test_an_account_has_no_time_without_a_measured_efficiency(
    device: Device, rate: Rate, implementation: Implementation
) -> None:
    counted = account(dataclasses.replace(BASE, implementation=implementation), batch_size=8)
    time = time_on(counted, device, rate=rate)
    assert time.seconds_per_step is time.tokens_per_second is time.days_for(1e9) is None
    assert time.least_seconds > 0
    stated = time_on(counted, device, rate=rate, mfu=0.3)
    assert stated.seconds_per_step == pytest.approx(counted.flops.training / (0.3 * device.peak(rate)))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("A100-SXM4-80GB", "a100"),  # name of older drivers
    ],
)
def test_a_gpu_is_known_by_its_whole_name(name: str, key: str) -> None:
    assert find_known(name) is DEVICES[key]


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA GB200",
        "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM4-40GB",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A10", "None", "",
    ],
)  # fmt: skip
def test_unknown_variants_of_a_gpu_are_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measure(device: torch.device, dtype: torch.dtype, *, size: int) -> float:
        asked.append(size)
        return 1e12

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(devices, "measure_matmul", measure)
    devices._measure_peak.cache_clear()
    assert find_known(name) is None
    assert peak_flops(torch.device("cuda"), "bf16") == 1e12
    assert peak_flops(torch.device("cuda"), "bf16") == 1e12
    devices._measure_peak.cache_clear()
    assert asked == [8192]  # once; smaller products would time the kernel launch
