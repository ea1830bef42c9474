"""What a sweep will take, told before it starts: which runs are left, how long they need, if they fit.

Time and memory are the accountant's. A batch that is not predicted to fit the device's memory is worked
through in parts from the start; a run of which not even one window fits is refused before anything is
started. Starts nothing and writes nothing.
"""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bytewright.account.devices import Device
from bytewright.corpus.readers import check_plain_text
from bytewright.errors import UsageError
from bytewright.experiments.corpora import (
    CorpusConfig,
    PhaseProgress,
    corpus_name,
    no_progress,
    token_digests,
    token_folder,
)
from bytewright.experiments.predict import account, machine_of, predict
from bytewright.experiments.stories import SamplingPlan
from bytewright.experiments.sweep import Sweep, Trial
from bytewright.formatting import format_size
from bytewright.train.config import DataConfig, TrainConfig
from bytewright.train.recipe import flatten, to_plain
from bytewright.train.run import Run
from bytewright.train.setup import find_device

State = Literal["new", "resume", "running", "done", "diverged"]

OPEN = ("new", "resume")
"""The states in which there is something left to do."""
USABLE = 0.92
"""The share of a device's memory that a step may be predicted to take; the rest is the allocator's."""
FILES = ("train", "validation", "tokenizer")
NOT_COMPARED = ("accumulate", *(f"data.{name}" for name in FILES))
"""What may differ in a run that is the same: its parts, and where its data lies (`refuse_other_data`)."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One run of a plan."""

    trial: Trial
    run: Path
    state: State
    detail: str
    """Where it stands, in a few words."""
    predicted: dict[str, float]
    is_sampled: bool = False
    """Whether the trials of the sweep sample from it, so that its model has to be kept."""

    @property
    def is_open(self) -> bool:
        """Whether there is something left to do here; not if another process is at it."""
        return self.state in OPEN


def make_plan(
    sweep: Sweep,
    folder: Path,
    *,
    only: Sequence[str] = (),
    jobs: int = 1,
    report: PhaseProgress = no_progress,
) -> list[Planned]:
    """Look at every run of a sweep: what it will take, and what of it is done.

    Of so many `jobs` that go on at once, each has its share of the memory; the runs that are named by `only`
    may be some of them.
    """
    trials = _chosen(sweep, only)
    _read_texts(trials, folder, report)
    states = [find_state(trial, folder / trial.name) for trial in trials]
    if any(trial.sampling for trial in trials):
        jobs = 1  # they wait for each other
    elif not only:
        jobs = max(1, min(jobs, sum(state in OPEN for state, _ in states)))
    devices = {trial.config.device for trial in trials}
    machines = {name: _share_of(machine_of(find_device(name)), jobs) for name in devices}
    plan = []
    for trial, (state, detail) in zip(trials, states, strict=True):
        machine = machines[trial.config.device]
        run = folder / trial.name
        if state in OPEN:
            trial = dataclasses.replace(trial, config=fit_to_memory(trial.config, machine, name=trial.name))
        predicted = {} if trial.sampling else predict(trial.config, machine)
        plan.append(Planned(trial=trial, run=run, state=state, detail=detail, predicted=predicted))
    refuse_missing_files(planned.trial for planned in plan if planned.is_open)
    to_sample = [planned.trial for planned in plan if planned.trial.sampling and planned.is_open]
    if to_sample:
        plan = _plan_model(to_sample[0], folder, machines[to_sample[0].config.device]) + plan
    return plan


def _read_texts(trials: Sequence[Trial], folder: Path, report: PhaseProgress) -> None:
    """Find out what texts are like now, of which there are runs to compare with; long ones take a while."""
    compared = [trial for trial in trials if Run(folder / trial.model_name).exists]
    for corpus in (trial.corpus for trial in compared if trial.corpus is not None):
        if all(path.is_file() for path in _texts(corpus)):
            corpus_name(corpus, report)


