"""Predictions for a training run: parameters, FLOPs, memory, speed, time and energy.

`training_costs` returns all of them in one value.

The speed requires a device with known rates and an efficiency: the share of the roofline that steps reach.
`EFFICIENCY` has the measured values, all for the fused implementation. A prediction that is not possible is
None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from bytewright.account.devices import Device, Rate
from bytewright.account.flops import training_flops_per_token
from bytewright.account.memory import ALLOWANCE, TrainingMemory, largest_fitting
from bytewright.account.optimizers import AnyOptimizer
from bytewright.account.parameters import count_parameters
from bytewright.account.ranks import Ranks, Strategy, predict_rank_memory, sent_bytes
from bytewright.account.time import least_seconds, roofline, seconds_at
from bytewright.model.config import Implementation, ModelConfig
from bytewright.model.costs import WIDE, DeviceKind, Precision, StepShape
from bytewright.model.loss import choose_chunk_size
from bytewright.parallel.replicate import ReductionKind
from bytewright.parallel.tree import max_nodes


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
2,286 in bf16, eager 1.62 s per step. They are compared with the 187 and 418 GFLOP/s of the same page. The
copy at 30 GB/s was measured later on the same cores."""


CODE_BYTES, COMPILER_BYTES = 20_000_000, 122_000_000
"""What a run on a CPU adds to the resident memory besides tensors, and what compiling adds to that.

The first is code of libraries that the first step loads (13 MB), their data, and small objects. The second is
mostly the modules of torch's compiler. Both were measured with torch 2.13.0 and two threads; see
docs/results/2026-11-18-cpu-memory.md. They hold for commands, and for glibc 2.39 or newer. With an older
glibc, a run that is started from Python takes more (`restart_without_malloc_caches`)."""


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
    mfu: float | None = None
    """Share of the peak that steps reach; if given, the roofline and the efficiency are not used."""
    rate: Rate | None = None
    """The peak rate of matrix products; None: that of the precision."""
    max_seconds: float | None = None
    """Time budget of the run, if it has one."""
    evaluated_at_once: int = 0
    """Tokens of a batch of an evaluation; 0: none are made."""
    loss_flops_per_token: float = 0.0
    """FLOPs of the loss beyond those of the head (`flops.extra_loss_flops`)."""
    num_ranks: int = 1
    """Ranks that share the parts of a batch."""
    strategy: Strategy = "replicate"
    reduction: ReductionKind = "exact"

    @property
    def is_on_ranks(self) -> bool:
        """Whether the memory of a step differs from that of a process that trains alone."""
        return self.num_ranks > 1 or self.strategy == "shard"

    @property
    def ranks(self) -> Ranks:
        """How the ranks work together."""
        return Ranks(
            num_ranks=self.num_ranks,
            strategy=self.strategy,
            reduction=self.reduction,
            accumulate=self.accumulate,
        )

    @property
    def optimizer_name(self) -> str:
        """The registered name of the optimizer."""
        return str(getattr(self.optimizer, "name", self.optimizer))

    @property
    def num_held_sums(self) -> int:
        """How many sums of gradients one process holds besides their buffer while it computes a part.

        >>> [TrainingSetup(batch_size=1, accumulate=parts).num_held_sums for parts in (1, 3, 4, 8)]
        [0, 0, 1, 2]
        """
        return max(0, max_nodes(self.accumulate) - 1) if self.reduction == "exact" else 0


def predict_training(config: ModelConfig, setup: TrainingSetup) -> dict[str, float | None]:
    """Return predicted parameters, FLOPs per token, bytes of peak memory, tokens per second and seconds.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> predicted = predict_training(base, TrainingSetup(batch_size=32))
    >>> predicted["parameters"], predicted["seconds"]  # without a device
    (22696448, None)
    """
    memory = _setup_memory(config, setup)
    speed = tokens_per_second(config, setup)
    held = 0 if setup.is_on_ranks else setup.num_held_sums * WIDE * count_parameters(config).total
    return {
        "parameters": count_parameters(config).total,
        "flops_per_token": training_flops_per_token(config) + setup.loss_flops_per_token,
        "peak_memory": held
        + (memory.peak if setup.device_kind == "cuda" else _resident_bytes(config, setup, memory)),
        "tokens_per_second": speed,
        "seconds": setup.num_tokens / speed if speed and setup.num_tokens else None,
    }


def _largest_batch(config: ModelConfig, setup: TrainingSetup, available: float) -> int:
    """Return the most sequences at once that fit into the memory of one rank."""
    usable = available if setup.device_kind == "cuda" else available - _code_bytes(setup)
    limit = usable * (1 - ALLOWANCE)
    return largest_fitting(lambda size: _setup_memory(config, replace(setup, batch_size=size)).peak <= limit)


def _setup_memory(config: ModelConfig, setup: TrainingSetup) -> TrainingMemory:
    """Return the memory of a step on one rank; for a single process, without gradient sums that wait."""
    shape = StepShape(
        config=config,
        batch_size=setup.batch_size,
        num_tokens=config.context_length,
        precision=setup.precision,
        compiled=setup.compiled,
        device=setup.device_kind,
    )
    implementation = setup.optimizer_implementation or config.implementation
    ranks = setup.ranks if setup.is_on_ranks else Ranks()
    return predict_rank_memory(shape, ranks, optimizer=setup.optimizer, implementation=implementation)


