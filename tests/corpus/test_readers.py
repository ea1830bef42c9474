"""Every format gives the same documents; a file that is damaged or not what it says is one sentence."""

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

from bytewright.corpus import END_OF_TEXT, readers
from bytewright.corpus.readers import read_documents, read_pieces
from bytewright.errors import BytewrightError, FormatError, StorageError, UsageError

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
    """Blocks of the usual size, and blocks so small that everything is cut everywhere."""
    size: int = request.param
    monkeypatch.setattr(readers, "BLOCK", size)
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
    told: list[tuple[int, int]] = []
    found = read_documents(path, field="body", progress=lambda done, total: told.append((done, total)))
    assert [document.decode() for document in found] == DOCUMENTS
    assert told[-1] == (path.stat().st_size,) * 2


def test_gzip_files_that_were_joined_are_one_file(block: int, tmp_path: Path) -> None:
    data = as_text(DOCUMENTS)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(data[:30]) + gzip.compress(data[30:]) + bytes(64))
    assert [document.decode() for document in read_documents(tmp_path / "a.txt.gz")] == DOCUMENTS


def test_what_comes_out_of_a_packed_file_in_crumbs_is_handed_on_in_blocks(tmp_path: Path) -> None:
    """Each is searched for ends together with all that is left of those before it."""
    path = tmp_path / "a.txt.gz"
    text = bytes(random.Random(1).choices(b"abcdefgh ", k=5_000_000))
    path.write_bytes(gzip.compress(text))
    pieces = list(read_pieces(path))
    assert b"".join(piece.text for piece in pieces) == text.strip(b"\r\n")
    with path.open("rb") as file:
        blocks = [len(block) for block in readers._gather(readers._gunzip(path, iter([file.read()])))]
    assert sum(blocks) == len(text)
    assert min(blocks[:-1]) >= readers.BLOCK


@pytest.mark.parametrize(("name", "pack"), [("a.txt.xz", lzma.compress), ("a.jsonl.bz2", bz2.compress)])
def test_a_packing_that_is_not_read_is_not_taken_for_text(
    name: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(pack(b"One owl."))
    with pytest.raises(UsageError, match="is compressed in a way that is not read here; unpack it first"):
        list(read_documents(tmp_path / name))
    (tmp_path / name).write_bytes(b"a text of that name")
    if ".txt" in name:
        assert list(read_documents(tmp_path / name)) == [b"a text of that name"]


def test_json_lines_go_by_two_names(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(as_lines(DOCUMENTS))
    assert [text.decode() for text in read_documents(tmp_path / "a.ndjson")] == DOCUMENTS


def test_rows_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    broken = arrow.array([b"One.", b"\xff"]).view(arrow.string())
    parquet.write_table(arrow.table({"text": broken}), tmp_path / "b.parquet")
    with pytest.raises(FormatError, match=r"b\.parquet, rows 1 to 2: one of them is no UTF-8"):
        list(read_documents(tmp_path / "b.parquet"))


def test_what_is_not_utf8_passes_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe owl" + END_OF_TEXT.encode())
    assert list(read_documents(tmp_path / "a.txt")) == [b"\xff\xfe owl"]


def test_the_last_document_may_lack_its_mark_and_empty_ones_are_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n<|endoftext|>\n\none<|endoftext|><|endoftext|>two\n")
    assert list(read_documents(tmp_path / "a.txt")) == [b"one", b"two"]


def test_pieces_are_short_cut_at_no_word_and_join_to_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "BLOCK", 64)
    chance = random.Random(1)
    documents = [
        "".join(chance.choice(["owl", "fox", "ß", " ", " ", "\n", "\n\n"]) for _ in range(length)).strip()
        or "x"
        for length in (1, 10, 100, 1000, 2000)
    ]
    for name, data in (("a.txt", as_text(documents)), ("a.jsonl", as_lines(documents))):
        (tmp_path / name).write_bytes(data)
        pieces = list(read_pieces(tmp_path / name))
        assert max(len(text) for text, _ in pieces) <= 4 * 64
        assert len(pieces) > len(documents)
        words = [word for text, _ in pieces for word in text.split()]
        assert words == [word for document in documents for word in document.encode().split()]
        assert [document.decode() for document in read_documents(tmp_path / name)] == documents


def test_a_word_longer_than_a_block_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "BLOCK", 64)
    (tmp_path / "a.txt").write_bytes("ß".encode() * 5000)
    pieces = [text for text, _ in read_pieces(tmp_path / "a.txt")]
    assert max(map(len, pieces)) <= 4 * 64
    assert b"".join(pieces).decode() == "ß" * 5000
    assert all(piece.decode() for piece in pieces), "a character was cut"


def test_progress_ends_with_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(as_text(DOCUMENTS)))
    told: list[tuple[int, int]] = []
    assert len(list(read_documents(path, progress=lambda done, total: told.append((done, total))))) == 4
    assert told[-1] == (path.stat().st_size,) * 2


