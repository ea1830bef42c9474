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
two names (Linux `renameat2`, macOS `renameatx_np`): one step, before which the target is the old folder and
after which it is the new one. File systems that cannot (NFS, some FUSE) get two renames: the old folder
steps aside to `.NAME.bytewright-old`, then the new one steps in. Between the two, and only there, the
target is missing; `open_folder` then reads the folder that stepped aside, and the next write puts it back
first. There, one writer at a time per target is assumed. A folder is replaced only when its own manifest
lists every file in it, so nobody else's files are ever deleted.

Symbolic links are not followed: a target that is a link is refused. Links in the path to the target's folder
are the user's own and are followed, unless `within` names a folder that the target lies in, such as a run.
Then no name below `within` may be a link, and `within` itself must exist. Each folder below it is opened
relative to the one above, so a link that appears in the meantime is refused, too.

This module needs a POSIX system. The single operations, and the seam through which tests fail or kill at each
of them, are in `disk`; the form of the manifest is in `manifest`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from bytewright.errors import FormatError, StorageError, UsageError
from bytewright.storage import filesystem
from bytewright.storage.filesystem import explain, read_bytes
from bytewright.storage.manifest import (
    MANIFEST,
    Entry,
    Folder,
    check_depth,
    dump_json,
    dump_manifest,
    is_plain_name,
    measure,
    parse_json,
    parse_manifest,
    read_document,
    read_json,
    read_text,
    with_checksum,
    without_checksum,
)

TEMPORARY_SUFFIX = ".bytewright-tmp"
DISPLACED_SUFFIX = ".bytewright-old"
PROBE = "probe"
"""The file by which `check_target` finds out whether a folder takes files."""

__all__ = [
    "Entry",
    "Folder",
    "FolderWriter",
    "check_target",
    "explain",
    "open_folder",
    "open_in_place",
    "parse_json",
    "read_bytes",
    "read_document",
    "read_json",
    "read_text",
    "read_toml",
    "refuse_links",
    "refuse_own_input",
    "remove",
    "remove_folder",
    "remove_leftovers",
    "with_checksum",
    "without_checksum",
    "write_bytes",
    "write_document",
    "write_folder",
    "write_json",
    "write_stream",
    "write_text",
]

StrPath = str | os.PathLike[str]


# Single files


def write_bytes(path: StrPath, data: bytes, *, within: StrPath | None = None) -> None:
    """Write `data` to `path`, replacing what was there in one step."""
    with write_stream(path, within=within) as stream:
        stream.write(data)


def write_text(path: StrPath, text: str, *, within: StrPath | None = None) -> None:
    """Write `text` as UTF-8, line ends as they are."""
    write_bytes(path, text.encode(), within=within)


def write_json(path: StrPath, value: object, *, within: StrPath | None = None) -> None:
    """Write `value` as JSON for people to read: indented, UTF-8, one line end at the end."""
    write_bytes(path, dump_json(value), within=within)


def write_document(path: StrPath, fields: Mapping[str, object], *, within: StrPath | None = None) -> None:
    """Write fields as JSON with a checksum of them, by which `read_document` detects damage."""
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
            parent.refuse_special_target(name)
            _sweep(parent, name)
            temporary = _temporary_name(name)
            file = filesystem.NewFile(parent, temporary, target)
        try:
            with filesystem.synced_stream(file) as stream:
                yield stream
            with explain("write", target):
                filesystem.rename(parent, temporary, name)
        except BaseException:
            filesystem.remove(parent, temporary)
            raise
        finally:
            file.close()
        with explain("write", target):
            filesystem.sync_folder(parent)


def open_in_place(path: StrPath, *, within: StrPath | None = None, create: bool = True) -> io.FileIO:
    """Open a file for reading and appending where it stands: for logs, locks and downloads.

    Unlike all other writes, these are not all or nothing.
    """
    with _open_parent(path, within) as (parent, name), explain("write", parent.path / name):
        return filesystem.open_in_place(parent, name, create=create)


def remove(path: StrPath, *, within: StrPath | None = None) -> None:
    """Remove a file or a folder if it exists and can be removed; a link goes, what it points to stays."""
    with contextlib.suppress(StorageError), _open_parent(path, within, make=False) as (parent, name):
        filesystem.remove(parent, name)


# Folders


