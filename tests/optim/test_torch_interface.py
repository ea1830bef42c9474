"""Our optimizers are torch's: its schedulers, hooks, groups, closures and state dicts work with them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import lr_scheduler

from bytewright.errors import FormatError, UsageError
from bytewright.model import ModelConfig, TransformerLM
from bytewright.optim.fused import (
    FusedAdamW,
    FusedMuon,
    FusedOptimizer,
    FusedSGD,
    apply_clipped,
    fused_updates,
)
from bytewright.optim.reference import SGD, AdamW, CombinedOptimizer, Group, Muon, Optimizer
from bytewright.optim.saved_state import load_state
from bytewright.train.step import TrainStep
from runs import rerun_unchecked

CLASSES: list[type[Optimizer]] = [SGD, FusedSGD, AdamW, FusedAdamW, Muon, FusedMuon]
TINY = ModelConfig(vocab_size=11, context_length=4, d_model=8, num_layers=1, num_heads=2, d_ff=8)


def make_parameters(count: int = 3, seed: int = 0) -> list[Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [Parameter(torch.randn(4, 3, generator=generator)) for _ in range(count)]


def give_gradients(parameters: list[Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def run(optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        give_gradients(parameters_of(optimizer), step)
        optimizer.step()


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def combined(parameters: list[Parameter]) -> CombinedOptimizer:
    return CombinedOptimizer([Muon(parameters[:1], lr=0.1), AdamW(parameters[1:], lr=0.01)])


def fused_combined(parameters: list[Parameter]) -> CombinedOptimizer:
    return CombinedOptimizer([FusedMuon(parameters[:1], lr=0.1), FusedAdamW(parameters[1:], lr=0.01)])


Make = Callable[[list[Parameter]], Any]
ALL: list[Make] = [*CLASSES, combined, fused_combined]


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=6),
        lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5),
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer,
            [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3), lr_scheduler.ExponentialLR(optimizer, 0.9)],
            [3],
        ),
    ],
    ids=["cosine", "step", "lambda", "sequential"],
)
def test_torch_s_schedulers_drive_every_optimizer_without_warnings(make: Make, schedule: Any) -> None:
    scheduled, by_hand = make(make_parameters()), make(make_parameters())
    peer = torch.optim.SGD([Parameter(torch.zeros(1)) for _ in scheduled.param_groups], lr=1.0)
    peaks = [group["lr"] for group in scheduled.param_groups]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, theirs = schedule(scheduled), schedule(peer)
        for step in range(6):
            factor = peer.param_groups[0]["lr"]
            for group, peak in zip(by_hand.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            for optimizer in (scheduled, by_hand):
                give_gradients(parameters_of(optimizer), step)
                optimizer.step()
            peer.step()
            ours.step()
            theirs.step()
    assert scheduled.param_groups[0]["lr"] == pytest.approx(peaks[0] * peer.param_groups[0]["lr"])
    for left, right in zip(parameters_of(scheduled), parameters_of(by_hand), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def test_a_scheduler_drives_the_compiled_step_without_warnings() -> None:
    torch.manual_seed(0)
    model = TransformerLM(TINY)
    optimizer = FusedAdamW(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.0)
    step = TrainStep(model, optimizer)
    ids = torch.arange(8).view(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step([(ids, ids + 1)])
        scheduler.step()
    before = copy.deepcopy(model.state_dict())
    step([(ids, ids + 1)])  # with a rate of 0
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("ours", [AdamW, FusedAdamW])
def test_a_run_changes_between_torch_s_adamw_and_ours(ours: type[Optimizer]) -> None:
    settings: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.1}
    whole = torch.optim.AdamW(make_parameters(), **settings)
    run(whole, range(12))
    first = torch.optim.AdamW(make_parameters(), **settings)
    run(first, range(4))
    second = ours(parameters_of(first), lr=1.0)
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["betas"] == (0.8, 0.9)
    run(second, range(4, 8))
    third = torch.optim.AdamW(make_parameters(seed=1), lr=1.0)
    for target, source in zip(parameters_of(third), parameters_of(second), strict=True):
        target.data.copy_(source.data)
    third.load_state_dict(second.state_dict())
    run(third, range(8, 12))
    assert third.state[parameters_of(third)[0]]["step"] == 12
    for left, right in zip(parameters_of(whole), parameters_of(third), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ours", [AdamW, FusedAdamW])
def test_the_state_of_torch_s_adamw_may_lack_parameters_that_had_no_gradient(ours: type[Optimizer]) -> None:
    theirs = torch.optim.AdamW(make_parameters(), lr=0.5)
    give_gradients(parameters_of(theirs)[:1], 0)
    theirs.step()
    mine = ours(make_parameters())
    mine.load_state_dict(theirs.state_dict())
    assert [int(mine.state[parameter]["step"]) for parameter in mine.parameters] == [1, 0, 0]
    run(mine, range(1, 3))
    assert [int(mine.state[parameter]["step"]) for parameter in mine.parameters] == [3, 2, 2]


@pytest.mark.parametrize("setting", [{"amsgrad": True}, {"maximize": True}])
def test_a_torch_state_of_another_rule_is_rejected(setting: dict[str, bool]) -> None:
    theirs = torch.optim.AdamW(make_parameters(), **setting)  # type: ignore[arg-type]
    with pytest.raises(FormatError) as rejection:
        AdamW(make_parameters()).load_state_dict(theirs.state_dict())
    assert rejection.value.key in setting


@pytest.mark.parametrize("ours", [Muon, FusedMuon])
def test_the_momentum_of_torch_s_muon_is_loaded(ours: type[Optimizer]) -> None:
    theirs = torch.optim.Muon(make_parameters())
    run(theirs, range(3))
    mine = ours(make_parameters())
    mine.load_state_dict(theirs.state_dict())
    peer = theirs.state[parameters_of(theirs)[0]]["momentum_buffer"]
    assert torch.equal(mine.state[mine.parameters[0]]["momentum_buffer"], peer)


def with_former_names(state_dict: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    former = {now: before for before, now in optimizer.former_names.items()}
    states = {
        number: {former[name]: value for name, value in state.items()}
        for number, state in state_dict["state"].items()
    }
    return {**state_dict, "state": states}


@pytest.mark.parametrize("cls", CLASSES)
def test_a_state_with_the_names_of_earlier_versions_is_loaded(cls: type[Optimizer]) -> None:
    before, after = cls(make_parameters()), cls(make_parameters(seed=1))
    run(before, range(3))
    after.load_state_dict(with_former_names(before.state_dict(), before))
    for left, right in zip(before.parameters, after.parameters, strict=True):
        for name, value in before.state[left].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(after.state[right][name]))
        assert int(after.state[right]["step"]) == 3


def test_a_combined_state_of_earlier_versions_is_loaded() -> None:
    before, after = fused_combined(make_parameters()), combined(make_parameters())
    run(before, range(3))
    parts = [with_former_names(part.state_dict(), part) for part in before.optimizers]  # type: ignore[arg-type]
    after.load_state_dict({"optimizers": parts})
    assert [int(state["step"]) for state in after.state.values()] == [3, 3, 3]


@pytest.mark.parametrize("cls", CLASSES)
def test_parameters_without_a_gradient_are_skipped(cls: type[Optimizer]) -> None:
    optimizer, expected = cls(make_parameters()), cls(make_parameters()[:2])
    for step in range(3):
        give_gradients(optimizer.parameters, step)
        give_gradients(expected.parameters, step)
        optimizer.parameters[2].grad = None
        optimizer.step()
        expected.step()
    assert torch.equal(optimizer.parameters[2], make_parameters()[2])
    assert [int(optimizer.state[parameter]["step"]) for parameter in optimizer.parameters] == [3, 3, 0]
    for left, right in zip(optimizer.parameters, expected.parameters, strict=False):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
    run(optimizer, range(3, 4))  # from now on the update counts differ
    assert [int(optimizer.state[parameter]["step"]) for parameter in optimizer.parameters] == [4, 4, 1]
    other = cls(make_parameters())
    other.load_state_dict(optimizer.state_dict())
    assert [int(other.state[parameter]["step"]) for parameter in other.parameters] == [4, 4, 1]


@pytest.mark.parametrize("cls", CLASSES)
def test_a_step_without_any_gradient_changes_nothing(cls: type[Optimizer]) -> None:
    optimizer = cls(make_parameters())
    optimizer.step()
    assert int(optimizer.state[optimizer.parameters[0]]["step"]) == 0
    assert torch.equal(optimizer.parameters[0], make_parameters()[0])


def test_a_compiled_step_skips_parameters_that_the_loss_does_not_use() -> None:
    torch.manual_seed(0)
    model = TransformerLM(TINY)
    model.register_parameter("unused", Parameter(torch.ones(3)))
    reference = copy.deepcopy(model)
    step = TrainStep(model, FusedAdamW(model.parameters(), lr=0.01), max_grad_norm=1.0)
    peer = TrainStep(reference, AdamW(reference.parameters(), lr=0.01), max_grad_norm=1.0)
    ids = torch.arange(8).view(2, 4)
    for _ in range(3):
        ours, theirs = step([(ids, ids + 1)]), peer([(ids, ids + 1)])
        assert ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-6)
    assert torch.equal(model.unused, torch.ones(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("cls", CLASSES)
def test_a_group_added_later_is_updated_with_its_own_settings(cls: type[Optimizer]) -> None:
    optimizer = cls(make_parameters(2), lr=0.1)
    run(optimizer, range(2))
    added = make_parameters(3)[2:]
    optimizer.add_param_group({"params": added, "lr": 0.3})
    alone = cls(make_parameters(3)[2:], lr=0.3)
    for step in range(2, 4):
        give_gradients(optimizer.parameters, step)
        added[0].grad = torch.ones(4, 3)
        alone.parameters[0].grad = torch.ones(4, 3)
        optimizer.step()
        alone.step()
    assert torch.equal(added[0], alone.parameters[0])
    assert [int(optimizer.state[parameter]["step"]) for parameter in optimizer.parameters] == [4, 4, 2]
    with pytest.raises(UsageError) as rejection:
        optimizer.add_param_group({"params": added})
    assert rejection.value.key == "params"
    with pytest.raises(UsageError) as rejection:
        optimizer.add_param_group({"params": make_parameters(1), "lr": -1.0})
    assert rejection.value.key == "lr"
    groups: list[Group] = [{"params": make_parameters(2)}, {"params": make_parameters(1), "lr": 0.3}]
    other = cls(groups, lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    assert [int(other.state[parameter]["step"]) for parameter in other.parameters] == [4, 4, 2]


def test_the_compiled_step_updates_a_group_that_was_added_later() -> None:
    torch.manual_seed(0)
    model = TransformerLM(TINY)
    *most, last = model.parameters()
    optimizer = FusedAdamW(most, lr=0.01)
    step = TrainStep(model, optimizer)
    ids = torch.arange(8).view(2, 4)
    step([(ids, ids + 1)])
    optimizer.add_param_group({"params": [last]})
    before = last.detach().clone()
    step([(ids, ids + 1)])
    assert not torch.equal(last, before)


@pytest.mark.parametrize("make", ALL)
def test_a_closure_is_evaluated_with_gradients_and_its_loss_returned(make: Make) -> None:
    parameters = make_parameters()
    optimizer = make(parameters)

    def closure() -> float:
        optimizer.zero_grad()
        loss = sum((parameter**2).sum() for parameter in parameters)
        assert isinstance(loss, torch.Tensor)
        torch.autograd.backward(loss)
        return loss.item()

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first


@pytest.mark.parametrize("make", ALL)
def test_zero_grad_removes_or_zeroes_the_gradients(make: Make) -> None:
    parameters = make_parameters()
    optimizer = make(parameters)
    give_gradients(parameters, 0)
    optimizer.zero_grad(set_to_none=False)
    assert all(torch.equal(parameter.grad, torch.zeros(4, 3)) for parameter in parameters)  # type: ignore[arg-type]
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in parameters)


@pytest.mark.parametrize("make", ALL)
def test_hooks_are_called(make: Make) -> None:
    parameters = make_parameters()
    optimizer = make(parameters)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("loaded"))
    run(optimizer, range(1))
    if not isinstance(optimizer, CombinedOptimizer):
        optimizer.load_state_dict(optimizer.state_dict())
        assert calls.pop() == "loaded"
    assert calls == ["before", "after"]


def test_a_training_step_calls_the_hooks_of_a_fused_optimizer() -> None:
    model = TransformerLM(TINY)
    optimizer = FusedAdamW(model.parameters())
    calls: list[int] = []
    step = TrainStep(model, optimizer)
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    step([(torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.long))])
    assert calls == [1]


@pytest.mark.parametrize("make", ALL)
def test_a_copy_continues_on_its_own(make: Make) -> None:
    optimizer = make(make_parameters())
    run(optimizer, range(3))
    other = copy.deepcopy(optimizer)
    run(optimizer, range(3, 5))
    assert int(other.state[parameters_of(other)[0]]["step"]) == 3
    run(other, range(3, 5))
    for left, right in zip(parameters_of(optimizer), parameters_of(other), strict=True):
        assert left is not right
        assert torch.equal(left, right)


@pytest.mark.parametrize("make", ALL)
def test_an_optimizer_has_the_attributes_of_torch_s(make: Make) -> None:
    parameters = make_parameters()
    optimizer = make(parameters)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert isinstance(optimizer.defaults, dict)
    assert set(optimizer.state) == set(parameters)
    assert set(optimizer.state_dict()) == {"state", "param_groups"}
    numbers = [n for group in optimizer.state_dict()["param_groups"] for n in group["params"]]
    assert numbers == [0, 1, 2]


@pytest.mark.parametrize("cls", CLASSES)
def test_named_parameters_and_shared_settings_are_accepted(cls: type[Optimizer]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False), torch.nn.Linear(4, 3, bias=False))
    optimizer = cls(model.named_parameters())
    assert optimizer.param_groups[0]["param_names"] == ["0.weight", "1.weight"]
    groups: list[Group] = [{"params": list(model.parameters())}]
    cls(groups)
    assert list(groups[0]) == ["params"], "the constructor changed the caller's groups"


def test_a_group_cannot_be_added_to_combined_optimizers() -> None:
    with pytest.raises(UsageError) as rejection:
        combined(make_parameters()).add_param_group({"params": make_parameters(1)})
    assert rejection.value.key == "param_group"


def test_a_foreign_optimizer_can_be_one_of_the_combined_ones() -> None:
    parameters = make_parameters()
    optimizer = CombinedOptimizer([FusedMuon(parameters[:1]), torch.optim.Adam(parameters[1:], lr=0.01)])
    run(optimizer, range(3))
    after = [parameter.detach().clone() for parameter in parameters]
    give_gradients(parameters, 3)
    optimizer.step(accept=torch.tensor(False))
    assert all(torch.equal(left, right) for left, right in zip(parameters, after, strict=True))
    others = make_parameters()
    other = CombinedOptimizer([FusedMuon(others[:1]), torch.optim.Adam(others[1:], lr=0.01)])
    other.load_state_dict(optimizer.state_dict())
    assert torch.equal(other.state[others[1]]["exp_avg"], optimizer.state[parameters[1]]["exp_avg"])
    assert isinstance(optimizer.optimizers[0], FusedOptimizer)


def test_a_compiled_update_is_one_graph_that_new_rates_do_not_change(request: pytest.FixtureRequest) -> None:
    """The traced function must not contain an optimizer: torch.compile treats `torch.optim` differently."""
    if rerun_unchecked(request):
        return
    for make in (FusedSGD, FusedAdamW, FusedMuon, fused_combined):
        graphs: list[Any] = []

        def keep(graph: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(graph)
            return graph.forward

        optimizer: Any = make(make_parameters())
        updates = fused_updates(optimizer)
        update = torch.compile(lambda loss, updates=updates: apply_clipped(updates, loss, 1.0), backend=keep)
        for step in range(3):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (step + 1)
            for part in updates:
                part.load_learning_rates()
            with torch.no_grad():
                update(torch.ones(()))
        assert len(graphs) == 1
        assert int(updates[0].t) == 3


def test_strings_numbers_and_types_in_the_state_survive_a_saved_state() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    state = {
        "phase": "warmup",
        "names": ["a", ("b", {"c": "d"})],
        "count": 3,
        "mask": torch.tensor([True, False, True]),
        "mean": torch.ones(3, dtype=torch.float64),
    }
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.state[parameter] = copy.deepcopy(state)
    other = torch.optim.SGD([parameter], lr=0.1)
    load_state(other, copy.deepcopy(optimizer.state_dict()))
    found = other.state[parameter]
    assert {name: found[name] for name in ("phase", "names", "count")} == {
        name: state[name] for name in ("phase", "names", "count")
    }
    for name in ("mask", "mean"):
        torch.testing.assert_close(found[name], state[name], rtol=0, atol=0)


@pytest.mark.parametrize("saved", [None, [1], "state", 3])
def test_a_saved_state_that_is_not_a_table_is_rejected(saved: Any) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    for optimizer in (torch.optim.SGD([parameter]), AdamW([parameter])):
        with pytest.raises(FormatError):
            load_state(optimizer, saved)
