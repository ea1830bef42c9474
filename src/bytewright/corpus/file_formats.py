r"""The formats of text files: recognise them, and read their bytes, decompressed if necessary.

The name of a file decides its format and its compression: `stories.jsonl.gz`. Binary files are recognised by
their first bytes. Text in another encoding than UTF-8 is not recognised, except UTF-16 and UTF-32 with a
byte-order mark.

Byte-order marks and carriage returns are valid text, so they are kept unless the caller calls `clean_blocks`.
A model would learn them as tokens.
"""

from __future__ import annotations

import importlib
import os
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from bytewright.errors import FormatError, UsageError
from bytewright.formatting import Progress
from bytewright.storage import filesystem
from bytewright.storage.filesystem import StrPath

BLOCK = 2**20
"""Bytes per read."""
SIGNATURE_BYTES = 512
"""How many bytes at the start of a file decide whether it is binary."""
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

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CRLF = b"\r\n"
HEAD = 2**20
"""How many bytes at the start of a text are searched for CRLF."""

SIGNATURES: tuple[tuple[str, str], ...] = (
    (r"\x93NUMPY", "a NumPy array (.npy)"),
    (r".{5}\0\0\0\{\"", "a safetensors file"),
    (r"PK\x03\x04", "a zip archive (.zip, .npz, .pt, .docx)"),
    (r"\x1f\x8b\x08", "gzip data"),
    (r"\x28\xb5\x2f\xfd", "Zstandard data"),
    (r"\xfd7zXZ\0", "xz data"),
    (r"BZh[1-9]1AY&SY", "bzip2 data"),
    (r"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (r".{257}ustar[\0 ]", "a tar archive"),
    (r"GGUF[\x01-\x0f]\0\0\0", "a GGUF model"),
    (r"PAR1[\0-\x1f]", "a Parquet file"),
    (r"ARROW1\0\0", "an Arrow file"),
    (r"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (r"SQLite format 3\0", "an SQLite database"),
    (r"\x80[\x04\x05]\x95", "a Python pickle"),
    (r"\x89PNG\r\n\x1a\n", "a PNG image"),
    (r"\xff\xd8\xff", "a JPEG image"),
    (r"GIF8[79]a.{0,6}[\0-\x08]", "a GIF image"),
    (r"RIFF.{4}(?:WEBP|WAVE|AVI )", "a sound, image or video file (RIFF)"),
    (r".{4}ftyp[\w ]{4}\0", "a video file (MP4)"),
    (r"OggS\0", "a sound file (Ogg)"),
    (r"%PDF-\d\.\d", "a PDF document"),
    (r"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Office document"),
    (r"\x7fELF[\x01\x02]", "a program (ELF)"),
    (r"(?:\xff\xfe\0\0|\0\0\xfe\xff)", "text in UTF-32"),
    (r"(?:\xff\xfe(?:..){0,30}?.\0|\xfe\xff(?:..){0,30}?\0)", "text in UTF-16"),
)
"""The start of binary files, as regular expressions, and what the file is."""

_PATTERNS = [(re.compile(pattern.encode(), re.DOTALL), kind) for pattern, kind in SIGNATURES]


def is_plain_text_name(path: StrPath) -> bool:
    """Return whether the name of a file means plain text that is not compressed.

    >>> [is_plain_text_name(name) for name in ("stories.txt", "stories.txt.gz", "pages.jsonl")]
    [True, False, False]
    """
    return split_suffixes(Path(path)) == ("", ".txt")


def split_suffixes(path: Path) -> tuple[str, str]:
    """Return compression and format by the file name: `stories.jsonl.gz -> (".gz", ".jsonl")`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in DECOMPRESS else ""
    kind = KINDS.get(suffixes[-1], ".txt") if suffixes else ".txt"
    if compression and kind == ".parquet":
        raise UsageError.at(path, "a compressed Parquet file; decompress it first")
    return compression, kind


# The contents of a file


def find_binary_kind(head: bytes) -> str | None:
    r"""Return what a file is, given its first bytes, if it is not plain text.

    >>> find_binary_kind(b"\x93NUMPY\x01\x00v"), find_binary_kind(b"GGUF is a file format.")
    ('a NumPy array (.npy)', None)
    """
    return next((kind for pattern, kind in _PATTERNS if pattern.match(head)), None)


def find_marks(head: bytes) -> list[str]:
    r"""Return which marks of other systems the start of a text contains.

    >>> find_marks(b"\xef\xbb\xbfOne.\r\nTwo."), find_marks(b"One.\nTwo.")
    (['a byte-order mark', 'CRLF line ends'], [])
    """
    found = {"a byte-order mark": head.startswith(BYTE_ORDER_MARK), "CRLF line ends": CRLF in head[:HEAD]}
    return [name for name, is_present in found.items() if is_present]


def clean_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    r"""Yield the blocks of a text without its byte-order mark, and with LF instead of CRLF.

    >>> list(clean_blocks(iter([b"\xef\xbb\xbfOne.\r", b"\nTwo.\r\n", b"\r"])))
    [b'One.', b'\nTwo.\n', b'', b'\r']
    """
    held = b""  # a carriage return whose line feed may be in the next block
    for number, block in enumerate(blocks):
        block = held + (block if number else block.removeprefix(BYTE_ORDER_MARK))
        held = b"\r" if block.endswith(b"\r") else b""
        yield block.removesuffix(held).replace(CRLF, b"\n")
    if held:
        yield held


def find_compression(path: Path) -> str | None:
    """Return the suffix of a compressed file if its first bytes agree with it."""
    suffix = path.suffix.lower()
    if suffix not in COMPRESSED or not os.path.isfile(path):
        return None
    with filesystem.explain("read", path), filesystem.open_to_read(path) as file:
        return suffix if file.read(len(COMPRESSED[suffix])) == COMPRESSED[suffix] else None


def find_marks_in(path: Path) -> list[str]:
    """Return which of byte-order mark and CRLF the first megabyte of a text has; reject a binary file."""
    compression, kind = split_suffixes(path)
    if kind == ".parquet":
        return []
    with filesystem.explain("read", path), filesystem.open_to_read(path) as file:
        head = next(read_blocks(file, path, compression), b"")
    if kind == ".txt":
        check_start(path, head[:SIGNATURE_BYTES])
    return find_marks(head.replace(rb"\r\n", CRLF) if kind == ".jsonl" else head)


def check_plain_text(source: StrPath) -> None:
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
            check_start(path, file.read(SIGNATURE_BYTES))


def check_start(path: Path, head: bytes) -> None:
    """Raise if the first bytes of a file are those of a binary format."""
    if kind := find_binary_kind(head):
        message = f"{path}: is {kind}, not plain text in UTF-8; convert or leave out the file"
        raise UsageError(message, path=path, expected="plain text", found=kind)


# Blocks of bytes


def read_blocks(
    file: BinaryIO, path: Path, compression: str, progress: Progress | None = None
) -> Iterator[bytes]:
    """Yield the decompressed bytes of an open file in blocks of at least `BLOCK` bytes, except the last."""
    return gather_blocks(DECOMPRESS[compression](path, _read(file, path, progress)))


def _read(file: BinaryIO, path: Path, progress: Progress | None) -> Iterator[bytes]:
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


def gather_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
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


def import_extra(module: str, path: Path) -> Any:
    """Import an optional dependency, or raise an error that names the package to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        problem = f"reading this file needs {package}; install it with: pip install {package}"
        raise UsageError.at(path, problem, expected=package) from None