class FolderWriter:
    """Collects the files of a folder that `write_folder` is building; names are plain file names."""

    def __init__(self, folder: filesystem.Directory, target: Path) -> None:
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
            file = filesystem.NewFile(self._folder, name, self._target)
        try:
            with filesystem.synced_stream(file) as stream:
                yield stream
        except BaseException:
            filesystem.remove(self._folder, name)
            raise
        finally:
            file.close()

    def _finish(self, about: Mapping[str, object]) -> None:
        with self._create(MANIFEST) as stream:
            stream.write(dump_manifest(about, self._entries))
        filesystem.sync_folder(self._folder)


@contextlib.contextmanager
def write_folder(
    path: StrPath,
    *,
    about: Mapping[str, object] | None = None,
    replace: bool = False,
    within: StrPath | None = None,
) -> Iterator[FolderWriter]:
    """Build a folder that appears whole at `path` when the block ends without an error, or not at all.

    `about` goes into the manifest: what the folder is, in the caller's words. An existing folder is replaced
    only if `replace` is set and its manifest lists every file in it; an empty one is always replaced.
    """
    with _open_parent(path, within) as (parent, name):
        target = parent.path / name
        with explain("write", target):
            _sweep(parent, name)
            _refuse_folder_target(parent, name, replace=replace)
            temporary = _temporary_name(name)
            filesystem.make_folder(parent, temporary)
            folder = parent.open_folder(temporary)
            filesystem.lock(folder)
        try:
            writer = FolderWriter(folder, target)
            yield writer
            with explain("write", target):
                writer._finish(about or {})
                _refuse_folder_target(parent, name, replace=replace)  # again: the block may have taken hours
                _move_in(parent, temporary, name)
        except BaseException:
            filesystem.remove(parent, temporary)
            raise
        finally:
            folder.close()
        with explain("write", target):
            filesystem.sync_folder(parent)
        # Only now is the new folder safe; what it replaced stands under one of these names, if anywhere.
        for replaced in (temporary, _displaced_name(name)):
            filesystem.remove(parent, replaced)


def open_folder(path: StrPath) -> Folder:
    """Read the manifest of a folder; its files are checked as they are read."""
    folder = Path(os.path.realpath(path))
    displaced = folder.with_name(_displaced_name(folder.name))
    with explain("read", folder):
        if not folder.exists() and displaced.exists():
            folder = displaced  # a writer was killed between its two renames
        if not folder.is_dir():
            raise OSError(errno.ENOTDIR if folder.exists() else errno.ENOENT, "no folder")
        if not (folder / MANIFEST).exists():
            raise FormatError(f"{folder}: has no {MANIFEST}, so it was not written by Bytewright")
    return Folder(folder, *parse_manifest(folder / MANIFEST))


def remove_folder(path: StrPath, *, within: StrPath | None = None) -> None:
    """Remove a folder so that it is afterwards whole or gone, even when killed half way."""
    with _open_parent(path, within, make=False) as (parent, name), explain("remove", parent.path / name):
        parent.refuse_link(name)
        _sweep(parent, name)
        temporary = _temporary_name(name)
        filesystem.rename(parent, name, temporary)
        filesystem.sync_folder(parent)
        filesystem.remove(parent, temporary)


def remove_leftovers(path: StrPath, *, within: StrPath | None = None) -> None:
    """Remove every temporary name that killed writers left in a folder; a missing folder has none."""
    with contextlib.suppress(StorageError), _open_parent(Path(path, "*"), within, make=False) as (parent, _):
        _remove_abandoned(parent, [name for name in parent.names() if name.endswith(TEMPORARY_SUFFIX)])


def refuse_links(path: StrPath, *, within: StrPath) -> None:
    """Raise if `path`, or a folder between `within` and `path`, is a symbolic link."""
    try:
        with _open_parent(path, within, make=False) as (parent, name):
            parent.refuse_link(name)
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise


def check_target(path: StrPath, *, folder: bool = False, replace: bool = False) -> None:
    """Raise now what a write to `path` would raise after hours of work: call it before the work starts.

    It is for commands, so it names the option to replace what is there as one types it.
    """
    with explain("write", path):
        root, names, name = _locate(path, None)
    target = root.joinpath(*names, name)
    with explain("write", target), filesystem.Directory.open(root) as parent:
        if not names and folder:
            _refuse_folder_target(parent, name, replace=replace, option="--replace")
        elif not names:
            parent.refuse_special_target(name)
            if parent.status(name) is not None and not replace:
                raise _exists_already(target, "--replace")
        _sweep(parent, PROBE)
        probe = _temporary_name(PROBE)
        filesystem.NewFile(parent, probe, target).close()
        filesystem.remove(parent, probe)


