"""Texts, special tokens, patterns and cuts that are likely to show differences from the reference.

Random bytes rarely contain a contraction, a run of white space or half a character at a critical position. So
texts consist of pieces that have broken tokenizers before, with arbitrary text between.
"""

from __future__ import annotations

from hypothesis import strategies as st

from bytewright.tokenizer.vocabulary import PATTERNS

SPECIALS = ["<e>", "<e><e>", "<e", "e><", "<| a b |>", "aa", "é", "'s", " "]
"""Alone, adjacent, overlapping, one inside another, with spaces inside, and like ordinary text."""

WORDS = [
    *("a", "aa", "aaaa", "ab", "ba", "abab", "the", " the", "The", "low", "lower", "newest", "widest"),
    *("'s", "'t", "'ll", "'ve", "'re", "'LL", "'S", "'\u017f", "'l", "'v", "'", "''", " '", "\u2019s"),
    *("1", "12", "1234", " 7", "½", "Ⅷ", "٣", "\U0001d7d9", "²"),
    *(" ", "  ", "   ", "\n", "\r\n", "\n\n", " \n", "\t", "\x0b", "\x1c", "\x85"),
    *("\u00a0", "\u1680", "\u2028", "\u3000", "\u180e", "\u200b", "\ufeff", "\x00", "\x7f"),
    *("é", "e\u0301", "ß", "ǅ", "ж", "ª", "日本", "한", "ي", "ก", "\U0001d4b3", "𠀀", "\U0001f642", "👍🏽"),
    *("\ufffd", "\uffff", "\U000e0100", "\U000f0000", "\U0010ffff"),
    *("!", " !", "...", "^", "<", ">", "-", "_", "$", "+"),
    *SPECIALS,
]
"""Pieces of every plane and of every class that a pattern distinguishes."""

BROKEN = [
    b"\x80",  # a continuation byte without a lead
    b"\xff",  # a byte that is never UTF-8
    b"\xc3",  # the beginnings of two, three and four bytes
    b"\xe2\x82",
    b"\xf0\x9f\x98",
    b"\xc0\x80",  # overlong
    b"\xed\xa0\x80",  # a surrogate
    b"\xf4\x90\x80\x80",  # beyond U+10FFFF
]
"""Pieces that are not valid UTF-8 by themselves."""

WINDOW = 4096
"""The window size in bytes of the scanner of the GPT-2 pattern."""

USER_PATTERNS = [
    "[a-z]+",
    r"\S+",
    r"\p{L}+|\p{N}|[^\p{L}\p{N}]+",
    r" ?[^\s]+|\s+(?!\S)|\s+",
    r"(?<=a)b",  # leaves most of the text unmatched
    r"(.)\1",  # needs backtracking
    r"\p{S}+",  # no class of a pattern may depend on how broken bytes are shown to the engine
    r"[^a]",
    "a*",  # matches nothing, almost everywhere
    "|a",
    "",
]
"""Patterns that mean the same in both regular expression engines, whatever their Unicode versions."""

few_letters = st.text("ab", max_size=12).map(str.encode)
mixed_words = st.text("abs'l éß日\U0001d4b3\u3000", min_size=8, max_size=40).map(str.encode)
"""Words with adjacent characters of one to four bytes."""

known_pieces = st.sampled_from([word.encode() for word in WORDS])
broken_pieces = st.sampled_from(BROKEN)
any_characters = st.text(max_size=5).map(str.encode)
any_bytes = st.binary(max_size=5)

valid_texts = st.lists(known_pieces | any_characters, max_size=20).map(b"".join)
"""Valid UTF-8."""

texts = st.lists(known_pieces | broken_pieces | few_letters | any_characters | any_bytes, max_size=20).map(
    b"".join
)
"""Any bytes."""

texts_for_user_patterns = st.lists(known_pieces | broken_pieces | few_letters, max_size=20).map(b"".join)
"""Bytes on whose characters the Unicode versions of both engines agree."""

BROKEN_EDGES = [
    *(b"\xc3\xa9", b"\xe6\x97\xa5", b"\xf0\xa0\x80\x80", b"\xc3", b"\xe3\x80"),
    *(b"\x80", b"\x97", b"\xa9", b"\xac", b"\x80\xa9\xac", b"a", b"1", b" ", b"'s"),
]
broken_edges = st.lists(st.sampled_from(BROKEN_EDGES), min_size=1, max_size=8).map(b"".join)
"""Whole characters, halves of them and continuation bytes in any order, as in text of another encoding."""


def shifted_over_an_edge(edge: bytes, filler: bytes) -> list[bytes]:
    """Return texts in which the first edge of a window falls on each byte of `edge`."""
    before = (filler * WINDOW)[:WINDOW]
    return [before[shift:] + edge + b" x" for shift in range(len(edge) + 1)]


fillers = st.sampled_from([b"a1", b"a ", b"!1", b"\x80 "])
"""Text that fills a window up to its edge: short words, which the reference processes quickly."""

special_tokens = st.lists(st.sampled_from(SPECIALS), unique=True, max_size=4)

named_patterns = st.sampled_from(sorted(PATTERNS))
user_patterns = st.sampled_from(USER_PATTERNS)


@st.composite
def cut_up(draw: st.DrawFn, text: bytes) -> list[bytes]:
    """Split a text at any positions, even inside a character; pieces may be empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=10)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
