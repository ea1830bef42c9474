"""All formats yield the same documents, and damaged files raise an error with the position."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bytewright.corpus import END_OF_TEXT, file_formats, readers
from bytewright.corpus.readers import read_chunks, read_documents
from bytewright.errors import BytewrightError, FormatError, StorageError, UsageError
from rejection import rejects

DOCUMENTS = ["One owl.\nTwo owls!", "Zoë said: 🦉", "  indented, and <|endof not ended", "x" * 50]


def as_text(documents: list[str]) -> bytes:
    return b"".join(document.encode() + b"\n<|endoftext|>\n" for document in documents)


def as_lines(documents: list[str], field: str = "text") -> bytes:
    return b"".join(json.dumps({"id": 1, field: document}).encode() + b"\n" for document in documents)


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), path)
    return path


def zstd(data: bytes) -> bytes:
    packed = pytest.importorskip("zstandard").ZstdCompressor().compress(data)
    assert isinstance(packed, bytes)
    return packed


@pytest.fixture(params=[17, 2**20])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The usual block size, and one so small that blocks end at every kind of position."""
    size: int = request.param
    monkeypatch.setattr(file_formats, "BLOCK", size)
    return size


@pytest.mark.parametrize(
    "name", ["a.txt", "a.jsonl", "a.txt.gz", "A.JSONL.GZ", "a", "a.md", "a.gz", "v1.2.txt"]
)
def test_the_name_decides_the_format_and_all_give_the_same_documents(
    block: int, tmp_path: Path, name: str
) -> None:
    data = as_lines(DOCUMENTS) if "jsonl" in name.lower() else as_text(DOCUMENTS)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.lower().endswith("gz") else data)
    assert [document.decode() for document in read_documents(tmp_path / name)] == DOCUMENTS


@pytest.mark.parametrize("name", ["a.txt.zst", "a.jsonl.zst"])
def test_zstandard_gives_the_same_documents_even_from_several_frames(
    block: int, tmp_path: Path, name: str
) -> None:
    data = as_lines(DOCUMENTS) if "jsonl" in name else as_text(DOCUMENTS)
    (tmp_path / name).write_bytes(zstd(data[:40]) + zstd(data[40:]))
    assert [document.decode() for document in read_documents(tmp_path / name)] == DOCUMENTS


def test_parquet_gives_the_same_documents(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"id": [1] * 4, "body": DOCUMENTS})
    reported: list[tuple[int, int]] = []
    found = read_documents(path, field="body", progress=lambda done, total: reported.append((done, total)))
    assert [document.decode() for document in found] == DOCUMENTS
    assert reported[-1] == (path.stat().st_size,) * 2


def test_concatenated_gzip_files_are_one_file(block: int, tmp_path: Path) -> None:
    data = as_text(DOCUMENTS)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(data[:30]) + gzip.compress(data[30:]) + bytes(64))
    assert [document.decode() for document in read_documents(tmp_path / "a.txt.gz")] == DOCUMENTS


def test_small_decompressed_blocks_are_joined(tmp_path: Path) -> None:
    """Each block is searched together with the remainder of the previous ones."""
    path = tmp_path / "a.txt.gz"
    text = bytes(random.Random(1).choices(b"abcdefgh ", k=5_000_000))
    path.write_bytes(gzip.compress(text))
    chunks = list(read_chunks(path))
    assert b"".join(chunk.text for chunk in chunks) == text.strip(b"\r\n")
    with path.open("rb") as file:
        blocks = [
            len(block)
            for block in file_formats.gather_blocks(file_formats._gunzip(path, iter([file.read()])))
        ]
    assert sum(blocks) == len(text)
    assert min(blocks[:-1]) >= file_formats.BLOCK


