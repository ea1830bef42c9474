"""A sweep executes all its runs: finished ones are kept, interrupted ones resume, failures are recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

import bytewright
from bytewright.account.devices import Device, Rate
from bytewright.errors import StorageError, UsageError, is_out_of_memory
from bytewright.experiments.execute import (
    SweepStopped,
    execute_plan,
    list_gpus,
    prepare_data,
    run_commands,
)
from bytewright.experiments.inputs import read_sweep_folder
from bytewright.experiments.plan import fit_to_memory, in_more_parts, make_plan
from bytewright.experiments.records import read_run
from bytewright.model import TransformerLM
from bytewright.storage import atomic
from bytewright.train import train
from bytewright.train.config import TrainConfig
from bytewright.train.run import Run
from bytewright.train.run_files import RunWriter
from bytewright.train.session.costs import account_for_run
from bytewright.train.session.loop import TextSampler
from bytewright.train.session.recorder import Recorder
from conftest import RunCommand
from rejection import rejects
from runs import RECIPE, SWEEP, digest, make_config, metrics_without_clock, write_sweep
from sweeps import SweepRunner, interrupting


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_sweep(tmp_path)


def test_every_run_is_executed_and_divergence_is_recorded(place: Path) -> None:
    runner = SweepRunner(place)
    runner.run()
    about, records = read_sweep_folder(runner.folder)
    assert about.question == "Which?"
    assert [record.status for record in records] == ["complete", "complete", "diverged"]
    assert "not finite from step 2 on" in records[2].reason
    assert [record.labels for record in records] == [{"optimizer.lr": lr} for lr in (1e-3, 1e-2, 1e30)]
    assert records[0].predicted["memory_bytes"] > 0
    assert records[0].predicted["seconds"] > 0
    assert not (runner.folder / "lr-1e-3" / "checkpoints").exists()


def test_runs_that_share_a_compiled_step_equal_separate_runs(place: Path) -> None:
    (place / "base.toml").write_text(RECIPE.replace("save_every = 8", "save_every = 100"))
    (place / "rates.toml").write_text('keep = "model"\n' + SWEEP.replace("1e-3, 1e-2, 1e30", "1e-3, 1e-2"))
    runner = SweepRunner(place)
    runner.run()
    for trial in runner.sweep.trials:
        train(trial.config, place / "alone" / trial.name, console=Console(quiet=True))
        assert digest(runner.folder / trial.name) == digest(place / "alone" / trial.name)


def test_a_finished_sweep_is_not_executed_again(place: Path) -> None:
    runner = SweepRunner(place)
    runner.run()
    before = {path: path.stat().st_mtime_ns for path in runner.folder.rglob("metrics.jsonl")}
    runner.said.clear()
    runner.run()
    assert runner.said == []
    assert before == {path: path.stat().st_mtime_ns for path in runner.folder.rglob("metrics.jsonl")}


def test_an_existing_run_with_other_settings_is_rejected(place: Path) -> None:
    SweepRunner(place).run()
    (place / "base.toml").write_text(RECIPE.replace("d_model = 16", "d_model = 32"))
    with pytest.raises(UsageError) as caught:
        SweepRunner(place).run()
    error = caught.value
    assert (error.path, error.key) == (place / "out/lr-1e-3", "model.d_model")
    assert (error.expected, error.found) == (32, 16)


def test_an_existing_run_with_other_data_is_rejected_but_not_if_its_folder_was_moved(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SweepRunner(place).run()
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    for name in ("out", "train.npy", "validation.npy", "base.toml", "rates.toml"):
        shutil.move(place / name, elsewhere / name)
    monkeypatch.chdir(elsewhere)
    moved = SweepRunner(elsewhere)
    assert not any(planned.is_open for planned in make_plan(moved.sweep, moved.folder))
    (elsewhere / "base.toml").write_text(RECIPE.replace('"train.npy"', '"validation.npy"'))
    other = SweepRunner(elsewhere)
    with pytest.raises(UsageError) as caught:
        make_plan(other.sweep, other.folder)
    assert (caught.value.key, caught.value.expected) == ("data.train", "validation.npy")


@pytest.mark.parametrize("link", ["out", "out/lr-0.01"])
def test_a_sweep_does_not_write_through_a_symbolic_link(place: Path, link: str) -> None:
    (place / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-2"))
    (place / "outside").mkdir()
    (place / link).parent.mkdir(exist_ok=True)
    (place / link).symlink_to(place / "outside")
    with rejects(StorageError, path=place / link):
        SweepRunner(place).run()
    assert list((place / "outside").iterdir()) == []


def test_checkpoints_are_kept_if_the_sweep_sets_keep(place: Path) -> None:
    (place / "rates.toml").write_text('keep = "model"\n' + SWEEP.replace("1e-3, 1e-2, 1e30", "1e-2"))
    SweepRunner(place).run()
    assert [path.name for path in (place / "out/lr-0.01/checkpoints").iterdir()] == ["step-000024"]


class Greedy:
    """Makes samplers that exhaust memory unless the batch is split into `parts`."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.tried: list[int] = []

    def __call__(self, config: TrainConfig) -> TextSampler:
        def sample(model: TransformerLM, step: int) -> str:
            self.tried.append(config.accumulate)
            if config.accumulate < self.parts:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return "text"

        return sample


