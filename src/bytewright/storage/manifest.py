"""The manifest of a folder: the size and SHA-256 of each file, checked whenever a file is read.

`manifest.json` is a document (`json_reader`) that `atomic.write_folder` writes. It is untrusted input: a name
that leaves the folder, a repeated key and an invalid number raise `FormatError`. Memory is proportional to
the size of the manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bytewright.errors import FormatError, shorten
from bytewright.storage import filesystem
from bytewright.storage.filesystem import StrPath
from bytewright.storage.json_reader import (
    Json,
    decode_text,
    dump_json,
    parse_json,
    read_document,
    with_checksum,
)

MANIFEST = "manifest.json"
FORMAT = "bytewright folder 1"
MAX_MANIFEST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Entry:
    """Size and SHA-256 of one file."""

    num_bytes: int
    sha256: str


def measure(path: Path) -> Entry:
    """Return the size and SHA-256 of a file, in constant memory."""
    with filesystem.open_to_read(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return Entry(stream.tell(), digest)


def is_plain_name(name: str) -> bool:
    """Return whether `name` stays inside its folder and is not the manifest."""
    return name not in ("", ".", "..", MANIFEST) and not any(mark in name for mark in "/\\\0")


def manifest_path_of(path: StrPath) -> Path:
    """Return the path of the manifest of a single file: `stories.npy -> stories.npy.json`."""
    return Path(f"{Path(path)}.json")


@dataclass(frozen=True)
class Folder:
    """A folder written by `write_folder`, opened for reading; every read is checked against the manifest."""

    path: Path
    about: Mapping[str, object]
    files: Mapping[str, Entry]

    def read_bytes(self, name: str) -> bytes:
        """Return the contents of one file after checking its size and SHA-256."""
        entry = self._entry(name)
        data = filesystem.read_bytes(self.path / name, max_bytes=entry.num_bytes)
        self._compare(name, Entry(len(data), hashlib.sha256(data).hexdigest()))
        return data

    def read_text(self, name: str) -> str:
        """Return the contents of one UTF-8 file."""
        return decode_text(self.read_bytes(name), self.path / name)

    def read_json(self, name: str) -> object:
        """Return the value of one JSON file."""
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
            path = self.path / MANIFEST
            raise FormatError.at(path, f"does not list the file {name!r}", key=name)
        return self.files[name]

    def _compare(self, name: str, found: Entry) -> None:
        path, expected = self.path / name, self.files[name]
        if found.num_bytes != expected.num_bytes:
            problem = f"has {found.num_bytes} bytes, but the manifest states {expected.num_bytes}"
        elif found.sha256 != expected.sha256:
            problem = (
                f"its SHA-256 is {found.sha256[:12]}…, but the manifest states {expected.sha256[:12]}…;"
                " the file was damaged or changed"
            )
        else:
            return
        raise FormatError.at(path, problem, expected=expected, found=found)


def dump_manifest(about: Mapping[str, object], files: Mapping[str, Entry]) -> bytes:
    """Return the contents of a manifest."""
    listed = {name: {"bytes": entry.num_bytes, "sha256": entry.sha256} for name, entry in files.items()}
    return dump_json(with_checksum({"format": FORMAT, "about": about, "files": listed}))


def read_manifest(path: Path) -> tuple[Mapping[str, object], dict[str, Entry]]:
    """Return `about` and the files of the manifest at `path`."""
    root = Json(read_document(path, max_bytes=MAX_MANIFEST_BYTES), path)
    root.get("format").expect(FORMAT)
    root.check_keys("format", "about", "files")
    entries: dict[str, Entry] = {}
    for name in root["files"].as_object():
        if not is_plain_name(name):
            raise FormatError.at(path, f"{shorten(name)} is not a plain file name")
        entry = root["files"][name]
        entry.check_keys("bytes", "sha256")
        entries[name] = Entry(entry["bytes"].as_integer(0), entry["sha256"].as_sha256())
    return root["about"].as_object(), entries
