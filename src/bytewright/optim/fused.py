"""The fused optimizers: the rules of `reference` applied to whole groups of parameters at once.

The parameters of a group are moved into one flat buffer and become views of it. Their state has the same
layout. A rule is then a few operations on large tensors instead of many small ones, and one kernel if
compiled. Muon stacks matrices of the same shape, so that their products are batched. No function synchronises
with the device: learning rate and update count are tensors. A step that is not accepted is discarded by
selection (`torch.where`), not by a branch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import Parameter

from bytewright.errors import FormatError, UsageError
from bytewright.optim.clip import clip_factor, global_norm
from bytewright.optim.reference import SGD, AdamW, CombinedOptimizer, Group, Muon, Optimizer, orthogonalise

OnGroup = Float[Tensor, "*group"]
"""Weights, gradients or state of a whole group; in one call they have the same shape."""

ALIGNMENT = 64
"""Every parameter starts at a multiple of this many elements, for the alignment of matrix kernels."""


@dataclass
class FlatGroup:
    """Parameters that are views of one buffer, with gradients and state in the same layout."""

    parameters: list[Parameter]
    numbers: list[int]
    group: Group
    weights: Tensor
    gradients: Tensor
    state: dict[str, Tensor]
    weight_views: list[Tensor]
    gradient_views: list[Tensor]
    lr: Float[Tensor, ""]


class FusedOptimizer(Optimizer):
    """An optimizer whose parameters and state are in flat groups. A subclass defines `update_group`."""

    t: Int64[Tensor, ""]
    flat_groups: list[FlatGroup]

    def build_flat_groups(self) -> None:
        """Move parameters and state into flat groups; called once, at the end of a constructor."""
        kinds = {(parameter.device, parameter.dtype) for parameter in self.parameters}
        if len(kinds) > 1:
            raise UsageError(
                f"a fused optimizer requires parameters of one device and type, but has {len(kinds)} kinds",
                key="params",
                expected=1,
                found=len(kinds),
            )
        self.t = torch.zeros((), dtype=torch.int64, device=self.parameters[0].device)
        self.flat_groups = []
        first = 0
        for group in self.param_groups:
            numbers = range(first, first + len(group["params"]))
            first += len(numbers)
            for members in self.partition(list(numbers)):
                self.flat_groups.append(self._build_flat_group(members, group))

    def partition(self, numbers: list[int]) -> list[list[int]]:
        """Split the parameters of a group into flat groups: here one for all."""
        return [numbers] if numbers else []

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

    def _build_flat_group(self, numbers: list[int], group: Group) -> FlatGroup:
        parameters = [self.parameters[number] for number in numbers]
        weights, weight_views = self.lay_out(parameters)
        gradients, gradient_views = self.lay_out(parameters)
        for parameter, view in zip(parameters, weight_views, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        state = {}
        for name in self.state_names:
            state[name], views = self.lay_out(parameters)
            for number, view in zip(numbers, views, strict=True):
                self.state[number][name] = view
        lr = torch.zeros((), dtype=torch.float32, device=weights.device)
        return FlatGroup(
            parameters, numbers, group, weights, gradients, state, weight_views, gradient_views, lr
        )

    def collect(self) -> None:
        """Copy the gradients of the parameters into the flat groups."""
        self.check_not_moved()
        for flat in self.flat_groups:
            gradients = []
            for number, parameter in zip(flat.numbers, flat.parameters, strict=True):
                if parameter.grad is None:
                    raise UsageError(
                        f"parameter {number} has no gradient: the loss does not depend on it",
                        key="params",
                        found=number,
                    )
                gradients.append(parameter.grad)
            torch._foreach_copy_(flat.gradient_views, gradients)

    def check_not_moved(self) -> None:
        """Raise if a parameter is no longer a view of its flat group: updates would not change it."""
        for flat in self.flat_groups:
            for number, parameter, view in zip(flat.numbers, flat.parameters, flat.weight_views, strict=True):
                if parameter.data_ptr() != view.data_ptr():
                    raise UsageError(
                        f"parameter {number} was moved after the optimizer was created; move the model first",
                        key="params",
                        found=number,
                    )

    def load_learning_rates(self) -> None:
        """Copy the learning rates of the parameter groups into the flat groups."""
        for flat in self.flat_groups:
            flat.lr.fill_(flat.group["lr"])

    def apply(self, factor: Float[Tensor, ""], accept: Bool[Tensor, ""]) -> None:
        """Update every flat group with its gradients times `factor` if `accept` is true; can be compiled."""
        t = self.t + accept
        for flat in self.flat_groups:
            weights, state = self.update_group(flat, flat.gradients * factor, t)
            flat.weights.copy_(torch.where(accept, weights, flat.weights))
            for name, value in state.items():
                flat.state[name].copy_(torch.where(accept, value, flat.state[name]))
        self.t.copy_(t)

    def update_group(
        self, flat: FlatGroup, gradient: OnGroup, t: Int64[Tensor, ""]
    ) -> tuple[OnGroup, dict[str, OnGroup]]:
        """Return the new weights and state of a flat group; changes nothing."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, *, accept: Bool[Tensor, ""] | None = None) -> None:
        """Update all parameters if `accept` is true or None."""
        self.collect()
        self.load_learning_rates()
        yes = torch.ones((), dtype=torch.bool, device=self.t.device)
        self.apply(torch.ones((), device=self.t.device), yes if accept is None else accept)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the reference implementation returns after the same steps."""
        self.num_updates = [int(self.t)] * len(self.parameters)
        return super().state_dict()

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise `FormatError` if `load_state_dict` cannot load `state_dict`; changes nothing."""
        super().check_state_dict(state_dict)
        if len({saved["t"] for saved in state_dict["state"].values()}) > 1:
            raise FormatError(
                "a fused optimizer requires equal update counts of all parameters; the saved counts differ",
                key="state",
            )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of either implementation."""
        super().load_state_dict(state_dict)
        self.t.fill_(self.num_updates[0])


class FusedSGD(FusedOptimizer, SGD):
    """`SGD`, one flat group at a time."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.build_flat_groups()

    def update_group(
        self, flat: FlatGroup, gradient: OnGroup, t: Int64[Tensor, ""]
    ) -> tuple[OnGroup, dict[str, OnGroup]]:
        """Apply one SGD update."""
        rate = flat.lr * t.float().rsqrt() if flat.group["decay"] else flat.lr
        return flat.weights - rate * gradient, {}