def test_a_run_that_exhausts_memory_restarts_with_more_parts(place: Path) -> None:
    (place / "base.toml").write_text("sample_every = 4\n" + RECIPE)
    (place / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-2"))
    greedy = Greedy(4)
    runner = SweepRunner(place, make_sampler=greedy)
    runner.run()
    assert runner.outcome("lr-0.01")["status"] == "complete"
    assert list(dict.fromkeys(greedy.tried)) == [1, 2, 4]
    assert json.loads((runner.folder / "lr-0.01/config.json").read_text())["accumulate"] == 4
    assert [sentence for sentence in runner.said if "accumulate = 4" in sentence]
    runner.run()  # a larger accumulate is not another setting


def test_a_run_that_exhausts_memory_later_resumes_from_its_checkpoint(place: Path) -> None:
    (place / "base.toml").write_text("sample_every = 12\n" + RECIPE)  # a checkpoint is saved at step 8
    (place / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-2"))
    runner = SweepRunner(place, make_sampler=Greedy(2))
    runner.run()
    assert runner.outcome("lr-0.01")["status"] == "complete"
    assert [sentence for sentence in runner.said if "resumes with accumulate = 2" in sentence]
    steps = [record["step"] for record in Run(runner.folder / "lr-0.01").metrics]
    assert steps == sorted(set(steps))
    assert min(steps) == 4


def test_a_run_that_was_split_before_is_split_into_smaller_parts(place: Path) -> None:
    recipe = RECIPE.replace("batch_size = 4", "batch_size = 8")
    (place / "base.toml").write_text("sample_every = 12\n" + recipe)
    (place / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-2"))
    config = dataclasses.replace(SweepRunner(place).sweep.trials[0].config, accumulate=4)
    stopped = train(config, place / "out/lr-0.01", console=Console(quiet=True), sample=interrupting(config))
    assert stopped.received
    runner = SweepRunner(place, make_sampler=Greedy(8))
    runner.run()
    assert [sentence for sentence in runner.said if "accumulate = " in sentence] == [
        "lr-0.01: out of memory (CUDA out of memory); resumes with accumulate = 8"
    ]
    assert runner.outcome("lr-0.01")["status"] == "complete"


def test_a_run_that_another_process_writes_is_skipped(place: Path) -> None:
    (place / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-3, 1e-2"))
    runner = SweepRunner(place)
    config = runner.sweep.trials[0].config
    with RunWriter.create(runner.folder / "lr-1e-3", config):
        runner.run()
        assert "[1/2] lr-1e-3: another process is writing it; skipped" in runner.said
        assert not (runner.folder / "lr-1e-3/outcome.json").exists()
    assert runner.outcome("lr-0.01")["status"] == "complete"
    runner.run()
    assert runner.outcome("lr-1e-3")["status"] == "complete"


def test_the_state_of_a_run_follows_from_its_log(place: Path) -> None:
    (place / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-2"))
    runner = SweepRunner(place)
    runner.run()
    outcome = runner.outcome("lr-0.01") | {"status": "failed", "reason": "no memory"}
    atomic.write_json(runner.folder / "lr-0.01/outcome.json", outcome)
    assert read_run(runner.folder / "lr-0.01").status == "complete"
    assert [planned.state for planned in make_plan(runner.sweep, runner.folder)] == ["done"]


@pytest.mark.parametrize("budget", ["steps = 24", "minutes = 0.02"])
def test_a_finished_run_that_lost_lines_restarts(
    place: Path, monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    monkeypatch.setattr(Recorder, "seconds", lambda recorder: 0.05 * recorder.progress.step)
    (place / "base.toml").write_text(RECIPE.replace("steps = 24", budget))
    (place / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-2"))
    runner = SweepRunner(place)
    runner.run()
    assert read_run(runner.folder / "lr-0.01").status == "complete"
    metrics = runner.folder / "lr-0.01/metrics.jsonl"
    first, *lost = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(first + lost[0][:9])
    end = json.loads(lost[-1])["step"]
    record = read_run(runner.folder / "lr-0.01")
    assert (record.status, record.reason) == ("failed", f"its record ends at step 4 of {end:,}")
    assert record.last("loss") is None
    (planned,) = make_plan(runner.sweep, runner.folder)
    assert (planned.state, planned.detail) == (
        "resume",
        f"its record ends at step 4 of {end:,}, restarts",
    )
    runner.run()
    assert [planned.state for planned in make_plan(runner.sweep, runner.folder)] == ["done"]


def test_a_run_of_which_no_window_fits_fails_and_the_others_continue(place: Path) -> None:
    (place / "base.toml").write_text(
        "sample_every = 4\n" + RECIPE.replace("batch_size = 4", "batch_size = 2")
    )
    (place / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-2, 2e-2"))
    runner = SweepRunner(place, make_sampler=Greedy(99))
    runner.run()
    assert sum("out of memory with a single window" in sentence for sentence in runner.said) == 2
    assert len(make_plan(runner.sweep, runner.folder)) == 2
    assert all(planned.is_open for planned in make_plan(runner.sweep, runner.folder))


def test_a_failed_run_that_is_resumed_to_its_end_is_complete(place: Path) -> None:
    def refuse(model: TransformerLM, step: int) -> str:
        raise UsageError("there is nothing to say")

    (place / "base.toml").write_text("sample_every = 12\n" + RECIPE)
    (place / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-2"))
    runner = SweepRunner(place, make_sampler=lambda config: refuse)
    runner.run()
    assert runner.outcome("lr-0.01")["status"] == "failed"
    assert runner.outcome("lr-0.01")["reason"] == "there is nothing to say"
    again = SweepRunner(place)
    again.run()
    assert "resumes at step 8" in again.said[0]
    assert (again.outcome("lr-0.01")["status"], again.outcome("lr-0.01")["reason"]) == ("complete", "")


def test_a_stop_propagates_through_context_managers() -> None:
    @contextlib.contextmanager
    def place_to_leave() -> Iterator[None]:
        yield

    with pytest.raises(SweepStopped) as caught, place_to_leave():
        raise SweepStopped(signal.SIGTERM)
    assert caught.value.received is signal.SIGTERM


def test_a_batch_that_is_predicted_not_to_fit_is_split_before_the_start(tmp_path: Path) -> None:
    def machine(memory_bytes: float) -> Device:
        rates: dict[Rate, float] = {"fp32": 1e10, "tf32": 1e10, "bf16": 1e10}
        return Device(name="m", flops_per_second=rates, bytes_per_second=1e10, memory_bytes=memory_bytes)

    config = make_config(tmp_path, batch_size=24)
    half = account_for_run(in_more_parts(config) or config, machine(1e9))["peak_memory"]
    assert half is not None
    assert fit_to_memory(config, machine(1e12), name="x").accumulate == 1
    assert fit_to_memory(config, machine(half / 0.92 + 1), name="x").accumulate == 2
    with rejects(UsageError, expected=20_000):
        fit_to_memory(config, machine(20_000), name="x")


@pytest.mark.parametrize(("size", "expected"), [(24, [2, 4, 8, 24]), (7, [7]), (1, [])])
def test_parts_divide_the_batch_and_at_least_halve(tmp_path: Path, size: int, expected: list[int]) -> None:
    config: TrainConfig | None = make_config(tmp_path, batch_size=size)
    found = []
    while config is not None and (config := in_more_parts(config)) is not None:
        found.append(config.accumulate)
    assert found == expected


def test_a_full_disk_ends_the_sweep(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise StorageError("no space left on the disk", path="full")

    monkeypatch.setattr("bytewright.train.checkpoint.atomic.write_folder", full)
    with rejects(StorageError, path=Path("full")):
        SweepRunner(place).run()


def test_a_signal_ends_the_sweep_after_a_save_and_the_next_call_resumes(place: Path) -> None:
    (place / "base.toml").write_text("sample_every = 12\n" + RECIPE)
    whole = SweepRunner(place, name="elsewhere/whole")  # not a sibling, whose runs would be copied
    whole.run()
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(SweepStopped):
            SweepRunner(place, make_sampler=interrupting).run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (place / "out/lr-1e-3/outcome.json").exists()
    again = SweepRunner(place)
    again.run()
    assert "resumes at step 12" in again.said[0]
    for name in ("lr-1e-3", "lr-0.01"):
        assert metrics_without_clock(again.folder / name) == metrics_without_clock(whole.folder / name)


@pytest.mark.fault
@pytest.mark.slow
def test_a_sweep_that_is_killed_repeatedly_ends_with_the_same_numbers(place: Path, run: RunCommand) -> None:
    assert run("sweep", "rates.toml", "--out", "whole").code == 0
    environment = os.environ | {"PYTHONPATH": str(Path(bytewright.__file__).parents[1])}
    command = [sys.executable, "-m", "bytewright.cli.main", "sweep", "rates.toml", "--out", "parts"]
    folder = place / "parts/rates"
    for sign in ("lr-1e-3/metrics.jsonl", "lr-0.01/checkpoints/step-000008"):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and not (folder / sign).exists():
            time.sleep(0.005)
        process.kill()
        process.wait()
    finished = run("sweep", "rates.toml", "--out", "parts")
    assert finished.code == 0, finished
    for name in ("lr-1e-3", "lr-0.01", "lr-1e+30"):
        assert metrics_without_clock(folder / name) == metrics_without_clock(place / "whole/rates" / name)
    assert (folder / "report.html").is_file()


def test_out_of_memory_errors_of_torch_are_recognised() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"))
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    assert is_out_of_memory(raised.value)


PRINT_THREADS = [sys.executable, "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"]


def threads_of(num_commands: int, num_jobs: int, logs: Path) -> list[str]:
    """Run commands that print their number of threads, and return it."""
    printed: list[str] = []
    commands = {f"c{number}": PRINT_THREADS for number in range(num_commands)}
    assert run_commands(commands, num_jobs, logs, lambda name, code, line: printed.append(line)) == 0
    return printed


def test_every_job_has_a_gpu_of_its_own(tmp_path: Path) -> None:
    """The first two processes run until both have started; the third gets the GPU of one that ended."""
    meet = (
        "import os, sys, time, pathlib; place = pathlib.Path(sys.argv[1]); (place / sys.argv[2]).touch();"
        "[time.sleep(0.01) for _ in iter(lambda: len(list(place.iterdir())) < 2, False)];"
        "print(os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    (tmp_path / "started").mkdir()
    used: dict[str, str] = {}
    commands = {name: [sys.executable, "-c", meet, str(tmp_path / "started"), name] for name in "abc"}
    code = run_commands(
        commands, 2, tmp_path / "logs", lambda name, code, line: used.update({name: line}), gpus=["3", "5"]
    )
    assert code == 0
    assert (used["a"], used["b"]) == ("3", "5")
    assert used["c"] in ("3", "5")


def test_a_single_gpu_needs_no_assignment() -> None:
    assert list_gpus({"CUDA_VISIBLE_DEVICES": "2"}) == []
    assert list_gpus({"CUDA_VISIBLE_DEVICES": "0, GPU-8932f937"}) == ["0", "GPU-8932f937"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be restricted here")
def test_the_usable_cores_are_divided_by_the_number_of_jobs(tmp_path: Path) -> None:
    usable = os.sched_getaffinity(0)
    share = str(max(1, len(usable) // 2))
    assert threads_of(3, 2, tmp_path) == [share] * 3
    assert threads_of(1, 2, tmp_path) == [share]
    try:
        os.sched_setaffinity(0, {min(usable)})
        assert threads_of(1, 1, tmp_path) == ["1"]
    finally:
        os.sched_setaffinity(0, usable)


def test_the_time_left_follows_from_the_runs_so_far_above_all_the_last_ones(place: Path) -> None:
    runner = SweepRunner(place)
    plan = [dataclasses.replace(planned, seconds=10.0) for planned in make_plan(runner.sweep, runner.folder)]
    ticks = iter([0, 30, 60, 120, 150, 180])
    context = dataclasses.replace(runner.context, clock=lambda: next(ticks))
    execute_plan(plan, prepare_data([planned.trial for planned in plan], context), context)
    ends = [sentence for sentence in runner.said if "steps in" in sentence or "diverged" in sentence]
    assert [sentence.partition("; ")[2] for sentence in ends] == [
        "about 1 min 0 s left",
        "about 50 s left",  # the mean over all runs would be 45 s
        "",
    ]
