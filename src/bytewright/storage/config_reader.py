"""Build configuration dataclasses from parsed JSON and TOML, with errors that name the file and the key.

`read_options` does the same for the table `options` of a registered part: its parameters are the keys. Each
field of a dataclass is documented by a string below it, which Python discards. `document_fields` adds these
strings to the docstring of the class, where `help()` shows them; `describe_fields` returns them. Without
source code there are no descriptions, and nothing else changes.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import os
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bytewright.errors import UsageError, shorten, show_key, suggest, wrong_value

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
        message = f"{source}: {key or 'the file'} must be a table, not {shorten(fields)}"
        raise UsageError(message, path=source, key=key, expected="a table", found=fields)
    kinds = get_type_hints(cls)
    for key in fields:
        if key not in kinds:
            meant = [name for name in list_keys(cls, path) if name.endswith(f".{key}")]
            hint = f"; did you mean {' or '.join(meant)}?" if meant else suggest(str(key), kinds, path)
            message = f"{source}: unknown key {path}{show_key(key)}{hint}"
            raise UsageError(message, path=source, key=f"{path}{key}")
    values = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name in fields:
            values[field.name] = convert(kinds[field.name], fields[field.name], source, path + field.name)
        elif field.default is field.default_factory is dataclasses.MISSING:
            key = path + field.name
            raise UsageError.at(source, f"{key} is missing", key=key)
    try:
        return cls(**values)
    except UsageError as error:
        name = error.key if error.key is None or error.key.startswith(path) else path + error.key
        raise UsageError.at(source, error, key=name, expected=error.expected, found=error.found) from None


def list_keys(cls: type, prefix: str = "") -> list[str]:
    """Return the keys of all values of a dataclass, those of nested ones with the path to them."""
    keys = []
    for name, kind in get_type_hints(cls).items():
        inner = dataclasses.is_dataclass(kind) and isinstance(kind, type)
        keys += list_keys(kind, f"{prefix}{name}.") if inner else [prefix + name]
    return keys


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
    elif get_origin(kind) is dict:
        if isinstance(value, dict):
            return dict(value)
        expected = "a table"
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
    raise wrong_value(name, expected, value, path=source)


def read_options(
    part: Callable[..., Any], options: Mapping[str, Any], *, provided: Collection[str], key: str
) -> dict[str, Any]:
    """Return the options of a registered part, converted to the types of its keyword parameters.

    A part is a class or a function. Its options are the parameters that the caller does not pass itself
    (`provided`). An unknown or missing option and a value of a wrong type raise `UsageError`, whose key
    starts with `key`. Parameters without a type accept values of the type of their default.

    >>> def inverse_root(t: float, warmup: int, power: float = 0.5) -> float: ...
    >>> read_options(inverse_root, {"power": 1}, provided=("t", "warmup"), key="schedule.options")
    {'power': 1.0}
    >>> read_options(inverse_root, {"pwer": 1}, provided=("t", "warmup"), key="schedule.options")
    Traceback (most recent call last):
    bytewright.errors.UsageError: unknown key schedule.options.pwer; did you mean schedule.options.power?
    """
    declared = list_options(part, provided)
    for name in options:
        if name not in declared and not _takes_any_keyword(part):
            found = f"unknown key {key}.{show_key(name)}"
            hint = suggest(str(name), declared, f"{key}.") if declared else "; this part has no options"
            raise UsageError(found + hint, key=f"{key}.{name}", expected=list(declared))
    values = {}
    for name, parameter in declared.items():
        if name in options:
            values[name] = _convert_option(parameter, options[name], f"{key}.{name}")
        elif parameter.default is parameter.empty:
            raise UsageError(f"{key}.{name} is missing: this part requires it", key=f"{key}.{name}")
    return {**{name: value for name, value in options.items() if name not in declared}, **values}


def list_options(part: Callable[..., Any], provided: Collection[str]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a part that the caller does not pass itself, with their types and defaults."""
    return {name: parameter for name, parameter in _parameters(part).items() if name not in provided}


@functools.lru_cache(maxsize=256)
def _parameters(part: Any) -> dict[str, inspect.Parameter]:
    of = part.__init__ if isinstance(part, type) else part  # type: ignore[misc]
    try:
        kinds = get_type_hints(of)
    except (NameError, TypeError):  # a type that is imported for type checkers only
        kinds = {}
    declared = {}
    for name, parameter in inspect.signature(part).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            default = type(parameter.default) if parameter.default is not parameter.empty else Any
            declared[name] = parameter.replace(annotation=kinds.get(name, default))
    return declared


@functools.lru_cache(maxsize=256)
def _takes_any_keyword(part: Any) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(part).parameters.values())


def _convert_option(parameter: inspect.Parameter, value: object, key: str) -> object:
    """Return a value as one of the types of a parameter; types that TOML does not have accept any value."""
    if value is None and parameter.default is None:
        return None
    kinds = [parameter.annotation]
    if get_origin(parameter.annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(parameter.annotation) if kind is not type(None)]
    expected = []
    for kind in kinds:
        origin = get_origin(kind)
        if kind is tuple or origin is tuple:
            if isinstance(value, list | tuple):
                return tuple(value)
            expected.append("a list")
        elif kind in (int, float, bool, str, Path) or origin in (Literal, list, dict):
            try:
                return convert(kind, value, "", key)
            except UsageError as error:
                expected.append(str(error.expected))
        elif kind is Any or isinstance(parameter.annotation, str) or len(kinds) == 1:
            return value
    raise wrong_value(key, " or ".join(expected), value)


def _fits_float(value: float) -> bool:
    """Return whether a number is in the range of a float; an integer can have hundreds of digits."""
    return not isinstance(value, int) or abs(value) <= sys.float_info.max


def _is_file_name(text: str) -> bool:
    """Return whether the operating system accepts `text` as a path: no zero byte, no lone surrogate."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


# Documentation of fields


def document_fields(cls: type[T]) -> type[T]:
    """Add the descriptions of the fields to the docstring of a class; use it as a decorator."""
    lines = [f"{name}: {sentence}" for name, sentence in describe_fields(cls).items()]
    wrapped = ["\n".join(textwrap.wrap(line, 100, subsequent_indent="    ")) for line in lines]
    parts = (inspect.cleandoc(cls.__doc__ or ""), "\n".join(wrapped))
    cls.__doc__ = "\n\n".join(part for part in parts if part)
    return cls


def describe_fields(cls: type) -> dict[str, str]:
    """Return the descriptions of the fields of a class by field name, each on one line.

    >>> from bytewright.model import ModelConfig
    >>> describe_fields(ModelConfig)["d_model"]
    'Width of the residual stream.'
    """
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    sentences = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as sentence)),
            ):
                sentences[name] = " ".join(sentence.split())
    return sentences
