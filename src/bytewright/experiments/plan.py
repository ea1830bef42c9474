"""Plan a sweep: the state of each run, its predicted time and memory, and whether it fits.

If a batch is not predicted to fit into the memory of the device, it is split into parts. A run of which not
even one window fits is rejected before any run starts. So is a run in the folder that was made with other
settings or other data. Planning neither starts nor writes anything. `find_identical_run` finds a run of a
sibling sweep that can be copied instead of trained again.
"""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bytewright.account.devices import Device, machine_of
from bytewright.corpus.file_formats import check_plain_text
from bytewright.errors import BytewrightError, UsageError
from bytewright.experiments import corpora
from bytewright.experiments.evaluation.stories import SamplingPlan
from bytewright.experiments.sweep import Sweep, Trial
from bytewright.formatting import PhaseProgress, format_names, format_size
from bytewright.plugins import plugin_digests
from bytewright.train.config import DataConfig, TrainConfig
from bytewright.train.recipe import flatten, to_plain
from bytewright.train.run import Run
from bytewright.train.run_files import describe_environment
from bytewright.train.session.costs import account_for_run, predict_run
from bytewright.train.session.timing import expected_seconds, measure_slowdown
from bytewright.train.setup import select_device

PlannedState = Literal["new", "resume", "running", "done", "diverged"]

OPEN = ("new", "resume")
"""The states of runs that remain to be executed."""
USABLE = 0.92
"""The share of a device's memory that a step may use by prediction; the rest is left to the allocator."""
MOST_TIMED = 6
"""How many different steps are timed for a plan at most, about a second each."""
FILES = ("train", "validation", "tokenizer")
SAMPLER_KEY = "sampler.name"
CODE_AND_MACHINE = ("bytewright", "commit", "torch", "platform", "num_cores", "cuda")
ON_A_CPU = ("processor", "num_threads")
NOT_COMPARED = ("accumulate", *(f"data.{name}" for name in FILES))
"""Settings that may differ in an existing run; `check_same_data` compares the data."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a plan."""

    trial: Trial
    run: Path
    state: PlannedState
    detail: str
    """The state in a few words."""
    predicted: dict[str, float]
    """The prediction by formula, which the record of the run keeps."""
    seconds: float | None = None
    """The expected time of the whole run with its evaluations; None if it cannot be predicted."""
    is_sampled: bool = False
    """Whether the trials of the sweep sample from this run, so that its model must be kept."""

    @property
    def is_open(self) -> bool:
        """Whether the run remains to be executed by this process."""
        return self.state in OPEN


def make_plan(
    sweep: Sweep,
    folder: Path,
    *,
    only: Sequence[str] = (),
    jobs: int = 1,
    progress: PhaseProgress = corpora.no_progress,
) -> list[PlannedRun]:
    """Return the state and the predictions of every run of a sweep, or of the runs in `only`.

    Each of `jobs` concurrent processes gets an equal share of the memory.
    """
    trials = _choose_trials(sweep, only)
    _hash_texts(trials, folder, progress)
    states = [find_state(trial, folder / trial.name) for trial in trials]
    if any(trial.sampling for trial in trials):
        jobs = 1  # sampling trials run one after the other
    elif not only:
        jobs = max(1, min(jobs, sum(state in OPEN for state, _ in states)))
    machines: dict[str, Device] = {}
    for name in {trial.config.device for trial in trials}:
        machine = machine_of(select_device(name))
        machines[name] = dataclasses.replace(machine, memory_bytes=machine.memory_bytes / jobs)
    plan = []
    for trial, (state, detail) in zip(trials, states, strict=True):
        machine = machines[trial.config.device]
        run = folder / trial.name
        if state in OPEN:
            trial = dataclasses.replace(trial, config=fit_to_memory(trial.config, machine, name=trial.name))
        predicted = {} if trial.sampling else predict_run(trial.config, machine)
        plan.append(PlannedRun(trial=trial, run=run, state=state, detail=detail, predicted=predicted))
    check_files_exist(planned.trial for planned in plan if planned.is_open)
    to_sample = [planned.trial for planned in plan if planned.trial.sampling and planned.is_open]
    if to_sample:
        plan = _plan_model(to_sample[0], folder, machines[to_sample[0].config.device]) + plan
    return plan


