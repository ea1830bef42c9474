"""Carrying out a sweep: one run after the other, each brought to its end, whatever happens to some of them.

A run that is done is passed over, here or in a sweep beside this one; one that was cut off goes on from its
checkpoint, one that diverges is marked with the reason, and one that does not fit the memory is begun again
in more parts. Each run's `outcome.json` is written last and makes it done; so a sweep that is killed at any
moment and started again ends with the same numbers. Runs share one process and, where they can, one compiled
step, since for short ones on a GPU these take longest; `jobs` runs several at once in processes of their own.
Knows nothing of reports.
"""

from __future__ import annotations

import dataclasses
import gc
import signal
from collections.abc import Callable, Sequence
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
from bytewright.experiments.corpora import (
    CorpusConfig,
    PhaseProgress,
    corpus_name,
    no_progress,
    prepare_corpus,
    token_digests,
)
from bytewright.experiments.plan import (
    Planned,
    find_state,
    in_more_parts,
    model_of,
    refuse_other_settings,
    with_data,
)
from bytewright.experiments.records import read_run
from bytewright.experiments.results import SWEEP
from bytewright.experiments.reuse import find_twin, take_over
from bytewright.experiments.stories import generate_stories, score_stories
from bytewright.experiments.sweep import Sweep, Trial
from bytewright.experiments.sweep_file import Keep
from bytewright.storage import atomic
from bytewright.train import resume, train
from bytewright.train.config import DataConfig, TrainConfig
from bytewright.train.engine import CompiledStepCache
from bytewright.train.loop import Sampler, SessionOptions, TrainResult
from bytewright.train.run import Run


@dataclass(frozen=True, kw_only=True)
class SweepContext:
    """What runs are carried out with: where they and their data go, and how they speak."""

    folder: Path
    data_root: Path
    keep: Keep
    say: Callable[[str], None]
    report: PhaseProgress
    console: Console
    engines: CompiledStepCache = field(default_factory=CompiledStepCache)
    """What was compiled for the last run, in case that it serves the next."""
    make_sampler: Callable[[TrainConfig], Sampler] | None = None
    """Makes what writes the samples of a run, in place of the sampler of text."""


