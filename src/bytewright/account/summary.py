"""All costs of a model in one value: `account(config)`.

An `Account` holds parameters, FLOPs, the memory of training and of generation, and the cost of an update.
Time requires a machine (`time_on`), and the largest batch a size of memory (`largest_batches`). All figures
are exact integers; `to_dict` returns them for JSON. Each formula is in its own module.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from bytewright.account.devices import Device, Rate
from bytewright.account.flops import FlopCount, count_flops, list_matmuls
from bytewright.account.generation import InferenceMemory, flops_of_token, inference_memory
from bytewright.account.memory import TrainingMemory, largest_batch, training_memory
from bytewright.account.optimizers import UpdateCost, list_update_costs
from bytewright.account.parameters import ParameterCount, count_parameters
from bytewright.account.predict import TrainingSetup, usual_efficiency
from bytewright.account.textbook import TextbookMemory, textbook_estimate
from bytewright.account.time import SECONDS_PER_DAY, StepPart, least_seconds, roofline, seconds_at
from bytewright.model.config import Implementation, ModelConfig
from bytewright.model.costs import Matmul, Precision

IMPLEMENTATIONS: tuple[Implementation, ...] = ("reference", "fused")
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a model is trained: implementation of model, loss and update rule, precision, compiled or not."""

    implementation: Implementation
    precision: Precision
    compiled: bool

    @property
    def name(self) -> str:
        """The setting in words, such as "fused, bf16, compiled"."""
        return f"{self.implementation}, {self.precision}, {'compiled' if self.compiled else 'eager'}"


SETTINGS = tuple(
    Setting(implementation=implementation, precision=precision, compiled=compiled)
    for implementation in IMPLEMENTATIONS
    for precision in PRECISIONS
    for compiled in (False, True)
)


