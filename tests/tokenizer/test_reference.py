"""The reference defines the tokenizer, so these tests compare it with the definition in words."""

import unicodedata
from collections import Counter

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from bytewright.errors import TokenizerError, UsageError
from bytewright.tokenizer.reference import (
    BYTES,
    Word,
    count_pairs,
    count_words_reference,
    decode_reference,
    encode_reference,
    encode_word,
    extend_reference,
    learn_merges,
    learn_merges_by_definition,
    pretokenize,
    ranks_of,
    split_on_special_tokens,
    train_bpe_reference,
)
from bytewright.tokenizer.vocabulary import PATTERNS, SPELLINGS, Vocabulary, name_of_pattern
from rejection import rejects

few_letters = st.text("ab", max_size=12).map(str.encode)
texts = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=40).map(str.encode),
    st.text("ab '\n\t1é\u00a0\u3000日", max_size=40).map(str.encode),
)
patterns = st.sampled_from([*PATTERNS, "[a-z]+", "a*", "|a", r"\b", "", r"(?<=a)b"])


# Words


@given(texts, patterns)
def test_no_byte_is_lost_by_pretokenizing(text: bytes, pattern: str) -> None:
    words = pretokenize(text, pattern)
    assert b"".join(words) == text
    assert b"" not in words


@given(st.text("ab '\n\t1é\u00a0\u3000日", max_size=40))
def test_words_of_valid_text_are_the_matches_of_the_pattern(text: str) -> None:
    for name, pattern in PATTERNS.items():
        assert pretokenize(text.encode(), name) == [word.encode() for word in regex.findall(pattern, text)]


@given(texts)
def test_every_spelling_of_a_named_pattern_cuts_as_the_named_one_does(text: bytes) -> None:
    for spelling, name in SPELLINGS.items():
        assert name_of_pattern(spelling) == name
        assert pretokenize(text, spelling) == pretokenize(text, name)


@pytest.mark.parametrize(
    ("kind", "sequence"),
    [
        ("a lone continuation byte", b"\x80"),
        ("a byte that is never UTF-8", b"\xff"),
        ("a truncated two-byte sequence", b"\xc3"),
        ("a truncated three-byte sequence", b"\xe2\x82"),
        ("a truncated four-byte sequence", b"\xf0\x9f\x98"),
        ("an overlong NUL", b"\xc0\x80"),
        ("an overlong slash", b"\xe0\x80\xaf"),
        ("a surrogate", b"\xed\xa0\x80"),
        ("one of the surrogates that stand for escaped bytes", b"\xed\xb2\x80"),
        ("a code point above U+10FFFF", b"\xf4\x90\x80\x80"),
        ("a five-byte sequence", b"\xf8\x88\x80\x80\x80"),
    ],
)
def test_each_byte_that_is_not_utf8_is_one_character_of_no_class(kind: str, sequence: bytes) -> None:
    assert pretokenize(b"a" + sequence + b"a", r"[^\s\p{L}\p{N}]") == [
        b"a",
        *(bytes([b]) for b in sequence),
        b"a",
    ]
    assert pretokenize(b"a" + sequence + b"1 " + sequence, "gpt2") == [b"a", sequence, b"1", b" " + sequence]


def test_text_that_a_user_defined_pattern_does_not_match_is_a_word() -> None:
    assert pretokenize(b"--one--two", "[a-z]+") == [b"--", b"one", b"--", b"two"]
    assert pretokenize(b"one--", "[a-z]+") == [b"one", b"--"]


def test_empty_matches_are_ignored() -> None:
    assert pretokenize(b"baab", "a*") == [b"b", b"aa", b"b"]
    assert pretokenize(b"ab", "") == [b"ab"]
    assert pretokenize(b"", "a*") == []


