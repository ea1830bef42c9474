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

import importlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.plain_text import CRLF, clean_blocks, find_binary_kind, find_marks
from bytewright.errors import FormatError, UsageError, first_line
from bytewright.storage import filesystem

END = END_OF_TEXT.encode()
BLOCK = 2**20
"""Bytes per read."""
LONGEST_LINE = 2**28
"""Longer lines of JSON are rejected, because a whole line must fit into memory."""
SIGNATURE_BYTES = 512
"""How many bytes at the start of a file decide whether it is binary."""
ROWS_AT_ONCE = 32
MOST_EXPANSION = 2**15
"""The largest accepted ratio of text to file size in Parquet, about the limit of Zstandard. Without a bound,
a file of 1 kB could contain any number of rows that repeat one text."""
KINDS = {".jsonl": ".jsonl", ".ndjson": ".jsonl", ".parquet": ".parquet"}
"""The format by file suffix; all other suffixes mean plain text."""
COMPRESSED = {
    ".gz": b"\x1f\x8b",
    ".zst": b"\x28\xb5\x2f\xfd",
    ".xz": b"\xfd7zXZ",
    ".bz2": b"BZh",
    ".zip": b"PK\x03\x04",
}
"""The first bytes of compressed files by suffix, including compressions that cannot be read here."""
DECOMPRESS_STEP = 1024
"""Compressed bytes per step. In Zstandard, 4 bytes can expand to 128 kB, so a step yields at most 32 MB."""

ByteProgress = Callable[[int, int], object]
"""Called with the number of bytes processed and the total number of bytes."""


class Chunk(NamedTuple):
    """A part of a document, and whether it is the last part."""

    text: bytes
    is_last: bool


def read_documents(
    path: str | os.PathLike[str],
    *,
    field: str = "text",
    clean: bool = False,
    progress: ByteProgress | None = None,
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
    path: str | os.PathLike[str],
    *,
    field: str = "text",
    clean: bool = False,
    progress: ByteProgress | None = None,
) -> Iterator[Chunk]:
    """Yield the documents of a file in chunks of bounded length; a binary file raises `UsageError`.

    Chunks are cut before white space. Only a word that is longer than a block is cut inside, between two
    characters. With `clean`, byte-order marks are removed and CRLF becomes LF.
    """
    path = Path(path)
    compression, kind = _split_suffixes(path)
    with filesystem.explain("read", path):
        if not compression and find_compression(path) is not None:
            raise UsageError.at(path, "unsupported compression; decompress the file first")
        if kind == ".parquet":
            yield from _chunks_of_rows(path, field, clean, progress)
            return
        with filesystem.open_to_read(path) as file:
            blocks = _gather(DECOMPRESS[compression](path, _read_blocks(file, path, progress)))
            if kind == ".jsonl":
                yield from _chunks_of_lines(path, _lines(path, blocks), field, clean)
            else:
                blocks = _reject_binary(path, blocks)
                yield from chunks_of_text(clean_blocks(blocks) if clean else blocks)


