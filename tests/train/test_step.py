"""One step: it learns, accumulates exactly, and a loss or gradient that is not finite changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from bytewright.errors import UsageError
from bytewright.model import ModelConfig, TransformerLM, language_model_loss
from bytewright.optim.build import build_optimizer
from bytewright.train.config import OptimizerConfig
from bytewright.train.step import TrainStep
from runs import rerun_unchecked

OPTIMIZERS = [
    OptimizerConfig(name=name, implementation=implementation, lr=0.01)
    for name in ("adamw", "muon", "sgd")
    for implementation in ("fused", "reference")
]


def make_model(seed: int = 0, **changes: Any) -> TransformerLM:
    torch.manual_seed(seed)
    fields: dict[str, Any] = {
        "vocab_size": 30,
        "context_length": 8,
        "d_model": 16,
        "num_layers": 2,
        "num_heads": 2,
    }
    return TransformerLM(ModelConfig(**fields | changes))


def make_batch(seed: int = 0, size: int = 4) -> tuple[Tensor, Tensor]:
    ids = torch.randint(30, (size, 9), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:]


def test_a_model_moved_after_its_optimizer_was_created_is_rejected() -> None:
    """Its updates would reach nothing."""
    model = make_model()
    optimizer = build_optimizer(model, OPTIMIZERS[0])
    model.double()
    with pytest.raises(UsageError):
        TrainStep(model, optimizer)


def snapshot(model: TransformerLM, optimizer: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return copy.deepcopy(dict(model.state_dict())), copy.deepcopy(optimizer.state_dict())


def flatten(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key, value in tree.items() for leaf in (key, *flatten(value))]
    if isinstance(tree, list | tuple):
        return [leaf for value in tree for leaf in flatten(value)]
    return [tree.tolist() if isinstance(tree, Tensor) else tree]


@pytest.mark.parametrize("optimizer_config", OPTIMIZERS, ids=lambda c: f"{c.name}-{c.implementation}")
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_leaves_weights_and_state_untouched(
    optimizer_config: OptimizerConfig, poison: float
) -> None:
    model = make_model()
    optimizer = build_optimizer(model, optimizer_config)
    add = torch.zeros(())

    def loss(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        return language_model_loss(model, ids, targets) + add

    step = TrainStep(model, optimizer, max_grad_norm=1.0, loss=loss)
    assert step([make_batch(0)]).accepted
    before = snapshot(model, optimizer)
    add.fill_(poison)
    result = step([make_batch(1)])
    assert not result.accepted
    assert flatten(snapshot(model, optimizer)) == flatten(before)
    add.zero_()
    assert step([make_batch(2)]).accepted
    assert flatten(snapshot(model, optimizer)) != flatten(before)


@pytest.mark.parametrize("optimizer_config", OPTIMIZERS, ids=lambda c: f"{c.name}-{c.implementation}")
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_single_bad_gradient_leaves_weights_and_state_untouched(
    optimizer_config: OptimizerConfig, poison: float
) -> None:
    model = make_model()
    optimizer = build_optimizer(model, optimizer_config)
    step = TrainStep(model, optimizer, max_grad_norm=1.0)
    step([make_batch(0)])
    before = snapshot(model, optimizer)

    def spoil(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[3] = poison
        return gradient

    handle = model.get_parameter("layers.1.ffn.w2.weight").register_hook(spoil)  # type: ignore[no-untyped-call]
    result = step([make_batch(1)])
    handle.remove()
    assert torch.isfinite(result.loss)
    assert not result.accepted
    assert flatten(snapshot(model, optimizer)) == flatten(before)


@pytest.mark.parametrize("implementation", ["fused", "reference"])
def test_accumulating_over_parts_equals_the_whole_batch(implementation: Any) -> None:
    def run(num_parts: int) -> TransformerLM:
        model = make_model().double()  # Adam divides rounding errors by gradients that may be as small
        config = OptimizerConfig(lr=0.01, implementation=implementation)
        step = TrainStep(model, build_optimizer(model, config), max_grad_norm=1.0)
        for number in range(5):
            ids, targets = make_batch(number, size=8)
            step(list(zip(ids.chunk(num_parts), targets.chunk(num_parts), strict=True)))
        return model

    whole, in_parts = run(1).state_dict(), run(4).state_dict()
    for name in whole:
        assert torch.allclose(whole[name], in_parts[name], atol=1e-10), name


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_fused_step_follows_the_reference(name: Any) -> None:
    losses = {}
    for implementation in ("fused", "reference"):
        model = make_model(implementation=implementation)
        config = OptimizerConfig(name=name, lr=0.01, implementation=implementation)
        step = TrainStep(model, build_optimizer(model, config), max_grad_norm=0.5)
        losses[implementation] = [step([make_batch(number)]).loss.item() for number in range(20)]
    assert losses["fused"] == pytest.approx(losses["reference"], abs=1e-3)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_one_batch_is_overfitted(name: Any) -> None:
    model = make_model(d_model=32)
    step = TrainStep(model, build_optimizer(model, OptimizerConfig(name=name, lr=0.01)), max_grad_norm=1.0)
    batch = make_batch(0)
    for _ in range(150):
        loss = step([batch]).loss
    assert loss < 0.05


def test_two_hundred_steps_go_as_with_the_optimizer_of_torch() -> None:
    """Side by side in fp32 on the same batches: lr 1e-3, epsilon 1e-8."""
    ours, theirs = make_model(d_model=32), make_model(d_model=32)
    config = OptimizerConfig(lr=1e-3, eps=1e-8, beta1=0.9, beta2=0.999, weight_decay=0.01)
    step = TrainStep(ours, build_optimizer(ours, config), max_grad_norm=1.0)
    matrices = [p for p in theirs.parameters() if p.ndim >= 2]
    gains = [p for p in theirs.parameters() if p.ndim < 2]
    peer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.01}, {"params": gains, "weight_decay": 0.0}],
        lr=1e-3,
        eps=1e-8,
    )
    for number in range(200):
        ids, targets = make_batch(number % 20)
        mine = step([(ids, targets)]).loss.item()
        peer.zero_grad()
        logits = theirs(ids)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        peer.step()
        assert mine == pytest.approx(loss.item(), abs=1e-3), f"step {number}"


def test_gains_are_not_decayed_and_muon_updates_only_the_matrices_inside_blocks() -> None:
    model = make_model()
    muon, gains = build_optimizer(model, OptimizerConfig(name="muon")).param_groups[0::2]
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert {names[p].split(".")[0] for p in muon["params"]} == {"layers"}
    assert all(p.ndim == 2 for p in muon["params"])
    assert gains["weight_decay"] == 0.0
    assert all(p.ndim == 1 for p in gains["params"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_a_compiled_step_follows_the_eager_one(request: pytest.FixtureRequest) -> None:
    if rerun_unchecked(request):
        return
    losses = []
    for backend in (None, "inductor"):
        model = make_model()
        step = TrainStep(
            model, build_optimizer(model, OptimizerConfig(lr=0.01)), max_grad_norm=0.5, backend=backend
        )
        losses.append([step([make_batch(number)]).loss.item() for number in range(10)])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
