"""The update rules over whole groups at once: the fast twins of `optimizers`, with the same state and names.

The parameters of a group are moved into one long buffer (a slab) of which they become views, and so is their
state; a rule is then a handful of operations on a few large tensors instead of on dozens of small ones, and
compiled it is one kernel. Muon stacks matrices of one shape, so that their products are batched. Nothing
here ever asks the device for a value: the learning rate and the count of updates are tensors, and a step that
is not accepted is undone by selection, not by a branch.
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

OnSlab = Float[Tensor, "*slab"]
"""Weights, gradients or state of a whole slab: in one call they all have one shape."""

ALIGNMENT = 64
"""Elements: every parameter starts at a multiple of this in its slab, as fast matrix kernels want it."""


@dataclass
class FlatGroup:
    """Parameters that are views of one tensor; their gradients and state, laid out alike; their settings."""

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
    """An optimizer whose parameters and state live in slabs. A subclass gives `update_slab`."""

    t: Int64[Tensor, ""]
    slabs: list[FlatGroup]

    def build_slabs(self) -> None:
        """Move parameters and state into slabs; called once, at the end of a constructor."""
        kinds = {(parameter.device, parameter.dtype) for parameter in self.parameters}
        if len(kinds) > 1:
            raise UsageError(
                f"a fused optimizer wants parameters of one device and type, not {len(kinds)} kinds"
            )
        self.t = torch.zeros((), dtype=torch.int64, device=self.parameters[0].device)
        self.slabs = []
        first = 0
        for group in self.param_groups:
            numbers = range(first, first + len(group["params"]))
            first += len(numbers)
            for members in self.partition(list(numbers)):
                self.slabs.append(self._build_slab(members, group))

    def partition(self, numbers: list[int]) -> list[list[int]]:
        """Split the parameters of a group into slabs: here one for all."""
        return [numbers] if numbers else []

    def lay_out(self, parameters: Sequence[Parameter]) -> tuple[Tensor, list[Tensor]]:
        """Make a zeroed tensor with room for `parameters`, and a view of it for each: here one long row."""
        starts = [0]
        for parameter in parameters:
            starts.append(starts[-1] + -(-parameter.numel() // ALIGNMENT) * ALIGNMENT)
        slab = torch.zeros(starts[-1], dtype=parameters[0].dtype, device=parameters[0].device)
        views = [
            slab[start : start + parameter.numel()].view(parameter.shape)
            for start, parameter in zip(starts, parameters, strict=False)
        ]
        return slab, views

    def _build_slab(self, numbers: list[int], group: Group) -> FlatGroup:
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
        """Bring the gradients that parameters hold to where `apply` reads them."""
        self.refuse_moved()
        for slab in self.slabs:
            gradients = []
            for number, parameter in zip(slab.numbers, slab.parameters, strict=True):
                if parameter.grad is None:
                    raise UsageError(f"parameter {number} has no gradient: it took no part in the loss")
                gradients.append(parameter.grad)
            torch._foreach_copy_(slab.gradient_views, gradients)

    def refuse_moved(self) -> None:
        """Raise if a parameter is not in its slab any more: an update would not reach it."""
        for slab in self.slabs:
            for number, parameter, view in zip(slab.numbers, slab.parameters, slab.weight_views, strict=True):
                if parameter.data_ptr() != view.data_ptr():
                    raise UsageError(
                        f"parameter {number} was moved after the optimizer was made; move the model first"
                    )

    def take_rates(self) -> None:
        """Bring the learning rates of the groups to where `apply` reads them."""
        for slab in self.slabs:
            slab.lr.fill_(slab.group["lr"])

    def apply(self, factor: Float[Tensor, ""], accept: Bool[Tensor, ""]) -> None:
        """Update every slab with its gradients times `factor`, where `accept` holds. Made to be compiled."""
        t = self.t + accept
        for slab in self.slabs:
            weights, state = self.update_slab(slab, slab.gradients * factor, t)
            slab.weights.copy_(torch.where(accept, weights, slab.weights))
            for name, value in state.items():
                slab.state[name].copy_(torch.where(accept, value, slab.state[name]))
        self.t.copy_(t)

    def update_slab(
        self, slab: FlatGroup, gradient: OnSlab, t: Int64[Tensor, ""]
    ) -> tuple[OnSlab, dict[str, OnSlab]]:
        """Return the new weights and state of a slab; changes nothing."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, *, accept: Bool[Tensor, ""] | None = None) -> None:
        """Apply the rule once to all parameters, where `accept` holds."""
        self.collect()
        self.take_rates()
        yes = torch.ones((), dtype=torch.bool, device=self.t.device)
        self.apply(torch.ones((), device=self.t.device), yes if accept is None else accept)

    def state_dict(self) -> dict[str, Any]:
        """Return what the readable twin would return after the same steps."""
        self.num_updates = [int(self.t)] * len(self.parameters)
        return super().state_dict()

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse what `load_state_dict` could not take over; changes nothing."""
        super().check_state_dict(state_dict)
        if len({saved["t"] for saved in state_dict["state"].values()}) > 1:
            raise FormatError(
                "a fused optimizer counts updates for all parameters together; these counts differ"
            )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state of either twin."""
        super().load_state_dict(state_dict)
        self.t.fill_(self.num_updates[0])


