"""Files whose bytes are no text yet: a tokenizer would learn and encode them without a word.

Packed files, and files that hold texts inside another format. `bytewright.corpus` reads most of them; here
only the name of its command is known.
"""

from __future__ import annotations

import os
from pathlib import Path

from bytewright.errors import UsageError
from bytewright.storage.compression import find_compression

CONVERT = "which `bytewright corpus text` makes of it"
OTHER_FORMS = {".parquet": "is Parquet", ".jsonl": "is JSON lines", ".ndjson": "is JSON lines"}
"""Formats that hold texts, by the ending of a name."""


def require_plain_text(source: str | os.PathLike[str]) -> None:
    """Refuse a file that is no plain text by its name and first bytes; what is no file others judge."""
    path = Path(source)
    if (packing := find_compression(path)) is not None:
        remedy = CONVERT if packing in (".gz", ".zst") else "so unpack it first"
        raise UsageError(f"{path}: is compressed; a tokenizer reads plain text, {remedy}")
    if path.suffix.lower() in OTHER_FORMS and path.is_file():
        what = OTHER_FORMS[path.suffix.lower()]
        raise UsageError(f"{path}: {what}; a tokenizer reads plain text, {CONVERT}")
