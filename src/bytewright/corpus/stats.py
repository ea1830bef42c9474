"""Count the documents, words and characters of a corpus, and list the most common words.

A word is a run of letters and digits in lower case, including apostrophes inside: "Don't" is one word. All
counts are exact up to `EXACT_WORDS` distinct words. Beyond that, the table drops the rarest words to bound
memory. The number of distinct words is then an estimate (within about 1 %), and `is_exact` is False. The
counts of common words stay exact unless the words were rare at first.
"""

from __future__ import annotations

import heapq
import os
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

from bytewright.corpus.file_formats import is_plain_text_name
from bytewright.corpus.ranges import TextRange, check_plain, cut_sources, is_url, read_pieces
from bytewright.corpus.readers import Chunk, chunks_of_text, read_chunks, read_files
from bytewright.errors import UsageError
from bytewright.executors import map_unordered
from bytewright.formatting import Progress
from bytewright.storage.filesystem import StrPath

WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
EXACT_WORDS = 2**21
"""The largest number of words in the table, which then needs about 250 MB."""
SKETCH_SIZE = 2**13
"""The number of smallest hashes kept for the estimate; the relative error is about 1/√8192 = 1.1 %."""


@dataclass(frozen=True, kw_only=True)
class CorpusStats:
    """The counts of a corpus."""

    num_bytes: int
    """Bytes of decompressed text, without the marks between documents."""
    num_documents: int
    num_words: int
    num_distinct_words: int
    is_exact: bool
    """Whether the number of distinct words is counted rather than estimated."""
    num_characters: int
    num_invalid_bytes: int
    """Bytes that are not UTF-8; they do not count as characters."""
    num_zero_bytes: int
    """Zero bytes are valid characters, but a file with many of them is probably not text."""
    longest_document: int
    """In bytes."""
    common_words: tuple[tuple[str, int], ...]
    """The most common words with their counts, in decreasing order."""

    @property
    def mean_document(self) -> float:
        """The mean length of a document in bytes."""
        return self.num_bytes / max(self.num_documents, 1)


def measure_corpus(
    source: StrPath | Sequence[StrPath],
    *,
    field: str = "text",
    clean: bool = False,
    num_common: int = 20,
    exact_words: int = EXACT_WORDS,
    progress: Progress | None = None,
) -> CorpusStats:
    """Return the counts of one or more files in any format of `readers`; each file is read once.

    With `clean`, byte-order marks are removed and CRLF becomes LF before anything is counted.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "tales.txt")
    ...     _ = path.write_text("The owl slept.<|endoftext|>The fox, the owl's friend, didn't.<|endoftext|>")
    ...     stats = measure_corpus(path, num_common=1)
    >>> stats.num_documents, stats.num_words, stats.num_distinct_words, stats.common_words
    (2, 9, 7, (('the', 3),))
    """
    tally = Tally(exact_words)
    sources = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    for chunk in read_files(sources, field=field, clean=clean, progress=progress):
        tally.add(chunk)
    return tally.result(num_common)


def measure_corpus_on(
    executor: Executor,
    ranges: Sequence[TextRange],
    *,
    field: str = "text",
    num_common: int = 20,
    num_workers: int,
    progress: Progress | None = None,
) -> CorpusStats:
    """Return the counts of ranges, measured by the workers of an executor; see `cut_for_stats`."""
    tally = Tally(EXACT_WORDS)
    total, done = sum(text_range.num_bytes for text_range in ranges), 0
    measure = partial(tally_range, field=field)
    with closing(map_unordered(executor, measure, ranges, num_workers=num_workers)) as measured:
        for text_range, part in measured:
            tally.merge(part)
            done += text_range.num_bytes
            if progress is not None:
                progress(done, total)
    return tally.result(num_common)


def cut_for_stats(sources: Sequence[str], *, progress: Progress | None = None) -> list[TextRange]:
    """Cut texts after documents; files in other formats, and compressed ones, stay whole."""
    plain = [source for source in sources if is_plain_text_name(source)]
    for source in set(sources) - set(plain):
        if is_url(source):
            message = f"{source}: only plain text can be read from a URL; download the file first"
            raise UsageError(message, path=source, expected="plain text")
    for source in plain:
        check_plain(source)
    cut = {source: cut_sources([source], progress=progress) for source in plain}
    whole = [source for source in sources if source not in cut]
    cut |= {source: cut_sources([source], range_bytes=2**63) for source in whole}
    return [text_range for source in sources for text_range in cut[source]]