class FusedSGD(FusedOptimizer, SGD):
    """`SGD`, a group at a time."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.build_slabs()

    def update_slab(
        self, slab: FlatGroup, gradient: OnSlab, t: Int64[Tensor, ""]
    ) -> tuple[OnSlab, dict[str, OnSlab]]:
        """Go down the slope."""
        rate = slab.lr * t.float().rsqrt() if slab.group["decay"] else slab.lr
        return slab.weights - rate * gradient, {}


class FusedAdamW(FusedOptimizer, AdamW):
    """`AdamW`, a group at a time."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.build_slabs()

    def update_slab(
        self, slab: FlatGroup, gradient: OnSlab, t: Int64[Tensor, ""]
    ) -> tuple[OnSlab, dict[str, OnSlab]]:
        """Apply the four lines of `AdamW`."""
        beta1, beta2 = slab.group["betas"]
        m = beta1 * slab.state["m"] + (1 - beta1) * gradient
        v = beta2 * slab.state["v"] + (1 - beta2) * gradient.square()
        rate = slab.lr * _one_minus_power(beta2, t).sqrt() / _one_minus_power(beta1, t)
        decayed = slab.weights - slab.lr * slab.group["weight_decay"] * slab.weights
        return decayed - rate * m / (v.sqrt() + slab.group["eps"]), {"m": m, "v": v}


class FusedMuon(FusedOptimizer, Muon):
    """`Muon`, all matrices of one shape at a time; the products run in bfloat16 where that is fast."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.build_slabs()

    def partition(self, numbers: list[int]) -> list[list[int]]:
        """Put matrices of one shape together."""
        by_shape: dict[torch.Size, list[int]] = {}
        for number in numbers:
            by_shape.setdefault(self.parameters[number].shape, []).append(number)
        return list(by_shape.values())

    def lay_out(self, parameters: Sequence[Parameter]) -> tuple[Tensor, list[Tensor]]:
        """Stack the matrices."""
        slab = torch.zeros(
            (len(parameters), *parameters[0].shape), dtype=parameters[0].dtype, device=parameters[0].device
        )
        return slab, list(slab)

    def update_slab(
        self, slab: FlatGroup, gradient: OnSlab, t: Int64[Tensor, ""]
    ) -> tuple[OnSlab, dict[str, OnSlab]]:
        """Apply the two lines of `Muon`."""
        mu = slab.group["momentum"]
        m = mu * slab.state["m"] + (1 - mu) * gradient
        direction = (1 - mu) * gradient + mu * m
        if direction.is_cuda:
            direction = direction.bfloat16()
        direction = orthogonalise(direction).to(m.dtype)
        scale = math.sqrt(max(1.0, m.shape[-2] / m.shape[-1]))
        decayed = slab.weights - slab.lr * slab.group["weight_decay"] * slab.weights
        return decayed - slab.lr * scale * direction, {"m": m}


def apply_clipped(
    optimizers: Sequence[FusedOptimizer], loss: Float[Tensor, ""], max_norm: float
) -> tuple[Float[Tensor, ""], Bool[Tensor, ""]]:
    """Clip by the global norm and update, unless loss or norm is not finite: (norm, whether it was accepted).

    Gradients and rates must be where `apply` reads them. One function of tensors without a branch, made to be
    compiled.
    """
    norm = global_norm([slab.gradients for one in optimizers for slab in one.slabs])
    accept = torch.isfinite(loss) & torch.isfinite(norm)
    factor = clip_factor(norm, max_norm)
    for one in optimizers:
        one.apply(factor, accept)
    return norm, accept


def fused_parts(optimizer: object) -> list[FusedOptimizer]:
    """List the fused optimizers behind `optimizer`; empty if any part of it is a readable twin."""
    parts = optimizer.optimizers if isinstance(optimizer, CombinedOptimizer) else [optimizer]
    fused = [part for part in parts if isinstance(part, FusedOptimizer)]
    return fused if len(fused) == len(parts) else []


def _one_minus_power(beta: float, t: Int64[Tensor, ""]) -> Float[Tensor, ""]:
    """1 - βᵗ without cancellation: β = 0.999 and t = 1 would lose four digits in float32."""
    return -torch.expm1(t.float() * (math.log(beta) if beta > 0 else -math.inf))
