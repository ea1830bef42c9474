"""The fused optimizers: the rules of `reference` applied to whole groups of parameters at once.

The parameters of a group are moved into one flat buffer and become views of it. Their state has the same
layout. A rule is then a few operations on large tensors instead of many small ones, and one kernel if
compiled. Muon stacks matrices of the same shape, so that their products are batched. No function synchronises
with the device: learning rate and update count are tensors. A step that is not accepted is discarded by
selection (`torch.where`), not by a branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import Parameter

from bytewright.errors import UsageError
from bytewright.optim.clip import clip_factor, global_norm
from bytewright.optim.reference import (
    ROUNDS,
    SGD,
    AdamW,
    Closure,
    Group,
    Muon,
    Optimizer,
    evaluate,
    orthogonalise,
    parts_of,
)

OnGroup = Float[Tensor, "*group"]
"""Weights, gradients or state of a whole group; in one call they have the same shape."""

Shape = tuple[int, ...]

ALIGNMENT = 64
"""Every parameter starts at a multiple of this many elements, for the alignment of matrix kernels."""


Count = Int64[Tensor, ""]
Updated = tuple[OnGroup, dict[str, OnGroup]]
Rule = Callable[["FlatGroup", OnGroup, Count], Updated]
"""Returns the new weights and state of a flat group from its gradients and the number of the update."""


@dataclass
class FlatGroup:
    """Parameters that are views of one buffer, with gradients and state in the same layout."""

    parameters: list[Parameter]
    group: Group
    weights: Tensor
    gradients: Tensor
    state: dict[str, Tensor]
    weight_views: list[Tensor]
    gradient_views: list[Tensor]
    lr: Float[Tensor, ""]

    def store(self, weights: OnGroup, state: Mapping[str, OnGroup], accept: Bool[Tensor, ""]) -> None:
        """Replace weights and state if `accept` is true."""
        self.weights.copy_(torch.where(accept, weights, self.weights))
        for name, value in state.items():
            self.state[name].copy_(torch.where(accept, value, self.state[name]))


@dataclass
class FusedUpdate:
    """Flat groups that are updated together, with one update count: all that a compiled step traces.

    It has no reference to an optimizer, because torch.compile handles `torch.optim.Optimizer` separately.
    """

    rule: Rule
    flat_groups: list[FlatGroup]
    t: Int64[Tensor, ""]
    is_split: bool = False
    """Whether the parameters have their own update counts, since one of them had no gradient in a step."""

    @property
    def parameters(self) -> list[Parameter]:
        """All parameters, flat group after flat group."""
        return [parameter for flat in self.flat_groups for parameter in flat.parameters]

    def collect(self) -> None:
        """Copy the gradients of the parameters into the flat groups."""
        for flat in self.flat_groups:
            gradients = [parameter.grad for parameter in flat.parameters if parameter.grad is not None]
            torch._foreach_copy_(flat.gradient_views, gradients)

    def check_not_moved(self) -> None:
        """Raise if a parameter is no longer a view of its flat group: updates would not change it."""
        for flat in self.flat_groups:
            for number, (parameter, view) in enumerate(zip(flat.parameters, flat.weight_views, strict=True)):
                if parameter.data_ptr() != view.data_ptr():
                    message = (
                        f"parameter {number} of its group, of shape {tuple(parameter.shape)}, was moved after"
                        " the optimizer was created; move the model first"
                    )
                    raise UsageError(message, key="params", found=number)

    def load_learning_rates(self) -> None:
        """Copy the learning rates of the parameter groups into the flat groups."""
        for flat in self.flat_groups:
            flat.lr.fill_(flat.group["lr"])

    def apply(
        self,
        factor: Float[Tensor, ""],
        accept: Bool[Tensor, ""],
        gradients: Sequence[Tensor] | None = None,
    ) -> None:
        """Update every flat group with its gradients times `factor` if `accept` is true; can be compiled.

        `gradients` replaces those that the flat groups hold.
        """
        t = self.t + accept
        own = [flat.gradients for flat in self.flat_groups] if gradients is None else gradients
        for flat, gradient in zip(self.flat_groups, own, strict=True):
            flat.store(*self.rule(flat, gradient * factor, t), accept)
        self.t.copy_(t)


class FusedOptimizer(Optimizer):
    """An optimizer whose parameters and state are in flat groups. A subclass defines `update_group`.

    `updates` has one member for the groups of the constructor, and one for each group that was added later:
    its parameters have another update count.
    """

    updates: list[FusedUpdate]
    num_moved: ClassVar[int] = 0
    """Numbers that an update without a compiler reads and writes per weight, with norm and clipping."""
    num_flat_temporaries: ClassVar[int] = 0
    """Tensors of the size of a flat group that exist during its update, without a compiler."""

    @classmethod
    def count_moved_bytes(cls, shapes: Mapping[Shape, int], *, on_gpu: bool) -> int:
        """Return the bytes that an update without a compiler reads and writes; `shapes` counts parameters."""
        return 4 * cls.num_moved * _num_weights(shapes)

    @classmethod
    def count_temporary_bytes(
        cls, shapes: Mapping[Shape, int], *, compiled: bool, on_gpu: bool, before: int
    ) -> tuple[int, int]:
        """Return the bytes of temporaries at the peak of an update, and of those that exist after it.

        `before` is the latter of the optimizer that is applied before this one.
        """
        return (0 if compiled else 4 * cls.num_flat_temporaries * _num_weights(shapes) + before), 0

    def __init_subclass__(cls, **options: Any) -> None:
        """Register the class as the fused version of the rule that it inherits from."""
        super().__init_subclass__(**options)
        for base in cls.__bases__:
            if issubclass(base, Optimizer) and not issubclass(base, FusedOptimizer):
                base.fused_version = cls

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.updates = [self._build_update(self.param_groups)]

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with their own settings; they are updated from the next step on."""
        super().add_param_group(param_group)
        if "updates" in self.__dict__:  # not while the constructor adds its groups
            self.updates.append(self._build_update([param_group]))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy: its parameters are moved into flat groups of their own."""
        super().__setstate__(state)
        counts = [int(self.state[parameter]["step"]) for parameter in self.parameters]
        self.updates = [self._build_update(self.param_groups)]
        self.set_num_updates(counts)

    def _build_update(self, groups: list[Group]) -> FusedUpdate:
        """Move the parameters of `groups` and their state into flat groups."""
        parameters = [parameter for group in groups for parameter in group["params"]]
        kinds = {(parameter.device, parameter.dtype) for parameter in parameters}
        if len(kinds) > 1:
            message = f"a fused optimizer requires parameters of one device and type, but has {len(kinds)}"
            raise UsageError(message, key="params", expected=1, found=len(kinds))
        device = parameters[0].device if parameters else None
        t = torch.zeros((), dtype=torch.int64, device=device)
        flat_groups = [
            self._build_flat_group(members, group, t)
            for group in groups
            for members in self.partition(group["params"])
        ]
        return FusedUpdate(type(self).update_group, flat_groups, t)

    def partition(self, parameters: list[Parameter]) -> list[list[Parameter]]:
        """Split the parameters of a group into flat groups: here one for all."""
        return [list(parameters)] if parameters else []

    def lay_out(self, parameters: Sequence[Parameter]) -> tuple[Tensor, list[Tensor]]:
        """Return a zeroed buffer for `parameters` and a view of it for each: here one long row."""
        starts = [0]
        for parameter in parameters:
            starts.append(starts[-1] + -(-parameter.numel() // ALIGNMENT) * ALIGNMENT)
        flat = torch.zeros(starts[-1], dtype=parameters[0].dtype, device=parameters[0].device)
        views = [
            flat[start : start + parameter.numel()].view(parameter.shape)
            for start, parameter in zip(starts, parameters, strict=False)
        ]
        return flat, views

    def _build_flat_group(self, parameters: list[Parameter], group: Group, t: Int64[Tensor, ""]) -> FlatGroup:
        weights, weight_views = self.lay_out(parameters)
        gradients, gradient_views = self.lay_out(parameters)
        for parameter, view in zip(parameters, weight_views, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
            self.state[parameter]["step"] = t
        state = {}
        for name in self.state_names:
            state[name], views = self.lay_out(parameters)
            for parameter, view in zip(parameters, views, strict=True):
                view.copy_(self.state[parameter][name])
                self.state[parameter][name] = view
        lr = torch.zeros((), dtype=torch.float32, device=weights.device)
        return FlatGroup(parameters, group, weights, gradients, state, weight_views, gradient_views, lr)

    @staticmethod
    def update_group(flat: FlatGroup, gradient: OnGroup, t: Count) -> Updated:
        """Return the new weights and state of a flat group; changes nothing."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, accept: Bool[Tensor, ""] | None = None) -> Any:
        """Update every parameter that has a gradient if `accept` is true or None; return the closure's loss.

        If a parameter has no gradient, the parameters are updated one after the other, from then on always:
        their update counts differ.
        """
        loss = evaluate(closure)
        for update in self.updates:
            update.check_not_moved()
            have_gradients = [parameter.grad is not None for parameter in update.parameters]
            if update.is_split or not all(have_gradients):
                if any(have_gradients) and (accept is None or accept):
                    self._split(update)
                    self.update_each(update.parameters)
                continue
            update.collect()
            update.load_learning_rates()
            yes = torch.ones((), dtype=torch.bool, device=update.t.device)
            update.apply(torch.ones((), device=update.t.device), yes if accept is None else accept)
        return loss

    def _split(self, update: FusedUpdate) -> None:
        """Give every parameter its own update count."""
        if not update.is_split:
            update.is_split = True
            for parameter in update.parameters:
                self.state[parameter]["step"] = int(update.t)

    def set_num_updates(self, counts: Sequence[int]) -> None:
        """Set how many updates each parameter has had."""
        of_parameter = dict(zip(self.parameters, counts, strict=True))
        for update in self.updates:
            own = {of_parameter[parameter] for parameter in update.parameters}
            update.is_split = len(own) > 1
            if not update.is_split:
                update.t.fill_(own.pop() if own else 0)
            for parameter in update.parameters:
                self.state[parameter]["step"] = of_parameter[parameter] if update.is_split else update.t


