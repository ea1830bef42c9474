"""Cross-entropy and clipping equal independent computations, also for extreme values."""

from __future__ import annotations

import math
from collections.abc import Callable

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from bytewright.errors import UsageError
from bytewright.model.fused import linear_cross_entropy
from bytewright.model.loss import cross_entropy
from bytewright.optim.clip import clip_gradients, global_norm
from rejection import rejects


def test_cross_entropy_equals_an_independent_float64_computation() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 7, generator=generator, dtype=torch.float64)
    targets = torch.randint(7, (2, 3), generator=generator)
    total = 0.0
    for i in range(2):
        for j in range(3):
            row = logits[i, j].tolist()
            total -= row[targets[i, j]] - math.log(sum(math.exp(value) for value in row))
    assert cross_entropy(logits, targets).item() == pytest.approx(total / 6, rel=1e-13)


def test_the_gradient_of_cross_entropy_is_right() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[0, 1, 4], [2, 2, 3]])
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, targets), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cross_entropy_of_huge_logits_is_finite(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [3e4, 3e4, 3e4]], dtype=dtype)
    loss = cross_entropy(logits, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(math.log(3) / 2, rel=1e-3)


def test_the_fused_loss_scales_gradients_without_bias() -> None:
    """1/768 rounded to bfloat16 has an error of 0.2 %, which would scale all gradients."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(768, 32, generator=generator), torch.randn(64, 32, generator=generator)
    targets = torch.randint(64, (768,), generator=generator)
    half, wide = hidden.bfloat16().requires_grad_(), hidden.bfloat16().double().requires_grad_()
    torch.autograd.backward(linear_cross_entropy(half, weight, targets))
    torch.autograd.backward(cross_entropy(wide @ weight.bfloat16().double().T, targets))
    assert half.grad is not None
    assert wide.grad is not None
    ratio = (half.grad.double() * wide.grad).sum() / wide.grad.square().sum()
    assert ratio.item() == pytest.approx(1.0, abs=5e-4)


def test_targets_of_a_wrong_shape_or_type_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that the loss itself checks
    losses: list[Callable[[Tensor], Tensor]] = [
        lambda targets: cross_entropy(torch.zeros(2, 16, 5), targets),
        lambda targets: linear_cross_entropy(torch.zeros(2, 16, 5), torch.zeros(7, 5), targets),
    ]
    for loss in losses:
        for shape in ((2, 1), (1, 16), (2, 15), (32,)):
            with rejects(UsageError, key="targets", expected=(2, 16), found=shape):
                loss(torch.zeros(shape, dtype=torch.long))
        with rejects(UsageError, found=torch.float32):
            loss(torch.zeros(2, 16))
        assert loss(torch.zeros(2, 16, dtype=torch.uint16)) == loss(torch.zeros(2, 16, dtype=torch.long))


@pytest.mark.parametrize("target", [-1, 7])
def test_targets_outside_the_vocabulary_are_rejected(target: int) -> None:
    targets = torch.tensor([2, target])
    with rejects(UsageError, key="targets", found=target):
        cross_entropy(torch.zeros(2, 7), targets)
    for hidden in (torch.zeros(2, 5), torch.zeros(2, 5, requires_grad=True)):
        with rejects(UsageError, key="targets", found=target):
            linear_cross_entropy(hidden, torch.zeros(7, 5), targets)


def test_a_negative_max_norm_is_rejected() -> None:
    for norm in (-1.0, math.nan):
        with rejects(UsageError, key="max_norm"):
            clip_gradients([Parameter(torch.ones(1))], norm)


def test_adding_a_constant_to_all_logits_changes_nothing() -> None:
    logits = torch.randn(4, 9, dtype=torch.float64)
    targets = torch.tensor([0, 3, 8, 8])
    assert cross_entropy(logits + 123.0, targets).item() == pytest.approx(
        cross_entropy(logits, targets).item()
    )


def with_gradients(*gradients: list[float]) -> list[Parameter]:
    parameters = []
    for gradient in gradients:
        parameter = Parameter(torch.zeros(len(gradient)))
        parameter.grad = torch.tensor(gradient)
        parameters.append(parameter)
    return parameters


def test_clipping_equals_torch() -> None:
    ours, theirs = with_gradients([3.0, 4.0], [12.0]), with_gradients([3.0, 4.0], [12.0])
    norm = clip_gradients(ours, 2.0)
    assert norm.item() == torch.nn.utils.clip_grad_norm_(theirs, 2.0).item() == 13.0
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.allclose(mine.grad, other.grad, rtol=1e-6)


def test_a_single_tensor_is_clipped() -> None:
    (parameter,) = with_gradients([3.0, 4.0])
    assert clip_gradients(parameter, 1.0).item() == 5.0
    assert parameter.grad is not None
    assert parameter.grad.tolist() == pytest.approx([0.6, 0.8])


def test_gradients_below_the_limit_stay_unchanged() -> None:
    (parameter,) = with_gradients([0.3, 0.1])
    clip_gradients([parameter], 1.0)
    assert parameter.grad is not None
    assert torch.equal(parameter.grad, torch.tensor([0.3, 0.1]))


def test_an_infinite_limit_clips_nothing() -> None:
    (parameter,) = with_gradients([3e10, 1.0])
    assert math.isfinite(clip_gradients([parameter], math.inf).item())
    assert parameter.grad is not None
    assert torch.equal(parameter.grad, torch.tensor([3e10, 1.0]))


def test_parameters_without_gradients_are_skipped() -> None:
    assert clip_gradients([Parameter(torch.ones(3))], 1.0).item() == 0.0


def test_the_norm_of_half_precision_gradients_is_computed_in_float32() -> None:
    assert global_norm([torch.full((1000,), 100.0, dtype=torch.float16)]).item() == pytest.approx(
        100 * math.sqrt(1000), rel=1e-6
    )