@dataclass(frozen=True, kw_only=True)
class Account:
    """The costs of a model for batches of `batch_size` sequences of `num_tokens` tokens."""

    config: ModelConfig
    batch_size: int
    num_tokens: int
    parameters: ParameterCount
    matmuls: list[Matmul]
    flops: FlopCount
    """Of one batch, with all scores."""
    causal_flops: FlopCount
    """Of one batch, with only the scores that the causal mask allows."""
    textbook_memory: TextbookMemory
    """The textbook's estimate of the memory of training with AdamW."""
    training: dict[Setting, TrainingMemory]
    inference: dict[Precision, InferenceMemory]
    flops_of_last_token: int
    updates: dict[str, UpdateCost]
    """Of one update of the weights, by the name of the optimizer."""

    @property
    def tokens(self) -> int:
        """Tokens of a batch."""
        return self.batch_size * self.num_tokens

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as JSON values."""
        return {
            "config": self.config.to_dict(),
            "batch_size": self.batch_size,
            "num_tokens": self.num_tokens,
            "parameters": dataclasses.asdict(self.parameters)
            | {
                "total": self.parameters.total,
                "without_embeddings": self.parameters.without_embeddings,
                "without_embeddings_and_head": self.parameters.without_embeddings_and_head,
                "bytes_fp32": 4 * self.parameters.total,
                "bytes_bf16": 2 * self.parameters.total,
            },
            "matmuls": [dataclasses.asdict(matmul) | {"flops": matmul.flops} for matmul in self.matmuls],
            "flops": _flops_to_dict(self.flops, self.tokens),
            "causal_flops": _flops_to_dict(self.causal_flops, self.tokens),
            "textbook": {
                "parameters": str(self.textbook_memory.parameters_formula),
                "bytes_per_sequence": str(self.textbook_memory.per_sequence_formula),
                "a": self.textbook_memory.a,
                "b": self.textbook_memory.b,
                "peak": self.textbook_memory.peak(self.batch_size),
            },
            "training": {
                setting.name: {
                    "peak": memory.peak,
                    "moment": memory.peak_moment.name,
                    "parts": memory.peak_moment.parts,
                    "kept_per_block": {kept.name: kept.num_bytes for kept in memory.kept_by_block},
                    "attention_matrices": memory.attention_matrices,
                }
                for setting, memory in self.training.items()
            },
            "inference": {
                precision: dataclasses.asdict(memory) | {"total": memory.total}
                for precision, memory in self.inference.items()
            },
            "flops_of_last_token": self.flops_of_last_token,
            "updates": {
                name: dataclasses.asdict(cost) | {"flops": cost.flops} for name, cost in self.updates.items()
            },
        }


def account(config: ModelConfig, *, batch_size: int = 1, num_tokens: int | None = None) -> Account:
    """Return the costs of a model for `batch_size` sequences of `num_tokens` tokens (default: the context).

    >>> from bytewright.account.shapes import find_preset
    >>> xl = account(find_preset("gpt2-xl"))
    >>> xl.parameters.total, xl.flops.forward
    (2127057600, 4513336524800)
    """
    length = config.context_length if num_tokens is None else num_tokens
    return Account(
        config=config,
        batch_size=batch_size,
        num_tokens=length,
        parameters=count_parameters(config),
        matmuls=list_matmuls(config, length, batch_size),
        flops=count_flops(config, length, batch_size),
        causal_flops=count_flops(config, length, batch_size, causal=True),
        textbook_memory=textbook_estimate(config, length),
        training={
            setting: training_memory(
                _with_implementation(config, setting),
                batch_size=batch_size,
                num_tokens=length,
                precision=setting.precision,
                compiled=setting.compiled,
            )
            for setting in SETTINGS
        },
        inference={
            precision: inference_memory(config, batch_size=batch_size, num_tokens=length, precision=precision)
            for precision in PRECISIONS
        },
        flops_of_last_token=flops_of_token(config, length - 1),
        updates=list_update_costs(config),
    )


def largest_batches(account: Account, memory_bytes: float) -> dict[str, int]:
    """Return the largest batch that fits into `memory_bytes` for each setting; 0 if none fits."""
    found = {"textbook formula": account.textbook_memory.largest_batch(memory_bytes)}
    for setting in SETTINGS:
        found[setting.name] = largest_batch(
            _with_implementation(account.config, setting),
            memory_bytes,
            num_tokens=account.num_tokens,
            precision=setting.precision,
            compiled=setting.compiled,
        )
    return found


@dataclass(frozen=True, kw_only=True)
class TimeAccount:
    """The time of training on one machine."""

    device: Device
    rate: Rate
    mfu: float | None
    """The given share of the peak; None: the time follows from the roofline and an efficiency."""
    parts: list[StepPart]
    seconds_per_step: float | None
    """None if `mfu` is None and no efficiency was measured for such a step."""
    tokens_per_second: float | None

    @property
    def least_seconds(self) -> float:
        """Lower bound of the seconds of a step."""
        return least_seconds(self.parts)

    def days_for(self, num_tokens: float) -> float | None:
        """Return the days of training on `num_tokens`; None if the speed is not known."""
        speed = self.tokens_per_second
        return None if speed is None else num_tokens / speed / SECONDS_PER_DAY

    def to_dict(self, num_tokens: float | None = None) -> dict[str, Any]:
        """Return all figures as JSON values, with the days for `num_tokens` if given."""
        figures = {
            "device": dataclasses.asdict(self.device),
            "precision": self.rate,
            "mfu": self.mfu,
            "parts": [
                dataclasses.asdict(part) | {"seconds": part.seconds, "bound": part.bound}
                for part in self.parts
            ],
            "least_seconds": self.least_seconds,
            "seconds_per_step": self.seconds_per_step,
            "tokens_per_second": self.tokens_per_second,
        }
        return figures | ({"days": self.days_for(num_tokens)} if num_tokens else {})


def time_on(
    account: Account,
    device: Device,
    *,
    rate: Rate | None = None,
    mfu: float | None = None,
    setup: TrainingSetup | None = None,
) -> TimeAccount:
    """Return the predicted time of a step: from a given utilisation, or from the roofline.

    `setup` determines the optimizer, how many batches an update accumulates, and whether the step is
    compiled. As in runs with default settings, it is AdamW, one batch, and compiled on a GPU only. `rate` is
    by default bf16 on a GPU and fp32 on a CPU. Without `mfu` and without a measured efficiency the time is
    None.
    """
    setup = setup or TrainingSetup(batch_size=account.batch_size, compiled=device.kind == "cuda")
    rate = rate or ("bf16" if device.kind == "cuda" else "fp32")
    parts = roofline(
        account.config,
        device,
        batch_size=account.batch_size,
        num_tokens=account.num_tokens,
        precision="bf16" if rate == "bf16" else "fp32",
        rate=rate,
        optimizer=setup.optimizer,
        compiled=setup.compiled,
        accumulate=setup.accumulate,
    )
    seconds = None
    if mfu is not None:
        seconds = setup.accumulate * seconds_at(account.flops.training, device.peak(rate), mfu)
    elif efficiency := usual_efficiency(
        device,
        precision=rate,
        compiled=setup.compiled,
        model=account.config.implementation,
        optimizer=setup.optimizer_implementation,
    ):
        seconds = least_seconds(parts) / efficiency
    return TimeAccount(
        device=device,
        rate=rate,
        mfu=mfu,
        parts=parts,
        seconds_per_step=seconds,
        tokens_per_second=None if seconds is None else setup.accumulate * account.tokens / seconds,
    )


def _with_implementation(config: ModelConfig, setting: Setting) -> ModelConfig:
    return dataclasses.replace(config, implementation=setting.implementation)


def _flops_to_dict(flops: FlopCount, tokens: int) -> dict[str, Any]:
    return {
        "by_component": flops.by_component(),
        "shares": dict(flops.shares()),
        "forward": flops.forward,
        "backward": flops.backward,
        "training": flops.training,
        "forward_per_token": flops.forward / tokens,
        "training_per_token": flops.training / tokens,
    }