@pytest.mark.parametrize(("name", "pack"), [("a.txt.xz", lzma.compress), ("a.jsonl.bz2", bz2.compress)])
def test_unsupported_compression_is_rejected(
    name: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(pack(b"One owl."))
    with rejects(UsageError, path=tmp_path / name):
        list(read_documents(tmp_path / name))
    (tmp_path / name).write_bytes(b"a text of that name")
    if ".txt" in name:
        assert list(read_documents(tmp_path / name)) == [b"a text of that name"]


def test_json_lines_may_be_named_ndjson(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(as_lines(DOCUMENTS))
    assert [text.decode() for text in read_documents(tmp_path / "a.ndjson")] == DOCUMENTS


def test_an_error_names_the_rows_that_are_not_utf8(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    broken = arrow.array([b"One.", b"\xff"]).view(arrow.string())
    parquet.write_table(arrow.table({"text": broken}), tmp_path / "b.parquet")
    with rejects(FormatError, path=tmp_path / "b.parquet", expected="UTF-8") as caught:
        list(read_documents(tmp_path / "b.parquet"))
    assert "rows 1 to 2" in str(caught.value)


def test_invalid_utf8_in_plain_text_passes_unchanged(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe owl" + END_OF_TEXT.encode())
    assert list(read_documents(tmp_path / "a.txt")) == [b"\xff\xfe owl"]


def test_the_last_mark_is_optional_and_empty_documents_are_omitted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n<|endoftext|>\n\none<|endoftext|><|endoftext|>two\n")
    assert list(read_documents(tmp_path / "a.txt")) == [b"one", b"two"]


def test_chunks_are_short_split_no_word_and_join_to_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_formats, "BLOCK", 64)
    chance = random.Random(1)
    documents = [
        "".join(chance.choice(["owl", "fox", "ß", " ", " ", "\n", "\n\n"]) for _ in range(length)).strip()
        or "x"
        for length in (1, 10, 100, 1000, 2000)
    ]
    for name, data in (("a.txt", as_text(documents)), ("a.jsonl", as_lines(documents))):
        (tmp_path / name).write_bytes(data)
        chunks = list(read_chunks(tmp_path / name))
        assert max(len(text) for text, _ in chunks) <= 4 * 64
        assert len(chunks) > len(documents)
        words = [word for text, _ in chunks for word in text.split()]
        assert words == [word for document in documents for word in document.encode().split()]
        assert [document.decode() for document in read_documents(tmp_path / name)] == documents


def test_a_word_longer_than_a_block_is_split_between_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_formats, "BLOCK", 64)
    (tmp_path / "a.txt").write_bytes("ß".encode() * 5000)
    chunks = [text for text, _ in read_chunks(tmp_path / "a.txt")]
    assert max(map(len, chunks)) <= 4 * 64
    assert b"".join(chunks).decode() == "ß" * 5000
    assert all(chunk.decode() for chunk in chunks), "a character was split"


def test_progress_ends_with_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(as_text(DOCUMENTS)))
    reported: list[tuple[int, int]] = []
    assert len(list(read_documents(path, progress=lambda done, total: reported.append((done, total))))) == 4
    assert reported[-1] == (path.stat().st_size,) * 2


BAD = [
    ("cut.txt.gz", gzip.compress(as_text(DOCUMENTS))[:-9], "truncated gzip data", None),
    ("no.txt.gz", b"plain text, not compressed", "invalid gzip data near byte 0 ", None),
    ("wrong.txt.gz", gzip.compress(b"x" * 1000)[:-8] + bytes(8), "gzip", None),
    ("no.jsonl", b'{"text": "a"}\nnonsense\n', "line 2: invalid JSON", None),
    ("deep.jsonl", b"[" * 100_000, "line 1: ", None),
    ("list.jsonl", b'["text"]\n', "line 1: expected an object with a string 'text'", "text"),
    ("field.jsonl", b'{"body": "a"}\n', "line 1: ", "text"),
    ("number.jsonl", b'{"text": 7}\n', "line 1: ", "text"),
    ("half.jsonl", b'{"text": "\\ud83e"}\n', "'text' contains an unpaired surrogate", "text"),
    ("bytes.jsonl", b'{"text": "\xff"}\n', "line 1: ", None),
]


@pytest.mark.parametrize(("name", "data", "sentence", "key"), BAD, ids=[case[0] for case in BAD])
def test_a_damaged_file_raises_one_sentence_with_the_position(
    tmp_path: Path, name: str, data: bytes, sentence: str, key: str | None
) -> None:
    (tmp_path / name).write_bytes(data)
    with rejects(FormatError, path=tmp_path / name, key=key) as caught:
        list(read_documents(tmp_path / name))
    assert str(caught.value).startswith(str(tmp_path / name))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_zstandard_file_is_rejected(tmp_path: Path) -> None:
    for name, data in (("cut.txt.zst", zstd(as_text(DOCUMENTS))[:-3]), ("no.txt.zst", b"plain text")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError) as caught:
            list(read_documents(tmp_path / name))
        assert (caught.value.path, caught.value.expected) == (tmp_path / name, "Zstandard")


def test_a_damaged_or_unsuitable_parquet_file_is_rejected(tmp_path: Path) -> None:
    whole = write_parquet(tmp_path / "a.parquet", {"text": ["a", None], "n": [1, 2]})
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-20])
    (tmp_path / "no.parquet").write_bytes(b"plain text")
    for path, field, sentence, key in (
        (tmp_path / "cut.parquet", "text", "invalid Parquet", None),
        (tmp_path / "no.parquet", "text", "Parquet", None),
        (whole, "body", "no column 'body'; found 'text', 'n'", "body"),
        (whole, "n", "row 1: 'n' must be a string, but is int", "n"),
        (whole, "text", "row 2: ", "text"),
    ):
        with rejects(FormatError, path=path, key=key) as caught:
            list(read_documents(path, field=field))
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_very_long_line_is_rejected_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LONGEST_LINE", 2**20)
    (tmp_path / "a.jsonl").write_bytes(b"x" * 2**22)
    with rejects(FormatError, path=tmp_path / "a.jsonl", expected=2**20):
        list(read_documents(tmp_path / "a.jsonl"))


