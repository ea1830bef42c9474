"""The file formats of tokenizers, one module each; `bytewright.tokenizer.files` is the door to all of them.

Every reader treats its file as hostile: it returns a `Vocabulary` that holds together or raises a
`FormatError` whose one sentence names the file, the place, what was expected and what was found, in memory
proportional to the file and time not much more. Every writer uses `bytewright.storage.atomic`. What its
format has no place for, the reader takes as an argument (which tokens are special; for ranks, the pattern
too); anything else is refused with a `TokenizerError`, rather than write a file that means something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bytewright.errors import FormatError, TokenizerError
from bytewright.storage import atomic


@contextmanager
def blaming(*files: atomic.StrPath) -> Iterator[None]:
    """Name the files whose contents contradict themselves.

    >>> with blaming("vocab.json", "merges.txt"):
    ...     raise TokenizerError("byte 0x61 is missing")
    Traceback (most recent call last):
    bytewright.errors.FormatError: vocab.json, merges.txt: byte 0x61 is missing
    """
    try:
        yield
    except TokenizerError as error:
        raise FormatError(f"{', '.join(str(Path(file)) for file in files)}: {error}") from None
