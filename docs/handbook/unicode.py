"""Compute the figures of unicode.md."""

from __future__ import annotations

TEXTS = [
    "Once upon a time",
    "Es war einmal ein Mädchen",
    "Жили-были дед да баба",
    "昔々あるところに",
    "👩‍🚀🚀",
]
INVALID = {
    b"\xc3(": "a lead byte without its continuation",
    b"\x80\x80": "continuation bytes without a lead byte",
    b"\xc0\xaf": "overlong: `/` has an encoding of one byte",
    b"\xed\xa0\x80": "half of a surrogate pair, which only UTF-16 uses",
    b"\xf4\x90\x80\x80": "above U+10FFFF, the last code point",
}


def size_rows():
    rows = [("text", "characters", "UTF-8", "UTF-16", "UTF-32", "zeros in UTF-16", "zeros in UTF-32")]
    for text in TEXTS:
        wide, wider = text.encode("utf-16-le"), text.encode("utf-32-le")
        rows.append(
            (text, len(text), len(text.encode()), len(wide), len(wider), wide.count(0), wider.count(0))
        )
    return rows


def problem(data: bytes) -> str | None:
    """Return Python's reason why bytes are not UTF-8, or None if they are."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason
    return None


def invalid_rows():
    rows = [(f"`{data.hex(' ')}`", why, problem(data)) for data, why in INVALID.items()]
    return [("bytes", "what is wrong", "Python's message"), *rows]


valid_pairs = sum(problem(bytes([first, second])) is None for first in range(256) for second in range(256))

FIGURES = [
    # Why UTF-8, and not UTF-16 or UTF-32?
    size_rows(),
    # Which sequences of two bytes are not UTF-8?
    f"Of the {256**2:,} sequences of two bytes, {valid_pairs:,} are valid",
    f"one of the {valid_pairs - 128**2:,} characters that",
    invalid_rows(),
]
GIVEN = {
    "U+0000": "the Unicode standard",
    "U+001C to U+001F": "the Unicode standard",
    "256 bytes": "the values of a byte",
}
