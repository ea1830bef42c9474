"""Training a tokenizer: the face of the fast twin.

What is learnt is exactly what `reference.train_bpe_reference` learns, for every number of threads. Training
has two phases, counting words and learning merges, and both tell how far they are. Text comes from files and
folders, or, for anything else, from a `WordCounter` that the caller fills with texts or with counted words.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from bytewright._native import WordCounter, learn_merges
from bytewright.corpus.readers import check_plain_text
from bytewright.errors import UsageError
from bytewright.storage.atomic import explain
from bytewright.storage.json_reader import shorten
from bytewright.system import SampledPeakMemory
from bytewright.tokenizer.tokenizer import Tokenizer, check_num_threads
from bytewright.tokenizer.vocabulary import (
    Merge,
    Vocabulary,
    check_all_bytes,
    check_reachable,
    first_duplicate,
    list_special_tokens,
    name_of_pattern,
)

StrPath = str | os.PathLike[str]
Source = StrPath | Sequence[StrPath] | WordCounter
"""What to train on: a file, a folder (all files below it), several of them, or words already counted."""

NUM_BYTES = 256
MAX_VOCAB_SIZE = 2**21 - 1
"""The encoder packs two tokens and a rank into 63 bits; real vocabularies are an eighth of this at most."""
MAX_COUNT = 2**63 - 1
"""No pair occurs more often than this: what does is refused when it is counted."""


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """How far training is: `done` of `total` bytes counted or merges learnt."""

    phase: str
    done: int
    total: int
    unit: str


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What a phase took: `seconds` of all threads together, `wall_seconds` by the clock."""

    name: str
    seconds: float
    wall_seconds: float


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What training gave, and what it took.

    `merge_counts[i]` is how often the pair of the i-th *new* merge occurred when it was learnt. `stopped` is
    a sentence if the text held fewer merges than were asked for.
    """

    vocabulary: Vocabulary
    merge_counts: list[int]
    phases: list[Phase]
    corpus_bytes: int
    num_words: int
    num_distinct_words: int
    peak_memory_bytes: int
    stopped: str | None


OnProgress = Callable[[TrainingProgress], object]


def train_bpe(
    input_path: Source,
    vocab_size: int,
    special_tokens: Iterable[str],
    *,
    pattern: str = "gpt2",
    min_count: int = 1,
    num_threads: int | None = None,
) -> tuple[dict[int, bytes], list[Merge]]:
    """Train and return tokens by id and merges: bytes first, then merges in order, then special tokens."""
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
    progress: OnProgress | None = None,
) -> TrainingResult:
    """Train a new tokenizer of `vocab_size` ids: 256 bytes, the merges, the special tokens.

    Pairs rarer than `min_count` are left alone. If the text runs out of pairs, the vocabulary stays smaller
    and `Training.stopped` says so. A `pattern` that is no name of `PATTERNS` is a regular expression in the
    syntax of Rust's `fancy-regex`, which in places is not that of Python's `regex` (see `Vocabulary`).
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
    progress: OnProgress | None = None,
) -> TrainingResult:
    """Go on training: each id and merge stays as it is, new merges follow, new tokens take the next ids."""
    start = tokenizer.vocabulary
    if vocab_size < start.size:
        raise UsageError(f"vocab_size {vocab_size} is smaller than the vocabulary is already ({start.size})")
    check_all_bytes(start, "extending a vocabulary")
    check_vocab_size(vocab_size, list(start.special_tokens))
    _check_options(min_count, num_threads)
    check_reachable(start)  # or a new merge could make a token that is there already
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
    """Count the words of texts from anywhere, as a source to train on. No word reaches across two texts.

    Documents in JSON lines, Parquet or packed files come from `bytewright.corpus.readers.read_documents`.
    Pattern and special tokens are those of the tokenizer to be: a special token that is not named here is
    text like any other.

    >>> sorted(count_texts(["low low", "lower"]).counts().items())
    [(b' low', 1), (b'low', 1), (b'lower', 1)]
    """
    counter = WordCounter(name_of_pattern(pattern), check_special_tokens(special_tokens))
    for text in texts:
        counter.add_text(text)
    return counter


def count_words(words: Mapping[bytes, int] | Iterable[tuple[bytes, int]]) -> WordCounter:
    """Take words that somebody else has counted, as a source to train on.

    >>> train_tokenizer(count_words({b"low": 5, b"lower": 2}), 258).vocabulary.merges
    ((b'o', b'w'), (b'l', b'ow'))
    """
    counter = WordCounter("gpt2", [])
    for word, count in words.items() if isinstance(words, Mapping) else words:
        if not 0 <= count <= MAX_COUNT:
            raise UsageError(
                f"the word {shorten(word)} has the count {shorten(count)}; expected 0 to 2^63 - 1"
            )
        counter.add_word(word, count)
    return counter


def check_special_tokens(special_tokens: Iterable[str]) -> list[str]:
    """Return the special tokens as a list, or say which one is wrong."""
    specials = list_special_tokens(special_tokens)
    for special in specials:
        if not isinstance(special, str):
            raise UsageError(f"special token {shorten(special)} is not a string")
        if not special.isascii() and any("\ud800" <= character <= "\udfff" for character in special):
            raise UsageError(
                f"special token {shorten(special)} holds a lone surrogate, which is not Unicode text"
            )
    if (duplicate := first_duplicate(specials)) is not None:
        raise UsageError(f"special token {shorten(duplicate)} is given twice")
    if "" in specials:
        raise UsageError("a special token is empty; it must be at least one character")
    return specials


