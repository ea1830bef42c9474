"""Execute the runs of a sweep.

Finished runs are skipped, and identical runs of sibling sweeps are copied. An interrupted run resumes from
its checkpoint. A run that diverges is recorded with the reason. A run that does not fit into memory starts
again with smaller parts. The `outcome.json` of a run is written last and marks it as done. A sweep that is
killed at any time and started again therefore ends with the same numbers.

`execute_plan` trains in this process, where consecutive runs share a compiled step. For short runs on a GPU,
starting a process and compiling would take longest. `run_commands` runs several processes at once.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bytewright.corpus import SEPARATOR
from bytewright.errors import (
    BytewrightError,
    DivergenceError,
    StorageError,
    UsageError,
    first_line,
    is_out_of_memory,
)
from bytewright.experiments import corpora
from bytewright.experiments.evaluation.document_eval import evaluate_documents
from bytewright.experiments.evaluation.stories import generate_stories, score_stories
from bytewright.experiments.loss_metric import choose_metric
from bytewright.experiments.plan import (
    SAMPLER_KEY,
    PlannedRun,
    check_same_settings,
    find_identical_run,
    find_state,
    in_more_parts,
    model_of,
    with_data,
)
from bytewright.experiments.records import read_run
from bytewright.experiments.results import SWEEP
from bytewright.experiments.sweep import Sweep, Trial
from bytewright.experiments.sweep_file import Keep, Labels
from bytewright.formatting import PhaseProgress, format_seconds
from bytewright.plugins import plugin_digests
from bytewright.storage import atomic
from bytewright.system import usable_cores
from bytewright.train import resume, train
from bytewright.train.config import DataConfig, TrainConfig
from bytewright.train.run import Run
from bytewright.train.session.engine import CompiledStepCache
from bytewright.train.session.loop import TextSampler, TrainResult
from bytewright.train.session.start import SessionOptions

POLL_SECONDS = 0.1
PAST_SHARE = 0.5
"""The weight of each run in the correction of expected times, relative to the run after it."""
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class SweepContext:
    """The folders, settings and output of a sweep."""

    folder: Path
    data_root: Path
    keep: Keep
    print_line: Callable[[str], None]
    progress: PhaseProgress
    console: Console
    engines: CompiledStepCache = field(default_factory=CompiledStepCache)
    """The compiled step of the last run, which the next run reuses if it can."""
    clock: Callable[[], float] = time.monotonic
    make_sampler: Callable[[TrainConfig], TextSampler] | None = None
    """Returns the sampler of a run; by default the one that generates text."""


class SweepStopped(Exception):  # noqa: N818  # not an error: the user asked for it
    """A signal stopped the sweep after the active run was saved."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(received)
        self.received = received


def write_plan(sweep: Sweep, folder: Path) -> None:
    """Write the description and the names of the runs to sweep.json, for reports."""
    atomic.check_no_links(folder, within=folder.parent)
    runs = [{"name": trial.name, "labels": trial.labels} for trial in sweep.trials]
    atomic.write_document(folder / SWEEP, {"about": dataclasses.asdict(sweep.about), "runs": runs})


def prepare_data(trials: Sequence[Trial], context: SweepContext) -> dict[Path, DataConfig]:
    """Prepare the corpora of all trials; return the paths of their data by `corpora.token_folder`."""
    prepared: dict[Path, DataConfig] = {}
    for trial in trials:
        if trial.corpus is not None:
            folder = corpora.token_folder(trial.corpus, context.progress)
            if folder not in prepared:
                prepared[folder] = corpora.prepare_corpus(trial.corpus, context.data_root, context.progress)
    return prepared


def execute_plan(
    plan: Sequence[PlannedRun], prepared: Mapping[Path, DataConfig], context: SweepContext
) -> None:
    """Execute the open runs of a plan one after the other, and print the time left after each.

    The time left is the expected time of the other runs, corrected by the time that complete runs have taken,
    above all the last ones: the machine may have become slower or faster.
    """
    expected = taken = 0.0
    for number, planned in enumerate(plan, start=1):
        place = f"[{number}/{len(plan)}] {planned.trial.name}"
        atomic.check_no_links(planned.run, within=context.folder.parent)
        state, detail = find_state(planned.trial, planned.run)
        if state != planned.state:  # another process has changed it since the plan was made
            planned = dataclasses.replace(planned, state=state, detail=detail)
        if state == "running":
            context.print_line(f"{place}: {planned.detail}; skipped")
            continue
        if not planned.is_open:
            # A process may have been killed before it removed them.
            _remove_checkpoints(planned.run, _choose_keep(planned, context))
            continue
        context.print_line(f"{place}: {planned.detail}")
        corpus = planned.trial.corpus
        data = None if corpus is None else prepared[corpora.token_folder(corpus)]
        start = context.clock()
        outcome = execute_run(planned, data, context)
        if outcome["status"] == "complete" and planned.seconds:
            # The record of a run that was resumed or copied has the time of all its sessions.
            recorded = read_run(planned.run).measured.get("seconds", 0.0)
            taken = PAST_SHARE * taken + max(context.clock() - start, recorded)
            expected = PAST_SHARE * expected + planned.seconds
        left = sum(other.seconds or 0.0 for other in plan[number:] if other.is_open)
        left *= taken / expected if expected else 1.0
        shown = f"; about {format_seconds(round(left))} left" if left >= 1 else ""
        context.print_line(f"{place}: {describe_outcome(outcome, planned.run)}{shown}")


