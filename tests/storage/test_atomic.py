"""Atomic writes without interruptions; tests/faults covers killed processes and power cuts."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bytewright.errors import FormatError, StorageError, UsageError
from bytewright.storage import atomic, filesystem
from rejection import rejects


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    with atomic.write_folder(path, about={"kind": "test"}) as writer:
        writer.write_text("words.txt", "naïve\r\n")
        writer.write_json("numbers.json", {"pi": 3.14})
    return path


def names_in(path: Path) -> list[str]:
    return sorted(child.name for child in path.iterdir())


# Single files


def test_text_bytes_and_json_are_read_back_unchanged(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "text", "a\r\nb\n☃")
    atomic.write_bytes(tmp_path / "bytes", b"\x00\xff")
    atomic.write_json(tmp_path / "json", {"ключ": [1, None, "x"]})
    assert atomic.read_text(tmp_path / "text") == "a\r\nb\n☃"
    assert atomic.read_bytes(tmp_path / "bytes") == b"\x00\xff"
    assert atomic.read_json(tmp_path / "json") == {"ключ": [1, None, "x"]}
    assert names_in(tmp_path) == ["bytes", "json", "text"]


def test_an_error_inside_the_block_keeps_only_the_old_file(tmp_path: Path) -> None:
    def write_and_fail() -> None:
        with atomic.write_stream(tmp_path / "file") as stream:
            stream.write(b"new" * 1_000_000)
            raise KeyError

    atomic.write_bytes(tmp_path / "file", b"old")
    with pytest.raises(KeyError):
        write_and_fail()
    assert atomic.read_bytes(tmp_path / "file") == b"old"
    assert names_in(tmp_path) == ["file"]


def test_an_error_of_the_caller_is_not_reported_as_a_storage_error(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="input"),
        atomic.write_stream(tmp_path / "out"),
        open(tmp_path / "input"),
    ):
        pass
    assert names_in(tmp_path) == []


def test_missing_parent_folders_are_made_and_removed_on_failure(tmp_path: Path) -> None:
    atomic.write_bytes(tmp_path / "a/b/file", b"x")
    assert atomic.read_bytes(tmp_path / "a/b/file") == b"x"
    with pytest.raises(KeyError), atomic.write_stream(tmp_path / "c/d/file"):
        raise KeyError
    assert names_in(tmp_path) == ["a"]


def test_a_temporary_file_of_an_active_writer_is_not_removed(tmp_path: Path) -> None:
    with atomic.write_stream(tmp_path / "file") as slow:
        slow.write(b"slow")
        atomic.write_bytes(tmp_path / "file", b"fast")
        assert atomic.read_bytes(tmp_path / "file") == b"fast"
    assert atomic.read_bytes(tmp_path / "file") == b"slow"
    assert names_in(tmp_path) == ["file"]


def test_a_pipe_is_rejected_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with rejects(StorageError, path=tmp_path / "pipe") as caught:
        atomic.read_bytes(tmp_path / "pipe")
    assert str(caught.value) == f"{tmp_path / 'pipe'} is not a regular file"
    with rejects(StorageError, path=tmp_path / "pipe"):
        atomic.write_bytes(tmp_path / "pipe", b"x")


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("missing", "cannot read {}: no such file or folder"),
        ("", "cannot read {}: it is a directory, not a file"),
        ("file/below", "cannot read {}: a part of the path is a file, expected a folder"),
    ],
)
def test_a_file_that_cannot_be_read_is_explained_in_one_sentence(
    tmp_path: Path, path: str, sentence: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as caught:
        atomic.read_bytes(tmp_path / path)
    assert str(caught.value) == sentence.format(tmp_path / path)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "no space left on the disk"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_write_that_fails_is_explained_and_keeps_its_errno(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    def refuse(operation: str, *paths: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(filesystem, "before_operation", refuse)
    with rejects(StorageError, errno=code, path=tmp_path / "file") as caught:
        atomic.write_bytes(tmp_path / "file", b"x")
    assert words in str(caught.value)


def test_writing_over_a_directory_is_rejected(tmp_path: Path) -> None:
    with rejects(StorageError, errno=errno.EISDIR, path=tmp_path):
        atomic.write_bytes(tmp_path, b"x")


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 2}', "[NaN]", "[1e999", "[" * 200_000, "1" * 10_000, "", "\ufeff{}"],
    ids=["repeated-key", "nan", "cut-off", "deep", "huge-number", "empty", "byte-order-mark"],
)
def test_json_that_is_not_strict_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with rejects(FormatError, path=tmp_path / "x.json"):
        atomic.read_json(tmp_path / "x.json")


def test_a_file_over_the_limit_is_rejected_before_it_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "huge", "wb") as stream:
        stream.truncate(2**40)  # a hole: reading it would need a terabyte
    with pytest.raises(FormatError) as caught:
        atomic.read_bytes(tmp_path / "huge", max_bytes=1000)
    assert (caught.value.expected, caught.value.found) == (1000, 2**40)


# Folders


def test_a_folder_is_read_back_with_its_manifest(folder: Path) -> None:
    opened = atomic.open_folder(folder)
    assert opened.about == {"kind": "test"}
    assert set(opened.files) == {"words.txt", "numbers.json"}
    assert opened.read_text("words.txt") == "naïve\r\n"
    assert opened.read_json("numbers.json") == {"pi": 3.14}
    assert opened.check("words.txt").read_bytes() == "naïve\r\n".encode()
    assert names_in(folder.parent) == ["folder"]


def test_an_existing_folder_is_replaced_only_on_request(folder: Path) -> None:
    with pytest.raises(UsageError) as caught, atomic.write_folder(folder):
        pass
    assert str(caught.value) == f"{folder} exists already; choose another name, or set replace"
    assert (caught.value.path, caught.value.key) == (folder, "replace")
    with atomic.write_folder(folder, replace=True) as writer:
        writer.write_text("words.txt", "other")
    assert names_in(folder) == ["manifest.json", "words.txt"]
    assert atomic.open_folder(folder).read_text("words.txt") == "other"
    assert names_in(folder.parent) == ["folder"]


def test_a_folder_with_a_file_of_the_users_own_is_never_replaced(folder: Path) -> None:
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(StorageError) as caught, atomic.write_folder(folder, replace=True):
        pass
    assert (caught.value.path, caught.value.found) == (folder, "thesis.txt")
    assert names_in(folder) == ["manifest.json", "numbers.json", "thesis.txt", "words.txt"]


def test_a_file_that_appears_while_the_folder_is_being_built_is_not_lost(folder: Path) -> None:
    def write_for_hours() -> None:
        with atomic.write_folder(folder, replace=True) as writer:
            writer.write_text("words.txt", "other")
            (folder / "thesis.txt").write_text("years of work")

    with pytest.raises(StorageError) as caught:
        write_for_hours()
    assert caught.value.found == "thesis.txt"
    assert (folder / "thesis.txt").read_text() == "years of work"
    assert names_in(folder.parent) == ["folder"]


def test_a_folder_without_a_manifest_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with rejects(FormatError, path=tmp_path / "photos"):
        atomic.open_folder(tmp_path / "photos")
    with pytest.raises(FormatError), atomic.write_folder(tmp_path / "photos", replace=True):
        pass
    assert names_in(tmp_path / "photos") == ["cat.jpg"]


def test_a_changed_byte_is_detected(folder: Path) -> None:
    (folder / "words.txt").write_bytes("naïvE\r\n".encode())
    opened = atomic.open_folder(folder)
    for read in (opened.read_bytes, opened.check):
        with rejects(FormatError, path=folder / "words.txt") as caught:
            read("words.txt")
        assert "its SHA-256 is" in str(caught.value)


@pytest.mark.parametrize("data", [b"na", b"naive and some more bytes"], ids=["truncated", "grown"])
def test_a_changed_size_is_detected(folder: Path, data: bytes) -> None:
    (folder / "words.txt").write_bytes(data)
    opened = atomic.open_folder(folder)
    for read in (opened.read_bytes, opened.check):
        with pytest.raises(FormatError) as caught:
            read("words.txt")
        assert caught.value.path == folder / "words.txt"


def test_a_missing_file_is_detected(folder: Path) -> None:
    (folder / "words.txt").unlink()
    with rejects(StorageError, errno=errno.ENOENT, path=folder / "words.txt"):
        atomic.open_folder(folder).read_bytes("words.txt")
    with pytest.raises(FormatError) as caught:
        atomic.open_folder(folder).read_bytes("other")
    assert (caught.value.path, caught.value.key) == (folder / "manifest.json", "other")


def test_a_missing_folder_or_a_file_in_its_place_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with rejects(StorageError, errno=errno.ENOENT, path=tmp_path / "nothing"):
        atomic.open_folder(tmp_path / "nothing")
    with rejects(StorageError, errno=errno.ENOTDIR, path=tmp_path / "file") as caught:
        atomic.open_folder(tmp_path / "file")
    assert "a part of the path is a file, expected a folder" in str(caught.value)


def _set_name(manifest: dict[str, dict[str, object]], name: str) -> None:
    manifest["files"] = {name: manifest["files"]["words.txt"]}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda manifest: manifest.clear(),
        lambda manifest: manifest.update(format="bytewright folder 2"),
        lambda manifest: manifest.update(files=[]),
        lambda manifest: manifest.update(about=None),
        lambda manifest: manifest.update(checksums="f" * 64),
        lambda manifest: _set_name(manifest, "../../etc/passwd"),
        lambda manifest: _set_name(manifest, "/etc/passwd"),
        lambda manifest: _set_name(manifest, ".."),
        lambda manifest: _set_name(manifest, ""),
        lambda manifest: manifest["files"].update({"words.txt": 3}),
        lambda manifest: manifest["files"]["words.txt"].update(bytes=-1),
        lambda manifest: manifest["files"]["words.txt"].update(bytes=True),
        lambda manifest: manifest["files"]["words.txt"].update(bytes=1.5),
        lambda manifest: manifest["files"]["words.txt"].update(sha256="abc"),
        lambda manifest: manifest["files"]["words.txt"].pop("sha256"),
    ],
)
def test_a_hostile_manifest_is_rejected(
    folder: Path, spoil: Callable[[dict[str, dict[str, dict[str, object]]]], None]
) -> None:
    manifest = atomic.read_document(folder / "manifest.json")
    spoil(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with rejects(FormatError, path=folder / "manifest.json"):
        atomic.open_folder(folder)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "manifest.json", "nul\0"])
def test_a_name_that_leaves_the_folder_is_a_bug_in_the_caller(tmp_path: Path, name: str) -> None:
    with (
        pytest.raises(ValueError, match="not a plain file name"),
        atomic.write_folder(tmp_path / "f") as writer,
    ):
        writer.write_bytes(name, b"x")
    assert names_in(tmp_path) == []


def test_a_removed_folder_is_gone(folder: Path) -> None:
    atomic.remove_folder(folder)
    assert names_in(folder.parent) == []
    with rejects(StorageError, errno=errno.ENOENT, path=folder):
        atomic.remove_folder(folder)


# Checksums


def with_one_bit_changed(data: bytes) -> Iterator[bytes]:
    for place in range(len(data)):
        for bit in range(8):
            yield data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def test_a_document_with_one_changed_bit_is_rejected_or_reads_the_same(tmp_path: Path) -> None:
    fields = {"lr": 0.001, "naïve": [1, None, True, -0.0], "tables": {"10": 1e-30, "9": "x"}}
    path = tmp_path / "config.json"
    atomic.write_document(path, fields)
    sound = path.read_bytes()
    assert atomic.read_document(path) == fields
    num_refused = 0
    for damaged in with_one_bit_changed(sound):
        path.write_bytes(damaged)
        try:
            assert atomic.read_document(path) == fields, damaged
        except FormatError:
            num_refused += 1
    assert num_refused > 8 * len(sound) * 0.9


def test_a_manifest_with_one_changed_bit_is_rejected_or_reads_the_same(folder: Path) -> None:
    sound = atomic.open_folder(folder)
    path = folder / "manifest.json"
    for damaged in with_one_bit_changed(path.read_bytes()):
        path.write_bytes(damaged)
        with contextlib.suppress(FormatError):
            assert atomic.open_folder(folder) == sound, damaged


def test_a_document_may_be_reformatted_and_edited_without_its_checksum(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.json"
    atomic.write_document(path, {"seed": 1})
    edited = json.loads(path.read_text())
    path.write_text(json.dumps(edited))
    assert atomic.read_document(path) == {"seed": 1}
    edited["seed"] = 2
    path.write_text(json.dumps(edited))
    with rejects(FormatError, path=path, key="checksum"):
        atomic.read_document(path)
    del edited["checksum"]
    path.write_text(json.dumps(edited))
    assert atomic.read_document(path) == {"seed": 2}


@pytest.mark.parametrize("text", ["[1]", "3", '{"checksum": 3}', '{"checksum": "", "a": 1e400}'])
def test_invalid_documents_are_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with rejects(FormatError, path=tmp_path / "config.json"):
        atomic.read_document(tmp_path / "config.json")


@pytest.mark.parametrize("depth", [500, 900, 950, 990, 1000, 1100, 100_000])
def test_a_deeply_nested_document_is_a_format_error(tmp_path: Path, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    (tmp_path / "config.json").write_text(f'{{"checksum": "", "a": {nested}}}')
    with pytest.raises(FormatError):
        atomic.read_document(tmp_path / "config.json")


# Links


def test_only_a_folder_is_removed_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("years of work")
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "pipe"):
        with rejects(StorageError, errno=errno.ENOTDIR, path=tmp_path / name):
            atomic.remove_folder(tmp_path / name)
    assert names_in(tmp_path) == ["file", "pipe"]


def write_below(path: Path) -> None:
    atomic.write_bytes(path / "file", b"x", within=path.parent)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: atomic.write_bytes(path, b"x"),
        lambda path: atomic.write_folder(path).__enter__(),
        lambda path: atomic.write_folder(path, replace=True).__enter__(),
        atomic.remove_folder,
        atomic.open_to_append,
        atomic.check_target,
        lambda path: atomic.check_target(path, folder=True, replace=True),
        lambda path: atomic.check_no_links(path, within=path.parent),
        write_below,
        lambda path: atomic.write_folder(path / "sub", within=path.parent).__enter__(),
        lambda path: atomic.remove_folder(path / "sub", within=path.parent),
        lambda path: atomic.open_to_append(path / "file", within=path.parent),
    ],
)
@pytest.mark.parametrize("points_to", ["file", "folder", "nothing"])
def test_a_symbolic_link_is_rejected_and_its_target_is_unchanged(
    tmp_path: Path, write: Callable[[Path], object], points_to: str
) -> None:
    (tmp_path / "outside" / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "outside" / "file").write_text("years of work")
    (tmp_path / "given").mkdir()
    link = tmp_path / "given" / "link"
    link.symlink_to(f"../outside/{points_to}")
    before = sorted(tmp_path.rglob("*"))
    with rejects(StorageError, path=link) as caught:
        write(link)
    assert "it is a symbolic link" in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "outside" / "file").read_text() == "years of work"


def test_links_in_the_path_to_the_named_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    atomic.write_bytes(tmp_path / "runs" / "file", b"x")
    atomic.write_bytes(tmp_path / "runs" / "sub" / "file", b"y", within=tmp_path / "runs")
    assert (tmp_path / "disk" / "file").read_bytes() == b"x"
    assert (tmp_path / "disk" / "sub" / "file").read_bytes() == b"y"


def test_a_link_that_replaces_the_folder_during_a_write_does_not_redirect_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run" / "samples").mkdir(parents=True)

    def replace_by_link(operation: str, *paths: Path) -> None:
        if operation == "create":
            (tmp_path / "run" / "samples").rename(tmp_path / "moved")
            (tmp_path / "run" / "samples").symlink_to("../outside")

    monkeypatch.setattr(filesystem, "before_operation", replace_by_link)
    atomic.write_bytes(tmp_path / "run" / "samples" / "file", b"x", within=tmp_path / "run")
    assert names_in(tmp_path / "outside") == []
    assert (tmp_path / "moved" / "file").read_bytes() == b"x"


def test_a_file_with_hard_links_is_not_opened_to_append(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "log").hardlink_to(tmp_path / "thesis.txt")
    with rejects(StorageError, path=tmp_path / "log") as caught:
        atomic.open_to_append(tmp_path / "log")
    assert "the file has 2 names (hard links)" in str(caught.value)
    os.mkfifo(tmp_path / "pipe")
    with rejects(StorageError, path=tmp_path / "pipe"):
        atomic.open_to_append(tmp_path / "pipe")


def test_the_folder_of_within_is_not_made(tmp_path: Path) -> None:
    with rejects(StorageError, errno=errno.ENOENT, path=tmp_path / "run"):
        atomic.write_bytes(tmp_path / "run" / "samples" / "file", b"x", within=tmp_path / "run")
    assert names_in(tmp_path) == []
    with pytest.raises(ValueError, match="leaves"):
        atomic.write_bytes(tmp_path / "run" / ".." / "sub" / "file", b"x", within=tmp_path / "run")


# Leftovers of killed processes


def write_one_file(path: Path) -> None:
    with atomic.write_folder(path) as writer:
        writer.write_bytes("a", b"x")


def test_leftovers_are_removed_but_not_those_of_active_writers(
    tmp_path: Path,
) -> None:
    for name in (".a.01234567.bytewright-tmp", "..b.01234567.bytewright-tmp.89abcdef.bytewright-tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").touch()
    (tmp_path / ".git").touch()
    with atomic.write_stream(tmp_path / "file"):
        atomic.remove_leftovers(tmp_path)
        assert len(names_in(tmp_path)) == 2
    assert names_in(tmp_path) == [".git", "file"]
    atomic.remove_leftovers(tmp_path / "missing")


@pytest.mark.parametrize("write", [lambda path: atomic.write_bytes(path, b"x"), write_one_file])
def test_a_new_name_that_another_process_takes_for_abandoned_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], object]
) -> None:
    lock = fcntl.flock
    swept: list[list[str]] = []

    def sweep_first(descriptor: int, operation: int) -> None:
        if not swept:  # the name exists, but is not locked yet
            swept.append(names_in(tmp_path))
            atomic.remove_leftovers(tmp_path)
            assert names_in(tmp_path) == []
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    write(tmp_path / "target")
    assert len(swept[0]) == 1
    assert names_in(tmp_path) == ["target"]


def test_an_abandoned_name_is_locked_while_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned = tmp_path / ".a.01234567.bytewright-tmp"
    abandoned.touch()
    removed = []

    def try_lock(operation: str, *paths: Path) -> None:
        if operation == "remove":
            removed.append(paths)
            with abandoned.open() as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr(filesystem, "before_operation", try_lock)
    atomic.remove_leftovers(tmp_path)
    assert removed == [(abandoned,)]
    assert names_in(tmp_path) == []


def test_the_probe_of_a_killed_check_is_removed_by_the_next_one(tmp_path: Path) -> None:
    (tmp_path / ".probe.01234567.bytewright-tmp").touch()
    atomic.check_target(tmp_path / "new" / "file")
    assert names_in(tmp_path) == []


# Checks before the work starts


def test_checking_a_valid_target_changes_nothing(tmp_path: Path, folder: Path) -> None:
    atomic.check_target(tmp_path / "new")
    atomic.check_target(tmp_path / "new/below", folder=True)
    atomic.check_target(folder, folder=True, replace=True)
    assert names_in(tmp_path) == ["folder"]


def test_an_invalid_target_is_rejected(tmp_path: Path, folder: Path) -> None:
    atomic.write_bytes(tmp_path / "file", b"")
    for target, is_folder in [(folder, True), (tmp_path / "file", False)]:
        with pytest.raises(UsageError) as caught:
            atomic.check_target(target, folder=is_folder)
        assert (caught.value.path, caught.value.key) == (target, "replace")
    with rejects(StorageError, errno=errno.EISDIR, path=folder):
        atomic.check_target(folder, replace=True)
    with rejects(StorageError, errno=errno.ENOTDIR, path=tmp_path / "file"):
        atomic.check_target(tmp_path / "file", folder=True, replace=True)
    with rejects(StorageError, errno=errno.ENOTDIR, path=tmp_path / "file/below"):
        atomic.check_target(tmp_path / "file/below")


def test_a_target_in_a_file_system_without_writes_is_rejected() -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("needs a /proc, which takes no files even from root")
    with rejects(StorageError, path=Path("/proc/tokenizer")):
        atomic.check_target("/proc/tokenizer", folder=True)


def test_an_unwritable_folder_is_rejected(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    with rejects(StorageError, errno=errno.EACCES, path=tmp_path / "file"):
        atomic.check_target(tmp_path / "file")


# Numbers and text that JSON and TOML allow but Python cannot hold


@pytest.mark.parametrize(
    "number", ["1e400", "-1e400", "1" + 400 * "0", "-1" + 5000 * "0", "1" + 400 * "0" + ".5"]
)
def test_a_number_beyond_the_range_of_a_float_is_rejected(number: str) -> None:
    with rejects(FormatError, path=Path("state.json")) as caught:
        atomic.parse_json(f'{{"seconds": {number}}}', "state.json")
    assert "beyond the range of a float" in str(caught.value)


def test_numbers_within_the_range_of_a_float_are_read_exactly() -> None:
    assert atomic.parse_json("[1e308, 12345678901234567890, -0.1]", "x") == [
        1e308,
        12345678901234567890,
        -0.1,
    ]


def test_path_bytes_that_are_not_utf8_survive_json(tmp_path: Path) -> None:
    atomic.write_json(tmp_path / "x.json", {"path": "run\udcff", "text": "ä\n"})
    assert atomic.read_json(tmp_path / "x.json") == {"path": "run\udcff", "text": "ä\n"}


@pytest.mark.parametrize("value", [5000 * "[" + 5000 * "]", 5000 * "{a=" + "1" + 5000 * "}", 5000 * "9"])
def test_toml_that_python_cannot_represent_is_rejected(tmp_path: Path, value: str) -> None:
    (tmp_path / "x.toml").write_text(f"seed = {value}\n")
    with rejects(FormatError, path=tmp_path / "x.toml"):
        atomic.read_toml(tmp_path / "x.toml")
