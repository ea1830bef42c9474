"""The functions of `inspect` and `compare`, tested with small vocabularies."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bytewright.data.tokenfile import Ids
from bytewright.errors import UsageError
from bytewright.tokenizer import inspect
from bytewright.tokenizer.reference import (
    count_words_reference,
    encode_reference,
    learn_merges,
    train_bpe_reference,
)
from bytewright.tokenizer.vocabulary import Vocabulary
from rejection import rejects

TEXT = b"low " * 5 + b"lower " * 2 + b"widest " * 3 + b"newest " * 6
OTHER_TEXT = b"the cat sat on the mat and the newest rat sat on that "


class ReferenceTokenizer:
    """The reference with the two methods that `inspect` needs."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def encode_array(self, text: str | bytes, *, num_threads: int | None = None) -> Ids:
        data = text.encode() if isinstance(text, str) else text
        return np.array(encode_reference(data, self.vocabulary), dtype=np.uint32)


def train(text: bytes, num_merges: int, specials: tuple[str, ...] = ("<|end|>",)) -> ReferenceTokenizer:
    tokens, merges, _ = train_bpe_reference(text, 256 + num_merges + len(specials), specials)
    return ReferenceTokenizer(Vocabulary.from_parts(tokens, merges, specials))


def test_the_longest_tokens_exclude_special_ones() -> None:
    vocabulary = train(TEXT, 12).vocabulary
    longest = inspect.longest_tokens(vocabulary, 3)
    assert [token for _, token in longest] == [b" newest", b"newest", b"widest"]
    assert all(vocabulary.tokens[id] == token for id, token in longest)
    assert b"<|end|>" not in [token for _, token in inspect.longest_tokens(vocabulary, 1000)]


def test_equally_long_tokens_come_oldest_first() -> None:
    listed = inspect.longest_tokens(train(TEXT, 3).vocabulary, 300)
    assert listed == sorted(listed, key=lambda entry: (-len(entry[1]), entry[0]))


def test_the_histogram_counts_every_ordinary_token_once() -> None:
    vocabulary = train(TEXT, 12).vocabulary
    histogram = inspect.length_histogram(vocabulary)
    assert histogram[1] == 256
    assert sum(histogram.values()) == 256 + 12
    assert list(histogram) == sorted(histogram)


def unshow(shown: str) -> bytes:
    """Invert `show_token`, which proves that different tokens are shown differently."""

    def character(match: re.Match[str]) -> bytes:
        escape = match[0]
        if re.fullmatch(r"\\x[89a-f].", escape):
            return bytes([int(escape[2:], 16)])
        return (
            escape.encode("ascii").decode("unicode_escape").encode() if escape[0] == "\\" else escape.encode()
        )

    parts = re.finditer(r"\\(?:x..|u....|U........|.)|[^\\]", shown.replace("␣", " "))
    return b"".join(map(character, parts))


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_a_shown_token_is_printable_and_no_two_are_shown_alike(token: bytes) -> None:
    shown = inspect.show_token(token)
    assert shown.isprintable()
    assert unshow(shown) == token


def test_the_pieces_of_a_text_are_the_text_and_specials_are_marked() -> None:
    text = b"lower<|end|>newest \xff"
    pieces = inspect.split_text(train(TEXT, 12), text)
    assert b"".join(piece.token for piece in pieces) == text
    assert [piece.token for piece in pieces if piece.is_special] == [b"<|end|>"]


def test_the_first_pieces_of_a_text_are_those_of_all_of_it() -> None:
    tokenizer = train(TEXT, 12)
    text = "newest lowest wídest".encode()
    pieces = inspect.split_text(tokenizer, text)
    for max_bytes in range(len(text) + 2):
        beginning = inspect.split_text(tokenizer, text, max_bytes=max_bytes)
        assert beginning == pieces[: len(beginning)]
        num_bytes = sum(len(piece.token) for piece in beginning)
        assert num_bytes <= max_bytes or len(beginning) == 1
        assert num_bytes == len(text) or num_bytes + len(pieces[len(beginning)].token) > max_bytes