def describe_outcome(outcome: Mapping[str, Any], run: Path) -> str:
    """Return one line on how a run ended."""
    if outcome["status"] != "complete":
        return f"{outcome['status']}: {outcome['reason']}"
    if "figures" in outcome:
        figures = outcome["figures"]
        return ", ".join(f"{name} {figures[name]:.3g}" for name in ("consistent", "ended") if name in figures)
    record = read_run(run)
    metric = choose_metric([record])
    value = record.last(metric.name)
    loss = "" if value is None else f"{metric.title} {metric.format(value)}, "
    return f"{loss}{record.num_steps:,} steps in {record.measured.get('seconds', 0):.1f} s"


def execute_run(planned: PlannedRun, data: DataConfig | None, context: SweepContext) -> dict[str, Any]:
    """Execute one run and return its outcome; raise `SweepStopped` if a signal stopped it."""
    trial = with_data(planned.trial, data)
    if trial.sampling is not None:
        return _sample_trial(trial, planned, context)
    context_of_run = dataclasses.replace(context, keep=_choose_keep(planned, context))
    outcome = _train_trial(trial, planned.run, planned.predicted, context_of_run)
    if planned.is_sampled:
        if outcome["status"] != "complete":
            reason = f"the run {outcome['status']}: {outcome['reason']}"
            raise UsageError.at(planned.run, f"no model to sample from; {reason}")
        context.engines.clear()  # free the memory for generation
    return outcome


def _choose_keep(planned: PlannedRun, context: SweepContext) -> Keep:
    return "model" if planned.is_sampled else context.keep


def _train_trial(
    trial: Trial, run: Path, predicted: Mapping[str, float], context: SweepContext
) -> dict[str, Any]:
    has_started = Run(run).exists
    if has_started:
        check_same_settings(trial, run)
    data = corpora.token_digests(Run(run).config.data if has_started else trial.config.data)
    documents = corpora.document_files(trial.corpus, trial.config.data)
    may_copy = context.keep == "metrics" and not run.exists() and not documents
    try:
        if may_copy and (identical := find_identical_run(trial.config, data, context.folder)):
            context.print_line(f"{run.name}: copied from the identical run {identical}")
            return copy_record(identical, run, trial.config, trial.labels)
        # A process that was killed may have finished training without writing the outcome.
        if not (has_started and Run(run).is_finished_without_checkpoint):
            keep: Keep = "model" if documents and context.keep == "metrics" else context.keep
            result = _train_in_parts(trial.config, run, dataclasses.replace(context, keep=keep))
            if result.received:
                raise SweepStopped(result.received)
        record = read_run(run)
        # A session without a signal has spent the budget, even if an earlier session recorded another ending.
        status, reason = ("diverged", record.reason) if record.status == "diverged" else ("complete", "")
    except DivergenceError:
        record = read_run(run)
        status, reason = "diverged", record.reason
    except StorageError:
        raise
    except (BytewrightError, torch.OutOfMemoryError) as error:
        status, reason = "failed", str(error)
    outcome: dict[str, Any] = {
        "status": status,
        "reason": reason,
        "labels": trial.labels,
        "predicted": predicted,
    }
    if status != "failed":
        # The last step reveals a log that later loses some of its lines.
        outcome |= {"ending": record.ending, "data": data, "step": record.num_steps}
    if status == "complete" and documents and Run(run).checkpoints.steps():
        outcome["documents"] = evaluate_documents(run, documents, device=trial.config.device)
    # If another process trains the run now, that process records its outcome.
    if Run(run).exists and not Run(run).is_locked:
        Run(run).write_outcome(outcome)
        if status != "failed":
            _remove_checkpoints(run, context.keep)
    return outcome


def copy_record(source: Path, run: Path, config: TrainConfig, labels: Labels) -> dict[str, Any]:
    """Copy the record of a run, with the labels of this sweep, and return its outcome."""
    outcome = Run(source).outcome | {"labels": labels}
    Run(source).copy_to(run, dataclasses.replace(config, data=config.data.absolute()), outcome)
    return outcome


