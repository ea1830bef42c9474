"""Invalid arguments of training raise an error of one sentence with fields."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bytewright.errors import BytewrightError, StorageError, TokenizerError, UsageError
from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import (
    count_texts,
    count_words,
    extend_tokenizer,
    files_of,
    train_bpe,
    train_tokenizer,
)

CATASTROPHE = "(?:a|(?=a)a)+b|[a ]{1,3}"
"""Backtracking that doubles with each letter, until the engine fails."""

MISTAKES: dict[str, tuple[type[BytewrightError], str, Callable[[Path], object]]] = {
    "a missing file": (
        StorageError,
        "missing.txt: no such file or folder",
        lambda folder: train_bpe(folder / "missing.txt", 300, []),
    ),
    "a text in place of a path": (
        StorageError,
        "the name is too long",
        lambda folder: train_bpe("Once upon a time " * 1000, 300, []),
    ),
    "an empty path": (
        UsageError,
        "a path must not be empty",
        lambda folder: train_bpe("", 300, []),
    ),
    "a negative number of threads": (
        UsageError,
        "num_threads must be at least 1, but is -1",
        lambda folder: train_bpe(folder / "text.txt", 300, [], num_threads=-1),
    ),
    "the mistyped name of a pattern": (
        TokenizerError,
        "gpt5",
        lambda folder: train_bpe(folder / "text.txt", 300, [], pattern="gpt5"),
    ),
    "an empty file": (
        UsageError,
        "empty.txt: the file is empty",
        lambda folder: train_bpe(folder / "empty.txt", 300, []),
    ),
    "an empty folder": (
        UsageError,
        "empty: the folder contains no files",
        lambda folder: train_bpe(folder / "empty", 300, []),
    ),
    "no file at all": (
        UsageError,
        "expected at least one file to train on",
        lambda folder: train_bpe([], 300, []),
    ),
    "a vocabulary smaller than the bytes": (
        UsageError,
        "vocab_size must be from 256 .* to 2097151, but is 255",
        lambda folder: train_bpe(folder / "text.txt", 255, []),
    ),
    "no room for the special tokens": (
        UsageError,
        "257",
        lambda folder: train_bpe(folder / "text.txt", 256, ["<a>"]),
    ),
    "a special token twice": (
        UsageError,
        "special token '<a>' is given twice",
        lambda folder: train_bpe(folder / "text.txt", 300, ["<a>", "<a>"]),
    ),
    "an empty special token": (
        UsageError,
        "special token '' must have at least one character",
        lambda folder: train_bpe(folder / "text.txt", 300, [""]),
    ),
    "special tokens that are one text": (
        UsageError,
        "special_tokens",
        lambda folder: train_bpe(folder / "text.txt", 300, "<a>"),
    ),
    "a special token that is not Unicode": (
        UsageError,
        "lone surrogate",
        lambda folder: train_bpe(folder / "text.txt", 300, ["\ud800"]),
    ),
    "a minimal count of nothing": (
        UsageError,
        "min_count must be at least 1, but is 0",
        lambda folder: train_bpe(folder / "text.txt", 300, [], min_count=0),
    ),
    "a broken pattern": (
        UsageError,
        "not a valid regular expression",
        lambda folder: train_bpe(folder / "text.txt", 300, [], pattern="("),
    ),
    "a pattern that is not Unicode": (
        TokenizerError,
        "pattern .* lone surrogate",
        lambda folder: train_bpe(folder / "text.txt", 300, [], pattern="\ud800"),
    ),
    "extending to less": (
        UsageError,
        "vocab_size must be at least 257, the size of the vocabulary, but is 256",
        lambda folder: extend_tokenizer(
            Tokenizer.from_vocabulary(train_tokenizer(count_words({b"ab": 1}), 257).vocabulary),
            folder / "text.txt",
            256,
        ),
    ),
    "a negative count": (
        UsageError,
        "the count of b'a' must be from 0 to .*, but is -1",
        lambda folder: count_words({b"a": -1}),
    ),
    "a count beyond 63 bits": (
        UsageError,
        "9223372036854775808",
        lambda folder: count_words({b"a": 2**63}),
    ),
    "a text that is not Unicode": (
        TokenizerError,
        "lone surrogate at character 1",
        lambda folder: count_texts(["a\ud800"]),
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("low low lower")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_invalid_argument_raises_one_sentence(folder: Path, mistake: str) -> None:
    kind, sentence, make = MISTAKES[mistake]
    before = sorted(folder.rglob("*"))
    with pytest.raises(kind, match=sentence) as caught:
        make(folder)
    assert "\n" not in str(caught.value)
    assert sorted(folder.rglob("*")) == before


def test_counts_whose_sum_exceeds_63_bits_are_rejected() -> None:
    assert train_tokenizer(count_words({b"ab": 2**61 - 1}), 257).merge_counts == [2**61 - 1]
    for counts in ({b"ab": 2**63 - 1}, {b"ab": 2**62, b"cd": 2**62}, {b"abcd" * 100: 2**60}):
        with pytest.raises(TokenizerError, match=r"the word counts are too large"):
            train_tokenizer(count_words(counts), 257)


def test_a_count_saturates_at_the_largest_value() -> None:
    counter = count_words([(b"ab", 2**63 - 1)] * 3)
    assert counter.counts() == {b"ab": 2**64 - 1}
    counter.add_text("ab")  # one more, of the word and of all words
    assert counter.counts() == {b"ab": 2**64 - 1}
    assert counter.stats()[1] == 2**64 - 1
    with pytest.raises(TokenizerError):
        train_tokenizer(counter, 257)


def test_a_failure_leaves_the_counts_unchanged(tmp_path: Path) -> None:
    counter = count_texts(["aa aa"], pattern=CATASTROPHE)
    before = counter.counts()
    with pytest.raises(TokenizerError, match=r"the pattern failed on the text at byte 0"):
        counter.add_text("a" * 50)
    (tmp_path / "fine.txt").write_text("bb")
    with pytest.raises(StorageError, match=r"missing\.txt"):
        counter.add_files([str(tmp_path / "fine.txt"), str(tmp_path / "missing.txt")], 2, None)
    assert counter.counts() == before


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """Drop the permission to read everything in the block."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_an_unreadable_subfolder_is_an_error() -> None:
    with tempfile.TemporaryDirectory() as name:  # other users cannot read pytest's folder
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "some.txt").write_text("low lower lowest")
        (folder / "secret").mkdir(mode=0)
        (folder / ".hidden").mkdir(mode=0)
        with ordinary_user(), pytest.raises(StorageError, match=r"cannot read .*secret: permission denied$"):
            files_of(folder)
        (folder / "secret").chmod(0o755)
        with ordinary_user():
            assert files_of(folder) == [folder / "some.txt"]
