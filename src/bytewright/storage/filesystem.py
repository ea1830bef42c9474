"""Single disk operations: each calls the test hook first, and each failure becomes a one-sentence error.

`atomic` composes these operations into atomic writes. Every operation that changes the disk calls
`before_operation` first, which does nothing outside tests. Fault tests let it raise or kill the process, so
that every operation in turn is the last one.

The operations belong to an open folder (`Directory`) and do not follow symbolic links. A link in a folder
from an untrusted source therefore cannot redirect a write to another file.
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
from bytewright.formatting import format_bytes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

StrPath = str | os.PathLike[str]

WRONG_PATH = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR)
"""Error codes that mean that the given path is wrong, not that the disk failed."""

REASONS = {
    errno.ENOENT: "no such file or folder",
    errno.EEXIST: "it exists already",
    errno.EISDIR: "it is a directory, not a file",
    errno.ENOTDIR: "a part of the path is a file, expected a folder",
    errno.ENOTEMPTY: "the target is a folder that is not empty",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than the system allows",
    errno.ENAMETOOLONG: "the name is too long",
}

LONGEST_NAME_SHOWN = 500


def _do_nothing(operation: str, *paths: Path) -> None:
    """Do nothing: the hook outside tests."""


before_operation: Callable[..., None] = _do_nothing
"""The hook for tests: called with the name and the paths of each operation before it changes the disk."""


@contextlib.contextmanager
def explain(verb: str, path: StrPath) -> Iterator[None]:
    """Turn an `OSError` of the block into a `StorageError` that states the operation and the reason.

    A lack of memory, for example for mapping a file, becomes a `MemoryError`.

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
        if error.errno == errno.ENOMEM:
            raise MemoryError from error
        reason = REASONS.get(error.errno or 0) or error.strerror or str(error)
        name = os.fspath(path)
        if len(name) > LONGEST_NAME_SHOWN:  # probably a text that was passed as a path
            name = name[:LONGEST_NAME_SHOWN] + "…"
        explained = StorageError(f"cannot {verb} {name}: {reason}", path=path)
        explained.errno = error.errno
        if verb == "read" and error.errno in WRONG_PATH:
            explained.exit_code = UsageError.exit_code
        raise explained from error


def check_space(path: StrPath, num_bytes: int, what: str) -> None:
    """Raise if the disk of `path`, which need not exist yet, has no space for `num_bytes` of `what`."""
    place = Path(path).absolute()
    free = shutil.disk_usage(next(each for each in (place, *place.parents) if os.path.exists(each))).free
    if free < num_bytes:
        message = (
            f"the disk has no space for {what}: {format_bytes(num_bytes)} are needed, but only"
            f" {format_bytes(free)} are free; free space, or choose another disk"
        )
        raise StorageError.at(path, message, expected=num_bytes, found=free)


def read_bytes(path: StrPath, *, max_bytes: int | None = None) -> bytes:
    """Return the contents of a regular file; raise `FormatError` if it has more than `max_bytes`."""
    with explain("read", path), open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            message = f"{path}: has {size} bytes, more than the limit of {max_bytes} for such a file"
            raise FormatError(message, path=path, expected=max_bytes, found=size)
        return file.read()


def open_to_read(path: StrPath) -> io.BufferedReader:
    """Open a regular file for reading; raise at once for a pipe, a device or a folder."""
    return os.fdopen(open_regular(path, os.O_RDONLY), "rb")