def tally_range(text_range: TextRange, *, field: str = "text") -> Tally:
    """Return the counts of one range; runs on a worker."""
    tally = Tally(EXACT_WORDS)
    if is_plain_text_name(text_range.source):
        chunks = chunks_of_text(read_pieces(text_range))
    else:
        chunks = read_chunks(text_range.source, field=field)
    for chunk in chunks:
        tally.add(chunk)
    return tally


class Tally:
    """The counts of some documents, to which those of others can be added."""

    def __init__(self, exact_words: int) -> None:
        self._words = WordCounts(exact_words)
        self._num_bytes = self._num_documents = self._num_characters = 0
        self._num_invalid = self._num_zero = self._length = self._longest = 0

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk of a document."""
        text, is_last = chunk
        decoded = text.decode("utf-8", "surrogateescape")
        invalid = 0 if text.isascii() else sum("\udc80" <= character <= "\udcff" for character in decoded)
        self._words.add(WORD.findall(decoded.lower()))
        self._num_bytes += len(text)
        self._num_characters += len(decoded) - invalid
        self._num_invalid += invalid
        self._num_zero += text.count(0)
        self._length += len(text)
        if is_last:
            self._num_documents += 1
            self._longest, self._length = max(self._longest, self._length), 0

    def merge(self, other: Tally) -> None:
        """Add the counts of other documents."""
        self._words.merge(other._words)
        self._num_bytes += other._num_bytes
        self._num_documents += other._num_documents
        self._num_characters += other._num_characters
        self._num_invalid += other._num_invalid
        self._num_zero += other._num_zero
        self._longest = max(self._longest, other._longest)

    def result(self, num_common: int) -> CorpusStats:
        """Return the counts with the most common words."""
        return CorpusStats(
            num_bytes=self._num_bytes,
            num_documents=self._num_documents,
            num_words=self._words.total,
            num_distinct_words=self._words.num_distinct(),
            is_exact=self._words.is_exact,
            num_characters=self._num_characters,
            num_invalid_bytes=self._num_invalid,
            num_zero_bytes=self._num_zero,
            longest_document=self._longest,
            common_words=tuple(self._words.most_common(num_common)),
        )


class WordCounts:
    """The count of each word, in a table of about `most` words at most.

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
        """Add words to the counts."""
        self._counts.update(words)
        self.total += len(words)
        if len(self._counts) > self._most:
            self._drop_rare()

    def merge(self, other: WordCounts) -> None:
        """Add the counts of another table."""
        self._counts.update(other._counts)
        self._smallest.merge(other._smallest)
        self.total += other.total
        self.is_exact = self.is_exact and other.is_exact
        if len(self._counts) > self._most:
            self._drop_rare()

    def num_distinct(self) -> int:
        """Return the number of distinct words: exact while all fit into the table, then an estimate."""
        if self.is_exact:
            return len(self._counts)
        for word in self._counts:
            self._smallest.add(word)
        return self._smallest.estimate()

    def most_common(self, count: int) -> list[tuple[str, int]]:
        """Return the most common words; equal counts are sorted alphabetically."""
        return heapq.nsmallest(count, self._counts.items(), key=lambda item: (-item[1], item[0]))

    def _drop_rare(self) -> None:
        """Keep the more common half of the table; the sketch records all words for the estimate."""
        self.is_exact = False
        for word in self._counts:
            self._smallest.add(word)
        self._counts = Counter(dict(self._counts.most_common(self._most // 2)))


class SmallestHashes:
    """An estimate of the number of distinct words from their `size` smallest hashes.

    Hashes are uniform over [0, 1). If the k-th smallest of n distinct hashes is h, then n is about
    (k - 1) / h, with a relative error of about 1/√k. Adding a word again has no effect.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[int] = []  # negated: the first element is the largest kept hash
        self._members: set[int] = set()

    def add(self, word: str) -> None:
        """Add a word."""
        digest = blake2b(word.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        self._add(int.from_bytes(digest, "big"))

    def merge(self, other: SmallestHashes) -> None:
        """Add the words of another sketch."""
        for hashed in other._members:
            self._add(hashed)

    def _add(self, hashed: int) -> None:
        if hashed in self._members:
            return
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, -hashed)
            self._members.add(hashed)
        elif hashed < -self._heap[0]:
            self._members.remove(-heapq.heapreplace(self._heap, -hashed))
            self._members.add(hashed)

    def estimate(self) -> int:
        """Return the estimated number of distinct words."""
        if len(self._heap) < self._size:
            return len(self._heap)
        return round((self._size - 1) * 2**64 / -self._heap[0])