class FusedAdamW(FusedOptimizer, AdamW):
    """`AdamW`, one flat group at a time."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.build_flat_groups()

    def update_group(
        self, flat: FlatGroup, gradient: OnGroup, t: Int64[Tensor, ""]
    ) -> tuple[OnGroup, dict[str, OnGroup]]:
        """Apply the four equations of `AdamW`."""
        beta1, beta2 = flat.group["betas"]
        m = beta1 * flat.state["m"] + (1 - beta1) * gradient
        v = beta2 * flat.state["v"] + (1 - beta2) * gradient.square()
        rate = flat.lr * _one_minus_power(beta2, t).sqrt() / _one_minus_power(beta1, t)
        decayed = flat.weights - flat.lr * flat.group["weight_decay"] * flat.weights
        return decayed - rate * m / (v.sqrt() + flat.group["eps"]), {"m": m, "v": v}


class FusedMuon(FusedOptimizer, Muon):
    """`Muon`, all matrices of one shape at a time; on a GPU the products run in bfloat16."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.build_flat_groups()

    def partition(self, numbers: list[int]) -> list[list[int]]:
        """Group the matrices by shape."""
        by_shape: dict[torch.Size, list[int]] = {}
        for number in numbers:
            by_shape.setdefault(self.parameters[number].shape, []).append(number)
        return list(by_shape.values())

    def lay_out(self, parameters: Sequence[Parameter]) -> tuple[Tensor, list[Tensor]]:
        """Return a stack for the matrices and a view of it for each."""
        flat = torch.zeros(
            (len(parameters), *parameters[0].shape), dtype=parameters[0].dtype, device=parameters[0].device
        )
        return flat, list(flat)

    def update_group(
        self, flat: FlatGroup, gradient: OnGroup, t: Int64[Tensor, ""]
    ) -> tuple[OnGroup, dict[str, OnGroup]]:
        """Apply the two equations of `Muon`."""
        mu = flat.group["momentum"]
        m = mu * flat.state["m"] + (1 - mu) * gradient
        direction = (1 - mu) * gradient + mu * m
        if direction.is_cuda:
            direction = direction.bfloat16()
        direction = orthogonalise(direction).to(m.dtype)
        scale = math.sqrt(max(1.0, m.shape[-2] / m.shape[-1]))
        decayed = flat.weights - flat.lr * flat.group["weight_decay"] * flat.weights
        return decayed - flat.lr * scale * direction, {"m": m}


def apply_clipped(
    optimizers: Sequence[FusedOptimizer], loss: Float[Tensor, ""], max_norm: float
) -> tuple[Float[Tensor, ""], Bool[Tensor, ""]]:
    """Clip by the global norm and update unless loss or norm is not finite; return norm and acceptance.

    Gradients and learning rates must be in the flat groups already. Has no branches, so that it compiles into
    one function.
    """
    norm = global_norm([flat.gradients for one in optimizers for flat in one.flat_groups])
    accept = torch.isfinite(loss) & torch.isfinite(norm)
    factor = clip_factor(norm, max_norm)
    for one in optimizers:
        one.apply(factor, accept)
    return norm, accept


def fused_parts(optimizer: object) -> list[FusedOptimizer]:
    """Return the fused optimizers of `optimizer`, or an empty list if not all of its parts are fused."""
    parts = optimizer.optimizers if isinstance(optimizer, CombinedOptimizer) else [optimizer]
    fused = [part for part in parts if isinstance(part, FusedOptimizer)]
    return fused if len(fused) == len(parts) else []


def _one_minus_power(beta: float, t: Int64[Tensor, ""]) -> Float[Tensor, ""]:
    """Return 1 - βᵗ without cancellation: β = 0.999 and t = 1 would lose four digits in float32."""
    return -torch.expm1(t.float() * (math.log(beta) if beta > 0 else -math.inf))
