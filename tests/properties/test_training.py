"""The fused trainer learns exactly the merges of the reference, for every kind of source."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bytewright.corpus.file_formats import SIGNATURE_BYTES, find_binary_kind
from bytewright.tokenizer.reference import (
    count_words_reference,
    extend_reference,
    learn_merges_by_definition,
    train_bpe_reference,
)
from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import (
    TrainingResult,
    count_texts,
    count_words,
    extend_tokenizer,
    train_bpe,
    train_tokenizer,
)
from bytewright.tokenizer.vocabulary import Vocabulary
from texts import (
    broken_edges,
    few_letters,
    fillers,
    named_patterns,
    shifted_over_an_edge,
    special_tokens,
    texts,
    texts_for_user_patterns,
    user_patterns,
    valid_texts,
)

THREADS = [1, 2, 3, 8]
END = "|END|"
"""Ends a document, and overlaps with no other special token."""

num_merges = st.integers(0, 40)
min_counts = st.integers(1, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


def write_files(folder: Path, contents: Sequence[bytes]) -> list[Path]:
    """Write each content to a separate file, replacing the files of the previous example.

    Files that begin like a binary format are rejected, so examples with such a content are discarded.
    """
    assume(not any(find_binary_kind(content[:SIGNATURE_BYTES]) for content in contents))
    paths = [folder / f"{number:04}.txt" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


def assert_equal_to_the_reference(
    training: TrainingResult,
    source: bytes | list[bytes] | dict[bytes, int],
    vocab_size: int,
    specials: list[str],
) -> None:
    vocabulary = training.vocabulary
    tokens, merges, counts = train_bpe_reference(source, vocab_size, specials, pattern=vocabulary.pattern)
    assert list(vocabulary.merges) == merges
    assert training.merge_counts == counts
    assert vocabulary.tokens == tokens
    assert list(vocabulary.special_tokens) == specials
    assert (training.stopped is None) == (len(tokens) == vocab_size)


# One text


@given(texts, special_tokens, named_patterns, num_merges)
def test_merges_counts_and_vocabulary_equal_the_reference(
    folder: Path, text: bytes, specials: list[str], pattern: str, merges: int
) -> None:
    assume(text)
    vocab_size = 256 + len(specials) + merges
    training = train_tokenizer(write_files(folder, [text]), vocab_size, specials, pattern=pattern)
    assert_equal_to_the_reference(training, text, vocab_size, specials)


@given(texts_for_user_patterns, special_tokens, user_patterns, num_merges)
def test_merges_equal_the_reference_with_a_user_defined_pattern(
    folder: Path, text: bytes, specials: list[str], pattern: str, merges: int
) -> None:
    assume(text)
    vocab_size = 256 + len(specials) + merges
    training = train_tokenizer(write_files(folder, [text]), vocab_size, specials, pattern=pattern)
    assert_equal_to_the_reference(training, text, vocab_size, specials)


@settings(max_examples=30)  # several trainings each
@given(broken_edges, fillers, named_patterns, user_patterns)
def test_merges_of_broken_characters_at_the_edge_of_a_window_equal_the_reference(
    folder: Path, edge: bytes, filler: bytes, pattern: str, users: str
) -> None:
    for text in shifted_over_an_edge(edge, filler):
        training = train_tokenizer(write_files(folder, [text]), 270, pattern=pattern)
        assert_equal_to_the_reference(training, text, 270, [])
        assert count_texts([text], pattern=users).counts() == count_words_reference(text, [], users)


@given(texts, special_tokens, num_merges)
def test_train_bpe_returns_what_train_tokenizer_learns(
    folder: Path, text: bytes, specials: list[str], merges: int
) -> None:
    assume(text)
    path = write_files(folder, [text])[0]
    vocab, learnt = train_bpe(str(path), 256 + len(specials) + merges, specials)
    expected_vocab, expected, _ = train_bpe_reference(text, 256 + len(specials) + merges, specials)
    assert (vocab, learnt) == (expected_vocab, expected)


@given(texts, named_patterns, min_counts)
def test_rare_pairs_are_not_merged_as_in_the_reference(
    folder: Path, text: bytes, pattern: str, min_count: int
) -> None:
    assume(text)
    training = train_tokenizer(write_files(folder, [text]), 300, pattern=pattern, min_count=min_count)
    _, merges, counts = train_bpe_reference(text, 300, pattern=pattern, min_count=min_count)
    assert (list(training.vocabulary.merges), training.merge_counts) == (merges, counts)
    assert (training.stopped is None) == (len(merges) == 300 - 256)


# Ties and repeats: few letters, few counts, many equal pairs


@given(st.dictionaries(few_letters, st.integers(0, 3), max_size=8), st.integers(0, 60), min_counts)
def test_ties_and_repeats_are_resolved_by_the_definition(
    counts: dict[bytes, int], merges: int, min_count: int
) -> None:
    training = train_tokenizer(count_words(counts), 256 + merges, min_count=min_count)
    words = {tuple(bytes([byte]) for byte in word): times for word, times in counts.items()}
    learned = learn_merges_by_definition(words, merges, min_count)
    assert list(zip(training.vocabulary.merges, training.merge_counts, strict=True)) == learned


@given(st.dictionaries(st.binary(max_size=6), st.integers(1, 2), max_size=30))
def test_ties_between_arbitrary_bytes_go_to_the_greater_pair(counts: dict[bytes, int]) -> None:
    training = train_tokenizer(count_words(counts), 400)
    _, merges, merge_counts = train_bpe_reference(counts, 400)
    assert (list(training.vocabulary.merges), training.merge_counts) == (merges, merge_counts)


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 5)), max_size=5))
def test_runs_of_one_letter_are_counted_and_merged_by_the_definition(
    runs: list[tuple[int, int]],
) -> None:
    counts: dict[bytes, int] = {}
    for length, count in runs:
        counts[b"a" * length] = counts.get(b"a" * length, 0) + count
    training = train_tokenizer(count_words(counts), 300)
    _, merges, merge_counts = train_bpe_reference(counts, 300)
    assert (list(training.vocabulary.merges), training.merge_counts) == (merges, merge_counts)


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=8).map(str.encode), st.integers(1, 2**40), max_size=12
    )
)
def test_counts_of_every_size_are_summed_exactly(counts: dict[bytes, int]) -> None:
    # A wide spread makes the trainer lower the threshold of its index several times.
    training = train_tokenizer(count_words(counts), 320)
    _, merges, merge_counts = train_bpe_reference(counts, 320)
    assert (list(training.vocabulary.merges), training.merge_counts) == (merges, merge_counts)


# The same text from elsewhere


@given(st.lists(texts, max_size=5), special_tokens, named_patterns)
def test_an_iterator_of_bytes_counts_as_in_the_reference(
    parts: list[bytes], specials: list[str], pattern: str
) -> None:
    counter = count_texts(iter(parts), specials, pattern=pattern)
    assert counter.counts() == count_words_reference(parts, specials, pattern)
    training = train_tokenizer(counter, 300, specials, pattern=pattern)
    assert_equal_to_the_reference(training, parts, 300, specials)


@given(st.lists(valid_texts, max_size=5), special_tokens)
def test_an_iterator_of_str_equals_one_of_bytes(parts: list[bytes], specials: list[str]) -> None:
    from_str = count_texts((part.decode() for part in parts), specials)
    assert from_str.counts() == count_texts(parts, specials).counts()
    assert from_str.stats()[:3] == count_texts(parts, specials).stats()[:3]


@given(st.lists(texts, max_size=5), special_tokens)
def test_statistics_are_those_of_the_counted_words(parts: list[bytes], specials: list[str]) -> None:
    expected = count_words_reference(parts, specials, "gpt2")
    training = train_tokenizer(count_texts(parts, specials), 256 + len(specials), specials)
    assert training.corpus_bytes == sum(map(len, parts))
    assert training.num_words == sum(expected.values())
    assert training.num_distinct_words == len(expected)


@given(st.lists(texts, max_size=5), special_tokens)
def test_given_word_counts_train_like_their_text(parts: list[bytes], specials: list[str]) -> None:
    counts = dict(count_words_reference(parts, specials, "gpt2"))
    from_counts = train_tokenizer(count_words(counts), 300, specials)
    from_pairs = train_tokenizer(count_words(iter(counts.items())), 300, specials)
    assert from_counts.vocabulary == from_pairs.vocabulary
    assert_equal_to_the_reference(from_counts, counts, 300, specials)


@settings(max_examples=50)  # five trainings each
@given(st.lists(texts, min_size=1, max_size=6), special_tokens)
def test_a_corpus_in_several_files_equals_the_corpus_in_one(
    folder: Path, documents: list[bytes], specials: list[str]
) -> None:
    specials = [*specials, END]
    ended = [document + END.encode() for document in documents]
    whole = train_tokenizer(write_files(folder, [b"".join(ended)]), 300, specials)
    paths = write_files(folder, ended)
    for num_threads in THREADS:
        parts = train_tokenizer(paths, 300, specials, num_threads=num_threads)
        assert parts.vocabulary == whole.vocabulary
        assert parts.merge_counts == whole.merge_counts
        assert parts.corpus_bytes == whole.corpus_bytes
        assert parts.num_words == whole.num_words
        assert parts.num_distinct_words == whole.num_distinct_words


@given(st.lists(texts, min_size=1, max_size=6), st.lists(st.integers(0, 6), max_size=4), named_patterns)
def test_any_cut_at_a_document_boundary_yields_the_same_merges(
    folder: Path, documents: list[bytes], places: list[int], pattern: str
) -> None:
    ended = [document + END.encode() for document in documents]
    bounds = sorted(min(place, len(ended)) for place in [0, *places, len(ended)])
    contents = [b"".join(ended[start:end]) for start, end in itertools.pairwise(bounds)]
    training = train_tokenizer(write_files(folder, contents), 300, [END], pattern=pattern, num_threads=2)
    assert_equal_to_the_reference(training, b"".join(ended), 300, [END])


# Extending


@given(texts, texts, special_tokens, named_patterns, st.integers(0, 20), st.integers(0, 20), min_counts)
def test_extending_equals_the_reference(
    first: bytes,
    second: bytes,
    specials: list[str],
    pattern: str,
    first_merges: int,
    more_merges: int,
    min_count: int,
) -> None:
    tokens, merges, _ = train_bpe_reference(first, 256 + first_merges, pattern=pattern)
    start = Vocabulary.from_parts(tokens, merges, specials, pattern)
    vocab_size = start.size + more_merges
    expected, counts = extend_reference(start, second, vocab_size, min_count=min_count)
    training = extend_tokenizer(
        Tokenizer.from_vocabulary(start),
        count_texts([second], specials, pattern=pattern),
        vocab_size,
        min_count=min_count,
    )
    assert training.vocabulary == expected
    assert training.merge_counts == counts
    assert (training.stopped is None) == (len(counts) == more_merges)


@given(st.dictionaries(few_letters, st.integers(1, 3), max_size=8), st.integers(0, 15), st.integers(0, 15))
def test_training_in_two_steps_equals_training_in_one(
    counts: dict[bytes, int], first: int, second: int
) -> None:
    start = train_tokenizer(count_words(counts), 256 + first).vocabulary
    extended = extend_tokenizer(
        Tokenizer.from_vocabulary(start), count_words(counts), start.size + second
    ).vocabulary
    assert extended == train_tokenizer(count_words(counts), start.size + second).vocabulary
