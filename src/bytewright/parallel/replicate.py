"""The gradient of a batch whose parts are computed by several ranks, each with the whole model.

A batch has the same number of equal parts whatever the number of ranks. Rank r computes the r-th share of
them. The gradients of all parts are added in fp32, in one of two ways:

- `exact`: in the order of the fixed tree (`tree`). Each rank adds the nodes inside its share. One all-to-all
  sends slice r of every node to rank r, which adds the rest of the tree on its slice. Then one all-gather
  returns the sum. If a share is one node, each rank sends 2·N·(R-1)/R numbers, as in a ring all-reduce of N.
- `fast`: each rank adds its parts one after the other, then one all-reduce in buckets adds the ranks. The
  order of additions depends on the number of ranks and on the backend. `OverlappedSum` starts it in the
  backward pass, unless that is captured in a CUDA graph.

Afterwards every rank has the same gradient, so norm, clipping and update are those of a single process. The
losses of the parts are sent with the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.nn import Parameter

from bytewright.parallel.rank_group import RankGroup, all_gather_single
from bytewright.parallel.tree import RunningSum, Tensors, TreeSum, find_nodes

ReductionKind = Literal["exact", "fast"]

BUCKET_NUMBERS = 25 * 2**20 // 4
"""Numbers per all-reduce: 25 MiB, as in torch's DistributedDataParallel."""


class Reduction:
    """Sums the gradients of the parts of a batch over all ranks of a group, by default this process alone.

    A step calls `start_sum` and adds the gradients of its parts. With several ranks it then calls `pack`,
    `exchange` and `unpack`. Only `exchange` communicates, so the work before and after it can be captured in
    CUDA graphs. The buffers have fixed addresses from the second step on.
    """

    def __init__(self, ranks: RankGroup | None = None, kind: ReductionKind = "exact") -> None:
        self.ranks = ranks or RankGroup()
        self.kind = kind
        self._buffers: _Buffers | None = None

    @property
    def is_distributed(self) -> bool:
        """Whether other ranks compute parts of the batch."""
        return self.ranks.num_ranks > 1

    def can_overlap(self, gradient: Tensor) -> bool:
        """Whether gradients on this device can be exchanged during the backward pass: not through a copy."""
        is_staged = gradient.device.type != "cpu" and self.ranks.backend == "gloo"
        return self.is_distributed and self.kind == "fast" and not is_staged

    def first_part(self, num_own: int) -> int:
        """Return the number of the first part of this rank, which computes `num_own` parts."""
        return self.ranks.rank * num_own

    def start_sum(self, num_own: int, into: Tensors | None = None) -> TreeSum | RunningSum:
        """Return an empty sum for the gradients of `num_own` parts of this rank.

        `into` receives the sum, or that of the first node; by default the gradients of the first part do.
        """
        if self.kind == "fast":
            return RunningSum(into=into)
        return TreeSum(num_own * self.ranks.num_ranks, self.first_part(num_own), into=into)

    def pack(self, summed: TreeSum | RunningSum, losses: Float[Tensor, " own"]) -> None:
        """Copy the sums and the losses of this rank's parts into the send buffer."""
        if self._buffers is None or self._buffers.num_own != len(losses):
            self._buffers = _Buffers(self.ranks, self.kind, summed.sums[0], len(losses))
        self._buffers.fill(summed.sums, losses)

    def exchange(self) -> Float[Tensor, " parts"]:
        """Sum the packed gradients over all ranks; return the loss of every part of the batch."""
        assert self._buffers is not None, "pack comes first"
        with self.ranks.collective():
            self.ranks.num_bytes_sent += self._buffers.exchange()
        return self._buffers.losses

    def unpack(self, into: Tensors) -> None:
        """Copy the summed gradients into `into`."""
        assert self._buffers is not None, "exchange comes first"
        torch._foreach_copy_(list(into), self._buffers.result_views)


