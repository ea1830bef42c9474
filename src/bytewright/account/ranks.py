"""What the ranks of a run send to each other in a training step.

N is the number of parameters, R the number of ranks and P the number of parts of a batch (`accumulate`). One
rank computes each part. Gradients and weights are sent as 4 bytes per number. Sent by one rank per step:

    replicate, exact   4·N·(R-1)/R for each node of the tree inside its share of the parts (one if P/R is a
                       power of two), and once more to gather the sum
    replicate, fast    8·N·(R-1)/R: a ring all-reduce
    shard              in each of P/R rounds 4·N·(R-1)/R to gather the weights for the forward pass, again for
                       the backward pass of the blocks, and again for the gradients

The losses of the parts, and with "shard" the norm, add a few bytes. Shares are rounded up, with "shard" to
whole rows. Muon on shards also sends the rows of every matrix to its owner and back. `parallel` counts what
it sends; tests compare both figures, which must be equal. `predict_rank_memory` predicts what a rank stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bytewright.account.optimizers import AnyOptimizer, list_rule_groups
from bytewright.account.parameters import count_parameters
from bytewright.errors import UsageError, wrong_value
from bytewright.model.config import ModelConfig
from bytewright.model.costs import WIDE, DeviceKind
from bytewright.model.transformer import weight_shapes
from bytewright.optim.reference import Muon
from bytewright.parallel.replicate import ReductionKind
from bytewright.parallel.rows import Shape, choose_owners, count_numbers
from bytewright.parallel.tree import find_nodes

Strategy = Literal["replicate", "shard"]

NORM_BYTES = 4 + 2 * 8
"""What a rank sends to every other for the norm of sharded gradients: the largest, and two integers."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """How several ranks train one run together."""

    num_ranks: int = 1
    strategy: Strategy = "replicate"
    reduction: ReductionKind = "exact"
    accumulate: int = 1
    """Parts of a batch; a multiple of the number of ranks."""

    def __post_init__(self) -> None:
        if self.num_ranks < 1:
            raise wrong_value("ranks", "at least 1", self.num_ranks)
        if self.accumulate % self.num_ranks:
            message = (
                f"accumulate must be a multiple of the number of ranks, {self.num_ranks}, but is"
                f" {self.accumulate}"
            )
            raise UsageError(message, key="accumulate", expected=self.num_ranks, found=self.accumulate)

    @property
    def num_rounds(self) -> int:
        """Parts that each rank computes."""
        return self.accumulate // self.num_ranks

    def num_nodes_before(self, round_number: int) -> int:
        """Return how many sums of gradients a rank holds before a round of "shard", counted from 0."""
        if self.reduction == "fast":
            return min(round_number, 1)
        return len(find_nodes(self.accumulate, 0, round_number * self.num_ranks))


@dataclass(frozen=True)
class Groups:
    """The numbers of a model that rank 0 stores of R ranks, in the groups that are gathered at once."""

    embeddings: int
    """Zero if they are tied to the head, which then gathers them."""
    block: int
    num_blocks: int
    root: int
    """Head, final norm and positions: gathered for the whole of a forward and backward pass."""

    @classmethod
    def of(cls, config: ModelConfig, num_ranks: int) -> Groups:
        """Return the groups of a model."""
        embeddings = block = root = 0
        for name, shape in weight_shapes(config).items():
            numbers = count_numbers(shape, num_ranks)
            if name.startswith("layers.0."):
                block += numbers
            elif name.startswith("token_embeddings.") and not config.tie_embeddings:
                embeddings += numbers
            elif not name.startswith("layers."):
                root += numbers
        return cls(embeddings, block, config.num_layers, root)

    @property
    def total(self) -> int:
        """All numbers."""
        return self.embeddings + self.num_blocks * self.block + self.root


def sent_bytes(
    config: ModelConfig, ranks: Ranks, *, optimizer: AnyOptimizer = "adamw", device: DeviceKind = "cuda"
) -> dict[str, int]:
    """Return the bytes that rank 0 sends to the other ranks in a step, by purpose.

    >>> base = ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16)
    >>> eight = Ranks(num_ranks=8, accumulate=8)
    >>> sent_bytes(base, eight)
    {'gradients': 158875192}
    >>> sum(sent_bytes(base, eight).values()) / (8 * count_parameters(base).total)  # 7/8, with the losses
    0.875000308418304
    """
    others = ranks.num_ranks - 1
    if ranks.strategy == "shard":
        return _sent_by_shard(config, ranks, optimizer, device)
    numbers = -(-(count_parameters(config).total + ranks.accumulate) // ranks.num_ranks)
    num_nodes = len(find_nodes(ranks.accumulate, 0, ranks.num_rounds)) if ranks.reduction == "exact" else 1
    return {"gradients": WIDE * others * numbers * (num_nodes + 1)}


def _sent_by_shard(
    config: ModelConfig, ranks: Ranks, optimizer: AnyOptimizer, device: DeviceKind
) -> dict[str, int]:
    groups, others = Groups.of(config, ranks.num_ranks), ranks.num_ranks - 1
    blocks = groups.num_blocks * groups.block
    sent = {
        "weights, forward": WIDE * others * ranks.num_rounds * groups.total,
        "weights, backward": WIDE * others * ranks.num_rounds * blocks,
        "gradients": WIDE * others * ranks.num_rounds * groups.total,
        "losses and norm": others * (WIDE * ranks.num_rounds + NORM_BYTES),
    }
    matrices = _matrices_of_muon(config, optimizer)
    if matrices:
        size = 2 if device == "cuda" else WIDE  # on a GPU Muon multiplies in bf16
        sent["matrices of Muon"] = size * _sent_for_matrices(matrices, ranks.num_ranks)
    return sent


def _matrices_of_muon(config: ModelConfig, optimizer: AnyOptimizer) -> list[Shape]:
    """Return the shapes of the matrices that Muon updates, in the order of the optimizer."""
    rules = [group.rule for group in list_rule_groups(config, optimizer) or ()]
    if Muon not in rules:
        return []
    in_block = [shape for name, shape in weight_shapes(config).items() if name.startswith("layers.0.")]
    matrices: list[Shape] = [shape for shape in in_block if len(shape) == 2]
    return config.num_layers * matrices


def _sent_for_matrices(shapes: list[Shape], num_ranks: int) -> int:
    """Return the numbers that rank 0 sends: its rows to their owners, and rows of its own matrices back."""
    sent = 0
    for shape, owner in zip(shapes, choose_owners(shapes, num_ranks), strict=True):
        if owner:
            sent += count_numbers(shape, num_ranks)
        else:
            sent += sum(count_numbers(shape, num_ranks, rank) for rank in range(1, num_ranks))
    return sent
