"""A sweep file: one question, and the runs that answer it, spelled out.

    question = "Which peak learning rate?"     expectation, notes: more words for the report
    base = "base.toml"                         the recipe that all runs start from, beside this file
    seeds = 3                                  or a list; every setting is run once per seed
    design = "grid"                            all combinations of the axes, or "star": one at a time
    baseline = { "optimizer.lr" = 3e-3 }       what others are compared with; of variants, its name
    keep = "metrics"                           or "model", or "all": which checkpoints outlive their run
    [set]       "budget.tokens" = 40_000_000   replaces values of the recipe, in every run; any limit of
                the budget replaces all that the recipe has
    [axes]      "optimizer.lr" = [1e-3, 3e-3]  one value of each per run; ranges: see `axes`
    [[pairs]]   keys with lists of one length, which move together; the first names the runs
    [variants]  "no norm" = { "model.norm" = "none" }   named sets of values
    [corpus]    text made or read on the spot instead of the recipe's data; see `corpora`
    [scale.smoke]   any of the above, to be used instead with --scale smoke

Keys under `corpus.` and `sampling.` set the corpus and how text is sampled, all others the recipe. Every run
is built and checked before the first one starts. Knows nothing of how runs are carried out.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from bytewright.durable import read_text
from bytewright.errors import FormatError, UsageError, suggest
from bytewright.lab.axes import expand, is_range
from bytewright.lab.corpora import CorpusConfig
from bytewright.lab.groups import short_names, word_value
from bytewright.lab.records import flatten
from bytewright.lab.results import MODEL, About, Design
from bytewright.lab.stories import SamplingPlan
from bytewright.train.config import TrainConfig
from bytewright.train.recipe import MAX_RECIPE_BYTES, build, to_plain

Keep = Literal["metrics", "model", "all"]
KEYS = ("question", "expectation", "notes", "base", "seeds", "design", "baseline", "keep")
TABLES = ("set", "axes", "pairs", "variants", "corpus", "sampling", "scale")
MAX_TRIALS = 2000
SCALED = "This is the sweep at scale “{}”: it shows that all works, and does not answer the question."
PLACEHOLDER = {"train": "made", "validation": "made", "tokenizer": "made"}

Labels = dict[str, Any]


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
    """A sweep file, spelled out."""

    about: About
    trials: Sequence[Trial]
    keep: Keep = "metrics"


def read_sweep(path: Path, *, scale: str | None = None, overrides: Sequence[str] = ()) -> Sweep:
    """Read and check a sweep file; each override, `"optimizer.lr=3e-4"`, goes into its `[set]`."""
    fields = _read_toml(path)
    try:
        _check_keys(fields, [*KEYS, *TABLES])
        if scale is not None:
            fields = _rescale(fields, scale)
        fields["set"] = flatten(_table(fields, "set")) | dict(map(_parse_override, overrides))
        return _Expansion(path, fields).sweep(scale)
    except UsageError as error:
        sentence = str(error)
        raise UsageError(sentence if sentence.startswith(f"{path}: ") else f"{path}: {sentence}") from None


class _Expansion:
    """The parts of a sweep file on their way to trials."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        self.path, self.fields = path, fields
        self.base = self._read_base()
        self.fixed: Labels = {**_prefixed(fields, "corpus"), **_prefixed(fields, "sampling"), **fields["set"]}
        self.has_corpus = any(key.startswith("corpus.") for key in self._all_keys())
        self.samples = any(key.startswith("sampling.") for key in self._all_keys())

    def sweep(self, scale: str | None) -> Sweep:
        """Expand axes, pairs, variants and seeds, and build every trial."""
        design = _choice(self.fields, "design", get_args(Design))
        axes = self._axes()
        settings = self._star(axes) if design == "star" else self._grid(axes)
        seeds = self._seeds()
        varied = [key for part in axes for key in part.labels or part.keys] + (
            ["variant"] if "variants" in self.fields else []
        )
        baseline = self._baseline(design, axes)
        name = self.path.stem + (f" ({scale})" if scale else "")
        about = About(
            name=name,
            question=_words(self.fields, "question"),
            expectation=_words(self.fields, "expectation"),
            notes=f"{_words(self.fields, 'notes')} {SCALED.format(scale) if scale else ''}".strip(),
            axes=varied,
            design="star" if design == "star" else "grid",
            baseline=baseline,
        )
        trials = [
            self._trial(labels, values, seed if len(seeds) > 1 or "seeds" in self.fields else None, varied)
            for labels, values in settings
            for seed in seeds
        ]
        self._check_trials(trials, about)
        keep = _choice(self.fields, "keep", get_args(Keep))
        return Sweep(about=about, trials=trials, keep=keep)  # type: ignore[arg-type]  # it is one of them

    # The parts

    def _read_base(self) -> dict[str, Any]:
        base = self.fields.get("base")
        if not isinstance(base, str):
            raise UsageError('names no base recipe; write base = "base.toml"')
        return _read_toml(self.path.parent / base)

    def _all_keys(self) -> set[str]:
        keys = set(self.fixed)
        keys |= {key for part in (*self._axes(), *self._variants()) for key in part.keys}
        return keys

    def _axes(self) -> list[_Part]:
        """Make each axis, and each group of axes that move together, one part of the product."""
        parts = []
        for key, value in _flatten_axes(_table(self.fields, "axes")).items():
            parts.append(_Part([key], [[item] for item in expand(value, f"the axis {key}")]))
        pairs = self.fields.get("pairs", [])
        if not isinstance(pairs, list):
            raise UsageError("pairs must be written [[pairs]], one table for each group of axes")
        for group in pairs:
            given = _flatten_axes(group)
            flat = {
                key: expand(value, f"the axis {key}", repeated=number > 0)
                for number, (key, value) in enumerate(given.items())
            }
            if not flat:
                raise UsageError("a group of [[pairs]] has no axes")
            lengths = {key: len(values) for key, values in flat.items()}
            if len(set(lengths.values())) > 1:
                told = " and ".join(f"{key} has {length}" for key, length in lengths.items())
                raise UsageError(f"axes in [[pairs]] must have as many values as each other, but {told}")
            rows = [list(row) for row in zip(*flat.values(), strict=True)]
            parts.append(_Part(list(flat), rows, labels=list(flat)[:1]))
        return parts

    def _variants(self) -> list[_Part]:
        variants = _table(self.fields, "variants")
        if "variants" in self.fields and not variants:
            raise UsageError("[variants] is empty; name at least one")
        parts = []
        for name, values in variants.items():
            if not isinstance(values, Mapping):
                raise UsageError(f"the variant {name!r} must be a table of values, but is {values!r}")
            flat = flatten(values)
            parts.append(_Part(list(flat), [list(flat.values())], name=name))
        return parts

    def _grid(self, axes: Sequence[_Part]) -> list[tuple[Labels, Labels]]:
        """Take all combinations: (labels, values to set)."""
        combined: list[tuple[Labels, Labels]] = [({}, {})]
        if variants := self._variants():
            combined = [({"variant": part.name}, part.row(0)) for part in variants]
        for part in axes:
            rows = [part.row(number) for number in range(len(part.rows))]
            combined = [
                (labels | part.labels_of(row), values | row) for labels, values in combined for row in rows
            ]
        return combined

    def _star(self, axes: Sequence[_Part]) -> list[tuple[Labels, Labels]]:
        """Take the centre, and from it each axis alone: (labels, values to set)."""
        if "variants" in self.fields:
            raise UsageError("a star has axes only; write its variants in a grid")
        centre = self._centre(axes)
        points = [(dict(centre), dict(centre))]
        for part in axes:
            rows = [part.row(number) for number in range(len(part.rows))]
            points += [(centre | row, centre | row) for row in rows if centre | row != centre]
        return points

    def _centre(self, axes: Sequence[_Part]) -> Labels:
        """Where a star's axes cross: the baseline's value, or the recipe's."""
        given = flatten(_table(self.fields, "baseline"))
        config, corpus, sampling = self._build({})
        values = flatten(to_plain(config))
        if corpus:
            values |= {f"corpus.{key}": value for key, value in dataclasses.asdict(corpus).items()}
        if sampling:
            values |= {f"sampling.{key}": value for key, value in dataclasses.asdict(sampling).items()}
        for key in (key for part in axes for key in part.keys):
            if key not in given and key not in values:
                raise UsageError(f"the axis {key} is no value of the recipe{suggest(key, values)}")
        return {key: given.get(key, values.get(key)) for part in axes for key in part.keys}

    def _seeds(self) -> list[int]:
        seeds = self.fields.get("seeds", [self.fixed.get("seed", self.base.get("seed", 0))])
        if type(seeds) is int and seeds > 0:
            return list(range(seeds))
        if isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds):
            return expand(seeds, "seeds")
        raise UsageError(
            f"seeds must be a number of seeds above 0 or a list of whole numbers, but is {seeds!r}"
        )

    def _baseline(self, design: str, axes: Sequence[_Part]) -> Labels:
        if design == "star":
            return self._centre(axes)
        baseline = self.fields.get("baseline", {})
        if isinstance(baseline, str):
            return {"variant": baseline}
        if not isinstance(baseline, Mapping):
            raise UsageError(
                f"baseline must be a table of values or the name of a variant, but is {baseline!r}"
            )
        return flatten(baseline)

    # Trials

    def _trial(self, labels: Labels, values: Labels, seed: int | None, varied: Sequence[str]) -> Trial:
        with_seed = values if seed is None else values | {"seed": seed}
        config, corpus, sampling = self._build(with_seed)
        named = labels if seed is None else labels | {"seed": seed}
        return Trial(name=_name(named, varied), labels=named, config=config, corpus=corpus, sampling=sampling)

    def _build(self, values: Labels) -> tuple[TrainConfig, CorpusConfig | None, SamplingPlan | None]:
        """Build one trial's config, corpus and sampling from the base and all values set on it."""
        of_recipe, of_corpus, of_sampling = _copy(self.base), {}, {}
        if any(key.startswith("budget.") for key in (*self.fixed, *values)):
            of_recipe["budget"] = {}  # a limit that is set replaces the recipe's, of whatever kind
        for key, value in (self.fixed | values).items():
            table, _, rest = key.partition(".")
            if table == "corpus":
                of_corpus[rest] = value
            elif table == "sampling":
                of_sampling[rest] = value
            else:
                _put(of_recipe, key, value)
        source = str(self.path)
        corpus = sampling = None
        if self.has_corpus:
            corpus = build(CorpusConfig, of_corpus, source=source, path="corpus.")
            of_recipe["data"] = dict(PLACEHOLDER)
            _put(of_recipe, "model.vocab_size", corpus.vocab_size)
        if self.samples:
            sampling = build(SamplingPlan, of_sampling, source=source, path="sampling.")
        return build(TrainConfig, of_recipe, source=source), corpus, sampling

    def _check_trials(self, trials: Sequence[Trial], about: About) -> None:
        if len(trials) > MAX_TRIALS:
            raise UsageError(f"makes {len(trials):,} runs; at most {MAX_TRIALS:,} are believed to be meant")
        names = [trial.name for trial in trials]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"makes two runs that are both called {name!r}")
        if self.samples and len({repr(to_plain(trial.config)) for trial in trials}) > 1:
            raise UsageError("varies sampling and training at once; sample from one model at a time")
        unseeded = [{k: v for k, v in trial.labels.items() if k != "seed"} for trial in trials]
        if about.baseline and about.baseline not in unseeded:
            raise UsageError(f"has a baseline that is none of its runs: {about.baseline}")


