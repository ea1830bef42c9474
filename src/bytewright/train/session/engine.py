"""The model, optimizer and step of a run, whole or sharded, and their reuse by the next run.

`StepEngine` builds all three from a config. `CompiledStepCache` lets successive runs of the same shape share
a compiled step. `ShardedStep` is the step of a model whose rows are sharded over ranks (strategy "shard").
"""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.modules.module import register_module_parameter_registration_hook

from bytewright.data.rng import mix_key
from bytewright.data.sampler import Batch
from bytewright.model import TransformerLM, language_model_loss
from bytewright.model.config import PARTS
from bytewright.model.fused import LanguageModelLoss as Loss
from bytewright.model.fused import make_loss, masked_language_model_loss
from bytewright.model.initialisation import draw_weights
from bytewright.optim.build import OptimizerFactory, build_optimizer
from bytewright.optim.fused import FusedOptimizer, fused_updates
from bytewright.optim.reference import CombinedOptimizer
from bytewright.parallel.rank_group import RankGroup
from bytewright.parallel.replicate import Reduction
from bytewright.parallel.shard_update import ShardedUpdate, check_shardable, rows_of_state, shard_optimizer
from bytewright.registry import losses, optimizers
from bytewright.system import DevicePeakMemory
from bytewright.train.checkpoint import StateRows
from bytewright.train.config import TrainConfig
from bytewright.train.evaluate import measure_norms
from bytewright.train.setup import build_model, choose_backend, dtype_of
from bytewright.train.step import StepBase, StepResult, TrainStep, compile_with, has_own_modules, mean_loss

if TYPE_CHECKING:
    from bytewright.parallel.shard import ShardedModel  # imports FSDP2, which takes a second


class ShardedStep(StepBase):
    """Update a sharded model from one batch after another; see `TrainStep` for the arguments.

    All ranks call it together. Each computes its parts of the batch, while FSDP2 exchanges weights and
    gradients. Then every rank updates its own rows. Blocks are compiled one by one, since the exchange takes
    place between them; embeddings, head and loss are not compiled.
    """

    def __init__(
        self,
        sharded: ShardedModel,
        optimizer: FusedOptimizer | CombinedOptimizer,
        *,
        max_grad_norm: float,
        loss: Loss,
        measured_loss: Loss | None = None,
        backend: str | None = None,
        masked: bool = False,
    ) -> None:
        super().__init__(sharded.model, max_grad_norm=max_grad_norm, masked=masked)
        self.sharded, self._loss = sharded, loss

        def measure_and_release(ids: Tensor, targets: Tensor) -> Tensor:
            try:
                return (measured_loss or loss)(self.model, ids, targets)
            finally:
                sharded.release()

        self._measured_loss = measure_and_release
        for layer in self.model.layers:
            layer.forward = compile_with(backend, layer.forward)  # FSDP2's hooks are called around it
        self._update = ShardedUpdate(optimizer, sharded.rows, sharded.ranks)

    def __call__(self, batches: Sequence[Batch]) -> StepResult:
        """Make one update; `batches` are the parts of this rank, in the order of their numbers."""
        shares = self._shares([targets for _, targets in batches])
        num_parts = self.sharded.num_parts
        own: list[Tensor] = []
        self.sharded.start_step()
        for number, (ids, targets) in enumerate(batches):
            part = self.sharded.find_part(number)
            self._seed(part, num_parts)
            loss = self._loss(self.model, ids, targets)
            torch.autograd.backward(loss / num_parts if shares is None else loss * shares[part])
            self.sharded.finish_round(number)
            own.append(loss.detach())
        with torch.no_grad():
            loss = mean_loss(self._gather_parts(torch.stack(own)), shares)
            norm, accepted = self._update(self.sharded.gradients(), loss, self.max_norm)
            return StepResult(loss, norm, accepted)

    def part_numbers(self, num_own: int) -> Sequence[int]:
        """Return the numbers in the batch of the parts of this rank, which computes `num_own` parts."""
        return [self.sharded.find_part(number) for number in range(num_own)]

    def _gather_parts(self, own: Tensor) -> Tensor:
        return self.sharded.ranks.all_gather(own).T.flatten()


