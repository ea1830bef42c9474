"""Files whose bytes are no text yet: a tokenizer would learn and encode them without a word.

Packed files, and files that hold texts inside another format. `bytewright.corpus` reads them; here only the
name of its command is known.
"""

from __future__ import annotations

import os
from pathlib import Path

from bytewright.durable import explain
from bytewright.errors import UsageError

CONVERT = "which `bytewright corpus text` makes of it"
UNPACK = "so unpack it first"

OTHER_FORMS = {
    ".gz": (b"\x1f\x8b", "is compressed", CONVERT),
    ".zst": (b"\x28\xb5\x2f\xfd", "is compressed", CONVERT),
    ".xz": (b"\xfd7zXZ", "is compressed", UNPACK),
    ".parquet": (b"PAR1", "is Parquet", CONVERT),
    ".jsonl": (b"", "is JSON lines", CONVERT),
}
"""By the ending of a name: how such a file begins if it is what its name says, what it is, what to do."""


def require_plain_text(source: str | os.PathLike[str]) -> None:
    """Refuse a file that is named and begins as one of those; what is no file is for others to judge."""
    path = Path(source)
    if path.suffix.lower() not in OTHER_FORMS or not path.is_file():
        return
    begins, what, remedy = OTHER_FORMS[path.suffix.lower()]
    with explain("read", path), path.open("rb") as file:
        found = file.read(len(begins))
    if found == begins:
        raise UsageError(f"{path}: {what}; a tokenizer reads plain text, {remedy}")
