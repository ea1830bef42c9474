"""The one door to disk: what is written here is afterwards exactly the old or exactly the new.

A file is written under a temporary name beside its target, synced, renamed over the target, and the parent
folder is synced. A folder is built whole under a temporary name, its files synced, `manifest.json` (size
and SHA-256 of each file) written last, and then it takes the target's name in one step. Readers check what
they read against the manifest. A failed write removes its temporary names; those of a killed process go
with the next write to the same target.

The model of the disk behind the promise: a rename is atomic; what was synced stays; what was not synced may
be lost, in any order. So the order is always *sync contents, rename, sync the parent, only then delete*:
when a call returns, the new state survives a power cut, and nothing that the old state needs is deleted
before the new state is safe.

Replacing a folder: a rename cannot replace a folder with files in it, so the kernel is asked to *exchange*
two names (Linux `renameat2`, macOS `renamex_np`): one step, before which the target is the old folder and
after which it is the new one. File systems that cannot (NFS, some FUSE) get two renames: the old folder
steps aside to `.NAME.bytewright-old`, then the new one steps in. Between the two, and only there, the
target is missing; `open_folder` then reads the folder that stepped aside, and the next write puts it back
first. There, one writer at a time per target is assumed. A folder is replaced only when its own manifest
lists every file in it, so nobody else's files are ever deleted.

This module knows nothing of what the files mean. It needs a POSIX system. The single operations, and the
seam through which tests fail or kill at each of them, are in `disk`; the form of the manifest is in
`manifest`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from bytewright import disk
from bytewright.disk import explain, read_bytes
from bytewright.errors import FormatError, StorageError, UsageError
from bytewright.manifest import (
    MANIFEST,
    Entry,
    Folder,
    dump_json,
    dump_manifest,
    is_plain_name,
    measure,
    parse_json,
    parse_manifest,
    read_json,
    read_text,
)

TEMPORARY_SUFFIX = ".bytewright-tmp"
DISPLACED_SUFFIX = ".bytewright-old"

__all__ = [
    "Entry",
    "Folder",
    "FolderWriter",
    "check_target",
    "explain",
    "open_folder",
    "parse_json",
    "read_bytes",
    "read_json",
    "read_text",
    "read_toml",
    "refuse_own_input",
    "remove_folder",
    "write_bytes",
    "write_folder",
    "write_json",
    "write_stream",
    "write_text",
]

StrPath = str | os.PathLike[str]


# Single files


def write_bytes(path: StrPath, data: bytes) -> None:
    """Write `data` to `path`, replacing what was there in one step."""
    with write_stream(path) as stream:
        stream.write(data)


def write_text(path: StrPath, text: str) -> None:
    """Write `text` as UTF-8, line ends as they are."""
    write_bytes(path, text.encode())


def write_json(path: StrPath, value: object) -> None:
    """Write `value` as JSON for people to read: indented, UTF-8, one line end at the end."""
    write_bytes(path, dump_json(value))


@contextlib.contextmanager
def write_stream(path: StrPath) -> Iterator[BinaryIO]:
    """Open a stream that becomes the file `path` when the block ends without an error; it may seek back.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with write_stream(f"{folder}/data.bin") as stream:
    ...         _ = stream.write(b"????payload")
    ...         _ = stream.seek(0)
    ...         _ = stream.write(b"head")
    ...     read_bytes(f"{folder}/data.bin")
    b'headpayload'
    """
    target = _resolve(path)
    with _parent_of(target):
        with explain("write", target):
            disk.refuse_special_file(target)
            _sweep(target)
            file = disk.NewFile(_temporary_name(target), target)
        try:
            with disk.synced_stream(file) as stream:
                yield stream
            with explain("write", target):
                disk.rename(file.path, target)
        except BaseException:
            disk.remove(file.path)
            raise
        finally:
            file.close()
        with explain("write", target):
            disk.sync_folder(target.parent)


# Folders


class FolderWriter:
    """Collects the files of a folder that `write_folder` is building; names are plain file names."""

    def __init__(self, folder: Path, target: Path) -> None:
        self._folder = folder
        self._target = target
        self._entries: dict[str, Entry] = {}

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write one file."""
        with self.write_stream(name) as stream:
            stream.write(data)

    def write_text(self, name: str, text: str) -> None:
        """Write one file as UTF-8."""
        self.write_bytes(name, text.encode())

    def write_json(self, name: str, value: object) -> None:
        """Write one file as indented JSON."""
        self.write_bytes(name, dump_json(value))

    @contextlib.contextmanager
    def write_stream(self, name: str) -> Iterator[BinaryIO]:
        """Open a stream that becomes one file of the folder; it may seek back."""
        if not is_plain_name(name) or name in self._entries:
            raise ValueError(f"{name!r} is not a plain file name, or was written already")
        with self._create(name) as stream:
            yield stream
        with explain("write", self._target):
            self._entries[name] = measure(self._folder / name)

    @contextlib.contextmanager
    def _create(self, name: str) -> Iterator[BinaryIO]:
        with explain("write", self._target):
            file = disk.NewFile(self._folder / name, self._target)
        try:
            with disk.synced_stream(file) as stream:
                yield stream
        except BaseException:
            disk.remove(file.path)
            raise
        finally:
            file.close()

    def _finish(self, about: Mapping[str, object]) -> None:
        with self._create(MANIFEST) as stream:
            stream.write(dump_manifest(about, self._entries))
        disk.sync_folder(self._folder)


