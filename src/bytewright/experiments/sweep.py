"""From a sweep file to its runs: one question, and every run that answers it, spelled out and checked.

Keys under `corpus.` and `sampling.` set the corpus and how text is sampled, all others the recipe. Every run
is built before the first one starts, so a mistake in the last one is told at once. `sweep_file` says how a
file is written; `execute` carries the runs out.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from bytewright.errors import UsageError, suggest
from bytewright.experiments.corpora import CorpusConfig
from bytewright.experiments.groups import format_setting, short_names
from bytewright.experiments.results import MODEL, RESULTS, SWEEP, SweepInfo
from bytewright.experiments.stories import SamplingPlan
from bytewright.experiments.sweep_file import (
    MAX_TRIALS,
    BaseRecipeError,
    Keep,
    Labels,
    SweepFile,
    read_sweep_file,
)
from bytewright.storage.config_reader import build
from bytewright.train.config import TrainConfig
from bytewright.train.recipe import flatten, put, to_plain
from bytewright.train.run import OUTCOME

PLACEHOLDER = {"train": "made", "validation": "made", "tokenizer": "made"}
"""The data of a config whose corpus is made first."""
TAKEN = (
    *("report.html", "report.md", "report-figures", RESULTS, SWEEP, "logs"),
    *("config.json", "environment.json", "metrics.jsonl", OUTCOME),
    *("tokenizer", "checkpoints", "samples", "tensorboard"),
)
"""What lies beside the runs of a sweep, and what a folder is known by as a run: no run can be called so."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a sweep. Without a corpus the config's data is the recipe's; with one it is made first."""

    name: str
    labels: Labels
    config: TrainConfig
    corpus: CorpusConfig | None = None
    sampling: SamplingPlan | None = None
    """Set in sweeps that sample: then the trial is text from the model that `config` trains."""

    @property
    def model_name(self) -> str:
        """The folder of the run that is trained: the trial's own, or one that sampling trials share."""
        return self.name if self.sampling is None else MODEL


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A question and its runs."""

    about: SweepInfo
    trials: Sequence[Trial]
    keep: Keep = "metrics"


def read_sweep(path: Path, *, scale: str | None = None, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file and build all its runs; an override, `"optimizer.lr=3e-4"`, goes into its `[set]`."""
    try:
        return _Expansion(read_sweep_file(path, scale=scale, overrides=overrides)).sweep()
    except BaseRecipeError:
        raise
    except UsageError as error:
        sentence = str(error)
        raise UsageError(sentence if sentence.startswith(f"{path}: ") else f"{path}: {sentence}") from None


