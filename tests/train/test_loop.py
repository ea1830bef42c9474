"""A run learns, saves, stops at signals, and resumes with identical results."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import math
import os
import shutil
import signal
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from bytewright.errors import (
    DivergenceError,
    FormatError,
    UsageError,
)
from bytewright.model import ModelConfig, TransformerLM, language_model_loss
from bytewright.tokenizer import Tokenizer
from bytewright.train import (
    BudgetConfig,
    DataConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    load_model,
    resume,
    train,
)
from bytewright.train.checkpoint import CheckpointFolder
from bytewright.train.outcome import Ending
from bytewright.train.run import Run
from bytewright.train.run_files import RunWriter
from rejection import PowerCutError, rejects
from runs import digest, make_config, metrics_without_clock, rerun_unchecked


def lines(run: Path) -> list[dict[str, Any]]:
    return Run(run).metrics


def test_a_run_learns_and_leaves_plain_files(tmp_path: Path, quiet: Console) -> None:
    config = make_config(tmp_path, budget={"steps": 150}, save_every=50, eval_every=50, log_every=10)
    result = train(config, tmp_path / "run", console=quiet)
    assert result.step == 150
    assert result.received is None
    assert result.validation_loss is not None
    assert result.validation_loss < 1.2  # ln 2 at best, ln 40 = 3.7 before
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.name[0] != ".") == [
        "checkpoints",
        "config.json",
        "costs.json",
        "environment.json",
        "metrics.jsonl",
    ]
    records = lines(tmp_path / "run")
    assert [record["step"] for record in records] == list(range(10, 151, 10))
    assert records[-1]["tokens"] == 150 * 4 * 8
    assert records[-1]["perplexity"] == pytest.approx(math.exp(records[-1]["validation_loss"]))
    assert all(record["tokens_per_second"] > 0 and record["mfu"] > 0 for record in records)


def test_a_run_is_made_resumed_and_loaded_with_public_names_and_paths_that_are_strings(
    tmp_path: Path, quiet: Console, request: pytest.FixtureRequest
) -> None:
    """Without the checks of types, by which the paths of a config are no strings: they become none."""
    if rerun_unchecked(request):
        return
    files = make_config(tmp_path).data
    config = TrainConfig(
        model=ModelConfig(vocab_size=40, context_length=8, d_model=16, num_layers=1, num_heads=2),
        data=DataConfig(train=str(files.train), validation=str(files.validation)),  # type: ignore[arg-type]
        budget=BudgetConfig(steps=4),
        optimizer=OptimizerConfig(lr=0.01),
        schedule=ScheduleConfig(warmup=2),
        device="cpu",
    )
    run = str(tmp_path / "run")
    assert train(config, run, console=quiet).step == 4
    assert resume(run, console=quiet).step == 4
    assert load_model(run).config == config.model


def test_two_runs_of_one_config_are_equal_bit_for_bit(tmp_path: Path, quiet: Console) -> None:
    for name in ("a", "b"):
        torch.manual_seed(len(name))  # the global random state must not matter
        train(make_config(tmp_path), tmp_path / name, console=quiet)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    train(make_config(tmp_path, seed=1), tmp_path / "c", console=quiet)
    assert digest(tmp_path / "c")["weights"] != digest(tmp_path / "a")["weights"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": {"name": "muon"}},
        {"optimizer": {"implementation": "reference"}, "model": {"implementation": "reference"}},
        {"precision": "bf16", "accumulate": 2},
    ],
    ids=["adamw", "muon", "reference", "bf16"],
)
def test_a_signal_at_any_step_saves_and_the_resumed_run_is_equal_bit_for_bit(
    tmp_path: Path, quiet: Console, changes: dict[str, Any]
) -> None:
    config = make_config(tmp_path, **changes)
    train(config, tmp_path / "whole", console=quiet)
    calls_until_signal = [2]

    def interrupting(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        calls_until_signal[0] -= 1
        if calls_until_signal[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return language_model_loss(model, ids, targets)

    result = train(config, tmp_path / "parts", console=quiet, loss=interrupting)
    sessions = 1
    while result.received:
        assert result.received == signal.SIGTERM
        calls_until_signal[0] = 11
        result = resume(tmp_path / "parts", console=quiet, loss=interrupting)
        sessions += 1
    assert sessions > 2
    assert metrics_without_clock(tmp_path / "parts") == metrics_without_clock(tmp_path / "whole")
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")


def test_a_run_stopped_by_a_signal_has_a_line_of_its_last_step_until_it_is_resumed(
    tmp_path: Path, quiet: Console
) -> None:
    calls = [0]

    def interrupting(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] in (2, 6):  # between two lines, and where a line is due
            os.kill(os.getpid(), signal.SIGTERM)
        return language_model_loss(model, ids, targets)

    config = make_config(tmp_path, log_every=4, eval_every=100, save_every=100)
    run = tmp_path / "run"
    assert train(config, run, console=quiet, loss=interrupting).step == 2
    assert [line["step"] for line in lines(run)] == [2]
    assert lines(run)[-1]["loss"] > 0
    assert resume(run, console=quiet, loss=interrupting).step == 6
    assert [line["step"] for line in lines(run)] == [4, 6]
    resume(run, console=quiet)
    train(config, tmp_path / "whole", console=quiet)
    assert metrics_without_clock(run) == metrics_without_clock(tmp_path / "whole")


def test_a_second_signal_is_not_swallowed(tmp_path: Path, quiet: Console) -> None:
    def impatient(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        return language_model_loss(model, ids, targets)

    with pytest.raises(KeyboardInterrupt):
        train(make_config(tmp_path), tmp_path / "run", console=quiet, loss=impatient)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_outside_the_main_thread_leaves_signals_alone(tmp_path: Path, quiet: Console) -> None:
    results: list[Any] = []
    config = make_config(tmp_path, budget={"steps": 2})
    thread = threading.Thread(target=lambda: results.append(train(config, tmp_path / "run", console=quiet)))
    thread.start()
    thread.join()
    assert results[0].step == 2


def test_a_resume_without_a_checkpoint_starts_from_step_0(tmp_path: Path, quiet: Console) -> None:
    train(make_config(tmp_path), tmp_path / "whole", console=quiet)
    RunWriter.create(tmp_path / "run", make_config(tmp_path)).close()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 3}\n{"st')
    resume(tmp_path / "run", console=quiet)
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


@pytest.mark.parametrize(
    "budget", [{"steps": 24}, {"steps": None, "tokens": 24 * 32}, {"steps": None, "minutes": 0.1}]
)
@pytest.mark.parametrize("is_marked", [True, False])
def test_a_finished_run_without_checkpoints_is_not_restarted(
    tmp_path: Path, quiet: Console, budget: dict[str, Any], is_marked: bool
) -> None:
    """Logs of earlier versions neither mark the last line nor record an ending."""
    run, ticks = tmp_path / "run", itertools.count()
    config = make_config(tmp_path, budget=budget, save_every=1000, log_every=1)
    train(config, run, console=quiet, final_checkpoint=False, clock=lambda: 0.02 * next(ticks))
    assert lines(run)[-1]["is_last"]
    if not is_marked:
        texts = (json.dumps({**line, "is_last": None}) + "\n" for line in lines(run))
        (run / "metrics.jsonl").write_text("".join(texts))
    metrics = (run / "metrics.jsonl").read_bytes()
    with rejects(UsageError, path=run, found=Ending(list(budget)[-1])):
        resume(run, console=quiet)
    assert (run / "metrics.jsonl").read_bytes() == metrics


def test_a_diverged_run_without_checkpoints_is_not_restarted(tmp_path: Path, quiet: Console) -> None:
    def diverging(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        return language_model_loss(model, ids, targets) * float("inf")

    run = tmp_path / "run"
    with pytest.raises(DivergenceError):
        train(make_config(tmp_path, max_refused=3), run, console=quiet, loss=diverging)
    metrics = (run / "metrics.jsonl").read_bytes()
    with rejects(UsageError, path=run, found=Ending.DIVERGED):
        resume(run, console=quiet)
    assert (run / "metrics.jsonl").read_bytes() == metrics


def test_resuming_a_finished_run_takes_no_step(tmp_path: Path, quiet: Console) -> None:
    assert train(make_config(tmp_path), tmp_path / "run", console=quiet).num_new_steps == 24
    before = digest(tmp_path / "run")
    result = resume(tmp_path / "run", console=quiet)
    assert (result.step, result.num_new_steps) == (24, 0)
    assert digest(tmp_path / "run") == before


def test_a_run_with_a_damaged_last_checkpoint_resumes_from_the_previous_one(
    tmp_path: Path, quiet: Console
) -> None:
    run = tmp_path / "run"
    train(make_config(tmp_path), run, console=quiet)
    before = digest(run)
    damaged = run / "checkpoints" / "step-000024"
    (damaged / "optimizer.safetensors").write_bytes(b"half")
    with rejects(FormatError, path=damaged, expected=21):
        resume(run, console=quiet)
    shutil.rmtree(damaged)
    assert resume(run, console=quiet).num_new_steps == 3
    assert digest(run) == before


def test_refused_steps_are_recorded_with_their_windows_and_change_nothing(
    tmp_path: Path, quiet: Console
) -> None:
    calls = [0]

    def poisoned(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            calls[0] += 1
        loss = language_model_loss(model, ids, targets)
        return loss * float("nan") if calls[0] in (5, 6) and torch.is_grad_enabled() else loss

    config = make_config(tmp_path)
    train(config, tmp_path / "run", console=quiet, loss=poisoned)
    refused = [record for record in Run(tmp_path / "run").records if record.get("event") == "refused_step"]
    assert [record["step"] for record in refused] == [5, 6]
    assert all(len(record["windows"]) == config.batch_size for record in refused)
    assert all(record["loss"] is None for record in refused)
    assert all(math.isfinite(record["loss"]) for record in lines(tmp_path / "run"))
    state = json.loads((CheckpointFolder(tmp_path / "run" / "checkpoints").at(24) / "state.json").read_text())
    assert state["num_refused"] == 2


def test_too_many_refused_steps_in_a_row_stop_the_run_at_its_last_good_checkpoint(
    tmp_path: Path, quiet: Console
) -> None:
    calls = [0]

    def diverging(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        calls[0] += torch.is_grad_enabled()
        loss = language_model_loss(model, ids, targets)
        return loss * float("inf") if calls[0] > 8 else loss

    with rejects(DivergenceError, path=tmp_path / "run", found=3) as caught:
        train(make_config(tmp_path, max_refused=3), tmp_path / "run", console=quiet, loss=diverging)
    assert "its last checkpoint is that of step 7" in str(caught.value)
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").steps() == [7]

    calls[0] = 0
    config = make_config(tmp_path, save_every=2, keep_last=2, budget={"steps": 30})
    with rejects(DivergenceError, path=tmp_path / "saved-often", found=10):
        train(config, tmp_path / "saved-often", console=quiet, loss=diverging)
    kept = CheckpointFolder(tmp_path / "saved-often" / "checkpoints").steps()
    assert kept == [6, 8], "none is written or removed while steps are refused"

    calls[0] = 8
    with rejects(DivergenceError, path=tmp_path / "early", found=3) as caught:
        train(make_config(tmp_path, max_refused=3), tmp_path / "early", console=quiet, loss=diverging)
    assert CheckpointFolder(tmp_path / "early" / "checkpoints").steps() == []
    assert "it has no checkpoint" in str(caught.value)


def test_a_run_that_cannot_fit_into_memory_is_rejected_before_it_is_created(tmp_path: Path) -> None:
    with rejects(UsageError, key="batch_size"):
        train(make_config(tmp_path, batch_size=10**10), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert train(make_config(tmp_path, batch_size=8), tmp_path / "run").step == 24


def test_samples_are_written_on_the_way(tmp_path: Path, quiet: Console) -> None:
    config = make_config(tmp_path, sample_every=10)
    train(config, tmp_path / "run", console=quiet, sample=lambda model, step: f"sample {step}")
    samples = {path.name: path.read_text() for path in (tmp_path / "run" / "samples").iterdir()}
    assert samples == {f"step-{n:06d}.txt": f"sample {n}" for n in (10, 20, 24)}


def make_config_of_text(folder: Path, tokenizer: Path, **changes: Any) -> TrainConfig:
    """Make the config of a run of 4 steps on a text."""
    loaded = Tokenizer.load(tokenizer)
    (folder / "text.txt").write_text("the owl sat in the old oak and said nothing at all " * 20)
    loaded.encode_file(folder / "text.txt", folder / "text.npy")
    data = {"train": str(folder / "text.npy"), "validation": None, "tokenizer": str(tokenizer)}
    fields = {"model": {"vocab_size": loaded.vocab_size}, "data": data, "budget": {"steps": 4}}
    return make_config(folder, **(fields | changes))


def test_samples_of_text_are_written_by_default(tmp_path: Path, quiet: Console, tokenizer: Path) -> None:
    config = make_config_of_text(tmp_path, tokenizer, sample_every=2, sample_prompt="the owl", save_every=2)
    run = tmp_path / "run"
    train(config, run, console=quiet)
    samples = {path.name: path.read_text() for path in (run / "samples").iterdir()}
    assert samples.keys() == {"step-000002.txt", "step-000004.txt"}
    assert all(text.startswith("the owl") for text in samples.values())
    shutil.rmtree(run / "checkpoints/step-000004")
    (run / "samples/step-000004.txt").unlink()
    resume(run, console=quiet)
    assert (run / "samples/step-000004.txt").read_text() == samples["step-000004.txt"]


def test_impossible_samples_are_rejected_before_the_run_is_created(
    tmp_path: Path, quiet: Console, tokenizer: Path
) -> None:
    with rejects(UsageError, key="data.tokenizer"):
        train(make_config(tmp_path, sample_every=2), tmp_path / "run", console=quiet)
    config = make_config_of_text(tmp_path, tokenizer, sample_every=2, sample_prompt="the owl " * 20)
    with rejects(UsageError, key="sample_prompt"):
        train(config, tmp_path / "run", console=quiet)
    assert not (tmp_path / "run").exists()


def test_norms_by_layer_are_recorded_if_norms_every_is_set(tmp_path: Path, quiet: Console) -> None:
    train(make_config(tmp_path, norms_every=10), tmp_path / "run", console=quiet)
    with_norms = [record for record in lines(tmp_path / "run") if "weight_rms" in record]
    assert [record["step"] for record in with_norms] == [10, 20, 24]
    assert set(with_norms[0]["activation_rms"]) == {"token_embeddings", "layers.0", "layers.1"}
    assert with_norms[0]["weight_rms"]["layers.0.ln1"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.unfrozen
def test_memory_of_a_run_is_freed_also_after_gc_freeze(tmp_path: Path, quiet: Console) -> None:
    models = []

    def watched(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        models.append(weakref.ref(model))
        return language_model_loss(model, ids, targets)

    gc.freeze()  # Python 3.12 does it by itself
    train(make_config(tmp_path), tmp_path / "run", console=quiet, loss=watched)
    gc.collect()
    assert models
    assert not any(model() for model in models)


@pytest.mark.unfrozen
def test_the_garbage_collector_rests_during_the_steps_and_is_back_afterwards(
    tmp_path: Path, quiet: Console
) -> None:
    seen = set()

    def watched(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        seen.add(gc.isenabled())
        return language_model_loss(model, ids, targets)

    assert gc.isenabled()
    train(make_config(tmp_path), tmp_path / "run", console=quiet, loss=watched)
    assert seen == {False}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0

    def failing(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        raise PowerCutError

    with pytest.raises(PowerCutError):
        train(make_config(tmp_path), tmp_path / "other", console=quiet, loss=failing)
    assert gc.isenabled()


def test_a_resume_stores_the_tokenizer_that_a_killed_run_did_not(
    tmp_path: Path, quiet: Console, tokenizer: Path
) -> None:
    RunWriter.create(tmp_path / "run", make_config_of_text(tmp_path, tokenizer)).close()
    assert resume(tmp_path / "run", console=quiet).step == 4
    kept = Tokenizer.load(tmp_path / "run" / "tokenizer")
    assert kept.fingerprint == Tokenizer.load(tokenizer).fingerprint


def test_a_run_folder_has_one_writer(tmp_path: Path, quiet: Console) -> None:
    train(make_config(tmp_path), tmp_path / "run", console=quiet)
    with (
        RunWriter.open(tmp_path / "run"),
        rejects(UsageError, path=tmp_path / "run", found=f"process {os.getpid()}"),
    ):
        resume(tmp_path / "run", console=quiet)


def test_the_config_of_a_run_names_its_data_from_anywhere(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = make_config(tmp_path)
    relative = dataclasses.replace(config.data, train=Path("train.npy"), validation=Path("validation.npy"))
    train(dataclasses.replace(config, data=relative), Path("run"), console=quiet)
    monkeypatch.chdir("/")
    assert resume(tmp_path / "run", console=quiet).step == 24
