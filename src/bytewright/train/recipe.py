"""Read a `TrainConfig` from a recipe or a run, and convert it to plain values for JSON.

A recipe is a TOML file whose tables are the fields of `TrainConfig`. `storage.config_reader.build` checks
every value, from a TOML file, from the command line or from the config.json of a run. An error names the key,
and the closest known key if it is unknown. The dataclasses themselves check ranges and combinations.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from bytewright.errors import FormatError, UsageError
from bytewright.model import ModelConfig
from bytewright.storage.atomic import StrPath, read_document, read_toml
from bytewright.storage.config_reader import build, convert
from bytewright.train.config import TrainConfig, check_positive

MAX_RECIPE_BYTES = 2**20
POSITIVE_SETTINGS = (
    *("batch_size", "max_refused", "model.context_length", "model.vocab_size"),
    *("budget.steps", "budget.tokens", "budget.minutes"),
)
"""The sizes and limits that determine the status of a run."""


def read_recipe(
    path: StrPath, overrides: Sequence[str] = (), *, model: ModelConfig | None = None
) -> TrainConfig:
    """Read a TOML recipe; each override, `"optimizer.lr=3e-4"`, replaces one value of it.

    `model` supplies the settings that the recipe leaves out of [model].
    """
    fields = _with_overrides(read_toml(path, max_bytes=MAX_RECIPE_BYTES), overrides)
    if "question" in fields:
        raise UsageError.at(path, "is a sweep, not a recipe; run it with `bytewright sweep`")
    if model is not None and isinstance(fields.setdefault("model", {}), dict):
        fields["model"] = model.to_dict() | fields["model"]
    return build(TrainConfig, fields, source=str(path))


def _with_overrides(fields: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for override in overrides:
        put(fields, *parse_override(override))
    return fields


def read_config(path: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read the config.json of a run; each override replaces one value of it."""
    fields = _with_overrides(read_document(path, max_bytes=MAX_RECIPE_BYTES), overrides)
    config = build(TrainConfig, fields, source=str(path))
    return dataclasses.replace(config, data=config.data.seen_from(path.parent))


def read_plan(path: Path, overrides: Sequence[str] = ()) -> tuple[ModelConfig, TrainConfig | None]:
    """Read the model and the run of a recipe or of the config.json of a run; overrides replace values.

    The run is None if the file has a model alone, without a budget.
    """
    is_run = path.suffix == ".json"
    fields = (read_document if is_run else read_toml)(path, max_bytes=MAX_RECIPE_BYTES)
    model = _build_model(_with_overrides(fields, overrides), path)
    if "budget" not in fields:
        return model, None
    return model, (read_config if is_run else read_recipe)(path, overrides)


def _build_model(fields: Mapping[str, Any], path: Path) -> ModelConfig:
    """Return the model config of the fields of a recipe or of a run."""
    if not isinstance(fields.get("model", {}), dict):
        raise FormatError.at(path, "model must be a table with the sizes of a model", key="model")
    if isinstance(base := fields.get("base"), str):
        raise FormatError.at(path, f"is a sweep; use its base recipe, {base}", key="base", found=base)
    prefix = "model." if "model" in fields else ""
    try:
        return build(ModelConfig, fields.get("model", fields), source=str(path), path=prefix)
    except UsageError as error:
        raise FormatError(str(error), path=path, key=error.key) from None


def check_fields(fields: Mapping[str, Any], source: Path) -> None:
    """Raise `FormatError` if a value of a config has the wrong type, or a size or limit is not positive.

    Unknown fields are ignored, and names of parts are not looked up: another version or a plugin may define
    them. So any run can be listed, without torch and without its plugin.
    """
    settings = flatten(fields)
    try:
        _convert_known(TrainConfig, fields, str(source))
        check_positive({name: settings.get(name) for name in POSITIVE_SETTINGS})
    except UsageError as error:
        message = str(error) if error.path else f"{source}: {error}"
        raise FormatError(message, path=source, key=error.key, found=error.found) from None


def _convert_known(cls: type, fields: Mapping[str, Any], source: str, prefix: str = "") -> None:
    kinds = get_type_hints(cls)
    for key in fields.keys() & kinds.keys():
        if dataclasses.is_dataclass(kinds[key]) and isinstance(fields[key], Mapping):
            _convert_known(kinds[key], fields[key], source, f"{prefix}{key}.")
        else:
            convert(kinds[key], fields[key], source, prefix + key)


def check_kinds(settings: Mapping[str, Any], source: Path) -> None:
    """Raise `FormatError` if a known setting, given by its dotted key, has the wrong type."""
    try:
        _convert_known(TrainConfig, unflatten(settings), str(source))
    except UsageError as error:
        raise FormatError(str(error), path=source, key=error.key, found=error.found) from None


def to_plain(config: TrainConfig, *, run: Path | None = None) -> dict[str, Any]:
    """Return a config as JSON values; `build` converts them back to an equal config.

    With `run`, the paths of the data are relative to that folder, as in the files of a run. So a run can be
    moved together with its data.
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
    """Parse an override `key=value`; the value is TOML, or otherwise a string.

    >>> parse_override("batch-size=4"), parse_override("model.norm=post")
    (('batch_size', 4), ('model.norm', 'post'))
    """
    key, equals, text = override.partition("=")
    if not equals:
        message = f"{override!r} has no value; write key=value, such as optimizer.lr=3e-4"
        raise UsageError(message, found=override)
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # too many digits, nested too deeply
        value = text
    return key.strip().replace("-", "_"), value


def put(fields: dict[str, Any], key: str, value: Any) -> None:
    """Set the value at a dotted key; missing tables are created."""
    *tables, last = key.split(".")
    for table in tables:
        fields = fields.setdefault(table, {})
        if not isinstance(fields, dict):
            raise UsageError(f"{key} cannot be set: {table} is a value, not a table", key=key)
    fields[last] = value


def flatten(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested fields with dotted keys.

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
    """Return fields with dotted keys as nested ones.

    >>> unflatten({"seed": 1, "optimizer.lr": 0.01})
    {'seed': 1, 'optimizer': {'lr': 0.01}}
    """
    fields: dict[str, Any] = {}
    for key, value in settings.items():
        put(fields, key, value)
    return fields
