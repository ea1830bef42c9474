"""Read the documents of plain text, JSON Lines and Parquet files, optionally compressed (gzip, Zstandard).

The file name decides the format: `stories.txt`, `stories.jsonl.zst`, `stories.parquet`. Files with an unknown
suffix are plain text. In plain text, `<|endoftext|>` ends a document, and line ends around a document are
removed. In JSON Lines and Parquet, the field `text` of each row is a document. Documents are bytes: invalid
UTF-8 in plain text passes through unchanged.

`read_chunks` needs memory for a few blocks, whatever the length of a document. `read_documents` needs memory
for the longest document. Parquet needs memory for `ROWS_AT_ONCE` rows and one page (at most 2 GiB by the
format). Damaged and truncated files raise `FormatError` with the position.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bytewright.corpus import END_OF_TEXT, file_formats
from bytewright.corpus.file_formats import (
    check_start,
    clean_blocks,
    find_compression,
    import_extra,
    read_blocks,
    split_suffixes,
)
from bytewright.errors import FormatError, UsageError, first_line
from bytewright.formatting import Progress
from bytewright.storage import filesystem
from bytewright.storage.filesystem import StrPath

END = END_OF_TEXT.encode()
LONGEST_LINE = 2**28
"""Longer lines of JSON are rejected, because a whole line must fit into memory."""
ROWS_AT_ONCE = 32
MAX_EXPANSION = 2**15
"""The largest accepted ratio of text to file size in Parquet, about the limit of Zstandard. Without a bound,
a file of 1 kB could contain any number of rows that repeat one text."""


class Chunk(NamedTuple):
    """A part of a document, and whether it is the last part."""

    text: bytes
    is_last: bool


def read_documents(
    path: StrPath,
    *,
    field: str = "text",
    clean: bool = False,
    progress: Progress | None = None,
) -> Iterator[bytes]:
    r"""Yield the documents of a file in order.

    >>> import gzip, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "tales.txt.gz")
    ...     _ = path.write_bytes(gzip.compress(b"One.\n<|endoftext|>\nTwo,\nthree.\n<|endoftext|>\n"))
    ...     list(read_documents(path))
    [b'One.', b'Two,\nthree.']
    """
    chunks: list[bytes] = []
    for text, is_last in read_chunks(path, field=field, clean=clean, progress=progress):
        chunks.append(text)
        if is_last:
            yield b"".join(chunks)
            chunks.clear()


def read_chunks(
    path: StrPath,
    *,
    field: str = "text",
    clean: bool = False,
    progress: Progress | None = None,
) -> Iterator[Chunk]:
    """Yield the documents of a file in chunks of bounded length; a binary file raises `UsageError`.

    Chunks are cut before white space. Only a word that is longer than a block is cut inside, between two
    characters. With `clean`, byte-order marks are removed and CRLF becomes LF.
    """
    path = Path(path)
    compression, kind = split_suffixes(path)
    with filesystem.explain("read", path):
        if not compression and find_compression(path) is not None:
            raise UsageError.at(path, "unsupported compression; decompress the file first")
        if kind == ".parquet":
            yield from _chunks_of_rows(path, field, clean, progress)
            return
        with filesystem.open_to_read(path) as file:
            blocks = read_blocks(file, path, compression, progress)
            if kind == ".jsonl":
                yield from _chunks_of_lines(path, _lines(path, blocks), field, clean)
            else:
                blocks = _reject_binary(path, blocks)
                yield from chunks_of_text(clean_blocks(blocks) if clean else blocks)


def read_files(
    sources: Sequence[StrPath],
    *,
    field: str = "text",
    clean: bool = False,
    progress: Progress | None = None,
) -> Iterator[Chunk]:
    """Yield the chunks of several files in order, and report the progress over all of them."""
    sizes: list[int] = []
    for source in sources:
        with filesystem.explain("read", source):
            sizes.append(os.path.getsize(source))
    before = 0
    for source, size in zip(sources, sizes, strict=True):
        shifted = _shift(progress, before, sum(sizes))
        yield from read_chunks(source, field=field, clean=clean, progress=shifted)
        before += size


def _shift(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return a callback for one file that reports the progress over all files."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def read_fields(
    path: StrPath, fields: Sequence[str], *, progress: Progress | None = None
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number and the named fields of each line of a JSON Lines file, which may be compressed."""
    path = Path(path)
    compression, kind = split_suffixes(path)
    if kind != ".jsonl":
        message = f"{path}: expected JSON lines with {' and '.join(fields)}, in a file named *.jsonl"
        raise UsageError(message, path=path, expected=".jsonl", found=kind)
    with filesystem.explain("read", path), filesystem.open_to_read(path) as file:
        blocks = read_blocks(file, path, compression, progress)
        yield from _fields_of_lines(path, _lines(path, blocks), fields)


