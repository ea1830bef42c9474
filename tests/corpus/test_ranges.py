"""Sources are cut into ranges at document boundaries; the ranges are exactly the source."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable
from pathlib import Path

import fsspec
import pytest

from bytewright._native import WordCounter
from bytewright.corpus import ranges
from bytewright.corpus.ranges import check_plain, cut_sources, list_sources, read_pieces
from bytewright.corpus.readers import END
from bytewright.errors import StorageError, UsageError

DOCUMENT = b"One day. " * 20 + b"\n" + END + b"\n"


def write(path: Path, text: bytes) -> str:
    path.write_bytes(text)
    return str(path)


def read_all(source: str, *, range_bytes: int) -> list[bytes]:
    return [next(read_pieces(each)) for each in cut_sources([source], range_bytes=range_bytes)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "BLOCK", 64)
    monkeypatch.setattr(ranges, "SEARCH", 1000)
    monkeypatch.setattr(ranges, "MARGIN", 8)


@pytest.mark.parametrize("range_bytes", [1, 7, 190, 206, 207, 208, 1000, 10**6])
def test_ranges_are_whole_documents_and_lose_nothing(tmp_path: Path, range_bytes: int) -> None:
    text = DOCUMENT * 9 + b"the last one"
    parts = read_all(write(tmp_path / "a.txt", text), range_bytes=range_bytes)
    assert b"".join(parts) == text
    assert all(part.endswith(END) for part in parts[:-1])
    assert all(range_bytes <= len(part) < range_bytes + len(DOCUMENT) for part in parts[:-1])
    assert (len(parts) == 1) == (range_bytes >= len(text))


def test_a_mark_that_crosses_a_block_is_found(tmp_path: Path) -> None:
    for before in range(40, 80):
        text = b"x" * before + END + b"y" * 200
        parts = read_all(write(tmp_path / "a.txt", text), range_bytes=10)
        assert parts == [b"x" * before + END, b"y" * 200]


def test_without_another_rule_a_long_document_stays_whole(tmp_path: Path) -> None:
    text = b"x" * 5000 + END + b"y" * 5000
    assert read_all(write(tmp_path / "a.txt", text), range_bytes=100) == [b"x" * 5000 + END, b"y" * 5000]


def before_space(text: bytes, start: int) -> int:
    found = text.find(b" ", start)
    return len(text) if found < 0 else found


def test_a_long_document_is_cut_by_the_rule_of_the_caller(tmp_path: Path) -> None:
    words = random.Random(1).choices([b"one", b"a" * 100, b"b" * 400], k=60)
    text = b" ".join(words)
    source = write(tmp_path / "a.txt", text)
    cut = cut_sources([source], range_bytes=300, find_cut=before_space)
    parts = [next(read_pieces(each)) for each in cut]
    assert len(parts) > 10
    assert b"".join(parts) == text
    assert all(part.startswith(b" ") for part in parts[1:])


@pytest.mark.parametrize("piece_bytes", [1, 5000, 20_000, 10**6])
def test_pieces_have_the_words_of_their_range(tmp_path: Path, piece_bytes: int) -> None:
    special = "<|a b|>"  # shorter than MARGIN
    words = ["one ", " two", "\n\n ", "drei\u00a0", "12,", special, "word" * 2000]
    text = "".join(random.Random(1).choices(words, weights=[9, 9, 9, 9, 9, 9, 1], k=2000)).encode()
    cut = cut_sources([write(tmp_path / "a.txt", text)], range_bytes=30_000, find_cut=before_space)

    def count(texts: Iterable[bytes]) -> dict[bytes, int]:
        counter = WordCounter("gpt2", [special])
        for each in texts:
            counter.add_text(each)
        return counter.counts()

    find_cut = WordCounter("gpt2", [special]).next_cut
    for text_range in cut:
        pieces = list(read_pieces(text_range, find_cut, piece_bytes=piece_bytes))
        assert len(pieces) > 1 or piece_bytes > text_range.num_bytes / 2
        assert b"".join(pieces) == text[text_range.start : text_range.end]
        assert count(pieces) == count([b"".join(pieces)])


@pytest.mark.parametrize(
    ("text", "ends_open"),
    [
        (b"", None),
        (b"   \n", False),
        (b"one", True),
        (b"one" + END, False),
        (b"one" + END + b"\n" * 500, False),
        (b"one" + END + b"\n" * 500 + b"two" + b" " * 500, True),
        (b"one" + END[:-1] + b"\n" * 200, True),
        *((b"one" + END + b"\n" * blank, False) for blank in range(50, 70)),
        *((b"one" + b"\n" * blank, True) for blank in range(50, 130)),
    ],
)
def test_text_after_the_last_mark_is_an_open_document(
    tmp_path: Path, text: bytes, ends_open: bool | None
) -> None:
    cut = cut_sources([write(tmp_path / "a.txt", text)])
    assert [each.ends_open for each in cut] == ([] if ends_open is None else [ends_open])


def test_ranges_do_not_depend_on_the_other_sources(tmp_path: Path) -> None:
    sources = [write(tmp_path / f"{name}.txt", DOCUMENT * size) for name, size in (("a", 5), ("b", 9))]
    together = cut_sources(sources, range_bytes=500)
    alone = itertools.chain.from_iterable(cut_sources([source], range_bytes=500) for source in sources)
    assert together == list(alone)


def test_the_version_changes_with_the_file(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", DOCUMENT)
    (before,) = cut_sources([source])
    os.utime(source, ns=(1, 1))
    assert cut_sources([source])[0].version != before.version


def test_a_source_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", DOCUMENT * 2)
    (cut,) = cut_sources([source])
    write(tmp_path / "a.txt", DOCUMENT)
    for find_cut in (None, WordCounter("gpt2", []).next_cut):
        with pytest.raises(StorageError) as raised:
            list(read_pieces(cut, find_cut, piece_bytes=len(DOCUMENT) - 10))
        assert raised.value.path == Path(source)


def test_folders_patterns_and_urls_mean_files(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    for name in ("b.txt", "a.txt", ".hidden"):
        write(tmp_path / "books" / name, DOCUMENT)
    write(tmp_path / "books" / "empty.txt", b"")
    files = [str(tmp_path / "books" / name) for name in ("a.txt", "b.txt")]
    assert list_sources([str(tmp_path / "books")]) == files
    assert list_sources([str(tmp_path / "books" / "*.txt")]) == files
    urls = [f"file://{file}" for file in files]
    assert list_sources([f"file://{tmp_path}/books"]) == urls
    assert list_sources([f"file://{tmp_path}/books/*.txt", urls[0]]) == [*urls, urls[0]]


def test_urls_are_cut_like_files(tmp_path: Path) -> None:
    text = DOCUMENT * 9
    memory = fsspec.filesystem("memory")
    memory.pipe("/ranges/a.txt", text)
    (url,) = list_sources(["memory://ranges"])
    check_plain(url)
    parts = read_all(url, range_bytes=500)
    assert parts == read_all(write(tmp_path / "a.txt", text), range_bytes=500)


@pytest.mark.parametrize("source", ["nosuchsystem://bucket/a.txt", "-", "memory://nothing/*.txt"])
def test_a_source_that_cannot_be_listed_is_an_error(source: str) -> None:
    with pytest.raises(UsageError) as raised:
        list_sources([source])
    assert raised.value.path is not None


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    for source in (str(tmp_path / "missing.txt"), f"file://{tmp_path}/missing.txt"):
        with pytest.raises(StorageError):
            cut_sources([source])


def test_a_binary_or_compressed_url_is_rejected(tmp_path: Path) -> None:
    for name, data in (("a.txt", b"\x93NUMPY\x01"), ("b.jsonl", b"{}"), ("c.txt.gz", b"\x1f\x8b\x08")):
        with pytest.raises(UsageError):
            check_plain(f"file://{write(tmp_path / name, data)}")
