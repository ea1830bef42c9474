"""Token files: NumPy reads them, the manifest describes them, and invalid ones are rejected."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import threading
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytewright.data import TokenFile, TokenFileWriter, dtype_for, tokenfile
from bytewright.data.tokenfile import CHUNK, Manifest
from bytewright.errors import FormatError, StorageError, TokenizerError, UsageError
from bytewright.storage import atomic, filesystem
from bytewright.storage.manifest import manifest_path_of
from rejection import rejects

OURS, THEIRS = "1" * 64, "2" * 64


def write(
    path: Path | str, ids: npt.ArrayLike, *, size: int = 300, fingerprint: str = OURS, documents: int = 1
) -> None:
    with TokenFileWriter(path, tokenizer_fingerprint=fingerprint, vocabulary_size=size) as writer:
        writer.append(ids, num_documents=documents)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "stories.npy"
    write(path, [1, 2, 299], documents=2)
    return path


def error_of(act: Callable[[], object]) -> FormatError:
    """Return the error of `act`, after checking that its message is one line that names the file."""
    with pytest.raises(FormatError) as caught:
        act()
    assert "stories.npy" in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def names_in(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir())


# Writing and reading


@pytest.mark.parametrize("target", [".", ""])
def test_a_target_without_a_file_name_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with rejects(StorageError, errno=errno.EISDIR):
        write(target, [1])
    assert names_in(tmp_path) == []


@given(st.lists(st.lists(st.integers(0, 69_999), max_size=50), max_size=5), st.sampled_from([70_000, 2**32]))
def test_numpy_and_token_file_read_the_ids_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[list[int]], size: int
) -> None:
    path = tmp_path_factory.mktemp("ids") / "ids.npy"
    with TokenFileWriter(path, tokenizer_fingerprint=OURS, vocabulary_size=size) as writer:
        for chunk in chunks:
            writer.append(chunk, num_documents=1)
    expected = [id for chunk in chunks for id in chunk]
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    assert mapped.dtype == np.uint32
    assert mapped.tolist() == expected
    opened = TokenFile.open(path, verify=True)
    assert opened.tokens.tolist() == expected
    assert len(opened) == len(expected)
    assert opened.manifest.num_documents == len(chunks)


def test_ids_have_the_smallest_type_that_fits(tmp_path: Path) -> None:
    for size, dtype in [(256, np.uint16), (2**16, np.uint16), (2**16 + 1, np.uint32), (2**32, np.uint32)]:
        assert dtype_for(size) == dtype
        write(tmp_path / "ids.npy", [0, size - 1], size=size)
        opened = TokenFile.open(tmp_path / "ids.npy", verify=True)
        assert opened.tokens.dtype == dtype
        assert opened.tokens.tolist() == [0, size - 1]


def test_the_manifest_describes_the_ids(path: Path) -> None:
    sha256 = hashlib.sha256(np.array([1, 2, 299], "<u2").tobytes()).hexdigest()
    assert atomic.read_document(manifest_path_of(path)) == {
        "format": "bytewright token file 1",
        "tokenizer_fingerprint": OURS,
        "vocabulary_size": 300,
        "dtype": "uint16",
        "num_tokens": 3,
        "num_documents": 2,
        "sha256": sha256,
    }


def test_ids_of_any_integer_type_and_stride_are_written(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    with TokenFileWriter(path, tokenizer_fingerprint=OURS, vocabulary_size=300) as writer:
        writer.append(np.arange(10, dtype=np.int64)[::2])
        writer.append(np.array([1, 2], dtype=">u4"))
        writer.append(np.array([3], dtype=np.uint8))
        writer.append(np.empty(0, dtype=np.float64))
        writer.append([])
        assert writer.num_tokens == 8
    assert TokenFile.open(path, verify=True).tokens.tolist() == [0, 2, 4, 6, 8, 1, 2, 3]


def test_an_empty_token_file_is_a_token_file(tmp_path: Path) -> None:
    write(tmp_path / "empty.npy", [], documents=0)
    assert TokenFile.open(tmp_path / "empty.npy", verify=True).tokens.tolist() == []
    assert np.load(tmp_path / "empty.npy", mmap_mode="r").tolist() == []


def test_tokens_cannot_be_written_to(path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        TokenFile.open(path).tokens[0] = 5  # type: ignore[index]


def test_an_array_that_numpy_saved_is_read_when_it_has_a_manifest(path: Path) -> None:
    np.save(path, np.array([1, 2, 299], np.uint16))
    assert TokenFile.open(path, verify=True).tokens.tolist() == [1, 2, 299]


def test_ids_of_another_tokenizer_are_rejected(path: Path) -> None:
    TokenFile.open(path).require_tokenizer(OURS)
    with rejects(TokenizerError, path=path, key="tokenizer_fingerprint", expected=THEIRS, found=OURS):
        TokenFile.open(path).require_tokenizer(THEIRS)


def test_writing_and_verifying_use_bounded_memory(tmp_path: Path) -> None:
    chunk = np.zeros(CHUNK, np.uint16)
    tracemalloc.start()
    try:
        with TokenFileWriter(tmp_path / "big.npy", tokenizer_fingerprint=OURS, vocabulary_size=300) as writer:
            for _ in range(12):
                writer.append(chunk)
        TokenFile.open(tmp_path / "big.npy", verify=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * chunk.nbytes < (tmp_path / "big.npy").stat().st_size / 2


def test_ids_are_hashed_while_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenfile, "usable_cores", lambda: 4)
    begun = threading.Event()

    class Digest:
        def update(self, data: bytes) -> None:
            assert begun.wait(60), "the writer waits for the hash"

        def hexdigest(self) -> str:
            return "0" * 64

    class Stream:
        def __init__(self, stream: BinaryIO) -> None:
            self._stream = stream

        def write(self, data: bytes) -> int:
            begun.set()
            return self._stream.write(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    path = tmp_path / "ids.npy"
    with TokenFileWriter(path, tokenizer_fingerprint=OURS, vocabulary_size=300) as writer:
        writer._stream, writer._digest = cast("Any", Stream(writer._stream)), cast("Any", Digest())
        writer.append([1, 2, 299])
    assert TokenFile.open(path).tokens.tolist() == [1, 2, 299]


def test_too_little_memory_to_map_a_file_is_a_memory_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(np, "memmap", refuse)
    with pytest.raises(MemoryError):
        TokenFile.open(path)


# Invalid ids


@pytest.mark.parametrize("bad", [-1, 300, 2**16 + 5])
def test_an_id_outside_the_vocabulary_is_not_written(tmp_path: Path, bad: int) -> None:
    with rejects(TokenizerError, path=tmp_path / "ids.npy", expected=300, found=bad) as caught:
        write(tmp_path / "ids.npy", [1, 2, 3, 4, bad])
    assert f"token id {bad} at position 4 is outside the vocabulary (300)" in str(caught.value)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("bad", [[1.5], ["a"], [[1, 2]], [None]])
def test_only_lists_of_integers_are_written(tmp_path: Path, bad: Any) -> None:
    with rejects(TokenizerError, key="ids"):
        write(tmp_path / "ids.npy", bad)
    assert names_in(tmp_path) == []


def test_an_error_while_writing_keeps_the_old_file(path: Path) -> None:
    with pytest.raises(TokenizerError):
        write(path, [*range(300), 300], fingerprint=THEIRS)
    assert TokenFile.open(path, verify=True).tokens.tolist() == [1, 2, 299]
    assert names_in(path.parent) == ["stories.npy", "stories.npy.json"]


def test_an_unwritable_manifest_fails_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "ids.npy.json").mkdir()
    with rejects(StorageError, errno=errno.EISDIR, path=tmp_path / "ids.npy.json"):
        TokenFileWriter(tmp_path / "ids.npy", tokenizer_fingerprint=OURS, vocabulary_size=300).__enter__()
    assert names_in(tmp_path) == ["ids.npy.json"]


# Broken and hostile arrays


def npy(array: npt.NDArray[Any], **options: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, **options)
    return stream.getvalue()


def with_literal(literal: str, data: bytes = b"\1\0\2\0\3\0") -> bytes:
    padded = literal.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + data


class Explosive:
    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (1,)


GOOD = "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }"


@pytest.mark.parametrize(
    ("contents", "key"),
    [
        (b"", "magic"),
        (b"\x93NUM", "magic"),
        (b"PK\x03\x04" + bytes(200), "magic"),
        (b"\x80\x04\x95" + bytes(200), "magic"),
        (b"\x93NUMPY", "header"),
        (b"\x93NUMPY\x01\x00\xff\xff", "header"),
        (npy(np.array([1, 2, 3], np.uint16), version=(2, 0)), "header"),
        (npy(np.array([1, 2, 3], np.int16)), "header"),
        (npy(np.array([1, 2, 3], np.float64)), "header"),
        (npy(np.array([1, 2, 3], ">u2")), "header"),
        (npy(np.array([[1, 2, 3]], np.uint16)), "header"),
        (npy(np.array(3, np.uint16)), "header"),
        (npy(np.asfortranarray(np.ones((2, 2), np.uint16))), "header"),
        (npy(np.array([(1, 2)], [("a", "u2"), ("b", "u2")])), "header"),
        (npy(np.array([Explosive()], object)), "header"),
        (with_literal(GOOD.replace("<u2", "|O")), "header"),
        (with_literal(GOOD.replace("False", "True")), "header"),
        (with_literal(GOOD.replace("3", "-3")), "header"),
        (with_literal(GOOD.replace("3", "03")), "header"),
        (with_literal(GOOD.replace("3", "9" * 30)), "header"),
        (with_literal(GOOD.replace("3", "9" * 5000)), "header"),
        (with_literal(GOOD.replace("3", "__import__('os')._exit(1)")), "header"),
        (with_literal("(" * 60_000), "header"),
        (with_literal(GOOD.replace("3", "9" * 18)), "size"),
        (with_literal(GOOD, b"\1\0\2\0\3"), "size"),
        (with_literal(GOOD, bytes(8)), "size"),
    ],
)
def test_a_broken_or_hostile_array_is_rejected(path: Path, contents: bytes, key: str) -> None:
    path.write_bytes(contents)
    assert error_of(lambda: TokenFile.open(path)).key == key


def test_messages_about_an_array_state_expected_and_found(path: Path) -> None:
    path.write_bytes(b"PK")
    assert "is not an .npy file: it begins with b'PK'" in str(error_of(lambda: TokenFile.open(path)))
    path.write_bytes(npy(np.array([1, 2, 3], np.int16)))
    assert "one-dimensional array of '<u2' or '<u4'" in str(error_of(lambda: TokenFile.open(path)))
    path.write_bytes(with_literal(GOOD, bytes(8)))
    assert "but the 3 ids of its header need" in str(error_of(lambda: TokenFile.open(path)))


def test_the_valid_header_of_the_hostile_cases_is_accepted(path: Path) -> None:
    path.write_bytes(with_literal(GOOD, np.array([1, 2, 299], "<u2").tobytes()))
    assert TokenFile.open(path, verify=True).tokens.tolist() == [1, 2, 299]


def test_a_file_truncated_anywhere_is_rejected(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        error_of(lambda: TokenFile.open(path))


# Invalid manifests


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"format": "bytewright token file 2"}, "format"),
        ({"num_tokens": 4}, "num_tokens"),
        ({"num_tokens": -3}, "num_tokens"),
        ({"num_tokens": 3.0}, "num_tokens"),
        ({"num_tokens": 10**100}, "num_tokens"),
        ({"num_documents": True}, "num_documents"),
        ({"vocabulary_size": 0}, "vocabulary_size"),
        ({"vocabulary_size": 70_000}, "dtype"),
        ({"vocabulary_size": 70_000, "dtype": "uint32"}, "num_tokens"),
        ({"dtype": "object"}, "dtype"),
        ({"sha256": "f" * 63}, "sha256"),
        ({"tokenizer_fingerprint": None}, "tokenizer_fingerprint"),
        ({"floor_bits_per_byte": "0.3"}, "floor_bits_per_byte"),
        ({"extra": 1}, "extra"),
        ({"either": []}, "tokenizer_fingerprint"),
    ],
)
def test_a_manifest_that_contradicts_the_array_or_itself_is_rejected(
    path: Path, change: dict[str, object], key: str
) -> None:
    manifest = atomic.read_document(manifest_path_of(path))
    manifest_path_of(path).write_text(json.dumps(manifest | change))
    assert error_of(lambda: TokenFile.open(path)).key == key


@pytest.mark.parametrize("key", sorted({*Manifest.__dataclass_fields__, "format"} - {"floor_bits_per_byte"}))
def test_a_manifest_without_one_of_its_keys_is_rejected(path: Path, key: str) -> None:
    with TokenFileWriter(path, tokenizer_fingerprint=OURS, vocabulary_size=300, masked=True) as writer:
        writer.append([1, 2, 299], mask=[0, 1, 1])
    manifest = atomic.read_document(manifest_path_of(path))
    del manifest[key]
    manifest_path_of(path).write_text(json.dumps(manifest))
    assert error_of(lambda: TokenFile.open(path)).key == key


@pytest.mark.parametrize("contents", [b"", b"[]", b"{", b"\xff", b"[" * 10**5, b"NaN", b"{}" + b" " * 2**20])
def test_a_manifest_of_another_kind_is_rejected(path: Path, contents: bytes) -> None:
    manifest_path_of(path).write_bytes(contents)
    error_of(lambda: TokenFile.open(path))


@pytest.mark.parametrize("either", [[], {}, None, [1], [{}]])
def test_an_invalid_manifest_of_a_replacement_is_rejected(path: Path, either: object) -> None:
    manifest_path_of(path).write_text(json.dumps({"format": "bytewright token file 1", "either": either}))
    error_of(lambda: TokenFile.open(path))


def test_an_array_without_a_manifest_is_rejected(path: Path) -> None:
    manifest_path_of(path).unlink()
    assert "has no manifest stories.npy.json" in str(error_of(lambda: TokenFile.open(path)))


def test_a_missing_file_and_a_folder_that_is_no_dataset_are_rejected(tmp_path: Path) -> None:
    with rejects(StorageError, errno=errno.ENOENT, path=tmp_path / "ids.npy"):
        TokenFile.open(tmp_path / "ids.npy")
    with rejects(UsageError, path=tmp_path):
        TokenFile.open(tmp_path)


def test_a_pipe_is_rejected_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ids.npy")
    with rejects(StorageError, path=tmp_path / "ids.npy"):
        TokenFile.open(tmp_path / "ids.npy")


# Verifying


def test_verify_finds_a_changed_id(path: Path) -> None:
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    TokenFile.open(path)
    assert "the file was damaged or changed" in str(error_of(lambda: TokenFile.open(path, verify=True)))


def test_verify_finds_an_id_outside_the_vocabulary(path: Path) -> None:
    forged = np.array([1, 300, 2], "<u2")
    np.save(path, forged)
    manifest = atomic.read_document(manifest_path_of(path))
    manifest["sha256"] = hashlib.sha256(forged.tobytes()).hexdigest()
    manifest_path_of(path).write_text(json.dumps(manifest))
    found = str(error_of(lambda: TokenFile.open(path, verify=True)))
    assert "token id 300 at position 1 is outside the vocabulary (300)" in found


# Killed and failed writers: exactly the old, or exactly the new


OLD, NEW = ([1, 2, 299], OURS), ([4, 5, 6], THEIRS)  # equally many ids: only the SHA-256 differs


def state_of(path: Path) -> tuple[list[int], str] | None:
    try:
        opened = TokenFile.open(path)
    except StorageError:
        return None
    return opened.tokens.tolist(), opened.manifest.tokenizer_fingerprint


def operations_of(act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> int:
    operations: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "before_operation", lambda operation, *paths: operations.append(operation))
        act()
    return len(operations)


@pytest.mark.fault
@pytest.mark.parametrize("replacing", [False, True], ids=["created", "replaced"])
@pytest.mark.parametrize("disk_stays_full", [False, True], ids=["once", "from-then-on"])
def test_a_full_disk_at_any_operation_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacing: bool, disk_stays_full: bool
) -> None:
    before = OLD if replacing else None
    (tmp_path / "0").mkdir()
    num_operations = operations_of(
        lambda: write(tmp_path / "0" / "a.npy", NEW[0], fingerprint=NEW[1]), monkeypatch
    )
    states = []
    for k in range(1, num_operations + 1):
        path = tmp_path / str(k) / "stories.npy"
        path.parent.mkdir()
        if replacing:
            write(path, OLD[0], fingerprint=OLD[1])
        seen = 0

        def fail(operation: str, *paths: Path, k: int = k) -> None:
            nonlocal seen
            seen += 1
            if seen == k or (disk_stays_full and seen > k):
                raise OSError(errno.ENOSPC, "injected")

        with monkeypatch.context() as patch:
            patch.setattr(filesystem, "before_operation", fail)
            try:
                write(path, NEW[0], fingerprint=NEW[1])
            except StorageError:
                pass
            else:
                assert not disk_stays_full or k == num_operations
        states.append(state_of(path))
        assert states[-1] in (before, NEW)
        write(path, NEW[0], fingerprint=NEW[1])
        assert state_of(path) == NEW
        assert names_in(path.parent) == ["stories.npy", "stories.npy.json"]
    assert before in states
    assert NEW in states


@pytest.mark.fault
@pytest.mark.parametrize("replacing", [False, True], ids=["created", "replaced"])
def test_a_kill_at_any_operation_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacing: bool
) -> None:
    before = OLD if replacing else None
    (tmp_path / "0").mkdir()
    num_operations = operations_of(
        lambda: write(tmp_path / "0" / "a.npy", NEW[0], fingerprint=NEW[1]), monkeypatch
    )
    states = []
    for k in range(1, num_operations + 1):
        path = tmp_path / str(k) / "stories.npy"
        path.parent.mkdir()
        if replacing:
            write(path, OLD[0], fingerprint=OLD[1])
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # about forking with threads, which the child does not use
            child = os.fork()
        if child == 0:
            seen = 0

            def kill(operation: str, *paths: Path, k: int = k) -> None:
                nonlocal seen
                seen += 1
                if seen == k:
                    os._exit(9)  # like SIGKILL: without handlers and cleanup

            filesystem.before_operation = kill
            try:
                write(path, NEW[0], fingerprint=NEW[1])
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 9
        states.append(state_of(path))
        assert states[-1] in (before, NEW)
    assert before in states
    assert NEW in states


def test_a_reader_during_a_replacement_reads_the_old_or_the_new_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "before_operation", lambda operation, *paths: seen.append(state_of(path)))
        write(path, NEW[0], fingerprint=NEW[1])
    assert set(map(str, seen)) == {str(OLD), str(NEW)}
