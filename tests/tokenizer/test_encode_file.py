"""Encoding files: the ids do not depend on threads or piece sizes, and an error leaves no file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from prose import END, the_prose, the_tokenizer

from bytewright.corpus.storybook import write_stories
from bytewright.data import TokenFile
from bytewright.errors import StorageError, UsageError
from bytewright.tokenizer.tokenizer import Tokenizer
from rejection import rejects

BYTES = {byte: bytes([byte]) for byte in range(256)}
THREADS = [1, 2, 3, 8]


@pytest.fixture(scope="module")
def prose() -> bytes:
    return the_prose()


@pytest.fixture(scope="module")
def prose_tokenizer() -> Tokenizer:
    return the_tokenizer()


@pytest.fixture(scope="module")
def prose_ids() -> list[int]:
    return the_tokenizer().encode(the_prose())


@pytest.mark.parametrize("num_threads", THREADS)
def test_a_file_becomes_a_token_file_with_the_ids_of_its_text(
    prose_tokenizer: Tokenizer, prose: bytes, prose_ids: list[int], tmp_path: Path, num_threads: int
) -> None:
    source, target = tmp_path / "prose.txt", tmp_path / "prose.npy"
    source.write_bytes(prose)
    heard: list[tuple[int, int]] = []
    written = prose_tokenizer.encode_file(
        source, target, num_threads=num_threads, progress=lambda done, total: heard.append((done, total))
    )
    assert written.tokens.tolist() == prose_ids
    assert written.tokens.dtype == np.uint16
    assert written.manifest.num_documents == prose.count(END.encode())
    assert written.manifest.vocabulary_size == prose_tokenizer.vocab_size
    assert heard[-1] == (len(prose), len(prose))
    assert TokenFile.open(target, verify=True).manifest == written.manifest


def test_the_pieces_of_a_file_joined_are_the_ids_of_its_text(
    prose_tokenizer: Tokenizer, prose: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prose.txt").write_bytes(prose)
    monkeypatch.setattr("bytewright.tokenizer.tokenizer.PIECE", len(prose) // 7)
    pieces = list(prose_tokenizer.encode_pieces(tmp_path / "prose.txt"))
    assert len(pieces) >= 7
    assert np.concatenate(pieces).tolist() == prose_tokenizer.encode(prose)


@pytest.mark.parametrize(
    ("text", "num_documents"),
    [
        ("", 0),
        ("one", 1),
        (f"one{END}", 1),
        (f"one{END}two", 2),
        (f"{END}{END}", 2),
        (f"one{END}\n", 1),
        (f"one{END}two{END}\n \t\n", 2),
        (f"one{END}\ntwo\n", 2),
    ],
)
def test_documents_are_what_the_end_of_text_ends(
    prose_tokenizer: Tokenizer, tmp_path: Path, text: str, num_documents: int
) -> None:
    (tmp_path / "text.txt").write_text(text)
    written = prose_tokenizer.encode_file(tmp_path / "text.txt", tmp_path / "text.npy")
    assert written.manifest.num_documents == num_documents
    without = Tokenizer(BYTES, []).encode_file(tmp_path / "text.txt", tmp_path / "text.npy")
    assert without.manifest.num_documents == (1 if text else 0)


def test_a_file_longer_than_one_step_is_cut_safely(
    prose_tokenizer: Tokenizer,
    prose: bytes,
    prose_ids: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "prose.txt").write_bytes(prose)
    for step in (1000, 65_536, 1_000_000):
        monkeypatch.setattr("bytewright.tokenizer.tokenizer.PIECE", step)
        written = prose_tokenizer.encode_file(tmp_path / "prose.txt", tmp_path / "prose.npy")
        assert written.tokens.tolist() == prose_ids


def test_an_unreadable_source_leaves_the_target_unchanged(prose_tokenizer: Tokenizer, tmp_path: Path) -> None:
    target = tmp_path / "prose.npy"
    for source in (tmp_path / "missing.txt", tmp_path):
        with pytest.raises(StorageError):
            prose_tokenizer.encode_file(source, target)
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_callers_progress_leaves_no_file(prose_tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text")

    def complain(done: int, total: int) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        prose_tokenizer.encode_file(tmp_path / "text.txt", tmp_path / "text.npy", progress=complain)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_saved_tokenizer_is_the_same_tokenizer(prose_tokenizer: Tokenizer, tmp_path: Path) -> None:
    prose_tokenizer.save(tmp_path / "prose")
    loaded = Tokenizer.load(tmp_path / "prose")
    assert loaded.vocabulary == prose_tokenizer.vocabulary
    assert loaded.fingerprint == prose_tokenizer.fingerprint
    text = "once upon a time" + END
    assert loaded.encode(text) == prose_tokenizer.encode(text)
    with rejects(StorageError, path=tmp_path / "nowhere"):
        Tokenizer.load(tmp_path / "nowhere")


def test_the_manifest_records_the_floor_of_one_generated_text(
    prose_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    text, own = tmp_path / "stories.txt", tmp_path / "own.txt"
    written = write_stories(text, 10_000, seed=1)
    own.write_text("A text of a person.")
    floors = [
        prose_tokenizer.encode_file(sources, tmp_path / "ids.npy").manifest.floor_bits_per_byte
        for sources in (text, own, [text, own])
    ]
    assert floors == [written.bits_per_byte, None, None]
    # Without the end token, evaluations also count the bytes of its text.
    without_end = Tokenizer({byte: bytes([byte]) for byte in range(256)}, [])
    assert without_end.encode_file(text, tmp_path / "ids.npy").manifest.floor_bits_per_byte is None


def test_a_file_is_never_encoded_onto_itself(prose_tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = tmp_path / "self.txt"
    source.write_text("low lower")
    (tmp_path / "twin.txt").hardlink_to(source)
    for target in (source, tmp_path / "twin.txt"):
        with rejects(UsageError, path=target):
            prose_tokenizer.encode_file(source, target)
    assert source.read_text() == "low lower"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["self.txt", "twin.txt"]
