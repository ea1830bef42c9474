"""Optimizers by name: how a run builds a registered optimizer over the parameters of its model.

A registered optimizer is one of two:

- a `torch.optim.Optimizer` class. Its constructor receives the parameters in two groups, matrices with weight
  decay and one-dimensional parameters without. If the model has `mup_base_width`, the matrices inside blocks
  are a third group with its own learning rate. It also receives `lr`, `weight_decay`, `eps`, `momentum` and
  `betas` of the config, if it has parameters of these names. All other parameters are options
  (`[optimizer.options]`).
- a function `build(model, config, **options)` that returns an optimizer. `config` has the fields of
  `OptimizerConfig`.

    @optimizers.register("lion")
    class Lion(torch.optim.Optimizer): ...

Every group of an optimizer must have a learning rate `lr`: a run multiplies it by the factor of its schedule.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from bytewright.errors import BytewrightError, UsageError, first_line, is_out_of_memory, shorten
from bytewright.optim.fused import FusedAdamW, FusedMuon, FusedSGD
from bytewright.optim.reference import SGD, AdamW, CombinedOptimizer, Group, Muon, parts_of
from bytewright.registry import is_built_in, optimizers
from bytewright.storage.config_reader import read_options

FIELDS = ("lr", "weight_decay", "eps", "momentum", "betas")
"""Parameters of a constructor that receive fields of the config; `betas` is (beta1, beta2)."""


OptimizerSettings = Any
"""An object with the fields of `train.OptimizerConfig`."""


@dataclass(frozen=True, kw_only=True)
class DefaultSettings:
    """The settings of an optimizer that is only examined: their values do not change its costs."""

    name: str
    lr: float = 1e-3
    muon_lr: float = 0.02
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    momentum: float = 0.95
    implementation: str = "fused"
    options: dict[str, Any] = field(default_factory=dict, hash=False)


OptimizerFactory = Callable[[Any, Any], torch.optim.Optimizer]
"""Returns an optimizer from a model and the `OptimizerConfig` of a run."""


def build_optimizer(
    model: Module, config: OptimizerSettings, factory: OptimizerFactory | None = None
) -> torch.optim.Optimizer:
    """Return the optimizer that `config` names, or that `factory` builds, over the parameters of `model`."""
    if factory is not None:
        optimizer = factory(model, config)
        return check_optimizer(optimizer, model, getattr(factory, "__name__", "optimizer"))
    part = optimizers[config.name]
    options = read_optimizer_options(config.name, config.options)
    try:
        if isinstance(part, type):
            optimizer = _build_class(part, model, config, options)
        else:
            optimizer = part(model, config, **options)
    except Exception as error:
        if isinstance(error, BytewrightError) or is_out_of_memory(error):
            raise
        message = f"the optimizer {config.name!r} cannot be built: {first_line(error)}"
        raise UsageError(message, key="optimizer.name", found=config.name) from error
    return check_optimizer(optimizer, model, config.name)


def read_optimizer_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a registered optimizer, checked against its parameters."""
    part = optimizers[name]
    for taken in _fields_of(part) if isinstance(part, type) else ():
        if taken in options:
            instead = "optimizer.beta1 and optimizer.beta2" if taken == "betas" else f"optimizer.{taken}"
            message = f"optimizer.options.{taken} is not an option; set {instead}"
            raise UsageError(message, key=f"optimizer.options.{taken}", expected=instead)
    return read_options(part, options, provided=provided_to(part), key="optimizer.options")


def provided_to(part: Any) -> tuple[str, ...]:
    """Return the parameters of a registered optimizer that a run passes; all others are options."""
    if not isinstance(part, type):
        return "model", "config"
    first = next(iter(inspect.signature(part).parameters), "params")
    return first, *_fields_of(part)


