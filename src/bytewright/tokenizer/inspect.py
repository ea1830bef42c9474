"""Inspect and compare tokenizers: longest tokens, compression, throughput, overlap and first difference.

The functions return numbers and lists; the commands `inspect` and `compare` print them. All figures come from
real encoding. A tokenizer is any object with a `vocabulary` and an `encode_array`.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Protocol

from bytewright.data.tokenfile import Ids
from bytewright.errors import UsageError
from bytewright.tokenizer.formats.tiktoken import merge_in_order
from bytewright.tokenizer.vocabulary import Merge, Vocabulary

PILE_BYTES = 825 * 10**9
"""The size of the Pile, a well-known corpus, for comparing encoding speeds."""


class Encoder(Protocol):
    """The part of a tokenizer that these functions use."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary."""

    def encode_array(self, text: str | bytes, *, num_threads: int | None = None) -> Ids:
        """Return the ids of a text."""


# One vocabulary


def show_token(token: bytes, max_bytes: int | None = None) -> str:
    r"""Return a token as unambiguous printable text: a space as ␣, unprintable characters escaped.

    >>> print(*map(show_token, [b" the", "né\n".encode(), b"\xc3", "\x85".encode(), b"a\\b"]))
    ␣the né\n \xc3 \u0085 a\\b

    A token can have a megabyte; with `max_bytes` only its beginning is shown.

    >>> show_token(b"a" * 1000, max_bytes=3)
    'aaa… (1,000 bytes)'
    """
    if max_bytes is not None and len(token) > max_bytes:
        return f"{show_token(token[:max_bytes])}… ({len(token):,} bytes)"
    return "".join(_show_character(character) for character in token.decode("utf-8", "surrogateescape"))


def _show_character(character: str) -> str:
    if character == " ":
        return "␣"
    if "\udc80" <= character <= "\udcff":  # an invalid byte, by surrogateescape
        return f"\\x{ord(character) - 0xDC00:02x}"
    if character.isprintable() and character not in "\\␣":
        return character
    if character.isascii():
        return character.encode("unicode_escape").decode()
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def longest_tokens(vocabulary: Vocabulary, num_tokens: int = 10) -> list[tuple[int, bytes]]:
    """Return the longest ordinary tokens as (id, bytes); equally long ones are sorted by id.

    >>> vocabulary = Vocabulary.from_parts(
    ...     {id: bytes([id]) for id in range(256)} | {256: b"ow", 257: b"low"}, [(b"o", b"w"), (b"l", b"ow")]
    ... )
    >>> longest_tokens(vocabulary, 2)
    [(257, b'low'), (256, b'ow')]
    >>> length_histogram(vocabulary)
    {1: 256, 2: 1, 3: 1}
    """
    ordinary = vocabulary.ids_of_ordinary_tokens
    longest = sorted(ordinary, key=lambda token: (-len(token), ordinary[token]))[:num_tokens]
    return [(ordinary[token], token) for token in longest]


def length_histogram(vocabulary: Vocabulary) -> dict[int, int]:
    """Return the number of ordinary tokens by their length in bytes: `{length: number of tokens}`."""
    counts = Counter(len(token) for token in vocabulary.ids_of_ordinary_tokens)
    return dict(sorted(counts.items()))


# One vocabulary and a text


@dataclass(frozen=True)
class Piece:
    """One token of an encoded text."""

    id: int
    token: bytes
    is_special: bool


def split_text(tokenizer: Encoder, text: str | bytes, *, max_bytes: int | None = None) -> list[Piece]:
    """Return the tokens of a text; their concatenated bytes are the text.

    With `max_bytes`, return only the first tokens of the whole text, up to that many bytes, and at least one.
    """
    vocabulary = tokenizer.vocabulary
    special_ids = set(vocabulary.special_tokens.values())
    pieces: list[Piece] = []
    num_bytes = 0
    for id in map(int, tokenizer.encode_array(text)):
        token = vocabulary.tokens[id]
        num_bytes += len(token)
        if max_bytes is not None and num_bytes > max_bytes and pieces:
            break
        pieces.append(Piece(id, token, id in special_ids))
    return pieces


def bytes_per_token(tokenizer: Encoder, text: bytes) -> float:
    """Return the mean number of bytes per token of a text."""
    if not text:
        raise UsageError("bytes per token are not defined for an empty text", key="text")
    return len(text) / len(tokenizer.encode_array(text))


