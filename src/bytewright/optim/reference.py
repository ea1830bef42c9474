"""The reference optimizers: SGD, AdamW and Muon from their equations, one parameter after the other.

`fused` has the same constructors, rules and state names, so a checkpoint of one implementation loads into the
other. `step` accepts a flag `accept`: if it is false, weights, state and step count stay unchanged. The
learning rate of a step is `param_groups[i]["lr"]` at the time of the call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import Parameter

from bytewright.errors import FormatError, UsageError, wrong_value

Group = dict[str, Any]
Weight = Float[Tensor, "*weight"]
"""A parameter, its gradient or one of its state tensors; in one call they have the same shape."""
Parameters = Iterable[Parameter] | Iterable[Group]


class Optimizer:
    """Base class: parameters in groups that share settings, and the state of each parameter.

    A subclass defines `state_names` (the state tensors, each of the parameter's shape) and `update`.
    """

    state_names: tuple[str, ...] = ()

    def __init__(self, params: Parameters, **settings: Any) -> None:
        given = list(params)
        groups = [item if isinstance(item, dict) else {"params": [item]} for item in given]
        if given and not isinstance(given[0], dict):
            groups = [{"params": given}]
        self.param_groups: list[Group] = [
            settings | group | {"params": list(group["params"])} for group in groups
        ]
        for group in self.param_groups:
            _check_settings(group)
        if not self.parameters:
            raise UsageError(
                "the optimizer has no parameters (an iterator yields them only once)", key="params"
            )
        if len(set(self.parameters)) != len(self.parameters):
            raise UsageError("a parameter was passed to the optimizer twice", key="params")
        self.num_updates = [0 for _ in self.parameters]
        self.state: list[dict[str, Tensor]] = [
            {name: torch.zeros_like(parameter) for name in self.state_names} for parameter in self.parameters
        ]

    def __repr__(self) -> str:
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
        size = sum(parameter.numel() for parameter in self.parameters)
        return f"{type(self).__name__}({size:,} parameters, {settings})"

    @property
    def parameters(self) -> list[Parameter]:
        """All parameters, group after group; the state is numbered in this order."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, *, accept: Bool[Tensor, ""] | None = None) -> None:
        """Update every parameter that has a gradient, unless `accept` is false."""
        if accept is not None and not accept:
            return
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.num_updates[number] += 1
                    self.update(
                        parameter, parameter.grad, self.num_updates[number], self.state[number], group
                    )
                number += 1

    def update(
        self, weight: Weight, gradient: Weight, t: int, state: Mapping[str, Weight], group: Group
    ) -> None:
        """Update `weight` and `state` in place; `t` is the number of this parameter's update, from 1."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return settings and state for a checkpoint; parameters are identified by their number."""
        first = 0
        groups = []
        for group in self.param_groups:
            numbers = list(range(first, first + len(group["params"])))
            first += len(numbers)
            groups.append({**group, "params": numbers})
        return {
            "state": {
                number: {"t": self.num_updates[number], **tensors}
                for number, tensors in enumerate(self.state)
            },
            "param_groups": groups,
        }

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise `FormatError` if `load_state_dict` cannot load `state_dict`; changes nothing."""
        check_saved_state(self, state_dict)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the result of `state_dict` of an optimizer of the same kind; on an error nothing changes."""
        self.check_state_dict(state_dict)
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({name: value for name, value in saved.items() if name != "params"})
        for number, saved in state_dict["state"].items():
            self.num_updates[number] = saved["t"]
            for name in self.state_names:
                self.state[number][name].copy_(saved[name])


class SGD(Optimizer):
    """θ ← θ - lr/√(t+1)·∇ with t from 0; with `decay=False` the rate is lr.

    >>> weight = Parameter(torch.tensor([2.0]))
    >>> weight.grad = torch.tensor([1.0])
    >>> SGD([weight], lr=0.5).step()
    >>> weight.item()
    1.5
    """

    def __init__(self, params: Parameters, lr: float = 1e-3, *, decay: bool = True) -> None:
        super().__init__(params, lr=lr, decay=decay)

    def update(
        self, weight: Weight, gradient: Weight, t: int, state: Mapping[str, Weight], group: Group
    ) -> None:
        """Apply one SGD update."""
        weight -= group["lr"] / (math.sqrt(t) if group["decay"] else 1.0) * gradient


class AdamW(Optimizer):
    """Adam with decoupled weight decay: steps of about the same size for every weight.

    First the decay, then the running means of the gradient and of its square, then the step, whose rate
    corrects the initial bias of both means:

        θ ← θ - lr λ θ
        m ← β₁ m + (1 - β₁) g
        v ← β₂ v + (1 - β₂) g²
        θ ← θ - lr √(1 - β₂ᵗ) / (1 - β₁ᵗ) · m / (√v + ε)

    torch adds ε to the *corrected* √v; the results differ only if gradients are as small as ε.
    """

    state_names = ("m", "v")

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)

    def update(
        self, weight: Weight, gradient: Weight, t: int, state: Mapping[str, Weight], group: Group
    ) -> None:
        """Apply the four equations of the class's docstring."""
        lr, (beta1, beta2) = group["lr"], group["betas"]
        m, v = state["m"], state["v"]
        weight -= lr * group["weight_decay"] * weight
        m.copy_(beta1 * m + (1 - beta1) * gradient)
        v.copy_(beta2 * v + (1 - beta2) * gradient**2)
        rate = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
        weight -= rate * m / (v.sqrt() + group["eps"])


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan's quintic.

