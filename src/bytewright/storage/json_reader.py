"""Strict reading of untrusted JSON, TOML and text, with errors that name the file and the place in it.

`parse_json` rejects what JSON readers usually tolerate: repeated keys, NaN, numbers beyond the range of a
float, deep nesting. `Json` wraps a parsed value: `as_text` and similar methods return a value of one type or
raise `FormatError`. A *document* is a JSON object whose field `checksum` is a SHA-256 of the other fields. A
document without it, edited by a user or written by an earlier version, is read without the check.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bytewright.errors import FormatError, shorten, show_key
from bytewright.storage.filesystem import StrPath, read_bytes

KINDS = {dict: "an object", list: "an array", str: "a string", int: "an integer", bool: "true or false"}
CHECKSUM = "checksum"
MAX_DIGITS = 308
"""The largest number of digits of an integer that always fits in a float."""
MAX_DEPTH = 100
"""How deep the values of a file may be nested: less than recursive functions can follow."""


def read_text(path: StrPath, *, max_bytes: int | None = None) -> str:
    """Return the contents of a UTF-8 file; line ends are not converted."""
    return decode_text(read_bytes(path, max_bytes=max_bytes), path)


def decode_text(data: bytes, path: StrPath) -> str:
    """Return the contents of the UTF-8 file at `path`."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError.at(path, f"byte {error.start} is not UTF-8 ({error.reason})") from None


def read_lines(path: StrPath) -> list[str]:
    """Return the lines of a UTF-8 file; a byte order mark, a carriage return or an empty line is an error."""
    text = read_text(path)
    if text.startswith("\ufeff"):
        raise FormatError.at(path, "begins with a byte order mark; expected plain UTF-8")
    lines = text.removesuffix("\n").split("\n") if text else []
    for number, line in enumerate(lines, start=1):
        problem = (
            "is empty" if not line else "has a carriage return; expected LF line ends" if "\r" in line else ""
        )
        if problem:
            raise FormatError.at(path, f"line {number} {problem}", key=f"line {number}")
    return lines


def read_toml(path: StrPath, *, max_bytes: int | None = None) -> dict[str, Any]:
    """Return the contents of a TOML file."""
    try:
        fields = tomllib.loads(read_text(path, max_bytes=max_bytes))
        _check_depth(fields)
        return fields
    except FormatError:
        raise
    except RecursionError:
        raise FormatError.at(path, "is not valid TOML (nested too deeply)") from None
    except ValueError as error:  # also an integer of thousands of digits
        raise FormatError.at(path, f"is not valid TOML ({error})") from None


def read_json(path: StrPath, *, max_bytes: int | None = None) -> object:
    """Return the value of a JSON file, read strictly as by `parse_json`."""
    return parse_json(read_text(path, max_bytes=max_bytes), path)


def parse_json(text: str, source: StrPath) -> object:
    """Return the value of a JSON text; `source` names the file in the error.

    A repeated key, NaN, too deep nesting and a number beyond the range of a float raise `FormatError`.
    Every number in the result is therefore finite and can be converted to a float.

    >>> parse_json('{"a": 1, "a": 2}', "vocab.json")
    Traceback (most recent call last):
    bytewright.errors.FormatError: vocab.json: is not valid JSON (the key 'a' is given twice)
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_make_object,
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=_parse_integer,
        )
        _check_depth(value)
        return value
    except RecursionError:
        raise FormatError.at(source, "is not valid JSON (nested too deeply)") from None
    except ValueError as error:
        raise FormatError.at(source, f"is not valid JSON ({error})") from None


def _make_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value: dict[str, object] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {shorten(key)} is given twice")
        value[key] = item
    return value


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shorten(text)} is beyond the range of a float")
    return value


def _parse_integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits is beyond the range of a float")
    return int(text)


def _check_depth(value: object) -> None:
    """Raise `RecursionError` if objects and arrays are nested more than `MAX_DEPTH` deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise RecursionError


def dump_json(value: object) -> bytes:
    """Return `value` as indented JSON in UTF-8 with a line end.

    Lone surrogates (bytes of a path that are not UTF-8) become JSON escapes, which `parse_json` reads back.
    """
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    return text.encode(errors="backslashreplace")


def read_document(path: StrPath, *, max_bytes: int | None = None) -> dict[str, Any]:
    """Return the fields of a document; raise `FormatError` if its checksum does not match."""
    return without_checksum(read_json(path, max_bytes=max_bytes), path)