def test_after_an_empty_match_the_search_continues_at_the_next_character() -> None:
    assert pretokenize("éaa".encode(), "|a") == ["éaa".encode()]


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}", r"\p{Nonsense}", "(" * 100_000, "a\n("])
def test_a_broken_pattern_is_rejected_in_one_sentence(pattern: str) -> None:
    with rejects(TokenizerError, key="pattern", found=pattern) as caught:
        pretokenize(b"text", pattern)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


# Special tokens


@pytest.mark.parametrize(
    ("text", "specials", "parts"),
    [
        (b"", ["<e>"], []),
        (b"<e>", ["<e>"], [b"<e>"]),
        (b"a<e><e>b", ["<e>"], [b"a", b"<e>", b"<e>", b"b"]),
        (b"a<e><e><e>", ["<e>", "<e><e>"], [b"a", b"<e><e>", b"<e>"]),
        (b"abcd", ["bcd", "abc"], [b"abc", b"d"]),  # leftmost before longest
        (b"abcd", ["ab", "abc"], [b"abc", b"d"]),  # then longest
        (b"a.b", ["."], [b"a", b".", b"b"]),  # text, not a regular expression
        ("aéb".encode(), ["é"], [b"a", "é".encode(), b"b"]),
        (b"abc", [], [b"abc"]),
    ],
)
def test_special_tokens_are_split_off_leftmost_then_longest(
    text: bytes, specials: list[str], parts: list[bytes]
) -> None:
    assert split_on_special_tokens(text, specials) == parts
    assert split_on_special_tokens(text, specials[::-1]) == parts


def test_special_tokens_cut_words_and_are_not_counted() -> None:
    assert count_words_reference([b"low<e>low er", b"<e>"], ["<e>"], "gpt2") == Counter(
        {b"low": 2, b" er": 1}
    )


# Training


def test_the_textbook_example_gives_the_textbook_merges() -> None:
    counts = {b"low": 5, b"lower": 2, b"widest": 3, b"newest": 6}
    vocab, merges, merge_counts = train_bpe_reference(counts, 256 + 100)
    halves = [f"{left.decode()} {right.decode()}" for left, right in merges]
    assert ", ".join(halves) == (
        "s t, e st, o w, l ow, w est, n e, ne west, w i, wi d, wid est, low e, lowe r"
    )
    assert merge_counts == [9, 9, 7, 7, 6, 6, 6, 3, 3, 3, 2, 2]
    assert len(vocab) == 256 + 12


def test_on_a_tie_the_greater_pair_of_byte_strings_is_merged() -> None:
    _, merges, _ = train_bpe_reference({b"ab": 1, b"ac": 1, b"ba": 1}, 257)
    assert merges == [(b"b", b"a")]
    _, merges, _ = train_bpe_reference({b"\x7f\x80": 1, b"\x80\x00": 1}, 257)  # bytes are unsigned
    assert merges == [(b"\x80", b"\x00")]


def test_a_prefix_loses_the_tie() -> None:
    words: dict[Word, int] = {(b"a", b"z"): 1, (b"aa", b"a"): 1}
    assert learn_merges(words, 1) == [((b"aa", b"a"), 1)]


def test_overlapping_pairs_are_counted_each_time_and_merged_from_left_to_right() -> None:
    assert count_pairs({(b"a",) * 5: 3}) == Counter({(b"a", b"a"): 12})
    _, merges, counts = train_bpe_reference({b"aaaaa": 3}, 260)
    assert merges == [(b"a", b"a"), (b"aa", b"aa"), (b"aaaa", b"a")]
    assert counts == [12, 3, 3]


def test_training_stops_when_no_pair_is_frequent_enough() -> None:
    counts = {b"ab": 5, b"cd": 2}
    assert train_bpe_reference(counts, 300)[1] == [(b"a", b"b"), (b"c", b"d")]
    assert train_bpe_reference(counts, 300, min_count=3)[1] == [(b"a", b"b")]
    assert train_bpe_reference(b"", 300)[1] == []


def test_bytes_come_first_then_merges_then_special_tokens() -> None:
    vocab, _, _ = train_bpe_reference([b"ab<e>ab"], 258, ["<e>"])
    assert vocab == {**dict(enumerate(BYTES)), 256: b"ab", 257: b"<e>"}


def test_a_vocabulary_too_small_for_its_special_tokens_is_rejected() -> None:
    with rejects(UsageError, key="vocab_size", found=257):
        train_bpe_reference(b"text", 257, ["<a>", "<b>"])


@given(st.dictionaries(few_letters, st.integers(1, 5), max_size=8), st.integers(0, 20), st.integers(1, 4))
def test_learning_step_by_step_equals_the_definition(
    counts: dict[bytes, int], num_merges: int, min_count: int
) -> None:
    words = {tuple(BYTES[byte] for byte in word): times for word, times in counts.items()}
    expected = learn_merges_by_definition(words, num_merges, min_count)
    assert learn_merges(words, num_merges, min_count) == expected


@given(st.lists(texts, max_size=4))
def test_learning_step_by_step_equals_the_definition_on_any_bytes(corpus: list[bytes]) -> None:
    counts = count_words_reference(corpus, [], "gpt2")
    words = {tuple(BYTES[byte] for byte in word): times for word, times in counts.items()}
    assert learn_merges(words, 30) == learn_merges_by_definition(words, 30)


# Encoding and decoding


@given(st.lists(few_letters, min_size=1, max_size=6), st.integers(0, 15))
def test_encoding_a_training_word_gives_the_tokens_of_training(corpus: list[bytes], num_merges: int) -> None:
    counts = dict.fromkeys(corpus, 1)
    _, merges, _ = train_bpe_reference(counts, 256 + num_merges)
    for word in corpus:
        by_passes = tuple(BYTES[byte] for byte in word)
        for (
            left,
            right,
        ) in merges:  # "apply the merges in the order in which they were created", word for word
            position = 0
            while position + 1 < len(by_passes):
                if by_passes[position : position + 2] == (left, right):
                    by_passes = (*by_passes[:position], left + right, *by_passes[position + 2 :])
                position += 1
        assert encode_word(word, ranks_of(merges)) == by_passes


def vocabulary_trained_on(text: bytes, vocab_size: int = 300, pattern: str = "gpt2") -> Vocabulary:
    tokens, merges, _ = train_bpe_reference(text, vocab_size, pattern=pattern)
    return Vocabulary.from_parts(tokens, merges, ["<e>", "<e><e>"], pattern)


@given(texts, texts, patterns)
def test_bytes_survive_encoding_and_decoding(corpus: bytes, text: bytes, pattern: str) -> None:
    vocabulary = vocabulary_trained_on(corpus, pattern=pattern)
    text = text + b"<e><e><e>" + text
    assert decode_reference(encode_reference(text, vocabulary), vocabulary) == text


def test_a_special_token_is_one_id_and_nothing_merges_across_it() -> None:
    vocabulary = vocabulary_trained_on(b"ab ab ab", 257)
    assert vocabulary.merges == ((b"a", b"b"),)
    end, two_ends = vocabulary.special_tokens["<e>"], vocabulary.special_tokens["<e><e>"]
    assert encode_reference(b"ab<e>ab<e><e>a<e>b", vocabulary) == [256, end, 256, two_ends, 97, end, 98]


def test_decoding_an_unknown_id_names_it_and_its_position() -> None:
    vocabulary = vocabulary_trained_on(b"", 256)
    with rejects(TokenizerError, found=300) as caught:
        decode_reference([97, 300], vocabulary)
    assert "at position 1 " in str(caught.value)


# Extending


@given(texts, st.integers(0, 10), st.integers(0, 10))
def test_training_in_two_steps_equals_training_in_one(corpus: bytes, first: int, second: int) -> None:
    tokens, merges, _ = train_bpe_reference(corpus, 256 + first)
    start = Vocabulary.from_parts(tokens, merges)
    extended, _ = extend_reference(start, corpus, start.size + second)
    assert list(extended.merges) == train_bpe_reference(corpus, start.size + second)[1]


def test_extending_keeps_every_id_and_merge() -> None:
    start = vocabulary_trained_on(b"low low low lower", 258)
    longer, counts = extend_reference(start, [b"newest newest widest"], start.size + 3)
    assert longer.merges[: len(start.merges)] == start.merges
    assert {id: longer.tokens[id] for id in start.tokens} == start.tokens
    assert longer.special_tokens == start.special_tokens
    assert [longer.tokens[id] for id in range(start.size, longer.size)] == [b"st", b"est", b"west"]
    assert counts == [3, 3, 2]


def test_extending_to_a_smaller_vocabulary_is_rejected() -> None:
    start = vocabulary_trained_on(b"low low", 258)
    with rejects(UsageError, key="vocab_size", found=10):
        extend_reference(start, b"low", 10)


def test_lone_surrogates_are_of_no_class_in_the_unicode_tables_in_use() -> None:
    # `surrogateescape` relies on this; a new version of the pinned regex package must not change it.
    for code in range(0xDC80, 0xDD00):
        assert unicodedata.category(chr(code)) == "Cs"
        assert regex.fullmatch(r"[^\s\p{L}\p{N}]", chr(code))
