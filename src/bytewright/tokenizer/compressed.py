"""Files whose bytes are no text yet: a tokenizer would learn and encode them without a word."""

from __future__ import annotations

import os
from pathlib import Path

from bytewright.durable import explain
from bytewright.errors import UsageError

BEGINNINGS = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd", ".xz": b"\xfd7zXZ", ".parquet": b"PAR1"}
"""How a file of each of these names begins if it is what its name says."""


def refuse_compressed(source: str | os.PathLike[str]) -> None:
    """Refuse a file that is named and begins as a compressed one; what is no file is for others to judge."""
    path = Path(source)
    begins = BEGINNINGS.get(path.suffix)
    if begins is None or not path.is_file():
        return
    with explain("read", path), path.open("rb") as file:
        found = file.read(len(begins))
    if found == begins:
        raise UsageError(f"{path}: is compressed; a tokenizer reads plain text, so unpack it first")
