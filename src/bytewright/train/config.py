"""Everything that decides a run, as frozen values checked once: what a recipe says, what a resume reads.

A `TrainConfig` names the model, the data, the budget, the optimizer and its schedule, and how often to look.
Two runs of equal configs on equal data and the same machine give the same weights bit for bit, but for a
budget in minutes alone, whose number of steps is fixed by the clock. Nothing here reads files or touches
tensors; `recipe` builds these values from TOML and JSON.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bytewright.errors import UsageError
from bytewright.field_docs import described
from bytewright.model import ModelConfig
from bytewright.optim.schedules import (
    Plan,
    constant_schedule,
    cosine_schedule,
    linear_schedule,
    schedule_position,
    wsd_schedule,
)

OptimizerName = Literal["adamw", "muon", "sgd"]
ScheduleKind = Literal["cosine", "linear", "wsd", "constant"]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["fp32", "bf16"]
Switch = Literal["auto", "on", "off"]
Windows = Literal["side by side", "documents"]


MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
"""The largest finite float32, the type of the learning rates of a step."""


@described
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the tokens are."""

    train: Path
    """Token file to learn from."""
    validation: Path | None = None
    """Token file to measure on; without one, the run reports its training loss alone."""
    tokenizer: Path | None = None
    """Folder of the tokenizer that made both files; bits per byte and samples need it."""
    windows: Windows = "side by side"
    """Where windows begin, in training and in validation: where the last one ended, or at the end token
    before a document. The latter suits documents shorter than the context, and needs the tokenizer."""

    def __post_init__(self) -> None:
        for name in ("train", "validation", "tokenizer"):  # who writes Python may write a string
            if isinstance(path := getattr(self, name), str):
                object.__setattr__(self, name, Path(path))

    def absolute(self) -> DataConfig:
        """Return the same files by absolute paths."""
        # What ".." means after a symbolic link depends on the link.
        return self._with_paths(
            lambda path: Path(os.path.realpath(path)) if ".." in path.parts else path.absolute()
        )

    def relative_to(self, folder: Path) -> DataConfig:
        """Return the same files by paths relative to `folder`."""
        base = os.path.realpath(folder)
        return self.absolute()._with_paths(lambda path: Path(os.path.relpath(path, base)))

    def seen_from(self, folder: Path) -> DataConfig:
        """Return the same files by absolute paths, where relative ones are relative to `folder`."""
        base = os.path.realpath(folder)
        return self._with_paths(lambda path: Path(os.path.normpath(os.path.join(base, path))))

    def _with_paths(self, change: Callable[[Path], Path]) -> DataConfig:
        paths = {name: getattr(self, name) for name in ("train", "validation", "tokenizer")}
        changed: dict[str, Any] = {name: path and change(path) for name, path in paths.items()}
        return dataclasses.replace(self, **changed)