def refuse_missing_files(trials: Iterable[Trial]) -> None:
    """Find out that a file is not there before hours of work are spent on the others."""
    for trial in trials:
        texts, data = trial.corpus, trial.config.data
        files = (
            [data.train, data.validation, data.tokenizer] if texts is None else [texts.text, texts.validation]
        )
        for path in filter(None, files):
            if not path.exists():
                raise UsageError(f"{path} does not exist, but {trial.name} is to learn from it")
            if texts is not None:
                check_plain_text(path)


def _share_of(machine: Device, jobs: int) -> Device:
    return dataclasses.replace(machine, memory_bytes=machine.memory_bytes / jobs)


def _plan_model(sampled: Trial, folder: Path, machine: Device) -> list[Planned]:
    """Plan the training of the model that trials sample from, unless it is done."""
    trial, run = model_of(sampled), folder / sampled.model_name
    state, detail = find_state(trial, run)
    if state == "done":
        return []
    predicted = predict(trial.config, machine)
    detail += ", all sample from it"
    return [Planned(trial=trial, run=run, state=state, detail=detail, predicted=predicted, is_sampled=True)]


def model_of(trial: Trial) -> Trial:
    """Give the run that trains the model of a trial that samples."""
    return dataclasses.replace(trial, name=trial.model_name, labels={}, sampling=None)


def _chosen(sweep: Sweep, only: Sequence[str]) -> list[Trial]:
    names = [trial.name for trial in sweep.trials]
    for name in only:
        if name not in names:
            raise UsageError(
                f"{sweep.about.name} has no run {name!r}; it has {', '.join(names[:8])}"
                + " …" * (len(names) > 8)
            )
    return [trial for trial in sweep.trials if not only or trial.name in only]


def find_state(trial: Trial, run: Path) -> tuple[State, str]:
    """Say how far a run is; one in the same folder that was made with other settings is refused.

    So are texts that were sampled from a model that was.
    """
    outcome = Run(run).outcome
    trained = run.with_name(trial.model_name)
    if Run(trained).exists:
        refuse_other_settings(trial, trained)
    if trial.sampling is not None and outcome:
        refuse_other_sampling(trial.sampling, outcome, run)
    if trial.sampling is not None:
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
        return "resume", lost + (f"goes on from step {steps[-1]:,}" if steps else "begins again")
    return "new", "new"


def refuse_other_settings(trial: Trial, run: Path) -> None:
    """Raise if the run at `run` was started with settings, or on data, other than those of `trial`."""
    config = Run(run).config
    refuse_other_data(trial, config.data, run)
    refuse_other_tokens(config.data if trial.corpus else trial.config.data, run)
    before, now = flatten(to_plain(config)), flatten(to_plain(trial.config))
    for name in now:
        if name not in NOT_COMPARED and before.get(name) != now[name]:
            raise UsageError(
                f"{run} was made with {name} = {before.get(name)!r}, but the sweep now says {now[name]!r};"
                " choose another --out, or remove the old run"
            )


def refuse_other_data(trial: Trial, before: DataConfig, run: Path) -> None:
    """Raise if `before`, the data of the run at `run`, is not what `trial` is trained on.

    Where their data lies now is not asked: runs of another machine are no others.
    """
    if trial.corpus is not None:
        refuse_other_corpus(trial.corpus, Path(*before.train.parts[-3:-1]), run)
        return
    for name in FILES:
        file, now = getattr(before, name), getattr(trial.config.data, name)
        if file != now and (file is None or now is None or not _may_be_same(file, now)):
            raise UsageError(
                f"{run} was made with data.{name} = {str(file)!r}, but the sweep now says {str(now)!r};"
                " choose another --out, or remove the old run"
            )