@dataclass(frozen=True)
class _Part:
    """Keys that are set together, and the rows of values that they take."""

    keys: list[str]
    rows: list[list[Any]]
    name: str = ""
    labels: list[str] | None = None
    """The keys that runs are called by; None: all."""

    def row(self, number: int) -> Labels:
        return dict(zip(self.keys, self.rows[number], strict=True))

    def labels_of(self, row: Labels) -> Labels:
        return row if self.labels is None else {key: row[key] for key in self.labels}


# Reading


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path, max_bytes=MAX_RECIPE_BYTES))
    except tomllib.TOMLDecodeError as error:
        raise FormatError(f"{path}: is not valid TOML ({error})") from None


def _rescale(fields: Mapping[str, Any], scale: str) -> dict[str, Any]:
    """Lay the fields of a scale over the others: values and axes replace, `[set]` and `[corpus]` add."""
    scales = _table(fields, "scale")
    if scale not in scales:
        known = f"it has {', '.join(scales)}" if scales else "it has none"
        raise UsageError(f"has no scale {scale!r}; {known}")
    changes = scales[scale]
    _check_keys(changes, [*KEYS, *(table for table in TABLES if table != "scale")], f"scale.{scale}.")
    scaled = dict(fields) | dict(changes)
    for table in ("set", "corpus", "sampling"):
        if table in fields or table in changes:
            scaled[table] = flatten(_table(fields, table)) | flatten(_table(changes, table))
    if "axes" in changes and "axes" in fields:
        scaled["axes"] = _flatten_axes(fields["axes"]) | _flatten_axes(changes["axes"])
    return scaled


