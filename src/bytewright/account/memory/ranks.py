"""The peak memory of a training step on one of several ranks.

"replicate": the memory of a single process that computes the parts of one rank, and in addition the sums of
gradients that wait in the tree and the buffers of the exchange. The buffers are one row of N numbers per node
that is sent, as much to receive, and a copy while they are sent.

"shard": a rank stores 1/R of the weights, of the optimizer state and of the sums of gradients. A group of
parameters (a block, the embeddings, or the root: head and final norm) is whole only while it is used:

    forward    the root, and three copies of a block: gathered, in the layout of the model, and the last one
    loss       the root, and the gradient of the head
    ffn,       the root and its gradient, this block and its gradients, the gathered block before it, and the
    attention  gradients of the block after it, which were sent
    exchange   gradients of a block as they are sent and as they are received
    end        the same for root and embeddings, whose gradients are complete last
    update     the gradients of the own rows, and the temporaries of one parameter

Activations, logits and temporaries are those of `training`, for one part of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from bytewright.account.memory.training import WORKSPACE, Moment, StepMemory, TrainingMemory
from bytewright.account.optimizers import AnyOptimizer, list_rule_groups
from bytewright.account.ranks import Groups, Ranks
from bytewright.errors import UsageError
from bytewright.model.config import Implementation
from bytewright.model.costs import WIDE, StepShape
from bytewright.model.transformer import weight_shapes
from bytewright.parallel.rows import count_numbers
from bytewright.parallel.tree import find_nodes, max_nodes

NORM_TEMPORARIES = 24
"""Bytes per number of a parameter while its squares are added: scaled, squared, as integers, and shifted."""
SUMS_OF_A_ROUND = 3
"""Copies of the own rows while the parts of a round are added: two nodes, and the result."""
UPDATE_TEMPORARIES = 7
"""Tensors of the size of a parameter that exist during its update without a compiler (`FusedAdamW`)."""


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
        yield self._part("update", self.parameters, {"temporaries": temporaries})

    def _moments_of_round(self, before: int, after: int) -> Iterator[Moment]:
        """Yield the moments of a round; a rank holds `before` sums of each gradient, and then `after`."""
        x, layers, block, root = self.x, self.x.config.num_layers, self.whole_block, self.root
        waiting = before * self.parameters
        yield self._part("forward", waiting, {"gathered": root + 3 * block}, self._kept(layers - 1, []))
        yield self._part("loss", waiting, {"gathered": root, **self.loss()}, self._kept(layers, self.after))
        head = root  # its gradients have the size of its weights
        first_input = self.after if x.config.norm == "post" else []
        for num_passed in (0, layers - 1):  # blocks whose backward pass is finished
            sums = waiting + num_passed * (after - before) * self.own_block
            prefetched = block if num_passed < layers - 1 else 0
            sent = block if num_passed else 0
            for name, (freed, temporaries) in (("ffn", self.ffn()), ("attention", self.attention())):
                done = self.ffn_parameters if name == "attention" else 0
                more = {"gathered": root + block + prefetched, "gradients": head + done}
                more |= {"temporaries": temporaries, "exchange": sent}
                yield self._part(name, sums, more, self._kept(layers - num_passed, first_input, freed))
            more = {"gathered": root + prefetched, "gradients": head}
            more["exchange"] = 2 * block + SUMS_OF_A_ROUND * self.own_block
            yield self._part("exchange", sums, more, self._kept(layers - num_passed - 1, []))
        sums = waiting + layers * (after - before) * self.own_block
        head_and_embeddings = {"gathered": root, "gradients": head + (self.embeddings or x.V * x.d * WIDE)}
        yield self._part("end", sums, {**head_and_embeddings, "exchange": block})
        last = {"gradients": self.embeddings, "exchange": 2 * root}
        yield self._part("end", sums, last)

    def _part(self, name: str, sums: int, more: dict[str, int], kept: dict[str, int] | None = None) -> Moment:
        parts = {
            "parameters": self.parameters,
            "optimizer state": self.state,
            "sums of gradients": sums,
            "gradients": 0,
            "workspace": WORKSPACE[self.x.device],
        }
        for extra in (kept or {}, more):
            for key, value in extra.items():
                parts[key] = parts.get(key, 0) + value
        return Moment(name=name, parts=parts)