def _resident_bytes(config: ModelConfig, setup: TrainingSetup, memory: TrainingMemory) -> int:
    """Return the memory that a run adds to a process on a CPU: that of a step or of an evaluation.

    An evaluation keeps weights, gradients and state. It computes logits in chunks, in float32, with a copy
    while their exponentials are summed, and needs the hidden states and their norm. Pages of the token file
    are not included: the system can drop them.
    """
    tokens, chunk = setup.evaluated_at_once, choose_chunk_size("cpu", config.vocab_size)
    logits = 2 * WIDE * min(tokens, chunk) * config.vocab_size
    kept = 2 * memory.parameters + memory.optimizer_state
    evaluation = kept + logits + 2 * WIDE * tokens * config.d_model
    return _code_bytes(setup) + max(memory.peak, evaluation)


def _code_bytes(setup: TrainingSetup) -> int:
    return CODE_BYTES + (COMPILER_BYTES if setup.compiled else 0)


def tokens_per_second(config: ModelConfig, setup: TrainingSetup) -> float | None:
    """Return the predicted speed of training; None without a device or a measured efficiency, or on ranks."""
    device = setup.device
    if device is None or setup.num_ranks > 1:  # the time of an exchange depends on the links
        return None
    rate = setup.rate or setup.precision
    if setup.mfu is not None:
        flops = training_flops_per_token(config) + setup.loss_flops_per_token
        return 1 / seconds_at(flops, device.peak(rate), setup.mfu)
    efficiency = setup.efficiency
    if efficiency is None:
        efficiency = usual_efficiency(
            device,
            precision=rate,
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
        rate=rate,
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


TOKENS_PER_PARAMETER = 20
"""The assumed budget if none is given: the ratio that Hoffmann et al. (2022, "Chinchilla") found to give the
lowest loss for the FLOPs of a run."""


@dataclass(frozen=True, kw_only=True)
class TrainingCosts:
    """What a training run needs, in a few numbers."""

    parameters: int
    num_tokens: int
    """Tokens of the run."""
    has_assumed_tokens: bool
    """Whether `num_tokens` is `TOKENS_PER_PARAMETER` times the parameters, since no budget was given."""
    flops: float
    """FLOPs of the model in the whole run."""
    memory_bytes: int
    """Peak memory of a step."""
    available_bytes: float | None
    """Memory of the device, if it is known."""
    largest_batch: int | None
    """Sequences at once that fit into `available_bytes`; 0: not even one."""
    tokens_per_second: float | None
    seconds: float | None
    """Time of the run; None without a device or a measured efficiency."""
    mfu: float | None
    """The FLOPs of the run in this time, as a share of the peak."""
    watts: float | None
    """Power limit of the device; None if it is not known."""
    num_ranks: int = 1
    sent_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes that rank 0 sends to the others in a step, by purpose; empty on one rank."""

    @property
    def fits(self) -> bool | None:
        """Whether the step fits into the available memory, with the reserve that `largest_batch` keeps."""
        limit = self.available_bytes
        return None if limit is None else self.memory_bytes <= limit * (1 - ALLOWANCE)

    @property
    def kilowatt_hours(self) -> float | None:
        """Energy of the device at its power limit, without the rest of the machine and without cooling."""
        if self.seconds is None or self.watts is None:
            return None
        return self.watts * self.seconds / 3.6e6

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as JSON values."""
        return asdict(self) | {"fits": self.fits, "kilowatt_hours": self.kilowatt_hours}


def training_costs(
    config: ModelConfig, setup: TrainingSetup, *, available_bytes: float | None = None
) -> TrainingCosts:
    """Return what a run needs, for the memory of its device or for `available_bytes`.

    >>> from bytewright.account.devices import find_device
    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> setup = TrainingSetup(
    ...     batch_size=128,
    ...     num_tokens=327_680_000,
    ...     precision="bf16",
    ...     compiled=True,
    ...     device=find_device("rtx4090"),
    ... )
    >>> costs = training_costs(base, setup)
    >>> costs.flops, costs.fits, round(costs.seconds / 60)
    (3.660922748928e+16, True, 8)
    """
    predicted = predict_training(config, setup)
    device, speed = setup.device, predicted["tokens_per_second"]
    available = available_bytes or (device.memory_bytes if device else None)
    num_parameters, flops_per_token = count_parameters(config).total, predicted["flops_per_token"] or 0.0
    num_tokens = setup.num_tokens
    if setup.max_seconds is not None and speed is not None:
        in_time = int(setup.max_seconds * speed)
        num_tokens = min(num_tokens or in_time, in_time)
    is_assumed = not num_tokens
    num_tokens = num_tokens or TOKENS_PER_PARAMETER * num_parameters
    peak = device.peak(setup.rate or setup.precision) if device else None
    return TrainingCosts(
        parameters=num_parameters,
        num_tokens=num_tokens,
        has_assumed_tokens=is_assumed,
        flops=flops_per_token * num_tokens,
        memory_bytes=int(predicted["peak_memory"] or 0),
        available_bytes=available,
        largest_batch=None if available is None else _largest_batch(config, setup, available),
        tokens_per_second=speed,
        seconds=num_tokens / speed if speed else None,
        mfu=flops_per_token * speed / peak if speed and peak else None,
        watts=device.watts if device else None,
        num_ranks=setup.num_ranks,
        sent_bytes=sent_bytes(config, setup.ranks, optimizer=setup.optimizer, device=setup.device_kind)
        if setup.num_ranks > 1
        else {},
    )
