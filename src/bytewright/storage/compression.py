"""Recognises compressed files by their names and first bytes, so that they are not read as text.

The name alone does not decide, because a text file can have any name.
"""

from __future__ import annotations

from pathlib import Path

from bytewright.storage.filesystem import StrPath, explain, open_to_read

MAGIC_BYTES = {
    ".gz": b"\x1f\x8b",
    ".zst": b"\x28\xb5\x2f\xfd",
    ".xz": b"\xfd7zXZ",
    ".bz2": b"BZh",
    ".zip": b"PK\x03\x04",
}
"""The first bytes of a compressed file, by the suffix of its name."""


def find_compression(source: StrPath) -> str | None:
    """Return the suffix of a compressed file (".gz"), or None if its first bytes do not agree with it."""
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix not in MAGIC_BYTES or not path.is_file():
        return None
    with explain("read", path), open_to_read(path) as file:
        return suffix if file.read(len(MAGIC_BYTES[suffix])) == MAGIC_BYTES[suffix] else None