class _Expansion:
    """A sweep file on its way to runs."""

    def __init__(self, file: SweepFile) -> None:
        self.file = file
        self.has_corpus = any(key.startswith("corpus.") for key in file.keys)
        self.samples = any(key.startswith("sampling.") for key in file.keys)
        self.varied = [key for part in file.axes for key in part.labels]
        _refuse_half_names(file.keys)
        if self.has_corpus:
            _refuse_what_the_corpus_decides(file.keys)
        self.centre = self._find_centre() if file.design == "star" else {}

    def sweep(self) -> Sweep:
        """Expand variants, axes and seeds, and build every trial."""
        file = self.file
        self._refuse_too_many()
        settings = self._star() if file.design == "star" else self._grid()
        about = SweepInfo(
            name=(file.words["title"] or file.path.stem) + (f" ({file.scale})" if file.scale else ""),
            question=file.words["question"],
            expectation=file.words["expectation"],
            notes=file.words["notes"],
            axes=self.varied + (["variant"] if file.variants else []),
            design=file.design,
            baseline=self.centre or file.baseline,
        )
        seeds: Sequence[int | None] = file.seeds or [None]
        trials = [self._trial(labels, values, seed) for labels, values in settings for seed in seeds]
        self._check(trials, about)
        return Sweep(about=about, trials=trials, keep=file.keep)

    def _grid(self) -> list[tuple[Labels, Labels]]:
        """Take all combinations: (labels, values to set)."""
        combined: list[tuple[Labels, Labels]] = [({}, {})]
        if self.file.variants:
            combined = [({"variant": name}, values) for name, values in self.file.variants.items()]
        for part in self.file.axes:
            combined = [
                (labels | more_labels, values | more)
                for labels, values in combined
                for more_labels, more in part.settings()
            ]
        return combined

    def _star(self) -> list[tuple[Labels, Labels]]:
        """Take the centre, and from it each axis alone: (labels, values to set)."""
        if self.file.variants:
            raise UsageError("a star has axes only; write its variants in a grid")
        points: list[tuple[Labels, Labels]] = [(self.centre, {})]
        for part in self.file.axes:
            for labels, values in part.settings():
                if self.centre | labels != self.centre:
                    points.append((self.centre | labels, values))
        return points

    def _find_centre(self) -> Labels:
        """Find where a star's axes cross: at the values of the recipe, as it is set."""
        config, corpus, sampling = self._build({})
        values = flatten(to_plain(config))
        for table, of_table in (("corpus", corpus), ("sampling", sampling)):
            if of_table is not None:
                values |= {f"{table}.{key}": value for key, value in dataclasses.asdict(of_table).items()}
        for key in self.varied:
            if key not in values:
                raise UsageError(f"the axis {key} is no value of the recipe{suggest(key, values)}")
        centre = {key: values[key] for key in self.varied}
        if self.file.baseline and self.file.baseline != centre:
            told = ", ".join(f"{key} = {value!r}" for key, value in centre.items())
            raise UsageError(f"the baseline of a star is the recipe as it is set, {told}; leave it out")
        return centre

    def _trial(self, labels: Labels, values: Labels, seed: int | None) -> Trial:
        of_seed = {} if seed is None else {"seed": seed}
        config, corpus, sampling = self._build(values | of_seed)
        telling = labels
        if self.centre:
            telling = {key: value for key, value in labels.items() if self.centre[key] != value}
            telling = telling or {"variant": "baseline"}
        return Trial(
            name=_name(telling | of_seed, self.varied),
            labels=labels | of_seed,
            config=config,
            corpus=corpus,
            sampling=sampling,
        )

    def _build(self, values: Labels) -> tuple[TrainConfig, CorpusConfig | None, SamplingPlan | None]:
        """Build one trial's config, corpus and sampling from the base and all values set on it."""
        values = self.file.fixed | values
        fields, of_corpus, of_sampling = _copy(self.file.base), Labels(), Labels()
        if any(key.startswith("budget.") for key in values):
            fields["budget"] = {}  # a limit that is set replaces the recipe's, of whatever kind
        for key, value in values.items():
            table, _, rest = key.partition(".")
            if table == "corpus":
                of_corpus[rest] = value
            elif table == "sampling":
                of_sampling[rest] = value
            else:
                put(fields, key, value)
        source = str(self.file.path)
        corpus = sampling = None
        if self.has_corpus:
            corpus = build(CorpusConfig, of_corpus, source=source, path="corpus.")
            _put_corpus(fields, corpus)
        if self.samples:
            sampling = build(SamplingPlan, of_sampling, source=source, path="sampling.")
        try:
            config = build(TrainConfig, fields, source=source)
        except UsageError as error:
            self._blame_base(str(error).removeprefix(source), corpus)
            raise
        return config, corpus, sampling

    def _blame_base(self, complaint: str, corpus: CorpusConfig | None) -> None:
        """Raise if the base recipe alone gives reason for the same complaint, whatever is set on it."""
        fields, source = _copy(self.file.base), str(self.file.base_path)
        if corpus is not None:
            _put_corpus(fields, corpus)
        try:
            build(TrainConfig, fields, source=source)
        except UsageError as error:
            if str(error) == source + complaint:
                raise BaseRecipeError(str(error)) from None

    def _refuse_too_many(self) -> None:
        """Count the runs before any is made: a million of them would take minutes and gigabytes."""
        if self.file.design == "star":
            num_settings = len(self._star())  # a sum: never many
        else:
            num_settings = math.prod(len(part.rows) for part in self.file.axes)
            num_settings *= max(1, len(self.file.variants))
        num_trials = num_settings * len(self.file.seeds or [None])
        if num_trials > MAX_TRIALS:
            raise UsageError(f"makes {num_trials:,} runs; at most {MAX_TRIALS:,} are believed to be meant")

    def _check(self, trials: Sequence[Trial], about: SweepInfo) -> None:
        names = [trial.name for trial in trials]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"makes two runs that are both called {name!r}")
            if name.lower() in TAKEN or (self.samples and name.lower() == MODEL):
                raise UsageError(f"makes a run called {name!r}, a name that its folder has another use for")
        if self.samples and len({repr(to_plain(trial.config)) for trial in trials}) > 1:
            raise UsageError("varies sampling and training at once; sample from one model at a time")
        unseeded = [{k: v for k, v in trial.labels.items() if k != "seed"} for trial in trials]
        if about.baseline and about.baseline not in unseeded:
            wanted = ", ".join(str(value) for value in about.baseline.values())
            raise UsageError(f"has a baseline that is none of its runs: {wanted}")


def _put_corpus(fields: dict[str, Any], corpus: CorpusConfig) -> None:
    """Set what a corpus decides: where the data is, once it is made, and the vocabulary."""
    for key, value in PLACEHOLDER.items():
        put(fields, f"data.{key}", value)
    put(fields, "model.vocab_size", corpus.vocab_size)


def _refuse_half_names(keys: Iterable[str]) -> None:
    """Raise if a key is the end of one that there is, such as `lr`."""
    known = [
        *_list_keys(TrainConfig),
        *_list_keys(CorpusConfig, "corpus."),
        *_list_keys(SamplingPlan, "sampling."),
    ]
    for key in sorted(set(keys) - set(known)):
        if meant := [name for name in known if name.endswith(f".{key}")]:
            raise UsageError(f"unknown key {key}; did you mean {' or '.join(meant)}?")


def _list_keys(cls: type, prefix: str = "") -> list[str]:
    keys = []
    for name, kind in get_type_hints(cls).items():
        inner = dataclasses.is_dataclass(kind)
        keys += _list_keys(kind, f"{prefix}{name}.") if inner else [prefix + name]
    return keys


def _refuse_what_the_corpus_decides(keys: Iterable[str]) -> None:
    """Raise if a key is set that the corpus sets anyway: it would be without effect."""
    decided = {f"data.{key}": "the corpus is the data" for key in PLACEHOLDER}
    decided["model.vocab_size"] = "the corpus decides it; set corpus.vocab_size instead"
    for key in decided.keys() & keys:
        raise UsageError(f"sets {key} beside a corpus, but {decided[key]}")


def _copy(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in fields.items()}


def _name(labels: Labels, varied: Sequence[str]) -> str:
    """Name a run's folder by what is particular to it.

    >>> _name({"variant": "no norm", "optimizer.lr": 0.001, "seed": 2}, ["optimizer.lr"])
    'no-norm_lr-1e-3_seed-2'
    """
    names = short_names([*varied, "seed"])
    parts = []
    for key, value in labels.items():
        words = format_setting(value).replace(",", "")
        parts.append(words if key == "variant" else f"{names.get(key, key)}-{words}")
    return "_".join(re.sub(r"[^A-Za-z0-9.+-]+", "-", part).strip("-.") for part in parts) or "run"
