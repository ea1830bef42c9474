"""Invalid arguments of training raise an error of one sentence with fields."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
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
from rejection import rejects
from users import ordinary_user

CATASTROPHE = "(?:a|(?=a)a)+b|[a ]{1,3}"
"""Backtracking that doubles with each letter, until the engine fails."""

Mistake = tuple[type[BytewrightError], dict[str, object], Callable[[Path], object]]

MISTAKES: dict[str, Mistake] = {
    "a missing file": (
        StorageError,
        {"errno": errno.ENOENT},
        lambda folder: train_bpe(folder / "missing.txt", 300, []),
    ),
    "a text in place of a path": (
        StorageError,
        {"errno": errno.ENAMETOOLONG},
        lambda folder: train_bpe("Once upon a time " * 1000, 300, []),
    ),
    "an empty path": (UsageError, {"key": "source"}, lambda folder: train_bpe("", 300, [])),
    "a negative number of threads": (
        UsageError,
        {"key": "num_threads", "found": -1},
        lambda folder: train_bpe(folder / "text.txt", 300, [], num_threads=-1),
    ),
    "the mistyped name of a pattern": (
        TokenizerError,
        {"key": "pattern", "found": "gpt5"},
        lambda folder: train_bpe(folder / "text.txt", 300, [], pattern="gpt5"),
    ),
    "an empty file": (UsageError, {}, lambda folder: train_bpe(folder / "empty.txt", 300, [])),
    "an empty folder": (UsageError, {}, lambda folder: train_bpe(folder / "empty", 300, [])),
    "no file at all": (UsageError, {"key": "source"}, lambda folder: train_bpe([], 300, [])),
    "a vocabulary smaller than the bytes": (
        UsageError,
        {"key": "vocab_size", "found": 255},
        lambda folder: train_bpe(folder / "text.txt", 255, []),
    ),
    "no room for the special tokens": (
        UsageError,
        {"key": "vocab_size", "found": 256},
        lambda folder: train_bpe(folder / "text.txt", 256, ["<a>"]),
    ),
    "a special token twice": (
        UsageError,
        {"key": "special_tokens", "found": "<a>"},
        lambda folder: train_bpe(folder / "text.txt", 300, ["<a>", "<a>"]),
    ),
    "an empty special token": (
        UsageError,
        {"key": "special_tokens", "found": ""},
        lambda folder: train_bpe(folder / "text.txt", 300, [""]),
    ),
    "special tokens that are one text": (
        UsageError,
        {"key": "special_tokens", "found": "<a>"},
        lambda folder: train_bpe(folder / "text.txt", 300, "<a>"),
    ),
    "a special token that is not Unicode": (
        UsageError,
        {"key": "special_tokens", "found": "\ud800"},
        lambda folder: train_bpe(folder / "text.txt", 300, ["\ud800"]),
    ),
    "a minimal count of nothing": (
        UsageError,
        {"key": "min_count", "expected": "at least 1", "found": 0},
        lambda folder: train_bpe(folder / "text.txt", 300, [], min_count=0),
    ),
    "a broken pattern": (
        UsageError,
        {},
        lambda folder: train_bpe(folder / "text.txt", 300, [], pattern="("),
    ),
    "a pattern that is not Unicode": (
        TokenizerError,
        {"found": "\ud800"},
        lambda folder: train_bpe(folder / "text.txt", 300, [], pattern="\ud800"),
    ),
    "extending to less": (
        UsageError,
        {"key": "vocab_size", "found": 256},
        lambda folder: extend_tokenizer(
            Tokenizer.from_vocabulary(train_tokenizer(count_words({b"ab": 1}), 257).vocabulary),
            folder / "text.txt",
            256,
        ),
    ),
    "a negative count": (
        UsageError,
        {"key": "words", "found": -1},
        lambda folder: count_words({b"a": -1}),
    ),
    "a count beyond 63 bits": (
        UsageError,
        {"key": "words", "found": 2**63},
        lambda folder: count_words({b"a": 2**63}),
    ),
    "a text that is not Unicode": (TokenizerError, {}, lambda folder: count_texts(["a\ud800"])),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("low low lower")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_invalid_argument_raises_one_sentence(folder: Path, mistake: str) -> None:
    kind, fields, make = MISTAKES[mistake]
    before = sorted(folder.rglob("*"))
    with rejects(kind, **fields) as caught:
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
    with pytest.raises(StorageError):
        counter.add_files([str(tmp_path / "fine.txt"), str(tmp_path / "missing.txt")], 2, None)
    assert counter.counts() == before


def test_an_unreadable_subfolder_is_an_error() -> None:
    with tempfile.TemporaryDirectory() as name:  # other users cannot read pytest's folder
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "some.txt").write_text("low lower lowest")
        (folder / "secret").mkdir(mode=0)
        (folder / ".hidden").mkdir(mode=0)
        with ordinary_user(), rejects(StorageError, errno=errno.EACCES, path=folder / "secret"):
            files_of(folder)
        (folder / "secret").chmod(0o755)
        with ordinary_user():
            assert files_of(folder) == [folder / "some.txt"]
