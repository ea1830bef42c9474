"""Losses are registered functions of hidden states, output matrix and targets; runs select them by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from bytewright.account.flops import extra_loss_flops
from bytewright.errors import UsageError
from bytewright.model import ModelConfig, TransformerLM, language_model_loss
from bytewright.model import loss as loss_module
from bytewright.model.fused import make_loss
from bytewright.model.loss import cross_entropy, of_logits, output_cross_entropy
from bytewright.optim.fused import FusedSGD
from bytewright.registry import losses
from bytewright.train import Run, resume, train
from bytewright.train.outcome import find_divergence
from bytewright.train.step import TrainStep
from runs import digest, make_config, rerun_unchecked

quiet = Console(quiet=True)
MODEL = ModelConfig(vocab_size=40, context_length=8, d_model=16, num_layers=1, num_heads=2)


def z_loss(logits: Tensor, targets: Tensor, *, weight: float = 1e-4) -> Tensor:
    """Return the cross-entropy of each row plus the squared logarithm of its normaliser."""
    normaliser = logits.logsumexp(-1)
    return normaliser - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) + weight * normaliser**2


class Scaled:
    """A loss as a class: a multiple of the cross-entropy."""

    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor

    def __call__(self, hidden: Tensor, output_weight: Tensor, targets: Tensor) -> Tensor:
        return self.factor * output_cross_entropy(hidden, output_weight, targets)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    losses.register("test_z")(of_logits(z_loss))
    losses.register("test_scaled")(Scaled)
    yield
    losses.remove("test_z")
    losses.remove("test_scaled")


@pytest.mark.parametrize("implementation", ["reference", "fused"])
def test_a_loss_of_logits_in_chunks_equals_that_of_all_logits(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loss_module.LOGITS_AT_ONCE, "cpu", 7 * MODEL.vocab_size)
    torch.manual_seed(0)
    model = TransformerLM(ModelConfig(**MODEL.to_dict() | {"implementation": implementation}))
    ids, targets = torch.randint(40, (3, 8)), torch.randint(40, (3, 8))
    parameters = list(model.parameters())
    value = make_loss("test_z", {"weight": 0.5})(model, ids, targets)
    gradients = torch.autograd.grad(value, parameters)
    whole = z_loss(model(ids).flatten(0, 1), targets.flatten(), weight=0.5).mean()
    torch.testing.assert_close(value, whole)
    torch.testing.assert_close(gradients, torch.autograd.grad(whole, parameters))


def test_a_loss_can_be_a_class() -> None:
    model = TransformerLM(MODEL)
    ids = torch.randint(40, (2, 8))
    value = make_loss("test_scaled", {"factor": 3.0})(model, ids, ids)
    torch.testing.assert_close(value, 3 * cross_entropy(model(ids), ids))


def test_the_default_loss_is_the_fused_cross_entropy() -> None:
    assert make_loss("cross_entropy", {}) is language_model_loss


@pytest.mark.parametrize(
    "function", [lambda logits, targets: logits.mean(), lambda logits, targets: logits.logsumexp(-1)[:, None]]
)
def test_a_function_that_does_not_return_a_loss_for_each_row_is_rejected(function: object) -> None:
    with pytest.raises(UsageError) as caught:
        of_logits(function)(torch.zeros(4, 2), torch.zeros(5, 2), torch.zeros(4).long())  # type: ignore[arg-type]
    assert caught.value.expected == (4,)


def test_a_loss_that_is_not_one_number_is_rejected() -> None:
    losses.register("test_rows")(lambda hidden, output_weight, targets: hidden.mean(-1))
    try:
        with pytest.raises(UsageError) as caught:
            make_loss("test_rows", {})(
                TransformerLM(MODEL), torch.zeros(2, 8).long(), torch.zeros(2, 8).long()
            )
    finally:
        losses.remove("test_rows")
    assert caught.value.key == "loss.name"


@pytest.mark.parametrize(
    ("loss", "key"),
    [
        ({"name": "test_y"}, "loss.name"),
        ({"name": "test_z", "options": {"wieght": 1.0}}, "loss.options.wieght"),
        ({"name": "test_z", "options": {"weight": "much"}}, "loss.options.weight"),
        ({"name": "cross_entropy", "options": {"weight": 1.0}}, "loss.options.weight"),
    ],
)
def test_an_unknown_loss_and_unknown_options_are_rejected(tmp_path: Path, loss: object, key: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_config(tmp_path, loss=loss)
    assert caught.value.key == key


def test_training_minimises_the_loss_and_evaluations_measure_the_cross_entropy(tmp_path: Path) -> None:
    train(make_config(tmp_path), tmp_path / "plain", console=quiet)
    scaled = {
        "loss": {"name": "test_scaled", "options": {"factor": 2.0}},
        "optimizer": {"max_grad_norm": 0.0},
    }
    config = make_config(tmp_path, **scaled)
    train(config, tmp_path / "scaled", console=quiet)
    plain, scaled_lines = (Run(tmp_path / name).metrics for name in ("plain", "scaled"))
    assert 1.8 < scaled_lines[0]["loss"] / plain[0]["loss"] < 2.2
    ends = [lines[-1]["validation_loss"] for lines in (plain, scaled_lines)]
    assert 0.8 < ends[1] / ends[0] < 1.25  # AdamW does not depend on the scale of the loss
    assert Run(tmp_path / "scaled").config.loss == config.loss


def test_a_run_with_another_loss_resumes_exactly_and_only_with_the_same_options(tmp_path: Path) -> None:
    fields = {"loss": {"name": "test_z", "options": {"weight": 0.1}}, "schedule": {"kind": "constant"}}
    train(make_config(tmp_path, **fields, budget={"steps": 14}), tmp_path / "whole", console=quiet)
    train(make_config(tmp_path, **fields, budget={"steps": 7}), tmp_path / "parts", console=quiet)
    run = Run(tmp_path / "parts")
    run.change_setting("budget", {"steps": 14})
    run.change_setting("loss", {"name": "test_z", "options": {"weight": 0.2}})
    with pytest.raises(UsageError) as caught:
        resume(run.path, console=quiet)
    assert caught.value.key == "loss.options.weight"
    run.change_setting("loss", fields["loss"])
    resume(run.path, console=quiet)
    whole, parts = digest(tmp_path / "whole"), digest(run.path)
    assert [whole[key] for key in ("step", "weights", "optimizer")] == [
        parts[key] for key in ("step", "weights", "optimizer")
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_a_step_with_another_loss_can_be_compiled(request: pytest.FixtureRequest) -> None:
    if rerun_unchecked(request):
        return
    torch.manual_seed(0)
    model = TransformerLM(MODEL)
    batch = torch.randint(40, (2, 8)), torch.randint(40, (2, 8))
    loss = make_loss("test_z", {"weight": 0.5})
    step = TrainStep(
        model,
        FusedSGD(model.parameters(), lr=0.1),
        loss=loss,
        measured_loss=language_model_loss,
        backend="aot_eager",
    )
    with torch.no_grad():
        expected = loss(model, *batch), language_model_loss(model, *batch)
    torch.testing.assert_close(step.measure(*batch), expected[1])
    torch.testing.assert_close(step([batch]).loss, expected[0])
    assert loss(model, *batch) < expected[0]


def test_another_loss_is_not_compared_with_guessing() -> None:
    lines = [{"step": 1, "loss": 90.0}, {"step": 2, "loss": 80.0}]
    assert find_divergence({"model.vocab_size": 40}, lines)
    assert not find_divergence({"model.vocab_size": 40, "loss.name": "test_scaled"}, lines)


def test_the_products_of_a_loss_are_counted_by_tracing() -> None:
    def second_head(hidden: Tensor, output_weight: Tensor, targets: Tensor) -> Tensor:
        again = output_cross_entropy(hidden.roll(1, 0), output_weight, targets)
        return output_cross_entropy(hidden, output_weight, targets) + again

    def untraceable(hidden: Tensor, output_weight: Tensor, targets: Tensor) -> Tensor:
        return hidden.mean() * hidden.sum().item()

    losses.register("test_second")(second_head)
    losses.register("test_untraceable")(untraceable)
    try:
        of_head = 6.0 * MODEL.d_model * MODEL.vocab_size
        assert extra_loss_flops(MODEL, "test_second", {}) == of_head
        assert extra_loss_flops(MODEL, "test_z", {"weight": 0.1}) == 0  # the product of the head, in chunks
        assert extra_loss_flops(MODEL, "test_untraceable", {}) == 0
    finally:
        losses.remove("test_second")
        losses.remove("test_untraceable")