def check_optimizer(optimizer: object, model: Module, name: str) -> torch.optim.Optimizer:
    """Return `optimizer`; raise unless a run can use it to train `model`."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        message = f"the optimizer {name!r} is of type {kind}, expected a torch.optim.Optimizer"
        raise UsageError(message, key="optimizer.name", expected="torch.optim.Optimizer", found=kind)
    required = [
        p.name
        for p in inspect.signature(optimizer.step).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if required:
        message = (
            f"step of the optimizer {name!r} requires the argument {required[0]!r}, which a run does not pass"
        )
        raise UsageError(message, key="optimizer.name", found=required[0])
    if not all("lr" in group for group in optimizer.param_groups):
        message = f"the optimizer {name!r} has a parameter group without 'lr', which the schedule scales"
        raise UsageError(message, key="optimizer.name", expected="lr")
    for group in optimizer.param_groups:
        if not _is_rate(group["lr"]):
            found = shorten(group["lr"])
            message = f"lr of the optimizer {name!r} must be a number of at least 0, but is {found}"
            raise UsageError(message, key="optimizer.name", found=group["lr"])
    if not any(parameter.requires_grad for parameter in model.parameters()):
        message = (
            f"the optimizer {name!r} set requires_grad of all parameters to False; nothing would be learned"
        )
        raise UsageError(message, key="optimizer.name", found=name)
    covered = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    for weight, parameter in model.named_parameters():
        if parameter.requires_grad and parameter not in covered:
            message = (
                f"the optimizer {name!r} does not have the parameter {weight!r}; add it, or set its"
                " requires_grad to False to keep it unchanged"
            )
            raise UsageError(message, key="optimizer.name", found=weight)
    return optimizer


def _is_rate(value: object) -> bool:
    """Return whether a learning rate is a number, or a tensor with one, that is finite and at least 0."""
    if isinstance(value, Tensor) and value.is_meta:
        return value.numel() == 1
    try:
        return 0 <= float(value) < math.inf  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        return False


def read_peak_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the learning rate of every group, which the factor of a schedule multiplies."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def set_rates(optimizer: torch.optim.Optimizer, peaks: Sequence[float], factor: float) -> None:
    """Set the learning rate of every group to its peak times `factor`."""
    for group, peak in zip(optimizer.param_groups, peaks, strict=True):
        if isinstance(group["lr"], Tensor):  # a compiled or captured step reads it from there
            group["lr"].fill_(peak * factor)
        else:
            group["lr"] = peak * factor


def group_parameters(model: Module, *, lr: float, weight_decay: float) -> list[Group]:
    """Return the trained parameters in groups: those with two or more dimensions have weight decay.

    With `mup_base_width`, matrices inside blocks have a group of their own. Its rate is divided by the ratio
    of the widths, and its weight decay, which the rate multiplies, is multiplied by it.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not _is_mup(model):
        return _by_decay([parameter for _, parameter in named], weight_decay)
    hidden = [p for name, p in named if p.ndim >= 2 and name.startswith("layers.")]
    ratio: float = model.config.width_ratio  # type: ignore[union-attr, assignment]
    groups = [{"params": hidden, "lr": lr / ratio, "weight_decay": weight_decay * ratio}] if hidden else []
    members = set(hidden)
    return groups + _by_decay([p for _, p in named if p not in members], weight_decay)


def _is_mup(model: Module) -> bool:
    return getattr(getattr(model, "config", None), "mup_base_width", None) is not None


def _by_decay(parameters: Sequence[Parameter], weight_decay: float) -> list[Group]:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _build_class(
    part: type[torch.optim.Optimizer], model: Module, config: OptimizerSettings, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    fields = _fields_of(part)
    settings: dict[str, Any] = {name: getattr(config, name) for name in fields if name != "betas"}
    if "betas" in fields:
        settings["betas"] = (config.beta1, config.beta2)
    groups = group_parameters(model, lr=config.lr, weight_decay=config.weight_decay)
    if _is_mup(model) and not {"lr", "weight_decay"} <= set(fields):
        message = (
            "model.mup_base_width needs an optimizer with the parameters lr and weight_decay, which"
            f" {config.name!r} lacks; remove mup_base_width, or register a function that makes the groups"
        )
        raise UsageError(message, key="model.mup_base_width")
    if "weight_decay" not in fields:
        groups = [{"params": [p for p in model.parameters() if p.requires_grad]}]
    fused = part.__dict__.get("fused_version")  # not that of a base class with another rule
    chosen: Any = fused if fused is not None and config.implementation == "fused" else part
    built: torch.optim.Optimizer = chosen(groups, **settings, **options)
    return built


def _fields_of(part: type) -> list[str]:
    """Return the parameters of a constructor that receive fields of the config: numbers, and two betas."""
    found = []
    for name, parameter in inspect.signature(part).parameters.items():
        default = parameter.default
        is_number = default is parameter.empty or isinstance(default, int | float | Tensor)
        is_pair = isinstance(default, tuple) and len(default) == 2
        if name in FIELDS and (is_pair if name == "betas" else is_number):
            found.append(name)
    return found


optimizers.register("adamw")(AdamW)


@optimizers.register("sgd")
def build_sgd(model: Module, config: OptimizerSettings) -> torch.optim.Optimizer:
    """Return SGD at the rate of the schedule, without weight decay."""
    if _is_mup(model):
        message = "model.mup_base_width has no rule for the optimizer sgd; use adamw or muon"
        raise UsageError(message, key="model.mup_base_width", found="sgd")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return (FusedSGD if config.implementation == "fused" else SGD)(parameters, lr=config.lr, decay=False)


@optimizers.register("muon")
def build_muon(model: Module, config: OptimizerSettings) -> torch.optim.Optimizer:
    """Return Muon for the matrices inside blocks, and AdamW for embeddings, head and gains.

    With `mup_base_width`, Muon's rate is not scaled: its updates have the same spectral norm at every width.
    """
    is_fused = config.implementation == "fused"
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    by_muon = [p for name, p in trained if p.ndim == 2 and name.startswith("layers.")]
    if not by_muon:
        message = "optimizer.name is muon, but the model has no matrices inside blocks"
        raise UsageError(message, key="optimizer.name")
    muon = (FusedMuon if is_fused else Muon)(
        by_muon, lr=config.muon_lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    taken = set(by_muon)
    rest = _by_decay([p for _, p in trained if p not in taken], config.weight_decay)
    if not rest:
        return muon
    adamw = (FusedAdamW if is_fused else AdamW)(
        rest, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps
    )
    return CombinedOptimizer([muon, adamw])


def has_built_in_rule(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer and all optimizers that it combines are built-in classes."""
    return all(is_built_in(type(part)) for part in parts_of(optimizer))
