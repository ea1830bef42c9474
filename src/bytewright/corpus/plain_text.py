r"""Recognise files that are not plain text, byte-order marks and CRLF line ends; and remove the latter two.

Byte-order marks and carriage returns are valid text, so they are kept unless `clean` is set. A model would
learn them as tokens. Binary files are recognised by their first bytes. Text in another encoding than UTF-8 is
not recognised, except UTF-16 and UTF-32 with a byte-order mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