@contextlib.contextmanager
def write_folder(
    path: StrPath, *, about: Mapping[str, object] | None = None, replace: bool = False
) -> Iterator[FolderWriter]:
    """Build a folder that appears whole at `path` when the block ends without an error, or not at all.

    `about` goes into the manifest: what the folder is, in the caller's words. An existing folder is replaced
    only if `replace` is set and its manifest lists every file in it; an empty one is always taken.
    """
    target = _resolve(path)
    with _parent_of(target):
        with explain("write", target):
            _sweep(target)
            _refuse_folder_target(target, replace=replace)
            temporary = _temporary_name(target)
            disk.make_folder(temporary)
            lock = disk.open_locked(temporary)
        try:
            writer = FolderWriter(temporary, target)
            yield writer
            with explain("write", target):
                writer._finish(about or {})
                _refuse_folder_target(target, replace=replace)  # again: the block may have taken hours
                _move_in(temporary, target)
        except BaseException:
            disk.remove(temporary)
            raise
        finally:
            os.close(lock)
        with explain("write", target):
            disk.sync_folder(target.parent)
        # Only now is the new folder safe; what it replaced stands under one of these names, if anywhere.
        for replaced in (temporary, _displaced_name(target)):
            disk.remove(replaced)


def open_folder(path: StrPath) -> Folder:
    """Read the manifest of a folder; its files are checked as they are read."""
    folder = _resolve(path)
    with explain("read", folder):
        if not folder.exists() and _displaced_name(folder).exists():
            folder = _displaced_name(folder)  # a writer was killed between its two renames
        if not folder.is_dir():
            raise OSError(errno.ENOTDIR if folder.exists() else errno.ENOENT, "no folder")
        if not (folder / MANIFEST).exists():
            raise FormatError(f"{folder}: has no {MANIFEST}, so it was not written by Bytewright")
    return Folder(folder, *parse_manifest(folder / MANIFEST))


def remove_folder(path: StrPath) -> None:
    """Remove a folder so that it is afterwards whole or gone, even when killed half way."""
    target = _resolve(path)
    with explain("remove", target):
        _sweep(target)
        temporary = _temporary_name(target)
        disk.rename(target, temporary)
        disk.sync_folder(target.parent)
    disk.remove(temporary)


