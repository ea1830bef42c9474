"""A sweep file, read and checked part by part; what the parts mean together is for `sweep`.

    title = "Learning rate"                    question, expectation, notes: more words for the report
    base = "base.toml"                         the recipe that all runs start from, beside this file
    seeds = 3                                  or a list; every setting is run once per seed
    design = "grid"                            all combinations of the axes, or "star": one at a time
    baseline = { "optimizer.lr" = 3e-3 }       what others are compared with; of variants, its name
    keep = "metrics"                           or "model", or "all": which checkpoints outlive their run
    [set]       "budget.tokens" = 40_000_000   replaces values of the recipe, in every run; any limit of
                the budget replaces all that the recipe has; --set adds to it, or replaces what it says
    [axes]      "optimizer.lr" = [1e-3, 3e-3]  one value of each per run; ranges: see `axes`
    [[pairs]]   keys with lists of one length, which move together; the first names the runs
    [variants]  "no norm" = { "model.norm" = "none" }   named sets of values
    [corpus]    text made or read on the spot instead of the recipe's data; see `corpora`
    [sampling]  text sampled from one model in several ways instead of training several; see `stories`
    [scale.smoke]   any of the above, to be used instead with --scale smoke

A mistake is one sentence. Knows nothing of what the values set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from bytewright.errors import UsageError, suggest
from bytewright.experiments.axes import expand, is_range
from bytewright.experiments.results import Design
from bytewright.storage.atomic import read_toml
from bytewright.train.recipe import MAX_RECIPE_BYTES, flatten, parse_override

Keep = Literal["metrics", "model", "all"]
Labels = dict[str, Any]

WORDS = ("title", "question", "expectation", "notes")
KEYS = (*WORDS, "base", "seeds", "design", "baseline", "keep")
TABLES = ("set", "axes", "pairs", "variants", "corpus", "sampling")
MAX_TRIALS = 2000
"""More runs than that are believed to be a mistake."""
SCALED = "This is the sweep at scale “{}”: it shows that all works, and does not answer the question."


class BaseRecipeError(UsageError):
    """A mistake in the recipe that a sweep starts from, in a sentence that names that file."""


@dataclass(frozen=True)
class Part:
    """Keys that are set together, and the rows of values that they take."""

    keys: list[str]
    rows: list[list[Any]]
    labels: list[str]
    """The keys that runs are called by."""

    def settings(self) -> list[tuple[Labels, Labels]]:
        """Give each row as (labels, values to set)."""
        values = [dict(zip(self.keys, row, strict=True)) for row in self.rows]
        return [({key: row[key] for key in self.labels}, row) for row in values]


@dataclass(frozen=True, kw_only=True)
class SweepFile:
    """The parts of a sweep file; `base` holds the fields of the recipe, all other keys are dotted."""

    path: Path
    base_path: Path
    scale: str | None
    words: Mapping[str, str]
    base: Mapping[str, Any]
    fixed: Labels = field(default_factory=dict)
    axes: Sequence[Part] = ()
    variants: Mapping[str, Labels] = field(default_factory=dict)
    seeds: Sequence[int] | None = None
    design: Design = "grid"
    baseline: Labels = field(default_factory=dict)
    keep: Keep = "metrics"

    @property
    def keys(self) -> set[str]:
        """All keys that some run sets."""
        keys = {key for part in self.axes for key in part.keys}
        return keys | set(self.fixed) | {key for values in self.variants.values() for key in values}


def read_sweep_file(path: Path, *, scale: str | None, overrides: Sequence[str]) -> SweepFile:
    """Read the parts of a sweep file; each override, `"optimizer.lr=3e-4"`, goes into its `[set]`.

    One of a key that axes, variants or seeds set would be without effect there, and is refused.
    """
    fields = read_toml(path, max_bytes=MAX_RECIPE_BYTES)
    if "model" in fields and "base" not in fields:
        raise UsageError("is a recipe, not a sweep; `bytewright train` trains by it")
    _check_keys(fields, [*KEYS, *TABLES, "scale"])
    if scale is not None:
        fields = _rescale(fields, scale)
    fixed = {**_prefixed(fields, "corpus"), **_prefixed(fields, "sampling"), **flatten(_table(fields, "set"))}
    variants = _variants(fields)
    axes = _axes(fields)
    seeds = _seeds(fields)
    _refuse_clashes(axes, variants, seeds)
    replaced = dict(map(parse_override, overrides))
    for key in replaced:
        _refuse_if_varied(key, axes, variants, seeds)
        if key.startswith("budget."):  # as [set] does to the recipe: a limit replaces those of all kinds
            fixed = {other: value for other, value in fixed.items() if not other.startswith("budget.")}
    words = {key: _words(fields, key) for key in WORDS}
    if scale is not None:
        words["notes"] = SCALED.format(scale)  # what is noted of the full sweep does not hold here
    base = fields.get("base")
    if not isinstance(base, str):
        raise UsageError('names no base recipe; write base = "base.toml"')
    return SweepFile(
        path=path,
        base_path=path.parent / base,
        scale=scale,
        words=words,
        base=_read_base(path.parent / base),
        fixed=fixed | replaced,
        axes=axes,
        variants=variants,
        seeds=seeds,
        design=_choice(fields, "design", get_args(Design)),
        baseline=_baseline(fields),
        keep=_choice(fields, "keep", get_args(Keep)),
    )


def _read_base(path: Path) -> dict[str, Any]:
    fields = read_toml(path, max_bytes=MAX_RECIPE_BYTES)
    if "base" in fields or "question" in fields:
        raise BaseRecipeError(f"{path}: is a sweep, not a recipe; a sweep starts from a recipe")
    return fields


def _rescale(fields: Mapping[str, Any], scale: str) -> dict[str, Any]:
    """Lay the fields of a scale over the others: single values, axes and what is set replace one by one."""
    scales = _table(fields, "scale")
    if scale not in scales:
        known = f"it has {', '.join(scales)}" if scales else "it has none"
        raise UsageError(f"has no scale {scale!r}; {known}")
    changes = scales[scale]
    if not isinstance(changes, Mapping):
        raise UsageError(f"scale.{scale} must be a table, but is {changes!r}")
    _check_keys(changes, [*KEYS, *TABLES], f"scale.{scale}.")
    scaled = dict(fields) | dict(changes)
    for table in ("set", "corpus", "sampling"):
        if table in fields or table in changes:
            scaled[table] = flatten(_table(fields, table)) | flatten(_table(changes, table))
    if "axes" in changes and "axes" in fields:
        scaled["axes"] = _flatten_axes(fields["axes"]) | _flatten_axes(changes["axes"])
    return scaled


def _refuse_clashes(axes: Sequence[Part], variants: Mapping[str, Labels], seeds: object) -> None:
    """Raise if one run would be told two values of a key, of which one would silently count."""
    keys = [key for part in axes for key in part.keys]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"{key} is an axis twice")
        for name, values in variants.items():
            if key in values:
                raise UsageError(f"{key} is an axis, but the variant {name!r} sets it too")
    if seeds is not None and "seed" in keys:
        raise UsageError("seed is an axis, but there are seeds too")
    for name, values in variants.items():
        if seeds is not None and "seed" in values:
            raise UsageError(f"the variant {name!r} sets seed, but there are seeds too")


def _refuse_if_varied(key: str, axes: Sequence[Part], variants: Mapping[str, Labels], seeds: object) -> None:
    """Raise if runs differ in what an override would set in all of them."""
    for axis in (axis for part in axes for axis in part.keys):
        if _is_same(key, axis):
            which = "it" if key == axis else axis
            raise UsageError(f"{key} cannot be set to one value, for {which} is an axis of this sweep")
    for name, values in variants.items():
        for other in values:
            if _is_same(key, other):
                raise UsageError(
                    f"{key} cannot be set to one value, for the variant {name!r} sets {other};"
                    " edit the file instead"
                )
    if key == "seed" and seeds is not None:
        raise UsageError("seed cannot be set to one value, for this sweep has seeds; edit the file instead")


def _is_same(key: str, other: str) -> bool:
    """Say whether two keys set the same thing; the limits of a budget do, for the first reached counts."""
    if key.startswith("budget."):
        return other.startswith("budget.")
    return key == other or other.startswith(key + ".")


# The parts


def _axes(fields: Mapping[str, Any]) -> list[Part]:
    """Make each axis, and each group of axes that move together, one part."""
    parts = []
    for key, value in _flatten_axes(_table(fields, "axes")).items():
        parts.append(Part([key], [[item] for item in expand(value, f"the axis {key}")], [key]))
    groups = fields.get("pairs", [])
    if not isinstance(groups, list):
        raise UsageError("pairs must be written [[pairs]], one table for each group of axes")
    return parts + [_pair(group) for group in groups]


def _pair(group: object) -> Part:
    lists = {
        key: expand(value, f"the axis {key}", repeated=number > 0)
        for number, (key, value) in enumerate(_flatten_axes(group).items())
    }
    if not lists:
        raise UsageError("a group of [[pairs]] has no axes")
    if len({len(values) for values in lists.values()}) > 1:
        told = " and ".join(f"{key} has {len(values)}" for key, values in lists.items())
        raise UsageError(f"axes in [[pairs]] must have as many values as each other, but {told}")
    rows = [list(row) for row in zip(*lists.values(), strict=True)]
    return Part(list(lists), rows, list(lists)[:1])


def _variants(fields: Mapping[str, Any]) -> dict[str, Labels]:
    variants = _table(fields, "variants")
    if "variants" in fields and not variants:
        raise UsageError("[variants] is empty; name at least one")
    for name, values in variants.items():
        if not isinstance(values, Mapping):
            raise UsageError(f"the variant {name!r} must be a table of values, but is {values!r}")
    return {name: flatten(values) for name, values in variants.items()}


def _seeds(fields: Mapping[str, Any]) -> list[int] | None:
    seeds = fields.get("seeds")
    if seeds is None:
        return None
    if type(seeds) is int and 0 < seeds <= MAX_TRIALS:
        return list(range(seeds))
    if isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds):
        return expand(seeds, "seeds")
    raise UsageError(
        f"seeds must be a number of seeds from 1 to {MAX_TRIALS:,} or a list of whole numbers,"
        f" but is {seeds!r}"
    )


def _baseline(fields: Mapping[str, Any]) -> Labels:
    baseline = fields.get("baseline", {})
    if isinstance(baseline, str):
        return {"variant": baseline}
    if not isinstance(baseline, Mapping):
        raise UsageError(f"baseline must be a table of values or the name of a variant, but is {baseline!r}")
    return flatten(baseline)


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


def _choice(fields: Mapping[str, Any], key: str, choices: Sequence[str]) -> Any:
    """Read a value that must be one of a few; the first where there is none."""
    value = fields.get(key, choices[0])
    if value not in choices:
        raise UsageError(f"{key} must be one of {', '.join(map(repr, choices))}, but is {value!r}")
    return value


def _words(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise UsageError(f"{key} must be a string, but is {value!r}")
    return " ".join(value.split())
