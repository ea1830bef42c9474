"""Who learns in `learning.py`: our model by our optimizers, and the plain compiled baseline.

A `Learner` is built and compiled once and then starts over for every setting that differs in its learning
rates alone, which are all that may change without compiling anew. All start from the same weights and hand
them out under the same names, so that one and the same code measures them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from training_contestants import PlainModel, Shape, library_adamw, plain_weights, weights_of_plain

from bytewright.data.sampler import Batch
from bytewright.train.config import OptimizerConfig, TrainConfig
from bytewright.train.engine import Engine
from bytewright.train.setup import build_model, choose_backend


class Learner(Protocol):
    """Something that learns from batches."""

    def start(self, config: TrainConfig) -> None:
        """Go back to the initial weights of `config`, and take its learning rates."""

    def step(self, batch: Batch, factor: float) -> Tensor:
        """Learn from a batch at `factor` times the peak learning rates; the loss stays on the device."""

    def weights(self) -> Mapping[str, Tensor]:
        """Give the weights as they are, under our names."""


def make_learner(name: str, config: TrainConfig, device: torch.device) -> Learner:
    """Build the learner of a contestant."""
    torch._dynamo.reset()  # the one before is not needed any more, and counts against the compiler's limits
    return PlainLearner(config, device) if name == "plain" else OurLearner(config, device)


def what_is_compiled(name: str, config: TrainConfig) -> object:
    """Say what a learner is built for: two settings that agree in this can share one."""
    optimizer = dataclasses.replace(config.optimizer, lr=1.0, muon_lr=1.0)
    return name == "plain", optimizer, config.batch_size, config.precision, config.model


class OurLearner:
    """Our model, loss and optimizer, as a run uses them."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self._engine = Engine(config, device)
        self._rates: list[float] = []

    def start(self, config: TrainConfig) -> None:
        """Begin a run anew, as a sweep does."""
        self._engine.start_over(config)
        self._rates = [group["lr"] for group in self._engine.optimizer.param_groups]

    def step(self, batch: Batch, factor: float) -> Tensor:
        """Take one step of the loop."""
        for group, rate in zip(self._engine.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        return self._engine.step([batch]).loss

    def weights(self) -> Mapping[str, Tensor]:
        """Give the weights as they are."""
        return self._engine.model.state_dict()


class PlainLearner:
    """The baseline: library layers and attention, autocast, fused library AdamW, compiled."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        sizes = config.model
        self.shape = Shape(
            vocab_size=sizes.vocab_size,
            context_length=sizes.context_length,
            d_model=sizes.d_model,
            d_ff=sizes.ffn_width,
            num_layers=sizes.num_layers,
            num_heads=sizes.num_heads,
            device=device.type,
            precision=config.precision,
        )
        self.model = PlainModel(self.shape).to(device)
        backend = choose_backend(config, device)
        self._loss = torch.compile(self.model, backend=backend, dynamic=False) if backend else self.model
        self._settings: OptimizerConfig = config.optimizer
        self._optimizer = library_adamw(self.model)

    def start(self, config: TrainConfig) -> None:
        """Load weights and make a new optimizer; its step is not compiled."""
        fresh = build_model(config, torch.device("cpu")).state_dict()
        self.model.load_state_dict(plain_weights(fresh, self.shape), strict=False)  # cos and sin stay
        self._settings = config.optimizer
        self._optimizer = library_adamw(
            self.model,
            lr=config.optimizer.lr,
            betas=(config.optimizer.beta1, config.optimizer.beta2),
            eps=config.optimizer.eps,
            weight_decay=config.optimizer.weight_decay,
        )

    def step(self, batch: Batch, factor: float) -> Tensor:
        """Take one step as one would write it."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.lr * factor
        with torch.autocast(self.shape.device, torch.bfloat16, enabled=self.shape.is_bf16):
            loss: Tensor = self._loss(*batch)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._settings.max_grad_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def weights(self) -> Mapping[str, Tensor]:
        """Give the weights under our names."""
        return weights_of_plain(self.model.state_dict(), self.shape)