@dataclass(frozen=True)
class StepParts:
    """What a step uses besides its config: a loss and an optimizer of the caller, and masked data."""

    loss: Loss | None = None
    masked: bool = False
    factory: OptimizerFactory | None = None

    def losses(self, config: TrainConfig) -> dict[str, Any]:
        """Return the arguments of a step that concern its loss."""
        measured = masked_language_model_loss if self.masked else language_model_loss
        trained = self.loss or make_loss(config.loss.name, config.loss.options, masked=self.masked)
        return {"loss": trained, "measured_loss": self.loss or measured, "masked": self.masked}


BUILT_IN = StepParts()
"""The loss and the optimizer that the config names, and data without a mask."""


class StepEngine:
    """The model, optimizer and step of a config, in their initial state; its strategy may be "shard"."""

    def __init__(
        self,
        config: TrainConfig,
        device: torch.device,
        parts: StepParts = BUILT_IN,
        ranks: RankGroup | None = None,
    ) -> None:
        self.memory = DevicePeakMemory(device)
        self.factory = parts.factory
        self.sharded: ShardedModel | None = None
        self.rows: StateRows | None = None
        self.optimizer: torch.optim.Optimizer
        self.step: TrainStep | ShardedStep
        options = {
            "max_grad_norm": config.optimizer.max_grad_norm,
            "backend": choose_backend(config, device),
            **parts.losses(config),
        }
        if config.parallel.strategy == "shard":
            self._build_sharded(config, device, ranks or RankGroup(), options)
            return
        self.model = build_model(config, device)
        self.optimizer = build_optimizer(self.model, config.optimizer, self.factory)
        reduction = Reduction(ranks, config.parallel.reduction)
        self.step = TrainStep(self.model, self.optimizer, **options, reduction=reduction)

    def _build_sharded(
        self, config: TrainConfig, device: torch.device, ranks: RankGroup, options: dict[str, Any]
    ) -> None:
        """Build a sharded model; every rank draws the initial weights module by module, and keeps its rows.

        A model with a part of the user, whose constructor may draw weights, is built on every host, then cut.
        """
        from bytewright.parallel.shard import ShardedModel

        skeleton = TransformerLM(config.model, device="meta", dtype=torch.float32)
        rule = build_optimizer(skeleton, config.optimizer, self.factory)
        is_whole = has_own_modules(skeleton)
        self.sharded = ShardedModel(
            build_model(config, torch.device("cpu")) if is_whole else build_blank_model(config),
            ranks,
            device,
            num_parts=config.accumulate,
            is_exact=config.parallel.reduction == "exact",
            weights=() if is_whole else draw_weights(skeleton, mix_key(config.seed, 1)),
        )
        self.model = self.sharded.model
        names = {parameter: name for name, parameter in skeleton.named_parameters()}
        self.optimizer = optimizer = shard_optimizer(rule, names, self.sharded.rows)
        self.rows = StateRows(self.sharded.rows, rows_of_state(optimizer, self.sharded.rows))
        self.step = ShardedStep(self.sharded, optimizer, **options)

    def start_over(self, config: TrainConfig) -> None:
        """Reset to the initial state of `config` in place: compiled code and CUDA graphs stay valid."""
        fresh = build_model(config, torch.device("cpu"))
        if fused_updates(self.optimizer):
            blank = build_optimizer(fresh, config.optimizer, self.factory)
            self.optimizer.load_state_dict(blank.state_dict())
        else:  # it may have state that no state dict contains
            self.optimizer = build_optimizer(self.model, config.optimizer, self.factory)
            assert isinstance(self.step, TrainStep)
            self.step.optimizer = self.optimizer
        self.model.load_state_dict(fresh.state_dict())
        self.memory.start_over()

    def own_weights(self) -> Iterable[Tensor]:
        """Return the weights that this rank stores: all, or its rows of a sharded model."""
        if self.rows is None:
            return self.model.parameters()
        return [rows.local for rows in self.rows.weights.values()]

    def gather_model(self, config: TrainConfig, ranks: RankGroup) -> TransformerLM | None:
        """Return the whole model on rank 0, and None on others; of a sharded model, a copy on the host."""
        if self.sharded is None:
            return self.model if ranks.is_main else None
        whole = build_model(config, torch.device("cpu")) if ranks.is_main else None
        with torch.no_grad():
            for name, weight in self.sharded.gather_weights():
                if whole is not None:
                    whole.get_parameter(name).copy_(weight)
        return whole

    def measure_norms(self, ids: Tensor) -> dict[str, dict[str, float]]:
        """Return the norms of weights and activations; all ranks of a sharded model call it."""
        if self.sharded is None:
            return measure_norms(self.model, ids)
        norms = measure_norms(self.model, ids, self.sharded.gather_weights())
        self.sharded.release()
        return norms


