"""The reference optimizers: SGD, AdamW and Muon from their equations, one parameter after the other.

They are `torch.optim.Optimizer` subclasses: torch's schedulers, hooks and `add_param_group` work, and `state`
has torch's names. `fused` has the same constructors, rules and state names, so a checkpoint of one
implementation loads into the other. `step` accepts a flag `accept`: if it is false, weights, state and step
count stay unchanged. The learning rate of a step is `param_groups[i]["lr"]` at the time of the call.
`saved_state` checks the states that are loaded.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import Parameter

from bytewright.errors import UsageError, wrong_value
from bytewright.optim.saved_state import check_saved_state, load_state, split_combined_state, translate_state

Group = dict[str, Any]
State = Mapping[str, Any]
Weight = Float[Tensor, "*weight"]
"""A parameter, its gradient or one of its state tensors; in one call they have the same shape."""
Parameters = Iterable[Parameter] | Iterable[Group] | Iterable[tuple[str, Parameter]]
Closure = Callable[[], Any]


class Optimizer(torch.optim.Optimizer):
    """Base class: parameters in groups that share settings, and the state of each parameter.

    A subclass defines `state_names` (the state tensors, each of the parameter's shape) and `update`. Unlike
    torch's optimizers it creates the state of a parameter together with its group, not in the first step.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    former_names: ClassVar[Mapping[str, str]] = {"t": "step"}
    """Names in checkpoints written before the optimizers were those of torch, and what they are now."""
    num_operations: ClassVar[int | None] = None
    """Elementwise operations of an update per weight; None: `account` traces an update instead."""
    num_temporaries: ClassVar[int] = 0
    """Tensors of the size of the largest parameter that exist during the update of one parameter."""
    fused_version: ClassVar[type[Optimizer] | None] = None
    """The class of `fused` that applies the same rule to whole groups; each rule has its own."""
    torch_settings: ClassVar[Mapping[str, Any]] = {}
    """Settings that only torch's class of this name has, and the value for which both rules are the same."""

    def __init__(self, params: Parameters, **settings: Any) -> None:
        given: list[Any] = [dict(item) if isinstance(item, dict) else item for item in params]
        if not given:
            raise _no_parameters()
        super().__init__(given, settings)
        if not self.parameters:
            raise _no_parameters()

    def __repr__(self) -> str:
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
        size = sum(parameter.numel() for parameter in self.parameters)
        return f"{type(self).__name__}({size:,} parameters, {settings})"

    @property
    def parameters(self) -> list[Parameter]:
        """All parameters, group after group; a state dict numbers them in this order."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with their own settings; missing settings are those of the constructor."""
        _check_settings({**self.defaults, **param_group})
        given = param_group["params"]
        param_group["params"] = [given] if isinstance(given, Tensor) else list(given)
        members = [item[1] if isinstance(item, tuple) else item for item in param_group["params"]]
        if len({*members, *self.parameters}) != len(members) + len(self.parameters):
            raise UsageError("a parameter was passed to the optimizer twice", key="params")
        self.check_parameters(members)
        super().add_param_group(param_group)
        for parameter in members:
            self.state[parameter] = self.initial_state(parameter)

    @classmethod
    def count_flops(cls, shape: Sequence[int]) -> tuple[int, int]:
        """Return the FLOPs of products and the elementwise operations of the update of one parameter."""
        return 0, (cls.num_operations or 0) * math.prod(shape)

    def check_parameters(self, parameters: Sequence[Tensor]) -> None:
        """Raise if the rule cannot update one of the parameters."""

    def initial_state(self, parameter: Tensor) -> dict[str, Any]:
        """Return the state of a parameter before its first update."""
        return {"step": 0, **{name: torch.zeros_like(parameter) for name in self.state_names}}

    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, accept: Bool[Tensor, ""] | None = None) -> Any:
        """Update every parameter that has a gradient, unless `accept` is false; return the closure's loss."""
        loss = evaluate(closure)
        if accept is None or accept:
            self.update_each()
        return loss

    def update_each(self, of: Iterable[Tensor] | None = None) -> None:
        """Update every parameter that has a gradient, one after the other; `of` leaves out all others."""
        chosen = None if of is None else set(of)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and (chosen is None or parameter in chosen):
                    state = self.state[parameter]
                    if not state:  # the state was cleared
                        state.update(self.initial_state(parameter))
                    state["step"] += 1
                    self.update(parameter, parameter.grad, int(state["step"]), state, group)

    def update(self, weight: Weight, gradient: Weight, t: int, state: State, group: Group) -> None:
        """Update `weight` and `state` in place; `t` is the number of this parameter's update, from 1."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return settings and state as torch's optimizers do: parameters are identified by their number."""
        packed = super().state_dict()
        packed["state"] = {
            number: {**state, "step": int(state["step"])} if state else {}
            for number, state in packed["state"].items()
        }
        return packed

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise `FormatError` if `load_state_dict` cannot load `state_dict`; changes nothing."""
        check_saved_state(self, translate_state(state_dict, self.former_names))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`, also of torch's optimizer with the same rule.

        Tensors are copied in place. On an error nothing changes.
        """
        given: dict[str, Any] = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            given = before(self, given) or given
        saved = translate_state(given, self.former_names)
        check_saved_state(self, saved)
        for group, settings in zip(self.param_groups, saved["param_groups"], strict=True):
            known = {name: value for name, value in settings.items() if name not in self.torch_settings}
            group.update(copy.deepcopy({name: value for name, value in known.items() if name != "params"}))
        counts = []
        for number, parameter in enumerate(self.parameters):
            values = saved["state"].get(number) or self.initial_state(parameter)
            counts.append(int(values.get("step", 0)))
            self.state[parameter] = self.state[parameter] or self.initial_state(parameter)
            for name in self.state_names:
                self.state[parameter][name].copy_(values[name])
            self._load_further_state(parameter, values)
        self.set_num_updates(counts)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _load_further_state(self, parameter: Tensor, saved: Mapping[str, Any]) -> None:
        """Replace the values that `update` of a subclass keeps in the state besides `state_names`."""
        declared = {*self.state_names, "step"}
        state = self.state[parameter]
        for name in [name for name in state if name not in declared]:
            del state[name]
        for name, value in saved.items():
            if name not in declared:
                is_tensor = isinstance(value, Tensor)
                state[name] = value.to(parameter.device, copy=True) if is_tensor else copy.deepcopy(value)

    def set_num_updates(self, counts: Sequence[int]) -> None:
        """Set how many updates each parameter has had."""
        for parameter, count in zip(self.parameters, counts, strict=True):
            self.state[parameter]["step"] = count