def test_bytes_per_token_is_one_without_merges_and_grows_with_them() -> None:
    assert inspect.bytes_per_token(train(TEXT, 0), TEXT) == 1.0
    tokenizer = train(TEXT, 12)
    assert inspect.bytes_per_token(tokenizer, TEXT) == len(TEXT) / len(
        encode_reference(TEXT, tokenizer.vocabulary)
    )
    assert inspect.bytes_per_token(tokenizer, TEXT) > 2


def test_an_empty_text_is_rejected() -> None:
    with rejects(UsageError, key="text"):
        inspect.bytes_per_token(train(TEXT, 1), b"")
    with rejects(UsageError, key="text"):
        inspect.measure_throughput(train(TEXT, 1), b"")


def test_the_cross_table_has_a_row_for_each_text_and_favours_the_tokenizer_of_that_text() -> None:
    tokenizers = [train(TEXT, 12), train(OTHER_TEXT, 12)]
    table = inspect.cross_table(tokenizers, [TEXT, OTHER_TEXT])
    assert table[0][0] > table[0][1]
    assert table[1][1] > table[1][0]


def test_throughput_is_the_median_of_the_timed_runs_and_the_first_run_is_not_timed() -> None:
    ticks = iter([0.0, 10.0, 11.0, 20.0, 24.0, 30.0, 32.0, 40.0])  # end at 0+2; runs of 1, 4 and 2 seconds
    runs = 0

    class Counting(ReferenceTokenizer):
        def encode_array(self, text: str | bytes, *, num_threads: int | None = None) -> Ids:
            nonlocal runs
            runs += 1
            return super().encode_array(text)

    tokenizer = Counting(train(TEXT, 1).vocabulary)
    speed = inspect.measure_throughput(tokenizer, b"x" * 1000, seconds=2.0, clock=lambda: next(ticks))
    assert speed == inspect.Throughput(bytes_per_second=500.0, num_runs=3)
    assert runs == 4


def test_overlap_counts_shared_tokens_and_merges_and_lists_the_rest_by_age() -> None:
    first, second = train(TEXT, 12).vocabulary, train(OTHER_TEXT, 12).vocabulary
    found = inspect.overlap(first, second)
    assert found.num_shared_tokens + len(found.only_in_first) == 268
    assert found.num_shared_tokens + len(found.only_in_second) == 268
    assert found.num_shared_merges == len(set(first.merges) & set(second.merges))
    ids = [first.ids_of_ordinary_tokens[token] for token in found.only_in_first]
    assert ids == sorted(ids)
    same = inspect.overlap(first, first)
    assert (same.num_shared_tokens, same.only_in_first, same.only_in_second) == (268, [], [])


def test_the_first_difference_is_the_first_difference_or_the_end_of_the_shorter() -> None:
    ab, cd = (b"a", b"b"), (b"c", b"d")
    assert inspect.first_difference([ab, cd], [ab, cd]) is None
    assert inspect.first_difference([ab], [cd]) == inspect.MergeDifference(0, ab, cd)
    assert inspect.first_difference([ab, cd], [ab]) == inspect.MergeDifference(1, cd, None)
    assert inspect.first_difference([], [ab]) == inspect.MergeDifference(0, None, ab)


@given(st.text(alphabet="abc ", min_size=1, max_size=60), st.integers(0, 6))
def test_pair_counts_after_some_merges_are_those_that_training_saw(text: str, num_merges: int) -> None:
    counts = count_words_reference([text.encode()], [], "gpt2")
    words = {tuple(bytes([byte]) for byte in word): times for word, times in counts.items()}
    learned = learn_merges(words, num_merges + 1)
    for index, (pair, count) in enumerate(learned):
        before = [earlier for earlier, _ in learned[:index]]
        assert inspect.count_pairs_after(counts, before, [pair]) == {pair: count}


def test_a_pair_that_no_merge_has_made_possible_yet_is_counted_as_absent() -> None:
    pairs = [(b"xx", b"y"), (b"zz", b"y"), (b"a", b"b")]
    assert inspect.count_pairs_after({b"xxyab": 3}, [], pairs) == dict(zip(pairs, (0, 0, 3), strict=True))


def test_a_word_of_a_hundred_thousand_letters_is_counted() -> None:
    aa = (b"a", b"a")
    counts = inspect.count_pairs_after({b"a" * 100_000: 1}, [aa], [(b"aa", b"aa"), aa])
    assert counts == {(b"aa", b"aa"): 49_999, aa: 0}
