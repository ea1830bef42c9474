"""The update rules equal their equations, torch's rules, and the fused rules equal the reference rules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from bytewright.errors import FormatError, UsageError
from bytewright.optim.fused import (
    FusedAdamW,
    FusedMuon,
    FusedOptimizer,
    FusedSGD,
    _one_minus_power,
)
from bytewright.optim.reference import SGD, AdamW, CombinedOptimizer, Group, Muon, Optimizer, orthogonalise
from rejection import rejects

SHAPES = [(6, 4), (4, 6), (4,), (6, 4), (1,), (5, 3)]
PAIRS: list[tuple[type[Optimizer], type[FusedOptimizer], dict[str, Any]]] = [
    (SGD, FusedSGD, {"lr": 0.3}),
    (SGD, FusedSGD, {"lr": 0.3, "decay": False}),
    (AdamW, FusedAdamW, {"lr": 0.01, "weight_decay": 0.1}),
    (AdamW, FusedAdamW, {"lr": 0.01, "betas": (0.0, 0.95), "eps": 1e-6, "weight_decay": 0.0}),
    (Muon, FusedMuon, {"lr": 0.02, "weight_decay": 0.05}),
]


def make_parameters(only_matrices: bool = False, seed: int = 0) -> list[Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [shape for shape in SHAPES if len(shape) == 2 or not only_matrices]
    return [Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def give_gradients(parameters: list[Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(1000 + step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def run(optimizer: Optimizer, num_steps: int, first: int = 0) -> None:
    for step in range(first, first + num_steps):
        give_gradients(optimizer.parameters, step)
        optimizer.step()


def closeness(left: list[Parameter], right: list[Parameter]) -> float:
    return max((one - other).abs().max().item() for one, other in zip(left, right, strict=True))


def matrices_only(cls: type) -> bool:
    return issubclass(cls, Muon)


@pytest.mark.parametrize(("reference", "fused", "settings"), PAIRS)
def test_reference_and_fused_agree(
    reference: type[Optimizer], fused: type[FusedOptimizer], settings: dict[str, Any]
) -> None:
    ours, theirs = make_parameters(matrices_only(reference)), make_parameters(matrices_only(reference))
    run(reference(ours, **settings), 20)
    run(fused(theirs, **settings), 20)
    assert closeness(ours, theirs) < 2e-5 if matrices_only(reference) else closeness(ours, theirs) < 2e-6


def test_adamw_equals_its_equations_in_float64() -> None:
    weight = torch.linspace(-1, 1, 5, dtype=torch.float64)
    parameter = Parameter(weight.clone())
    optimizer = AdamW([parameter], lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2)
    m, v = torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    for t in range(1, 8):
        gradient = torch.sin(torch.arange(5.0, dtype=torch.float64) * t)
        parameter.grad = gradient.clone()
        optimizer.step()
        weight = weight * (1 - 0.1 * 0.2)
        m = 0.8 * m + 0.2 * gradient
        v = 0.9 * v + 0.1 * gradient**2
        weight = weight - 0.1 * (1 - 0.9**t) ** 0.5 / (1 - 0.8**t) * m / (v.sqrt() + 1e-3)
    assert torch.allclose(parameter, weight, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cls", [AdamW, FusedAdamW])
def test_adamw_equals_torch_if_epsilon_is_negligible(cls: type[Optimizer]) -> None:
    ours, theirs = make_parameters(), make_parameters()
    mine = cls(ours, lr=0.01, weight_decay=0.1)
    peer = torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1)
    for step in range(50):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        mine.step()
        peer.step()
    assert closeness(ours, theirs) < 1e-5


def test_muon_equals_torch_up_to_its_half_precision() -> None:
    ours, theirs = make_parameters(only_matrices=True), make_parameters(only_matrices=True)
    mine = Muon(ours, lr=0.02, weight_decay=0.1)
    peer = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, momentum=0.95)
    for step in range(5):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        mine.step()
        peer.step()  # type: ignore[no-untyped-call]
    assert closeness(ours, theirs) < 5 * 0.02 * 0.05  # five steps of 0.02, products in bfloat16 there


def test_orthogonalise_brings_singular_values_near_one_and_keeps_their_vectors() -> None:
    matrix = torch.randn(3, 12, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    inner = left.mT @ orthogonalise(matrix) @ right.mT
    singular_values = inner.diagonal(dim1=-2, dim2=-1)
    assert singular_values.min() > 0.6
    assert singular_values.max() < 1.3
    assert (inner - torch.diag_embed(singular_values)).abs().max() < 1e-9


def test_orthogonalise_brings_all_but_tiny_singular_values_between_0_68_and_1_21() -> None:
    """Those below 0.0015 of the Frobenius norm are too small for five rounds."""
    shares = torch.logspace(-5, -1, 401, dtype=torch.float64)
    shares[-1] = (1 - shares[:-1].square().sum()).sqrt()  # so that the norm of the matrix is 1
    after = orthogonalise(torch.diag(shares)).diagonal()
    large = shares >= 0.0016
    assert ((after > 0.68) & (after < 1.21))[large].all()
    assert (after < 0.68)[shares < 0.0015].all()


@pytest.mark.parametrize(("rate", "regime"), [(1, "slow"), (10, "faster"), (100, "fast"), (1000, "diverges")])
@pytest.mark.parametrize("cls", [SGD, FusedSGD])
def test_the_toy_shows_the_regimes_of_the_learning_rate(
    cls: type[Optimizer], rate: float, regime: str
) -> None:
    weight = Parameter(
        5 * torch.randn(10, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )
    optimizer = cls([weight], lr=rate)
    losses, factor = [], 1.0
    for t in range(10):
        optimizer.zero_grad()
        loss = (weight**2).mean()
        losses.append(loss.item())
        assert losses[-1] == pytest.approx(losses[0] * factor**2, rel=1e-4, abs=1e-24)  # solved by hand
        torch.autograd.backward(loss)
        optimizer.step()
        factor *= 1 - 0.02 * rate / (t + 1) ** 0.5
    match regime:
        case "slow":
            assert 0.7 < losses[-1] / losses[0] < 0.9
        case "faster":
            assert 0.05 < losses[-1] / losses[0] < 0.3
        case "fast":
            assert losses[1] == pytest.approx(losses[0])
            assert losses[-1] < 1e-15
        case "diverges":
            assert losses[-1] > 1e15


@pytest.mark.parametrize(("reference", "fused", "settings"), PAIRS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_step_that_is_not_accepted_changes_nothing(
    reference: type[Optimizer], fused: type[FusedOptimizer], settings: dict[str, Any], poison: float
) -> None:
    for cls in (reference, fused):
        optimizer = cls(make_parameters(matrices_only(cls)), **settings)
        run(optimizer, 3)
        weights = [parameter.detach().clone() for parameter in optimizer.parameters]
        state = copy.deepcopy(optimizer.state_dict())
        give_gradients(optimizer.parameters, 3)
        gradient = optimizer.parameters[0].grad
        assert gradient is not None
        gradient[0] = poison
        optimizer.step(accept=torch.tensor(False))
        for parameter, weight in zip(optimizer.parameters, weights, strict=True):
            assert torch.equal(parameter, weight)
        assert_same_state(optimizer.state_dict(), state, torch.equal)


@pytest.mark.parametrize(("reference", "fused", "settings"), PAIRS)
def test_the_state_of_either_implementation_continues_in_the_other(
    reference: type[Optimizer], fused: type[FusedOptimizer], settings: dict[str, Any]
) -> None:
    for first, second in ((reference, fused), (fused, reference)):
        whole = reference(make_parameters(matrices_only(reference)), **settings)
        run(whole, 10)
        before = first(make_parameters(matrices_only(reference)), **settings)
        run(before, 5)
        after = second(make_parameters(matrices_only(reference), seed=9), **settings)
        for target, source in zip(after.parameters, before.parameters, strict=True):
            target.data.copy_(source.data)
        after.load_state_dict(before.state_dict())
        run(after, 5, first=5)
        assert closeness(whole.parameters, after.parameters) < 2e-5
        assert_same_state(
            whole.state_dict(), after.state_dict(), lambda a, b: torch.allclose(a, b, atol=1e-5)
        )


def test_groups_keep_their_own_settings() -> None:
    for cls in (AdamW, FusedAdamW):
        decayed, kept = Parameter(torch.ones(3)), Parameter(torch.ones(3))
        groups: list[Group] = [{"params": [decayed], "weight_decay": 0.5}, {"params": [kept]}]
        optimizer = cls(groups, lr=0.1, weight_decay=0.0)
        decayed.grad, kept.grad = torch.zeros(3), torch.zeros(3)
        optimizer.step()
        assert torch.allclose(decayed, torch.full((3,), 0.95))
        assert torch.equal(kept, torch.ones(3))


def test_a_learning_rate_set_between_steps_takes_effect() -> None:
    for cls in (AdamW, FusedAdamW):
        weight = Parameter(torch.ones(3))
        optimizer = cls([weight], lr=0.1)
        optimizer.param_groups[0]["lr"] = 0.0
        weight.grad = torch.ones(3)
        optimizer.step()
        assert torch.equal(weight, torch.ones(3))


def test_combined_optimizers_step_and_save_as_one() -> None:
    def make() -> CombinedOptimizer:
        matrix, gain = Parameter(torch.eye(3)), Parameter(torch.ones(3))
        return CombinedOptimizer([Muon([matrix], lr=0.1), AdamW([gain], lr=0.1)])

    together = make()
    give_gradients(together.parameters, 0)
    together.step()
    other = make()
    other.load_state_dict(together.state_dict())
    assert_same_state(other.state_dict(), together.state_dict(), torch.equal)
    assert [group["lr"] for group in together.param_groups] == [0.1, 0.1]
    with rejects(FormatError, key="optimizer"):
        make().load_state_dict({})
    with rejects(FormatError, key="optimizers", expected=2, found=1):
        make().load_state_dict({"optimizers": [together.optimizers[0].state_dict()]})
    with rejects(FormatError, key="param_groups", found=1):
        make().load_state_dict(together.optimizers[0].state_dict())


@pytest.mark.parametrize(
    ("make", "key", "found"),
    [
        (lambda p: AdamW(p, lr=-1.0), "lr", -1.0),
        (lambda p: AdamW(p, betas=(0.9, 1.0)), "beta2", 1.0),
        (lambda p: Muon(p, momentum=1.5), "momentum", 1.5),
        (lambda p: Muon([*p, Parameter(torch.ones(3))]), "params", (3,)),
        (lambda p: AdamW([p[0], p[0]]), "params", None),
        (lambda p: FusedAdamW([]), "params", None),
    ],
)
def test_an_invalid_setting_is_rejected(
    make: Callable[[list[Parameter]], object], key: str, found: object
) -> None:
    with rejects(UsageError, key=key, found=found):
        make([Parameter(torch.ones(2, 2))])


def test_a_parameter_that_was_moved_after_construction_is_rejected() -> None:
    weight = Parameter(torch.ones(2))
    optimizer = FusedAdamW([weight])
    weight.data = torch.ones(2)
    weight.grad = torch.ones(2)
    with rejects(UsageError, key="params", found=0):
        optimizer.step()


def test_the_bias_correction_of_the_first_step_keeps_all_its_digits() -> None:
    for beta in (0.9, 0.999, 0.99999, 0.0):
        for t in (1, 2, 1000):
            found = _one_minus_power(beta, torch.tensor(t)).item()
            assert found == pytest.approx(1 - beta**t, rel=1e-6)


@pytest.mark.parametrize("optimizer", [AdamW, FusedAdamW])
def test_an_optimizer_without_parameters_is_rejected(optimizer: type[Optimizer]) -> None:
    model = torch.nn.Linear(2, 2)
    parameters = model.parameters()
    assert sum(parameter.numel() for parameter in parameters) == 6
    with rejects(UsageError, key="params"):
        optimizer(parameters)
    assert repr(optimizer(model.parameters(), lr=0.5)).startswith(
        f"{optimizer.__name__}(6 parameters, [{{'lr'"
    )


@pytest.mark.parametrize("count", [-1, 10**30, 1.0, None])
def test_an_invalid_saved_update_count_is_rejected(count: object) -> None:
    saved = AdamW([Parameter(torch.ones(2))]).state_dict()
    saved["state"][0]["step"] = count
    for optimizer in (AdamW([Parameter(torch.ones(2))]), FusedAdamW([Parameter(torch.ones(2))])):
        with rejects(FormatError, key="state.0.step", found=count):
            optimizer.load_state_dict(saved)


def test_the_state_of_other_parameters_is_rejected() -> None:
    saved = AdamW([Parameter(torch.ones(2, 3))]).state_dict()
    with rejects(FormatError, key="state.0.exp_avg", expected=(3, 2), found=(2, 3)):
        AdamW([Parameter(torch.ones(3, 2))]).load_state_dict(saved)
    with rejects(FormatError, key="state", expected=2, found=1):
        AdamW([Parameter(torch.ones(2, 3)), Parameter(torch.ones(1))]).load_state_dict(saved)
    with rejects(FormatError, key="param_groups", found=["lr", "momentum", "weight_decay", "params"]):
        AdamW([Parameter(torch.ones(2, 3))]).load_state_dict(Muon([Parameter(torch.ones(2, 3))]).state_dict())


def assert_same_state(left: Any, right: Any, same: Callable[[Tensor, Tensor], bool]) -> None:
    assert type(left) is type(right)
    match left:
        case dict():
            assert left.keys() == right.keys()
            for key in left:
                assert_same_state(left[key], right[key], same)
        case list() | tuple():
            assert len(left) == len(right)
            for one, other in zip(left, right, strict=True):
                assert_same_state(one, other, same)
        case Tensor():
            assert same(left, right)
        case _:
            assert left == right
