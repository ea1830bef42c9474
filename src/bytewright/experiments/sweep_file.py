"""Read a sweep file and check each of its parts; `sweep` expands them into runs.

    title = "Learning rate"                    also question, expectation, notes: text for the report
    base = "base.toml"                         the recipe of all runs, relative to this file, or its name
    seeds = 3                                  or a list; every setting is run once per seed
    design = "grid"                            all combinations of the axes, or "star": one axis at a time
    baseline = { "optimizer.lr" = 3e-3 }       the runs to compare with; with variants, a name
    keep = "metrics"                           or "model", or "all": the checkpoints to keep of finished runs
    [set]       "budget.tokens" = 40_000_000   replaces values of the recipe in every run; any limit of the
                                               budget replaces all limits of the recipe
    [axes]      "optimizer.lr" = [1e-3, 3e-3]  one value of each per run
    [[pairs]]   keys with lists of equal length that vary together; the first key names the runs
    [variants]  "no norm" = { "model.norm" = "none" }   named sets of values
    [corpus]    text to prepare instead of the recipe's data; see `corpora`
    [sampling]  text to sample from one model, instead of training several; see `stories`
    [scale.smoke]   replaces any of the above at the scale "smoke"

`axis_values` documents the lists and ranges of an axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from bytewright.errors import UsageError, suggest, wrong_value
from bytewright.experiments.axis_values import expand_axis, is_range
from bytewright.experiments.results import Design
from bytewright.shipped_recipes import find_recipe
from bytewright.storage.atomic import read_toml
from bytewright.train.recipe import MAX_RECIPE_BYTES, flatten, parse_override

Keep = Literal["metrics", "model", "all"]
Labels = dict[str, Any]

TEXTS = ("title", "question", "expectation", "notes")
KEYS = (*TEXTS, "base", "seeds", "design", "baseline", "keep")
TABLES = ("set", "axes", "pairs", "variants", "corpus", "sampling")
MAX_TRIALS = 2000
SCALE_NOTE = "This is the sweep at scale “{}”. It tests the procedure and does not answer the question."


class BaseRecipeError(UsageError):
    """The recipe that a sweep starts from is invalid; the message names the recipe, not the sweep."""


@dataclass(frozen=True)
class AxisGroup:
    """Keys that vary together, and one row of values per setting."""

    keys: list[str]
    rows: list[list[Any]]
    labels: list[str]
    """The keys that name the runs."""

    def settings(self) -> list[tuple[Labels, Labels]]:
        """Return each row as (labels, values to set)."""
        values = [dict(zip(self.keys, row, strict=True)) for row in self.rows]
        return [({key: row[key] for key in self.labels}, row) for row in values]


@dataclass(frozen=True, kw_only=True)
class SweepFile:
    """The parts of a sweep file; `base` holds the fields of the recipe, all other keys are dotted."""

    path: Path
    base_path: Path
    scale: str | None
    texts: Mapping[str, str]
    base: Mapping[str, Any]
    fixed: Labels = field(default_factory=dict)
    axes: Sequence[AxisGroup] = ()
    variants: Mapping[str, Labels] = field(default_factory=dict)
    seeds: Sequence[int] | None = None
    design: Design = "grid"
    baseline: Labels = field(default_factory=dict)
    keep: Keep = "metrics"

    @property
    def keys(self) -> set[str]:
        """All keys that a run sets."""
        keys = {key for group in self.axes for key in group.keys}
        return keys | set(self.fixed) | {key for values in self.variants.values() for key in values}


def read_sweep_file(path: Path, *, scale: str | None, overrides: Sequence[str]) -> SweepFile:
    """Read the parts of a sweep file; each override, `"optimizer.lr=3e-4"`, is added to `[set]`.

    Overrides of keys that vary between runs are rejected, since they would have no effect.
    """
    fields = read_toml(path, max_bytes=MAX_RECIPE_BYTES)
    if "model" in fields and "base" not in fields:
        raise UsageError("is a recipe, not a sweep; run it with `bytewright train`", key="base")
    _check_keys(fields, [*KEYS, *TABLES, "scale"])
    if scale is not None:
        fields = _apply_scale(fields, scale)
    fixed = {
        **_read_prefixed(fields, "corpus"),
        **_read_prefixed(fields, "sampling"),
        **flatten(_read_table(fields, "set")),
    }
    axes, variants, seeds = _read_axes(fields), _read_variants(fields), _read_seeds(fields)
    _check_clashes(axes, variants, seeds)
    replaced = dict(map(parse_override, overrides))
    for key in replaced:
        _check_not_varied(key, axes, variants, seeds)
        if key.startswith("budget."):  # as in [set]: one limit replaces all limits
            fixed = {other: value for other, value in fixed.items() if not other.startswith("budget.")}
    texts = {key: _read_text(fields, key) for key in TEXTS}
    if scale is not None:
        texts["notes"] = SCALE_NOTE.format(scale)  # the notes are about the full sweep
    base = fields.get("base")
    if not isinstance(base, str):
        raise UsageError('has no base recipe; write base = "base.toml"', key="base", found=base)
    base_path = path.parent / base
    if not base_path.suffix and not base_path.exists():
        base_path = find_recipe(Path(base))
    return SweepFile(
        path=path,
        base_path=base_path,
        scale=scale,
        texts=texts,
        base=_read_base(base_path),
        fixed=fixed | replaced,
        axes=axes,
        variants=variants,
        seeds=seeds,
        design=_read_choice(fields, "design", get_args(Design)),
        baseline=_read_baseline(fields),
        keep=_read_choice(fields, "keep", get_args(Keep)),
    )


def _read_base(path: Path) -> dict[str, Any]:
    fields = read_toml(path, max_bytes=MAX_RECIPE_BYTES)
    if "base" in fields or "question" in fields:
        raise BaseRecipeError.at(path, "is a sweep, not a recipe; a sweep starts from a recipe")
    return fields


def _apply_scale(fields: Mapping[str, Any], scale: str) -> dict[str, Any]:
    """Return the fields with those of a scale; `set`, `corpus`, `sampling` and `axes` are merged."""
    scales = _read_table(fields, "scale")
    if scale not in scales:
        known = suggest(scale, scales) if scales else "; it has none"
        raise UsageError(f"has no scale {scale!r}{known}", key="scale", expected=list(scales), found=scale)
    changes = scales[scale]
    if not isinstance(changes, Mapping):
        raise wrong_value(f"scale.{scale}", "a table", changes)
    _check_keys(changes, [*KEYS, *TABLES], f"scale.{scale}.")
    scaled = dict(fields) | dict(changes)
    for table in ("set", "corpus", "sampling"):
        if table in fields or table in changes:
            scaled[table] = flatten(_read_table(fields, table)) | flatten(_read_table(changes, table))
    if "axes" in changes and "axes" in fields:
        scaled["axes"] = _flatten_axes(fields["axes"]) | _flatten_axes(changes["axes"])
    return scaled


def _check_clashes(axes: Sequence[AxisGroup], variants: Mapping[str, Labels], seeds: object) -> None:
    """Raise `UsageError` if two parts of the file set the same key."""
    keys = [key for group in axes for key in group.keys]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"{key} is listed as an axis twice", key=key)
        for name, values in variants.items():
            if key in values:
                raise UsageError(f"{key} is an axis, but the variant {name!r} also sets it", key=key)
    if seeds is not None and "seed" in keys:
        raise UsageError("seed is an axis, but the sweep also has seeds", key="seed")
    for name, values in variants.items():
        if seeds is not None and "seed" in values:
            raise UsageError(f"the variant {name!r} sets seed, but the sweep also has seeds", key="seed")


def _check_not_varied(
    key: str, axes: Sequence[AxisGroup], variants: Mapping[str, Labels], seeds: object
) -> None:
    """Raise `UsageError` if runs differ in a key that an override sets."""
    reasons = [f"{axis} is an axis" for group in axes for axis in group.keys if _sets_same_value(key, axis)]
    reasons += [
        f"the variant {name!r} sets {other}"
        for name, values in variants.items()
        for other in values
        if _sets_same_value(key, other)
    ]
    if key == "seed" and seeds is not None:
        reasons.append("the sweep has seeds")
    if reasons:
        message = f"{key} cannot have one value in all runs: {reasons[0]}; edit the file instead"
        raise UsageError(message, key=key)


def _sets_same_value(key: str, other: str) -> bool:
    """Return whether two keys set the same value; all limits of a budget count as one."""
    if key.startswith("budget."):
        return other.startswith("budget.")
    return key == other or other.startswith(key + ".")


# The parts


def _read_axes(fields: Mapping[str, Any]) -> list[AxisGroup]:
    groups = [
        AxisGroup([key], [[item] for item in expand_axis(value, key)], [key])
        for key, value in _flatten_axes(_read_table(fields, "axes")).items()
    ]
    pairs = fields.get("pairs", [])
    if not isinstance(pairs, list):
        message = "pairs must be written [[pairs]], one table per group of axes"
        raise UsageError(message, key="pairs", found=pairs)
    return groups + [_read_pair(pair) for pair in pairs]


def _read_pair(pair: object) -> AxisGroup:
    lists = {
        key: expand_axis(value, key, allow_repeats=number > 0)
        for number, (key, value) in enumerate(_flatten_axes(pair).items())
    }
    if not lists:
        raise UsageError("a group of [[pairs]] has no axes", key="pairs")
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) > 1:
        listed = " and ".join(f"{key} has {length}" for key, length in lengths.items())
        message = f"axes in [[pairs]] must have equal numbers of values, but {listed}"
        raise UsageError(message, key="pairs", found=lengths)
    rows = [list(row) for row in zip(*lists.values(), strict=True)]
    return AxisGroup(list(lists), rows, list(lists)[:1])


def _read_variants(fields: Mapping[str, Any]) -> dict[str, Labels]:
    variants = _read_table(fields, "variants")
    if "variants" in fields and not variants:
        raise UsageError("[variants] is empty; add at least one", key="variants")
    for name, values in variants.items():
        if not isinstance(values, Mapping):
            message = f"the variant {name!r} must be a table of values, but is {values!r}"
            raise UsageError(message, key=name, found=values)
    return {name: flatten(values) for name, values in variants.items()}


def _read_seeds(fields: Mapping[str, Any]) -> list[int] | None:
    seeds = fields.get("seeds")
    if seeds is None:
        return None
    if type(seeds) is int and 0 < seeds <= MAX_TRIALS:
        return list(range(seeds))
    if isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds):
        return expand_axis(seeds, "seeds")
    expected = f"a number of seeds from 1 to {MAX_TRIALS:,} or a list of integers"
    raise wrong_value("seeds", expected, seeds)


def _read_baseline(fields: Mapping[str, Any]) -> Labels:
    baseline = fields.get("baseline", {})
    if isinstance(baseline, str):
        return {"variant": baseline}
    if not isinstance(baseline, Mapping):
        raise wrong_value("baseline", "a table of values or the name of a variant", baseline)
    return flatten(baseline)


def _check_keys(fields: Mapping[str, Any], known: Sequence[str], prefix: str = "") -> None:
    for key in fields:
        if key not in known:
            raise UsageError(f"unknown key {prefix}{key}{suggest(key, known, prefix)}", key=prefix + key)


def _read_table(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name, {})
    if not isinstance(value, Mapping):
        raise wrong_value(name, "a table", value)
    return value


def _read_prefixed(fields: Mapping[str, Any], table: str) -> Labels:
    return {f"{table}.{key}": value for key, value in flatten(_read_table(fields, table)).items()}


def _flatten_axes(fields: object, prefix: str = "") -> dict[str, Any]:
    """Return nested tables with dotted keys; ranges, which are tables too, are values."""
    if not isinstance(fields, Mapping):
        raise wrong_value("axes", "a table of lists and ranges", fields)
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, Mapping) and not is_range(value):
            flat |= _flatten_axes(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _read_choice(fields: Mapping[str, Any], key: str, choices: Sequence[str]) -> Any:
    """Return a value that must be one of `choices`; by default the first."""
    value = fields.get(key, choices[0])
    if value not in choices:
        raise wrong_value(key, f"one of {', '.join(map(repr, choices))}", value)
    return value


def _read_text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise wrong_value(key, "a string", value)
    return " ".join(value.split())