class SGD(Optimizer):
    """θ ← θ - lr/√(t+1)·∇ with t from 0; with `decay=False` the rate is lr.

    >>> weight = Parameter(torch.tensor([2.0]))
    >>> weight.grad = torch.tensor([1.0])
    >>> SGD([weight], lr=0.5).step()
    >>> weight.item()
    1.5
    """

    num_operations = 2
    num_temporaries = 1

    def __init__(self, params: Parameters, lr: float = 1e-3, *, decay: bool = True) -> None:
        super().__init__(params, lr=lr, decay=decay)

    def update(self, weight: Weight, gradient: Weight, t: int, state: State, group: Group) -> None:
        """Apply one SGD update."""
        weight -= group["lr"] / (math.sqrt(t) if group["decay"] else 1.0) * gradient


class AdamW(Optimizer):
    """Adam with decoupled weight decay: steps of about the same size for every weight.

    The decay is applied first, then the running means of the gradient and of its square are updated. The rate
    of the step corrects the initial bias of both means:

        θ ← θ - lr λ θ
        m ← β₁ m + (1 - β₁) g
        v ← β₂ v + (1 - β₂) g²
        θ ← θ - lr √(1 - β₂ᵗ) / (1 - β₁ᵗ) · m / (√v + ε)

    torch adds ε to the *corrected* √v; the results differ only if gradients are as small as ε. State dicts
    can be exchanged with `torch.optim.AdamW`: `exp_avg` is m, `exp_avg_sq` is v, `step` is t.
    """

    state_names = ("exp_avg", "exp_avg_sq")
    num_operations = 14
    num_temporaries = 3
    former_names: ClassVar = {"t": "step", "m": "exp_avg", "v": "exp_avg_sq"}
    torch_settings: ClassVar = {
        "amsgrad": False,
        "maximize": False,
        "decoupled_weight_decay": True,
        "foreach": ...,
        "capturable": ...,
        "differentiable": ...,
        "fused": ...,
    }

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)

    def update(self, weight: Weight, gradient: Weight, t: int, state: State, group: Group) -> None:
        """Apply the four equations of the class's docstring."""
        lr, (beta1, beta2) = group["lr"], group["betas"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
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
ROUNDS = 5
NORM_EPSILON = 1e-7
"""Added to the Frobenius norm, so that a matrix of zeros is not divided by zero."""


def orthogonalise(
    matrix: Float[Tensor, "*batch rows columns"],
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
    x = x / (x.square().sum(dim=(-2, -1), keepdim=True).sqrt() + NORM_EPSILON)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class Muon(Optimizer):
    """Orthogonalised momentum: all directions of a weight matrix change by about the same amount.

        m ← μ m + (1 - μ) g
        θ ← θ - lr λ θ - lr √max(1, rows/columns) · orthogonalise((1 - μ) g + μ m)

    Use it for the weight matrices of the blocks, and AdamW for embeddings, head and gains
    (`CombinedOptimizer`). State dicts can be exchanged with `torch.optim.Muon`: `momentum_buffer` is m.
    """

    state_names = ("momentum_buffer",)
    num_operations = 13
    num_temporaries = 5
    former_names: ClassVar = {"t": "step", "m": "momentum_buffer"}
    torch_settings: ClassVar = {
        "nesterov": True,
        "ns_coefficients": NEWTON_SCHULZ,
        "eps": NORM_EPSILON,
        "ns_steps": ROUNDS,
        "adjust_lr_fn": None,
    }

    def __init__(
        self, params: Parameters, lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)

    @classmethod
    def count_flops(cls, shape: Sequence[int]) -> tuple[int, int]:
        """Return the FLOPs of products and the elementwise operations of the update of one matrix.

        For r rows and c columns, r ≤ c, each round computes x xᵀ (2·r²·c), its square (2·r³) and the product
        with x (2·r²·c). Elementwise: 13·r·c for the mean, the direction, its norm and the weights, and
        2·r·c + 3·r² in each round.

        >>> Muon.count_flops((2, 3))  # five rounds of 24 + 16 + 24
        (320, 198)
        """
        r, c = sorted(shape)
        products = ROUNDS * (2 * r * r * c + 2 * r**3 + 2 * r * r * c)
        return products, cls.num_operations * r * c + ROUNDS * (2 * r * c + 3 * r * r)

    def check_parameters(self, parameters: Sequence[Tensor]) -> None:
        """Raise unless all parameters are matrices."""
        for parameter in parameters:
            if parameter.ndim != 2:
                raise wrong_value("params", "matrices for Muon", tuple(parameter.shape))

    def update(self, weight: Weight, gradient: Weight, t: int, state: State, group: Group) -> None:
        """Apply the two equations of the class's docstring."""
        lr, mu, m = group["lr"], group["momentum"], state["momentum_buffer"]
        m.copy_(mu * m + (1 - mu) * gradient)
        direction = orthogonalise((1 - mu) * gradient + mu * m)
        weight -= lr * group["weight_decay"] * weight
        weight -= lr * math.sqrt(max(1.0, weight.shape[0] / weight.shape[1])) * direction


class CombinedOptimizer(torch.optim.Optimizer):
    """Several optimizers with the interface of one, such as Muon for matrices and AdamW for the rest.

    `param_groups` and `state` are those of its parts, in their order.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)
        self.defaults: dict[str, Any] = {}
        self.__setstate__({})  # the hooks of torch's class, whose constructor would create further groups

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.optimizers))})"

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizers": self.optimizers, "defaults": self.defaults}

    @property
    def param_groups(self) -> list[Group]:  # type: ignore[override]  # torch's class has an attribute
        """The groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]
        """The state of every parameter, by parameter."""
        return {key: value for optimizer in self.optimizers for key, value in optimizer.state.items()}

    @property
    def parameters(self) -> list[Parameter]:
        """All parameters, optimizer after optimizer."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def add_param_group(self, param_group: Group) -> None:
        """Raise: the caller must choose the optimizer that gets the group."""
        raise UsageError("add a parameter group to one of the combined optimizers", key="param_group")

    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, accept: Bool[Tensor, ""] | None = None) -> Any:
        """Step every optimizer, unless `accept` is false; return the closure's loss."""
        loss = evaluate(closure)
        for optimizer in self.optimizers:
            step_if(optimizer, accept)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return settings and state of all optimizers as one; parameters are numbered through."""
        packed: dict[str, Any] = {"state": {}, "param_groups": []}
        first = 0
        for optimizer in self.optimizers:
            one = optimizer.state_dict()
            packed["state"] |= {first + number: state for number, state in one["state"].items()}
            for group in one["param_groups"]:
                numbers = [first + number for number in group["params"]]
                packed["param_groups"].append({**group, "params": numbers})
            first += sum(len(group["params"]) for group in one["param_groups"])
        return packed

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise `FormatError` if `load_state_dict` cannot load `state_dict`; changes nothing."""
        for optimizer, one in zip(self.optimizers, split_combined_state(self, state_dict), strict=True):
            if isinstance(optimizer, Optimizer):
                optimizer.check_state_dict(one)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state of every optimizer; on an error nothing changes."""
        self.check_state_dict(state_dict)
        for optimizer, one in zip(self.optimizers, split_combined_state(self, state_dict), strict=True):
            load_state(optimizer, one)


def parts_of(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return the optimizers that an optimizer combines, or itself alone."""
    return optimizer.optimizers if isinstance(optimizer, CombinedOptimizer) else [optimizer]


def step_if(optimizer: torch.optim.Optimizer, accept: Bool[Tensor, ""] | None) -> None:
    """Step any optimizer unless `accept` is false; only other optimizers than ours wait for the device."""
    if isinstance(optimizer, Optimizer | CombinedOptimizer):
        optimizer.step(accept=accept)
    elif accept is None or accept:
        optimizer.step()


def evaluate(closure: Closure | None) -> Any:
    """Return the loss of a closure, or None without one; gradients are computed."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _no_parameters() -> UsageError:
    return UsageError("the optimizer has no parameters (an iterator yields them only once)", key="params")


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