def test_a_missing_file_a_folder_and_a_compressed_parquet_file_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress(b"x"))
    cases: Iterator[tuple[Path, type[BytewrightError]]] = iter(
        [
            (tmp_path / "nowhere.txt", StorageError),
            (tmp_path, StorageError),
            (tmp_path / "b.parquet.gz", UsageError),
        ]
    )
    for path, error in cases:
        with pytest.raises(error):
            list(read_documents(path))


def test_a_parquet_file_that_expands_without_bound_is_rejected(tmp_path: Path) -> None:
    """A kilobyte of Parquet can contain any number of rows; writing them out would fill the disk."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    one = arrow.DictionaryArray.from_arrays(arrow.array([0] * 1000, arrow.int32()), ["a" * 100_000])
    parquet.write_table(arrow.table({"text": one}), tmp_path / "many.parquet", compression="zstd")
    documents = read_documents(tmp_path / "many.parquet")
    assert sum(map(len, islice(documents, 100))) == 100 * 100_000
    with rejects(FormatError, path=tmp_path / "many.parquet", expected=readers.MAX_EXPANSION):
        list(documents)
    long = arrow.table({"text": ["a" * 100_000_000]})
    parquet.write_table(long, tmp_path / "long.parquet", compression="brotli", use_dictionary=False)
    with pytest.raises(FormatError) as caught:
        next(read_documents(tmp_path / "long.parquet"))
    assert (caught.value.path, caught.value.expected) == (tmp_path / "long.parquet", readers.MAX_EXPANSION)


def test_the_rest_of_a_block_is_not_copied_for_each_gzip_member(tmp_path: Path) -> None:
    """With such copies, 500,000 empty members took minutes."""
    num_copied = 0

    class Unused(bytes):
        """The bytes after a member; counts the bytes that are concatenated to it."""

        def __add__(self, other: object) -> bytes:
            nonlocal num_copied
            assert isinstance(other, bytes)
            num_copied += len(other)
            return bytes(self) + other

    class Member:
        """A decompressor whose members are one byte long."""

        eof = False
        unused_data = Unused()

        def decompress(self, data: bytes) -> bytes:
            self.eof, self.unused_data = True, Unused(data[1:])
            return bytes(data[:1])

    text = b"abc" * 2000
    blocks = iter([text, text])
    assert (
        b"".join(file_formats._decompress(tmp_path / "x", blocks, Member, "gzip", ValueError)) == text + text
    )
    assert num_copied <= 2 * len(text)


@pytest.mark.parametrize("member", [b"", b"a"])
def test_many_gzip_members_are_one_file(member: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes((gzip.compress(member) + bytes(3)) * 3000)
    assert b"".join(read_documents(tmp_path / "a.txt.gz")) == member * 3000


@pytest.mark.parametrize(("name", "package"), [("a.parquet", "pyarrow"), ("a.txt.zst", "zstandard")])
def test_an_error_names_the_missing_package_and_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    for module in (package, f"{package}.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / name).write_bytes(b"x")
    with rejects(UsageError, path=tmp_path / name, expected=package) as caught:
        list(read_documents(tmp_path / name))
    assert f"pip install {package}" in str(caught.value)
