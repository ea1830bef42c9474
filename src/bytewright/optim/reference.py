"""The update rules, straight from their equations: SGD, AdamW and Muon, one parameter after the other.

These are the readable twins; `fused_optimizers` holds the fast ones, with the same constructors, the same
rules and the same state under the same names, so a checkpoint of one loads into the other. A step may be
handed `accept`, a flag that says whether the gradients are sound; where it is false nothing changes, not
even the count of steps. Nothing here knows about models, schedules or disks: a learning rate is whatever
stands in `param_groups[i]["lr"]` when `step` is called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import Parameter

from bytewright.errors import FormatError, UsageError

Group = dict[str, Any]
Weight = Float[Tensor, "*weight"]
"""A parameter, its gradient or a part of its state: in one call they all have one shape."""
Parameters = Iterable[Parameter] | Iterable[Group]


class Optimizer:
    """Parameters in groups that share settings, and the state that a rule keeps for each parameter.

    A subclass gives `state_names` (the tensors kept per parameter, each of its shape) and `update`.
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
            raise UsageError("the optimizer was given no parameters; an iterator gives them only once")
        if len(set(self.parameters)) != len(self.parameters):
            raise UsageError("a parameter is given to the optimizer twice")
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
        """All parameters, group after group: their order is the numbering of the state."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, *, accept: Bool[Tensor, ""] | None = None) -> None:
        """Apply the rule once to every parameter that has a gradient, unless `accept` says no."""
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
        """Change `weight` and `state` in place; `t` counts this parameter's updates from 1."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resume needs; parameters are named by their number."""
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
        """Refuse what `load_state_dict` could not take over; changes nothing."""
        check_saved_state(self, state_dict)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` of an optimizer of this kind and these parameters gave, or nothing."""
        self.check_state_dict(state_dict)
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({name: value for name, value in saved.items() if name != "params"})
        for number, saved in state_dict["state"].items():
            self.num_updates[number] = saved["t"]
            for name in self.state_names:
                self.state[number][name].copy_(saved[name])


class SGD(Optimizer):
    """θ ← θ - lr/√(t+1)·∇ with t from 0: the decaying rate of the toy example; `decay=False` keeps lr.

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
        """Go down the slope."""
        weight -= group["lr"] / (math.sqrt(t) if group["decay"] else 1.0) * gradient


class AdamW(Optimizer):
    """Adam with decoupled weight decay: a step of about the same size for every weight.

    Decay first; then the running means of the gradient and of its square; then the step, with the start-up
    bias of both means folded into the rate:

        θ ← θ - lr λ θ
        m ← β₁ m + (1 - β₁) g
        v ← β₂ v + (1 - β₂) g²
        θ ← θ - lr √(1 - β₂ᵗ) / (1 - β₁ᵗ) · m / (√v + ε)

    torch adds ε to the *corrected* √v instead: the two differ only where gradients are as small as ε.
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
        """Apply the four lines of the class's docstring."""
        lr, (beta1, beta2) = group["lr"], group["betas"]
        m, v = state["m"], state["v"]
        weight -= lr * group["weight_decay"] * weight
        m.copy_(beta1 * m + (1 - beta1) * gradient)
        v.copy_(beta2 * v + (1 - beta2) * gradient**2)
        rate = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
        weight -= rate * m / (v.sqrt() + group["eps"])


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan's quintic.

Five rounds bring singular values of at least 0.0015 of the Frobenius norm to between 0.68 and 1.21. Smaller
ones grow by a factor of at most 3.4445⁵ = 485 and stay below that range.
"""


def orthogonalise(
    matrix: Float[Tensor, "*batch rows columns"], rounds: int = 5, epsilon: float = 1e-7
) -> Float[Tensor, "*batch rows columns"]:
    """Move the singular values of `matrix` towards 1, keep its singular vectors: U S Vᵀ becomes about U Vᵀ.

    Each round applies a·s + b·s³ + c·s⁵ to every singular value s at once, by products alone. The Frobenius
    norm bounds the largest singular value, so after the division by it all of them are between 0 and 1.
    `NEWTON_SCHULZ` states where they end: those that are tiny compared with the norm do not come near 1.

    >>> before = torch.diag(torch.tensor([3.0, 1.0, 0.001]))
    >>> [round(value, 1) for value in torch.linalg.svdvals(orthogonalise(before)).tolist()]
    [1.1, 0.8, 0.2]
    """
    a, b, c = NEWTON_SCHULZ
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix  # the products below are of the size of the shorter side
    x = x / (x.square().sum(dim=(-2, -1), keepdim=True).sqrt() + epsilon)
    for _ in range(rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class Muon(Optimizer):
    """Momentum, orthogonalised: every direction of a weight matrix moves by about the same amount.

        m ← μ m + (1 - μ) g
        θ ← θ - lr λ θ - lr √max(1, rows/columns) · orthogonalise((1 - μ) g + μ m)

    For the weight matrices inside blocks only; embeddings, head and gains want AdamW (`Together` joins the
    two).
    """

    state_names = ("m",)

    def __init__(
        self, params: Parameters, lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        for parameter in self.parameters:
            if parameter.ndim != 2:
                raise UsageError(
                    f"Muon is for matrices, not for a parameter of shape {tuple(parameter.shape)}"
                )

    def update(
        self, weight: Weight, gradient: Weight, t: int, state: Mapping[str, Weight], group: Group
    ) -> None:
        """Apply the two lines of the class's docstring."""
        lr, mu, m = group["lr"], group["momentum"], state["m"]
        m.copy_(mu * m + (1 - mu) * gradient)
        direction = orthogonalise((1 - mu) * gradient + mu * m)
        weight -= lr * group["weight_decay"] * weight
        weight -= lr * math.sqrt(max(1.0, weight.shape[0] / weight.shape[1])) * direction


class CombinedOptimizer:
    """Several optimizers that step as one, such as Muon for matrices and AdamW for the rest."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = list(optimizers)

    @property
    def param_groups(self) -> list[Group]:
        """The groups of all, to set learning rates in."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters of all."""
        return [parameter for optimizer in self.optimizers for parameter in optimizer.parameters]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self, *, accept: Bool[Tensor, ""] | None = None) -> None:
        """Apply every rule once, unless `accept` says no."""
        for optimizer in self.optimizers:
            optimizer.step(accept=accept)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each, in order."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse what `load_state_dict` could not take over; changes nothing."""
        saved = state_dict.get("optimizers") if isinstance(state_dict, Mapping) else None
        if not isinstance(saved, list) or not all(isinstance(one, dict) for one in saved):
            raise FormatError("what was saved is not the state of several optimizers together")
        if len(saved) != len(self.optimizers):
            raise FormatError(
                f"the saved state is of {len(saved)} optimizers together, this run has {len(self.optimizers)}"
            )
        for optimizer, one in zip(self.optimizers, saved, strict=True):
            optimizer.check_state_dict(one)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the state of each, in order; if one is refused, none is changed."""
        self.check_state_dict(state_dict)
        for optimizer, one in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(one)


def check_saved_state(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Refuse a saved state that belongs to other parameters or to another rule, or is no state at all."""
    if not isinstance(state_dict, Mapping):
        raise FormatError("what was saved is not the state of an optimizer")
    saved, groups = state_dict.get("state"), state_dict.get("param_groups")
    if not isinstance(saved, dict) or not isinstance(groups, list):
        raise FormatError("what was saved is not the state of an optimizer")
    if not all(isinstance(each, dict) for each in (*saved.values(), *groups)):
        raise FormatError("what was saved is not the state of an optimizer")
    parameters = optimizer.parameters
    if len(groups) != len(optimizer.param_groups):
        raise FormatError(
            f"the saved optimizer state has {len(groups)} parameter groups, "
            f"this optimizer has {len(optimizer.param_groups)}"
        )
    for ours, theirs in zip(optimizer.param_groups, groups, strict=True):
        _check_same_settings(ours, theirs)
    if set(saved) != set(range(len(parameters))):
        raise FormatError(
            f"the saved optimizer state is of {len(saved)} parameters, this optimizer has {len(parameters)}"
        )
    for number, parameter in enumerate(parameters):
        count = saved[number].get("t")
        if type(count) is not int or not 0 <= count < 2**63:
            raise FormatError(f"the saved optimizer state of parameter {number} has no count of updates")
        for name in optimizer.state_names:
            found = saved[number].get(name)
            if not isinstance(found, Tensor) or found.shape != parameter.shape:
                shape = tuple(found.shape) if isinstance(found, Tensor) else None
                raise FormatError(
                    f"the saved optimizer state {name!r} of parameter {number} has the shape {shape}, "
                    f"expected {tuple(parameter.shape)}"
                )


def _check_same_settings(ours: Group, theirs: Mapping[str, Any]) -> None:
    """Refuse saved settings that are not those of this rule: other names, or values of another kind."""
    if ours.keys() != theirs.keys():
        raise FormatError(
            f"the saved optimizer settings are {', '.join(map(str, theirs))}, expected {', '.join(ours)}"
        )
    for name, value in ours.items():
        if name != "params" and not _is_alike(value, theirs[name]):
            raise FormatError(f"the saved optimizer setting {name!r} is {theirs[name]!r}, ours is {value!r}")


def _is_alike(ours: object, theirs: object) -> bool:
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(_is_alike, ours, theirs))
    numbers = (int, float)
    return type(ours) is type(theirs) or (type(ours) in numbers and type(theirs) in numbers)


def _check_settings(group: Group) -> None:
    for name in ("lr", "weight_decay", "eps"):
        if name in group and not group[name] >= 0:
            raise UsageError(f"the optimizer's {name} must not be negative, but is {group[name]}")
    fractions = dict(zip(("beta1", "beta2"), group.get("betas", ()), strict=False))
    if "momentum" in group:
        fractions["momentum"] = group["momentum"]
    for name, value in fractions.items():
        if not 0 <= value < 1:
            raise UsageError(f"the optimizer's {name} must be at least 0 and less than 1, but is {value}")
