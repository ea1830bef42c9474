"""The documents of any files that `readers` knows as one plain text, which is what a tokenizer reads.

After each document stands `<|endoftext|>` on a line of its own, as after the stories of the storybook. Line
ends around a document are not kept, and a document without text is left out: what is written is exactly what
`readers.read_documents` reads back. A document that holds the mark itself ends there, as in any text, and the
result says how many did. The text appears whole or not at all, in memory for the longest line or a few rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bytewright.corpus import SEPARATOR
from bytewright.corpus.readers import END, Piece, Progress, read_pieces
from bytewright.errors import UsageError
from bytewright.storage import atomic
from bytewright.storage.atomic import StrPath

LINE_ENDS = b"\r\n"
OTHER_ENDINGS = (".jsonl", ".parquet", ".gz", ".zst")
"""Names by which a reader would not know the file again as the plain text that it is."""


@dataclass(frozen=True, kw_only=True)
class WrittenText:
    """What was written, and what became of documents that could not stay as they were."""

    num_bytes: int
    num_documents: int
    num_left_out: int
    """Documents without any text."""
    num_divided: int
    """Documents that held the mark inside, and are now more than one."""


def write_documents(
    source: StrPath | Sequence[StrPath],
    target: StrPath,
    *,
    field: str = "text",
    progress: Progress | None = None,
) -> WrittenText:
    r"""Write the documents of one or more files as one text; `progress` hears of all files together.

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
        for text, is_last in _read_all(sources, field, progress):
            writer.write(text)
            if is_last:
                writer.end_document()
                num_left_out += writer.num_documents == num_before
                num_divided += writer.num_documents > num_before + 1
                num_before = writer.num_documents
        if not writer.num_documents:
            others = f" and in the {len(sources) - 1} after it" if len(sources) > 1 else ""
            raise UsageError(f"{sources[0]}: there is no text in it{others}")
        num_bytes = stream.tell()
    return WrittenText(
        num_bytes=num_bytes,
        num_documents=writer.num_documents,
        num_left_out=num_left_out,
        num_divided=num_divided,
    )


def _check_names(sources: Sequence[StrPath], target: StrPath) -> None:
    if not sources:
        raise UsageError("there is nothing to write: no file was given")
    if (ending := Path(target).suffix.lower()) in OTHER_ENDINGS:
        raise UsageError(f"{target}: plain text is written, so its name must not end in {ending}")
    for source in sources:
        atomic.refuse_own_input(source, target)


def _read_all(sources: Sequence[StrPath], field: str, progress: Progress | None) -> Iterator[Piece]:
    """Yield the pieces of one file after the other, and tell how far all of them together are."""
    sizes: list[int] = []
    for source in sources:
        with atomic.explain("read", source):
            sizes.append(os.path.getsize(source))
    before = 0
    for source, size in zip(sources, sizes, strict=True):
        yield from read_pieces(source, field=field, progress=_shift(progress, before, sum(sizes)))
        before += size


def _shift(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Let the progress of one file be heard as that of all, of which `before` bytes are done."""
    return None if progress is None else lambda done, _: progress(before + done, total)


class _DocumentWriter:
    """Writes a document that comes in pieces, and divides it where a mark stands in it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.num_documents = 0
        self._stream = stream
        self._is_open = False
        self._held = b""
        """Line ends that are part of the document only if more of it follows."""

    def write(self, piece: bytes) -> None:
        """Go on with the document; no mark is cut by the end of a piece."""
        first, *others = piece.split(END)
        self._write_text(first)
        for text in others:
            self.end_document()
            self._write_text(text)

    def end_document(self) -> None:
        """Write the mark, unless there was no text."""
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
