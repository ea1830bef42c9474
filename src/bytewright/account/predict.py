"""What a run of training takes, for its plan and its report: parameters, FLOPs, memory, speed and time.

`predict` takes a model and how it is trained. Speed needs a device whose rates are known and an efficiency:
the share of the roofline that steps reach, measured once for some ways to take them, all of the fast twin
(`EFFICIENCY`). What cannot be predicted is None. Knows nothing of what a run then took; `lab.tables` puts
that beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bytewright.account.activations import Precision
from bytewright.account.devices import Device, DeviceKind, Rate
from bytewright.account.flops import training_flops_per_token
from bytewright.account.memory import training_memory
from bytewright.account.optimizers import OptimizerName
from bytewright.account.parameters import count_parameters
from bytewright.account.time import least_seconds, roofline
from bytewright.model.config import Implementation, ModelConfig


class StepKind(NamedTuple):
    """A way to take steps, as far as it decides how close to the roofline they come."""

    device: DeviceKind
    precision: Rate
    compiled: bool
    has_measured_rates: bool
    """Whether the roofline is made of rates that were measured; else they are those of a data sheet."""
    model: Implementation = "fused"
    optimizer: Implementation = "fused"


EFFICIENCY: Mapping[StepKind, float] = {
    StepKind("cuda", "bf16", compiled=True, has_measured_rates=False): 0.62,
    StepKind("cuda", "bf16", compiled=True, has_measured_rates=True): 0.72,
    StepKind("cpu", "fp32", compiled=True, has_measured_rates=True): 0.84,
    StepKind("cpu", "fp32", compiled=False, has_measured_rates=True): 0.93,
    StepKind("cpu", "bf16", compiled=True, has_measured_rates=True): 0.66,
}
"""Share of the roofline that a step of the base experiment reaches; nothing else was timed.

On a GPU: the 18.1 ms of docs/results/2026-11-15-accounting.md, an H200 at batch 256, against rates measured
in the same process and against the data sheet. Runs of that shape reach 0.59 to 0.65 of the latter from batch
64 on, but 0.49 at batch 16 and 0.28 at batch 1.

On a CPU: the speeds of docs/results/2026-11-15-two-cores.md, batch 8, compiled 1,358 tokens/s in fp32 and
2,286 in bf16, eager 1.62 s a step, against the 187 and 418 GFLOP/s noted with them and a copy at 30 GB/s,
timed on those cores later."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained, as far as it decides memory and time."""

    batch_size: int
    """Sequences that are worked on at once: the batch over the parts that it is accumulated in."""
    accumulate: int = 1
    """The number of these parts."""
    num_tokens: int = 0
    """Tokens of the whole run; 0 if it has no end yet."""
    precision: Precision = "fp32"
    compiled: bool = False
    optimizer: OptimizerName = "adamw"
    optimizer_implementation: Implementation | None = None
    """The twin of the update rule; None: the same as the model's."""
    device_kind: DeviceKind = "cuda"
    device: Device | None = None
    """The machine, if its rates are known."""
    efficiency: float | None = None
    """Share of the roofline that steps reach; None: the usual one, if it is known."""


def predict(config: ModelConfig, training: Training) -> dict[str, float | None]:
    """Predict parameters, FLOPs per token, bytes of peak memory, tokens per second and seconds, each by name.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> predicted = predict(base, Training(batch_size=32))
    >>> predicted["parameters"], predicted["seconds"]  # of a run on no known machine
    (22696448, None)
    """
    memory = training_memory(
        config,
        batch_size=training.batch_size,
        precision=training.precision,
        optimizer=training.optimizer,
        optimizer_implementation=training.optimizer_implementation,
        compiled=training.compiled,
        device=training.device_kind,
    )
    speed = tokens_per_second(config, training)
    return {
        "parameters": count_parameters(config).total,
        "flops_per_token": training_flops_per_token(config),
        "peak_memory": memory.peak,
        "tokens_per_second": speed,
        "seconds": training.num_tokens / speed if speed and training.num_tokens else None,
    }


def tokens_per_second(config: ModelConfig, training: Training) -> float | None:
    """Predict the speed of training; None without a device, or where no efficiency was ever measured."""
    device = training.device
    if device is None:
        return None
    efficiency = training.efficiency
    if efficiency is None:
        efficiency = usual_efficiency(
            device,
            precision=training.precision,
            compiled=training.compiled,
            model=config.implementation,
            optimizer=training.optimizer_implementation,
        )
    if efficiency is None:
        return None
    parts = roofline(
        config,
        device,
        batch_size=training.batch_size,
        precision=training.precision,
        optimizer=training.optimizer,
        compiled=training.compiled,
        accumulate=training.accumulate,
    )
    num_tokens = training.accumulate * training.batch_size * config.context_length
    return num_tokens * efficiency / least_seconds(parts)


def usual_efficiency(
    device: Device,
    *,
    precision: Rate,
    compiled: bool,
    model: Implementation,
    optimizer: Implementation | None = None,
) -> float | None:
    """Say how close to its roofline a step on such a device comes; None where that was not measured.

    `model` and `optimizer` are twins, the latter the same as the former unless given.
    """
    way = StepKind(device.kind, precision, compiled, device.is_measured, model, optimizer or model)
    return EFFICIENCY.get(way)