def refuse_other_corpus(corpus: CorpusConfig, found: Path, run: Path) -> None:
    """Raise if `found`, the place of the corpus that the run at `run` was made with, is not that of `corpus`.

    The hash in a name tells what a corpus was made of, wherever it lies; a text that is not here any more
    cannot be compared, but for what it is called.
    """
    texts, size = _texts(corpus), f"bpe-{corpus.vocab_size}"
    called_so = found.match(f"{glob.escape(texts[0].stem)}-*/{size}") if texts else False
    if called_so and not all(path.is_file() for path in texts):
        return
    wanted = token_folder(corpus)
    name = wanted.parts[0]
    if found.match(f"*-{name.rpartition('-')[2]}/{size}"):
        return
    sentence = f"{run} was made with the corpus {found}, but the sweep now says {wanted}"
    if called_so:
        files = " with ".join(map(str, texts))
        sentence = (
            f"{run} was made with the corpus {found.parts[0]}, but {files} is {name} now: the text has"
            " changed since, or an earlier version made the run"
        )
    raise UsageError(f"{sentence}; choose another --out, or remove the old run")


def refuse_other_tokens(data: DataConfig, run: Path) -> None:
    """Raise if `data` is known not to hold the tokens that the run at `run`, which has ended, was made of."""
    recorded = Run(run).outcome.get("data")
    before = recorded if isinstance(recorded, dict) else {}
    for name, digest in token_digests(data).items():
        if before.get(name, digest) != digest:
            raise UsageError(
                f"{run} was made with other tokens in {getattr(data, name)}: their SHA-256 was"
                f" {str(before[name])[:12]}…, but is now {digest[:12]}…;"
                " choose another --out, or remove the old run"
            )


def _texts(corpus: CorpusConfig) -> list[Path]:
    return [path for path in (corpus.text, corpus.validation) if path is not None]


def _may_be_same(before: Path, now: Path) -> bool:
    """Say whether a file may be the one that a run knows by an absolute path, of a tree that was moved since.

    >>> _may_be_same(Path("/old/data/train.npy"), Path("data/train.npy"))
    True
    >>> _may_be_same(Path("/old/data/train.npy"), Path("more/train.npy"))
    False
    """
    if now.is_absolute():
        return before.samefile(now) if before.exists() and now.exists() else before.name == now.name
    return before.parts[-len(now.parts) :] == now.parts


def refuse_other_sampling(plan: SamplingPlan, outcome: dict[str, Any], run: Path) -> None:
    """Raise if the texts at `run` were sampled in another way."""
    before = outcome.get("sampling", {})
    for name, value in dataclasses.asdict(plan).items():
        if before.get(name) != value:
            raise UsageError(
                f"{run} was sampled with {name} = {before.get(name)!r}, but the sweep now says {value!r};"
                " choose another --out, or remove the old one"
            )


def with_data(trial: Trial, data: DataConfig | None) -> Trial:
    """Give a trial the data that was made for it."""
    if data is None:
        return trial
    placed = dataclasses.replace(
        trial.config.data, train=data.train, validation=data.validation, tokenizer=data.tokenizer
    )
    return dataclasses.replace(trial, config=dataclasses.replace(trial.config, data=placed))


# Memory


def fit_to_memory(config: TrainConfig, machine: Device, *, name: str) -> TrainConfig:
    """Raise `accumulate` until a step is predicted to fit; refuse what never will."""
    fitted: TrainConfig | None = config
    while fitted is not None:
        needed = account(fitted, machine)["peak_memory"] or 0.0
        if needed <= USABLE * machine.memory_bytes:
            return fitted
        fitted = in_more_parts(fitted)
    raise UsageError(
        f"{name} cannot fit: even one window at a time is predicted to need {format_size(needed)},"
        f" but there are {format_size(machine.memory_bytes)} for it"
    )


def in_more_parts(config: TrainConfig) -> TrainConfig | None:
    """Work through the batch in the next larger number of parts; None if it is in single windows already.

    The part is at most half as large as before, and divides the batch.
    """
    size = config.batch_size
    for parts in range(2 * config.accumulate, size + 1):
        if size % parts == 0:
            return dataclasses.replace(config, accumulate=parts)
    return dataclasses.replace(config, accumulate=size) if config.accumulate < size else None