def _reject_binary(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    for number, block in enumerate(blocks):
        if not number:
            check_start(path, block[: file_formats.SIGNATURE_BYTES])
        yield block


# Documents


def chunks_of_text(blocks: Iterator[bytes]) -> Iterator[Chunk]:
    """Yield the documents of plain text that is given in blocks."""
    rest = b""
    is_inside = False  # whether an earlier chunk of the current document was yielded
    for block in blocks:
        *ended, rest = (rest + block).split(END)
        for text in ended:
            text = text.rstrip(b"\r\n") if is_inside else text.strip(b"\r\n")
            if text or is_inside:
                yield Chunk(text, is_last=True)
            is_inside = False
        if len(rest) > 2 * file_formats.BLOCK:
            cut = _safe_cut(rest)
            head = rest[:cut] if is_inside else rest[:cut].lstrip(b"\r\n")
            if head:
                yield Chunk(head, is_last=False)
                is_inside = True
            rest = rest[cut:]
    rest = rest.rstrip(b"\r\n") if is_inside else rest.strip(b"\r\n")
    if rest or is_inside:
        yield Chunk(rest, is_last=True)


def _safe_cut(text: bytes) -> int:
    """Return where to cut: before the last space or tab, else before the last line ends, else near the end.

    Line ends at the end of a document are not part of it, so a cut never separates them from a mark that may
    follow. A cut never falls into a mark.
    """
    end = len(text) - len(END)
    cut = max(text.rfind(space, 0, end) for space in (b" ", b"\t"))
    if cut <= 0:
        cut = max(text.rfind(space, 0, end) for space in (b"\n", b"\r"))
        cut = len(text[:cut].rstrip(b"\r\n")) if cut > 0 else cut
    if cut <= 0:
        mark = text.rfind(END, max(end - len(END), 0))
        cut = mark if mark > 0 else _floor_char_boundary(text, end)
    return cut


def _floor_char_boundary(text: bytes, position: int) -> int:
    """Return the last position up to `position` that is not inside a character of valid UTF-8."""
    for lead in range(position - 1, max(position - 4, -1), -1):
        if text[lead] & 0xC0 != 0x80:  # not a continuation byte, so only this byte can begin the character
            first = text[lead : lead + 4].decode("utf-8", "surrogateescape")[0]
            length = len(first.encode("utf-8", "surrogateescape"))
            return lead if lead + length > position else position
    return position


def _lines(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []
    length = 0
    for block in blocks:
        first, *others = block.split(b"\n")
        rest.append(first)
        length += len(first)
        for line in others:
            yield b"".join(rest)
            rest, length = [line], len(line)
        if length > LONGEST_LINE:
            problem = f"a line has more than {LONGEST_LINE} bytes; the file is probably not JSON Lines"
            raise FormatError.at(path, problem, expected=LONGEST_LINE)
    if length:
        yield b"".join(rest)


def _chunks_of_lines(path: Path, lines: Iterator[bytes], field: str, clean: bool) -> Iterator[Chunk]:
    for _, (text,) in _fields_of_lines(path, lines, (field,)):
        yield from _chunks_of_document(text.encode(), clean)


def _fields_of_lines(
    path: Path, lines: Iterator[bytes], fields: Sequence[str]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number of each line that is not blank, from 1, and its fields, which must be strings."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{place}: invalid JSON ({error})", path=path, expected="JSON") from None
        for field in fields:
            if not isinstance(row, dict) or not isinstance(row.get(field), str):
                message = f"{place}: expected an object with a string {field!r}"
                raise FormatError(message, path=path, key=field)
            try:
                row[field].encode()
            except UnicodeEncodeError:
                message = f"{place}: {field!r} contains an unpaired surrogate"
                raise FormatError(message, path=path, key=field) from None
        yield number, tuple(row[field] for field in fields)


def _chunks_of_rows(path: Path, field: str, clean: bool, progress: Progress | None) -> Iterator[Chunk]:
    parquet = import_extra("pyarrow.parquet", path)
    arrow = import_extra("pyarrow", path)
    filesystem.check_regular_file(path)
    total, number = path.stat().st_size, 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if field not in names:
                listed = ", ".join(map(repr, names))
                raise FormatError.at(path, f"no column {field!r}; found {listed}", key=field)
            _check_expansion(path, total, _claimed_bytes(file, field))
            num_bytes = 0
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[field]):
                for text in _texts_of(batch.column(0), path, number):
                    number += 1
                    if not isinstance(text, str):
                        found = type(text).__name__
                        message = f"{path}, row {number}: {field!r} must be a string, but is {found}"
                        raise FormatError(message, path=path, key=field, found=found)
                    document = text.encode()
                    num_bytes += len(document)
                    _check_expansion(path, total, num_bytes)
                    yield from _chunks_of_document(document, clean)
                if progress is not None:
                    progress(total * number // max(file.metadata.num_rows, 1), total)
    except arrow.ArrowException as error:
        raise FormatError.at(path, f"invalid Parquet ({first_line(error)})", expected="Parquet") from None


def _claimed_bytes(file: Any, field: str) -> int:
    """Return the uncompressed size of a column by the metadata; dictionary-encoded rows may repeat values."""
    leaves = [file.schema.column(number).path for number in range(len(file.schema))]
    if field not in leaves:  # a nested column: its rows are not strings
        return 0
    groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
    return sum(int(group.column(leaves.index(field)).total_uncompressed_size) for group in groups)


def _check_expansion(path: Path, size: int, num_bytes: int) -> None:
    if num_bytes > MAX_EXPANSION * size:
        message = f"{path}: the text is more than {MAX_EXPANSION} times as large as the file ({size} bytes)"
        raise FormatError(message, path=path, expected=MAX_EXPANSION)


def _texts_of(column: Any, path: Path, num_before: int) -> list[Any]:
    """Return the values of the rows of one batch."""
    try:
        values: list[Any] = column.to_pylist()
        return values
    except UnicodeDecodeError:
        rows = f"rows {num_before + 1} to {num_before + len(column)}"
        raise FormatError(f"{path}, {rows}: a value is not UTF-8", path=path, expected="UTF-8") from None


def _chunks_of_document(text: bytes, clean: bool) -> Iterator[Chunk]:
    text = b"".join(clean_blocks(iter([text]))) if clean else text
    start = 0
    while len(text) - start > 2 * file_formats.BLOCK:
        end = start + _safe_cut(text[start : start + 2 * file_formats.BLOCK])
        yield Chunk(text[start:end], is_last=False)
        start = end
    yield Chunk(text[start:], is_last=True)