def check_target(path: StrPath, *, folder: bool = False, replace: bool = False) -> None:
    """Raise now what a write to `path` would raise after hours of work: call it before the work starts.

    It is for commands, so it names the option to replace what is there as one types it.
    """
    target = _resolve(path)
    with explain("write", target):
        if folder:
            _refuse_folder_target(target, replace=replace, option="--replace")
        else:
            disk.refuse_special_file(target)
            if target.exists() and not replace:
                raise _exists_already(target, "--replace")
        ancestor = next(parent for parent in target.parents if parent.exists())
        probe = _temporary_name(ancestor / "probe")
        disk.NewFile(probe, target).close()
        disk.remove(probe)


def refuse_own_input(source: StrPath, *targets: StrPath) -> None:
    """Refuse to write to the file that is read, under whatever name."""
    for target in targets:
        if os.path.exists(source) and os.path.exists(target) and os.path.samefile(source, target):
            raise UsageError(f"{target} is the input itself; choose another name for what is written")


def read_toml(path: StrPath, *, max_bytes: int | None = None) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(read_text(path, max_bytes=max_bytes))
    except tomllib.TOMLDecodeError as error:
        raise FormatError(f"{path}: is not valid TOML ({error})") from None


# How the parts above do it


def _resolve(path: StrPath) -> Path:
    # Through symbolic links: a rename onto a link would replace the link, not what it points to.
    return Path(os.path.realpath(path))


def _temporary_name(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")


def _displaced_name(target: Path) -> Path:
    return target.with_name(f".{target.name}{DISPLACED_SUFFIX}")


@contextlib.contextmanager
def _parent_of(target: Path) -> Iterator[None]:
    """Make the missing folders above `target`, durably; remove them again if the block fails."""
    made: list[Path] = []
    try:
        with explain("write", target):
            missing = [folder for folder in target.parents if not folder.exists()]
            for folder in reversed(missing):
                with contextlib.suppress(FileExistsError):  # another process was faster
                    disk.make_folder(folder)
                    made.append(folder)
                disk.sync_folder(folder.parent)
        yield
    except BaseException:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _sweep(target: Path) -> None:
    """Clear away what killed writers left of `target`, and put back an old folder that had stepped aside."""
    displaced = _displaced_name(target)
    if displaced.exists():
        disk.rename(displaced, _temporary_name(target) if target.exists() else target)
    prefix = f".{target.name}."
    names = [name for name in os.listdir(target.parent) if name.startswith(prefix)]
    leftovers = [target.with_name(name) for name in names if name.endswith(TEMPORARY_SUFFIX)]
    if leftovers:  # one of them may be the old folder of an exchange that was not synced yet
        disk.sync_folder(target.parent)
    for path in leftovers:
        if disk.is_abandoned(path):
            disk.remove(path)


def _refuse_folder_target(target: Path, *, replace: bool, option: str = "replace=True") -> None:
    if not os.path.lexists(target):
        return
    found = {path.name for path in target.iterdir()}
    if not found:
        return
    if not replace:
        raise _exists_already(target, option)
    foreign = found - {MANIFEST, *open_folder(target).files}
    if foreign:
        raise StorageError(
            f"cannot replace {target}: it holds {min(foreign)!r}, which its manifest does not list,"
            " and which would be lost"
        )


def _exists_already(target: Path, option: str) -> UsageError:
    return UsageError(f"{target} exists already; choose another name, or give {option}")


def _move_in(temporary: Path, target: Path) -> None:
    """Give the finished folder its name; the old one, if any, is then `temporary` or the displaced name."""
    if not target.exists() or not any(target.iterdir()):
        disk.rename(temporary, target)
        return
    if disk.exchange(temporary, target):
        return
    displaced = _displaced_name(target)
    disk.rename(target, displaced)
    try:
        disk.sync_folder(target.parent)  # so that no power cut can keep the second rename and lose the first
        disk.rename(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.rename(displaced, target)
        raise