Five rounds map singular values of at least 0.0015 of the Frobenius norm to between 0.68 and 1.21. Smaller
ones grow by a factor of at most 3.4445⁵ = 485 and stay below that range.
"""


def orthogonalise(
    matrix: Float[Tensor, "*batch rows columns"], rounds: int = 5, epsilon: float = 1e-7
) -> Float[Tensor, "*batch rows columns"]:
    """Return about U Vᵀ for `matrix` = U S Vᵀ: singular values near 1, singular vectors unchanged.

    Each round applies a·s + b·s³ + c·s⁵ to every singular value s, using only products. The Frobenius norm is
    an upper bound of the singular values, so after the division by it they are between 0 and 1. Singular
    values that are tiny compared with the norm do not reach 1 (see `NEWTON_SCHULZ`).

    >>> before = torch.diag(torch.tensor([3.0, 1.0, 0.001]))
    >>> [round(value, 1) for value in torch.linalg.svdvals(orthogonalise(before)).tolist()]
    [1.1, 0.8, 0.2]
    """
    a, b, c = NEWTON_SCHULZ
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix  # so that the products have the size of the shorter side
    x = x / (x.square().sum(dim=(-2, -1), keepdim=True).sqrt() + epsilon)
    for _ in range(rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class Muon(Optimizer):
    """Orthogonalised momentum: all directions of a weight matrix change by about the same amount.

        m ← μ m + (1 - μ) g
        θ ← θ - lr λ θ - lr √max(1, rows/columns) · orthogonalise((1 - μ) g + μ m)

    Use it for the weight matrices of the blocks, and AdamW for embeddings, head and gains
    (`CombinedOptimizer`).
    """

    state_names = ("m",)

    def __init__(
        self, params: Parameters, lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        for parameter in self.parameters:
            if parameter.ndim != 2:
                raise wrong_value("params", "matrices for Muon", tuple(parameter.shape))

    def update(
        self, weight: Weight, gradient: Weight, t: int, state: Mapping[str, Weight], group: Group
    ) -> None:
        """Apply the two equations of the class's docstring."""
        lr, mu, m = group["lr"], group["momentum"], state["m"]
        m.copy_(mu * m + (1 - mu) * gradient)
        direction = orthogonalise((1 - mu) * gradient + mu * m)
        weight -= lr * group["weight_decay"] * weight
        weight -= lr * math.sqrt(max(1.0, weight.shape[0] / weight.shape[1])) * direction


