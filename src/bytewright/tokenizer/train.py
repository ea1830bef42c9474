"""Train tokenizers with the fused implementation.

The merges are exactly those of `reference.train_bpe_reference`, for any number of threads. Training has two
phases, counting words and learning merges; both report progress. The text comes from files and folders.
Instead of files, a `WordCounter` can contain the words of other texts (`count_texts`, `count_words`), and a
`WordTable` those that several processes have counted (`cluster.count_on`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from bytewright._native import WordCounter, WordTable, learn_merges
from bytewright.corpus.file_formats import check_plain_text
from bytewright.corpus.sources import list_files
from bytewright.errors import UsageError, shorten, wrong_value
from bytewright.formatting import PhaseProgress
from bytewright.storage.atomic import StrPath, explain
from bytewright.system import SampledPeakMemory
from bytewright.tokenizer.formats.tiktoken import check_reachable
from bytewright.tokenizer.tokenizer import Tokenizer, check_num_threads
from bytewright.tokenizer.vocabulary import (
    Merge,
    Vocabulary,
    check_all_bytes,
    first_duplicate,
    list_special_tokens,
    name_of_pattern,
)

Source = StrPath | Sequence[StrPath] | WordCounter | WordTable
"""The training data: a file, a folder (with all files below it), several of these, or counted words.

