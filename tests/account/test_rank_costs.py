"""Predicted communication equals the counted bytes; the memory of a rank falls with the number of ranks."""

from __future__ import annotations

import pytest
import torch

from bytewright.account import Ranks, predict_rank_memory, sent_bytes, training_memory
from bytewright.account.ranks import Strategy
from bytewright.errors import UsageError
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.costs import StepShape
from bytewright.optim.build import build_optimizer
from bytewright.parallel.rank_group import RankGroup
from bytewright.parallel.replicate import Reduction, ReductionKind
from bytewright.train.config import OptimizerConfig
from bytewright.train.step import TrainStep
from forked_ranks import run_ranks

TINY = ModelConfig(vocab_size=5, context_length=8, d_model=18, num_layers=2, num_heads=1)
LARGE = ModelConfig(vocab_size=1024, context_length=64, d_model=512, num_layers=8, num_heads=8)


def count_sent(ranks: RankGroup, kind: ReductionKind, num_parts: int) -> int:
    """Return the bytes that a rank sends in a step of the strategy "replicate"."""
    torch.manual_seed(0)
    model = TransformerLM(TINY, dtype=torch.float32)
    step = TrainStep(model, build_optimizer(model, OptimizerConfig()), reduction=Reduction(ranks, kind))
    ids = torch.randint(0, 5, (2, 8))
    step([(ids, ids)] * (num_parts // ranks.num_ranks))
    return ranks.num_bytes_sent


@pytest.mark.parametrize(("kind", "num_parts"), [("exact", 2), ("exact", 6), ("fast", 4)])
def test_what_replicating_ranks_send_is_predicted(kind: ReductionKind, num_parts: int) -> None:
    """Three parts of six are two nodes of the tree, which are sent separately."""
    ranks = Ranks(num_ranks=2, reduction=kind, accumulate=num_parts)
    assert run_ranks(2, count_sent, kind, num_parts)[0] == sum(sent_bytes(TINY, ranks).values())


def make_shape(config: ModelConfig) -> StepShape:
    return StepShape(
        config=config, batch_size=1, num_tokens=64, precision="fp32", compiled=False, device="cpu"
    )


def test_one_rank_with_one_part_needs_the_memory_of_a_single_process() -> None:
    alone, rank = (
        training_memory(LARGE, num_tokens=64, device="cpu"),
        predict_rank_memory(make_shape(LARGE), Ranks()),
    )
    totals = [[(moment.name, moment.total) for moment in memory.moments] for memory in (alone, rank)]
    assert totals[0] == totals[1]


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_sharding_divides_weights_and_state_by_the_number_of_ranks(optimizer: str) -> None:
    shape = make_shape(LARGE)
    by_ranks = {
        num_ranks: predict_rank_memory(
            shape, Ranks(num_ranks=num_ranks, strategy="shard", accumulate=8), optimizer=optimizer
        )
        for num_ranks in (1, 2, 4, 8)
    }
    alone = by_ranks[1]
    for num_ranks, memory in by_ranks.items():
        assert memory.parameters * num_ranks == alone.parameters
        assert memory.optimizer_state * num_ranks == alone.optimizer_state
    peaks = [memory.peak for memory in by_ranks.values()]
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize("strategy", ["replicate", "shard"])
def test_one_rank_sends_nothing(strategy: Strategy) -> None:
    assert not sum(sent_bytes(LARGE, Ranks(strategy=strategy), optimizer="muon").values())


def test_parts_that_ranks_cannot_share_equally_are_rejected() -> None:
    with pytest.raises(UsageError) as caught:
        Ranks(num_ranks=3, accumulate=4)
    assert (caught.value.key, caught.value.expected, caught.value.found) == ("accumulate", 3, 4)
