"""Expand a sweep file into trials, one per run, and check them all before the first one starts.

Keys under `corpus.` and `sampling.` set the corpus and the sampling, all others the recipe. `sweep_file`
documents the format; `execute` runs the trials.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bytewright.errors import UsageError, suggest
from bytewright.experiments.corpora import CorpusConfig
from bytewright.experiments.evaluation.stories import SamplingPlan
from bytewright.experiments.groups import format_setting, short_names
from bytewright.experiments.results import MODEL, RESULTS, SWEEP, SweepInfo
from bytewright.experiments.sweep_file import (
    MAX_TRIALS,
    BaseRecipeError,
    Keep,
    Labels,
    SweepFile,
    read_sweep_file,
)
from bytewright.storage.config_reader import build, list_keys
from bytewright.train.config import TrainConfig
from bytewright.train.recipe import flatten, put, to_plain, unflatten
from bytewright.train.run import Run

PLACEHOLDER = {"train": "made", "validation": "made", "tokenizer": "made"}
"""The data of a config until its corpus is prepared."""
TAKEN = (*("report.html", "report.md", "report-figures", RESULTS, SWEEP, "logs"), *Run.FILE_NAMES)
"""Names that a sweep or a run uses for its files; no run may have them."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a sweep. With a corpus, the config's data is a placeholder until the corpus is prepared."""

    name: str
    labels: Labels
    config: TrainConfig
    corpus: CorpusConfig | None = None
    sampling: SamplingPlan | None = None
    """Set in sweeps that sample: the trial then samples text from the model that `config` trains."""

    @property
    def model_name(self) -> str:
        """The folder of the trained run: the trial's own, or the one that all sampling trials share."""
        return self.name if self.sampling is None else MODEL


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep: its description and its trials."""

    about: SweepInfo
    trials: Sequence[Trial]
    keep: Keep = "metrics"


def read_sweep(path: Path, *, scale: str | None = None, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file and build its trials; an override, `"optimizer.lr=3e-4"`, is added to its `[set]`."""
    try:
        return _Expansion(read_sweep_file(path, scale=scale, overrides=overrides)).sweep()
    except BaseRecipeError:
        raise
    except UsageError as error:
        message = str(error).removeprefix(f"{path}: ")
        raise UsageError(
            f"{path}: {message}", path=path, key=error.key, expected=error.expected, found=error.found
        ) from None


