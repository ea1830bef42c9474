"""Which files are packed, by their names and first bytes: whoever reads text must not take them for it.

A name alone does not decide: a text may be called anything. Imports nothing of ours but the door to disk.
"""

from __future__ import annotations

import os
from pathlib import Path

from bytewright.storage.filesystem import explain, open_to_read

BEGINNINGS = {
    ".gz": b"\x1f\x8b",
    ".zst": b"\x28\xb5\x2f\xfd",
    ".xz": b"\xfd7zXZ",
    ".bz2": b"BZh",
    ".zip": b"PK\x03\x04",
}
"""How a packed file begins, by the ending of its name."""


def find_packing(source: str | os.PathLike[str]) -> str | None:
    """Give the ending by which a file is packed, if its first bytes agree."""
    path = Path(source)
    ending = path.suffix.lower()
    if ending not in BEGINNINGS or not path.is_file():
        return None
    with explain("read", path), open_to_read(path) as file:
        return ending if file.read(len(BEGINNINGS[ending])) == BEGINNINGS[ending] else None
