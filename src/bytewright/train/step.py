"""One training step: forward, backward, clip, update, without host synchronisation.

`TrainStep` receives the batches of one update and returns loss, gradient norm and whether the update was
accepted, as tensors on the device. An update with a non-finite loss or gradient is not accepted: it changes
neither the weights nor the optimizer's state. With fused optimizers a step never waits for the previous one:
norm, clipping and update are one compiled function. On a GPU the whole step is captured as a CUDA graph and
replayed. Every other `torch.optim.Optimizer` is called by its `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from bytewright.data.sampler import IGNORED, Batch
from bytewright.model import TransformerLM, language_model_loss
from bytewright.model.cuda_graph import CudaGraphFunction
from bytewright.model.fused import LanguageModelLoss as Loss
from bytewright.optim.clip import clip_gradients
from bytewright.optim.fused import apply_clipped, fused_updates, has_step_hooks
from bytewright.optim.reference import step_if
from bytewright.registry import is_built_in


class StepResult(NamedTuple):
    """The result of a step: three scalars on the device."""

    loss: Float[Tensor, ""]
    gradient_norm: Float[Tensor, ""]
    accepted: Bool[Tensor, ""]


class TrainStep:
    """Update a model from one batch after another.

    `backend` is that of torch.compile ("inductor", or "aot_eager" on mps); None disables compilation. `loss`
    must be a pure function of model and batch: on a GPU its work is captured and replayed. `measured_loss` is
    what `measure` returns; by default it is `loss`.

    The loss of a step is the mean over all its tokens. With `masked`, it is the mean over all tokens that
    count (whose target is not `IGNORED`): the loss of each part is weighted by its number of such tokens.
    `loss` must then return the mean over the tokens that count.
    """

    def __init__(
        self,
        model: TransformerLM,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: float = 0.0,
        backend: str | None = None,
        loss: Loss = language_model_loss,
        measured_loss: Loss | None = None,
        masked: bool = False,
    ) -> None:
        self.model = model
        self._has_own_modules = has_own_modules(model)
        self._masked = masked
        self.optimizer = optimizer
        self.max_norm = max_grad_norm or float("inf")
        self._fused = fused_updates(optimizer)
        for part in self._fused:
            part.check_not_moved()
        self._num_groups = len(optimizer.param_groups)
        self._has_unused = False

        def forward(ids: Tensor, targets: Tensor) -> Tensor:
            return loss(model, ids, targets)

        def forward_to_measure(ids: Tensor, targets: Tensor) -> Tensor:
            return (measured_loss or loss)(model, ids, targets)

        def clip_and_update(value: Tensor) -> tuple[Tensor, Tensor]:
            return apply_clipped(self._fused, value, self.max_norm)

        self.loss: Callable[[Tensor, Tensor], Tensor] = compile_with(backend, forward)
        self._measured_loss: Callable[[Tensor, Tensor], Tensor] = self.loss
        if measured_loss not in (None, loss):
            self._measured_loss = compile_with(backend, forward_to_measure)
        self._clip_and_update: Callable[[Tensor], tuple[Tensor, Tensor]] = compile_with(
            backend, clip_and_update
        )
        flat_groups = [flat for part in self._fused for flat in part.flat_groups]
        self._parameters = [parameter for flat in flat_groups for parameter in flat.parameters]
        self._gradients = [view for flat in flat_groups for view in flat.gradient_views]
        self._take_fused: Callable[..., tuple[Tensor, ...]] = self._fused_step
        if backend == "inductor" and self._parameters and self._parameters[0].is_cuda:
            self._take_fused = CudaGraphFunction(self._fused_step)

    def __call__(self, batches: Sequence[Batch]) -> StepResult:
        """Make one update with the mean gradient over `batches`, the parts of one batch."""
        if self._can_fuse():
            for part in self._fused:
                part.load_learning_rates()
            try:
                tensors = self._take_fused(*(tensor for batch in batches for tensor in batch))
                self.optimizer._opt_called = True  # type: ignore[attr-defined]  # torch's schedulers check it
                return StepResult(*tensors)
            except _UnusedParameterError:
                self._has_unused = True
        return self._step_by_optimizer(batches)

    def _can_fuse(self) -> bool:
        """Return whether one function updates all parameters.

        Not if a parameter is unused, if a group was added later, or if hooks of the optimizer must be called.
        """
        return (
            bool(self._fused)
            and not self._has_unused
            and not any(part.is_split for part in self._fused)
            and len(self.optimizer.param_groups) == self._num_groups
            and not has_step_hooks(self.optimizer)
        )

    def _step_by_optimizer(self, batches: Sequence[Batch]) -> StepResult:
        """Update by `clip_gradients` and `Optimizer.step`; parameters without a gradient are skipped."""
        self.optimizer.zero_grad()
        losses = []
        shares = self._shares([targets for _, targets in batches])
        for number, (ids, targets) in enumerate(batches):
            loss = self.loss(ids, targets)
            torch.autograd.backward(loss / len(batches) if shares is None else loss * shares[number])
            losses.append(loss.detach())
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        with torch.no_grad():
            loss = _mean(losses, shares)
            norm = clip_gradients(parameters, self.max_norm)
            accepted = torch.isfinite(loss) & torch.isfinite(norm)
            step_if(self.optimizer, accepted)
            return StepResult(loss, norm, accepted)

    def _fused_step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Update by the fused optimizers: write gradients into their flat groups, then `apply_clipped`."""
        losses: list[Tensor] = []
        num_parts = len(tensors) // 2
        shares = self._shares(tensors[1::2])
        for ids, targets in zip(tensors[::2], tensors[1::2], strict=True):
            loss = self.loss(ids, targets)
            part = loss / num_parts if shares is None else loss * shares[len(losses)]
            gradients = torch.autograd.grad(part, self._parameters, allow_unused=True)
            if any(gradient is None for gradient in gradients):
                raise _UnusedParameterError
            with torch.no_grad():
                if losses:
                    torch._foreach_add_(self._gradients, gradients)
                else:
                    torch._foreach_copy_(self._gradients, gradients)
            losses.append(loss.detach())
        with torch.no_grad():
            loss = _mean(losses, shares)
            return (loss, *self._clip_and_update(loss))

    def _shares(self, targets: Sequence[Tensor]) -> Tensor | None:
        """Return the share of each part in the tokens that count; None without a mask: parts are equal."""
        if not self._masked:
            return None
        counts = torch.stack([(part != IGNORED).sum() for part in targets])
        return counts / counts.sum().clamp(min=1)

    def measure(
        self, ids: Integer[Tensor, "batch seq"], targets: Integer[Tensor, "batch seq"]
    ) -> Float[Tensor, ""]:
        """Return the measured loss of a batch, without an update and without dropout in a user's part."""
        was_training = self.model.training
        if self._has_own_modules:
            self.model.eval()
        try:
            with torch.no_grad():
                return self._measured_loss(ids, targets)
        finally:
            if self._has_own_modules:
                self.model.train(was_training)


def has_own_modules(model: TransformerLM) -> bool:
    """Return whether a module is not one of Bytewright's: it may draw random numbers, as dropout does."""
    return any(
        not isinstance(module, torch.nn.ModuleList) and not is_built_in(type(module))
        for module in model.modules()
    )


class _UnusedParameterError(Exception):
    """The loss does not depend on a parameter of a fused optimizer."""


def _mean(losses: Sequence[Tensor], shares: Tensor | None) -> Tensor:
    stacked = torch.stack(list(losses))
    return stacked.mean() if shares is None else (stacked * shares).sum()


def compile_with(backend: str | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` compiled for fixed shapes, or unchanged without a backend."""
    if backend is None:
        return function
    compiled: Callable[..., Any] = torch.compile(function, backend=backend, dynamic=False)
    return compiled
