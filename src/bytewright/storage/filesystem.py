"""Single operations on disk: each announces itself to the test seam, and each failure becomes one sentence.

`durable` composes these into writes that are all or nothing; nothing else should need this module. Whatever
changes the disk calls `before_operation` first: outside tests that does nothing, and in tests it raises or
kills, so that every k-th operation can be the last.

Each of these operations takes an open folder (`Directory`) and a name in it, and follows no symbolic link: a
link in a folder that came from elsewhere cannot direct a write to another file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import io
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bytewright.errors import BytewrightError, FormatError, StorageError, UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NOT_THERE = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR)
"""What is wrong with the name that was given, not with the disk."""

SENTENCES = {
    errno.ENOENT: "no such file or folder",
    errno.EEXIST: "it exists already",
    errno.EISDIR: "it is a directory, not a file",
    errno.ENOTDIR: "a file stands where a folder was expected",
    errno.ENOTEMPTY: "a folder with files in it is in the way",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than the system allows",
    errno.ENAMETOOLONG: "the name is too long",
}

LONGEST_NAME_SHOWN = 500


def _nothing(operation: str, *paths: Path) -> None:
    """Stand in the seam outside tests."""


before_operation: Callable[..., None] = _nothing
"""Called with the name and paths of each operation that is about to change the disk."""


@contextlib.contextmanager
def explain(verb: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an `OSError` of the block into a `StorageError` that says what could not be done, and why.

    >>> with explain("read", "notes.txt"):
    ...     raise IsADirectoryError(errno.EISDIR, "Is a directory")
    Traceback (most recent call last):
    bytewright.errors.StorageError: cannot read notes.txt: it is a directory, not a file
    """
    try:
        yield
    except BytewrightError:
        raise
    except OSError as error:
        reason = SENTENCES.get(error.errno or 0) or error.strerror or str(error)
        name = os.fspath(path)
        if len(name) > LONGEST_NAME_SHOWN:  # no path, but a text given for one
            name = name[:LONGEST_NAME_SHOWN] + "…"
        explained = StorageError(f"cannot {verb} {name}: {reason}")
        explained.errno = error.errno
        if verb == "read" and error.errno in NOT_THERE:
            explained.exit_code = UsageError.exit_code
        raise explained from error


def read_bytes(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> bytes:
    """Read a regular file whole; one longer than `max_bytes` is refused before it is read."""
    with explain("read", path), open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            raise FormatError(f"{path}: has {size} bytes, more than the {max_bytes} such a file may have")
        return file.read()


def open_to_read(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a regular file to read; anything else (a pipe, a device, a folder) is refused without waiting."""
    return os.fdopen(open_regular(path, os.O_RDONLY), "rb")


def open_regular(path: str | os.PathLike[str], flags: int, *, dir_fd: int | None = None) -> int:
    """Open a file and return its descriptor; raise `StorageError` if it is not a regular file.

    O_NONBLOCK has no effect on regular files. Without it, opening a pipe waits for its other end.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=dir_fd)
    try:
        _refuse_irregular(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@dataclass(frozen=True)
class Directory:
    """An open folder. Operations on its names go through its descriptor and follow no symbolic link."""

    path: Path
    """Where the folder was found, for messages and for the test seam."""
    descriptor: int

    @classmethod
    def open(cls, path: Path) -> Directory:
        """Open a folder that the user named; links on the way to it are the user's own and are followed."""
        return cls(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY))

    def open_folder(self, name: str) -> Directory:
        """Open a folder in this one; a symbolic link is refused."""
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            return Directory(self.path / name, os.open(name, flags, dir_fd=self.descriptor))
        except OSError:
            self.refuse_link(name)
            raise

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of a name itself, not of what a link points to; None if it does not exist."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def refuse_link(self, name: str) -> None:
        """Raise if a name is a symbolic link."""
        status = self.status(name)
        if status is not None and stat.S_ISLNK(status.st_mode):
            raise StorageError(
                f"cannot write {self.path / name}: it is a symbolic link, and writing would change what it"
                " points to; remove the link, or name the file or folder behind it"
            )

    def refuse_special_target(self, name: str) -> None:
        """Raise unless a name is a regular file or does not exist."""
        self.refuse_link(name)
        status = self.status(name)
        if status is not None:
            _refuse_irregular(status.st_mode, self.path / name)

    def names(self) -> list[str]:
        """List the names in the folder."""
        return os.listdir(self.descriptor)

    def close(self) -> None:
        """Release the descriptor, and the lock if there is one."""
        os.close(self.descriptor)

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NewFile(io.FileIO):
    """A file that did not exist before, locked while it is open; its errors name `target`, what it is for."""

    def __init__(self, parent: Directory, name: str, target: Path) -> None:
        def opener(name: str, flags: int) -> int:
            return os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=parent.descriptor)

        self.path = parent.path / name
        self.target = target
        before_operation("create", self.path)
        super().__init__(name, "x", opener=opener)
        _try_lock(self.fileno())

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as much as the system takes at once; the buffer above comes back with the rest."""
        with explain("write", self.target):
            before_operation("write", self.path)
            return super().write(data)


@contextlib.contextmanager
def synced_stream(file: NewFile) -> Iterator[BinaryIO]:
    """Buffer writes to `file` and sync it at the end; after an error nothing more is written."""
    stream = io.BufferedWriter(file, buffer_size=2**20)
    try:
        yield stream
        stream.flush()
        _sync_file(file)
    except BaseException:
        file.close()  # before the buffer notices: what it still holds must not be written
        raise


def _sync_file(file: NewFile) -> None:
    with explain("write", file.target):
        before_operation("sync", file.path)
        _sync(file.fileno())


def open_in_place(parent: Directory, name: str, *, create: bool = True) -> io.FileIO:
    """Open a file for reading and appending where it stands, for logs and locks.

    A link is refused, and so is a file with a second name (a hard link), which would change with it.
    """
    path = parent.path / name
    before_operation("open", path)
    parent.refuse_special_target(name)
    is_new = parent.status(name) is None
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    file = io.FileIO(open_regular(name, flags, dir_fd=parent.descriptor), "a+")
    try:
        file.name = str(path)
        num_names = os.fstat(file.fileno()).st_nlink
        if num_names > 1:
            raise StorageError(
                f"cannot write {path}: the file has {num_names} names (hard links), and all of them"
                " would change; replace it by a copy"
            )
        if is_new:
            sync_folder(parent)
    except BaseException:
        file.close()
        raise
    return file


def refuse_removed(path: Path, descriptor: int | None = None) -> None:
    """Raise if a file that is in use does not exist any more, or is not the one that is open."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        missing = path if path.parent.is_dir() else path.parent
        raise StorageError(
            f"{missing} was removed while it was in use, so nothing more can be saved"
        ) from None
    if descriptor is not None and not os.path.samestat(found, os.fstat(descriptor)):
        raise StorageError(f"{path} was replaced while it was in use, so nothing more can be saved")