def check_vocab_size(vocab_size: int, special_tokens: Sequence[str]) -> None:
    """Refuse a vocabulary without room for bytes and special tokens, or larger than the encoder's tables."""
    if vocab_size > MAX_VOCAB_SIZE:
        raise UsageError(
            f"vocab_size {shorten(vocab_size)} is too large: at most {MAX_VOCAB_SIZE} is supported"
        )
    needed = NUM_BYTES + len(special_tokens)
    if vocab_size < needed:
        specials = "1 special token" if len(special_tokens) == 1 else f"{len(special_tokens)} special tokens"
        raise UsageError(
            f"vocab_size {vocab_size} is too small: 256 bytes and {specials} need at least {needed}"
        )


def _check_options(min_count: int, num_threads: int | None) -> None:
    if min_count < 1:
        raise UsageError(f"min_count is {min_count}; expected 1 or more")
    if num_threads is not None and num_threads < 1:
        raise UsageError(f"num_threads is {num_threads}; expected 1 or more")


def files_of(source: StrPath | Sequence[StrPath]) -> list[Path]:
    """List the files to read: those given, and of a folder all files below it, in order of their names.

    Hidden files are passed over, links are followed, and a folder that is met twice is read once. A path that
    does not exist, or holds no text at all, is an error.
    """
    paths = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not paths:
        raise UsageError("there is nothing to train on: no file was given")
    if "" in paths:  # to Path, that would be the folder we are in
        raise UsageError("a path is empty; expected the name of a file or folder")
    files: list[Path] = []
    for path in map(Path, paths):
        with explain("read", path):
            files += _files_at(path)
    for file in files:
        check_plain_text(file)
    if not any(file.stat().st_size for file in files if file.is_file()) and all(map(Path.is_file, files)):
        raise UsageError(f"{files[0]}: the file is empty; there is nothing to train on")
    return files


def _files_at(path: Path) -> list[Path]:
    if not stat.S_ISDIR(path.stat().st_mode):
        return [path]
    below: list[Path] = []
    met: set[tuple[int, int]] = set()
    for folder, subfolders, names in os.walk(path, onerror=_refuse, followlinks=True):
        here = os.stat(folder)
        if (here.st_dev, here.st_ino) in met:
            subfolders.clear()
            continue
        met.add((here.st_dev, here.st_ino))
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        below += [Path(folder, name) for name in names if not name.startswith(".")]
    for file in below:
        with explain("read", file):
            if not stat.S_ISREG(file.stat().st_mode):
                raise UsageError(f"{file}: is no file of text, and stands in a folder to be read whole")
    if not below:
        raise UsageError(f"{path}: the folder holds no files")
    return sorted(below)


def _refuse(error: OSError) -> None:
    """Read all of a folder or nothing: what a corpus lacks, nobody would notice."""
    with explain("read", error.filename):
        raise error


class _Learner:
    """One training: counts when made, then learns, and keeps the books."""

    def __init__(
        self,
        source: Source,
        start: Vocabulary,
        special_tokens: list[str],
        num_threads: int | None,
        progress: OnProgress | None,
    ) -> None:
        self._start = start
        self._progress = progress or (lambda _: None)
        self._memory = SampledPeakMemory()
        self._stopped: str | None = None
        self._counts: list[int] = []
        started = perf_counter()
        if isinstance(source, WordCounter):
            pattern = name_of_pattern(start.pattern)
            if source.pattern not in (None, pattern):
                raise UsageError(
                    f"the words were counted with the pattern {shorten(source.pattern)},"
                    f" but the tokenizer's is {shorten(pattern)}"
                )
            self._counter = source.copy()
        else:
            self._counter = WordCounter(name_of_pattern(start.pattern), special_tokens)
            self._count(files_of(source), check_num_threads(num_threads))
        wall = perf_counter() - started
        self._corpus_bytes, self._num_words, self._num_distinct, scan, count = self._counter.stats()
        share = scan / (scan + count) if scan + count else 0.5
        self._phases = [
            Phase(name="read and scan", seconds=scan, wall_seconds=wall * share),
            Phase(name="count", seconds=count, wall_seconds=wall * (1 - share)),
        ]

    def _count(self, files: list[Path], num_threads: int) -> None:
        total = sum(file.stat().st_size for file in files)
        self._counter.add_files(
            [os.fspath(file) for file in files],
            num_threads,
            lambda done: self._report("count", min(done, total), total, "bytes"),
        )

    def _report(self, phase: str, done: int, total: int, unit: str) -> None:
        self._memory.sample()
        self._progress(TrainingProgress(phase=phase, done=done, total=total, unit=unit))

    def learn(self, num_merges: int, min_count: int) -> tuple[list[Merge], list[bytes]]:
        """Learn up to `num_merges` more; returns them, and the tokens they make."""
        tokens = [bytes([byte]) for byte in range(NUM_BYTES)]
        tokens += [left + right for left, right in self._start.merges]
        symbol_of = {token: symbol for symbol, token in enumerate(tokens)}
        started = perf_counter()
        learnt = learn_merges(
            self._counter,
            num_merges,
            min(min_count, MAX_COUNT),
            [(symbol_of[left], symbol_of[right]) for left, right in self._start.merges],
            lambda done: self._report("merge", done, num_merges, "merges"),
        )
        merges: list[Merge] = []
        for left, right, count in learnt:
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
        """Close the books."""
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
