"""What the ranks of a run send to each other in a training step, and the peak memory of one of them.

N is the number of parameters, R the number of ranks and P the number of parts of a batch (`accumulate`). One
rank computes each part. Gradients and weights are sent as 4 bytes per number. Sent by one rank per step:

    replicate, exact   4·N·(R-1)/R for each node of the tree inside its share of the parts (one if P/R is a
                       power of two), and once more to gather the sum
    replicate, fast    8·N·(R-1)/R: a ring all-reduce
    shard              in each of P/R rounds 4·N·(R-1)/R to gather the weights for the forward pass, again for
                       the backward pass of the blocks, and again for the gradients

The losses of the parts, and with "shard" the norm, add a few bytes. Shares are rounded up, with "shard" to
whole rows. Muon on shards also sends the rows of every matrix to its owner and back. `parallel` counts what
it sends; tests compare both figures, which must be equal. Only the 8 bytes per part of masked data are not
predicted.

The memory with "replicate" is that of a single process that computes the parts of one rank, and in addition
the sums of gradients that wait in the tree and the buffers of the exchange. The buffers are one row of N
numbers per node that is sent, as much to receive, and a copy while they are sent. With "shard", a rank stores
1/R of the weights, of the optimizer state and of the sums of gradients. A group of parameters (a block, the
embeddings, or the root: head and final norm) is whole only while it is used:

    forward    the root, and three copies of a block: gathered, in the layout of the model, and the last one
    loss       the root, and the gradient of the head
    ffn,       the root and its gradient, this block and its gradients, the gathered block before it, and the
    attention  gradients of the block after it, which were sent
    exchange   gradients of a block as they are sent and as they are received
    end        the same for root and embeddings, whose gradients are complete last
    update     the gradients of the own rows, and the temporaries of one parameter

Activations, logits and temporaries are those of `memory`, for one part of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bytewright.account.memory import Moment, StepMemory, TrainingMemory
from bytewright.account.optimizers import AnyOptimizer, list_rule_groups
from bytewright.account.parameters import count_parameters
from bytewright.errors import UsageError, wrong_value
from bytewright.model.config import Implementation, ModelConfig
from bytewright.model.costs import WIDE, DeviceKind, StepShape
from bytewright.model.transformer import weight_shapes
from bytewright.optim.reference import Muon
from bytewright.parallel.replicate import ReductionKind
from bytewright.parallel.rows import Shape, choose_owners, count_numbers
from bytewright.parallel.tree import find_nodes, max_nodes

Strategy = Literal["replicate", "shard"]

NORM_BYTES = 4 + 2 * 8
"""What a rank sends to every other for the norm of sharded gradients: the largest, and two integers."""
NORM_TEMPORARIES = 24
"""Bytes per number of a parameter while its squares are added: scaled, squared, as integers, and shifted."""
SUMS_OF_A_ROUND = 3
"""Copies of the own rows while the parts of a round are added: two nodes, and the result."""
UPDATE_TEMPORARIES = 7
"""Tensors of the size of a parameter that exist during its update without a compiler (`FusedAdamW`)."""


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


def predict_rank_memory(
    x: StepShape, ranks: Ranks, *, optimizer: AnyOptimizer = "adamw", implementation: Implementation = "fused"
) -> TrainingMemory:
    """Return the memory of a step on rank 0, which stores the most; `x` is the shape of one part."""
    if ranks.strategy == "shard":
        return _ShardedMemory(x, optimizer, ranks).memory()
    return _ReplicatedMemory(x, optimizer, implementation, ranks).memory()


class _ReplicatedMemory(StepMemory):
    """The memory of a rank that holds the whole model."""

    def __init__(
        self, x: StepShape, optimizer: AnyOptimizer, implementation: Implementation, ranks: Ranks
    ) -> None:
        super().__init__(x, optimizer, implementation)
        self.ranks = ranks

    def moments(self) -> Iterator[Moment]:
        """Yield the moments of a single process with the buffers, and the exchange."""
        ranks, is_exact = self.ranks, self.ranks.reduction == "exact"
        waiting = max(0, max_nodes(ranks.num_rounds) - 1) if is_exact else 0
        extra = {"sums of gradients": waiting * self.parameters}
        if ranks.num_ranks > 1:
            num_sent = len(find_nodes(ranks.accumulate, 0, ranks.num_rounds)) if is_exact else 1
            extra["exchange"] = (2 if is_exact else 1) * num_sent * self.parameters
        for moment in super().moments():
            yield Moment(name=moment.name, parts={**moment.parts, **extra})
        if ranks.num_ranks > 1 and is_exact:
            sending = {"exchange": (3 * num_sent) * self.parameters}
            yield self._moment("exchange", {**extra, **sending}, gradients=self.gradients())


class _ShardedMemory(StepMemory):
    """The memory of a rank that holds its rows."""

    def __init__(self, x: StepShape, optimizer: AnyOptimizer, ranks: Ranks) -> None:
        super().__init__(x, optimizer, "fused")
        rule_groups = list_rule_groups(x.config, optimizer)
        if rule_groups is None:
            message = 'parallel.strategy = "shard" supports adamw, sgd and muon; use "replicate"'
            raise UsageError(message, key="optimizer.name", found=str(optimizer))
        num_ranks = ranks.num_ranks
        groups = Groups.of(x.config, num_ranks)
        self.ranks, self.parameters = ranks, WIDE * groups.total
        self.gradient_buffer = 0
        self.own_block = WIDE * groups.block
        self.whole_block, self.embeddings, self.root = (
            WIDE * num_ranks * size for size in (groups.block, groups.embeddings, groups.root)
        )
        self.state = sum(
            WIDE * len(group.rule.state_names) * count * count_numbers(shape, num_ranks)
            for group in rule_groups
            for shape, count in group.shapes.items()
        )
        self.largest = max(count_numbers(shape, num_ranks) for shape in weight_shapes(x.config).values())

    def moments(self) -> Iterator[Moment]:
        """Yield the moments of every round whose sums of gradients differ."""
        ranks, last = self.ranks, self.ranks.num_rounds - 1
        rounds = {
            # The last round replaces the sums of finished parameters by their gradients.
            (ranks.num_nodes_before(i), 1 if i == last else ranks.num_nodes_before(i + 1) + 1)
            for i in range(ranks.num_rounds)
        }
        for before, after in sorted(rounds):
            yield from self._moments_of_round(before, after)
        temporaries = max(NORM_TEMPORARIES, UPDATE_TEMPORARIES * WIDE) * self.largest
        yield self._moment("update", {"sums of gradients": self.parameters, "temporaries": temporaries})

    def _moments_of_round(self, before: int, after: int) -> Iterator[Moment]:
        """Yield the moments of a round; a rank holds `before` sums of each gradient, and then `after`."""
        x, layers, block, root = self.x, self.x.config.num_layers, self.whole_block, self.root
        waiting = {"sums of gradients": before * self.parameters}
        kept = self._kept(layers - 1, [])
        yield self._moment("forward", {**waiting, "gathered": root + 3 * block}, kept=kept)
        kept = self._kept(layers, self.after)
        yield self._moment("loss", {**waiting, "gathered": root, **self.loss()}, kept=kept)
        head = root  # its gradients have the size of its weights
        first_input = self.after if x.config.norm == "post" else []
        for num_passed in (0, layers - 1):  # blocks whose backward pass is finished
            sums = waiting["sums of gradients"] + num_passed * (after - before) * self.own_block
            prefetched = block if num_passed < layers - 1 else 0
            for name, (freed, temporaries) in (("ffn", self.ffn()), ("attention", self.attention())):
                done = self.ffn_parameters if name == "attention" else 0
                more = {"sums of gradients": sums, "gathered": root + block + prefetched}
                more |= {"temporaries": temporaries, "exchange": block if num_passed else 0}
                kept = self._kept(layers - num_passed, first_input, freed)
                yield self._moment(name, more, kept=kept, gradients=head + done)
            more = {"sums of gradients": sums, "gathered": root + prefetched}
            more["exchange"] = 2 * block + SUMS_OF_A_ROUND * self.own_block
            yield self._moment("exchange", more, kept=self._kept(layers - num_passed - 1, []), gradients=head)
        sums = waiting["sums of gradients"] + layers * (after - before) * self.own_block
        of_embeddings = self.embeddings or x.V * x.d * WIDE
        more = {"sums of gradients": sums, "gathered": root, "exchange": block}
        yield self._moment("end", more, gradients=head + of_embeddings)
        more = {"sums of gradients": sums, "exchange": 2 * root}
        yield self._moment("end", more, gradients=self.embeddings)
