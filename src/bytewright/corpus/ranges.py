"""Cut text files into byte ranges that workers of a cluster read on their own.

A range ends after an end-of-text mark. If no document ends within `SEARCH` bytes, it ends where a caller's
rule allows a cut, for example between two words. The ranges depend on the files and `range_bytes` only, not
on the number of workers. A source is a path or a URL of fsspec, such as `s3://bucket/books/*.txt`.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from bytewright.corpus.file_formats import (
    COMPRESSED,
    KINDS,
    SIGNATURE_BYTES,
    check_plain_text,
    find_binary_kind,
)
from bytewright.corpus.readers import END
from bytewright.corpus.sources import STDIN, expand_source
from bytewright.errors import StorageError, UsageError, first_line
from bytewright.formatting import Progress
from bytewright.storage import filesystem

RANGE_BYTES = 64 * 2**20
"""The size of a range, unless documents are longer. A worker holds at most one range in memory."""
PIECE_BYTES = 4 * 2**20
"""The size of the pieces in which a worker reads a range."""
SEARCH = 8 * 2**20
"""How far the end of a document is searched before the document itself is cut."""
BLOCK = 2**18
MARGIN = 2**12
"""Bytes on both sides of a cut that decide whether it is allowed; special tokens are shorter."""

FindCut = Callable[[bytes, int], int]
"""Returns the first allowed cut of a text at or after a position; the end of the text if there is none."""


@dataclass(frozen=True, kw_only=True)
class TextRange:
    """The bytes from `start` to `end` of a source."""

    source: str
    """An absolute path, or a URL."""
    start: int
    end: int
    version: str
    """Identifies the contents of the source: it changes when the file is written again."""
    is_last: bool
    """Whether the source ends with this range."""
    ends_open: bool
    """Whether the source ends with this range, and with text that no end-of-text mark follows."""

    @property
    def num_bytes(self) -> int:
        """The length of the range."""
        return self.end - self.start


def is_url(source: str) -> bool:
    """Return whether a source is a URL rather than a path.

    >>> is_url("s3://bucket/a.txt"), is_url("data/a.txt")
    (True, False)
    """
    return "://" in source


def list_sources(sources: Iterable[str]) -> list[str]:
    """Return the absolute paths and URLs that files, folders, patterns and URLs mean."""
    found: list[str] = []
    for source in sources:
        if source == STDIN:
            raise UsageError("a cluster cannot read standard input; write it to a file first", path=STDIN)
        if is_url(source):
            found += _expand_url(source)
        else:
            found += [os.path.abspath(file) for file in expand_source(source)]
    return found


def _expand_url(url: str) -> list[str]:
    system, path = _open_filesystem(url)
    with _explain(url):
        if glob.has_magic(path):
            paths = sorted(system.glob(path))
        elif system.isdir(path):
            paths = sorted(system.find(path))
        else:
            return [url]
        names = (PurePosixPath(found) for found in paths)
        visible = [str(name) for name in names if not name.name.startswith(".") and system.size(str(name))]
    if not visible:
        raise UsageError.at(url, "no file with text found")
    return [system.unstrip_protocol(found) for found in visible]


def _open_filesystem(url: str) -> tuple[Any, str]:
    import fsspec.core

    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        message = f"{url}: fsspec cannot open this URL ({first_line(error)}); install the package it names"
        raise UsageError(message, path=url) from None
    return system, path


@contextlib.contextmanager
def _explain(source: str) -> Iterator[None]:
    """Turn errors of the file system into errors that name the source."""
    if not is_url(source):
        with filesystem.explain("read", source):
            yield
        return
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot read {source}: {first_line(error)}", path=source) from None


@contextlib.contextmanager
def open_source(source: str) -> Iterator[BinaryIO]:
    """Open a path or URL for reading; the stream can seek."""
    with _explain(source):
        if is_url(source):
            system, path = _open_filesystem(source)
            with system.open(path, "rb") as file:
                yield file
        else:
            with filesystem.open_to_read(Path(source)) as file:
                yield file


def _identify(source: str) -> tuple[int, str]:
    """Return the size of a source, and a text that changes when it is written again."""
    with _explain(source):
        if is_url(source):
            system, path = _open_filesystem(source)
            return int(system.size(path)), str(system.ukey(path))
        status = os.stat(source)
    return status.st_size, hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode()).hexdigest()


def check_plain(source: str) -> None:
    """Raise unless a source is plain text, by its name and its first bytes."""
    if not is_url(source):
        check_plain_text(source)
        return
    suffix = PurePosixPath(source).suffix.lower()
    with open_source(source) as file:
        kind = find_binary_kind(file.read(SIGNATURE_BYTES))
    if suffix in KINDS or suffix in COMPRESSED or kind is not None:
        found = kind or f"a {suffix} file"
        message = (
            f"{source}: expected plain text, found {found}; convert it with `bytewright corpus text` first"
        )
        raise UsageError(message, path=source, expected="plain text", found=found)


def cut_sources(
    sources: Sequence[str],
    *,
    range_bytes: int = RANGE_BYTES,
    at_documents: bool = True,
    find_cut: FindCut | None = None,
    progress: Progress | None = None,
) -> list[TextRange]:
    """Cut sources into ranges of about `range_bytes`, at the ends of documents.

    `find_cut` cuts longer documents; without it they stay whole. With `at_documents=False`, marks are
    ordinary text. Empty sources have no ranges.
    """
    ranges: list[TextRange] = []
    identified = {source: _identify(source) for source in sources}
    total, before = sum(identified[source][0] for source in sources), 0
    for source in sources:
        size, version = identified[source]
        cuts: list[int] = []
        with open_source(source) as file:
            for cut in _cut_file(file, size, range_bytes, at_documents, find_cut):
                cuts.append(cut)
                if progress is not None:
                    progress(before + cut, total)
            is_open = _ends_open(file, size)
        before += size
        for start, end in zip([0, *cuts], [*cuts, size], strict=True):
            if start < end:
                is_last = end == size
                ranges.append(
                    TextRange(
                        source=source,
                        start=start,
                        end=end,
                        version=version,
                        is_last=is_last,
                        ends_open=is_last and is_open,
                    )
                )
    return ranges


def _cut_file(
    file: BinaryIO, size: int, range_bytes: int, at_documents: bool, find_cut: FindCut | None
) -> Iterator[int]:
    start = 0
    while size - start > range_bytes:
        position, cut = start + range_bytes, None
        if at_documents:
            cut = _find_document_end(file, position, size if find_cut is None else position + SEARCH)
        if cut is None and find_cut is not None:
            cut = _find_other_cut(file, position, size, find_cut)
        if cut is None or cut >= size:
            return
        yield cut
        start = cut


def _find_document_end(file: BinaryIO, position: int, limit: int) -> int | None:
    """Return the end of the first mark that ends at or after `position`, if it ends before `limit`."""
    place = max(position - len(END), 0)
    file.seek(place)
    window = b""
    while place < limit and (block := file.read(BLOCK)):
        window += block
        if (found := window.find(END)) >= 0:
            return place + found + len(END)
        kept = len(END) - 1
        place += max(len(window) - kept, 0)
        window = window[-kept:]
    return None


def _find_other_cut(file: BinaryIO, position: int, size: int, find_cut: FindCut) -> int:
    start = max(position - MARGIN, 0)
    length = BLOCK
    while True:
        wanted = min(length, size - start)
        file.seek(start)
        window = file.read(wanted)
        cut = find_cut(window, position - start)
        is_short = len(window) < wanted  # the source has become shorter: reading the piece raises
        if is_short or start + len(window) >= size or cut <= len(window) - MARGIN:
            return start + cut
        length *= 4


def _ends_open(file: BinaryIO, size: int) -> bool:
    """Return whether more than white space follows the last mark."""
    end = size
    while end > 0:
        start = max(end - BLOCK, 0)
        file.seek(start)
        block = file.read(min(end + len(END), size) - start)
        place = block.rfind(END)
        if place >= 0:
            return bool(block[place + len(END) :].strip())
        # The first bytes of the block may be the end of a mark that began before it.
        if block[len(END) if start else 0 :].strip():
            return True
        end = start
    return False


def read_pieces(
    text_range: TextRange, find_cut: FindCut | None = None, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[bytes]:
    """Yield the bytes of a range in pieces that end where `find_cut` allows a cut; without it, as a whole.

    Raise if the source has become shorter.
    """
    start = text_range.start
    with open_source(text_range.source) as file:
        while start < text_range.end:
            end = text_range.end
            if find_cut is not None and end - start > piece_bytes:
                end = _find_other_cut(file, start + piece_bytes, end, find_cut)
            file.seek(start)
            piece = file.read(end - start)
            if len(piece) != end - start:
                message = f"{text_range.source}: was changed while it was read: expected {end} bytes or more"
                raise StorageError(message, path=text_range.source, expected=end, found=start + len(piece))
            yield piece
            start = end