class CombinedOptimizer:
    """Several optimizers with the interface of one, such as Muon for matrices and AdamW for the rest."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = list(optimizers)

    @property
    def param_groups(self) -> list[Group]:
        """The parameter groups of all optimizers; set learning rates here."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters of all optimizers."""
        return [parameter for optimizer in self.optimizers for parameter in optimizer.parameters]

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self, *, accept: Bool[Tensor, ""] | None = None) -> None:
        """Step every optimizer, unless `accept` is false."""
        for optimizer in self.optimizers:
            optimizer.step(accept=accept)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every optimizer, in order."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise `FormatError` if `load_state_dict` cannot load `state_dict`; changes nothing."""
        saved = state_dict.get("optimizers") if isinstance(state_dict, Mapping) else None
        if not isinstance(saved, list) or not all(isinstance(one, dict) for one in saved):
            raise FormatError("the saved state is not that of a CombinedOptimizer", key="optimizers")
        if len(saved) != len(self.optimizers):
            raise FormatError(
                f"the saved state has {len(saved)} optimizers, this run has {len(self.optimizers)}",
                key="optimizers",
                expected=len(self.optimizers),
                found=len(saved),
            )
        for optimizer, one in zip(self.optimizers, saved, strict=True):
            optimizer.check_state_dict(one)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state of every optimizer; on an error nothing changes."""
        self.check_state_dict(state_dict)
        for optimizer, one in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(one)


def check_saved_state(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Raise `FormatError` if a saved state is invalid or is of other parameters or of another rule."""
    fields = state_dict if isinstance(state_dict, Mapping) else {}
    saved, groups = fields.get("state"), fields.get("param_groups")
    if (
        not isinstance(saved, dict)
        or not isinstance(groups, list)
        or not all(isinstance(each, dict) for each in (*saved.values(), *groups))
    ):
        raise FormatError("the saved state is not that of an optimizer")
    parameters = optimizer.parameters
    if len(groups) != len(optimizer.param_groups):
        raise FormatError(
            f"the saved optimizer state has {len(groups)} parameter groups, "
            f"this optimizer has {len(optimizer.param_groups)}",
            key="param_groups",
            expected=len(optimizer.param_groups),
            found=len(groups),
        )
    for ours, theirs in zip(optimizer.param_groups, groups, strict=True):
        _check_same_settings(ours, theirs)
    if set(saved) != set(range(len(parameters))):
        raise FormatError(
            f"the saved optimizer state has {len(saved)} parameters, this optimizer has {len(parameters)}",
            key="state",
            expected=len(parameters),
            found=len(saved),
        )
    for number, parameter in enumerate(parameters):
        count = saved[number].get("t")
        if type(count) is not int or not 0 <= count < 2**63:
            raise FormatError(
                f"the saved optimizer state of parameter {number} has no valid update count",
                key=f"state.{number}.t",
                found=count,
            )
        for name in optimizer.state_names:
            found = saved[number].get(name)
            if not isinstance(found, Tensor) or found.shape != parameter.shape:
                shape = tuple(found.shape) if isinstance(found, Tensor) else None
                raise FormatError(
                    f"the saved optimizer state {name!r} of parameter {number} has the shape {shape}, "
                    f"expected {tuple(parameter.shape)}",
                    key=f"state.{number}.{name}",
                    expected=tuple(parameter.shape),
                    found=shape,
                )


def _check_same_settings(ours: Group, theirs: Mapping[str, Any]) -> None:
    """Raise `FormatError` if saved settings have other names or value types than this rule."""
    if ours.keys() != theirs.keys():
        raise FormatError(
            f"the saved optimizer settings are {', '.join(map(str, theirs))}, expected {', '.join(ours)}",
            key="param_groups",
            expected=list(ours),
            found=list(theirs),
        )
    for name, value in ours.items():
        if name != "params" and not _has_same_type(value, theirs[name]):
            raise FormatError(
                f"the saved optimizer setting {name!r} is {theirs[name]!r}, expected a value like {value!r}",
                key=name,
                expected=value,
                found=theirs[name],
            )


def _has_same_type(ours: object, theirs: object) -> bool:
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(_has_same_type, ours, theirs))
    numbers = (int, float)
    return type(ours) is type(theirs) or (type(ours) in numbers and type(theirs) in numbers)


def _check_settings(group: Group) -> None:
    for name in ("lr", "weight_decay", "eps"):
        if name in group and not group[name] >= 0:
            raise wrong_value(name, "at least 0", group[name])
    fractions = dict(zip(("beta1", "beta2"), group.get("betas", ()), strict=False))
    if "momentum" in group:
        fractions["momentum"] = group["momentum"]
    for name, value in fractions.items():
        if not 0 <= value < 1:
            raise wrong_value(name, "at least 0 and less than 1", value)
