"""One training step: forward, backward, clip, update, without host synchronisation.

`TrainStep` receives the batches of one update and returns loss, gradient norm and whether the update was
accepted, as tensors on the device. An update with a non-finite loss or gradient is not accepted: it changes
neither the weights nor the optimizer's state. With fused optimizers a step never waits for the previous one:
norm, clipping and update are one compiled function. On a GPU the whole step is captured as a CUDA graph and
replayed. Every other `torch.optim.Optimizer` is called by its `step`.

A batch is computed in parts. `parallel.replicate.Reduction` adds their gradients, also over several ranks,
each of which computes a share of the parts. The work before and after the exchange is then captured
separately. With a fast reduction and without CUDA graphs, `OverlappedSum` exchanges gradients during the
backward pass. A compiled backward pass returns all of them at its end.
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
from bytewright.parallel.replicate import OverlappedSum, Reduction
from bytewright.parallel.tree import RunningSum, TreeSum
from bytewright.registry import is_built_in


class StepResult(NamedTuple):
    """The result of a step: three scalars on the device."""

    loss: Float[Tensor, ""]
    gradient_norm: Float[Tensor, ""]
    accepted: Bool[Tensor, ""]


class StepBase:
    """What `TrainStep` and the step of a sharded model share: masked data, seeds, and the measured loss.

    `seed_part` is called with the number of a part before it is computed, if there are several. So the random
    numbers of a part do not depend on the rank that computes it.
    """

    _measured_loss: Callable[[Tensor, Tensor], Tensor]

    def __init__(self, model: TransformerLM, *, max_grad_norm: float, masked: bool) -> None:
        self.model = model
        self.max_norm = max_grad_norm or float("inf")
        self.seed_part: Callable[[int], None] | None = None
        self._masked = masked
        self._has_own_modules = has_own_modules(model)

    def measure(
        self, ids: Integer[Tensor, "batch seq"], targets: Integer[Tensor, "batch seq"]
    ) -> Float[Tensor, ""]:
        """Return the measured loss of a batch, without an update and without dropout in a user's part.

        All ranks of a sharded model must call it together, with batches of their own.
        """
        was_training = self.model.training
        if self._has_own_modules:
            self.model.eval()
        try:
            with torch.no_grad():
                return self._measured_loss(ids, targets)
        finally:
            if self._has_own_modules:
                self.model.train(was_training)

    def _seed(self, part: int, num_parts: int) -> None:
        if self.seed_part is not None and num_parts > 1:
            self.seed_part(part)

    def _shares(self, targets: Sequence[Tensor]) -> Tensor | None:
        """Return the share of each part in the tokens of the batch that count; None if parts are equal."""
        if not self._masked:
            return None
        counts = self._gather_parts(torch.stack([(part != IGNORED).sum() for part in targets]))
        return counts / counts.sum().clamp(min=1)

    def _gather_parts(self, own: Tensor) -> Tensor:
        """Return one number for each part of the batch, from those of this rank's parts."""
        raise NotImplementedError


