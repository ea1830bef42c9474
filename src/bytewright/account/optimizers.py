"""The cost of one update of the weights: operations, bytes moved, and memory, for any registered optimizer.

The optimizer is built over a model without contents (on torch's meta device), which shows the rule that
updates each parameter. A rule of Bytewright states its costs (`optim.reference`, `optim.fused`). For AdamW
they are, per parameter, where additions, products, quotients and roots count as one operation:

    θ ← θ - lr λ θ                       2
    m ← β₁ m + (1 - β₁) g                3
    v ← β₂ v + (1 - β₂) g²               4
    θ ← θ - rate · m / (√v + ε)          5      together 14

At best a rule reads θ, g and its state and writes θ and its state: 7·4 bytes per parameter for the two state
tensors of AdamW. This is half an operation per byte, so memory bandwidth limits it on every device.

The stated counts are exact. Tests count the operations of the reference rules. They also count the bytes that
the fused rules move without a compiler (`eager_update_bytes`), where each operation is one pass over memory.
The costs of other optimizers are measured: one update is traced, operation by operation (`trace_update`).

The reference rules update one parameter at a time and need little temporary memory. The fused rules update
whole groups. Without a compiler, each operation allocates a tensor of that size. Compiled, they are one
kernel, and only Muon's products need temporaries.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import Parameter
from torch.utils.flop_counter import FlopCounterMode

from bytewright.account.parameters import count_parameters
from bytewright.account.tracing import StorageTracker, tensors_in
from bytewright.errors import UsageError, first_line
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.costs import WIDE, DeviceKind, StepShape
from bytewright.optim.build import DefaultSettings, OptimizerSettings, build_optimizer
from bytewright.optim.clip import clip_gradients
from bytewright.optim.fused import FusedOptimizer, fused_updates
from bytewright.optim.reference import Optimizer, parts_of
from bytewright.registry import optimizers

Shape = tuple[int, ...]
AnyOptimizer = Hashable
"""The name of a registered optimizer, or its `OptimizerConfig`."""

LARGEST_TINY_SIDE = 16
"""Sides of the parameters of a trial update where tracing without contents is not possible."""


@dataclass(frozen=True, kw_only=True)
class UpdateCost:
    """The operations of one update, and the minimum of bytes that it moves."""

    matmul_flops: int
    elementwise_flops: int
    num_bytes: int

    @property
    def flops(self) -> int:
        """All operations."""
        return self.matmul_flops + self.elementwise_flops


@dataclass(frozen=True)
class RuleGroup:
    """The parameters that one rule updates: how many there are of each shape."""

    rule: type[Optimizer]
    shapes: Mapping[Shape, int]

    @property
    def num_weights(self) -> int:
        """Numbers in all parameters."""
        return sum(count * math.prod(shape) for shape, count in self.shapes.items())

    @property
    def fused_rule(self) -> type[FusedOptimizer] | None:
        """The fused version of the rule, if it states its costs."""
        fused = self.rule.fused_version
        return fused if fused is not None and issubclass(fused, FusedOptimizer) else None


class TracedUpdate(NamedTuple):
    """What tracing one update of a whole model found; numbers are floats where they were scaled."""

    state_bytes: float
    matmul_flops: float
    elementwise_flops: float
    moved_bytes: float
    """Bytes that elementwise operations read and wrote, each in its own pass."""
    temporary_bytes: float


def update_cost(config: ModelConfig, optimizer: AnyOptimizer = "adamw") -> UpdateCost:
    """Return the cost of one update of all parameters of a model.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> cost, total = update_cost(base), count_parameters(base).total
    >>> cost.flops // total, cost.num_bytes // total
    (14, 28)
    """
    groups = list_rule_groups(config, optimizer)
    if groups is None:
        traced = trace_update(config, optimizer)
        weights = WIDE * count_parameters(config).total
        return UpdateCost(
            matmul_flops=round(traced.matmul_flops),
            elementwise_flops=round(traced.elementwise_flops),
            num_bytes=round(3 * weights + 2 * traced.state_bytes),
        )
    products, elementwise, moved = 0, 0, 0
    for group in groups:
        for shape, count in group.shapes.items():
            of_products, of_elements = group.rule.count_flops(shape)
            products, elementwise = products + count * of_products, elementwise + count * of_elements
        moved += WIDE * (3 + 2 * len(group.rule.state_names)) * group.num_weights
    return UpdateCost(matmul_flops=products, elementwise_flops=elementwise, num_bytes=moved)


def list_update_costs(config: ModelConfig) -> dict[str, UpdateCost]:
    """Return the cost of one update by every registered optimizer whose options have defaults."""
    costs = {}
    for name in optimizers:
        with contextlib.suppress(UsageError):
            costs[name] = update_cost(config, name)
    return costs


def state_bytes(config: ModelConfig, optimizer: AnyOptimizer = "adamw") -> int:
    """Return the bytes of the optimizer state: two numbers per weight for AdamW, one for Muon's matrices."""
    groups = list_rule_groups(config, optimizer)
    if groups is None:
        return math.ceil(trace_update(config, optimizer).state_bytes)
    return sum(WIDE * len(group.rule.state_names) * group.num_weights for group in groups)


