"""Reduction "fast" without CUDA graphs: gradients are exchanged while the backward pass computes the others.

A hook of each parameter copies its gradient into one buffer, in the reverse order of the parameters, in which
a backward pass reaches them. The buffer is cut into buckets. When the last gradient of a bucket is complete,
an all-reduce of it starts in the background. Buckets start in their order, so that all ranks agree on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.nn import Parameter

from bytewright.parallel.rank_group import RankGroup

BUCKET_NUMBERS = 25 * 2**20 // 4
"""Numbers per all-reduce: 25 MiB, as in torch's DistributedDataParallel."""


class OverlappedSum:
    """Sums the gradients of the parts of a batch over all ranks during the backward pass of the last part.

    Call `start`, `backward` for each part of this rank, and `finish`. The last bucket contains the losses
    of the parts.
    """

    def __init__(
        self, parameters: Sequence[Parameter], ranks: RankGroup, *, bucket_numbers: int = BUCKET_NUMBERS
    ) -> None:
        self.ranks = ranks
        ordered = list(reversed(parameters))
        self._num_gradients = sum(parameter.numel() for parameter in ordered)
        self._bucket_of: list[int] = []
        self._stops: list[int] = [0]
        """Where the buckets end in the buffer; a bucket ends with the gradient that fills it."""
        self._places: list[int] = [0]
        for parameter in ordered:
            self._bucket_of.append(len(self._stops) - 1)
            self._places.append(self._places[-1] + parameter.numel())
            if self._places[-1] - self._stops[-1] >= bucket_numbers:
                self._stops.append(self._places[-1])
        self._buffer = torch.empty(0, device=ordered[0].device)
        self._shapes = [parameter.shape for parameter in ordered]
        self._position = {id(parameter): number for number, parameter in enumerate(ordered)}
        self._is_active = False
        for number, parameter in enumerate(ordered):
            hook = self._make_hook(number)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def start(self, num_own: int) -> None:
        """Begin the sum of a batch of which this rank computes `num_own` parts."""
        size = self._num_gradients + num_own * self.ranks.num_ranks
        if len(self._buffer) != size:
            self._buffer = self._buffer.new_zeros(size)
            pieces = torch.split(self._buffer[: self._num_gradients], [math.prod(s) for s in self._shapes])
            self._views = [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]
        self.losses: Float[Tensor, " parts"] = self._buffer[self._num_gradients :]
        self.losses.zero_()
        self._num_own, self._num_done = num_own, 0
        self._is_used = [False] * len(self._views)
        self._missing = [self._bucket_of.count(bucket) for bucket in range(len(self._stops))]
        self._works: list[dist.Work] = []

    def backward(self, term: Float[Tensor, ""], loss: Float[Tensor, ""]) -> None:
        """Add the gradients of the next part: of `term`, its share in the loss of the batch."""
        self.losses[self.ranks.rank * self._num_own + self._num_done] = loss.detach()
        self._is_active = True
        try:
            torch.autograd.backward(term)
        finally:
            self._is_active = False
        self._num_done += 1

    def finish(self) -> bool:
        """Wait until all gradients are summed; return whether every parameter has one on all ranks."""
        for number, is_used in enumerate(self._is_used):
            if not is_used:
                self._views[number].zero_()
        self._start_buckets(len(self._missing))
        with self.ranks.collective():
            for work in self._works:
                work.wait()
        share = math.ceil(len(self._buffer) / self.ranks.num_ranks)
        self.ranks.num_bytes_sent += 8 * share * (self.ranks.num_ranks - 1)  # by a ring
        return not self.ranks.largest([int(not all(self._is_used))])[0]

    def gradient(self, parameter: Parameter) -> Tensor:
        """Return the summed gradient of a parameter, which the next step overwrites."""
        return self._views[self._position[id(parameter)]]

    def _make_hook(self, number: int) -> Callable[[Tensor], None]:
        def collect(parameter: Tensor) -> None:
            if self._is_active and parameter.grad is not None:
                view = self._views[number]
                (view.add_ if self._is_used[number] else view.copy_)(parameter.grad)
                parameter.grad = None
                self._is_used[number] = True
                if self._num_done + 1 == self._num_own:
                    bucket = self._bucket_of[number]
                    self._missing[bucket] -= 1
                    if not self._missing[bucket]:
                        complete = (i for i, missing in enumerate(self._missing) if missing)
                        self._start_buckets(next(complete, len(self._missing)))

        return collect

    def _start_buckets(self, stop: int) -> None:
        """Start the all-reduce of the buckets up to `stop` that have not started."""
        for bucket in range(len(self._works), stop):
            is_last = bucket + 1 == len(self._stops)
            end = len(self._buffer) if is_last else self._stops[bucket + 1]
            numbers = self._buffer[self._stops[bucket] : end]
            with self.ranks.collective():
                self._works.append(dist.all_reduce(numbers, group=self.ranks.data_group, async_op=True))
