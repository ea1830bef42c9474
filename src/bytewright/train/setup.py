"""From a config to things that run: the device, the compiler, the model as it starts, the optimizer.

The initial weights are a function of the config and its seed alone: they are drawn on the CPU, whatever the
device, and the global random state is left as it was.
"""

from __future__ import annotations

import torch
from torch.nn import Parameter

from bytewright.account import count_parameters
from bytewright.data.rng import mix_key
from bytewright.errors import UsageError
from bytewright.model import TransformerLM
from bytewright.optim.fused import FusedAdamW, FusedMuon, FusedSGD
from bytewright.optim.reference import SGD, AdamW, CombinedOptimizer, Group, Muon
from bytewright.train.config import DeviceName, OptimizerConfig, Precision, TrainConfig
from bytewright.train.step import AnyOptimizer

NUM_COPIES = {"adamw": 3, "muon": 3, "sgd": 1}
"""Tensors of the size of the weights in a checkpoint, at most: the weights and the optimizer's state."""


def select_device(name: DeviceName) -> torch.device:
    """Return the torch device with this name; "auto" selects a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    is_there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not is_there[name]:
        raise UsageError(f"device is {name!r}, but this machine has none; use 'cpu' or 'auto'")
    return torch.device(name)


def choose_backend(config: TrainConfig, device: torch.device) -> str | None:
    """Choose what torch.compile is to use, or None for no compiling."""
    if config.compile == "off" or (config.compile == "auto" and device.type != "cuda"):
        return None
    return "aot_eager" if device.type == "mps" else "inductor"


def dtype_of(precision: Precision) -> torch.dtype | None:
    """Give the type that a model computes in; None is that of its weights, fp32."""
    return torch.bfloat16 if precision == "bf16" else None


def build_model(config: TrainConfig, device: torch.device) -> TransformerLM:
    """Make the model on `device`; weights in fp32, computation in the precision of the config."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix_key(config.seed, 1))  # not the bare seed: that one orders the data
        model = TransformerLM(config.model, dtype=torch.float32, compute_dtype=dtype_of(config.precision))
        return model.to(device)


def make_optimizer(model: TransformerLM, config: OptimizerConfig) -> AnyOptimizer:
    """Build the optimizer that `config` names over the parameters of `model`.

    Gains, which are one-dimensional, are not decayed. Muon takes the matrices inside blocks; embeddings,
    head and gains stay with AdamW.
    """
    is_fused = config.implementation == "fused"
    named = list(model.named_parameters())
    if config.name == "sgd":
        return (FusedSGD if is_fused else SGD)(
            [parameter for _, parameter in named], lr=config.lr, decay=False
        )
    by_muon = [p for name, p in named if config.name == "muon" and p.ndim == 2 and name.startswith("layers.")]
    taken = set(by_muon)
    adamw = (FusedAdamW if is_fused else AdamW)(
        _by_decay([p for _, p in named if p not in taken], config.weight_decay),
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
    )
    if config.name == "adamw":
        return adamw
    if not by_muon:
        raise UsageError("optimizer.name is muon, but the model has no matrices inside blocks")
    muon = (FusedMuon if is_fused else Muon)(
        by_muon, lr=config.muon_lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    return CombinedOptimizer([muon, adamw])


def _by_decay(parameters: list[Parameter], weight_decay: float) -> list[Group]:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def checkpoint_bytes(config: TrainConfig) -> int:
    """Bound the size of a checkpoint."""
    return 4 * NUM_COPIES[config.optimizer.name] * count_parameters(config.model).total + 2**20