def refuse_own_input(source: StrPath, *targets: StrPath) -> None:
    """Refuse to write to the file that is read, under whatever name."""
    for target in targets:
        if os.path.exists(source) and os.path.exists(target) and os.path.samefile(source, target):
            raise UsageError(f"{target} is the input itself; choose another name for what is written")


def read_toml(path: StrPath, *, max_bytes: int | None = None) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        fields = tomllib.loads(read_text(path, max_bytes=max_bytes))
        check_depth(fields)
        return fields
    except RecursionError:
        raise FormatError(f"{path}: is not valid TOML (nested too deeply)") from None
    except ValueError as error:  # also an integer of thousands of digits
        raise FormatError(f"{path}: is not valid TOML ({error})") from None


# How the parts above do it


def _locate(path: StrPath, within: StrPath | None) -> tuple[Path, list[str], str]:
    """Split a target: the folder that exists, the names of the folders below it, and its own name."""
    path = Path(path)
    if path.name in ("", ".."):
        path = Path(os.path.realpath(path))
    if within is not None:
        names = list(path.parent.relative_to(within).parts)
        if ".." in names:
            raise ValueError(f"{path} leaves {within}")
        root = Path(os.path.realpath(within))
        if not root.is_dir():
            error = StorageError(f"cannot write {path}: the folder {root} does not exist")
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
) -> Iterator[tuple[filesystem.Directory, str]]:
    """Open the folder that `path` lies in, and yield it with the last name of `path`.

    Missing folders are made, durably, and removed again if the block fails; or refused if not `make`.
    """
    with explain("write", path):
        root, names, name = _locate(path, within)
    target = root.joinpath(*names, name)
    made: list[tuple[filesystem.Directory, str]] = []
    with contextlib.ExitStack() as stack:
        try:
            with explain("write", target):
                parent = stack.enter_context(filesystem.Directory.open(root))
                for folder in names:
                    if make and parent.status(folder) is None:
                        with contextlib.suppress(FileExistsError):  # another process was faster
                            filesystem.make_folder(parent, folder)
                            made.append((parent, folder))
                        filesystem.sync_folder(parent)
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


def _sweep(parent: filesystem.Directory, name: str) -> None:
    """Remove what killed writers left of `name`, and put back an old folder that had stepped aside."""
    displaced = _displaced_name(name)
    if parent.status(displaced) is not None:
        filesystem.rename(parent, displaced, name if parent.status(name) is None else _temporary_name(name))
    found = [found for found in parent.names() if found.startswith(f".{name}.")]
    _remove_abandoned(parent, [found for found in found if found.endswith(TEMPORARY_SUFFIX)])


def _remove_abandoned(parent: filesystem.Directory, names: list[str]) -> None:
    if names:  # one of them may be the old folder of an exchange that was not synced yet
        filesystem.sync_folder(parent)
    for name in names:
        if filesystem.is_abandoned(parent, name):
            filesystem.remove(parent, name)


def _refuse_folder_target(
    parent: filesystem.Directory, name: str, *, replace: bool, option: str = "replace=True"
) -> None:
    found = _names_in(parent, name)
    if not found:
        return
    target = parent.path / name
    if not replace:
        raise _exists_already(target, option)
    foreign = found - {MANIFEST, *open_folder(target).files}
    if foreign:
        raise StorageError(
            f"cannot replace {target}: it holds {min(foreign)!r}, which its manifest does not list,"
            " and which would be lost"
        )


def _names_in(parent: filesystem.Directory, name: str) -> set[str]:
    """List what is in the folder `name`; nothing if it does not exist."""
    if parent.status(name) is None:
        return set()
    with parent.open_folder(name) as folder:
        return set(folder.names())


def _exists_already(target: Path, option: str) -> UsageError:
    return UsageError(f"{target} exists already; choose another name, or give {option}")


def _move_in(parent: filesystem.Directory, temporary: str, name: str) -> None:
    """Give the finished folder its name; the old one, if any, is then `temporary` or the displaced name."""
    if not _names_in(parent, name):
        filesystem.rename(parent, temporary, name)
        return
    if filesystem.exchange(parent, temporary, name):
        return
    displaced = _displaced_name(name)
    filesystem.rename(parent, name, displaced)
    try:
        filesystem.sync_folder(parent)  # so that no power cut can keep the second rename and lose the first
        filesystem.rename(parent, temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            filesystem.rename(parent, displaced, name)
        raise