A `WordTable` is consumed: it can be large, and no copy is made. It must have been counted with the pattern
and the special tokens of the training.
"""

NUM_BYTES = 256
MAX_VOCAB_SIZE = 2**21 - 1
"""The encoder packs two tokens and a rank into 63 bits. Real vocabularies are less than an eighth of this."""
MAX_COUNT = 2**63 - 1
"""The largest count of a pair; counting fails before it is exceeded."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The time of a phase: `seconds` is the sum over all threads, `wall_seconds` the elapsed time."""

    name: str
    seconds: float
    wall_seconds: float


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The trained vocabulary with the time and memory of training.

    `merge_counts[i]` is the count of the i-th *new* merge when it was learned. `stopped` is a sentence if the
    text contains fewer merges than requested.
    """

    vocabulary: Vocabulary
    merge_counts: list[int]
    phases: list[Phase]
    corpus_bytes: int
    num_words: int
    num_distinct_words: int
    peak_memory_bytes: int
    stopped: str | None


def train_bpe(
    input_path: Source,
    vocab_size: int,
    special_tokens: Iterable[str],
    *,
    pattern: str = "gpt2",
    min_count: int = 1,
    num_threads: int | None = None,
) -> tuple[dict[int, bytes], list[Merge]]:
    """Train and return (tokens by id, merges). Ids: the bytes, the merges in order, the special tokens."""
    training = train_tokenizer(
        input_path, vocab_size, special_tokens, pattern=pattern, min_count=min_count, num_threads=num_threads
    )
    return dict(training.vocabulary.tokens), list(training.vocabulary.merges)


def train_tokenizer(
    source: Source,
    vocab_size: int,
    special_tokens: Iterable[str] = (),
    *,
    pattern: str = "gpt2",
    min_count: int = 1,
    num_threads: int | None = None,
    progress: PhaseProgress | None = None,
) -> TrainingResult:
    """Train a tokenizer of `vocab_size` ids: 256 bytes, the merges, the special tokens.

    Pairs rarer than `min_count` are not merged. If no pair is left, the vocabulary is smaller and `stopped`
    states the reason. A `pattern` that is not a name in `PATTERNS` is a regular expression in the syntax of
    `fancy-regex` of Rust. It differs in places from `regex` of Python (see `Vocabulary`). The phases that
    `progress` reports are "count", in bytes, and "merge", in merges.
    """
    specials = check_special_tokens(special_tokens)
    check_vocab_size(vocab_size, specials)
    _check_options(min_count, num_threads)
    start = Vocabulary.from_parts({byte: bytes([byte]) for byte in range(NUM_BYTES)}, [], (), pattern)
    learner = _Learner(source, start, specials, num_threads, progress)
    new_merges, new_tokens = learner.learn(vocab_size - NUM_BYTES - len(specials), min_count)
    tokens = dict(enumerate([*start.tokens.values(), *new_tokens]))
    return learner.result(Vocabulary.from_parts(tokens, new_merges, specials, pattern))


def extend_tokenizer(
    tokenizer: Tokenizer,
    source: Source,
    vocab_size: int,
    *,
    min_count: int = 1,
    num_threads: int | None = None,
    progress: PhaseProgress | None = None,
) -> TrainingResult:
    """Continue training: existing ids and merges are kept, and new tokens get the next ids."""
    start = tokenizer.vocabulary
    if vocab_size < start.size:
        raise wrong_value("vocab_size", f"at least {start.size}, the size of the vocabulary", vocab_size)
    check_all_bytes(start, "extending a vocabulary")
    check_vocab_size(vocab_size, list(start.special_tokens))
    _check_options(min_count, num_threads)
    check_reachable(start)  # otherwise a new merge could produce an existing token
    learner = _Learner(source, start, list(start.special_tokens), num_threads, progress)
    new_merges, new_tokens = learner.learn(vocab_size - start.size, min_count)
    tokens = dict(start.tokens)
    tokens.update(enumerate(new_tokens, start=start.size))
    return learner.result(
        Vocabulary(
            tokens=tokens,
            merges=(*start.merges, *new_merges),
            special_tokens=start.special_tokens,
            pattern=start.pattern,
        )
    )


def count_texts(
    texts: Iterable[str | bytes], special_tokens: Iterable[str] = (), *, pattern: str = "gpt2"
) -> WordCounter:
    """Return the word counts of texts as training data. No word extends over two texts.

    `bytewright.corpus.readers.read_documents` yields the documents of JSON Lines, Parquet and compressed
    files. Pass the pattern and the special tokens of the tokenizer; special tokens that are not given here
    are counted as ordinary text.

    >>> sorted(count_texts(["low low", "lower"]).counts().items())
    [(b' low', 1), (b'low', 1), (b'lower', 1)]
    """
    counter = WordCounter(name_of_pattern(pattern), check_special_tokens(special_tokens))
    for text in texts:
        counter.add_text(text)
    return counter


def count_words(words: Mapping[bytes, int] | Iterable[tuple[bytes, int]]) -> WordCounter:
    """Return given word counts as training data.

    >>> train_tokenizer(count_words({b"low": 5, b"lower": 2}), 258).vocabulary.merges
    ((b'o', b'w'), (b'l', b'ow'))
    """
    counter = WordCounter("gpt2", [])
    for word, count in words.items() if isinstance(words, Mapping) else words:
        if not 0 <= count <= MAX_COUNT:
            message = f"the count of {shorten(word)} must be from 0 to 2^63 - 1, but is {shorten(count)}"
            raise UsageError(message, key="words", found=count)
        counter.add_word(word, count)
    return counter


def check_special_tokens(special_tokens: Iterable[str]) -> list[str]:
    """Return the special tokens as a list, or raise an error about the first invalid one."""
    specials = list_special_tokens(special_tokens)
    for special in specials:
        if not isinstance(special, str):
            raise UsageError(f"special token {shorten(special)} is not a string", key="special_tokens")
    duplicate = first_duplicate(specials)
    for special in specials:
        if not special.isascii() and any("\ud800" <= character <= "\udfff" for character in special):
            problem = "contains a lone surrogate, which is not Unicode text"
        elif not special:
            problem = "must have at least one character"
        elif special == duplicate:
            problem = "is given twice"
        else:
            continue
        raise UsageError(f"special token {shorten(special)} {problem}", key="special_tokens", found=special)
    return specials


def check_vocab_size(vocab_size: int, special_tokens: Sequence[str]) -> None:
    """Raise unless a vocabulary has room for bytes and special tokens and fits the encoder's tables."""
    least = NUM_BYTES + len(special_tokens)
    if not least <= vocab_size <= MAX_VOCAB_SIZE:
        expected = f"from {least} (256 bytes and the special tokens) to {MAX_VOCAB_SIZE}"
        raise wrong_value("vocab_size", expected, vocab_size)


def _check_options(min_count: int, num_threads: int | None) -> None:
    if min_count < 1:
        raise wrong_value("min_count", "at least 1", min_count)
    if num_threads is not None:
        check_num_threads(num_threads)


