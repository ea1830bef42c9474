"""Looking at tokenizers: what is in a vocabulary, what it makes of a text, and where two of them part ways.

Pure functions from vocabularies, texts and word counts to numbers and lists; the commands `inspect` and
`compare` only print what these return. Figures come from real encoding, never from an estimate. A tokenizer
here is anything with a `vocabulary` and an `encode_array`.

It knows nothing of files, colours or tables.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, Protocol

import numpy as np

from bytewright.errors import UsageError
from bytewright.tokenizer.vocabulary import Merge, Vocabulary, merge_in_order

PILE_BYTES = 825 * 10**9
"""The Pile, a well-known corpus of 825 GB: a yardstick for encoding speed."""

Ids = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]


class Encoder(Protocol):
    """What these functions need of a tokenizer."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens, merges and special tokens it encodes with."""
        ...

    def encode_array(self, text: str | bytes, *, num_threads: int | None = None) -> Ids:
        """Encode a text to ids."""
        ...


# One vocabulary


def show_token(token: bytes, max_bytes: int | None = None) -> str:
    r"""Spell a token so that all of it can be seen, and no two alike: a space as ␣, the unprintable escaped.

    >>> print(*map(show_token, [b" the", "né\n".encode(), b"\xc3", "\x85".encode(), b"a\\b"]))
    ␣the né\n \xc3 \u0085 a\\b

    A vocabulary may hold tokens of a megabyte: with `max_bytes` only the beginning of one is spelled.

    >>> show_token(b"a" * 1000, max_bytes=3)
    'aaa… (1,000 bytes)'
    """
    if max_bytes is not None and len(token) > max_bytes:
        return f"{show_token(token[:max_bytes])}… ({len(token):,} bytes)"
    return "".join(_show_character(character) for character in token.decode("utf-8", "surrogateescape"))


def _show_character(character: str) -> str:
    if character == " ":
        return "␣"
    if "\udc80" <= character <= "\udcff":  # how surrogateescape writes a byte that is no character
        return f"\\x{ord(character) - 0xDC00:02x}"
    if character.isprintable() and character not in "\\␣":
        return character
    if character.isascii():
        return character.encode("unicode_escape").decode()
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def longest_tokens(vocabulary: Vocabulary, num_tokens: int = 10) -> list[tuple[int, bytes]]:
    """List the longest tokens that are not special, as (id, bytes); of equally long ones the older first.

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
    """Count the tokens that are not special by their length in bytes: `{length: number of tokens}`."""
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
    """Show what a text becomes; the pieces' bytes, joined, are the text again.

    With `max_bytes` these are the first pieces only, up to that many bytes, and at least one. They are those
    of the whole text: no word or character is cut to get there.
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
    """Measure compression: how many bytes of this text one token stands for on average."""
    if not text:
        raise UsageError("an empty text has no bytes per token")
    return len(text) / len(tokenizer.encode_array(text))


def cross_table(tokenizers: Sequence[Encoder], texts: Sequence[bytes]) -> list[list[float]]:
    """Measure bytes per token of each text (rows) under each tokenizer (columns)."""
    return [[bytes_per_token(tokenizer, text) for tokenizer in tokenizers] for text in texts]


@dataclass(frozen=True)
class Throughput:
    """How fast a text was encoded: the median of several runs, after one that does not count."""

    bytes_per_second: float
    num_runs: int

    def hours_for(self, num_bytes: int) -> float:
        """Say how long `num_bytes` would take at this speed.

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
    """Encode `text` again and again for about `seconds`, at least three times, and take the median."""
    if not text:
        raise UsageError("an empty text cannot be timed")
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
    """What two vocabularies share, without their special tokens."""

    num_shared_tokens: int
    num_shared_merges: int
    only_in_first: list[bytes]
    only_in_second: list[bytes]


def overlap(first: Vocabulary, second: Vocabulary) -> Overlap:
    """Compare tokens and merges as sets; the tokens that only one has are listed from oldest to newest."""
    tokens, other_tokens = first.ids_of_ordinary_tokens, second.ids_of_ordinary_tokens
    return Overlap(
        num_shared_tokens=len(tokens.keys() & other_tokens.keys()),
        num_shared_merges=len(set(first.merges) & set(second.merges)),
        only_in_first=sorted(tokens.keys() - other_tokens.keys(), key=lambda token: tokens[token]),
        only_in_second=sorted(other_tokens.keys() - tokens.keys(), key=lambda token: other_tokens[token]),
    )


@dataclass(frozen=True)
class Divergence:
    """The first place where two lists of merges differ; None where one of them has ended."""

    index: int
    first: Merge | None
    second: Merge | None


def first_divergence(first: Sequence[Merge], second: Sequence[Merge]) -> Divergence | None:
    """Find the first merge that is not the same in both, or None if the lists are equal.

    >>> first_divergence([(b"a", b"b"), (b"c", b"d")], [(b"a", b"b"), (b"e", b"f")])
    Divergence(index=1, first=(b'c', b'd'), second=(b'e', b'f'))
    """
    for index, (left, right) in enumerate(zip_longest(first, second)):
        if left != right:
            return Divergence(index, left, right)
    return None


def count_pairs_after(
    words: Mapping[bytes, int], merges: Iterable[Merge], pairs: Iterable[Merge]
) -> dict[Merge, int]:
    """Count in `words` (each with how often it occurs) the given pairs, once `merges` have been carried out.

    With the merges that two tokenizers share and the two that come next, this says by how much each was the
    better choice on a corpus.

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
        if any(product in word for product in products):  # most words hold none of them
            for pair in pairwise(merge_in_order(word, made)):
                if pair in wanted:
                    counts[wanted[pair]] += times
    return counts