class TrainStep(StepBase):
    """Update a model from one batch after another.

    `backend` is that of torch.compile ("inductor", or "aot_eager" on mps); None disables compilation. `loss`
    must be a pure function of model and batch: on a GPU its work is captured and replayed. `measured_loss` is
    what `measure` returns; by default it is `loss`.

    The loss of a step is the mean over all its tokens. With `masked`, it is the mean over all tokens that
    count (whose target is not `IGNORED`). The loss of each part is weighted by its number of such tokens.
    `loss` must then return the mean over the tokens that count.

    `reduction` adds the gradients of the parts; by default those of this process, exactly. `seed_part` (see
    `StepBase`) is also called before the update, with the number of parts.
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
        reduction: Reduction | None = None,
    ) -> None:
        super().__init__(model, max_grad_norm=max_grad_norm, masked=masked)
        self.reduction = reduction or Reduction()
        self.optimizer = optimizer
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
        self._measured_loss = self.loss
        if measured_loss not in (None, loss):
            self._measured_loss = compile_with(backend, forward_to_measure)
        self._clip_and_update: Callable[[Tensor], tuple[Tensor, Tensor]] = compile_with(
            backend, clip_and_update
        )
        flat_groups = [flat for part in self._fused for flat in part.flat_groups]
        self._parameters = [parameter for flat in flat_groups for parameter in flat.parameters]
        self._gradients = [view for flat in flat_groups for view in flat.gradient_views]
        self._is_captured = bool(backend == "inductor" and self._parameters and self._parameters[0].is_cuda)
        self._overlapped = self._overlap_sum()
        self._take_fused = self._captured(self._fused_step)
        self._compute_share = self._captured(self._pack_share)
        self._finish = self._captured(self._unpack_and_update)

    def _overlap_sum(self) -> OverlappedSum | None:
        """Return the sum of gradients that overlaps with the backward pass, if it can."""
        if not self._parameters or self._is_captured or not self.reduction.can_overlap(self._parameters[0]):
            return None
        own = {id(parameter) for parameter in self._parameters}
        ordered = [parameter for parameter in self.model.parameters() if id(parameter) in own]
        return OverlappedSum(ordered, self.reduction.ranks)

    def _captured(self, function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        return CudaGraphFunction(function) if self._is_captured else function

    def __call__(self, batches: Sequence[Batch]) -> StepResult:
        """Make one update with the mean gradient over `batches`, the parts of one batch.

        With several ranks, `batches` are the parts of this rank.
        """
        if self._can_fuse():
            for part in self._fused:
                part.load_learning_rates()
            tensors = [tensor for batch in batches for tensor in batch]
            try:
                if self.reduction.is_distributed:
                    result = self._step_with_others(tensors)
                elif self.seed_part is not None and len(batches) > 1:
                    result = self._fused_step(*tensors)  # seeds are not part of a CUDA graph
                else:
                    result = self._take_fused(*tensors)
                self.optimizer._opt_called = True  # type: ignore[attr-defined]  # torch's schedulers check it
                return StepResult(*result)
            except _UnusedParameterError:
                self._has_unused = True
        return self._step_by_optimizer(batches)

    def part_numbers(self, num_own: int) -> Sequence[int]:
        """Return the numbers in the batch of the parts of this rank, which computes `num_own` parts."""
        first = self.reduction.first_part(num_own)
        return range(first, first + num_own)

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
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        shares = self._shares([targets for _, targets in batches])
        summed = self.reduction.start_sum(len(batches))
        losses: list[Tensor] = []
        is_used = [0] * len(parameters)
        self.optimizer.zero_grad()
        for ids, targets in batches:
            loss, part = self._weighted_loss(ids, targets, len(losses), len(batches), shares)
            torch.autograd.backward(part)
            losses.append(loss.detach())
            is_used = [used | (p.grad is not None) for used, p in zip(is_used, parameters, strict=True)]
            with torch.no_grad():
                summed.add([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
            for parameter in parameters:
                parameter.grad = None
        with torch.no_grad():
            all_losses = torch.stack(losses)
            if self.reduction.is_distributed:
                is_used = self.reduction.ranks.largest(is_used)
                self.reduction.pack(summed, all_losses)
                all_losses = self.reduction.exchange()
                self.reduction.unpack(summed.sums[0])
            for parameter, used, gradient in zip(parameters, is_used, summed.sums[0], strict=True):
                parameter.grad = gradient if used else None
            loss = mean_loss(all_losses, shares)
            norm = clip_gradients(parameters, self.max_norm)
            accepted = torch.isfinite(loss) & torch.isfinite(norm)
            num_parts = len(batches) * self.reduction.ranks.num_ranks
            self._seed(num_parts, num_parts)
            step_if(self.optimizer, accepted)
            return StepResult(loss, norm, accepted)

    def _fused_step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Update by the fused optimizers: write gradients into their flat groups, then `apply_clipped`."""
        shares = self._shares(tensors[1::2])
        _, losses = self._add_gradients(tensors, shares)
        return self._update(losses, shares)

    def _step_with_others(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Make the same update with the parts of other ranks; only the sum of gradients communicates."""
        shares = self._shares(tensors[1::2])
        if self._overlapped is not None:
            return self._overlap_gradients(self._overlapped, tensors, shares)
        more = () if shares is None else (shares,)
        is_seeded = self.seed_part is not None and len(tensors) > 2
        is_unused = 0
        try:
            (self._pack_share if is_seeded else self._compute_share)(*tensors, *more)
        except _UnusedParameterError:
            is_unused = 1
        if self.reduction.ranks.largest([is_unused])[0]:
            raise _UnusedParameterError
        return self._finish(self.reduction.exchange(), *more)

    def _overlap_gradients(
        self, summed: OverlappedSum, tensors: Sequence[Tensor], shares: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Make the same update with gradients that are exchanged during the last backward pass."""
        num_own = len(tensors) // 2
        summed.start(num_own)
        for number, (ids, targets) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
            loss, part = self._weighted_loss(ids, targets, number, num_own, shares)
            summed.backward(part, loss)
        if not summed.finish():
            raise _UnusedParameterError
        with torch.no_grad():
            torch._foreach_copy_(self._gradients, [summed.gradient(one) for one in self._parameters])
        return self._update(summed.losses, shares)

    def _pack_share(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute the parts of this rank; the last tensor is `shares` if the data is masked."""
        shares = tensors[-1] if self._masked else None
        summed, losses = self._add_gradients(tensors[: len(tensors) // 2 * 2], shares)
        self.reduction.pack(summed, losses)
        return ()

    def _unpack_and_update(self, losses: Tensor, *shares: Tensor) -> tuple[Tensor, ...]:
        self.reduction.unpack(self._gradients)
        return self._update(losses, shares[0] if shares else None)

    def _add_gradients(
        self, tensors: Sequence[Tensor], shares: Tensor | None
    ) -> tuple[TreeSum | RunningSum, Float[Tensor, " own"]]:
        """Return the summed gradients and the losses of this rank's parts: `tensors` are ids and targets."""
        losses: list[Tensor] = []
        num_own = len(tensors) // 2
        summed = self.reduction.start_sum(num_own, self._gradients)
        for ids, targets in zip(tensors[::2], tensors[1::2], strict=True):
            loss, part = self._weighted_loss(ids, targets, len(losses), num_own, shares)
            gradients = torch.autograd.grad(part, self._parameters, allow_unused=True)
            if any(gradient is None for gradient in gradients):
                raise _UnusedParameterError
            with torch.no_grad():
                summed.add(gradients)
            losses.append(loss.detach())
        return summed, torch.stack(losses)

    def _weighted_loss(
        self, ids: Tensor, targets: Tensor, number: int, num_own: int, shares: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of the part with this number among `num_own`, and its term in that of the batch."""
        part = self.reduction.first_part(num_own) + number
        num_parts = num_own * self.reduction.ranks.num_ranks
        self._seed(part, num_parts)
        loss = self.loss(ids, targets)
        return loss, loss / num_parts if shares is None else loss * shares[part]

    @torch.no_grad()
    def _update(self, losses: Float[Tensor, " parts"], shares: Tensor | None) -> tuple[Tensor, ...]:
        loss = mean_loss(losses, shares)
        return (loss, *self._clip_and_update(loss))

    def _gather_parts(self, own: Tensor) -> Tensor:
        return self.reduction.ranks.all_gather(own).flatten()


def has_own_modules(model: TransformerLM) -> bool:
    """Return whether a module is not one of Bytewright's: it may draw random numbers, as dropout does."""
    return any(
        not isinstance(module, torch.nn.ModuleList) and not is_built_in(type(module))
        for module in model.modules()
    )


class _UnusedParameterError(Exception):
    """The loss does not depend on a parameter of a fused optimizer."""


def mean_loss(losses: Float[Tensor, " parts"], shares: Tensor | None) -> Float[Tensor, ""]:
    """Return the loss of a batch from those of its parts, which are equal or have these shares."""
    return losses.mean() if shares is None else (losses * shares).sum()


def compile_with(backend: str | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` compiled for fixed shapes, or unchanged without a backend."""
    if backend is None:
        return function
    compiled: Callable[..., Any] = torch.compile(function, backend=backend, dynamic=False)
    return compiled
