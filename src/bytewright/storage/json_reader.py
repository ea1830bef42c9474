"""What an untrusted file says, with the place where it says it, so that a complaint can name both.

`Json` promises that what its methods return has the type they say, and that strings are Unicode text without
lone surrogates; anything else is a `FormatError`. `read_lines` does the same for a file of lines. This module
does not know what the files mean.
"""

from __future__ import annotations

import dataclasses
import os
import reprlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bytewright.errors import FormatError, UsageError, suggest
from bytewright.storage import atomic

T = TypeVar("T")

MAX_INTEGER = 2**63 - 1
"""The largest integer that arrays and tensors can hold."""

KINDS = {dict: "an object", list: "an array", str: "a string", int: "an integer", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value, the file it came from, and the path of keys that leads to it.

    >>> vocabulary = Json({"vocab": {"a": "7"}}, Path("tokenizer.json"))
    >>> vocabulary["vocab"]["a"].as_integer()
    Traceback (most recent call last):
    bytewright.errors.FormatError: tokenizer.json: vocab.a should be an integer, but is '7'
    """

    value: object
    file: Path
    place: str = ""

    @classmethod
    def read(cls, path: atomic.StrPath) -> Json:
        """Read a whole file as strict JSON."""
        return cls(atomic.read_json(path), Path(path))

    def complain(self, expected: str) -> FormatError:
        """Make the error that says what should stand here."""
        if isinstance(self.value, dict | list):
            found = KINDS[type(self.value)]
        else:
            found = shorten(self.value)
            found = {"None": "null", "True": "true", "False": "false"}.get(found, found)
        return FormatError(f"{self.file}: {self.place or 'the file'} should be {expected}, but is {found}")

    def __getitem__(self, key: str) -> Json:
        """Step into an object; a key that is not there is a complaint."""
        if key not in self.as_object():
            raise FormatError(f"{self.file}: {self._step(key)} is missing")
        return self.get(key)

    def get(self, key: str) -> Json:
        """Step into an object; a key that is not there is null."""
        return Json(self.as_object().get(key), self.file, self._step(key))

    def elements(self) -> Iterator[Json]:
        """Step into an array, element by element."""
        return (Json(value, self.file, f"{self.place}[{n}]") for n, value in enumerate(self.as_array()))

    def refuse_other_keys(self, *known: str) -> None:
        """Complain of a key that we do not know: it may ask for something that we would not do."""
        for key in self.as_object():
            if key not in known:
                raise FormatError(f"{self.file}: {self._step(key)} is not a key that is known here")

    def as_object(self) -> dict[str, object]:
        """Return the value as an object."""
        if not isinstance(self.value, dict):
            raise self.complain(KINDS[dict])
        return self.value

    def as_array(self) -> list[object]:
        """Return the value as an array."""
        if not isinstance(self.value, list):
            raise self.complain(KINDS[list])
        return self.value

    def as_text(self) -> str:
        """Return the value as a string of Unicode text."""
        if not isinstance(self.value, str):
            raise self.complain(KINDS[str])
        try:
            self.value.encode()
        except UnicodeEncodeError:
            raise self.complain("Unicode text without lone surrogates") from None
        return self.value

    def as_integer(self) -> int:
        """Return the value as an integer; 7.0 and true are none."""
        if type(self.value) is not int:
            raise self.complain(KINDS[int])
        return self.value

    def as_boolean(self, default: bool) -> bool:
        """Return the value as true or false; null, or no value at all, is the default."""
        if self.value is None:
            return default
        if not isinstance(self.value, bool):
            raise self.complain(KINDS[bool])
        return self.value

    def _step(self, key: str) -> str:
        shown = key if key.isidentifier() and len(key) <= 40 else shorten(key)
        return f"{self.place}.{shown}" if self.place else shown


def read_lines(path: atomic.StrPath) -> list[str]:
    """Read a UTF-8 file as lines; a byte order mark, a carriage return or an empty line within is refused."""
    text = atomic.read_text(path)
    if text.startswith("\ufeff"):
        raise FormatError(f"{path}: begins with a byte order mark; expected plain UTF-8")
    lines = text.removesuffix("\n").split("\n") if text else []
    for number, line in enumerate(lines, start=1):
        if not line:
            raise FormatError(f"{path}: line {number} is empty")
        if "\r" in line:
            raise FormatError(
                f"{path}: line {number} holds a carriage return; expected line ends of LF alone"
            )
    return lines


def shorten(value: object) -> str:
    """Show a value in an error sentence: on one line, and no longer than a sentence can bear.

    >>> shorten(b"newest"), shorten("a" * 10_000)
    ("b'newest'", "'aaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaa'")
    """
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python refuses to write out an integer of thousands of digits
        return f"<{type(value).__name__} too long to show>"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 42


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
    """Return `value` as the annotated type: a whole number may stand for a float, a string for a path."""
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