def open_regular(path: StrPath, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a file and return its descriptor; raise `StorageError` if it is not a regular file.

    O_NONBLOCK has no effect on regular files. Without it, opening a pipe waits for its other end.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=dir_fd)
    try:
        _check_regular(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_regular_file(path: Path) -> None:
    """Raise unless `path` is a regular file or missing."""
    with contextlib.suppress(FileNotFoundError):
        _check_regular(path.stat().st_mode, path)


def check_still_present(path: Path, descriptor: int | None = None) -> None:
    """Raise if a file that is in use was removed, or replaced by another than the open one."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        missing = path if path.parent.is_dir() else path.parent
        message = f"{missing} was removed while it was in use, so nothing more can be saved"
        raise StorageError(message, path=missing) from None
    if descriptor is not None and not os.path.samestat(found, os.fstat(descriptor)):
        message = f"{path} was replaced while it was in use, so nothing more can be saved"
        raise StorageError(message, path=path)


@dataclass(frozen=True)
class Directory:
    """An open folder. Operations on its names go through its descriptor and do not follow symbolic links."""

    path: Path
    """The path under which the folder was opened, for messages and for the test hook."""
    descriptor: int

    @classmethod
    def open(cls, path: Path) -> Directory:
        """Open a folder that the user named; links in the path to it are followed."""
        return cls(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY))

    def open_folder(self, name: str) -> Directory:
        """Open a folder in this one; raise for a symbolic link."""
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            return Directory(self.path / name, os.open(name, flags, dir_fd=self.descriptor))
        except OSError:
            self.check_not_link(name)
            raise

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of a name itself, not of a link's target; None if the name does not exist."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def check_not_link(self, name: str) -> None:
        """Raise if a name is a symbolic link."""
        status = self.status(name)
        if status is not None and stat.S_ISLNK(status.st_mode):
            path = self.path / name
            remedy = "remove the link, or name the target itself"
            problem = f"it is a symbolic link, and writing would change its target; {remedy}"
            raise StorageError(f"cannot write {path}: {problem}", path=path)

    def check_writable_file(self, name: str) -> None:
        """Raise unless a name is a regular file or does not exist."""
        self.check_not_link(name)
        status = self.status(name)
        if status is not None:
            _check_regular(status.st_mode, self.path / name)

    def names(self) -> list[str]:
        """Return the names in the folder."""
        return os.listdir(self.descriptor)

    def make_folder(self, name: str) -> None:
        """Make one folder."""
        before_operation("mkdir", self.path / name)
        os.mkdir(name, dir_fd=self.descriptor)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or folder; a file or an empty folder at `target` is replaced atomically."""
        before_operation("rename", self.path / source, self.path / target)
        os.rename(source, target, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def exchange(self, first: str, second: str) -> bool:
        """Swap two names atomically; return False, with nothing done, if the system cannot do that."""
        libc = ctypes.CDLL(None, use_errno=True)
        function = getattr(libc, "renameatx_np" if sys.platform == "darwin" else "renameat2", None)
        swap = 2  # RENAME_SWAP of macOS, RENAME_EXCHANGE of Linux
        if function is None:
            return False
        before_operation("exchange", self.path / first, self.path / second)
        folder = self.descriptor
        if function(folder, os.fsencode(first), folder, os.fsencode(second), swap) == 0:
            return True
        code = ctypes.get_errno()
        if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM):
            return False  # EPERM: a sandbox without the call; if it is a real refusal, plain renames fail too
        raise OSError(code, os.strerror(code), first, None, second)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its contents, if it exists; ignore errors."""
        with contextlib.suppress(OSError):
            before_operation("remove", self.path / name)
            status = self.status(name)
            if status is not None and stat.S_ISDIR(status.st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=self.descriptor)
            elif status is not None:
                os.unlink(name, dir_fd=self.descriptor)

    def sync(self) -> None:
        """Make the names in the folder survive a power cut."""
        before_operation("sync", self.path)
        try:
            _sync(self.descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network file systems that sync at once
                raise

    def make_locked_folder(self, name: str) -> Directory:
        """Make a folder, and lock it until it is closed."""
        while True:
            self.make_folder(name)
            with contextlib.suppress(FileNotFoundError):  # `remove_if_abandoned` of another process
                folder = self.open_folder(name)
                if self.lock_new(name, folder.descriptor):
                    return folder
                folder.close()

    def lock_new(self, name: str, descriptor: int) -> bool:
        """Lock a new name; return False if `remove_if_abandoned` removed it before it was locked."""
        with contextlib.suppress(OSError):  # locks are not supported here: then nothing is cleaned up
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return self.status(name) is not None

    def remove_if_abandoned(self, name: str) -> None:
        """Remove a temporary file or folder if the process that made it has ended: its lock is free."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(name, flags, dir_fd=self.descriptor)
        except OSError:
            return
        try:
            with contextlib.suppress(OSError):  # held by another process, or not supported here
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = self.status(name)  # its owner may have made it again
                if found is not None and os.path.samestat(found, os.fstat(descriptor)):
                    self.remove(name)  # while it is locked: `lock_new` waits
        finally:
            os.close(descriptor)

    def open_to_append(self, name: str, *, create: bool) -> io.FileIO:
        """Open a file for reading and appending in place.

        Raise for a symbolic link, and for a file with a second name (a hard link), which would change too.
        """
        path = self.path / name
        before_operation("open", path)
        self.check_writable_file(name)
        is_new = self.status(name) is None
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        file = io.FileIO(open_regular(name, flags, dir_fd=self.descriptor), "a+")
        try:
            file.name = str(path)
            num_names = os.fstat(file.fileno()).st_nlink
            if num_names > 1:
                problem = f"the file has {num_names} names (hard links), and all of them would change"
                raise StorageError(f"cannot write {path}: {problem}; replace it by a copy", path=path)
            if is_new:
                self.sync()
        except BaseException:
            file.close()
            raise
        return file

    def close(self) -> None:
        """Release the descriptor, and the lock if there is one."""
        os.close(self.descriptor)

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NewFile(io.FileIO):
    """A new file, locked while it is open; its errors name `target`, its final path."""

    def __init__(self, parent: Directory, name: str, target: Path) -> None:
        def opener(name: str, flags: int) -> int:
            return os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=parent.descriptor)

        self.path = parent.path / name
        self.target = target
        before_operation("create", self.path)
        super().__init__(name, "x", opener=opener)
        while not parent.lock_new(name, self.fileno()):
            super().__init__(name, "x", opener=opener)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as many bytes as the system accepts in one call, and return their number."""
        with explain("write", self.target):
            before_operation("write", self.path)
            return super().write(data)

    def sync(self) -> None:
        """Make the contents survive a power cut."""
        with explain("write", self.target):
            before_operation("sync", self.path)
            _sync(self.fileno())


@contextlib.contextmanager
def open_synced(file: NewFile) -> Iterator[BinaryIO]:
    """Open a buffer for `file` that is flushed and synced at the end; after an error nothing is written."""
    stream = io.BufferedWriter(file, buffer_size=2**20)
    try:
        yield stream
        stream.flush()
        file.sync()
    except BaseException:
        file.close()  # before the buffer is closed, so that its contents are not written
        raise


def _check_regular(mode: int, path: StrPath) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise StorageError(f"{os.fspath(path)} is not a regular file", path=path)


def _sync(descriptor: int) -> None:
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is None:
        os.fsync(descriptor)
    else:  # on macOS fsync leaves the data in the drive's cache
        fcntl.fcntl(descriptor, full_sync)