class Stopped(Exception):  # noqa: N818  # not an error: the user's wish
    """A signal asked to stop; everything is saved."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(received)
        self.received = received


def write_plan(sweep: Sweep, folder: Path) -> None:
    """Keep what the sweep was made for and what its runs are called, for whoever reads the folder."""
    atomic.check_no_links(folder, within=folder.parent)
    runs = [{"name": trial.name, "labels": trial.labels} for trial in sweep.trials]
    atomic.write_document(folder / SWEEP, {"about": dataclasses.asdict(sweep.about), "runs": runs})


def prepare_data(trials: Sequence[Trial], bench: SweepContext) -> dict[str, DataConfig]:
    """Make the corpora of all trials; by name of corpus and size of vocabulary."""
    made: dict[str, DataConfig] = {}
    for trial in trials:
        if trial.corpus is not None and _key(trial.corpus, bench.report) not in made:
            made[_key(trial.corpus)] = prepare_corpus(trial.corpus, bench.data_root, bench.report)
    return made


def data_of(trial: Trial, made: dict[str, DataConfig]) -> DataConfig | None:
    """Find the data that was made for a trial."""
    return None if trial.corpus is None else made[_key(trial.corpus)]


def _key(corpus: CorpusConfig, report: PhaseProgress = no_progress) -> str:
    return f"{corpus_name(corpus, report)}/{corpus.vocab_size}"


def carry_out_all(plan: Sequence[Planned], made: dict[str, DataConfig], bench: SweepContext) -> None:
    """Carry out all that is open of a plan, one run after the other."""
    for number, planned in enumerate(plan, start=1):
        place = f"[{number}/{len(plan)}] {planned.trial.name}"
        atomic.check_no_links(planned.run, within=bench.folder.parent)
        state, detail = find_state(planned.trial, planned.run)
        if state != planned.state:  # another process has come to it since the plan was made
            planned = dataclasses.replace(planned, state=state, detail=detail)
        if state == "running":
            bench.say(f"{place}: {planned.detail}; passed over")
            continue
        if not planned.is_open:
            _thin_out(planned.run, _keep(planned, bench))  # a process killed before it has not come to it
            continue
        bench.say(f"{place}: {planned.detail}")
        outcome = carry_out(planned, data_of(planned.trial, made), bench)
        bench.say(f"{place}: {describe(outcome, planned.run)}")


def describe(outcome: dict[str, Any], run: Path) -> str:
    """Word how a run ended, on one line."""
    if outcome["status"] != "complete":
        return f"{outcome['status']}: {outcome['reason']}"
    if "figures" in outcome:
        figures = outcome["figures"]
        return ", ".join(f"{name} {figures[name]:.3g}" for name in ("consistent", "ended") if name in figures)
    record = read_run(run)
    loss = "" if record.loss is None else f"loss {record.loss:.4f}, "
    return f"{loss}{record.num_steps:,} steps in {record.measured.get('seconds', 0):.1f} s"


def carry_out(planned: Planned, data: DataConfig | None, bench: SweepContext) -> dict[str, Any]:
    """Bring one run to its end, and return its outcome; raise `Stopped` if a signal came before."""
    trial = with_data(planned.trial, data)
    if trial.sampling is not None:
        return _sample(trial, planned, bench)
    of_run = dataclasses.replace(bench, keep=_keep(planned, bench))
    outcome = _train(trial, planned.run, planned.predicted, of_run)
    if planned.is_sampled:
        if outcome["status"] != "complete":
            raise UsageError(
                f"{planned.run}: there is nothing to sample from, for it {outcome['status']}:"
                f" {outcome['reason']}"
            )
        bench.engines.forget()  # writing wants the memory
    return outcome


def _keep(planned: Planned, bench: SweepContext) -> Keep:
    return "model" if planned.is_sampled else bench.keep


def _train(trial: Trial, run: Path, predicted: dict[str, float], bench: SweepContext) -> dict[str, Any]:
    is_begun = Run(run).exists
    if is_begun:
        refuse_other_settings(trial, run)
    data = token_digests(Run(run).config.data if is_begun else trial.config.data)
    may_copy = bench.keep == "metrics" and not run.exists()
    try:
        if may_copy and (twin := find_twin(trial.config, data, bench.folder)):
            bench.say(f"{run.name}: is the same run as {twin}")
            return take_over(twin, run, trial.config, trial.labels)
        # A process that was killed may have trained it to its end without writing the outcome.
        if not (is_begun and Run(run).is_finished_without_checkpoint):
            result = _train_in_parts(trial.config, run, bench)
            if result.received:
                raise Stopped(result.received)
        record = read_run(run)
        # No signal came, so it is at its end, whatever an earlier session came to; did it get there sound?
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
    # If another process trains the run now, that process records its outcome.
    if Run(run).exists and not Run(run).is_locked:
        Run(run).write_outcome(outcome)
        if status != "failed":
            _thin_out(run, bench.keep)
    return outcome


def _train_in_parts(config: TrainConfig, run: Path, bench: SweepContext) -> TrainResult:
    """Train, and as long as that needs more memory than there is, do so in smaller parts."""
    while True:
        _free()  # not when a run ends: the error of one that failed still holds all that it had
        try:
            return _start_or_resume(config, run, bench)
        except _NoMemory as error:
            reason = str(error)
            bench.engines.forget()
        if Run(run).exists:  # an earlier session may have used smaller parts than planned
            config = dataclasses.replace(config, accumulate=Run(run).config.accumulate)
        smaller = in_more_parts(config)
        if smaller is None:
            raise UsageError("one window at a time needs more memory than there is")
        how = f"with accumulate = {smaller.accumulate}"
        if Run(run).checkpoints.steps():  # the steps so far differ from others by rounding
            bench.say(f"{run.name}: does not fit any more ({reason}); goes on {how}")
            Run(run).change_setting("accumulate", smaller.accumulate)
        else:
            bench.say(f"{run.name}: does not fit ({reason}); begins again {how}")
            if run.exists():
                atomic.remove_folder(run)
        config = smaller


class _NoMemory(Exception):  # noqa: N818  # caught at once
    """The memory was not enough, in the words of whoever noticed."""


def _start_or_resume(config: TrainConfig, run: Path, bench: SweepContext) -> TrainResult:
    options: SessionOptions = {
        "console": bench.console,
        "engines": bench.engines,
        "final_checkpoint": bench.keep != "metrics",
    }
    if bench.make_sampler is not None:
        options["sample"] = bench.make_sampler(config)
    try:
        return resume(run, **options) if Run(run).exists else train(config, run, **options)
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise _NoMemory(first_line(error)) from None
        raise


def _free() -> None:
    """Give back what the last run leaves behind: it must not count against the next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _thin_out(run: Path, keep: Keep) -> None:
    """Remove the checkpoints that a finished run of a sweep does not need."""
    checkpoints = Run(run).checkpoints
    if keep == "metrics" and checkpoints.path.is_dir():
        atomic.remove_folder(checkpoints.path)
    elif keep == "model":
        checkpoints.prune(1, None)


def _sample(trial: Trial, planned: Planned, bench: SweepContext) -> dict[str, Any]:
    """Let the model that all sampling trials share write, if it is one to sample from."""
    assert trial.sampling is not None
    model = bench.folder / trial.model_name
    state, detail = find_state(model_of(trial), model)
    if state != "done":
        raise UsageError(f"{model}: there is nothing to sample from ({detail})")
    stories, ended = generate_stories(model, trial.sampling, device=trial.config.device)
    is_storybook = trial.corpus is not None and trial.corpus.storybook is not None
    training_text = trial.config.data.train.parents[1] / "train.txt" if is_storybook else None
    figures = score_stories(stories, ended, training_text)
    atomic.write_text(planned.run / "stories.txt", "".join(story + SEPARATOR for story in stories))
    outcome = {
        "status": "complete",
        "reason": "",
        "labels": trial.labels,
        "sampling": dataclasses.asdict(trial.sampling),
        "figures": figures,
    }
    Run(planned.run).write_outcome(outcome)
    return outcome