def build_blank_model(config: TrainConfig) -> TransformerLM:
    """Return the model of a config with its parameters on the meta device, which stores nothing."""

    def to_meta(module: Module, name: str, parameter: Parameter) -> Parameter:
        return Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    handle = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]  # may return one
    try:
        return TransformerLM(config.model, dtype=torch.float32, compute_dtype=dtype_of(config.precision))
    finally:
        handle.remove()


def check_strategy(config: TrainConfig, factory: OptimizerFactory | None = None) -> None:
    """Raise if the strategy does not support the optimizer; call it before a run is created."""
    if config.parallel.strategy == "shard":
        skeleton = TransformerLM(config.model, device="meta")
        check_shardable(build_optimizer(skeleton, config.optimizer, factory))


class CompiledStepCache:
    """Provides the engine of each of several successive runs; reuses the last one if its shape matches.

    A reused engine is reset, so a run gives the same numbers as with an engine of its own. Compilation takes
    seconds, as long as a short run on a GPU.
    """

    def __init__(self) -> None:
        self._last: StepEngine | None = None
        self._made_for: object = None

    def make_room(self, config: TrainConfig, device: torch.device, parts: StepParts) -> None:
        """Release the last engine, unless a run of `config` can reuse it."""
        # With a time budget every run compiles, so that the time of all runs of a sweep includes compilation.
        key = _key(config, device, parts)
        if self._made_for != key or config.budget.minutes is not None:
            self.clear()
        self._made_for = key

    def engine_for(
        self,
        config: TrainConfig,
        device: torch.device,
        parts: StepParts = BUILT_IN,
        ranks: RankGroup | None = None,
    ) -> StepEngine:
        """Return an engine in the initial state of `config`; the engine returned before becomes invalid."""
        self.make_room(config, device, parts)
        if config.parallel.strategy == "shard":  # its model cannot be reset in place
            self.clear()
            return StepEngine(config, device, parts, ranks)
        if self._last is None:
            self._last = StepEngine(config, device, parts, ranks)
        else:
            self._last.start_over(config)
        return self._last

    def clear(self) -> None:
        """Release the last engine and all compiled code.

        This frees its memory for the next run. It also resets the limit of torch.compile, which stops
        compiling a function after eight models, or four that are evaluated too.
        """
        self._last = self._made_for = None
        if "torch._dynamo" in sys.modules:  # otherwise nothing was compiled, and importing it takes a second
            torch.compiler.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _key(config: TrainConfig, device: torch.device, parts: StepParts) -> object:
    """Return everything that compiled code depends on: runs with equal keys can share an engine."""
    rule = dataclasses.replace(config.optimizer, lr=1.0, muon_lr=1.0)
    shape = config.batch_size, config.accumulate, config.parallel
    # A notebook may register another part under the same name.
    of_model = [part.class_of(config.model) for part in PARTS.values()]
    named = of_model, config.loss, losses[config.loss.name], optimizers[config.optimizer.name]
    return config.model, rule, named, shape, config.precision, config.compile, device, parts