def files_of(source: StrPath | Sequence[StrPath]) -> list[Path]:
    """Return the files to read: the given files, and all files below the given folders, sorted by path.

    Hidden files are skipped, and links are followed; a folder that is reached twice is read once. A path that
    does not exist or contains no text is an error.
    """
    paths = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not paths:
        raise UsageError("expected at least one file to train on", key="source")
    if "" in paths:  # Path("") is the current folder
        raise UsageError("a path must not be empty", key="source")
    files: list[Path] = []
    for path in map(Path, paths):
        with explain("read", path):
            files += list_files(path)
    for file in files:
        check_plain_text(file)
    if not any(file.stat().st_size for file in files if file.is_file()) and all(map(Path.is_file, files)):
        raise UsageError.at(files[0], "the file is empty")
    return files


class _Learner:
    """One training: counts words on construction, then learns merges, and records time and memory."""

    def __init__(
        self,
        source: Source,
        start: Vocabulary,
        special_tokens: list[str],
        num_threads: int | None,
        progress: PhaseProgress | None,
    ) -> None:
        self._start = start
        self._progress = progress
        self._memory = SampledPeakMemory()
        self._stopped: str | None = None
        self._counts: list[int] = []
        self._counter: WordCounter | WordTable
        started = perf_counter()
        if isinstance(source, WordTable):
            self._counter = source
        elif isinstance(source, WordCounter):
            pattern = name_of_pattern(start.pattern)
            if source.pattern not in (None, pattern):
                message = (
                    f"pattern must be {shorten(source.pattern)}, with which the words were counted,"
                    f" but is {shorten(pattern)}"
                )
                raise UsageError(message, key="pattern", expected=source.pattern, found=pattern)
            self._counter = source.copy()
        else:
            counter = WordCounter(name_of_pattern(start.pattern), special_tokens)
            self._count(counter, files_of(source), check_num_threads(num_threads))
            self._counter = counter
        wall = perf_counter() - started
        self._corpus_bytes, self._num_words, self._num_distinct, scan, count = self._counter.stats()
        share = scan / (scan + count) if scan + count else 0.5
        self._phases = [
            Phase(name="read and scan", seconds=scan, wall_seconds=wall * share),
            Phase(name="count", seconds=count, wall_seconds=wall * (1 - share)),
        ]

    def _count(self, counter: WordCounter, files: list[Path], num_threads: int) -> None:
        total = sum(file.stat().st_size for file in files)
        counter.add_files(
            [os.fspath(file) for file in files],
            num_threads,
            lambda done: self._report("count", min(done, total), total, "bytes"),
        )

    def _report(self, phase: str, done: int, total: int, unit: str) -> None:
        self._memory.sample()
        if self._progress is not None:
            self._progress(phase, done, total, unit)

    def learn(self, num_merges: int, min_count: int) -> tuple[list[Merge], list[bytes]]:
        """Learn up to `num_merges` merges; return them and their tokens."""
        tokens = [bytes([byte]) for byte in range(NUM_BYTES)]
        tokens += [left + right for left, right in self._start.merges]
        symbol_of = {token: symbol for symbol, token in enumerate(tokens)}
        started = perf_counter()
        learned = learn_merges(
            self._counter,
            num_merges,
            min(min_count, MAX_COUNT),
            [(symbol_of[left], symbol_of[right]) for left, right in self._start.merges],
            lambda done: self._report("merge", done, num_merges, "merges"),
        )
        merges: list[Merge] = []
        for left, right, count in learned:
            merges.append((tokens[left], tokens[right]))
            tokens.append(tokens[left] + tokens[right])
            self._counts.append(count)
        elapsed = perf_counter() - started
        self._phases.append(Phase(name="merge", seconds=elapsed, wall_seconds=elapsed))
        if len(merges) < num_merges:
            exhausted = "no pair is left" if min_count == 1 else f"no pair occurs {min_count} times or more"
            self._stopped = f"stopped after {len(merges):,} of {num_merges:,} merges: {exhausted}"
        return merges, tokens[len(tokens) - len(merges) :]

    def result(self, vocabulary: Vocabulary) -> TrainingResult:
        """Return the vocabulary with the recorded time and memory."""
        return TrainingResult(
            vocabulary=vocabulary,
            merge_counts=self._counts,
            phases=self._phases,
            corpus_bytes=self._corpus_bytes,
            num_words=self._num_words,
            num_distinct_words=self._num_distinct,
            peak_memory_bytes=self._memory.peak(),
            stopped=self._stopped,
        )