class FusedSGD(FusedOptimizer, SGD):
    """`SGD`, one flat group at a time."""

    num_moved = 15
    num_flat_temporaries = 3

    @staticmethod
    def update_group(flat: FlatGroup, gradient: OnGroup, t: Count) -> Updated:
        """Apply one SGD update."""
        rate = flat.lr * t.float().rsqrt() if flat.group["decay"] else flat.lr
        return flat.weights - rate * gradient, {}


class FusedAdamW(FusedOptimizer, AdamW):
    """`AdamW`, one flat group at a time.

    Its temporaries are the clipped gradient, both new means, the decayed weights, and three for the quotient.
    """

    num_moved = 53
    num_flat_temporaries = 7

    @staticmethod
    def update_group(flat: FlatGroup, gradient: OnGroup, t: Count) -> Updated:
        """Apply the four equations of `AdamW`."""
        beta1, beta2 = flat.group["betas"]
        m = beta1 * flat.state["exp_avg"] + (1 - beta1) * gradient
        v = beta2 * flat.state["exp_avg_sq"] + (1 - beta2) * gradient.square()
        rate = flat.lr * _one_minus_power(beta2, t).sqrt() / _one_minus_power(beta1, t)
        decayed = flat.weights - flat.lr * flat.group["weight_decay"] * flat.weights
        return decayed - rate * m / (v.sqrt() + flat.group["eps"]), {"exp_avg": m, "exp_avg_sq": v}