@described
@dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """When a run is over: at the first limit it reaches. With minutes alone, its speed decides its steps."""

    steps: int | None = None
    """Number of updates."""
    tokens: int | None = None
    """Number of tokens to train on, to the next whole batch."""
    minutes: float | None = None
    """Wall-clock time, over all sessions of the run."""

    def __post_init__(self) -> None:
        limits = {"steps": self.steps, "tokens": self.tokens, "minutes": self.minutes}
        if all(limit is None for limit in limits.values()):
            raise UsageError("the budget sets no limit; give budget.steps, budget.tokens or budget.minutes")
        check_positive(limits, "budget.")

    def num_steps(self, tokens_per_step: int) -> int | None:
        """Give the number of updates, or None if only the clock decides.

        >>> BudgetConfig(tokens=1000).num_steps(tokens_per_step=300)
        4
        """
        by_tokens = None if self.tokens is None else -(-self.tokens // tokens_per_step)
        limits = [limit for limit in (self.steps, by_tokens) if limit is not None]
        return min(limits, default=None)


@described
@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The update rule and its settings. The learning rates are peaks; the schedule scales them."""

    name: OptimizerName = "adamw"
    """Muon is for the matrices inside blocks; everything else then learns by AdamW."""
    lr: float = 1e-3
    """Peak learning rate of AdamW or SGD."""
    muon_lr: float = 0.02
    """Peak learning rate of Muon's matrices."""
    weight_decay: float = 0.1
    """Of AdamW and Muon, for matrices; gains (one-dimensional parameters) are never decayed. SGD has none."""
    beta1: float = 0.9
    """Of AdamW: how much of the mean gradient is kept from update to update."""
    beta2: float = 0.95
    """Of AdamW: how much of the mean squared gradient is kept."""
    eps: float = 1e-8
    """Of AdamW: what is added to the root of the mean squared gradient, by which the update is divided."""
    momentum: float = 0.95
    """Of Muon: how much of the mean gradient is kept from update to update."""
    max_grad_norm: float = 1.0
    """Clip gradients whose global norm is larger; 0 switches clipping off."""
    implementation: Literal["fused", "reference"] = "fused"
    """The fast twin or the readable one."""

    def __post_init__(self) -> None:
        check_positive({"lr": self.lr, "muon_lr": self.muon_lr, "eps": self.eps}, "optimizer.")
        for name in ("lr", "muon_lr"):
            if getattr(self, name) > MAX_FLOAT32:
                raise UsageError(f"optimizer.{name} is {getattr(self, name)}; the largest float32 is 3.4e38")
        check_not_negative(
            {"weight_decay": self.weight_decay, "max_grad_norm": self.max_grad_norm}, "optimizer."
        )
        for name in ("beta1", "beta2", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(
                    f"optimizer.{name} must be at least 0 and less than 1, but is {getattr(self, name)}"
                )


@described
@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The shape of the learning rate over the run, as a fraction of its peak."""

    kind: ScheduleKind = "cosine"
    """How the rate falls after the warm-up: as a cosine, as a line, only at the end (wsd), or not at all."""
    warmup: int = 0
    """Updates until the peak is reached."""
    final: float = 0.1
    """Fraction of the peak that is left at the end; of no effect when constant."""
    decay: float = 0.2
    """Of wsd: the fraction of the run over which the rate falls at the end."""

    def __post_init__(self) -> None:
        check_not_negative({"warmup": self.warmup}, "schedule.")
        for name in ("final", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"schedule.{name} is a fraction from 0 to 1, but is {getattr(self, name)}")

    def factor(self, t: float, num_steps: int | None) -> float:
        """Give the fraction of the peak at update `t`, counted from 1, of `num_steps` in all.

        While the number of steps is not known yet (a run of minutes in its first moments), only the warm-up
        acts.

        >>> [ScheduleConfig(kind="linear", warmup=2, final=0.0).factor(t, 4) for t in (1, 2, 3, 4)]
        [0.5, 1.0, 0.5, 0.0]
        """
        if num_steps is None or self.kind == "constant":
            return constant_schedule(t, 1.0, self.warmup)
        if self.kind == "wsd":
            return wsd_schedule(t, 1.0, self.final, self.warmup, num_steps, round(self.decay * num_steps))
        shape = cosine_schedule if self.kind == "cosine" else linear_schedule
        return shape(t, 1.0, self.final, self.warmup, num_steps)

    def planned_factor(self, t: int, plan: Plan) -> float:
        """Return the fraction of the peak at update `t`; updates before the first plan only warm up.

        >>> ScheduleConfig(kind="linear", final=0.0).planned_factor(51, [(10, 100), (50, 75)])
        0.48
        """
        if not plan or t <= plan[0][0]:
            return self.factor(t, None)
        return self.factor(schedule_position(t, plan), plan[0][1])


@described
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One run: what to train, on what, for how long, how, and how often to look."""

    model: ModelConfig
    """Sizes and choices of the model."""
    data: DataConfig
    """Where the tokens are."""
    budget: BudgetConfig
    """When the run is over."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The update rule and its settings."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """The learning rate over the run."""
    batch_size: int = 32
    """Windows of `model.context_length` tokens per update."""
    accumulate: int = 1
    """Parts that a batch is worked through in, to save memory; must divide the batch size."""
    seed: int = 0
    """Decides the initial weights and the order of the data."""
    device: DeviceName = "auto"
    """Auto: cuda if there is one, else cpu. mps is untried."""
    precision: Precision = "fp32"
    """Of the computation; weights and optimizer state are always fp32."""
    compile: Switch = "auto"
    """Whether to compile the step; auto compiles on cuda."""
    log_every: int = 10
    """Updates between lines of metrics."""
    eval_every: int = 200
    """Updates between evaluations on the validation data; every checkpoint is evaluated too."""
    eval_tokens: int = 2**18
    """Tokens of the fixed validation set, spread evenly over the file."""
    save_every: int = 500
    """Updates between checkpoints."""
    keep_last: int = 2
    """Checkpoints to keep besides the best."""
    sample_every: int = 0
    """Updates between samples of text; 0: none. Samples need `data.tokenizer`."""
    sample_prompt: str = ""
    """What samples go on from; empty: the beginning of a document."""
    norms_every: int = 0
    """Updates between records of the norms of weights and activations, by layer; 0: none."""
    max_refused: int = 10
    """Updates in a row with a non-finite loss or gradient after which the run gives up."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run's folder (needs the package tensorboard, which puts the host
    name into the names of its files)."""

    def __post_init__(self) -> None:
        counts = ("batch_size", "accumulate", "eval_tokens", "keep_last", "max_refused")
        intervals = ("log_every", "eval_every", "save_every")
        check_positive({name: getattr(self, name) for name in (*counts, *intervals)})
        check_not_negative({"sample_every": self.sample_every, "norms_every": self.norms_every})
        if self.batch_size % self.accumulate:
            raise UsageError(
                f"batch_size ({self.batch_size}) must be a multiple of accumulate ({self.accumulate})"
            )

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one update learns from."""
        return self.batch_size * self.model.context_length

    @property
    def num_steps(self) -> int | None:
        """Number of updates, or None if only the clock decides."""
        return self.budget.num_steps(self.tokens_per_step)


def check_positive(values: Mapping[str, float | None], prefix: str = "") -> None:
    """Refuse a number that is not above 0, or not finite; None passes."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{prefix}{name} must be a number above 0, but is {value}")


def check_not_negative(values: Mapping[str, float], prefix: str = "") -> None:
    """Refuse a number below 0, or not finite."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise UsageError(f"{prefix}{name} must be a number from 0 on, but is {value}")