class _Buffers:
    """The buffers of a reduction: one row per node of this rank, and the slices of all nodes that it adds.

    A row holds the gradients, the losses of all parts of the batch, and padding to a multiple of the number
    of ranks. Losses of parts of other ranks are zero, so their sum is exact. The backend gloo exchanges CPU
    memory only.
    """

    def __init__(self, ranks: RankGroup, kind: ReductionKind, tensors: Tensors, num_own: int) -> None:
        self.ranks, self.kind, self.num_own = ranks, kind, num_own
        self.num_parts = num_own * ranks.num_ranks
        self.nodes_of_rank = [
            find_nodes(self.num_parts, rank * num_own, (rank + 1) * num_own)
            for rank in range(ranks.num_ranks)
        ]
        num_rows = len(self.nodes_of_rank[ranks.rank]) if kind == "exact" else 1
        self.num_gradients = sum(tensor.numel() for tensor in tensors)
        self.slice_size = math.ceil((self.num_gradients + self.num_parts) / ranks.num_ranks)
        width = self.slice_size * ranks.num_ranks
        device = tensors[0].device
        self.rows = torch.zeros(num_rows, width, device=device)
        self.result = self.rows[0]
        self.row_views = [self._cut(row, tensors) for row in self.rows]
        self.result_views = self.row_views[0]
        self.losses = self.result[self.num_gradients : self.num_gradients + self.num_parts]
        self.is_staged = device.type != "cpu" and ranks.backend == "gloo"
        at = torch.device("cpu") if self.is_staged else device
        self.sent = torch.zeros_like(self.rows, device=at, pin_memory=True) if self.is_staged else self.rows
        if kind == "exact":
            num_received = sum(len(nodes) for nodes in self.nodes_of_rank)
            self.received = torch.zeros(num_received, self.slice_size, device=at)

    def _cut(self, row: Tensor, tensors: Tensors) -> list[Tensor]:
        """Return the views of a row that hold the gradients, in the shapes of `tensors`."""
        pieces = torch.split(row[: self.num_gradients], [tensor.numel() for tensor in tensors])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]

    def fill(self, nodes: Sequence[Tensors], losses: Float[Tensor, " own"]) -> None:
        """Copy the sums of this rank's nodes and the losses of its parts into the rows."""
        for views, sums in zip(self.row_views, nodes, strict=True):
            torch._foreach_copy_(views, list(sums))
        first = self.ranks.rank * self.num_own
        self.losses.zero_()
        self.losses[first : first + self.num_own].copy_(losses)

    def exchange(self) -> int:
        """Sum the rows of all ranks into `result`; return the number of bytes that this rank has sent."""
        if self.is_staged:
            self.sent.copy_(self.rows)  # synchronises with the GPU
        num_sent = self._exchange_exactly() if self.kind == "exact" else self._all_reduce()
        if self.is_staged:
            self.result.copy_(self.sent[0])
        return num_sent

    def _exchange_exactly(self) -> int:
        """Send slice r of every node to rank r, add the rest of the tree there, and gather the slices."""
        ranks, size = self.ranks, self.slice_size
        by_rank = self.sent.view(len(self.sent), ranks.num_ranks, size).transpose(0, 1).contiguous()
        num_nodes = [len(nodes) for nodes in self.nodes_of_rank]
        dist.all_to_all_single(
            self.received,
            by_rank.view(-1, size),
            output_split_sizes=num_nodes,
            input_split_sizes=[len(self.sent)] * ranks.num_ranks,
            group=ranks.data_group,
        )
        summed = TreeSum(self.num_parts)
        all_nodes = [node for nodes in self.nodes_of_rank for node in nodes]
        for node, row in zip(all_nodes, self.received, strict=True):
            summed.add([row], node.stop - node.start)
        ((total,),) = summed.sums
        all_gather_single(self.sent[0], total, group=ranks.data_group)
        return 4 * size * (ranks.num_ranks - 1) * (len(self.sent) + 1)

    def _all_reduce(self) -> int:
        works = [
            dist.all_reduce(bucket, group=self.ranks.data_group, async_op=True)
            for bucket in torch.split(self.sent[0], BUCKET_NUMBERS)
        ]
        for work in works:
            work.wait()
        return 8 * self.slice_size * (self.ranks.num_ranks - 1)  # by a ring


class OverlappedSum:
    """Sums the gradients of the parts of a batch over all ranks during the backward pass of the last part.

    A hook of each parameter copies its gradient into one buffer, in the reverse order of the parameters, in
    which a backward pass reaches them. The buffer is cut into buckets. When the last gradient of a bucket is
    complete, an all-reduce of it starts in the background. Buckets start in their order, so that all ranks
    agree on it. The last bucket contains the losses of the parts.

    Call `start`, `backward` for each part of this rank, and `finish`.
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
