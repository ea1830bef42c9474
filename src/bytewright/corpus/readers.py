"""Text out of files: plain text, JSON lines and Parquet, as they are or packed with gzip or Zstandard.

The name of a file says what it is: `stories.txt`, `stories.jsonl.zst`, `stories.parquet`; what has another
ending is read as plain text. A document of a text file is what `<|endoftext|>` ends, without the line ends
around it; one of a JSON line or a row is its field `text`. Text is bytes: what is not UTF-8 passes as it is.

`read_pieces` needs memory for about a block, however long a document is; `read_documents` for the longest
document, and of Parquet for `ROWS_AT_ONCE` rows and a page, which is at most 2 GiB by the format. A file that
is damaged, cut off or not what its name says is a `FormatError` that names the place.
"""

from __future__ import annotations

import importlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bytewright.corpus import END_OF_TEXT
from bytewright.errors import FormatError, UsageError
from bytewright.storage import filesystem
from bytewright.storage.compression import find_packing

END = END_OF_TEXT.encode()
BLOCK = 2**20
"""How much is read at a time."""
LONGEST_LINE = 2**28
"""A line of JSON that is longer is refused: it has to be in memory whole."""
ROWS_AT_ONCE = 32
MOST_EXPANSION = 2**15
"""A Parquet file may hold so many times its own size of text, as much as Zstandard can pack. Without a bound,
1 kB could stand for any number of rows that repeat one text."""
KINDS = {".jsonl": ".jsonl", ".ndjson": ".jsonl", ".parquet": ".parquet"}
"""The format of a file, by the ending of its name; any other is plain text."""
PACKED_STEP = 1024
"""How much is unpacked at a time: 4 bytes of Zstandard can stand for 128 kB, so this for 32 MB at most."""

Progress = Callable[[int, int], object]
"""Hears how many bytes of the file are read, and how many there are."""


class Piece(NamedTuple):
    """A stretch of a document, and whether the document ends with it."""

    text: bytes
    is_last: bool


def read_documents(
    path: str | os.PathLike[str], *, field: str = "text", progress: Progress | None = None
) -> Iterator[bytes]:
    r"""Yield the documents of a file, one after the other.

    >>> import gzip, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "tales.txt.gz")
    ...     _ = path.write_bytes(gzip.compress(b"One.\n<|endoftext|>\nTwo,\nthree.\n<|endoftext|>\n"))
    ...     list(read_documents(path))
    [b'One.', b'Two,\nthree.']
    """
    pieces: list[bytes] = []
    for text, is_last in read_pieces(path, field=field, progress=progress):
        pieces.append(text)
        if is_last:
            yield b"".join(pieces)
            pieces.clear()


def read_pieces(
    path: str | os.PathLike[str], *, field: str = "text", progress: Progress | None = None
) -> Iterator[Piece]:
    """Yield the documents of a file in pieces of bounded length, cut before white space, never in a word.

    (A "word" longer than a block is cut where the block ends.)
    """
    path = Path(path)
    packing, kind = _kind_of(path)
    with filesystem.explain("read", path):
        if not packing and find_packing(path) is not None:
            raise UsageError(f"{path}: is compressed in a way that is not read here; unpack it first")
        if kind == ".parquet":
            yield from _pieces_of_rows(path, field, progress)
            return
        with filesystem.open_to_read(path) as file:
            blocks = _gather(UNPACK[packing](path, _read_blocks(file, path, progress)))
            if kind == ".jsonl":
                yield from _pieces_of_lines(path, _lines(path, blocks), field)
            else:
                yield from _pieces_of_text(blocks)


def _kind_of(path: Path) -> tuple[str, str]:
    """Tell packing and format by the name: `stories.jsonl.gz -> (".gz", ".jsonl")`."""
    endings = [ending.lower() for ending in path.suffixes]
    packing = endings.pop() if endings and endings[-1] in UNPACK else ""
    kind = KINDS.get(endings[-1], ".txt") if endings else ".txt"
    if packing and kind == ".parquet":
        raise UsageError(f"{path}: a Parquet file packs its columns itself; unpack it once, then read that")
    return packing, kind


# Blocks of bytes, packed and unpacked


def _read_blocks(file: Any, path: Path, progress: Progress | None) -> Iterator[bytes]:
    total = path.stat().st_size
    while block := file.read(BLOCK):
        yield block
        if progress is not None:
            progress(file.tell(), total)


