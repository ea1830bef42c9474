"""A reused compiled step gives the results of a new one, and the peak memory of a run is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import bytewright.train.session.engine
from bytewright.errors import DivergenceError
from bytewright.model import TransformerLM, language_model_loss
from bytewright.system import DevicePeakMemory
from bytewright.train import TrainConfig, resume, train
from bytewright.train.run import Run
from bytewright.train.session.engine import CompiledStepCache
from rejection import PowerCutError
from runs import digest, make_config, metrics_without_clock, rerun_unchecked

CPU = torch.device("cpu")
MIB = 2**20


def assert_second_run_is_as_if_alone(
    folder: Path, quiet: Console, first: dict[str, Any], second: dict[str, Any], **both: Any
) -> None:
    engines, both = CompiledStepCache(), both | {"save_every": 100, "budget": {"steps": 12}}
    train(make_config(folder, **both, **first), folder / "first", console=quiet, engines=engines)
    used = engines.engine_for(make_config(folder, **both, **second), CPU)
    train(make_config(folder, **both, **second), folder / "second", console=quiet, engines=engines)
    assert engines.engine_for(make_config(folder, **both, **second), CPU) is used
    train(make_config(folder, **both, **second), folder / "alone", console=quiet)
    assert digest(folder / "second") == digest(folder / "alone")
    assert digest(folder / "second") != digest(folder / "first")


@pytest.mark.parametrize(
    ("name", "implementation"), [("adamw", "fused"), ("muon", "fused"), ("adamw", "reference")]
)
def test_a_run_with_a_used_engine_is_equal_bit_for_bit(
    tmp_path: Path, quiet: Console, name: str, implementation: str
) -> None:
    rule = {"name": name, "implementation": implementation}
    assert_second_run_is_as_if_alone(
        tmp_path,
        quiet,
        {"optimizer": rule | {"lr": 0.02}},
        {"optimizer": rule | {"lr": 0.005, "muon_lr": 0.01}, "seed": 3, "schedule": {"kind": "linear"}},
        accumulate=2,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_so_is_one_with_a_used_engine_that_was_compiled(
    request: pytest.FixtureRequest, tmp_path: Path, quiet: Console
) -> None:
    if rerun_unchecked(request):
        return
    assert_second_run_is_as_if_alone(tmp_path, quiet, {}, {"optimizer": {"lr": 0.02}}, compile="on")


def test_a_resumed_run_with_a_used_engine_is_equal_bit_for_bit(tmp_path: Path, quiet: Console) -> None:
    engines, calls = CompiledStepCache(), [0]

    def failing(model: TransformerLM, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] == 20:
            raise PowerCutError
        return language_model_loss(model, ids, targets)

    config = make_config(tmp_path)
    train(config, tmp_path / "whole", console=quiet)
    with pytest.raises(PowerCutError):
        train(config, tmp_path / "parts", console=quiet, loss=failing)
    train(make_config(tmp_path, seed=1), tmp_path / "between", console=quiet, engines=engines)
    resume(tmp_path / "parts", console=quiet, engines=engines)
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")


def test_a_diverged_run_leaves_a_usable_compiled_step(tmp_path: Path, quiet: Console) -> None:
    engines = CompiledStepCache()
    hopeless = make_config(tmp_path, optimizer={"lr": 1e30}, max_refused=2)
    with pytest.raises(DivergenceError):
        train(hopeless, tmp_path / "hopeless", console=quiet, engines=engines)
    train(make_config(tmp_path), tmp_path / "second", console=quiet, engines=engines)
    train(make_config(tmp_path), tmp_path / "alone", console=quiet)
    assert digest(tmp_path / "second") == digest(tmp_path / "alone")


CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model": {"qk_norm": True}},
    "batch": {"batch_size": 8},
    "parts": {"accumulate": 2},
    "precision": {"precision": "bf16"},
    "rule": {"optimizer": {"name": "sgd"}},
    "decay": {"optimizer": {"weight_decay": 0.2}},
    "clipping": {"optimizer": {"max_grad_norm": 0.5}},
    "clock": {"budget": {"minutes": 1.0}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_engine_serves_only_runs_that_compile_to_the_same(tmp_path: Path, change: str) -> None:
    def engine_of(config: TrainConfig) -> object:
        return engines.engine_for(config, CPU)

    engines, config = CompiledStepCache(), make_config(tmp_path)
    first = engine_of(config)
    assert engine_of(make_config(tmp_path, seed=9, optimizer={"lr": 0.5}, eval_every=3)) is first
    assert engine_of(make_config(tmp_path, **CHANGES[change])) is not first


def test_without_a_final_checkpoint_the_metrics_are_the_same(tmp_path: Path, quiet: Console) -> None:
    config = make_config(tmp_path, save_every=14)
    train(config, tmp_path / "whole", console=quiet)
    result = train(config, tmp_path / "bare", console=quiet, final_checkpoint=False)
    assert metrics_without_clock(tmp_path / "bare") == metrics_without_clock(tmp_path / "whole")
    assert result.validation_loss is not None
    assert [path.name for path in (tmp_path / "bare/checkpoints").iterdir()] == ["step-000014"]
    resume(tmp_path / "bare", console=quiet)
    assert digest(tmp_path / "bare") == digest(tmp_path / "whole")


def test_the_memory_of_a_run_with_a_reused_engine_excludes_its_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a GPU's allocator would tell it: 300 bytes of others, and a step that takes 5,000."""
    allocated, highest = [0], [0]
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated[0])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: highest[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    allocated[0] = 300 + 100
    memory = DevicePeakMemory(torch.device("cuda"))
    memory.begin()
    for data_bytes in (100, 2000, 50, 2500):
        memory.leave_out(data_bytes)
        highest[0] = max(highest[0], 300 + data_bytes + 5000)
        assert memory.peak() == 5000
        memory.start_over()


def begun_memory() -> DevicePeakMemory:
    memory = DevicePeakMemory(CPU)
    assert memory.peak() is None
    memory.begin()
    if memory.peak() is None:
        pytest.skip("this system does not tell a process its peak")
    return memory


def test_peak_memory_counts_freed_memory_but_not_earlier_allocations() -> None:
    before = torch.ones(64 * MIB, dtype=torch.uint8)
    memory = begun_memory()
    block = torch.ones(128 * MIB, dtype=torch.uint8)
    del block
    assert 120 * MIB <= (memory.peak() or 0) <= 180 * MIB
    memory.start_over()
    assert memory.peak() is None
    memory.begin()
    assert (memory.peak() or 0) <= 60 * MIB
    assert len(before) == 64 * MIB


def test_every_line_of_a_run_has_its_peak_so_far(tmp_path: Path, quiet: Console) -> None:
    begun_memory()
    train(make_config(tmp_path), tmp_path / "run", console=quiet)
    peaks = [line["memory_bytes"] for line in Run(tmp_path / "run").metrics]
    assert peaks == sorted(peaks)
    assert all(type(peak) is int and 0 <= peak < 2**33 for peak in peaks)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_successive_runs_do_not_reach_the_limit_of_recompilations(
    request: pytest.FixtureRequest, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compiles a function for so many models only, and runs those that follow as they are."""
    if rerun_unchecked(request):
        return
    monkeypatch.setattr(bytewright.train.session.engine, "choose_backend", lambda config, device: "eager")
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 2)
    for number in range(2):
        change = {"model": {"d_model": 8 * (number + 1)}, "budget": {"steps": 1}}
        torch._dynamo.utils.counters.clear()
        train(make_config(tmp_path, **change), tmp_path / f"run{number}", console=quiet)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3  # step, update, evaluation
