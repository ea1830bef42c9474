"""The fast reduction: gradients are exchanged during the backward pass, and deviate by rounding only."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from bytewright.model import ModelConfig, TransformerLM, language_model_loss
from bytewright.optim.build import build_optimizer
from bytewright.parallel.rank_group import RankGroup
from bytewright.parallel.replicate import OverlappedSum, Reduction
from bytewright.train.config import OptimizerConfig
from bytewright.train.step import TrainStep
from forked_ranks import run_ranks

TINY = ModelConfig(vocab_size=11, context_length=8, d_model=16, num_layers=2, num_heads=2)


def make_parts(num_parts: int) -> list[tuple[Tensor, Tensor]]:
    ids = torch.randint(0, 11, (num_parts, 2, 3, 8), generator=torch.Generator().manual_seed(5))
    return [(part[0], part[1]) for part in ids]


def sum_gradients(ranks: RankGroup) -> tuple[list[Tensor], Tensor, list[int]]:
    """Return the summed gradients of four parts, their losses, and what was exchanged before each layer."""
    ranks.connect(torch.device("cpu"))
    torch.manual_seed(0)
    model = TransformerLM(TINY)
    parameters = list(model.parameters())
    summed = OverlappedSum(parameters, ranks, bucket_numbers=1)
    num_started: list[int] = []
    model.layers[0].register_full_backward_hook(lambda *_: num_started.append(len(summed._works)))
    own = 4 // ranks.num_ranks
    summed.start(own)
    for ids, targets in make_parts(4)[ranks.rank * own : (ranks.rank + 1) * own]:
        loss = language_model_loss(model, ids, targets)
        summed.backward(loss / 4, loss)
    assert summed.finish()
    return [summed.gradient(parameter).clone() for parameter in parameters], summed.losses, num_started


def test_gradients_of_all_ranks_are_summed_while_the_backward_pass_runs() -> None:
    torch.manual_seed(0)
    model = TransformerLM(TINY)
    losses = [language_model_loss(model, *part) for part in make_parts(4)]
    torch.autograd.backward(torch.stack(losses).mean())
    for gradients, found, num_started in run_ranks(2, sum_gradients):
        assert torch.allclose(found, torch.stack(losses), rtol=1e-6)
        for gradient, parameter in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-7)
        assert num_started[0] == 0, "the first of two parts exchanges nothing"
        assert num_started[1] > 10, "head and last layer are exchanged before the first layer is reached"


def step_without_a_parameter(ranks: RankGroup) -> tuple[Tensor, Tensor]:
    """Take two steps of a model with a parameter that the loss of rank 1 alone does not depend on."""
    ranks.connect(torch.device("cpu"))
    torch.manual_seed(0)
    model = TransformerLM(TINY)
    model.register_parameter("unused", Parameter(torch.ones(3)))
    optimizer = build_optimizer(model, OptimizerConfig(lr=0.01))

    def loss(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        value = language_model_loss(model, ids, targets)
        return value + model.get_parameter("unused").sum() if ranks.rank == 0 else value

    step = TrainStep(model, optimizer, loss=loss, reduction=Reduction(ranks, "fast"))
    first, second = (step(make_parts(2)[ranks.rank : ranks.rank + 1]) for _ in range(2))
    assert first.accepted
    assert second.accepted
    return model.get_parameter("unused").detach(), model.get_parameter("lm_head.weight").detach()


def test_ranks_agree_on_a_parameter_that_only_some_of_them_use() -> None:
    results = run_ranks(2, step_without_a_parameter)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][0], torch.ones(3))