BAD = [
    ("cut.txt.gz", gzip.compress(as_text(DOCUMENTS))[:-9], "cut off"),
    ("no.txt.gz", b"plain text, not packed", "not sound gzip"),
    ("wrong.txt.gz", gzip.compress(b"x" * 1000)[:-8] + bytes(8), "not sound gzip"),
    ("no.jsonl", b'{"text": "a"}\nnonsense\n', "line 2: is not valid JSON"),
    ("deep.jsonl", b"[" * 100_000, "line 1: is not valid JSON"),
    ("list.jsonl", b'["text"]\n', "line 1: is not an object with a text in 'text'"),
    ("field.jsonl", b'{"body": "a"}\n', "'text'"),
    ("number.jsonl", b'{"text": 7}\n', "'text'"),
    ("half.jsonl", b'{"text": "\\ud83e"}\n', "half a surrogate pair"),
    ("bytes.jsonl", b'{"text": "\xff"}\n', "line 1: is not valid JSON"),
]


@pytest.mark.parametrize(("name", "data", "sentence"), BAD, ids=[name for name, _, _ in BAD])
def test_a_damaged_file_is_one_sentence_with_its_place(
    tmp_path: Path, name: str, data: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FormatError, match=sentence) as caught:
        list(read_documents(tmp_path / name))
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_damaged_zstandard_file_is_one_sentence(tmp_path: Path) -> None:
    packed = zstd(as_text(DOCUMENTS))
    for name, data, sentence in (
        ("cut.txt.zst", packed[:-3], "cut off"),
        ("no.txt.zst", b"plain text", "not sound Zstandard"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError, match=sentence):
            list(read_documents(tmp_path / name))


def test_a_damaged_or_unfitting_parquet_file_is_one_sentence(tmp_path: Path) -> None:
    whole = write_parquet(tmp_path / "a.parquet", {"text": ["a", None], "n": [1, 2]})
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-20])
    (tmp_path / "no.parquet").write_bytes(b"plain text")
    for path, field, sentence in (
        (tmp_path / "cut.parquet", "text", "cannot be read as Parquet"),
        (tmp_path / "no.parquet", "text", "cannot be read as Parquet"),
        (whole, "body", "has no column 'body'; there are 'text', 'n'"),
        (whole, "n", "row 1: 'n' is no text"),
        (whole, "text", "row 2: 'text' is no text"),
    ):
        with pytest.raises(FormatError, match=sentence) as caught:
            list(read_documents(path, field=field))
        assert "\n" not in str(caught.value)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LONGEST_LINE", 2**20)
    (tmp_path / "a.jsonl").write_bytes(b"x" * 2**22)
    with pytest.raises(FormatError, match="a line of more than 1048576 bytes"):
        list(read_documents(tmp_path / "a.jsonl"))


def test_a_missing_file_a_folder_and_a_packed_parquet_file_are_refused(tmp_path: Path) -> None:
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


def test_a_parquet_file_that_repeats_one_text_without_end_is_refused(tmp_path: Path) -> None:
    """A kilobyte of Parquet can stand for any number of rows; whoever wrote them out would fill the disk."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    one = arrow.DictionaryArray.from_arrays(arrow.array([0] * 1000, arrow.int32()), ["a" * 100_000])
    parquet.write_table(arrow.table({"text": one}), tmp_path / "many.parquet", compression="zstd")
    documents = read_documents(tmp_path / "many.parquet")
    assert sum(map(len, islice(documents, 100))) == 100 * 100_000
    with pytest.raises(FormatError, match=r"many\.parquet: its \d+ bytes hold more than 32768 times"):
        list(documents)
    long = arrow.table({"text": ["a" * 100_000_000]})
    parquet.write_table(long, tmp_path / "long.parquet", compression="brotli", use_dictionary=False)
    with pytest.raises(FormatError, match=r"long\.parquet: its \d+ bytes hold more than"):
        next(read_documents(tmp_path / "long.parquet"))


def test_the_rest_of_a_block_is_not_copied_for_each_of_many_members(tmp_path: Path) -> None:
    """500,000 empty members of gzip took minutes: what followed a member was copied to read the next."""
    num_copied = 0

    class Unused(bytes):
        """What follows a member; counts what is joined to it."""

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
    assert b"".join(readers._unpack(tmp_path / "x", blocks, Member, "gzip", ValueError)) == text + text
    assert num_copied <= 2 * len(text)


@pytest.mark.parametrize("member", [b"", b"a"])
def test_many_members_of_gzip_are_one_file(member: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes((gzip.compress(member) + bytes(3)) * 3000)
    assert b"".join(read_documents(tmp_path / "a.txt.gz")) == member * 3000


@pytest.mark.parametrize(("name", "package"), [("a.parquet", "pyarrow"), ("a.txt.zst", "zstandard")])
def test_a_library_that_is_missing_is_named_with_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    for module in (package, f"{package}.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError, match=rf"needs the package {package}; .*bytewright\[corpus\]"):
        list(read_documents(tmp_path / name))