def _train_in_parts(config: TrainConfig, run: Path, context: SweepContext) -> TrainResult:
    """Train; while memory is exhausted, try again with smaller parts."""
    while True:
        _free_memory()  # not at the end of a run, since a pending error may still hold its tensors
        try:
            return _start_or_resume(config, run, context)
        except _OutOfMemory as error:
            reason = str(error)
            context.engines.clear()
        if Run(run).exists:  # an earlier session may have used smaller parts than planned
            config = dataclasses.replace(config, accumulate=Run(run).config.accumulate)
        smaller = in_more_parts(config)
        if smaller is None:
            raise UsageError("out of memory with a single window per part; use a smaller model or context")
        change = f"out of memory ({reason}); {{}} with accumulate = {smaller.accumulate}"
        if Run(run).checkpoints.steps():  # later steps differ from those of other runs by rounding
            context.print_line(f"{run.name}: {change.format('resumes')}")
            Run(run).change_setting("accumulate", smaller.accumulate)
        else:
            context.print_line(f"{run.name}: {change.format('restarts')}")
            if run.exists():
                atomic.remove_folder(run)
        config = smaller


class _OutOfMemory(Exception):  # noqa: N818  # caught in this module
    """Memory was exhausted during training."""


def _start_or_resume(config: TrainConfig, run: Path, context: SweepContext) -> TrainResult:
    options: SessionOptions = {
        "console": context.console,
        "engines": context.engines,
        "final_checkpoint": context.keep != "metrics",
    }
    if context.make_sampler is not None:
        options["sample"] = context.make_sampler(config)
    try:
        return resume(run, **options) if Run(run).exists else train(config, run, **options)
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise _OutOfMemory(first_line(error)) from None
        raise


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _remove_checkpoints(run: Path, keep: Keep) -> None:
    """Remove the checkpoints of a finished run that `keep` does not include."""
    checkpoints = Run(run).checkpoints
    if keep == "metrics" and checkpoints.path.is_dir():
        atomic.remove_folder(checkpoints.path)
    elif keep == "model":
        checkpoints.prune(1, None)


def _sample_trial(trial: Trial, planned: PlannedRun, context: SweepContext) -> dict[str, Any]:
    """Sample stories from the model that all sampling trials share, and record their scores."""
    assert trial.sampling is not None
    model = context.folder / trial.model_name
    state, detail = find_state(model_of(trial), model)
    if state != "done":
        raise UsageError.at(model, f"no model to sample from ({detail})")
    stories, ended = generate_stories(model, trial.sampling, device=trial.config.device)
    is_storybook = trial.corpus is not None and trial.corpus.storybook is not None
    figures = score_stories(
        stories, ended, corpora.text_files(trial.config.data)[0] if is_storybook else None
    )
    atomic.write_text(planned.run / "stories.txt", "".join(story + SEPARATOR for story in stories))
    outcome = {
        "status": "complete",
        "reason": "",
        "labels": trial.labels,
        "sampling": dataclasses.asdict(trial.sampling),
        "figures": figures,
        "plugins": plugin_digests({SAMPLER_KEY: trial.sampling.sampler}),
    }
    Run(planned.run).write_outcome(outcome)
    return outcome


# Several processes at once


def run_commands(
    commands: Mapping[str, Sequence[str]],
    num_jobs: int,
    logs: Path,
    on_exit: Callable[[str, int, str], None],
    *,
    gpus: Sequence[str] = (),
) -> int:
    """Run commands by name, at most `num_jobs` at a time; call `on_exit` with name, exit code and last line.

    All processes get the same number of threads, also the last ones, since on a CPU the number of threads
    affects rounding. With `gpus`, identifiers of CUDA devices, each process has one of them that the fewest
    active processes use. Their output goes to `logs`. If this process is interrupted, it terminates the
    others, which save their runs. Returns 0, or the exit code of a process that a signal stopped.
    """
    waiting, running = list(commands.items()), dict[str, subprocess.Popen[bytes]]()
    gpu_of: dict[str, str] = {}
    threads = max(1, usable_cores() // num_jobs)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    stopped = 0
    try:
        while waiting or running:
            while waiting and len(running) < num_jobs and not stopped:
                name, command = waiting.pop(0)
                if gpus:
                    busy = [gpu_of[other] for other in running]
                    gpu_of[name] = min(gpus, key=busy.count)
                    environment["CUDA_VISIBLE_DEVICES"] = gpu_of[name]
                with atomic.open_to_append(logs / f"{name}.log", within=logs.parent) as log:
                    log.truncate(0)
                    running[name] = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                    )
            for name, process in list(running.items()):
                code = process.poll()
                if code is not None:
                    del running[name]
                    on_exit(name, code, _last_line(logs / f"{name}.log"))
                    stopped = code if code in STOPPED else stopped
            if stopped:
                waiting.clear()
            time.sleep(POLL_SECONDS)
    except BaseException:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        raise
    return stopped


def list_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the identifiers of the CUDA devices of this process, or none if there is at most one.

    >>> list_gpus({"CUDA_VISIBLE_DEVICES": "4,7"})
    ['4', '7']
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        gpus = [str(number) for number in range(torch.cuda.device_count())]
    else:
        gpus = [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
    return gpus if len(gpus) > 1 else []


def _last_line(log: Path) -> str:
    lines = atomic.read_bytes(log).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
