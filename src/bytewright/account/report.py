"""What a run of training takes, for its plan and its report: parameters, FLOPs, memory, speed and time.

`predict` takes a model and how it is trained. Speed is that of the fast twin, and needs a device whose rates
are known and an efficiency: the share of the roofline that steps reach, measured once (`EFFICIENCY`). What
cannot be predicted is None. Knows nothing of what a run then took; `lab.tables` puts that beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bytewright.account.activations import Precision
from bytewright.account.devices import Device, DeviceKind
from bytewright.account.flops import training_flops_per_token
from bytewright.account.memory import training_memory
from bytewright.account.optimizers import OptimizerName
from bytewright.account.parameters import count_parameters
from bytewright.account.time import least_seconds, roofline
from bytewright.model.config import Implementation, ModelConfig

EFFICIENCY: Mapping[tuple[DeviceKind, bool, bool], float] = {
    ("cuda", True, False): 0.62,
    ("cuda", True, True): 0.72,
    ("cpu", True, True): 0.84,
    ("cpu", False, True): 0.93,
}
"""Share of the roofline that a step of the base experiment reaches: by device, compiled or not, and whether
the device's rates were measured or come from its data sheet.

On a GPU: the 18.1 ms of docs/results/2026-11-15-accounting.md, an H200 at batch 256 in bf16, against rates
measured in the same process and against the data sheet. Runs of that shape reach 0.59 to 0.65 of the latter
from batch 64 on, but 0.49 at batch 16 and 0.28 at batch 1. Eager steps were not timed, so no speed is
predicted for them.

On a CPU: the 1.51 s (compiled) and 1.62 s of docs/results/2026-11-15-two-cores.md, batch 8 in fp32, against
the 187 GFLOP/s noted there and a copy at 30 GB/s, timed on those cores later. In bf16, compiled: 0.66."""


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
    efficiency = training.efficiency
    if device is not None and efficiency is None:
        efficiency = usual_efficiency(device, compiled=training.compiled)
    if device is None or efficiency is None:
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


def usual_efficiency(device: Device, *, compiled: bool) -> float | None:
    """Say how close to its roofline a step on such a device comes; None where that was not measured."""
    return EFFICIENCY.get((device.kind, compiled, device.is_measured))
