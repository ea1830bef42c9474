"""What a run computes with: a model, its optimizer and the step that joins them, compiled.

Compiling takes seconds, which for a short run on a GPU is as long as the run. `Engines` keeps the engine of
the last run, and if the next one differs in nothing that was compiled (only in learning rates, schedule,
seed, budget, data), hands it out again with the weights and the state of a run that has done nothing: such a
run gives the same numbers as one with an engine of its own. Knows nothing of folders, metrics or batches.
"""

from __future__ import annotations

import dataclasses
import gc
import sys

import torch

from bytewright.model import language_model_loss
from bytewright.system import DevicePeakMemory
from bytewright.train.config import TrainConfig
from bytewright.train.setup import build_model, choose_backend, make_optimizer
from bytewright.train.step import Loss, TrainStep


class Engine:
    """Model, optimizer and step as a config wants them, at the beginning of a run."""

    def __init__(
        self, config: TrainConfig, device: torch.device, *, loss: Loss = language_model_loss
    ) -> None:
        self.memory = DevicePeakMemory(device)
        self.model = build_model(config, device)
        self.optimizer = make_optimizer(self.model, config.optimizer)
        self.step = TrainStep(
            self.model,
            self.optimizer,
            max_grad_norm=config.optimizer.max_grad_norm,
            backend=choose_backend(config, device),
            loss=loss,
        )

    def start_over(self, config: TrainConfig) -> None:
        """Go back to the beginning of a run of `config`, in place: what was compiled or recorded stays."""
        fresh = build_model(config, torch.device("cpu"))
        blank = make_optimizer(fresh, config.optimizer)
        self.optimizer.load_state_dict(blank.state_dict())
        self.model.load_state_dict(fresh.state_dict())
        self.memory.start_over()


class CompiledStepCache:
    """Hands out an engine for each of several runs in a row, the last one again where it serves."""

    def __init__(self) -> None:
        self._last: Engine | None = None
        self._made_for: object = None

    def make_room(
        self, config: TrainConfig, device: torch.device, *, loss: Loss = language_model_loss
    ) -> None:
        """Let go of the last engine, unless it serves a run of `config`."""
        # Against the clock every run compiles for itself, the first of a sweep like the last (though what
        # the compiler finds in its caches on disk makes that shorter).
        if self._made_for != _key(config, device, loss) or config.budget.minutes is not None:
            self.forget()

    def engine_for(
        self, config: TrainConfig, device: torch.device, *, loss: Loss = language_model_loss
    ) -> Engine:
        """Give an engine at the beginning of a run of `config`; whoever had the last one is done with it."""
        self.make_room(config, device, loss=loss)
        if self._last is None:
            self._last, self._made_for = Engine(config, device, loss=loss), _key(config, device, loss)
        else:
            self._last.start_over(config)
        return self._last

    def forget(self) -> None:
        """Let go of the last engine and of all that was compiled.

        Its memory must not count against the next; and torch compiles a function for so many models only,
        and then gives up compiling it: for eight, or for four that are evaluated as well.
        """
        self._last = self._made_for = None
        if "torch._dynamo" in sys.modules:  # otherwise nothing was compiled, and to ask takes a second
            torch.compiler.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _key(config: TrainConfig, device: torch.device, loss: Loss) -> object:
    """Name all that compiled code and recorded steps depend on: runs that agree in it can share an engine."""
    rule = dataclasses.replace(config.optimizer, lr=1.0, muon_lr=1.0)
    shape = config.batch_size, config.accumulate
    return config.model, rule, shape, config.precision, config.compile, device, loss