def cross_table(tokenizers: Sequence[Encoder], texts: Sequence[bytes]) -> list[list[float]]:
    """Return the bytes per token of each text (rows) with each tokenizer (columns)."""
    return [[bytes_per_token(tokenizer, text) for tokenizer in tokenizers] for text in texts]


@dataclass(frozen=True)
class Throughput:
    """The speed of encoding: the median of several runs after a warm-up."""

    bytes_per_second: float
    num_runs: int

    def hours_for(self, num_bytes: int) -> float:
        """Return the hours for `num_bytes` at this speed.

        >>> Throughput(bytes_per_second=100e6, num_runs=3).hours_for(825 * 10**9)
        2.2916666666666665
        """
        return num_bytes / self.bytes_per_second / 3600


def measure_throughput(
    tokenizer: Encoder,
    text: bytes,
    *,
    num_threads: int | None = None,
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Throughput:
    """Return the median speed of encoding `text` repeatedly for about `seconds`, at least three times."""
    if not text:
        raise UsageError("the speed cannot be measured with an empty text", key="text")
    tokenizer.encode_array(text, num_threads=num_threads)
    durations: list[float] = []
    end = clock() + seconds
    while len(durations) < 3 or clock() < end:
        start = clock()
        tokenizer.encode_array(text, num_threads=num_threads)
        durations.append(clock() - start)
    return Throughput(len(text) / statistics.median(durations), len(durations))


# Two vocabularies


@dataclass(frozen=True)
class Overlap:
    """The common and the different ordinary tokens and merges of two vocabularies."""

    num_shared_tokens: int
    num_shared_merges: int
    only_in_first: list[bytes]
    only_in_second: list[bytes]


def overlap(first: Vocabulary, second: Vocabulary) -> Overlap:
    """Compare tokens and merges as sets; tokens of only one vocabulary are sorted by id."""
    tokens, other_tokens = first.ids_of_ordinary_tokens, second.ids_of_ordinary_tokens
    return Overlap(
        num_shared_tokens=len(tokens.keys() & other_tokens.keys()),
        num_shared_merges=len(set(first.merges) & set(second.merges)),
        only_in_first=sorted(tokens.keys() - other_tokens.keys(), key=lambda token: tokens[token]),
        only_in_second=sorted(other_tokens.keys() - tokens.keys(), key=lambda token: other_tokens[token]),
    )


@dataclass(frozen=True)
class MergeDifference:
    """The first position where two lists of merges differ; None after the end of a list."""

    index: int
    first: Merge | None
    second: Merge | None


def first_difference(first: Sequence[Merge], second: Sequence[Merge]) -> MergeDifference | None:
    """Return the first difference of two lists of merges, or None if they are equal.

    >>> first_difference([(b"a", b"b"), (b"c", b"d")], [(b"a", b"b"), (b"e", b"f")])
    MergeDifference(index=1, first=(b'c', b'd'), second=(b'e', b'f'))
    """
    for index, (left, right) in enumerate(zip_longest(first, second)):
        if left != right:
            return MergeDifference(index, left, right)
    return None


def count_pairs_after(
    words: Mapping[bytes, int], merges: Iterable[Merge], pairs: Iterable[Merge]
) -> dict[Merge, int]:
    """Return the counts of `pairs` in `words` (with their counts) after `merges` have been applied.

    With the common merges of two tokenizers and their next merges, this shows which next merge is more
    frequent in a corpus.

    >>> count_pairs_after({b"low": 5, b"new": 6}, [(b"n", b"e")], [(b"ne", b"w"), (b"l", b"o"), (b"e", b"w")])
    {(b'ne', b'w'): 6, (b'l', b'o'): 5, (b'e', b'w'): 0}
    """
    number_of = {bytes([byte]): byte for byte in range(256)}
    made: dict[tuple[int, int], int] = {}
    for number, (left, right) in enumerate(merges, start=256):
        made[number_of[left], number_of[right]] = number_of[left + right] = number
    counts = dict.fromkeys(pairs, 0)
    possible = [(left, right) for left, right in counts if left in number_of and right in number_of]
    wanted = {(number_of[left], number_of[right]): (left, right) for left, right in possible}
    products = [left + right for left, right in counts]
    for word, times in words.items():
        if any(product in word for product in products):  # most words contain none of them
            for pair in pairwise(merge_in_order(word, made)):
                if pair in wanted:
                    counts[wanted[pair]] += times
    return counts
