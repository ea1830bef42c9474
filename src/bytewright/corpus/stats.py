"""What is in a corpus: documents, words, characters, and which words are the most common.

A word is a run of letters and digits, apostrophes inside it included, in lower case; "Don't" is one. All
figures are exact up to `EXACT_WORDS` different words. Beyond that, memory is kept bounded: words that came
least often so far leave the table, the number of different words becomes an estimate (within about 1 %),
and the counts of the most common ones remain exact unless they were rare for long; the result says so.
This module knows nothing of tokens.
"""

from __future__ import annotations

import heapq
import os
import re
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

from bytewright.corpus.readers import Progress, read_pieces

WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
EXACT_WORDS = 2**21
"""How many different words are kept; as a table of Python strings, about 250 MB."""
SKETCH_SIZE = 2**13
"""How many of the smallest hashes estimate a number of different words, to about 1/√8192 = 1.1 %."""


@dataclass(frozen=True, kw_only=True)
class CorpusStats:
    """The figures of a corpus."""

    num_bytes: int
    """Bytes of text: without the marks between documents, and unpacked."""
    num_documents: int
    num_words: int
    num_distinct_words: int
    is_exact: bool
    """Whether the number of different words is counted, not estimated."""
    num_characters: int
    num_invalid_bytes: int
    """Bytes that are not UTF-8; no character is counted for them."""
    num_zero_bytes: int
    """Characters as good as any, to a tokenizer too; but a text that holds many is probably none."""
    longest_document: int
    """In bytes."""
    common_words: tuple[tuple[str, int], ...]
    """The most common words and how often each came, the most common first."""

    @property
    def mean_document(self) -> float:
        """Bytes of a document on average."""
        return self.num_bytes / max(self.num_documents, 1)


def measure_corpus(
    path: str | os.PathLike[str],
    *,
    field: str = "text",
    num_common: int = 20,
    exact_words: int = EXACT_WORDS,
    progress: Progress | None = None,
) -> CorpusStats:
    """Read a file of any format that `readers` knows, once, and count what is in it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "tales.txt")
    ...     _ = path.write_text("The owl slept.<|endoftext|>The fox, the owl's friend, didn't.<|endoftext|>")
    ...     stats = measure_corpus(path, num_common=1)
    >>> stats.num_documents, stats.num_words, stats.num_distinct_words, stats.common_words
    (2, 9, 7, (('the', 3),))
    """
    words = WordCounts(exact_words)
    num_bytes = num_documents = num_characters = num_invalid = num_zero = length = longest = 0
    for text, is_last in read_pieces(path, field=field, progress=progress):
        decoded = text.decode("utf-8", "surrogateescape")
        invalid = 0 if text.isascii() else sum("\udc80" <= character <= "\udcff" for character in decoded)
        words.add(WORD.findall(decoded.lower()))
        num_bytes += len(text)
        num_characters += len(decoded) - invalid
        num_invalid += invalid
        num_zero += text.count(0)
        length += len(text)
        if is_last:
            num_documents, longest, length = num_documents + 1, max(longest, length), 0
    return CorpusStats(
        num_bytes=num_bytes,
        num_documents=num_documents,
        num_words=words.total,
        num_distinct_words=words.num_distinct(),
        is_exact=words.is_exact,
        num_characters=num_characters,
        num_invalid_bytes=num_invalid,
        num_zero_bytes=num_zero,
        longest_document=longest,
        common_words=tuple(words.most_common(num_common)),
    )


class WordCounts:
    """How often each word came, in a table of at most about `most` words.

    >>> words = WordCounts(most=100)
    >>> words.add(["a", "b", "a"])
    >>> words.total, words.num_distinct(), words.most_common(1)
    (3, 2, [('a', 2)])
    """

    def __init__(self, most: int) -> None:
        self.total = 0
        self.is_exact = True
        self._most = most
        self._counts: Counter[str] = Counter()
        self._smallest = SmallestHashes(SKETCH_SIZE)

    def add(self, words: list[str]) -> None:
        """Count words."""
        self._counts.update(words)
        self.total += len(words)
        if len(self._counts) > self._most:
            self._drop_rare()

    def num_distinct(self) -> int:
        """Tell how many different words there were: counted while they all fit, estimated afterwards."""
        if self.is_exact:
            return len(self._counts)
        for word in self._counts:
            self._smallest.add(word)
        return self._smallest.estimate()

    def most_common(self, count: int) -> list[tuple[str, int]]:
        """List the most common words; on a tie, in the order of the alphabet."""
        return heapq.nsmallest(count, self._counts.items(), key=lambda item: (-item[1], item[0]))

    def _drop_rare(self) -> None:
        """Keep the more common half; the sketch remembers that the others were there."""
        self.is_exact = False
        for word in self._counts:
            self._smallest.add(word)
        self._counts = Counter(dict(self._counts.most_common(self._most // 2)))


class SmallestHashes:
    """An estimate of how many different things were added: from the `size` smallest of their hashes.

    Hashes are spread evenly over [0, 1). If the k-th smallest of n different ones is h, then n is about
    (k - 1) / h, with a relative error of about 1/√k. Adding a thing again changes nothing.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[int] = []  # negative, so that the largest of the smallest is at hand
        self._members: set[int] = set()

    def add(self, word: str) -> None:
        """Take note of a word."""
        digest = blake2b(word.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        hashed = int.from_bytes(digest, "big")
        if hashed in self._members:
            return
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, -hashed)
            self._members.add(hashed)
        elif hashed < -self._heap[0]:
            self._members.remove(-heapq.heapreplace(self._heap, -hashed))
            self._members.add(hashed)

    def estimate(self) -> int:
        """Estimate how many different words were added."""
        if len(self._heap) < self._size:
            return len(self._heap)
        return round((self._size - 1) * 2**64 / -self._heap[0])
