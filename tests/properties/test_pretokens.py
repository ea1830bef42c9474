"""Pre-tokens equal those of the pinned `regex` package for every code point and at every edge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product, zip_longest

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from bytewright import _native
from bytewright.tokenizer.reference import pretokenize as pretokenize_reference
from bytewright.tokenizer.vocabulary import PATTERNS
from random_strings import CODE_POINTS, random_strings
from texts import (
    WINDOW,
    broken_edges,
    few_letters,
    fillers,
    known_pieces,
    named_patterns,
    shifted_over_an_edge,
    texts,
    texts_for_user_patterns,
    user_patterns,
)

BLOCK = 64
"""The bytes that the scanner of the GPT-2 pattern classifies at a time; it scans one `WINDOW` at a time."""

both_patterns = pytest.mark.parametrize("pattern", sorted(PATTERNS))


def assert_same(text: str, pattern: str) -> None:
    """Compare the pre-tokens of a text in one comparison, joined by a byte that does not occur in texts."""
    words = _native.pretokenize(text, pattern)
    expected = regex.findall(PATTERNS[pattern], text)
    if b"\xff".join(words) != "\udcff".join(expected).encode("utf-8", "surrogateescape"):
        # Show the first difference only: a comparison of long lists would take pytest hours.
        for ours, theirs in zip_longest(words, expected):
            assert ours == (None if theirs is None else theirs.encode()), f"in {text[:100]!r}"


def assert_same_for_each(characters: Sequence[str], pattern: str, surround: Callable[[str], str]) -> None:
    """Compare many surrounded characters in one long text; if it differs, name the character."""
    batch = 1 << 14
    for start in range(0, len(characters), batch):
        pieces = [surround(character) for character in characters[start : start + batch]]
        try:
            assert_same("".join(pieces), pattern)
        except AssertionError:
            for piece in pieces:
                assert_same(piece, pattern)
            raise


# Any bytes


@given(texts, named_patterns)
def test_pretokens_of_any_bytes_equal_the_reference(text: bytes, pattern: str) -> None:
    assert _native.pretokenize(text, pattern) == pretokenize_reference(text, pattern)


@given(texts_for_user_patterns, user_patterns)
def test_pretokens_of_a_user_defined_pattern_equal_the_reference(text: bytes, pattern: str) -> None:
    assert _native.pretokenize(text, pattern) == pretokenize_reference(text, pattern)


@given(st.lists(known_pieces | few_letters, min_size=1, max_size=8), st.integers(0, 9000), named_patterns)
def test_pretokens_of_long_texts_equal_the_reference(pieces: list[bytes], length: int, pattern: str) -> None:
    # The pieces again and again, so that each of them comes to lie across the scanner's seams.
    text = b"".join(pieces)
    text = (text * (length // len(text) + 1))[:length] if text else b""
    assert _native.pretokenize(text, pattern) == pretokenize_reference(text, pattern)


# Every code point


@both_patterns
def test_every_code_point_alone_is_one_pretoken(pattern: str) -> None:
    for character in CODE_POINTS:
        if _native.pretokenize(character, pattern) != [character.encode()]:
            assert_same(character, pattern)


@both_patterns
def test_every_code_point_is_of_the_class_that_regex_gives_it(pattern: str) -> None:
    # After a letter and before a number, after a space and before a letter: that tells all classes apart.
    assert_same_for_each(CODE_POINTS, pattern, lambda character: f"a{character}1 {character}")


@pytest.mark.slow
@both_patterns
@pytest.mark.parametrize("before", ["a", "1", " ", "\n", "'"])
@pytest.mark.parametrize("after", ["a", "1", " ", "\n", "'s"])
def test_every_code_point_between_all_kinds_of_neighbours(pattern: str, before: str, after: str) -> None:
    assert_same_for_each(CODE_POINTS, pattern, lambda character: before + character + after)


@pytest.mark.slow
@both_patterns
def test_every_single_code_point_is_classified_as_by_regex(pattern: str) -> None:
    for character in CODE_POINTS:
        assert_same(character, pattern)


@both_patterns
def test_apostrophe_and_every_code_point_are_a_contraction_only_if_regex_matches(pattern: str) -> None:
    folded = [character for character in CODE_POINTS if character.casefold().isascii()]
    for character in folded:
        for text in (
            f"'{character}",
            f"a'{character}e",
            f"'{character}l",
            f"'l{character}",
            f"'r{character}s",
        ):
            assert_same(text, pattern)


# Random strings


@both_patterns
def test_pretokens_of_random_strings_equal_regex(pattern: str) -> None:
    for strings in random_strings(50_000, seed=1):
        for text in strings:
            assert_same(text, pattern)


@pytest.mark.slow
@both_patterns
def test_pretokens_of_a_million_random_strings_equal_regex(pattern: str) -> None:
    for strings in random_strings(1_000_000, seed=2):
        for text in strings:
            assert_same(text, pattern)


# The scanner's seams

FILLERS = ["x", "7", " ", "!", "é", "日", "\U0001d4b3", "\u00a0", "\u3000", "'s", "a "]
PROBES = [
    *("'s", "'ll", "'re", "'v", "'", "''s", " 's", "s'", "é", "日", "\U0001d4b3", "😀", "😀s"),
    *(
        " ",
        "  ",
        " \n ",
        "\n",
        "\u00a0",
        " \u00a0",
        "\u3000",
        "\u3000 ",
        "\u2003\u2003",
        "\r\n",
        "a",
        "1",
        "!",
        " é",
    ),
]
TAILS = ["", "x", " ", "1", "!", "'s", "\u00a0y"]


def texts_across(seam: int, filler: str, reach: int) -> list[str]:
    """Return texts in which each probe begins at each byte around an edge, after a run of one filler."""
    found = []
    for start, probe, tail in product(range(seam - reach, seam + 2), PROBES, TAILS):
        num_fillers, rest = divmod(start, len(filler.encode()))
        found.append("y" * rest + filler * num_fillers + probe + tail)
    return found


@both_patterns
@pytest.mark.parametrize("filler", FILLERS)
def test_pretokens_across_the_edge_of_a_block(pattern: str, filler: str) -> None:
    for text in texts_across(BLOCK, filler, reach=5):
        assert_same(text, pattern)


@pytest.mark.parametrize("filler", ["x", " ", "日", "\u3000"])
def test_pretokens_across_the_edge_of_a_window(filler: str) -> None:
    for text in texts_across(WINDOW, filler, reach=5):
        assert_same(text, "gpt2")


@given(broken_edges, fillers | st.sampled_from([b"x", b" ", b"\x80"]), user_patterns)
def test_broken_characters_across_the_edge_of_a_window(edge: bytes, filler: bytes, users: str) -> None:
    for text in shifted_over_an_edge(edge, filler):
        for pattern in (*PATTERNS, users):
            assert _native.pretokenize(text, pattern) == pretokenize_reference(text, pattern)
