"""Norm, clipping and update of a sharded model; the number of ranks changes no bit.

AdamW and SGD compute every number of a tensor from the same number of its gradient and state, so each rank
updates its own rows. Muon orthogonalises whole matrices: every matrix has an owner, which receives its rows,
orthogonalises them and returns them. The rank that stores a row computes its momentum and its update. Other
rules are rejected.

The norm is the sum of squares over all ranks. It is added in integers, where the order does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import Parameter

from bytewright.errors import UsageError
from bytewright.optim.clip import clip_factor
from bytewright.optim.fused import FlatGroup, FusedAdamW, FusedMuon, FusedOptimizer, FusedSGD, FusedUpdate
from bytewright.optim.reference import CombinedOptimizer, Group, orthogonalise, parts_of
from bytewright.parallel.rank_group import RankGroup
from bytewright.parallel.rows import Rows, Shape, choose_owners, count_numbers, find_rows

SQUARE_BITS = 46
"""Gradients are scaled so that the largest square is below 2 to this power. Squares are truncated to
integers, so the smallest ones count as zero."""
SMALLEST_EXPONENT = -100
"""The scale does not grow further if all gradients are below 2 to this power: 2¹²⁸ overflows float32."""
LOW_BITS = 23
"""High and low digits are added separately, so 2⁶³⁻²³ squares cannot overflow 64 bits."""


class _OnRows(FusedOptimizer):
    """A fused optimizer whose parameters stay where they are: the rows that FSDP2 gathers."""

    def partition(self, parameters: list[Parameter]) -> list[list[Parameter]]:
        """Put every parameter into a group of its own."""
        return [[parameter] for parameter in parameters]

    def _build_flat_group(self, parameters: list[Parameter], group: Group, t: Int64[Tensor, ""]) -> FlatGroup:
        (parameter,) = parameters
        self.state[parameter]["step"] = t
        weights = parameter.detach()
        return FlatGroup(
            parameters=parameters,
            group=group,
            weights=weights,
            gradients=weights.new_empty(0),  # FSDP2 allocates them in every step
            state={name: self.state[parameter][name] for name in self.state_names},
            weight_views=[weights],
            gradient_views=[],
            lr=torch.zeros((), device=weights.device),
        )


class ShardedAdamW(_OnRows, FusedAdamW):
    """`FusedAdamW` for the rows of a rank."""


class ShardedSGD(_OnRows, FusedSGD):
    """`FusedSGD` for the rows of a rank."""


class ShardedMuon(_OnRows, FusedMuon):
    """`FusedMuon` for the rows of a rank; `ShardedUpdate` calls its two halves."""


SHARDED: Mapping[type, type[FusedOptimizer]] = {
    FusedAdamW: ShardedAdamW,
    FusedSGD: ShardedSGD,
    FusedMuon: ShardedMuon,
}


def check_shardable(optimizer: torch.optim.Optimizer) -> None:
    """Raise unless all rules of an optimizer can update the rows of a rank."""
    for part in parts_of(optimizer):
        if type(part) not in SHARDED:
            message = (
                'parallel.strategy is "shard", which supports the fused optimizers adamw, sgd and muon, but'
                f' not {type(part).__name__}; use "replicate"'
            )
            raise UsageError(message, key="optimizer.name", found=type(part).__name__)


def shard_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[Parameter, str], rows: Mapping[str, Rows]
) -> FusedOptimizer | CombinedOptimizer:
    """Return an optimizer for `rows` with the rules, groups and settings of `optimizer`.

    `optimizer` is built over a model without contents (on torch's meta device); `names` names its parameters.
    """
    check_shardable(optimizer)
    if isinstance(optimizer, CombinedOptimizer):
        return CombinedOptimizer([shard_optimizer(part, names, rows) for part in optimizer.optimizers])
    groups = [
        {**group, "params": [rows[names[parameter]].local for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    return SHARDED[type(optimizer)](groups, **optimizer.defaults)


def rows_of_state(
    optimizer: FusedOptimizer | CombinedOptimizer, rows: Mapping[str, Rows]
) -> list[dict[str, Rows]]:
    """Return the rows of every state tensor, by its name, for each parameter in the optimizer's order."""
    of_local = {id(one.local): one for one in rows.values()}
    return [
        {
            name: Rows(value, of_local[id(parameter)].shape, of_local[id(parameter)].ranks)
            for name, value in optimizer.state[parameter].items()
            if name != "step"
        }
        for parameter in optimizer.parameters
    ]


class ShardedUpdate:
    """Clips and applies the gradients of the own rows; all ranks must call it together."""

    def __init__(
        self, optimizer: FusedOptimizer | CombinedOptimizer, rows: Mapping[str, Rows], ranks: RankGroup
    ) -> None:
        self.ranks = ranks
        of_local = {id(one.local): (name, one) for name, one in rows.items()}
        self._names: list[list[str]] = []
        self._updates: list[FusedUpdate] = []
        self._matrices: list[MatrixExchange | None] = []
        for part in parts_of(optimizer):
            assert isinstance(part, FusedOptimizer)
            (update,) = part.updates
            named = [of_local[id(flat.parameters[0])] for flat in update.flat_groups]
            self._updates.append(update)
            self._names.append([name for name, _ in named])
            is_muon = isinstance(part, FusedMuon)
            self._matrices.append(MatrixExchange([one.shape for _, one in named], ranks) if is_muon else None)

    @torch.no_grad()
    def __call__(
        self, gradients: Mapping[str, Tensor], loss: Float[Tensor, ""], max_norm: float
    ) -> tuple[Float[Tensor, ""], Bool[Tensor, ""]]:
        """Update unless loss or norm is not finite; return the norm and whether the update was accepted."""
        norm = cut_invariant_norm(list(gradients.values()), self.ranks)
        accept = torch.isfinite(loss) & torch.isfinite(norm)
        factor = clip_factor(norm, max_norm)
        for update, names, exchange in zip(self._updates, self._names, self._matrices, strict=True):
            update.load_learning_rates()
            own = [gradients[name] for name in names]
            if exchange is None:
                update.apply(factor, accept, own)
            else:
                _apply_muon(update, own, factor, accept, exchange)
        return norm, accept


def _apply_muon(
    update: FusedUpdate, gradients: Sequence[Tensor], factor: Tensor, accept: Tensor, exchange: MatrixExchange
) -> None:
    """Apply Muon: mean and update with the rows, the orthogonalisation between them with whole matrices."""
    means, directions = [], []
    for flat, gradient in zip(update.flat_groups, gradients, strict=True):
        mean, direction = FusedMuon.average(flat, gradient * factor)
        means.append(mean)
        directions.append(direction)
    directions = exchange.orthogonalise(directions)
    for flat, mean, direction, shape in zip(
        update.flat_groups, means, directions, exchange.shapes, strict=True
    ):
        weights = FusedMuon.descend(flat, direction.to(mean.dtype), shape)
        flat.store(weights, {"momentum_buffer": mean}, accept)
    update.t.add_(accept)


class MatrixExchange:
    """Orthogonalises sharded matrices: each owner processes its matrices one after the other.

    A stack of matrices would be faster. But its height, and with it the order of additions in a product,
    could depend on the number of ranks.
    """

    def __init__(self, shapes: Sequence[Shape], ranks: RankGroup) -> None:
        self.shapes, self.ranks = list(shapes), ranks
        owners = choose_owners(shapes, ranks.num_ranks)
        self._owned = [
            [number for number, one in enumerate(owners) if one == owner] for owner in range(ranks.num_ranks)
        ]

    def orthogonalise(self, rows: Sequence[Float[Tensor, "_ _"]]) -> list[Float[Tensor, "_ _"]]:
        """Return the own rows of the orthogonalised matrices; `rows` are the own rows of all matrices."""
        ranks, own = self.ranks, self._owned[self.ranks.rank]
        to_owners = [[rows[number] for number in owned] for owned in self._owned]
        by_rank = self._exchange(to_owners, [(own, rank) for rank in range(ranks.num_ranks)])
        matrices = [orthogonalise(torch.cat(pieces)) for pieces in zip(*by_rank, strict=True)]
        to_ranks = [
            [matrix[find_rows(len(matrix), ranks.num_ranks, rank)] for matrix in matrices]
            for rank in range(ranks.num_ranks)
        ]
        by_owner = self._exchange(to_ranks, [(owned, ranks.rank) for owned in self._owned])
        result = {
            number: piece
            for owned, pieces in zip(self._owned, by_owner, strict=True)
            for number, piece in zip(owned, pieces, strict=True)
        }
        return [result[number] for number in range(len(rows))]

    def _exchange(
        self, sent: Sequence[Sequence[Tensor]], expected: Sequence[tuple[list[int], int]]
    ) -> list[list[Tensor]]:
        """Send a list of tensors to every rank; return those that it sends.

        `expected` describes what each rank sends: the numbers of matrices, and whose rows of them.
        """
        if self.ranks.num_ranks == 1:
            return [list(tensors) for tensors in sent]
        like = next(tensor for tensors in sent for tensor in tensors)
        flat = [
            torch.cat([tensor.flatten() for tensor in tensors] or [like.new_empty(0)]) for tensors in sent
        ]
        sizes = [
            [count_numbers(self.shapes[number], self.ranks.num_ranks, rank) for number in numbers]
            for numbers, rank in expected
        ]
        received = like.new_empty(sum(map(sum, sizes)))
        others = sum(len(one) for rank, one in enumerate(flat) if rank != self.ranks.rank)
        self.ranks.num_bytes_sent += others * like.element_size()
        with self.ranks.collective():
            dist.all_to_all_single(
                received,
                torch.cat(flat),
                output_split_sizes=list(map(sum, sizes)),
                input_split_sizes=[len(one) for one in flat],
                group=self.ranks.data_group,
            )
        pieces = iter(torch.split(received, [size for of_rank in sizes for size in of_rank]))
        return [
            [next(pieces).view(-1, self.shapes[number][1]) for number in numbers] for numbers, _ in expected
        ]


def cut_invariant_norm(tensors: Sequence[Float[Tensor, ...]], ranks: RankGroup) -> Float[Tensor, ""]:
    """Return the norm of the tensors of all ranks as one vector; it does not depend on how they are cut.

    The squares become integers: relative to the largest one, with `SQUARE_BITS` digits. The sum of integers
    does not depend on their order. If a number is not finite, neither is the norm.
    """
    largest = torch.stack([tensor.abs().amax() for tensor in tensors if tensor.numel()] or [_zero(tensors)])
    largest = ranks.all_gather(largest.amax()).amax()
    exponent = torch.frexp(largest).exponent.clamp(min=SMALLEST_EXPONENT)
    scale = torch.ldexp(torch.ones_like(largest), SQUARE_BITS // 2 - exponent)
    sums = torch.stack([_add_squares(tensor * scale) for tensor in tensors]).sum(dim=0)
    high, low = ranks.all_gather(sums).view(-1, 2).sum(dim=0).double()
    squares = high * 2.0**LOW_BITS + low
    norm = squares.sqrt().float() / scale
    return torch.where(torch.isfinite(largest), norm, largest.new_full((), math.nan))


def _add_squares(tensor: Float[Tensor, ...]) -> Int64[Tensor, 2]:
    """Return the sum of squares as two integers: its high and its low digits."""
    squares = tensor.square().long()
    return torch.stack([(squares >> LOW_BITS).sum(), (squares & (2**LOW_BITS - 1)).sum()])


def _zero(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0].new_zeros(())
