"""Atomic writes: after a write, a file or folder is exactly the old or exactly the new one.

A file is written under a temporary name in the folder of its target, synced, and renamed over the target;
then the folder is synced. A folder is built under a temporary name: its files are synced, and `manifest.json`
(size and SHA-256 of each file) is written last. Then one rename gives it its final name. Readers check
contents against the manifest. A failed write removes its temporary names. Those of a killed process are
removed by the next write to the same target.

The guarantee assumes: renames are atomic; synced data stays; data that was not synced may be lost, in any
order. So the order is always *sync contents, rename, sync the parent, only then delete*. When a call
returns, the new state survives a power cut, and nothing that the old state needs is deleted earlier.

Replacing a folder: a rename cannot replace a folder that has files, so the kernel *exchanges* two names in
one step (Linux `renameat2`, macOS `renameatx_np`). On file systems without it (NFS, some FUSE) two renames
are used: the old folder becomes `.NAME.bytewright-old`, then the new one gets the name. The target is
missing only between the two; `open_folder` then reads the old folder, and the next write restores it first.
This fallback assumes one writer at a time per target. A folder is replaced only if its own manifest lists
every file in it, so files of others are never deleted.

Symbolic links are not followed: a target that is a link is an error. Links in the path to the target's
folder are followed, unless `within` names a folder that contains the target, such as a run. Then no name
below `within` may be a link, and `within` must exist. Each folder below it is opened relative to the one
above, so a link that appears meanwhile is rejected, too.

This module needs a POSIX system. The single operations, and the hook through which tests interrupt each of
them, are in `filesystem`. Functions that read are re-exported, so most callers need this module only.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from bytewright.errors import FormatError, OutputExistsError, StorageError, UsageError
from bytewright.storage.filesystem import Directory, NewFile, open_synced
from bytewright.storage.filesystem import StrPath as StrPath
from bytewright.storage.filesystem import explain as explain
from bytewright.storage.filesystem import read_bytes as read_bytes
from bytewright.storage.json_reader import dump_json
from bytewright.storage.json_reader import parse_json as parse_json
from bytewright.storage.json_reader import read_document as read_document
from bytewright.storage.json_reader import read_json as read_json
from bytewright.storage.json_reader import read_text as read_text
from bytewright.storage.json_reader import read_toml as read_toml
from bytewright.storage.json_reader import with_checksum as with_checksum
from bytewright.storage.json_reader import without_checksum as without_checksum
from bytewright.storage.manifest import MANIFEST, dump_manifest, is_plain_name, measure, read_manifest
from bytewright.storage.manifest import Entry as Entry
from bytewright.storage.manifest import Folder as Folder

TEMPORARY_SUFFIX = ".bytewright-tmp"
DISPLACED_SUFFIX = ".bytewright-old"
PROBE = "probe"
"""The name of the file that `check_target` creates to test whether a folder is writable."""


# Single files


def write_bytes(path: StrPath, data: bytes, *, within: StrPath | None = None) -> None:
    """Write `data` to `path`; an existing file is replaced atomically."""
    with write_stream(path, within=within) as stream:
        stream.write(data)


def write_text(path: StrPath, text: str, *, within: StrPath | None = None) -> None:
    """Write `text` as UTF-8; line ends are not converted."""
    write_bytes(path, text.encode(), within=within)


def write_json(path: StrPath, value: object, *, within: StrPath | None = None) -> None:
    """Write `value` as indented JSON."""
    write_bytes(path, dump_json(value), within=within)


def write_document(path: StrPath, fields: Mapping[str, object], *, within: StrPath | None = None) -> None:
    """Write fields as JSON with their checksum, which `read_document` verifies."""
    write_json(path, with_checksum(fields), within=within)


@contextlib.contextmanager
def write_stream(path: StrPath, *, within: StrPath | None = None) -> Iterator[BinaryIO]:
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
    with _open_parent(path, within) as (parent, name):
        target = parent.path / name
        with explain("write", target):
            parent.check_writable_file(name)
            _sweep(parent, name)
            temporary = _temporary_name(name)
            file = NewFile(parent, temporary, target)
        try:
            with open_synced(file) as stream:
                yield stream
            with explain("write", target):
                parent.rename(temporary, name)
        except BaseException:
            parent.remove(temporary)
            raise
        finally:
            file.close()
        with explain("write", target):
            parent.sync()


def open_to_append(path: StrPath, *, within: StrPath | None = None, create: bool = True) -> io.FileIO:
    """Open a file for reading and appending in place: for logs, locks and downloads.

    Unlike all other writes, these are not atomic.
    """
    with _open_parent(path, within) as (parent, name), explain("write", parent.path / name):
        return parent.open_to_append(name, create=create)


def remove_if_present(path: StrPath, *, within: StrPath | None = None) -> None:
    """Remove a file or folder if it exists and can be removed; of a link, only the link is removed."""
    with contextlib.suppress(StorageError), _open_parent(path, within, make=False) as (parent, name):
        parent.remove(name)


# Folders


class FolderWriter:
    """Writes the files of a folder that `write_folder` builds; names are plain file names."""

    def __init__(self, folder: Directory, target: Path) -> None:
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
            self._entries[name] = measure(self._folder.path / name)

    @contextlib.contextmanager
    def _create(self, name: str) -> Iterator[BinaryIO]:
        with explain("write", self._target):
            file = NewFile(self._folder, name, self._target)
        try:
            with open_synced(file) as stream:
                yield stream
        except BaseException:
            self._folder.remove(name)
            raise
        finally:
            file.close()

    def _finish(self, about: Mapping[str, object]) -> None:
        with self._create(MANIFEST) as stream:
            stream.write(dump_manifest(about, self._entries))
        self._folder.sync()


@contextlib.contextmanager
def write_folder(
    path: StrPath,
    *,
    about: Mapping[str, object] | None = None,
    replace: bool = False,
    within: StrPath | None = None,
) -> Iterator[FolderWriter]:
    """Build a folder that appears at `path`, complete, when the block ends without an error.

    `about` is stored in the manifest and describes the folder. An existing folder is replaced only if
    `replace` is set and its manifest lists every file in it; an empty folder is always replaced.
    """
    with _open_parent(path, within) as (parent, name):
        target = parent.path / name
        with explain("write", target):
            _sweep(parent, name)
            _check_replaceable(parent, name, replace=replace)
            temporary = _temporary_name(name)
            folder = parent.make_locked_folder(temporary)
        try:
            writer = FolderWriter(folder, target)
            yield writer
            with explain("write", target):
                writer._finish(about or {})
                _check_replaceable(parent, name, replace=replace)  # again: the block may have run for hours
                _move_in(parent, temporary, name)
        except BaseException:
            parent.remove(temporary)
            raise
        finally:
            folder.close()
        with explain("write", target):
            parent.sync()
        # The new folder is safe only now. The replaced folder has one of these names, if there was one.
        for replaced in (temporary, _displaced_name(name)):
            parent.remove(replaced)


def open_folder(path: StrPath) -> Folder:
    """Open a folder and read its manifest; each file is checked when it is read."""
    folder = Path(os.path.realpath(path))
    displaced = folder.with_name(_displaced_name(folder.name))
    with explain("read", folder):
        if not folder.exists() and displaced.exists():
            folder = displaced  # a writer was killed between its two renames
        if not folder.is_dir():
            raise OSError(errno.ENOTDIR if folder.exists() else errno.ENOENT, "not a folder")
        if not (folder / MANIFEST).exists():
            raise FormatError.at(folder, f"has no {MANIFEST}, so it was not written by Bytewright")
    return Folder(folder, *read_manifest(folder / MANIFEST))


def remove_folder(path: StrPath, *, within: StrPath | None = None) -> None:
    """Remove a folder; if the process is killed meanwhile, the folder is complete or gone."""
    with _open_parent(path, within, make=False) as (parent, name), explain("remove", parent.path / name):
        _sweep(parent, name)
        parent.open_folder(name).close()  # raises for a link, a file and a device
        temporary = _temporary_name(name)
        parent.rename(name, temporary)
        parent.sync()
        parent.remove(temporary)


def remove_leftovers(path: StrPath, *, within: StrPath | None = None) -> None:
    """Remove the temporary files and folders that killed writers left in a folder, if it exists."""
    with contextlib.suppress(StorageError), _open_parent(Path(path, "*"), within, make=False) as (parent, _):
        _remove_abandoned(parent, [name for name in parent.names() if name.endswith(TEMPORARY_SUFFIX)])


def check_no_links(path: StrPath, *, within: StrPath) -> None:
    """Raise if `path`, or a folder between `within` and `path`, is a symbolic link."""
    try:
        with _open_parent(path, within, make=False) as (parent, name):
            parent.check_not_link(name)
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise


def check_target(path: StrPath, *, folder: bool = False, replace: bool = False) -> None:
    """Raise what a write to `path` would raise: call it before hours of work whose result goes there."""
    with explain("write", path):
        root, names, name = _locate(path, None)
    target = root.joinpath(*names, name)
    with explain("write", target), Directory.open(root) as parent:
        if not names and folder:
            _check_replaceable(parent, name, replace=replace)
        elif not names:
            parent.check_writable_file(name)
            if parent.status(name) is not None and not replace:
                raise _exists_already(target)
        _sweep(parent, PROBE)
        probe = _temporary_name(PROBE)
        NewFile(parent, probe, target).close()
        parent.remove(probe)


def check_not_input(source: StrPath, *targets: StrPath) -> None:
    """Raise if a target is the source itself, possibly under another name."""
    for target in targets:
        if os.path.exists(source) and os.path.exists(target) and os.path.samefile(source, target):
            raise UsageError(f"{target} is the input itself; choose another name for the output", path=target)


# Paths, temporary names and replacement


def _locate(path: StrPath, within: StrPath | None) -> tuple[Path, list[str], str]:
    """Split a path into a folder that exists, the names of the folders below it, and the last name."""
    path = Path(path)
    if path.name in ("", ".."):
        path = Path(os.path.realpath(path))
    if within is not None:
        names = list(path.parent.relative_to(within).parts)
        if ".." in names:
            raise ValueError(f"{path} leaves {within}")
        root = Path(os.path.realpath(within))
        if not root.is_dir():
            error = StorageError(f"cannot write {path}: the folder {root} does not exist", path=root)
            error.errno = errno.ENOENT
            raise error
        return root, names, path.name
    root, names = Path(os.path.realpath(path.parent)), []
    while not root.exists():
        root, names = root.parent, [root.name, *names]
    return root, names, path.name


@contextlib.contextmanager
def _open_parent(
    path: StrPath, within: StrPath | None, *, make: bool = True
) -> Iterator[tuple[Directory, str]]:
    """Open the parent folder of `path`, and yield it with the last name of `path`.

    If `make` is set, missing folders are made and synced, and removed again if the block fails. Otherwise a
    missing folder is an error.
    """
    with explain("write", path):
        root, names, name = _locate(path, within)
    target = root.joinpath(*names, name)
    made: list[tuple[Directory, str]] = []
    with contextlib.ExitStack() as stack:
        try:
            with explain("write", target):
                parent = stack.enter_context(Directory.open(root))
                for folder in names:
                    if make and parent.status(folder) is None:
                        with contextlib.suppress(FileExistsError):  # another process was faster
                            parent.make_folder(folder)
                            made.append((parent, folder))
                        parent.sync()
                    parent = stack.enter_context(parent.open_folder(folder))
            yield parent, name
        except BaseException:
            for above, folder in reversed(made):
                with contextlib.suppress(OSError):
                    os.rmdir(folder, dir_fd=above.descriptor)
            raise


def _temporary_name(name: str) -> str:
    return f".{name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"


def _displaced_name(name: str) -> str:
    return f".{name}{DISPLACED_SUFFIX}"


def _sweep(parent: Directory, name: str) -> None:
    """Remove temporary names that killed writers left for `name`, and restore a displaced old folder."""
    displaced = _displaced_name(name)
    if parent.status(displaced) is not None:
        parent.rename(displaced, name if parent.status(name) is None else _temporary_name(name))
    found = [found for found in parent.names() if found.startswith(f".{name}.")]
    _remove_abandoned(parent, [found for found in found if found.endswith(TEMPORARY_SUFFIX)])


def _remove_abandoned(parent: Directory, names: list[str]) -> None:
    if names:  # one may be the old folder of an exchange that is not synced yet
        parent.sync()
    for name in names:
        parent.remove_if_abandoned(name)


def _check_replaceable(parent: Directory, name: str, *, replace: bool) -> None:
    """Raise unless the folder `name` is missing or empty, or may be replaced without losing foreign files."""
    found = _names_in(parent, name)
    if not found:
        return
    target = parent.path / name
    if not replace:
        raise _exists_already(target)
    foreign = found - {MANIFEST, *open_folder(target).files}
    if foreign:
        lost = min(foreign)
        message = f"cannot replace {target}: its file {lost!r} is not in the manifest and would be lost"
        raise StorageError(message, path=target, found=lost)


def _names_in(parent: Directory, name: str) -> set[str]:
    """Return the names in the folder `name`; none if it does not exist."""
    if parent.status(name) is None:
        return set()
    with parent.open_folder(name) as folder:
        return set(folder.names())


def _exists_already(target: Path) -> OutputExistsError:
    return OutputExistsError(f"{target} exists already", path=target)


def _move_in(parent: Directory, temporary: str, name: str) -> None:
    """Rename the finished folder to `name`; the old folder then has the temporary or the displaced name."""
    if not _names_in(parent, name):
        parent.rename(temporary, name)
        return
    if parent.exchange(temporary, name):
        return
    displaced = _displaced_name(name)
    parent.rename(name, displaced)
    try:
        parent.sync()  # or a power cut could keep the second rename and lose the first
        parent.rename(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            parent.rename(displaced, name)
        raise