def eager_update_bytes(config: ModelConfig, optimizer: AnyOptimizer, device: DeviceKind) -> int:
    """Return the bytes that an update moves without a compiler, from the norm of the gradients on.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> [eager_update_bytes(base, rule, "cpu") // count_parameters(base).total for rule in ("adamw", "sgd")]
    [212, 60]
    """
    groups = list_rule_groups(config, optimizer)
    if groups is None or not all(group.fused_rule for group in groups):
        return round(trace_update(config, optimizer).moved_bytes)
    on_gpu = device == "cuda"
    rules = ((group.fused_rule, group.shapes) for group in groups)
    return sum(rule.count_moved_bytes(shapes, on_gpu=on_gpu) for rule, shapes in rules if rule)


def update_temporaries(x: StepShape, optimizer: AnyOptimizer, *, is_fused: bool) -> int:
    """Return the bytes of temporaries during the update.

    The reference rules need a few tensors of the size of the largest parameter. The fused rules need a few of
    the size of the whole group.
    """
    groups = list_rule_groups(x.config, optimizer)
    if groups is None:
        return round(trace_update(x.config, optimizer).temporary_bytes)
    peak, before = 0, 0
    for group in groups:
        if is_fused and group.fused_rule:
            of_group, before = group.fused_rule.count_temporary_bytes(
                group.shapes, compiled=x.compiled, on_gpu=x.device == "cuda", before=before
            )
        else:
            of_group = WIDE * group.rule.num_temporaries * max(map(math.prod, group.shapes))
        peak = max(peak, of_group)
    return peak


def has_fused_update(config: ModelConfig, optimizer: AnyOptimizer) -> bool:
    """Return whether the fused implementation of an optimizer updates flat groups of parameters.

    >>> tiny = ModelConfig(vocab_size=9, context_length=4, d_model=4, num_layers=1, num_heads=1)
    >>> has_fused_update(tiny, "muon")
    True
    """
    return _examine(config, optimizer, _part_of(optimizer))[1]


def list_rule_groups(config: ModelConfig, optimizer: AnyOptimizer) -> list[RuleGroup] | None:
    """Return the rules of an optimizer with their parameters, or None if one does not state its costs."""
    return _examine(config, optimizer, _part_of(optimizer))[0]


@functools.lru_cache(maxsize=64)
def _examine(
    config: ModelConfig, optimizer: AnyOptimizer, part: object
) -> tuple[list[RuleGroup] | None, bool]:
    """Return the rules of an optimizer, and whether its fused version updates flat groups of parameters.

    The optimizer is built over a model of one layer. `part` is the registered part, which can be replaced.
    """
    settings = _settings_of(optimizer)
    model = TransformerLM(dataclasses.replace(config, num_layers=1), device="meta")
    counts = {
        parameter: config.num_layers if name.startswith("layers.") else 1
        for name, parameter in model.named_parameters()
    }
    fused = build_optimizer(model, dataclasses.replace(settings, implementation="fused"))
    built = build_optimizer(model, dataclasses.replace(settings, implementation="reference"))
    is_fused = bool(fused_updates(fused))
    groups: list[RuleGroup] = []
    for rule in parts_of(built):
        if not isinstance(rule, Optimizer) or not _states_costs(type(rule)):
            return None, is_fused
        shapes: dict[Shape, int] = {}
        for parameter in rule.parameters:
            shape = tuple(parameter.shape)
            shapes[shape] = shapes.get(shape, 0) + counts[parameter]
        groups.append(RuleGroup(type(rule), shapes))
    return groups, is_fused


