"""Write the documents of files in any format of `readers` as one plain text file, the input of a tokenizer.

A line with `<|endoftext|>` follows each document. Line ends around a document are removed, and empty
documents are omitted, so `readers.read_documents` reads back exactly what was written. A document that
contains the mark is split there, and the result counts such documents. The file is written atomically.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bytewright.corpus import SEPARATOR
from bytewright.corpus.file_formats import is_plain_text_name
from bytewright.corpus.readers import END, read_files
from bytewright.errors import UsageError
from bytewright.formatting import Progress
from bytewright.storage import atomic
from bytewright.storage.atomic import StrPath

LINE_ENDS = b"\r\n"


@dataclass(frozen=True, kw_only=True)
class WrittenText:
    """The size of the written text, and how many documents were omitted or split."""

    num_bytes: int
    num_documents: int
    num_left_out: int
    """Omitted documents without text."""
    num_divided: int
    """Documents that contained the mark and were split."""


def write_documents(
    source: StrPath | Sequence[StrPath],
    target: StrPath,
    *,
    field: str = "text",
    clean: bool = False,
    progress: Progress | None = None,
) -> WrittenText:
    r"""Write the documents of one or more files as one text; `progress` counts the bytes of all files.

    With `clean`, byte-order marks are removed and CRLF becomes LF.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source, target = Path(folder, "tales.jsonl"), Path(folder, "tales.txt")
    ...     _ = source.write_text('{"text": "One."}\n{"text": ""}\n{"text": "Two,\\nthree."}\n')
    ...     written = write_documents(source, target)
    ...     target.read_text(), written.num_documents, written.num_left_out
    ('One.\n<|endoftext|>\nTwo,\nthree.\n<|endoftext|>\n', 2, 1)
    """
    sources = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    _check_names(sources, target)
    num_left_out = num_divided = num_before = 0
    with atomic.write_stream(target) as stream:
        writer = _DocumentWriter(stream)
        for text, is_last in read_files(sources, field=field, clean=clean, progress=progress):
            writer.write(text)
            if is_last:
                writer.end_document()
                num_left_out += writer.num_documents == num_before
                num_divided += writer.num_documents > num_before + 1
                num_before = writer.num_documents
        if not writer.num_documents:
            others = f" (and {len(sources) - 1} other files)" if len(sources) > 1 else ""
            raise UsageError(f"{sources[0]}{others}: no text found", path=sources[0])
        num_bytes = stream.tell()
    return WrittenText(
        num_bytes=num_bytes,
        num_documents=writer.num_documents,
        num_left_out=num_left_out,
        num_divided=num_divided,
    )


def _check_names(sources: Sequence[StrPath], target: StrPath) -> None:
    if not sources:
        raise UsageError("expected at least one source file", key="source")
    if not is_plain_text_name(target):  # `readers` would read it in another format
        raise UsageError.at(target, f"a plain text file must not be named *{Path(target).suffix}")
    for source in sources:
        atomic.check_not_input(source, target)


class _DocumentWriter:
    """Writes documents chunk by chunk, and splits them at end-of-text marks."""

    def __init__(self, stream: BinaryIO) -> None:
        self.num_documents = 0
        self._stream = stream
        self._is_open = False
        self._held = b""
        """Line ends that are part of the document only if more text follows."""

    def write(self, chunk: bytes) -> None:
        """Write the next chunk of the document; chunks never end inside a mark."""
        first, *others = chunk.split(END)
        self._write_text(first)
        for text in others:
            self.end_document()
            self._write_text(text)

    def end_document(self) -> None:
        """Write the mark, unless the document is empty."""
        if self._is_open:
            self._stream.write(SEPARATOR.encode())
            self.num_documents += 1
        self._is_open, self._held = False, b""

    def _write_text(self, text: bytes) -> None:
        text = self._held + text if self._is_open else text.lstrip(LINE_ENDS)
        kept = text.rstrip(LINE_ENDS)
        self._stream.write(kept)
        self._is_open = self._is_open or bool(kept)
        self._held = text[len(kept) :]