def _check_keys(fields: Mapping[str, Any], known: Sequence[str], prefix: str = "") -> None:
    for key in fields:
        if key not in known:
            raise UsageError(f"unknown key {prefix}{key}{suggest(key, known, prefix)}")


def _table(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name, {})
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must be a table, but is {value!r}")
    return value


def _prefixed(fields: Mapping[str, Any], table: str) -> Labels:
    return {f"{table}.{key}": value for key, value in flatten(_table(fields, table)).items()}


def _flatten_axes(fields: object, prefix: str = "") -> dict[str, Any]:
    """Write nested tables with dotted keys, but leave ranges, which are tables too, whole."""
    if not isinstance(fields, Mapping):
        raise UsageError(f"axes must be a table of lists and ranges, but is {fields!r}")
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, Mapping) and not is_range(value):
            flat |= _flatten_axes(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _choice(fields: Mapping[str, Any], key: str, choices: Sequence[str]) -> str:
    value = fields.get(key, choices[0])
    if value not in choices:
        raise UsageError(f"{key} must be one of {', '.join(map(repr, choices))}, but is {value!r}")
    return str(value)


def _words(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise UsageError(f"{key} must be a string, but is {value!r}")
    return " ".join(value.split())


def _parse_override(override: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    if not equals:
        raise UsageError(f"{override!r} sets nothing; write key=value, such as optimizer.lr=3e-4")
    try:
        return key.strip(), tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text


def _copy(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in fields.items()}


def _put(fields: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    for table in tables:
        fields = fields.setdefault(table, {})
        if not isinstance(fields, dict):
            raise UsageError(f"{key} cannot be set: {table} is a value, not a table")
    fields[last] = value


def _name(labels: Labels, varied: Sequence[str]) -> str:
    """Name a run's folder by what is particular to it.

    >>> _name({"variant": "no norm", "optimizer.lr": 0.001, "seed": 2}, ["variant", "optimizer.lr"])
    'no-norm_lr-1e-3_seed-2'
    """
    names = short_names([*(key for key in varied if key != "variant"), "seed"])
    parts = []
    for key, value in labels.items():
        words = word_value(value).replace(",", "")
        parts.append(words if key == "variant" else f"{names.get(key, key)}-{words}")
    return "_".join(re.sub(r"[^A-Za-z0-9.+-]+", "-", part).strip("-.") for part in parts) or "run"