def make_folder(parent: Directory, name: str) -> None:
    """Make one folder."""
    before_operation("mkdir", parent.path / name)
    os.mkdir(name, dir_fd=parent.descriptor)


def rename(parent: Directory, source: str, target: str) -> None:
    """Give a file or folder another name, replacing a file or an empty folder of that name in one step."""
    before_operation("rename", parent.path / source, parent.path / target)
    os.rename(source, target, src_dir_fd=parent.descriptor, dst_dir_fd=parent.descriptor)


def exchange(parent: Directory, first: str, second: str) -> bool:
    """Swap two names in one step; say False, with nothing done, where system or file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, "renameatx_np" if sys.platform == "darwin" else "renameat2", None)
    swap = 2  # RENAME_SWAP of macOS, RENAME_EXCHANGE of Linux
    if function is None:
        return False
    before_operation("exchange", parent.path / first, parent.path / second)
    folder = parent.descriptor
    if function(folder, os.fsencode(first), folder, os.fsencode(second), swap) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM):
        return False  # EPERM: a sandbox that does not know the call; a plain rename will say if it is meant
    raise OSError(code, os.strerror(code), first, None, second)


def sync_folder(folder: Directory) -> None:
    """Make the names in a folder survive a power cut."""
    before_operation("sync", folder.path)
    try:
        _sync(folder.descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync names at once
            raise


def remove(parent: Directory, name: str) -> None:
    """Remove a file or a whole folder if it is there; what cannot be removed is left for the next sweep."""
    with contextlib.suppress(OSError):
        before_operation("remove", parent.path / name)
        status = parent.status(name)
        if status is not None and stat.S_ISDIR(status.st_mode):
            shutil.rmtree(name, ignore_errors=True, dir_fd=parent.descriptor)
        elif status is not None:
            os.unlink(name, dir_fd=parent.descriptor)


def lock(folder: Directory) -> None:
    """Lock a folder for as long as it is open."""
    _try_lock(folder.descriptor)


def is_abandoned(parent: Directory, name: str) -> bool:
    """Say whether the process that made a temporary file or folder has ended: then its lock is free."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(name, flags, dir_fd=parent.descriptor)
    except OSError:
        return False
    try:
        return _try_lock(descriptor)
    finally:
        os.close(descriptor)


def refuse_special_file(path: Path) -> None:
    """Raise unless `path` is a regular file or missing: a pipe would hang, a device would never end."""
    with contextlib.suppress(FileNotFoundError):
        _refuse_irregular(path.stat().st_mode, path)


def _refuse_irregular(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise StorageError(f"{os.fspath(path)} is not a regular file")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by another, or no locks on this file system: then nothing is swept, without harm
        return False
    return True


def _sync(descriptor: int) -> None:
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is None:
        os.fsync(descriptor)
    else:  # on macOS fsync leaves the data in the drive's cache
        fcntl.fcntl(descriptor, full_sync)
