"""Runs on a GPU: fused equals reference, batches, refused steps and exact resume."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from bytewright.data.sampler import TokenStore
from bytewright.model import ModelConfig, TransformerLM
from bytewright.optim.build import build_optimizer
from bytewright.train import TrainConfig, resume, train
from bytewright.train.config import OptimizerConfig
from bytewright.train.run import Run
from bytewright.train.session.engine import CompiledStepCache
from bytewright.train.step import StepResult, TrainStep
from rejection import PowerCutError
from runs import digest, make_config, rerun_unchecked

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the compiler's own
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),  # its advice; fp32 here means fp32
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    """Forget what other tests compiled: torch gives up compiling a function for the ninth model."""
    torch.compiler.reset()


def make_step(backend: str | None = None, **settings: Any) -> tuple[TransformerLM, TrainStep]:
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=40, context_length=16, d_model=64, num_layers=2, num_heads=2)
    model = TransformerLM(config).to("cuda")
    optimizer = build_optimizer(model, OptimizerConfig(lr=0.01, **settings))
    return model, TrainStep(model, optimizer, max_grad_norm=1.0, backend=backend)


def make_batch(number: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(40, (4, 17), generator=torch.Generator().manual_seed(number)).cuda()
    return ids[:, :-1], ids[:, 1:]


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("backend", [None, "inductor"])
def test_the_fused_step_follows_the_reference(
    request: pytest.FixtureRequest, name: Any, backend: str | None
) -> None:
    if backend and rerun_unchecked(request):
        return
    _, fused = make_step(backend, name=name)
    _, readable = make_step(name=name, implementation="reference")
    for number in range(20):
        left, right = fused([make_batch(number)]).loss.item(), readable([make_batch(number)]).loss.item()
        assert left == pytest.approx(right, abs=2e-2 if name == "muon" else 1e-3)  # Muon: products in bf16


@pytest.mark.parametrize("backend", [None, "inductor"])
def test_a_bad_gradient_changes_nothing(request: pytest.FixtureRequest, backend: str | None) -> None:
    if backend and rerun_unchecked(request):
        return
    model, step = make_step(backend)
    step([make_batch(0)])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameter = model.get_parameter("layers.0.ffn.w1.weight")
    handle = parameter.register_hook(lambda gradient: gradient * float("nan"))  # type: ignore[no-untyped-call]
    assert not step([make_batch(1)]).accepted
    handle.remove()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_batches_cut_on_the_device_are_those_of_the_host(dtype: type) -> None:
    tokens: Any = (np.iinfo(dtype).max - np.arange(500)).astype(dtype)
    starts = np.array([0, 7, 300])
    expected = TokenStore(tokens).batch(starts, 16)
    for limit in (0, None):  # kept in host memory, and moved to the device
        store = TokenStore(tokens, "cuda", max_resident_bytes=limit)
        assert (store.resident is None) == (limit == 0)
        for ours, theirs in zip(store.batch(starts, 16), expected, strict=True):
            assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("compile", ["off", "on"])
def test_a_resumed_run_is_equal_bit_for_bit(
    request: pytest.FixtureRequest, tmp_path: Path, precision: str, compile: str
) -> None:
    if compile == "on" and rerun_unchecked(request):
        return
    quiet = Console(file=io.StringIO())
    config = make_config(tmp_path, device="cuda", precision=precision, compile=compile)
    train(config, tmp_path / "whole", console=quiet)
    original, calls = TrainStep.__call__, [0]

    def fail_at_the_17th(step: TrainStep, batches: Any) -> StepResult:
        calls[0] += 1
        if calls[0] == 17:
            raise PowerCutError
        return original(step, batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainStep, "__call__", fail_at_the_17th)
        with pytest.raises(PowerCutError):
            train(config, tmp_path / "parts", console=quiet)
    resume(tmp_path / "parts", console=quiet)
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_run_with_a_used_engine_is_equal_bit_for_bit(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    if rerun_unchecked(request):
        return
    quiet, engines = Console(file=io.StringIO()), CompiledStepCache()

    def config(**changes: Any) -> TrainConfig:
        rule = {"name": name, "lr": changes.pop("lr", 0.01)}
        return make_config(tmp_path, device="cuda", precision="bf16", compile="on", optimizer=rule, **changes)

    train(config(), tmp_path / "first", console=quiet, engines=engines)
    train(config(lr=0.003, seed=5), tmp_path / "second", console=quiet, engines=engines)
    train(config(lr=0.003, seed=5), tmp_path / "alone", console=quiet)
    assert digest(tmp_path / "second") == digest(tmp_path / "alone")
    assert digest(tmp_path / "second") != digest(tmp_path / "first")
    for run in ("first", "second", "alone"):
        assert 0 < Run(tmp_path / run).metrics[-1]["memory_bytes"] < 2**31
