"""One training step of a model whose rows are shared out over ranks (strategy "shard").

`ShardedStep` is called like `step.TrainStep`, on all ranks together. Each computes its parts of the batch,
while FSDP2 exchanges weights and gradients. Then every rank updates its own rows. Blocks are compiled one
by one, since the exchange takes place between them; embeddings, head and loss are not compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from bytewright.data.sampler import IGNORED, Batch
from bytewright.model import language_model_loss
from bytewright.model.fused import LanguageModelLoss as Loss
from bytewright.optim.fused import FusedOptimizer
from bytewright.optim.reference import CombinedOptimizer
from bytewright.parallel.shard import ShardedModel
from bytewright.parallel.shard_update import ShardedUpdate
from bytewright.train.step import StepResult, compile_with, has_own_modules, mean_loss


class ShardedStep:
    """Update a sharded model from one batch after another; see `TrainStep` for the arguments."""

    def __init__(
        self,
        sharded: ShardedModel,
        optimizer: FusedOptimizer | CombinedOptimizer,
        *,
        max_grad_norm: float = 0.0,
        backend: str | None = None,
        loss: Loss = language_model_loss,
        measured_loss: Loss | None = None,
        masked: bool = False,
    ) -> None:
        self.sharded, self.model, self.ranks = sharded, sharded.model, sharded.ranks
        self.max_norm = max_grad_norm or float("inf")
        self.seed_part: Callable[[int], None] | None = None
        self._loss, self._measured_loss = loss, measured_loss or loss
        self._masked = masked
        self._has_own_modules = has_own_modules(self.model)
        for layer in self.model.layers:
            layer.forward = compile_with(backend, layer.forward)  # FSDP2's hooks are called around it
        self._update = ShardedUpdate(optimizer, sharded.rows, self.ranks)

    def __call__(self, batches: Sequence[Batch]) -> StepResult:
        """Make one update; `batches` are the parts of this rank, in the order of their numbers."""
        shares = self._shares([targets for _, targets in batches])
        losses: list[Tensor] = []
        self.sharded.start_step()
        for number, (ids, targets) in enumerate(batches):
            part = self.sharded.find_part(number)
            if self.seed_part is not None and self.sharded.num_parts > 1:
                self.seed_part(part)
            loss = self._loss(self.model, ids, targets)
            torch.autograd.backward(loss / self.sharded.num_parts if shares is None else loss * shares[part])
            self.sharded.finish_round(number)
            losses.append(loss.detach())
        with torch.no_grad():
            loss = mean_loss(self._gather_parts(torch.stack(losses)), shares)
            norm, accepted = self._update(self.sharded.gradients(), loss, self.max_norm)
            return StepResult(loss, norm, accepted)

    def part_numbers(self, num_own: int) -> Sequence[int]:
        """Return the numbers in the batch of the parts of this rank, which computes `num_own` parts."""
        return [self.sharded.find_part(number) for number in range(num_own)]

    def _shares(self, targets: Sequence[Tensor]) -> Tensor | None:
        """Return the share of each part in the tokens of the batch that count; None if parts are equal."""
        if not self._masked:
            return None
        counts = self._gather_parts(torch.stack([(part != IGNORED).sum() for part in targets]))
        return counts / counts.sum().clamp(min=1)

    def _gather_parts(self, own: Tensor) -> Tensor:
        """Return one number for each part of the batch, from those of this rank's parts."""
        return self.ranks.all_gather(own).T.flatten()

    def measure(
        self, ids: Integer[Tensor, "batch seq"], targets: Integer[Tensor, "batch seq"]
    ) -> Float[Tensor, ""]:
        """Return the measured loss of a batch, without an update and without dropout in a user's part.

        All ranks must call it together, with batches of their own.
        """
        was_training = self.model.training
        if self._has_own_modules:
            self.model.eval()
        try:
            with torch.no_grad():
                return self._measured_loss(self.model, ids, targets)
        finally:
            self.sharded.release()
            if self._has_own_modules:
                self.model.train(was_training)
