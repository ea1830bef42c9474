"""With `mup_base_width`, activations change by the same amount in a step at every width."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from bytewright.errors import UsageError
from bytewright.generate.decoder import Decoder
from bytewright.model import ModelConfig, TransformerLM, language_model_loss
from bytewright.model.hf_llama import read_llama, write_llama
from bytewright.model.initialisation import initialise
from bytewright.optim.build import DefaultSettings, build_optimizer
from bytewright.train import BudgetConfig, Run, ScheduleConfig, resume, train
from runs import make_config

WIDTHS = (64, 128, 256, 512)
BASE = 64


def make_model(width: int, *, mup: bool, seed: int = 0, **changes: object) -> TransformerLM:
    config = ModelConfig(
        vocab_size=50,
        context_length=16,
        d_model=width,
        num_layers=2,
        num_heads=width // 32,
        mup_base_width=BASE if mup else None,
    )
    model = TransformerLM(dataclasses.replace(config, **changes))  # type: ignore[arg-type]
    initialise(model, seed)
    return model


def list_activations(model: TransformerLM, ids: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    handles = [
        layer.register_forward_hook(
            lambda _, __, output, name=f"layer {number}": found.update({name: output})
        )
        for number, layer in enumerate(model.layers)
    ]
    with torch.no_grad():
        found["logits"] = model(ids)
    for handle in handles:
        handle.remove()
    return found


def measure_changes(width: int, *, mup: bool, num_steps: int = 4) -> dict[str, float]:
    """Return by how much a few updates change the activations of one batch: the root mean square."""
    model = make_model(width, mup=mup)
    optimizer = build_optimizer(model, DefaultSettings(name="adamw", lr=3e-3))
    ids = torch.arange(4 * 17).reshape(4, 17) * 7 % 50
    before = list_activations(model, ids[:, :-1])
    for _ in range(num_steps):
        optimizer.zero_grad()
        torch.autograd.backward(language_model_loss(model, ids[:, :-1], ids[:, 1:]))
        optimizer.step()
    after = list_activations(model, ids[:, :-1])
    return {name: (after[name] - before[name]).square().mean().sqrt().item() for name in before}


def find_growth(changes: list[dict[str, float]], name: str) -> float:
    """Return a in change ~ width^a between the smallest and the largest width."""
    return math.log(changes[-1][name] / changes[0][name]) / math.log(WIDTHS[-1] / WIDTHS[0])


def test_changes_of_activations_do_not_grow_with_the_width() -> None:
    with_mup = [measure_changes(width, mup=True) for width in WIDTHS]
    standard = [measure_changes(width, mup=False) for width in WIDTHS]
    for name in with_mup[0]:
        assert abs(find_growth(with_mup, name)) < 0.2
        assert find_growth(standard, name) > 0.4


def test_at_the_base_width_the_model_is_the_standard_one() -> None:
    weights, standard = (make_model(BASE, mup=mup).state_dict() for mup in (True, False))
    assert all(torch.equal(weights[name], standard[name]) for name in standard)
    optimizer = build_optimizer(make_model(BASE, mup=True), DefaultSettings(name="adamw", lr=0.5))
    assert {group["lr"] for group in optimizer.param_groups} == {0.5}


@pytest.mark.parametrize("implementation", ["fused", "reference"])
def test_rates_of_matrices_inside_blocks_are_divided_by_the_ratio_of_the_widths(implementation: str) -> None:
    model = make_model(4 * BASE, mup=True)
    settings = DefaultSettings(name="adamw", lr=1.0, weight_decay=0.25, implementation=implementation)
    groups = build_optimizer(model, settings).param_groups
    found = {p: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        is_hidden = name.startswith("layers.") and parameter.ndim == 2
        expected = (0.25, 1.0) if is_hidden else (1.0, 0.25 if parameter.ndim == 2 else 0.0)
        assert found[parameter] == expected


def test_muon_matrices_have_the_same_rate_at_every_width() -> None:
    rates = [
        [group["lr"] for group in build_optimizer(model, DefaultSettings(name="muon")).param_groups]
        for model in (make_model(BASE, mup=True), make_model(4 * BASE, mup=True))
    ]
    assert rates[0] == rates[1]


def test_sgd_has_no_rule() -> None:
    with pytest.raises(UsageError) as caught:
        build_optimizer(make_model(BASE, mup=True), DefaultSettings(name="sgd"))
    assert caught.value.key == "model.mup_base_width"


@pytest.mark.parametrize("tied", [True, False])
def test_all_ways_to_compute_logits_agree(tmp_path: Path, tied: bool) -> None:
    """The logits of reference, decoder and a Llama export equal those of the fused model."""
    model = make_model(128, mup=True, tie_embeddings=tied)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        logits = model(ids)
        reference = TransformerLM(dataclasses.replace(model.config, implementation="reference"))
        reference.load_state_dict(model.state_dict())
        write_llama(model, tmp_path / "llama")
        read = read_llama(tmp_path / "llama")
        assert read.config.mup_base_width is None
        decoder = Decoder(model)
        decoded = decoder.read(decoder.new_cache(1, 8), ids, torch.tensor([8]))
        torch.testing.assert_close(reference(ids), logits, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(read(ids), logits, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(decoded, logits[:, -1], atol=1e-5, rtol=1e-4)
    assert logits.std() < 2 * make_model(BASE, mup=True, tie_embeddings=tied)(ids).std()


def test_a_resumed_run_has_the_same_weights(tmp_path: Path) -> None:
    config = make_config(tmp_path, model={"mup_base_width": 8}, budget={"steps": 16})
    quiet = Console(quiet=True)
    constant = dataclasses.replace(config, schedule=ScheduleConfig(kind="constant"))
    train(constant, tmp_path / "constant", console=quiet)
    shorter = dataclasses.replace(constant, budget=BudgetConfig(steps=8))
    train(shorter, tmp_path / "resumed", console=quiet)
    resume(tmp_path / "resumed", changes={"budget.steps": 16}, console=quiet)
    whole, resumed = (
        Run(tmp_path / name).load_model(which="last").state_dict() for name in ("constant", "resumed")
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