class _Expansion:
    """The expansion of a sweep file into trials."""

    def __init__(self, file: SweepFile) -> None:
        self.file = file
        self.has_corpus = any(key.startswith("corpus.") for key in file.keys)
        self.samples = any(key.startswith("sampling.") for key in file.keys)
        self.varied = [key for group in file.axes for key in group.labels]
        _check_full_names(file.keys)
        if self.has_corpus:
            _check_corpus_keys(file.keys)
        self.centre = self._find_centre() if file.design == "star" else {}

    def sweep(self) -> Sweep:
        """Expand variants, axes and seeds, and build every trial."""
        file = self.file
        self._check_number_of_trials()
        settings = self._star() if file.design == "star" else self._grid()
        about = SweepInfo(
            name=(file.texts["title"] or file.path.stem) + (f" ({file.scale})" if file.scale else ""),
            question=file.texts["question"],
            expectation=file.texts["expectation"],
            notes=file.texts["notes"],
            axes=self.varied + (["variant"] if file.variants else []),
            design=file.design,
            baseline=self.centre or file.baseline,
        )
        seeds: Sequence[int | None] = file.seeds or [None]
        trials = [self._trial(labels, values, seed) for labels, values in settings for seed in seeds]
        self._check(trials, about)
        return Sweep(about=about, trials=trials, keep=file.keep)

    def _grid(self) -> list[tuple[Labels, Labels]]:
        """Return all combinations as (labels, values to set)."""
        combined: list[tuple[Labels, Labels]] = [({}, {})]
        if self.file.variants:
            combined = [({"variant": name}, values) for name, values in self.file.variants.items()]
        for group in self.file.axes:
            combined = [
                (labels | more_labels, values | more)
                for labels, values in combined
                for more_labels, more in group.settings()
            ]
        return combined

    def _star(self) -> list[tuple[Labels, Labels]]:
        """Return the centre, and each axis alone around it, as (labels, values to set)."""
        if self.file.variants:
            raise UsageError("a star design has no variants; use a grid", key="variants")
        points: list[tuple[Labels, Labels]] = [(self.centre, {})]
        for group in self.file.axes:
            for labels, values in group.settings():
                if self.centre | labels != self.centre:
                    points.append((self.centre | labels, values))
        return points

    def _find_centre(self) -> Labels:
        """Return the centre of a star: the values of the recipe with those of `[set]`."""
        config, corpus, sampling = self._build({})
        values = flatten(to_plain(config))
        for table, of_table in (("corpus", corpus), ("sampling", sampling)):
            if of_table is not None:
                values |= flatten({table: dataclasses.asdict(of_table)})
        for key in self.varied:
            if key not in values:
                message = f"the axis {key} is not a setting of the recipe{suggest(key, values)}"
                raise UsageError(message, key=key)
        centre = {key: values[key] for key in self.varied}
        if self.file.baseline and self.file.baseline != centre:
            listed = ", ".join(f"{key} = {value!r}" for key, value in centre.items())
            message = f"the baseline of a star is its centre, {listed}; remove baseline"
            raise UsageError(message, key="baseline", expected=centre, found=self.file.baseline)
        return centre

    def _trial(self, labels: Labels, values: Labels, seed: int | None) -> Trial:
        of_seed = {} if seed is None else {"seed": seed}
        config, corpus, sampling = self._build(values | of_seed)
        shown = labels
        if self.centre:
            shown = {key: value for key, value in labels.items() if self.centre[key] != value}
            shown = shown or {"variant": "baseline"}
        return Trial(
            name=_name_run(shown | of_seed, self.varied),
            labels=labels | of_seed,
            config=config,
            corpus=corpus,
            sampling=sampling,
        )

    def _build(self, values: Labels) -> tuple[TrainConfig, CorpusConfig | None, SamplingPlan | None]:
        """Return the config, corpus and sampling of one trial."""
        values = self.file.fixed | values
        fields, of_corpus, of_sampling = _copy_fields(self.file.base), Labels(), Labels()
        if any(key.startswith("budget.") for key in values):
            fields["budget"] = {}  # one limit replaces all limits of the recipe
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
            sampling = build(SamplingPlan, unflatten(of_sampling), source=source, path="sampling.")
        try:
            config = build(TrainConfig, fields, source=source)
        except UsageError as error:
            self._check_base(str(error).removeprefix(source), corpus)
            raise
        return config, corpus, sampling

    def _check_base(self, message_of_sweep: str, corpus: CorpusConfig | None) -> None:
        """Raise `BaseRecipeError` if the base recipe alone causes the same error."""
        fields, source = _copy_fields(self.file.base), str(self.file.base_path)
        if corpus is not None:
            _put_corpus(fields, corpus)
        try:
            build(TrainConfig, fields, source=source)
        except UsageError as error:
            if str(error) == source + message_of_sweep:
                raise BaseRecipeError(
                    str(error), path=source, key=error.key, expected=error.expected, found=error.found
                ) from None

    def _check_number_of_trials(self) -> None:
        """Raise `UsageError` before an excessive number of trials is built, which would exhaust memory."""
        if self.file.design == "star":
            num_settings = len(self._star())  # the sum of the axes, which is small
        else:
            num_settings = math.prod(len(group.rows) for group in self.file.axes)
            num_settings *= max(1, len(self.file.variants))
        num_trials = num_settings * len(self.file.seeds or [None])
        if num_trials > MAX_TRIALS:
            message = f"expands to {num_trials:,} runs; the limit is {MAX_TRIALS:,}"
            raise UsageError(message, expected=MAX_TRIALS, found=num_trials)

    def _check(self, trials: Sequence[Trial], about: SweepInfo) -> None:
        names = [trial.name for trial in trials]
        for name in names:
            if names.count(name) > 1:
                message = f"expands to two runs named {name!r}; the names of variants and values must differ"
                raise UsageError(message, found=name)
            if name.lower() in TAKEN or (self.samples and name.lower() == MODEL):
                message = f"expands to a run named {name!r}, the name of a file of the sweep; rename it"
                raise UsageError(message, found=name)
        if self.samples and len({repr(to_plain(trial.config)) for trial in trials}) > 1:
            raise UsageError("varies both sampling and training; sample from one model only", key="sampling")
        unseeded = [{k: v for k, v in trial.labels.items() if k != "seed"} for trial in trials]
        if about.baseline and about.baseline not in unseeded:
            wanted = ", ".join(str(value) for value in about.baseline.values())
            message = f"the baseline is not one of the runs: {wanted}; use the values of one of them"
            raise UsageError(message, key="baseline", found=about.baseline)


def _put_corpus(fields: dict[str, Any], corpus: CorpusConfig) -> None:
    """Set the values that a corpus determines: the placeholders of the data, and the vocabulary size."""
    for key, value in PLACEHOLDER.items():
        put(fields, f"data.{key}", value)
    put(fields, "model.vocab_size", corpus.vocab_size)


def _check_full_names(keys: Iterable[str]) -> None:
    """Raise `UsageError` if a key is only the last part of a known key, such as `lr`."""
    known = [
        *list_keys(TrainConfig),
        *list_keys(CorpusConfig, "corpus."),
        *list_keys(SamplingPlan, "sampling."),
    ]
    for key in sorted(set(keys) - set(known)):
        if meant := [name for name in known if name.endswith(f".{key}")]:
            message = f"unknown key {key}; did you mean {' or '.join(meant)}?"
            raise UsageError(message, key=key, expected=meant)


def _check_corpus_keys(keys: Iterable[str]) -> None:
    """Raise `UsageError` if a key is set that the corpus determines."""
    reasons = {f"data.{key}": "the corpus provides the data" for key in PLACEHOLDER}
    reasons["model.vocab_size"] = "the corpus determines it; set corpus.vocab_size instead"
    for key in reasons.keys() & keys:
        raise UsageError(f"sets both {key} and a corpus, but {reasons[key]}", key=key)


def _copy_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _copy_fields(value) if isinstance(value, Mapping) else value for key, value in fields.items()
    }


def _name_run(labels: Labels, varied: Sequence[str]) -> str:
    """Return the name of a run's folder, made of its labels.

    >>> _name_run({"variant": "no norm", "optimizer.lr": 0.001, "seed": 2}, ["optimizer.lr"])
    'no-norm_lr-1e-3_seed-2'
    """
    names = short_names([*varied, "seed"])
    parts = []
    for key, value in labels.items():
        words = format_setting(value).replace(",", "")
        parts.append(words if key == "variant" else f"{names.get(key, key)}-{words}")
    return "_".join(re.sub(r"[^A-Za-z0-9.+-]+", "-", part).strip("-.") for part in parts) or "run"
