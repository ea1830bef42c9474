"""From a recipe to a checked `TrainConfig`, and back to plain values for the run's record.

A recipe is a TOML file whose tables are the fields of `TrainConfig`. One reader checks every value, wherever
it came from (a TOML file, a `--key value` on the command line, the config.json of a run): an unknown key is
refused with the nearest known one, a value of the wrong kind by its name, and what a field means is checked
by the dataclass itself. Nothing here knows what the fields are for.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from bytewright.errors import FormatError, UsageError
from bytewright.storage.atomic import StrPath, read_document, read_toml
from bytewright.storage.config_reader import build, convert
from bytewright.train.config import TrainConfig

MAX_RECIPE_BYTES = 2**20


def read_recipe(path: StrPath, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a TOML recipe; each override, `"optimizer.lr=3e-4"`, replaces one value of it."""
    fields = read_toml(path, max_bytes=MAX_RECIPE_BYTES)
    if "question" in fields:
        raise UsageError(f"{path}: is a sweep, not a recipe; `bytewright sweep` carries it out")
    for override in overrides:
        put(fields, *parse_override(override))
    return build(TrainConfig, fields, source=str(path))


def read_config(path: Path) -> TrainConfig:
    """Read the config.json of a run."""
    config = build(TrainConfig, read_document(path, max_bytes=MAX_RECIPE_BYTES), source=str(path))
    return dataclasses.replace(config, data=config.data.seen_from(path.parent))


def check_config(fields: Mapping[str, Any], source: Path) -> None:
    """Raise `FormatError` unless the fields make a valid config; those of another version are left out."""
    try:
        build(TrainConfig, _known_fields(TrainConfig, fields), source=str(source))
    except UsageError as error:
        raise FormatError(str(error)) from None


def _known_fields(cls: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    kinds = get_type_hints(cls)
    return {
        key: _known_fields(kinds[key], value)
        if dataclasses.is_dataclass(kinds[key]) and isinstance(value, dict)
        else value
        for key, value in fields.items()
        if key in kinds
    }


def check_kinds(settings: Mapping[str, Any], source: Path) -> None:
    """Raise `FormatError` if a setting that this version has, by its dotted key, is of a wrong kind."""
    for name, value in settings.items():
        kind: Any = TrainConfig
        for part in name.split("."):
            kind = get_type_hints(kind).get(part) if dataclasses.is_dataclass(kind) else None
        if kind is not None:
            try:
                convert(kind, value, str(source), name)
            except UsageError as error:
                raise FormatError(str(error)) from None


def to_plain(config: TrainConfig, *, run: Path | None = None) -> dict[str, Any]:
    """Return a config as values that JSON has; `build` reads them back to an equal config.

    With `run`, the paths of the data are relative to that folder, as the files of a run have them: so they
    name no folder above, and a run can be moved together with its data.
    """
    if run is not None:
        config = dataclasses.replace(config, data=config.data.relative_to(run))

    def plain(value: object) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return str(value) if isinstance(value, Path) else value

    fields: dict[str, Any] = plain(dataclasses.asdict(config))
    return fields


def parse_override(override: str) -> tuple[str, Any]:
    """Read one value to replace: `key=value`, with the value as TOML writes it or as a bare word, a string.

    >>> parse_override("batch-size=4"), parse_override("model.norm=post")
    (('batch_size', 4), ('model.norm', 'post'))
    """
    key, equals, text = override.partition("=")
    if not equals:
        raise UsageError(f"{override!r} sets nothing; write key=value, such as optimizer.lr=3e-4")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # too many digits, nested too deeply
        value = text
    return key.strip().replace("-", "_"), value


def put(fields: dict[str, Any], key: str, value: Any) -> None:
    """Set the value at a dotted key, in tables that are made where there are none."""
    *tables, last = key.split(".")
    for table in tables:
        fields = fields.setdefault(table, {})
        if not isinstance(fields, dict):
            raise UsageError(f"{key} cannot be set: {table} is a value, not a table")
    fields[last] = value


def flatten(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Write nested fields with dotted keys.

    >>> flatten({"seed": 1, "optimizer": {"lr": 0.01}})
    {'seed': 1, 'optimizer.lr': 0.01}
    """
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def unflatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nest dotted keys again.

    >>> unflatten({"seed": 1, "optimizer.lr": 0.01})
    {'seed': 1, 'optimizer': {'lr': 0.01}}
    """
    fields: dict[str, Any] = {}
    for key, value in settings.items():
        put(fields, key, value)
    return fields
