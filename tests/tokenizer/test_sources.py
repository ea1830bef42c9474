"""What training reads: files of any name, folders with all that is below them, and only text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bytewright.errors import StorageError, UsageError
from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import (
    files_of,
    train_tokenizer,
)
from rejection import rejects


def test_a_folder_means_all_files_below_it_except_hidden_ones(tmp_path: Path) -> None:
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "one.txt").write_text("low low")
    (tmp_path / "deep" / "deeper" / "two").write_text("lower")
    (tmp_path / "empty.txt").touch()
    (tmp_path / ".hidden").write_text("zzzz zzzz")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "object").write_text("zzzz zzzz")
    training = train_tokenizer(tmp_path, 300)
    assert training.corpus_bytes == len("low lowlower")
    assert training.num_words == 3
    assert not any(b"z" in left + right for left, right in training.vocabulary.merges)


def test_links_in_a_folder_are_followed_and_no_folder_is_read_twice(tmp_path: Path) -> None:
    corpus, other = tmp_path / "corpus", tmp_path / "other"
    (other / "shards").mkdir(parents=True)
    corpus.mkdir()
    (corpus / "a.txt").write_text("low")
    (other / "shards/b.txt").write_text("lower")
    (corpus / "c.txt").symlink_to(corpus / "a.txt")
    (corpus / "linked").symlink_to(other)
    (other / "back").symlink_to(corpus)
    assert [file.relative_to(corpus).as_posix() for file in files_of(corpus)] == [
        "a.txt",
        "c.txt",
        "linked/shards/b.txt",
    ]


def test_an_unreadable_file_in_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("low")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    with rejects(StorageError, path=tmp_path / "gone.txt"):
        files_of(tmp_path)
    (tmp_path / "gone.txt").unlink()
    os.mkfifo(tmp_path / "pipe")
    with rejects(UsageError, path=tmp_path / "pipe"):
        files_of(tmp_path)


def test_a_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9 \xff.txt")
    path.write_text("low low")
    assert train_tokenizer(path, 257).vocabulary.merges == ((b"o", b"w"),)


NO_TEXT = [
    ("stories.txt.gz", b"\x1f\x8b\x08", "found a .gz file; convert it with `bytewright corpus text` first"),
    ("STORIES.GZ", b"\x1f\x8b\x08", ""),
    ("stories.jsonl.zst", b"\x28\xb5\x2f\xfd", ""),
    ("stories.xz", b"\xfd7zXZ\0", "convert it with another program first"),
    ("stories.parquet", b"PAR1", ""),
    ("stories.jsonl", b'{"text": "Once"}\n', ""),
]


@pytest.mark.parametrize(("name", "beginning", "sentence"), NO_TEXT, ids=[name for name, _, _ in NO_TEXT])
def test_a_file_that_is_not_plain_text_is_rejected(
    tmp_path: Path, name: str, beginning: bytes, sentence: str
) -> None:
    path = tmp_path / name
    path.write_bytes(beginning + bytes(range(256)))
    tokenizer = Tokenizer.from_vocabulary(train_tokenizer(Path(__file__), vocab_size=300).vocabulary)
    for read in (
        lambda: train_tokenizer(path, vocab_size=300),
        lambda: train_tokenizer(tmp_path, vocab_size=300),
        lambda: tokenizer.encode_file(path, tmp_path / "ids.npy"),
        lambda: list(tokenizer.encode_pieces(path)),
    ):
        with rejects(UsageError, path=path, found=path.suffix.lower()) as caught:
            read()
        assert sentence in str(caught.value)
    assert [left.name for left in tmp_path.iterdir()] == [name]


def test_a_text_named_like_a_compressed_file_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"Once upon a time there was text with a name that lies.")
    assert train_tokenizer(tmp_path / "a.gz", vocab_size=260).vocabulary.merges