def with_times(plan: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the plan with the expected time of each run, for which a few steps of open runs are timed.

    After `MOST_TIMED` different steps, the others are assumed to have the largest slowdown so far.
    """
    slowdowns: dict[str, float] = {}
    timed = []
    for planned in plan:
        config, predicted, slowdown = planned.trial.config, planned.predicted, 1.0
        if planned.is_open and predicted:
            settings = config.model, config.batch_size, config.accumulate, config.precision, config.device
            step = repr(settings)
            if step not in slowdowns and len(slowdowns) < MOST_TIMED:
                slowdowns[step] = measure_slowdown(config, predicted, select_device(config.device))
            slowdown = slowdowns.get(step, max(slowdowns.values()))
        timed.append(dataclasses.replace(planned, seconds=expected_seconds(config, predicted, slowdown)))
    return timed


def _hash_texts(trials: Sequence[Trial], folder: Path, progress: PhaseProgress) -> None:
    """Hash the texts that existing runs are compared with; large ones take time."""
    compared = [trial for trial in trials if Run(folder / trial.model_name).exists]
    for corpus in (trial.corpus for trial in compared if trial.corpus is not None):
        if all(path.is_file() for path in _list_texts(corpus)):
            corpora.corpus_name(corpus, progress)


def check_files_exist(trials: Iterable[Trial]) -> None:
    """Raise `UsageError` if a file of a trial does not exist, before other trials are trained."""
    for trial in trials:
        texts, data = trial.corpus, trial.config.data
        files = (
            [data.train, data.validation, data.tokenizer] if texts is None else [texts.text, texts.validation]
        )
        for path in filter(None, files):
            if not path.exists():
                raise UsageError(f"{path} does not exist; the run {trial.name} needs it", path=path)
            if texts is not None:
                check_plain_text(path)


def _plan_model(sampled: Trial, folder: Path, machine: Device) -> list[PlannedRun]:
    """Return the run that trains the model of sampling trials, unless it is done."""
    trial, run = model_of(sampled), folder / sampled.model_name
    state, detail = find_state(trial, run)
    if state == "done":
        return []
    return [
        PlannedRun(
            trial=trial,
            run=run,
            state=state,
            detail=f"{detail}, all trials sample from it",
            predicted=predict_run(trial.config, machine),
            is_sampled=True,
        )
    ]


def model_of(trial: Trial) -> Trial:
    """Return the trial that trains the model of a sampling trial."""
    return dataclasses.replace(trial, name=trial.model_name, labels={}, sampling=None)


def _choose_trials(sweep: Sweep, only: Sequence[str]) -> list[Trial]:
    names = [trial.name for trial in sweep.trials]
    for name in only:
        if name not in names:
            message = f"{sweep.about.name} has no run {name!r}; it has {format_names(names, limit=8)}"
            raise UsageError(message, expected=names, found=name)
    return [trial for trial in sweep.trials if not only or trial.name in only]


def find_state(trial: Trial, run: Path) -> tuple[PlannedState, str]:
    """Return the state of a run, and a description.

    Raise `UsageError` if the folder holds a run, or sampled texts, of other settings.
    """
    outcome = Run(run).outcome
    trained = run.with_name(trial.model_name)
    if Run(trained).exists:
        check_same_settings(trial, trained)
    if trial.sampling is not None:
        if outcome:
            check_same_sampling(trial.sampling, outcome, run)
        return ("done", "done") if outcome.get("status") == "complete" else ("new", "new")
    # A run counts as done only after the sweep has recorded its outcome.
    status = Run(run).status if outcome and Run(run).exists else None
    if status is not None and status.state == "complete":
        return "done", "done"
    if Run(run).is_locked:
        return "running", "another process is writing it"
    if status is not None and status.state == "diverged":
        return "diverged", f"diverged: {status.detail}"
    if Run(run).exists:
        steps = Run(run).checkpoints.steps()
        lost = f"{status.detail}, " if status and outcome.get("status") == "complete" else ""
        return "resume", lost + (f"resumes at step {steps[-1]:,}" if steps else "restarts")
    return "new", "new"


# Existing runs must have the settings and the data of the sweep.


def _mismatch(run: Path, key: str, before: object, now: object) -> UsageError:
    message = (
        f"{run} was made with {key} = {before!r}, but the sweep has {now!r}; remove the old run, or use"
        " another folder"
    )
    return UsageError(message, path=run, key=key, expected=now, found=before)


def check_same_settings(trial: Trial, run: Path) -> None:
    """Raise `UsageError` if the run at `run` was started with other settings, or on other data."""
    config = Run(run).config
    check_same_data(trial, config.data, run)
    check_same_tokens(config.data if trial.corpus else trial.config.data, run)
    before, now = flatten(to_plain(config)), flatten(to_plain(trial.config))
    for key in now:
        if key not in NOT_COMPARED and before.get(key) != now[key]:
            raise _mismatch(run, key, before.get(key), now[key])


def check_same_data(trial: Trial, before: DataConfig, run: Path) -> None:
    """Raise `UsageError` if `before`, the data of the run at `run`, is not the data of `trial`.

    Folders are not compared, since the run may come from another machine.
    """
    if trial.corpus is not None:
        check_same_corpus(trial.corpus, Path(*before.train.parts[-3:-1]), run)
        return
    for name in FILES:
        file, now = getattr(before, name), getattr(trial.config.data, name)
        if file != now and (file is None or now is None or not _may_be_same(file, now)):
            raise _mismatch(run, f"data.{name}", str(file), str(now))


def check_same_corpus(corpus: corpora.CorpusConfig, found: Path, run: Path) -> None:
    """Raise `UsageError` if `found`, the token folder of the run at `run`, is not that of `corpus`.

    The hash in its name identifies the corpus. If the text does not exist any more, only the names are
    compared.
    """
    texts, size = _list_texts(corpus), f"bpe-{corpus.vocab_size}"
    has_same_name = found.match(f"{glob.escape(texts[0].stem)}-*/{size}") if texts else False
    if has_same_name and not all(path.is_file() for path in texts):
        return
    wanted = corpora.token_folder(corpus)
    if not found.match(f"*-{wanted.parts[0].rpartition('-')[2]}/{size}"):
        raise _mismatch(run, "corpus", str(found), str(wanted))


def check_same_tokens(data: DataConfig, run: Path) -> None:
    """Raise `UsageError` if tokens or a mask differ from those that the finished run at `run` recorded."""
    recorded = Run(run).outcome.get("data")
    before, now = recorded if isinstance(recorded, dict) else {}, corpora.token_digests(data)
    for name in ("train", "validation"):
        if name not in before or name not in now:  # of an earlier version, or the files were removed
            continue
        for key, what in ((name, "SHA-256"), (f"{name}_mask", "SHA-256 of the mask")):
            if before.get(key) != now.get(key):
                raise _mismatch(run, f"{what} of {getattr(data, name)}", before.get(key), now.get(key))


def check_same_sampling(plan: SamplingPlan, outcome: dict[str, Any], run: Path) -> None:
    """Raise `UsageError` if the texts at `run` were sampled with other settings."""
    before: dict[str, Any] = {"sampler": None, "sampler_options": {}}  # which earlier versions did not record
    before |= outcome.get("sampling", {})
    for name, value in dataclasses.asdict(plan).items():
        if before.get(name) != value:
            raise _mismatch(run, f"sampling.{name}", before.get(name), value)
    plugins = plugin_digests({SAMPLER_KEY: plan.sampler})
    if outcome.get("plugins", {}) != plugins:
        raise _mismatch(run, f"the plugin of the sampler {plan.sampler!r}", outcome.get("plugins"), plugins)


def _list_texts(corpus: corpora.CorpusConfig) -> list[Path]:
    return [path for path in (corpus.text, corpus.validation) if path is not None]


def _may_be_same(before: Path, now: Path) -> bool:
    """Return whether an absolute path of a run may be the file at `now`, if its folder was moved.

    >>> _may_be_same(Path("/old/data/train.npy"), Path("data/train.npy"))
    True
    >>> _may_be_same(Path("/old/data/train.npy"), Path("more/train.npy"))
    False
    """
    if now.is_absolute():
        return before.samefile(now) if before.exists() and now.exists() else before.name == now.name
    return before.parts[-len(now.parts) :] == now.parts


def with_data(trial: Trial, data: DataConfig | None) -> Trial:
    """Return a trial with the paths of its prepared corpus."""
    if data is None:
        return trial
    placed = dataclasses.replace(
        trial.config.data, train=data.train, validation=data.validation, tokenizer=data.tokenizer
    )
    return dataclasses.replace(trial, config=dataclasses.replace(trial.config, data=placed))


# Identical runs of sibling sweeps, such as a common baseline


def find_identical_run(config: TrainConfig, data: Mapping[str, str], folder: Path) -> Path | None:
    """Return a finished run of a sibling of the sweep in `folder` that `config` would reproduce, if any.

    Two runs are identical if their settings, tokens and plugins (by SHA-256), code (version and commit),
    machine and torch version are equal. On a CPU the number of threads must be equal, too, because it affects
    rounding. A run is not reused if one of these is unknown, if its log is incomplete, or if it was continued
    in another environment. No run is reused if the source tree differs from its commit. `data` holds the
    digests of the data (`corpora.token_digests`). `accumulate` may differ.
    """
    config = dataclasses.replace(config, data=config.data.absolute())
    wanted = flatten(to_plain(config)) | {"accumulate": None}
    plugins = plugin_digests(wanted)
    names = [*CODE_AND_MACHINE, *([] if select_device(config.device).type == "cuda" else ON_A_CPU)]
    here = _select_names(describe_environment(), names)
    if not data or here["commit"] is None or str(here["commit"]).endswith("-dirty"):
        return None
    for path in sorted(folder.parent.glob("*/*")):
        run = Run(path)
        try:
            outcome = run.outcome
            if outcome.get("status") in ("complete", "diverged") and outcome.get("data") == data:
                found = run.settings | {"accumulate": None}
                is_same = found == wanted and run.plugin_digests == plugins
                if is_same and _select_names(run.environment, names) == here and _is_complete(run):
                    return path
        except BytewrightError:  # a damaged run of another sweep cannot be reused
            continue
    return None


def _is_complete(run: Run) -> bool:
    """Return whether the log of a run is complete and was written in one environment."""
    moved = any(record.get("event") == "environment_changed" for record in run.records)
    return not moved and run.status.state in ("complete", "diverged")


def _select_names(environment: Mapping[str, object], names: list[str]) -> dict[str, object]:
    return {name: environment.get(name) for name in names}


# Memory


def fit_to_memory(config: TrainConfig, machine: Device, *, name: str) -> TrainConfig:
    """Increase `accumulate` until a step is predicted to fit into memory; raise `UsageError` if none does."""
    fitted: TrainConfig | None = config
    while fitted is not None:
        needed = account_for_run(fitted, machine)["peak_memory"] or 0.0
        if needed <= USABLE * machine.memory_bytes:
            return fitted
        fitted = in_more_parts(fitted)
    message = (
        f"{name} does not fit into memory: one window is predicted to need {format_size(needed)}, but"
        f" {format_size(machine.memory_bytes)} are available; use a smaller model or a shorter context"
    )
    raise UsageError(message, expected=machine.memory_bytes, found=needed)


def in_more_parts(config: TrainConfig) -> TrainConfig | None:
    """Return the config with the next larger `accumulate`; None if each part is already a single window.

    Parts are at most half as large as before, and divide the batch.
    """
    size = config.batch_size
    for parts in range(2 * config.accumulate, size + 1):
        if size % parts == 0:
            return dataclasses.replace(config, accumulate=parts)
    return None