def _as_they_are(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    return blocks


def _gunzip(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    def decompressor() -> Any:
        return zlib.decompressobj(wbits=31)  # 31: a gzip header and its checksum, and no other

    yield from _unpack(path, blocks, decompressor, "gzip", zlib.error)


def _unzstd(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    zstandard = import_extra("zstandard", path)
    context = zstandard.ZstdDecompressor(max_window_size=2**31)
    yield from _unpack(path, blocks, context.decompressobj, "Zstandard", zstandard.ZstdError)


def _unpack(
    path: Path,
    blocks: Iterator[bytes],
    decompressor: Callable[[], Any],
    name: str,
    error_class: type[Exception],
) -> Iterator[bytes]:
    """Unpack one packed stream after the other: files that were joined are read as one."""
    current = None
    num_read = 0
    for block in blocks:
        place = 0
        while part := block[place : place + PACKED_STEP]:
            if current is None:
                if not (stripped := part.lstrip(b"\0")):  # what was written in whole records ends in zeros
                    place += len(part)
                    continue
                place += len(part) - len(stripped)
                part, current = stripped, decompressor()
            try:
                unpacked = current.decompress(part)
            except error_class as error:
                raise FormatError(
                    f"{path}: is not sound {name} near byte {num_read + place} ({error})"
                ) from None
            place += len(part)
            if unpacked:
                yield unpacked
            if current.eof:
                place -= len(current.unused_data)
                current = None
        num_read += len(block)
    if current is not None:
        raise FormatError(f"{path}: is cut off: its {num_read} bytes end in the middle of the {name} data")


def _gather(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Join what came out of a packed file in crumbs: whoever looks for ends in it looks at all of a block."""
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


UNPACK: dict[str, Callable[[Path, Iterator[bytes]], Iterator[bytes]]] = {
    "": _as_they_are,
    ".gz": _gunzip,
    ".zst": _unzstd,
}
"""How to unpack, by the last ending of the name."""


# Documents out of blocks


def _pieces_of_text(blocks: Iterator[bytes]) -> Iterator[Piece]:
    rest = b""
    is_inside = False  # a document whose beginning was yielded already
    for block in blocks:
        *ended, rest = (rest + block).split(END)
        for text in ended:
            text = text.rstrip(b"\r\n") if is_inside else text.strip(b"\r\n")
            if text or is_inside:
                yield Piece(text, is_last=True)
            is_inside = False
        if len(rest) > 2 * BLOCK:
            cut = _safe_cut(rest)
            head = rest[:cut] if is_inside else rest[:cut].lstrip(b"\r\n")
            if head:
                yield Piece(head, is_last=False)
                is_inside = True
            rest = rest[cut:]
    rest = rest.rstrip(b"\r\n") if is_inside else rest.strip(b"\r\n")
    if rest or is_inside:
        yield Piece(rest, is_last=True)


def _safe_cut(text: bytes) -> int:
    """Find where to cut: before the last white space that no line ends follow, else before the last byte.

    Line ends at the cut would belong to a mark that comes next. No mark is cut: it has no white space in it,
    and where there is none a cut that would fall into a mark is made before it.
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
    """Return the last place at or before `position` that is not inside a character of valid UTF-8."""
    for lead in range(position - 1, max(position - 4, -1), -1):
        if text[lead] & 0xC0 != 0x80:  # not a continuation byte, so only this one can begin such a character
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
            raise FormatError(f"{path}: has a line of more than {LONGEST_LINE} bytes; is it JSON lines?")
    if length:
        yield b"".join(rest)


def _pieces_of_lines(path: Path, lines: Iterator[bytes], field: str) -> Iterator[Piece]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path}, line {number}: is not valid JSON ({error})") from None
        if not isinstance(row, dict) or not isinstance(row.get(field), str):
            raise FormatError(f"{path}, line {number}: is not an object with a text in {field!r}")
        try:
            text = row[field].encode()
        except UnicodeEncodeError:
            raise FormatError(
                f"{path}, line {number}: {field!r} holds half a surrogate pair, which is no text"
            ) from None
        yield from _pieces_of_document(text)


def _pieces_of_rows(path: Path, field: str, progress: Progress | None) -> Iterator[Piece]:
    parquet = import_extra("pyarrow.parquet", path)
    arrow = import_extra("pyarrow", path)
    filesystem.refuse_special_file(path)
    total, number = path.stat().st_size, 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise FormatError(f"{path}: has no column {field!r}; there are {', '.join(map(repr, names))}")
            _check_expansion(path, total, _claimed_bytes(file, field))
            num_bytes = 0
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[field]):
                for text in _texts_of(batch.column(0), path, number):
                    number += 1
                    if not isinstance(text, str):
                        found = type(text).__name__
                        raise FormatError(f"{path}, row {number}: {field!r} is no text, but {found}")
                    document = text.encode()
                    num_bytes += len(document)
                    _check_expansion(path, total, num_bytes)
                    yield from _pieces_of_document(document)
                if progress is not None:
                    progress(total * number // max(file.metadata.num_rows, 1), total)
    except arrow.ArrowException as error:
        raise FormatError(f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]})") from None


def _claimed_bytes(file: Any, field: str) -> int:
    """Return how many unpacked bytes a column has by the file's own account; rows may repeat some of them."""
    leaves = [file.schema.column(number).path for number in range(len(file.schema))]
    if field not in leaves:  # a column of columns, whose rows are not text
        return 0
    groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
    return sum(int(group.column(leaves.index(field)).total_uncompressed_size) for group in groups)


def _check_expansion(path: Path, size: int, num_bytes: int) -> None:
    if num_bytes > MOST_EXPANSION * size:
        raise FormatError(
            f"{path}: its {size} bytes hold more than {MOST_EXPANSION} times as much text; no corpus does"
        )


def _texts_of(column: Any, path: Path, num_before: int) -> list[Any]:
    """Give the values of some rows."""
    try:
        values: list[Any] = column.to_pylist()
        return values
    except UnicodeDecodeError:
        rows = f"rows {num_before + 1} to {num_before + len(column)}"
        raise FormatError(f"{path}, {rows}: one of them is no UTF-8, so it is no text") from None


def _pieces_of_document(text: bytes) -> Iterator[Piece]:
    start = 0
    while len(text) - start > 2 * BLOCK:
        end = start + _safe_cut(text[start : start + 2 * BLOCK])
        yield Piece(text[start:end], is_last=False)
        start = end
    yield Piece(text[start:], is_last=True)


def import_extra(module: str, path: Path) -> Any:
    """Import a library that only some formats need, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise UsageError(
            f"{path}: reading it needs the package {package}; install it with"
            " pip install 'bytewright[corpus]'"
        ) from None
