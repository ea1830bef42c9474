"""The costs of a run: predicted by formula, and counted on its model.

A run records them at its start (`costs.json`), when torch and the parts of its model are loaded. A report
shows them next to the measured values.
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch.utils.flop_counter import FlopCounterMode

from bytewright.account.devices import Device, find_known
from bytewright.account.flops import extra_loss_flops
from bytewright.account.predict import TrainingSetup, predict_training
from bytewright.errors import UsageError
from bytewright.formatting import format_size
from bytewright.model import ModelConfig, TransformerLM
from bytewright.system import usable_memory
from bytewright.train.config import TrainConfig
from bytewright.train.evaluate import EVALUATED_AT_ONCE
from bytewright.train.setup import choose_backend, select_device
from bytewright.train.step import has_own_modules

MOST_LAYERS_COUNTED = 1000
"""Larger models are not built for counting, since a config.json can contain any number."""


def describe_costs(
    config: TrainConfig, device: torch.device, device_name: str | None = None
) -> dict[str, dict[str, float]]:
    """Return the `predicted` costs of a run on a device, and those `counted` on its model.

    A run on a GPU that this machine does not have names the GPU.
    """
    if device.type == "cuda" and device_name is None:
        device_name = torch.cuda.get_device_name(device)
    machine = find_known(device_name) if device.type == "cuda" and device_name else None
    counted: dict[str, float] = {}
    if config.model.num_layers <= MOST_LAYERS_COUNTED:
        counted = dict(count_on_model(config.model))
        if "flops_per_token" in counted:
            counted["flops_per_token"] += _loss_flops(config)
    return {"predicted": predict_run(config, machine, device), "counted": counted}


def predict_run(
    config: TrainConfig, machine: Device | None, device: torch.device | None = None
) -> dict[str, float]:
    """Return the predicted parameters, FLOPs, memory, speed and seconds of a run, as far as possible."""
    predicted = account_for_run(config, machine, device)
    limits = [predicted["seconds"], None if config.budget.minutes is None else 60 * config.budget.minutes]
    named = {
        "parameters": predicted["parameters"],
        "flops_per_token": predicted["flops_per_token"],
        "memory_bytes": predicted["peak_memory"],
        "tokens_per_second": predicted["tokens_per_second"],
        "seconds": min((limit for limit in limits if limit is not None), default=None),
    }
    return {name: float(value) for name, value in named.items() if value is not None}


def _loss_flops(config: TrainConfig) -> float:
    return extra_loss_flops(config.model, config.loss.name, config.loss.options)


def account_for_run(
    config: TrainConfig, machine: Device | None, device: torch.device | None = None
) -> dict[str, float | None]:
    """Return the figures of `account.predict` for a run; `device` defaults to that of the config."""
    device = device or select_device(config.device)
    return predict_training(config.model, training_setup(config, machine, device))


def check_memory(config: TrainConfig) -> None:
    """Raise `UsageError` if a run on a CPU is predicted to need more memory than a process may use here.

    The system kills a process that exceeds the memory. On a GPU the allocator raises an error instead.
    """
    device, usable = select_device(config.device), usable_memory()
    needed = None if device.type == "cuda" else account_for_run(config, None, device)["peak_memory"]
    if needed is not None and needed > usable:
        message = (
            f"the run is predicted to need {format_size(needed)} of memory, but it can use only"
            f" {format_size(usable)}; use a smaller batch_size, split the batch with accumulate, or use a"
            " smaller model"
        )
        raise UsageError(message, key="batch_size", expected=usable, found=needed)


def training_setup(config: TrainConfig, machine: Device | None, device: torch.device) -> TrainingSetup:
    """Return the settings of a run that determine its costs on `device`, with the rates of `machine`."""
    return TrainingSetup(
        batch_size=config.batch_size // config.accumulate,
        accumulate=config.accumulate,
        reduction=config.parallel.reduction,
        num_tokens=(config.num_steps or 0) * config.tokens_per_step,
        precision=config.precision,
        compiled=choose_backend(config, device) is not None,
        optimizer=config.optimizer,
        optimizer_implementation=config.optimizer.implementation,
        device_kind="cuda" if device.type == "cuda" else "cpu",
        device=machine,
        evaluated_at_once=0
        if config.data.validation is None
        else min(max(config.tokens_per_step // config.accumulate, EVALUATED_AT_ONCE), config.eval_tokens),
        max_seconds=None if config.budget.minutes is None else 60 * config.budget.minutes,
        loss_flops_per_token=_loss_flops(config),
    )


@functools.cache
def count_on_model(config: ModelConfig) -> dict[str, float]:
    """Count parameters and training FLOPs per token on the reference model with PyTorch's counter.

    Forward and backward run with tensors on the meta device, which take no memory. The FLOPs of a model with
    a user's part that cannot run there are not counted; `trace_part` warns of it.

    >>> count_on_model(ModelConfig(vocab_size=7, context_length=4, d_model=8, num_layers=1, num_heads=2))
    {'parameters': 1928.0, 'flops_per_token': 11472.0}
    """
    model = TransformerLM(dataclasses.replace(config, implementation="reference"), device="meta")
    ids = torch.zeros(2, config.context_length, dtype=torch.long, device="meta")
    counted = {"parameters": float(sum(parameter.numel() for parameter in model.parameters()))}
    try:
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(model(ids).sum())
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        if not has_own_modules(model):
            raise
        return counted
    return {**counted, "flops_per_token": counter.get_total_flops() / ids.numel()}
