"""Which rank stores which rows of a tensor, and which rank orthogonalises which matrix: strategy "shard".

Both are functions of shapes and of the number of ranks. `account.ranks` predicts memory and communication
from them. `Rows` are the rows of one tensor that a rank stores. They are loaded from the whole tensor, and
gathered on rank 0, one tensor at a time. So no rank ever needs the memory of a second model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from bytewright.parallel.rank_group import RankGroup

Shape = tuple[int, ...]


def find_rows(num_rows: int, num_ranks: int, rank: int) -> slice:
    """Return the rows of a tensor that a rank stores, as FSDP2 cuts them: equal shares, the last shorter.

    >>> [find_rows(10, 4, rank) for rank in (0, 3)], find_rows(2, 4, 3)
    ([slice(0, 3, None), slice(9, 10, None)], slice(2, 2, None))
    """
    share = -(-num_rows // num_ranks)
    return slice(min(rank * share, num_rows), min((rank + 1) * share, num_rows))


def count_numbers(shape: Shape, num_ranks: int, rank: int = 0) -> int:
    """Return how many numbers of a tensor a rank stores; rank 0 has the most, as many as FSDP2 pads to.

    >>> [count_numbers((10, 8), 4, rank) for rank in (0, 3)]
    [24, 8]
    """
    num_rows = len(range(shape[0])[find_rows(shape[0], num_ranks, rank)])
    return num_rows * math.prod(shape[1:])


def choose_owners(shapes: Sequence[Shape], num_ranks: int) -> list[int]:
    """Return the owner of each matrix: the rank that owns the fewest numbers so far.

    >>> choose_owners([(4, 4), (8, 4), (4, 4), (4, 4)], 2)
    [0, 1, 0, 0]
    """
    load = [0] * num_ranks
    owners = []
    for shape in shapes:
        owner = load.index(min(load))
        load[owner] += math.prod(shape)
        owners.append(owner)
    return owners


@dataclass(frozen=True)
class Rows:
    """The rows of one tensor that this rank stores: of a parameter, or of its optimizer state."""

    local: Tensor
    shape: Shape
    """The shape of the whole tensor."""
    ranks: RankGroup

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers."""
        return self.local.dtype

    def cut(self, whole: Tensor) -> Tensor:
        """Return the rows of a whole tensor that this rank stores, without a copy."""
        return whole[find_rows(len(whole), self.ranks.num_ranks, self.ranks.rank)]

    @torch.no_grad()
    def fill(self, whole: Tensor) -> None:
        """Copy the rows that this rank stores from a whole tensor."""
        self.local.copy_(self.cut(whole))

    @torch.no_grad()
    def gather(self) -> Tensor | None:
        """Return the whole tensor on rank 0, in host memory, and None on others; all ranks must call it."""
        if self.ranks.num_ranks == 1:
            return self.local.detach().cpu()
        own = self.local.detach()
        padded = own.new_zeros((-(-self.shape[0] // self.ranks.num_ranks), *self.shape[1:]))
        padded[: len(own)] = own
        if self.ranks.backend == "gloo":
            padded = padded.cpu()
        shares = (
            [torch.empty_like(padded) for _ in range(self.ranks.num_ranks)] if self.ranks.is_main else None
        )
        with self.ranks.collective():
            dist.gather(padded, shares, dst=0, group=self.ranks.data_group)
        return None if shares is None else torch.cat(shares)[: self.shape[0]].cpu()

    def gather_on_main(self) -> Tensor:
        """Return the whole tensor; called by rank 0 while the others call `gather`."""
        whole = self.gather()
        assert whole is not None, "only rank 0 receives the rows"
        return whole
