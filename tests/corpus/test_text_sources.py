"""Sources of text: files, folders, patterns, standard input, and files that are not text."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from bytewright.corpus.file_formats import check_plain_text, clean_blocks, find_binary_kind
from bytewright.corpus.readers import read_documents
from bytewright.corpus.sources import expand_source, open_sources
from bytewright.corpus.stats import measure_corpus
from bytewright.corpus.text import write_documents
from bytewright.errors import UsageError
from bytewright.tokenizer import Tokenizer
from conftest import RunCommand
from rejection import rejects

MARKED = b"\xef\xbb\xbfOne.\r\nTwo.\r\n"
CLEAN = b"One.\nTwo.\n"


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """A folder of three texts; one has a byte-order mark and CRLF, one is empty."""
    folder = tmp_path / "books"
    (folder / "more").mkdir(parents=True)
    (folder / "a.txt").write_bytes(MARKED)
    (folder / "more" / "b.txt").write_text("Three.\n<|endoftext|>\n")
    (folder / "c.txt").write_text("Four.")
    (folder / "empty.txt").touch()
    (folder / ".hidden").write_text("Five.")
    return folder


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_folder_or_pattern_means_its_files(books: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(books.parent)
    assert [file.as_posix() for file in expand_source("books")] == [
        *("books/a.txt", "books/c.txt", "books/more/b.txt")
    ]
    assert [file.as_posix() for file in expand_source("books/*.txt")] == ["books/a.txt", "books/c.txt"]
    assert [file.as_posix() for file in expand_source("books/**/b.txt")] == ["books/more/b.txt"]
    assert expand_source("gone.txt") == [Path("gone.txt")]
    Path("[a].txt").write_text("A name with brackets.")
    assert expand_source("[a].txt") == [Path("[a].txt")]


def test_a_source_without_files_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rejects(UsageError, path=tmp_path / "*.txt"):
        expand_source(tmp_path / "*.txt")
    (tmp_path / "empty.txt").touch()
    for source in (tmp_path, tmp_path / "*.txt"):
        with rejects(UsageError, path=source):
            expand_source(source)
    give_stdin(monkeypatch, b"")
    with rejects(UsageError, path=Path("-")), open_sources(["-"]):
        pass
    monkeypatch.setattr(sys, "stdin", None)  # as with `<&-`
    with rejects(UsageError, path=Path("-")), open_sources(["-"]):
        pass


def test_standard_input_is_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    give_stdin(monkeypatch, b"One\xff.")
    with open_sources(["-"]) as (file,):
        assert file.read_bytes() == b"One\xff."
    assert not file.exists()


def test_clean_copies_are_made_of_marked_texts_only(books: Path) -> None:
    with open_sources([books], clean=True) as files:
        assert [file.name for file in files] == ["a.txt", "c.txt", "b.txt"]
        assert [file.is_relative_to(books) for file in files] == [False, True, True]
        assert files[0].read_bytes() == CLEAN
    assert (books / "a.txt").read_bytes() == MARKED


def test_the_cuts_between_blocks_do_not_matter_for_clean_text() -> None:
    text = b"\xef\xbb\xbfa\r\n\r\n\rb\r\r\n\nc\r"
    whole = b"".join(clean_blocks(iter([text])))
    assert whole == b"a\n\n\rb\r\n\nc\r"
    for first in range(3, len(text)):
        for second in range(first, len(text)):
            parts = [text[:first], text[first:second], text[second:]]
            assert b"".join(clean_blocks(iter(parts))) == whole


def test_documents_of_every_format_are_cleaned_on_request(tmp_path: Path) -> None:
    row = json.dumps({"text": "\ufeffOne.\r\nTwo."}) + "\n"
    files = {
        "a.txt": MARKED,
        "a.txt.gz": gzip.compress(MARKED),
        "a.jsonl": row.encode(),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    if pyarrow := pytest.importorskip("pyarrow"):
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": ["\ufeffOne.\r\nTwo."]}), tmp_path / "a.parquet")
    for path in sorted(tmp_path.iterdir()):
        assert list(read_documents(path)) == [MARKED.rstrip()]
        assert list(read_documents(path, clean=True)) == [CLEAN.rstrip()]
    written = write_documents(sorted(tmp_path.iterdir()), tmp_path / "all.txt", clean=True)
    assert written.num_documents == 4
    assert (tmp_path / "all.txt").read_bytes() == b"One.\nTwo.\n<|endoftext|>\n" * 4
    assert measure_corpus([tmp_path / "a.txt", tmp_path / "a.jsonl"], clean=True).num_bytes == 18


def make_binary_files(folder: Path) -> dict[str, str]:
    """Write real binary files, and return a part of the description of each by its name."""
    np.save(folder / "array.npy", np.arange(5))
    np.savez(folder / "arrays.npz", np.arange(5))
    safetensors.numpy.save_file({"w": np.zeros(3, np.float32)}, folder / "model.safetensors")
    with zipfile.ZipFile(folder / "texts.zip", "w") as archive:
        archive.writestr("a.txt", "One.")
    with tarfile.open(folder / "texts.tar", "w") as archive:
        archive.add(folder / "array.npy")
    (folder / "packed").write_bytes(gzip.compress(b"One."))
    (folder / "model.gguf").write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    (folder / "picture").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(8))
    (folder / "windows.txt").write_bytes("\ufeffOne.".encode("utf-16-le"))
    return {
        "array.npy": "NumPy",
        "arrays.npz": "zip",
        "model.safetensors": "safetensors",
        "texts.zip": "zip",
        "texts.tar": "tar",
        "packed": "gzip",
        "model.gguf": "GGUF",
        "picture": "PNG",
        "windows.txt": "UTF-16",
    }


def test_a_binary_file_is_rejected_as_text(tmp_path: Path, tokenizer: Path, run: RunCommand) -> None:
    loaded = Tokenizer.load(tokenizer)
    for name, kind in make_binary_files(tmp_path).items():
        path = tmp_path / name
        with rejects(UsageError, path=path) as caught:
            check_plain_text(path)
        assert kind in str(caught.value.found) or kind == "zip"
        with rejects(UsageError, path=path):
            list(read_documents(path))
        with rejects(UsageError, path=path):
            loaded.encode_file(path, tmp_path / "out.npy")
        for command in (
            ["corpus", "stats", path],
            ["corpus", "text", path, "--out", tmp_path / "out.txt"],
            ["tokenizer", "encode", tokenizer, path, "--out", tmp_path / "out.npy"],
            ["tokenizer", "train", path, "--out", tmp_path / "out", "--vocab-size", "300"],
        ):
            outcome = run(*command)
            assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    "text",
    [
        *("GGUF is a format.", "PK is a name.", "BZh", "GIF89a was a format.", "RIFF and WAVE", "PAR1"),
        *("Das Öl.", '{"a": 1}', '12345678{"a": 1}', "%PDF is a comment", "ID3 tags", "\ufeffOne."),
    ],
)
def test_a_text_is_not_taken_for_a_binary_file(text: str) -> None:
    assert find_binary_kind(text.encode()) is None


def test_several_files_are_encoded_as_documents(books: Path, tokenizer: Path, run: RunCommand) -> None:
    loaded = Tokenizer.load(tokenizer)
    out = books.parent / "books.npy"
    outcome = run("tokenizer", "encode", tokenizer, books, "--out", out)
    assert outcome.code == 0
    assert outcome.err.count("warning:") == 1  # one for all files
    text = MARKED + b"<|endoftext|>Four.<|endoftext|>Three.\n<|endoftext|>\n"
    assert loaded.decode_bytes(np.load(out)) == text
    clean = run("tokenizer", "encode", tokenizer, books, "--clean", "--replace", "--out", out)
    assert (clean.code, clean.err) == (0, "")
    assert np.load(out).tolist() == loaded.encode(text.replace(MARKED, CLEAN))


def test_a_tokenizer_is_trained_on_clean_text(books: Path, run: RunCommand) -> None:
    for name, options in (("marked", []), ("clean", ["--clean"])):
        out = books.parent / name
        outcome = run("tokenizer", "train", books, "--out", out, "--vocab-size", "262", *options)
        assert outcome.code == 0
        assert outcome.err.count("warning:") == (0 if options else 1)
        has_mark = any(b"\xbb" in token for token in list(Tokenizer.load(out).vocab.values())[256:])
        assert has_mark is not bool(options)


def test_one_file_in_a_list_has_the_same_ids(tmp_path: Path, stories: Path, tokenizer: Path) -> None:
    loaded = Tokenizer.load(tokenizer)
    one = loaded.encode_file(stories, tmp_path / "one.npy")
    two = loaded.encode_file([stories], tmp_path / "two.npy")
    assert one.manifest == two.manifest
    twice = loaded.encode_file([stories, stories], tmp_path / "twice.npy")
    assert twice.manifest.num_documents == 2 * one.manifest.num_documents
    assert twice.tokens.tolist() == loaded.encode(stories.read_bytes() * 2)


def test_standard_input_is_read_by_all_commands(
    tmp_path: Path, tokenizer: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b"One two.")
    assert json.loads(run("corpus", "stats", "-", "--json").out)["num_words"] == 2
    give_stdin(monkeypatch, MARKED)
    assert run("corpus", "text", "-", "--clean", "--out", tmp_path / "a.txt").code == 0
    assert (tmp_path / "a.txt").read_bytes() == CLEAN + b"<|endoftext|>\n"
    give_stdin(monkeypatch, b"One two.")
    assert run("tokenizer", "encode", tokenizer, "-", "--out", tmp_path / "a.npy").code == 0
    assert Tokenizer.load(tokenizer).decode(np.load(tmp_path / "a.npy")) == "One two."