class FusedMuon(FusedOptimizer, Muon):
    """`Muon`, all matrices of one shape at a time; on a GPU the products run in bfloat16."""

    num_moved = 39

    @classmethod
    def count_moved_bytes(cls, shapes: Mapping[Shape, int], *, on_gpu: bool) -> int:
        """Return the bytes that an update without a compiler reads and writes.

        Each round reads and writes five numbers per weight, and seven per number of x xᵀ; five more per
        weight come before. On a GPU this is in bfloat16, and the casts move another 12 bytes per weight.
        """
        size, casts = (2, 12) if on_gpu else (4, 0)
        num_weights = _num_weights(shapes)
        grams = sum(count * min(shape) ** 2 for shape, count in shapes.items())
        rounds = size * ((5 + ROUNDS * 5) * num_weights + ROUNDS * 7 * grams)
        return (4 * cls.num_moved + casts) * num_weights + rounds

    @classmethod
    def count_temporary_bytes(
        cls, shapes: Mapping[Shape, int], *, compiled: bool, on_gpu: bool, before: int
    ) -> tuple[int, int]:
        """Return the bytes of temporaries at the peak of an update, and of those that exist after it.

        The clipped gradient and the mean are in float32. The rounds need five tensors of the size of the
        group and one of x xᵀ, on a GPU in bfloat16. The new weights and mean of the previous group exist
        until they are copied.
        """
        peak = 0
        for shape, count in shapes.items():
            size = 4 * count * math.prod(shape)
            gram = size * min(shape) // max(shape)
            peak = max(peak, 2 * size + (5 * size + gram) * (2 if on_gpu else 4) // 4 + before)
            before = 0 if compiled else 2 * size
        return peak, before

    def partition(self, parameters: list[Parameter]) -> list[list[Parameter]]:
        """Group the matrices by shape."""
        by_shape: dict[torch.Size, list[Parameter]] = {}
        for parameter in parameters:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        return list(by_shape.values())

    def lay_out(self, parameters: Sequence[Parameter]) -> tuple[Tensor, list[Tensor]]:
        """Return a stack for the matrices and a view of it for each."""
        flat = torch.zeros(
            (len(parameters), *parameters[0].shape), dtype=parameters[0].dtype, device=parameters[0].device
        )
        return flat, list(flat)

    @staticmethod
    def update_group(flat: FlatGroup, gradient: OnGroup, t: Count) -> Updated:
        """Apply the two equations of `Muon`."""
        m, direction = FusedMuon.average(flat, gradient)
        direction = orthogonalise(direction).to(m.dtype)
        return FusedMuon.descend(flat, direction, m.shape), {"momentum_buffer": m}

    @staticmethod
    def average(flat: FlatGroup, gradient: OnGroup) -> tuple[OnGroup, OnGroup]:
        """Return the new mean, and the direction to orthogonalise."""
        mu = flat.group["momentum"]
        m = mu * flat.state["momentum_buffer"] + (1 - mu) * gradient
        direction = (1 - mu) * gradient + mu * m
        return m, direction.bfloat16() if direction.is_cuda else direction

    @staticmethod
    def descend(flat: FlatGroup, direction: OnGroup, shape: Sequence[int]) -> OnGroup:
        """Return the new weights from the orthogonalised direction; `shape` is that of a whole matrix."""
        scale = math.sqrt(max(1.0, shape[-2] / shape[-1]))
        decayed = flat.weights - flat.lr * flat.group["weight_decay"] * flat.weights
        weights: Tensor = decayed - flat.lr * scale * direction
        return weights


def apply_clipped(
    updates: Sequence[FusedUpdate], loss: Float[Tensor, ""], max_norm: float
) -> tuple[Float[Tensor, ""], Bool[Tensor, ""]]:
    """Clip by the global norm and update unless loss or norm is not finite; return norm and acceptance.

    Gradients and learning rates must be in the flat groups already. Has no branches, so that it compiles into
    one function.
    """
    norm = global_norm([flat.gradients for one in updates for flat in one.flat_groups])
    accept = torch.isfinite(loss) & torch.isfinite(norm)
    factor = clip_factor(norm, max_norm)
    for one in updates:
        one.apply(factor, accept)
    return norm, accept


def fused_updates(optimizer: torch.optim.Optimizer) -> list[FusedUpdate]:
    """Return the updates of a fused optimizer, or an empty list if not all of its parts are fused."""
    parts = parts_of(optimizer)
    if not all(isinstance(part, FusedOptimizer) for part in parts):
        return []
    return [update for part in parts if isinstance(part, FusedOptimizer) for update in part.updates]


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether hooks are registered for the steps of an optimizer or of one of its parts."""
    return any(
        part._optimizer_step_pre_hooks or part._optimizer_step_post_hooks
        for part in (*parts_of(optimizer), optimizer)
    )


def _num_weights(shapes: Mapping[Shape, int]) -> int:
    return sum(count * math.prod(shape) for shape, count in shapes.items())


def _one_minus_power(beta: float, t: Int64[Tensor, ""]) -> Float[Tensor, ""]:
    """Return 1 - βᵗ without cancellation: β = 0.999 and t = 1 would lose four digits in float32."""
    return -torch.expm1(t.float() * (math.log(beta) if beta > 0 else -math.inf))
