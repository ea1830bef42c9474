"""Try the parts of users before a run starts, each once on a small input.

A part that fails, or returns another shape or type than its kind requires, raises `UsageError` with its file
and line. This happens before the folder of the run is created. A trial also finds two mistakes that would
cause wrong results without an error. One is a layer whose output depends on later positions, which contain
the answer. The other is a layer that states `acts_per_position` although it mixes positions. Built-in parts
are not tried.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn import Module

from bytewright.account.tracing import PartKind, costs_of
from bytewright.errors import UsageError
from bytewright.generate.sampling import apply_sampler
from bytewright.model import ModelConfig
from bytewright.model.config import PARTS
from bytewright.model.costs import StepShape
from bytewright.model.loss import describe_value
from bytewright.model.parts import make_attention, make_ffn, make_norm, make_position, stated
from bytewright.plugins import errors_of_part
from bytewright.registry import Registry, losses, samplers, schedules
from bytewright.train.config import TrainConfig

TOLERANCE = 1e-4
"""Smaller relative changes of an output are rounding."""


def check_parts(config: TrainConfig, device: torch.device) -> None:
    """Raise `UsageError` if a part of a user that `config` names does not work."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        for kind, part in PARTS.items():
            name = getattr(config.model, part.name)
            if part.registry.plugin_of(name) is not None:
                with errors_of_part(part.registry, name, "failed in a trial"):
                    _try_layer(kind, config, device)
        _try_loss(config, device)
    _try_schedule(config)
    if config.sample_every and samplers.plugin_of(config.sampler.name) is not None:
        uniform = torch.full((1, config.model.vocab_size), 1 / config.model.vocab_size, device=device)
        with errors_of_part(samplers, config.sampler.name, "failed in a trial"):
            apply_sampler(config.sampler.name, config.sampler.options, uniform)


def _try_layer(kind: str, config: TrainConfig, device: torch.device) -> None:
    """Call a layer forward and backward, and check its result."""
    model, part = config.model, PARTS[kind]
    name = getattr(model, part.name)
    made = _make(kind, model, device)
    if made is None:  # a position encoding that is applied nowhere
        return
    module, call = made
    if kind != "position" and stated(type(module), "costs") is not None:
        shape = StepShape(
            config=model, batch_size=1, num_tokens=model.context_length, precision=config.precision
        )
        costs_of(cast("PartKind", kind), shape)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    x = torch.randn(1, model.context_length, model.d_model, device=device, dtype=dtype, requires_grad=True)
    result = call(x * 1)  # a user's layer may change its input in place, but not a leaf
    expected = f"{dtype} of shape {tuple(x.shape)}".removeprefix("torch.")
    if not isinstance(result, Tensor) or result.shape != x.shape or result.dtype != dtype:
        found = describe_value(result)
        if isinstance(result, Tensor):
            found = f"{result.dtype} of shape {tuple(result.shape)}".removeprefix("torch.")
        message = f"the {part.registry.kind} {name!r} must return {expected}, as its input is, but returned"
        raise UsageError(f"{message} {found}", key=part.registry.key, expected=expected, found=found)
    if result.requires_grad:
        result.sum().backward()  # type: ignore[no-untyped-call]
    module.eval()
    _check_positions(call, x.detach(), part.registry, name, stated(type(module), "acts_per_position", False))


def _make(
    kind: str, model: ModelConfig, device: torch.device
) -> tuple[Module, Callable[[Tensor], Tensor]] | None:
    """Return a module with the part, and a function that applies it to a residual stream."""
    if kind == "position" and (encoding := make_position(model, "embeddings", device)) is not None:
        positions = torch.arange(model.context_length, device=device)
        return encoding, lambda x: encoding(x, positions)
    if kind in ("attention", "position"):
        of_heads = make_position(model, "heads", device)
        if kind == "position" and of_heads is None:
            return None
        layer = make_attention(model, of_heads, device)
    else:
        layer = (make_norm if kind == "norm" else make_ffn)(model, device)
    return layer, layer


def _check_positions(
    call: Callable[[Tensor], Tensor], x: Tensor, registry: Registry, name: str, per_position: bool
) -> None:
    """Raise if a change at one position changes the output at earlier ones, or at all but its own."""
    middle = x.shape[1] // 2
    other = x.clone()
    other[:, middle] += 1

    @torch.no_grad()
    def compute(stream: Tensor) -> Tensor:
        torch.manual_seed(0)  # noise of the layer must not count as a difference
        return call(stream.clone())

    before = compute(x)
    limit = TOLERANCE * before.abs().max()
    if not torch.equal(before, compute(x)):  # it has a state, so outputs cannot be compared
        return
    changed = ((compute(other) - before).abs() > limit).any(dim=-1)[0].nonzero().flatten().tolist()
    earlier = [position for position in changed if position < middle]
    others = [position for position in changed if position != middle]
    if earlier:
        message = (
            f"the {registry.kind} {name!r} is not causal: its output at position {earlier[0]} depends on"
            f" position {middle}, so it reads tokens that the model must predict; use earlier positions only"
        )
        raise UsageError(message, key=registry.key, found=name)
    if per_position and others:
        message = (
            f"the {registry.kind} {name!r} states acts_per_position, but its output at position {others[0]}"
            f" depends on position {middle}; remove the statement"
        )
        raise UsageError(message, key=registry.key, found=name)


def _try_loss(config: TrainConfig, device: torch.device) -> None:
    name, model = config.loss.name, config.model
    if losses.plugin_of(name) is None:
        return
    part, options = losses[name], config.loss.options
    hidden = torch.randn(1, 2, model.d_model, device=device, requires_grad=True)
    weight = torch.randn(model.vocab_size, model.d_model, device=device, requires_grad=True)
    targets = torch.zeros(1, 2, dtype=torch.long, device=device)
    with errors_of_part(losses, name, "failed in a trial"):
        compute = part(**options) if isinstance(part, type) else functools.partial(part, **options)
        value = compute(hidden, weight, targets)
        if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
            found = describe_value(value)
            if isinstance(value, Tensor) and not value.ndim:
                found = "one without a gradient"
            message = f"the loss {name!r} must return a tensor of shape () with a gradient, but returned"
            raise UsageError(f"{message} {found}", key="loss.name", expected=(), found=found)
        value.backward()  # type: ignore[no-untyped-call]


def _try_schedule(config: TrainConfig) -> None:
    """Compute the first and the last learning rate, if the length of the run is known."""
    if schedules.plugin_of(config.schedule.kind) is None or config.num_steps is None:
        return
    with errors_of_part(schedules, config.schedule.kind, "failed in a trial"):
        for step in (1, config.num_steps):
            config.schedule.planned_factor(step, [(0, config.num_steps)])