def with_checksum(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a document with their checksum."""
    return {**fields, CHECKSUM: _hash_fields(fields)}


def without_checksum(value: object, source: StrPath) -> dict[str, Any]:
    """Return the fields of a parsed document; raise `FormatError` if its checksum does not match them.

    >>> without_checksum({"seed": 1}, "config.json")
    {'seed': 1}
    >>> without_checksum(with_checksum({"seed": 1}) | {"seed": 3}, "config.json")
    Traceback (most recent call last):
    bytewright.errors.FormatError: config.json: does not match its checksum, so it was damaged or edited; \
if you edited it, remove its "checksum"
    """
    if not isinstance(value, dict):
        message = f"{source}: must be a JSON object, but is {shorten(value)}"
        raise FormatError(message, path=source, expected=dict, found=value)
    fields = {name: field for name, field in value.items() if name != CHECKSUM}
    is_damaged = any(is_damaged_name(name, CHECKSUM) for name in value)
    is_sound = value[CHECKSUM] == _hash_fields(fields) if CHECKSUM in value else not is_damaged
    if not is_sound:
        message = (
            f"{source}: does not match its checksum, so it was damaged or edited;"
            f' if you edited it, remove its "{CHECKSUM}"'
        )
        raise FormatError(message, path=source, key=CHECKSUM)
    return fields


def is_damaged_name(name: str, expected: str) -> bool:
    """Return whether a name may be the expected one with some letters changed.

    >>> is_damaged_name("chebksum", "checksum"), is_damaged_name("schedule", "checksum")
    (True, False)
    """
    num_equal = sum(letter == other for letter, other in zip(name, expected, strict=False))
    return len(name) == len(expected) and len(expected) / 2 < num_equal < len(expected)


def _hash_fields(fields: Mapping[str, object]) -> str:
    # A hash of the values, not of the bytes of the file: the file may be indented differently.
    return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value, the file that it is from, and the path of keys that leads to it.

    >>> vocabulary = Json({"vocab": {"a": "7"}}, Path("tokenizer.json"))
    >>> vocabulary["vocab"]["a"].as_integer()
    Traceback (most recent call last):
    bytewright.errors.FormatError: tokenizer.json: vocab.a should be an integer, but is '7'
    """

    value: object
    file: Path
    place: str = ""

    @classmethod
    def read(cls, path: StrPath) -> Json:
        """Read a whole file as strict JSON."""
        return cls(read_json(path), Path(path))

    def error(self, expected: str) -> FormatError:
        """Return the error that states what is expected here and what was found."""
        if isinstance(self.value, dict | list):
            found = KINDS[type(self.value)]
        else:
            found = shorten(self.value)
            found = {"None": "null", "True": "true", "False": "false"}.get(found, found)
        message = f"{self.file}: {self.place or 'the file'} should be {expected}, but is {found}"
        return FormatError(message, path=self.file, key=self.place, expected=expected, found=self.value)

    def __getitem__(self, key: str) -> Json:
        """Return the value of a key of an object; a missing key is an error."""
        if key not in self.as_object():
            place = self._step(key)
            raise FormatError.at(self.file, f"{place} is missing", key=place)
        return self.get(key)

    def get(self, key: str) -> Json:
        """Return the value of a key of an object; a missing key has the value null."""
        return Json(self.as_object().get(key), self.file, self._step(key))

    def elements(self) -> Iterator[Json]:
        """Return the elements of an array."""
        return (Json(value, self.file, f"{self.place}[{n}]") for n, value in enumerate(self.as_array()))

    def check_keys(self, *known: str) -> None:
        """Raise if the object has an unknown key, which may be an unsupported feature."""
        for key in self.as_object():
            if key not in known:
                place = self._step(key)
                raise FormatError.at(self.file, f"{place} is an unknown key", key=place)

    def as_object(self) -> dict[str, object]:
        """Return the value as an object."""
        if not isinstance(self.value, dict):
            raise self.error(KINDS[dict])
        return self.value

    def as_array(self) -> list[object]:
        """Return the value as an array."""
        if not isinstance(self.value, list):
            raise self.error(KINDS[list])
        return self.value

    def as_text(self) -> str:
        """Return the value as a string without lone surrogates."""
        if not isinstance(self.value, str):
            raise self.error(KINDS[str])
        try:
            self.value.encode()
        except UnicodeEncodeError:
            raise self.error("Unicode text without lone surrogates") from None
        return self.value

    def as_sha256(self) -> str:
        """Return the value as a SHA-256 in lower-case hexadecimal digits."""
        if not re.fullmatch("[0-9a-f]{64}", text := self.as_text()):
            raise self.error("64 hexadecimal digits")
        return text

    def as_integer(self, lowest: float = -math.inf, highest: float = math.inf) -> int:
        """Return the value as an integer between two bounds, inclusive; 7.0 and true are not integers."""
        if type(self.value) is not int:
            raise self.error(KINDS[int])
        if not lowest <= self.value <= highest:
            raise self.error(f"from {lowest} to {highest}" if highest < math.inf else f"at least {lowest}")
        return self.value

    def as_number(self) -> float:
        """Return the value as a number; true is not a number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.error("a number")
        return float(self.value)

    def expect(self, value: str) -> None:
        """Raise unless this is the given text."""
        if self.value != value:
            raise self.error(shorten(value))

    def as_boolean(self, default: bool) -> bool:
        """Return the value as true or false; null or a missing value is the default."""
        if self.value is None:
            return default
        if not isinstance(self.value, bool):
            raise self.error(KINDS[bool])
        return self.value

    def _step(self, key: str) -> str:
        return f"{self.place}.{show_key(key)}" if self.place else show_key(key)
