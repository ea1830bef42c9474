"""The manifest of a folder, and JSON files with a checksum: reading them, checked against what they must be.

A *document* is a JSON object whose last field, `checksum`, is a SHA-256 of the others. One without it, which
an earlier version wrote or a user edited, is read without the check. `manifest.json` is a document that
lists each file of a folder with its size and SHA-256. It is untrusted input: a name that is not a plain file
name, a repeated key or a number that is none is a `FormatError` that names the file, and memory stays
proportional to the file. `durable` writes both.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bytewright.errors import FormatError
from bytewright.storage import filesystem

MANIFEST = "manifest.json"
FORMAT = "bytewright folder 1"
MAX_MANIFEST_BYTES = 16 * 2**20
MAX_DIGITS = 308
"""The most digits of an integer that always fits in a float."""
MAX_DEPTH = 100
"""How deep the values of a file may be nested: less than what recursive functions can follow."""
CHECKSUM = "checksum"

_SHORT = reprlib.Repr()  # names out of a file, in a sentence that stays one
_SHORT.maxstring = 80


@dataclass(frozen=True)
class Entry:
    """What the manifest says of one file."""

    num_bytes: int
    sha256: str


def measure(path: Path) -> Entry:
    """Take the size and SHA-256 of a file, in memory that does not grow with it."""
    with filesystem.open_to_read(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return Entry(stream.tell(), digest)


def is_plain_name(name: str) -> bool:
    """Say whether `name` stays inside its folder, and is not the manifest."""
    return name not in ("", ".", "..", MANIFEST) and not any(mark in name for mark in "/\\\0")


@dataclass(frozen=True)
class Folder:
    """A folder written by `write_folder`, opened for reading; every read is checked against the manifest."""

    path: Path
    about: Mapping[str, object]
    files: Mapping[str, Entry]

    def read_bytes(self, name: str) -> bytes:
        """Read one file and check its size and SHA-256."""
        entry = self._entry(name)
        data = filesystem.read_bytes(self.path / name, max_bytes=entry.num_bytes)
        self._compare(name, Entry(len(data), hashlib.sha256(data).hexdigest()))
        return data

    def read_text(self, name: str) -> str:
        """Read one UTF-8 file and check it."""
        try:
            return self.read_bytes(name).decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"{self.path / name}: byte {error.start} is not UTF-8") from None

    def read_json(self, name: str) -> object:
        """Read one JSON file and check it."""
        return parse_json(self.read_text(name), self.path / name)

    def check(self, name: str) -> Path:
        """Check one file without keeping it in memory, and return its path: for files that are mapped."""
        self._entry(name)
        path = self.path / name
        with filesystem.explain("read", path):
            self._compare(name, measure(path))
        return path

    def _entry(self, name: str) -> Entry:
        if name not in self.files:
            raise FormatError(f"{self.path / MANIFEST}: lists no file {name!r}")
        return self.files[name]

    def _compare(self, name: str, found: Entry) -> None:
        expected = self.files[name]
        if found.num_bytes != expected.num_bytes:
            raise FormatError(
                f"{self.path / name}: has {found.num_bytes} bytes, but the manifest says {expected.num_bytes}"
            )
        if found.sha256 != expected.sha256:
            raise FormatError(
                f"{self.path / name}: its SHA-256 is {found.sha256[:12]}…, but the manifest says"
                f" {expected.sha256[:12]}…; the file was damaged or changed"
            )


def dump_manifest(about: Mapping[str, object], files: Mapping[str, Entry]) -> bytes:
    """Spell out a manifest: what the folder is, in its writer's words, and its files."""
    listed = {name: {"bytes": entry.num_bytes, "sha256": entry.sha256} for name, entry in files.items()}
    return dump_json(with_checksum({"format": FORMAT, "about": about, "files": listed}))


