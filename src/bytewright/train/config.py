"""The configuration of a run, as frozen dataclasses that check their values.

A `TrainConfig` holds the model, the data, the budget, the optimizer, its schedule, and the intervals of
records, evaluations and checkpoints. Two runs with equal configs and data on the same machine have the same
weights, bit for bit. The exception is a budget of minutes alone: then the clock determines the number of
steps. `recipe` reads these values from TOML and JSON.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bytewright.errors import UsageError, wrong_value
from bytewright.model import ModelConfig
from bytewright.optim.schedules import (
    PROVIDED,
    Plan,
    constant_schedule,
    evaluate_schedule,
    is_lengthenable,
    schedule_position,
)
from bytewright.registry import losses, optimizers, schedules
from bytewright.storage.config_reader import document_fields, read_options

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["fp32", "bf16"]
Switch = Literal["auto", "on", "off"]
Windows = Literal["side by side", "documents"]


MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
"""The largest finite float32, the type of the learning rates of a step."""
MIN_FLOAT32 = 2.0**-126
"""The smallest normal float32; some devices replace smaller numbers by 0."""


@document_fields
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The files of tokens, and how to cut windows from them."""

    train: Path
    """Token file to train on."""
    validation: Path | None = None
    """Token file to evaluate on; without one, only the training loss is recorded."""
    tokenizer: Path | None = None
    """Folder of the tokenizer that encoded both files; bits per byte and samples need it."""
    windows: Windows = "side by side"
    """Where windows begin, in training and validation: where the previous one ended, or at the end token
    before a document. The latter suits documents shorter than the context, and needs the tokenizer."""

    def __post_init__(self) -> None:
        for name in ("train", "validation", "tokenizer"):  # Python callers may pass strings
            if isinstance(path := getattr(self, name), str):
                object.__setattr__(self, name, Path(path))

    def absolute(self) -> DataConfig:
        """Return the same files by absolute paths."""
        # The meaning of ".." after a symbolic link depends on the link.
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