def read_files(
    sources: Sequence[str | os.PathLike[str]],
    *,
    field: str = "text",
    clean: bool = False,
    progress: ByteProgress | None = None,
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


def _shift(progress: ByteProgress | None, before: int, total: int) -> ByteProgress | None:
    """Return a callback for one file that reports the progress over all files."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def is_plain_text_name(path: str | os.PathLike[str]) -> bool:
    """Return whether the name of a file means plain text that is not compressed.

    >>> [is_plain_text_name(name) for name in ("stories.txt", "stories.txt.gz", "pages.jsonl")]
    [True, False, False]
    """
    return _split_suffixes(Path(path)) == ("", ".txt")


def read_fields(
    path: str | os.PathLike[str], fields: Sequence[str], *, progress: ByteProgress | None = None
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number and the named fields of each line of a JSON Lines file, which may be compressed."""
    path = Path(path)
    compression, kind = _split_suffixes(path)
    if kind != ".jsonl":
        message = f"{path}: expected JSON lines with {' and '.join(fields)}, in a file named *.jsonl"
        raise UsageError(message, path=path, expected=".jsonl", found=kind)
    with filesystem.explain("read", path), filesystem.open_to_read(path) as file:
        blocks = _gather(DECOMPRESS[compression](path, _read_blocks(file, path, progress)))
        yield from _fields_of_lines(path, _lines(path, blocks), fields)


def find_compression(path: Path) -> str | None:
    """Return the suffix of a compressed file if its first bytes agree with it."""
    suffix = path.suffix.lower()
    if suffix not in COMPRESSED or not os.path.isfile(path):
        return None
    with filesystem.explain("read", path), filesystem.open_to_read(path) as file:
        return suffix if file.read(len(COMPRESSED[suffix])) == COMPRESSED[suffix] else None


def find_marks_in(path: Path) -> list[str]:
    """Return which of byte-order mark and CRLF the first megabyte of a text has; reject a binary file."""
    compression, kind = _split_suffixes(path)
    if kind == ".parquet":
        return []
    with filesystem.explain("read", path), filesystem.open_to_read(path) as file:
        head = next(_gather(DECOMPRESS[compression](path, _read_blocks(file, path, None))), b"")
    if kind == ".txt":
        _check_start(path, head[:SIGNATURE_BYTES])
    return find_marks(head.replace(rb"\r\n", CRLF) if kind == ".jsonl" else head)


def check_plain_text(source: str | os.PathLike[str]) -> None:
    """Raise if a file is binary, compressed, JSON Lines or Parquet: its bytes would be read as text."""
    path = Path(source)
    found = path.suffix.lower()
    is_file = os.path.isfile(path)  # unlike Path.is_file, does not raise if the name is too long
    if (found in KINDS and is_file) or find_compression(path) is not None:
        remedy = "`bytewright corpus text`" if found in KINDS or found in DECOMPRESS else "another program"
        message = f"{path}: expected plain text, found a {found} file; convert it with {remedy} first"
        raise UsageError(message, path=path, expected="plain text", found=found)
    if is_file:
        with filesystem.explain("read", path), filesystem.open_to_read(path) as file:
            _check_start(path, file.read(SIGNATURE_BYTES))


def _check_start(path: Path, head: bytes) -> None:
    if kind := find_binary_kind(head):
        message = f"{path}: is {kind}, not plain text in UTF-8; convert or leave out the file"
        raise UsageError(message, path=path, expected="plain text", found=kind)


def _reject_binary(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    for number, block in enumerate(blocks):
        if not number:
            _check_start(path, block[:SIGNATURE_BYTES])
        yield block


def _split_suffixes(path: Path) -> tuple[str, str]:
    """Return compression and format by the file name: `stories.jsonl.gz -> (".gz", ".jsonl")`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in DECOMPRESS else ""
    kind = KINDS.get(suffixes[-1], ".txt") if suffixes else ".txt"
    if compression and kind == ".parquet":
        raise UsageError.at(path, "a compressed Parquet file; decompress it first")
    return compression, kind


# Blocks of bytes


def _read_blocks(file: Any, path: Path, progress: ByteProgress | None) -> Iterator[bytes]:
    total = path.stat().st_size
    while block := file.read(BLOCK):
        yield block
        if progress is not None:
            progress(file.tell(), total)


def _gunzip(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    decompressor = partial(zlib.decompressobj, wbits=31)  # 31: gzip header and checksum only
    yield from _decompress(path, blocks, decompressor, "gzip", zlib.error)


def _unzstd(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    zstandard = import_extra("zstandard", path)
    context = zstandard.ZstdDecompressor(max_window_size=2**31)
    yield from _decompress(path, blocks, context.decompressobj, "Zstandard", zstandard.ZstdError)


def _decompress(
    path: Path,
    blocks: Iterator[bytes],
    decompressor: Callable[[], Any],
    name: str,
    error_class: type[Exception],
) -> Iterator[bytes]:
    """Decompress all streams of a file: concatenated gzip or Zstandard files count as one file."""
    current = None
    num_read = 0
    for block in blocks:
        place = 0
        while part := block[place : place + DECOMPRESS_STEP]:
            if current is None:
                if not (stripped := part.lstrip(b"\0")):  # padding of tape records
                    place += len(part)
                    continue
                place += len(part) - len(stripped)
                part, current = stripped, decompressor()
            try:
                decompressed = current.decompress(part)
            except error_class as error:
                message = f"{path}: invalid {name} data near byte {num_read + place} ({error})"
                raise FormatError(message, path=path, expected=name) from None
            place += len(part)
            if decompressed:
                yield decompressed
            if current.eof:
                place -= len(current.unused_data)
                current = None
        num_read += len(block)
    if current is not None:
        raise FormatError.at(path, f"truncated {name} data: the stream does not end", expected=name)


def _gather(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Join small blocks: searching for the end mark scans the remainder of the previous block again."""
    gathered: list[bytes] = []
    size = 0
    for block in blocks:
        gathered.append(block)
        size += len(block)
        if size >= BLOCK:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


DECOMPRESS: dict[str, Callable[[Path, Iterator[bytes]], Iterator[bytes]]] = {
    "": lambda path, blocks: blocks,
    ".gz": _gunzip,
    ".zst": _unzstd,
}
"""The decompressor by the last suffix of the file name."""


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
        if len(rest) > 2 * BLOCK:
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


def _chunks_of_rows(path: Path, field: str, clean: bool, progress: ByteProgress | None) -> Iterator[Chunk]:
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
    if num_bytes > MOST_EXPANSION * size:
        message = f"{path}: the text is more than {MOST_EXPANSION} times as large as the file ({size} bytes)"
        raise FormatError(message, path=path, expected=MOST_EXPANSION)


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
    while len(text) - start > 2 * BLOCK:
        end = start + _safe_cut(text[start : start + 2 * BLOCK])
        yield Chunk(text[start:end], is_last=False)
        start = end
    yield Chunk(text[start:], is_last=True)


def import_extra(module: str, path: Path) -> Any:
    """Import an optional dependency, or raise an error that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        problem = f"reading this file needs {package}; install it with pip install 'bytewright[corpus]'"
        raise UsageError.at(path, problem, expected=package) from None