def _states_costs(rule: type[Optimizer]) -> bool:
    """Return whether a class states the costs of its own rule, not those of a class that it changes."""
    owner = next(cls for cls in rule.__mro__ if "num_operations" in vars(cls))
    return issubclass(owner, Optimizer) and bool(owner.num_operations) and rule.update is owner.update


def _part_of(optimizer: AnyOptimizer) -> object:
    return optimizers[_settings_of(optimizer).name]


def _settings_of(optimizer: AnyOptimizer) -> OptimizerSettings:
    return DefaultSettings(name=optimizer) if isinstance(optimizer, str) else optimizer


def trace_update(config: ModelConfig, optimizer: AnyOptimizer) -> TracedUpdate:
    """Measure the state and the costs of an update by tracing updates of a model of one and two layers.

    The costs are linear in the number of layers. The tensors have no contents. Optimizers that read values of
    tensors are traced on tiny parameters instead, and their costs are scaled by the number of weights.
    """
    return _trace(config, optimizer, _part_of(optimizer))


@functools.lru_cache(maxsize=64)
def _trace(config: ModelConfig, optimizer: AnyOptimizer, part: object) -> TracedUpdate:
    models = [TransformerLM(dataclasses.replace(config, num_layers=n), device="meta") for n in (1, 2)]
    try:
        one, two = (_trace_model(model, optimizer) for model in models)
    except Exception:  # a value of a tensor without contents was read, or the update fails
        sizes = [_count_weights(model) for model in models]
        for model in models:
            _shrink(model)
        try:
            tiny = [_trace_model(model, optimizer) for model in models]
        except Exception as error:
            name = _settings_of(optimizer).name
            message = f"the optimizer {name!r} failed in a trial update: {first_line(error)}"
            raise UsageError(message, key="optimizer.name", found=name) from error
        factors = [size / _count_weights(model) for size, model in zip(sizes, models, strict=True)]
        one, two = (
            TracedUpdate(*(factor * value for value in traced))
            for factor, traced in zip(factors, tiny, strict=True)
        )
    more = config.num_layers - 1
    return TracedUpdate(*(a + more * (b - a) for a, b in zip(one, two, strict=True)))


def _count_weights(model: TransformerLM) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _shrink(model: TransformerLM) -> None:
    """Replace the parameters of a model by small ones with contents; the model cannot compute any more."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                sides = [min(side, LARGEST_TINY_SIDE) for side in parameter.shape]
                module._parameters[name] = Parameter(torch.full(sides, 0.5))


def _trace_model(model: TransformerLM, optimizer: AnyOptimizer) -> TracedUpdate:
    with torch.random.fork_rng(devices=[]):
        built = build_optimizer(model, _settings_of(optimizer))
        parameters = [parameter for group in built.param_groups for parameter in group["params"]]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.1)
        built.step()  # creates the state
        found = tensors_in([list(state.values()) for state in built.state.values()])
        states = list({id(tensor): tensor for tensor in found}.values())  # fused rules share a step count
        operations = _Operations([*parameters, *states, *tensors_in([p.grad for p in parameters])])
        with FlopCounterMode(display=False) as products, operations, torch.no_grad():
            clip_gradients(parameters, 1.0)
            built.step()
    return TracedUpdate(
        state_bytes=sum(tensor.numel() * tensor.itemsize for tensor in states),
        matmul_flops=products.get_total_flops(),
        elementwise_flops=operations.count,
        moved_bytes=operations.moved,
        temporary_bytes=operations.peak,
    )


class _Operations(StorageTracker):  # type: ignore[no-untyped-call]
    """Counts elementwise operations, the bytes that they move, and the bytes of temporaries at the peak."""

    count = moved = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and count it."""
        results = func(*args, **(kwargs or {}))
        name, made, read = str(func), tensors_in(results), tensors_in((args, kwargs))
        self.hold(made)
        written = made or read[:1] if "_foreach" not in name else made or read[: len(read) // 2 or 1]
        if not func.is_view and not any(word in name for word in ("mm.", "bmm.", "empty", "detach")):
            self.moved += sum(tensor.numel() * tensor.itemsize for tensor in (*read, *written))
            if not any(word in name for word in ("copy", "zeros", "full", "clone")):
                made_numbers = sum(tensor.numel() for tensor in written if tensor.numel() > 1)
                self.count += made_numbers or max((tensor.numel() for tensor in read), default=0)  # or a sum
        return results
