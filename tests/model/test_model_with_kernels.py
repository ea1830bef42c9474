"""The model with kernels equals the reference model: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from bytewright.model import ModelConfig, TransformerLM, kernels, language_model_loss
from model_choices import PART_CHOICES

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE, HALF = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", None)
TOLERANCE = 5e-2 if ON_GPU else 1e-5
"""‖ours - exact‖ / ‖exact‖ of each gradient: bfloat16 keeps 8 bits; the interpreter computes in float32."""

SMALL = ModelConfig(vocab_size=48, context_length=20, d_model=64, num_layers=1, num_heads=2)


def loss_and_gradients(config: ModelConfig, half: torch.dtype | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Train a model with fixed weights on fixed ids."""
    torch.manual_seed(0)
    model = TransformerLM(config, compute_dtype=half).to(DEVICE)
    ids = torch.randint(config.vocab_size, (2, 18), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    loss = language_model_loss(model, ids[:, :-1], ids[:, 1:])
    torch.autograd.backward(loss)
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return loss.detach(), {name: gradient for name, gradient in found.items() if gradient is not None}


@pytest.mark.skipif(ON_GPU, reason="there a wrong id ends the process's use of the device")
def test_an_invalid_id_raises_in_the_embedding() -> None:
    embed = importlib.import_module("bytewright.model.kernels.embedding").embed
    with pytest.raises(IndexError):
        embed(torch.zeros(4, 8), torch.tensor([0, -1]))


@pytest.mark.parametrize("target", [-1, -100, 8, 9])
def test_an_invalid_target_makes_the_loss_nan(target: int) -> None:
    """NaN, and not the loss of another logit, so that the step is not accepted."""
    total = importlib.import_module("bytewright.model.kernels.cross_entropy").total_cross_entropy
    dtype = HALF or torch.float32
    hidden, weight = torch.randn(3, 16, device=DEVICE, dtype=dtype), torch.randn(8, 16, device=DEVICE)
    targets = torch.tensor([1, target, 2], device=DEVICE)
    assert total(hidden, weight, targets, 4, True)[0].isnan()
    assert total(hidden, weight, targets.clamp(0, 7), 4, True)[0].isfinite()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"vocab_size": 50},  # rows of logits that are padded
        *PART_CHOICES.values(),
        {"ffn": "silu", "norm": "post"},
        {"tie_embeddings": True, "num_layers": 2},
    ],
    ids=str,
)
def test_the_model_with_kernels_equals_the_reference(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(SMALL, **change)
    exact, gradients = loss_and_gradients(dataclasses.replace(config, implementation="reference"), None)
    if not ON_GPU:
        monkeypatch.setattr(kernels, "supports", lambda x: True)
        monkeypatch.setattr(kernels, "on_gpu", lambda x: True)
    loss, ours = loss_and_gradients(config, HALF)
    assert loss.item() == pytest.approx(exact.item(), rel=TOLERANCE)
    assert ours.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert (ours[name] - gradient).norm() <= TOLERANCE * gradient.norm(), name