@document_fields
@dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """The limits of a run, which ends at the first that it reaches."""

    steps: int | None = None
    """Number of updates."""
    tokens: int | None = None
    """Number of tokens to train on, rounded up to whole batches."""
    minutes: float | None = None
    """Wall-clock time, over all sessions of the run."""

    def __post_init__(self) -> None:
        limits = {"steps": self.steps, "tokens": self.tokens, "minutes": self.minutes}
        if all(limit is None for limit in limits.values()):
            message = "the budget has no limit; set budget.steps, budget.tokens or budget.minutes"
            raise UsageError(message, key="budget")
        check_positive(limits, "budget.")

    def num_steps(self, tokens_per_step: int) -> int | None:
        """Return the number of updates, or None if the budget is minutes alone.

        >>> BudgetConfig(tokens=1000).num_steps(tokens_per_step=300)
        4
        """
        by_tokens = None if self.tokens is None else -(-self.tokens // tokens_per_step)
        limits = [limit for limit in (self.steps, by_tokens) if limit is not None]
        return min(limits, default=None)


@document_fields
@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The update rule and its settings. The learning rates are peaks; the schedule scales them."""

    name: str = "adamw"
    """A registered optimizer. Built-in: adamw, sgd, and muon, which updates the matrices inside blocks by
    Muon and all other parameters by AdamW."""
    lr: float = 1e-3
    """Peak learning rate of all parameters, except Muon's matrices."""
    muon_lr: float = 0.02
    """Peak learning rate of Muon's matrices."""
    weight_decay: float = 0.1
    """For matrices; one-dimensional parameters (gains) and SGD have none."""
    beta1: float = 0.9
    """Of AdamW, and of others with `betas`: decay rate of the mean gradient."""
    beta2: float = 0.95
    """Of AdamW, and of others with `betas`: decay rate of the mean squared gradient."""
    eps: float = 1e-8
    """Of AdamW, and of others with `eps`: added to the denominator of the update, the root of the mean
    squared gradient."""
    momentum: float = 0.95
    """Of Muon, and of others with `momentum`: decay rate of the mean gradient."""
    max_grad_norm: float = 1.0
    """Clip gradients to this global norm; 0 disables clipping."""
    implementation: Literal["fused", "reference"] = "fused"
    """The fused implementation, or the reference that defines the result."""
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Further parameters of the optimizer; the built-in ones have none."""

    def __post_init__(self) -> None:
        from bytewright.optim.build import read_optimizer_options  # imports torch

        optimizers.check(self.name, "optimizer.name")
        object.__setattr__(self, "options", read_optimizer_options(self.name, self.options))
        check_positive({"lr": self.lr, "muon_lr": self.muon_lr, "eps": self.eps}, "optimizer.")
        for name in ("lr", "muon_lr"):
            if getattr(self, name) > MAX_FLOAT32:
                message = f"optimizer.{name} is {getattr(self, name)}; the largest float32 is 3.4e38"
                raise UsageError(message, key=f"optimizer.{name}", found=getattr(self, name))
        if self.eps < MIN_FLOAT32:
            raise wrong_value("optimizer.eps", "at least 1.2e-38, the smallest normal float32", self.eps)
        check_not_negative(
            {"weight_decay": self.weight_decay, "max_grad_norm": self.max_grad_norm}, "optimizer."
        )
        for name in ("beta1", "beta2", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise wrong_value(f"optimizer.{name}", "at least 0 and less than 1", getattr(self, name))


@document_fields
@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over the run, as a fraction of its peak."""

    kind: str = "cosine"
    """A registered schedule. After the warm-up, the rate falls as a cosine (cosine), as a line (linear), only
    at the end (wsd), or not at all (constant)."""
    warmup: int = 0
    """Updates until the peak is reached."""
    final: float = 0.1
    """Fraction of the peak at the end; ignored if the rate is constant."""
    decay: float = 0.2
    """Of wsd: the fraction of the run over which the rate falls at the end."""
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Further parameters of the schedule; the built-in ones have none."""

    def __post_init__(self) -> None:
        check_not_negative({"warmup": self.warmup}, "schedule.")
        schedules.check(self.kind, "schedule.kind")
        options = read_options(schedules[self.kind], self.options, provided=PROVIDED, key="schedule.options")
        object.__setattr__(self, "options", options)
        for name in ("final", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise wrong_value(f"schedule.{name}", "a fraction from 0 to 1", getattr(self, name))

    def factor(self, t: float, num_steps: int | None) -> float:
        """Return the fraction of the peak at update `t`, counted from 1, of `num_steps` in all.

        Only the warm-up applies while the number of steps is unknown, at the start of a run of minutes.

        >>> [ScheduleConfig(kind="linear", warmup=2, final=0.0).factor(t, 4) for t in (1, 2, 3, 4)]
        [0.5, 1.0, 0.5, 0.0]
        """
        if num_steps is None:
            return constant_schedule(t, 1.0, self.warmup)
        arguments = {
            "t": t,
            "warmup": self.warmup,
            "end": num_steps,
            "max_lr": 1.0,
            "min_lr": self.final,
            "decay_steps": round(self.decay * num_steps),
        }
        return evaluate_schedule(self.kind, arguments, self.options)

    @property
    def is_lengthenable(self) -> bool:
        """Whether a finished run with this schedule can be lengthened."""
        return is_lengthenable(self.kind)

    def planned_factor(self, t: int, plan: Plan) -> float:
        """Return the fraction of the peak at update `t`; updates before the first plan only warm up.

        >>> ScheduleConfig(kind="linear", final=0.0).planned_factor(51, [(10, 100), (50, 75)])
        0.48
        """
        if not plan or t <= plan[0][0]:
            return self.factor(t, None)
        return self.factor(schedule_position(t, plan), plan[0][1])


@document_fields
@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """What training minimises. Evaluations always measure the cross-entropy, so that runs are comparable."""

    name: str = "cross_entropy"
    """A registered loss."""
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Parameters of the loss; cross_entropy has none."""

    def __post_init__(self) -> None:
        from bytewright.model.loss import PROVIDED as PROVIDED_TO_LOSSES  # imports torch; `runs` needs none

        losses.check(self.name, "loss.name")
        provided = PROVIDED_TO_LOSSES
        options = read_options(losses[self.name], self.options, provided=provided, key="loss.options")
        object.__setattr__(self, "options", options)


@document_fields
@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """How the samples of text (`sample_every`) are drawn, at temperature 0.8."""

    name: str = "top_p"
    """A registered sampler."""
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Parameters of the sampler: `p` of top_p (default 0.95) and of min_p (0.05), `k` of top_k (50)."""

    def __post_init__(self) -> None:
        from bytewright.generate.sampling import read_sampler_options  # imports torch, too

        options = read_sampler_options(
            self.name, self.options, name_key="sampler.name", options_key="sampler.options"
        )
        object.__setattr__(self, "options", options)


@document_fields
@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How several processes (ranks), which torchrun starts, train one run together."""

    strategy: Literal["replicate", "shard"] = "replicate"
    """Each rank computes a share of the parts of each batch. Replicate: it holds the whole model. Shard: it
    holds a share of the rows of every parameter, for models that do not fit one device (FSDP2)."""
    reduction: Literal["exact", "fast"] = "exact"
    """How the gradients of the parts (`accumulate`) are added. Exact: in a fixed order, so that the number of
    ranks does not change one bit of the result. Fast: less memory and communication, in an order that depends
    on the number of ranks."""
    threads: int | None = None
    """CPU threads per rank; by default torch decides. Some CPU kernels round differently with another number.
    So a run records it when it starts, and a resume with an exact reduction uses the recorded number."""

    def __post_init__(self) -> None:
        check_positive({"threads": self.threads}, "parallel.")


@document_fields
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The configuration of one run."""

    model: ModelConfig
    """Sizes and choices of the model."""
    data: DataConfig
    """The files of tokens."""
    budget: BudgetConfig
    """The limits of the run."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The update rule and its settings."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """The learning rate over the run."""
    loss: LossConfig = field(default_factory=LossConfig)
    """What training minimises."""
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    """How samples of text are drawn."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """How several processes train the run."""
    batch_size: int = 32
    """Windows of `model.context_length` tokens per update."""
    accumulate: int = 1
    """Number of parts of a batch, computed one after the other to save memory, or by several ranks. It must
    divide the batch size, and be a multiple of the number of ranks."""
    seed: int = 0
    """Determines the initial weights and the order of the data."""
    device: DeviceName = "auto"
    """Auto: cuda if available, else cpu. mps is untested."""
    precision: Precision = "fp32"
    """Precision of the computation; weights and optimizer state are always fp32."""
    compile: Switch = "auto"
    """Whether to compile the step; auto compiles on cuda."""
    log_every: int = 10
    """Updates between records of metrics."""
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
    """Text that samples continue; empty: the start of a document."""
    norms_every: int = 0
    """Updates between records of the norms of weights and activations, by layer; 0: none."""
    max_refused: int = 10
    """Number of successive updates with a non-finite loss or gradient after which the run stops."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run's folder (needs the package tensorboard, which puts the host
    name into the names of its files)."""

    def __post_init__(self) -> None:
        counts = ("batch_size", "accumulate", "eval_tokens", "keep_last", "max_refused")
        intervals = ("log_every", "eval_every", "save_every")
        check_positive({name: getattr(self, name) for name in (*counts, *intervals)})
        check_not_negative({"sample_every": self.sample_every, "norms_every": self.norms_every})
        if self.batch_size % self.accumulate:
            message = f"batch_size ({self.batch_size}) must be a multiple of accumulate ({self.accumulate})"
            raise UsageError(message, key="accumulate", found=self.accumulate)

    @property
    def tokens_per_step(self) -> int:
        """Tokens per update."""
        return self.batch_size * self.model.context_length

    @property
    def num_steps(self) -> int | None:
        """Number of updates, or None if the budget is minutes alone."""
        return self.budget.num_steps(self.tokens_per_step)


def check_positive(values: Mapping[str, float | None], prefix: str = "") -> None:
    """Raise unless every number is positive and finite; None is accepted."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise wrong_value(prefix + name, "a number above 0", value)


def check_not_negative(values: Mapping[str, float], prefix: str = "") -> None:
    """Raise unless every number is at least 0 and finite."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise wrong_value(prefix + name, "a finite number of at least 0", value)
