"""Single operations on disk: each announces itself to the test seam, and each failure becomes one sentence.

`durable` composes these into writes that are all or nothing; nothing else should need this module. Whatever
changes the disk calls `before_operation` first: outside tests that does nothing, and in tests it raises or
kills, so that every k-th operation can be the last.

This module knows nothing of temporary names, manifests or the order in which operations make sense.
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


def open_regular(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file and return its descriptor; raise `StorageError` if it is not a regular file.

    O_NONBLOCK has no effect on regular files. Without it, opening a pipe waits for its other end.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _refuse_irregular(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class NewFile(io.FileIO):
    """A file that did not exist before, locked while it is open; its errors name `target`, what it is for."""

    def __init__(self, path: Path, target: Path) -> None:
        before_operation("create", path)
        super().__init__(path, "x")
        self.path = path
        self.target = target
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


def make_folder(path: Path) -> None:
    """Make one folder whose parent exists."""
    before_operation("mkdir", path)
    os.mkdir(path)


def rename(source: Path, target: Path) -> None:
    """Give a file or folder another name, replacing a file or an empty folder of that name in one step."""
    before_operation("rename", source, target)
    os.rename(source, target)


def exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step; say False, with nothing done, where system or file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    arguments: tuple[int | bytes, ...]
    if sys.platform == "darwin":
        function, rename_swap = getattr(libc, "renamex_np", None), 2
        arguments = (os.fsencode(first), os.fsencode(second), rename_swap)
    else:
        function, at_fdcwd, rename_exchange = getattr(libc, "renameat2", None), -100, 2
        arguments = (at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), rename_exchange)
    if function is None:
        return False
    before_operation("exchange", first, second)
    if function(*arguments) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM):
        return False  # EPERM: a sandbox that does not know the call; a plain rename will say if it is meant
    raise OSError(code, os.strerror(code), str(first), None, str(second))


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    before_operation("sync", path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync names at once
            raise
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or a whole folder if it is there; what cannot be removed is left for the next sweep."""
    with contextlib.suppress(OSError):
        before_operation("remove", path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def open_locked(folder: Path) -> int:
    """Open a folder and lock it for as long as the descriptor is open."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    _try_lock(descriptor)
    return descriptor


def is_abandoned(path: Path) -> bool:
    """Say whether the process that made a temporary file or folder is gone: then its lock can be had."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
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
