"""Builds configuration dataclasses from parsed JSON and TOML, with errors that name the file and the key."""

from __future__ import annotations

import dataclasses
import os
import sys
import types
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bytewright.errors import UsageError, suggest

T = TypeVar("T")

MAX_INTEGER = 2**63 - 1
"""The largest integer that arrays and tensors can hold."""


def build(cls: type[T], fields: object, *, source: str, path: str = "") -> T:
    """Return an instance of the dataclass `cls` with the values of a JSON object or a TOML table.

    Unknown and missing keys and values of a wrong type raise `UsageError`. Its message names `source` and the
    key, after the prefix `path`.

    >>> from bytewright.train.config import ScheduleConfig
    >>> build(ScheduleConfig, {"warmup": 5, "final": 0}, source="base.toml").final
    0.0
    >>> build(ScheduleConfig, {"warmpu": 5}, source="base.toml", path="schedule.")
    Traceback (most recent call last):
    bytewright.errors.UsageError: base.toml: unknown key schedule.warmpu; did you mean schedule.warmup?
    """
    if not isinstance(fields, dict):
        key = path.rstrip(".")
        raise UsageError(
            f"{source}: {key or 'the file'} must be a table, not {fields!r}",
            path=source,
            key=key,
            expected="a table",
            found=fields,
        )
    kinds = get_type_hints(cls)
    for key in fields:
        if key not in kinds:
            raise UsageError(
                f"{source}: unknown key {path}{key}{suggest(str(key), kinds, path)}",
                path=source,
                key=f"{path}{key}",
            )
    values = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name in fields:
            values[field.name] = convert(kinds[field.name], fields[field.name], source, path + field.name)
        elif field.default is field.default_factory is dataclasses.MISSING:
            key = path + field.name
            raise UsageError(f"{source}: {key} is missing", path=source, key=key)
    try:
        return cls(**values)
    except UsageError as error:
        name = error.key if error.key is None or error.key.startswith(path) else path + error.key
        raise UsageError(
            f"{source}: {error}", path=source, key=name, expected=error.expected, found=error.found
        ) from None


def convert(kind: Any, value: object, source: str, name: str) -> object:
    """Return `value` converted to the annotated type: whole numbers to floats, strings to paths."""
    if get_origin(kind) in (Union, types.UnionType):
        if value is None:
            return None
        (kind,) = (option for option in get_args(kind) if option is not type(None))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return build(kind, value, source=source, path=f"{name}.")
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        expected = f"one of {', '.join(map(repr, get_args(kind)))}"
    elif get_origin(kind) is list:
        if isinstance(value, list):
            (of,) = get_args(kind)
            return [convert(of, item, source, f"{name}[{i}]") for i, item in enumerate(value)]
        expected = "a list"
    elif kind is float and isinstance(value, int | float) and type(value) is not bool and _fits_float(value):
        return float(value)
    elif kind is Path and isinstance(value, str) and _is_file_name(value):
        return Path(value)
    elif type(value) is kind and (kind is not int or abs(value) <= MAX_INTEGER):  # type: ignore[arg-type]
        return value
    else:
        words = {
            int: f"at most {MAX_INTEGER}" if type(value) is int else "a whole number",
            float: "a number",
            bool: "true or false",
            str: "a string",
            Path: "a path",
        }
        expected = words[kind]
    raise UsageError(
        f"{source}: {name} must be {expected}, but is {repr(value)[:60]}",
        path=source,
        key=name,
        expected=expected,
        found=value,
    )


def _fits_float(value: float) -> bool:
    """Return whether a number is in the range of a float; an integer can have hundreds of digits."""
    return not isinstance(value, int) or abs(value) <= sys.float_info.max


def _is_file_name(text: str) -> bool:
    """Return whether the operating system accepts `text` as a path: no zero byte, no lone surrogate."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
