"""Predictions for a training run: parameters, FLOPs, memory, speed and time.

The speed requires a device with known rates and an efficiency: the share of the roofline that steps reach.
`EFFICIENCY` has the measured values, all for the fused implementation. A prediction that is not possible is
None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bytewright.account.activations import Precision
from bytewright.account.devices import Device, DeviceKind, Rate
from bytewright.account.flops import training_flops_per_token
from bytewright.account.memory import training_memory
from bytewright.account.optimizers import AnyOptimizer
from bytewright.account.parameters import count_parameters
from bytewright.account.time import least_seconds, roofline
from bytewright.model.config import Implementation, ModelConfig


class StepKind(NamedTuple):
    """The properties of a training step that determine its efficiency."""

    device: DeviceKind
    precision: Rate
    compiled: bool
    has_measured_rates: bool
    """Whether the rates of the device are measured or from a data sheet."""
    model: Implementation = "fused"
    optimizer: Implementation = "fused"


EFFICIENCY: Mapping[StepKind, float] = {
    StepKind("cuda", "bf16", compiled=True, has_measured_rates=False): 0.62,
    StepKind("cuda", "bf16", compiled=True, has_measured_rates=True): 0.72,
    StepKind("cpu", "fp32", compiled=True, has_measured_rates=True): 0.84,
    StepKind("cpu", "fp32", compiled=False, has_measured_rates=True): 0.93,
    StepKind("cpu", "bf16", compiled=True, has_measured_rates=True): 0.66,
}
"""Share of the roofline that a step of the base experiment reaches; other models were not timed.

On a GPU: the 18.1 ms of docs/results/2026-11-15-accounting.md, an H200 at batch 256, compared with the data
sheet and with rates measured in the same process. Runs of these sizes reach 0.59 to 0.65 of the data sheet
from batch 64 on, but 0.49 at batch 16 and 0.28 at batch 1.

On a CPU: the speeds of docs/results/2026-11-15-two-cores.md at batch 8: compiled 1,358 tokens/s in fp32 and
2,286 in bf16, eager 1.62 s per step. They are compared with the 187 and 418 GFLOP/s of the same page, and
with a copy at 30 GB/s that was measured later on the same cores."""


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """The settings of a training run that determine its memory and time."""

    batch_size: int
    """Sequences that are processed at once: the batch divided by `accumulate`."""
    accumulate: int = 1
    """Number of parts of a batch whose gradients are accumulated."""
    num_tokens: int = 0
    """Tokens of the whole run; 0 if the number is not known."""
    precision: Precision = "fp32"
    compiled: bool = False
    optimizer: AnyOptimizer = "adamw"
    """The name of a registered optimizer, or its settings in a config."""
    optimizer_implementation: Implementation | None = None
    """Implementation of the update rule; None: the same as the model's."""
    device_kind: DeviceKind = "cuda"
    device: Device | None = None
    """The peak rates of the machine, if they are known."""
    efficiency: float | None = None
    """Share of the roofline that steps reach; None: the value of `EFFICIENCY`, if there is one."""


def predict_training(config: ModelConfig, setup: TrainingSetup) -> dict[str, float | None]:
    """Return predicted parameters, FLOPs per token, bytes of peak memory, tokens per second and seconds.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> predicted = predict_training(base, TrainingSetup(batch_size=32))
    >>> predicted["parameters"], predicted["seconds"]  # without a device
    (22696448, None)
    """
    memory = training_memory(
        config,
        batch_size=setup.batch_size,
        precision=setup.precision,
        optimizer=setup.optimizer,
        optimizer_implementation=setup.optimizer_implementation,
        compiled=setup.compiled,
        device=setup.device_kind,
    )
    speed = tokens_per_second(config, setup)
    return {
        "parameters": count_parameters(config).total,
        "flops_per_token": training_flops_per_token(config),
        "peak_memory": memory.peak,
        "tokens_per_second": speed,
        "seconds": setup.num_tokens / speed if speed and setup.num_tokens else None,
    }


def tokens_per_second(config: ModelConfig, setup: TrainingSetup) -> float | None:
    """Return the predicted speed of training; None without a device or without a measured efficiency."""
    device = setup.device
    if device is None:
        return None
    efficiency = setup.efficiency
    if efficiency is None:
        efficiency = usual_efficiency(
            device,
            precision=setup.precision,
            compiled=setup.compiled,
            model=config.implementation,
            optimizer=setup.optimizer_implementation,
        )
    if efficiency is None:
        return None
    parts = roofline(
        config,
        device,
        batch_size=setup.batch_size,
        precision=setup.precision,
        optimizer=setup.optimizer,
        compiled=setup.compiled,
        accumulate=setup.accumulate,
    )
    num_tokens = setup.accumulate * setup.batch_size * config.context_length
    return num_tokens * efficiency / least_seconds(parts)


def usual_efficiency(
    device: Device,
    *,
    precision: Rate,
    compiled: bool,
    model: Implementation,
    optimizer: Implementation | None = None,
) -> float | None:
    """Return the share of the roofline that such a step reaches, or None if it was not measured.

    `model` and `optimizer` are implementations; that of the optimizer is by default the model's.
    """
    kind = StepKind(device.kind, precision, compiled, device.is_measured, model, optimizer or model)
    return EFFICIENCY.get(kind)