def parse_manifest(path: Path) -> tuple[Mapping[str, object], dict[str, Entry]]:
    """Read `about` and the files out of the manifest at `path`."""

    def expect(condition: bool, what: str) -> None:
        if not condition:
            raise FormatError(f"{path}: {what}")

    value = read_document(path, max_bytes=MAX_MANIFEST_BYTES)
    if value.get("format") != FORMAT:
        raise FormatError(f'{path}: does not say "format": "{FORMAT}"')
    expect(set(value) <= {"format", "about", "files"}, f"{_SHORT.repr(list(value))} has an unknown key")
    about, files = value.get("about"), value.get("files")
    if not isinstance(about, dict) or not isinstance(files, dict):
        raise FormatError(f'{path}: "about" and "files" must both be objects')
    entries: dict[str, Entry] = {}
    for name, entry in files.items():
        shown = _SHORT.repr(name)
        expect(is_plain_name(name), f"{shown} is not a plain file name")
        is_described = isinstance(entry, dict) and set(entry) == {"bytes", "sha256"}
        expect(is_described, f"{shown} needs bytes and sha256")
        num_bytes, sha256 = entry["bytes"], entry["sha256"]
        expect(type(num_bytes) is int and num_bytes >= 0, f"{shown} has no size in bytes")
        expect(isinstance(sha256, str) and len(sha256) == 64, f"{shown} has no SHA-256 of 64 digits")
        entries[name] = Entry(num_bytes, sha256)
    return about, entries


def read_text(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> str:
    """Read a UTF-8 file, line ends as they are."""
    try:
        return filesystem.read_bytes(path, max_bytes=max_bytes).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: byte {error.start} is not UTF-8 ({error.reason})") from None


def read_json(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> object:
    """Read a JSON file strictly, as `parse_json` does."""
    return parse_json(read_text(path, max_bytes=max_bytes), path)


def parse_json(text: str, source: str | os.PathLike[str]) -> object:
    """Parse JSON strictly; `source` names the file in the error.

    A repeated key, NaN, too deep nesting and a number beyond the range of a float are a `FormatError`. So
    every number that is read is finite and can be converted to a float.

    >>> parse_json('{"a": 1, "a": 2}', "vocab.json")
    Traceback (most recent call last):
    bytewright.errors.FormatError: vocab.json: is not valid JSON (the key 'a' is given twice)
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_refuse_repeated_keys,
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
            parse_int=_parse_integer,
        )
        check_depth(value)
        return value
    except RecursionError:
        raise FormatError(f"{source}: is not valid JSON (nested too deeply)") from None
    except ValueError as error:
        raise FormatError(f"{source}: is not valid JSON ({error})") from None


def check_depth(value: object) -> None:
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


def with_checksum(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a document with their checksum."""
    return {**fields, CHECKSUM: _digest_of(fields)}


def without_checksum(value: object, source: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of a document that was parsed; raise `FormatError` if they have another checksum.

    >>> without_checksum({"seed": 1}, "config.json")
    {'seed': 1}
    >>> without_checksum(with_checksum({"seed": 1}) | {"seed": 3}, "config.json")
    Traceback (most recent call last):
    bytewright.errors.FormatError: config.json: does not match its checksum, so it was damaged or edited; \
if you edited it, remove its "checksum"
    """
    if not isinstance(value, dict):
        raise FormatError(f"{source}: must be a JSON object, but is {_SHORT.repr(value)}")
    fields = {name: field for name, field in value.items() if name != CHECKSUM}
    is_damaged = any(is_damaged_name(name, CHECKSUM) for name in value)
    is_sound = value[CHECKSUM] == _digest_of(fields) if CHECKSUM in value else not is_damaged
    if not is_sound:
        raise FormatError(
            f"{source}: does not match its checksum, so it was damaged or edited;"
            f' if you edited it, remove its "{CHECKSUM}"'
        )
    return fields


def is_damaged_name(name: str, expected: str) -> bool:
    """Return whether a name may be another one in which some letters were changed.

    >>> is_damaged_name("chebksum", "checksum"), is_damaged_name("schedule", "checksum")
    (True, False)
    """
    num_equal = sum(letter == other for letter, other in zip(name, expected, strict=False))
    return len(name) == len(expected) and len(expected) / 2 < num_equal < len(expected)


def _digest_of(fields: Mapping[str, object]) -> str:
    # Of the values, not of the bytes of the file: those may be indented in another way.
    return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).hexdigest()


def read_document(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> dict[str, Any]:
    """Read a JSON object and check its checksum, if it has one."""
    return without_checksum(read_json(path, max_bytes=max_bytes), path)


def dump_json(value: object) -> bytes:
    """Write `value` as JSON for people to read: indented, UTF-8, one line end at the end.

    Lone surrogates (bytes of a path that are not UTF-8) become JSON escapes, which `parse_json` reads back.
    """
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    return text.encode(errors="backslashreplace")


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value: dict[str, object] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {_SHORT.repr(key)} is given twice")
        value[key] = item
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{_SHORT.repr(text)} is beyond the range of a float")
    return value


def _parse_integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits is beyond the range of a float")
    return int(text)
