"""Files from the web, whole or not at all: with progress, resumed after a broken connection, and checked.

What has arrived stands in `NAME.part` beside the target, and stays there when the connection or this process
ends; the next attempt asks the server for the rest (HTTP Range). The target appears in one step, when size
and SHA-256 are as they were announced beforehand: so a server that lies, or sends something else, cannot put
a wrong file there. Only the standard library is needed, and its proxy settings are followed. This module does
not know which files there are; `public` does.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import io
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from bytewright.errors import BytewrightError, StorageError, UsageError
from bytewright.storage import atomic, filesystem
from bytewright.storage.manifest import Entry

PART_SUFFIX = ".part"
BLOCK = 2**18
TIMEOUT_SECONDS = 60.0
MOST_ATTEMPTS = 6
"""Attempts in a row that bring not a single byte, after which we give up."""
RETRY_SECONDS = 1.0
"""The wait after the first such attempt; it doubles with each."""

Progress = Callable[[str, int, int], object]
"""Hears what is done ("download", "check"), how many bytes are done, and how many there are."""


class DownloadError(BytewrightError, OSError):
    """A server refused, could not be reached, or sent something other than what was expected."""

    exit_code = 1


class _BrokenError(Exception):
    """The connection ended early, or the server asks to come back later: worth another attempt."""


def download(
    url: str,
    target: Path,
    expected: Entry,
    *,
    progress: Progress | None = None,
    retry_seconds: float = RETRY_SECONDS,
) -> None:
    """Bring the file at `url` to `target`, or go on bringing it; `expected` is its size and SHA-256."""
    report = progress or (lambda what, done, total: None)
    with _open_part(target) as part:
        require_space(target, expected.num_bytes - _size_of(part))
        _fetch(url, part, expected, report, retry_seconds)
        _check(url, part, target, expected, report)
        with filesystem.explain("write", target), filesystem.Directory.open(target.parent) as folder:
            os.fsync(part.fileno())
            filesystem.rename(folder, part_of(target).name, target.name)
            filesystem.sync_folder(folder)


def part_of(target: Path) -> Path:
    """Tell where the part of a file stands that has arrived: `stories.txt -> stories.txt.part`."""
    return target.with_name(target.name + PART_SUFFIX)


def matches(path: Path, expected: Entry, *, progress: Progress | None = None) -> bool:
    """Say whether `path` is a file of the expected size and SHA-256."""
    with filesystem.explain("read", path):
        if not path.is_file() or path.stat().st_size != expected.num_bytes:
            return False
        with filesystem.open_to_read(path) as file:
            return _digest(file, expected.num_bytes, progress) == expected.sha256


@contextlib.contextmanager
def _open_part(target: Path) -> Iterator[BinaryIO]:
    """Open what has arrived so far, and keep other processes out of it."""
    with (
        io.BufferedRandom(atomic.open_in_place(part_of(target))) as part,
        filesystem.explain("write", target),
    ):
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{target} is being downloaded by another process already") from None
        yield part


def _fetch(url: str, part: BinaryIO, expected: Entry, report: Progress, retry_seconds: float) -> None:
    """Ask for what is missing until nothing is, or until `MOST_ATTEMPTS` in a row brought nothing."""
    num_vain = 0
    while (before := _size_of(part)) != expected.num_bytes:
        try:
            _attempt(url, part, expected, report)
            reason = "the connection ended early"
        except _BrokenError as error:
            reason = str(error)
        if _size_of(part) == expected.num_bytes:
            return
        num_vain = 0 if _size_of(part) > before else num_vain + 1
        if num_vain == MOST_ATTEMPTS:
            raise DownloadError(
                f"{url}: gave up after {MOST_ATTEMPTS} attempts without a byte ({reason});"
                f" {_size_of(part)} of {expected.num_bytes} bytes are in {part.name},"
                " and the same command goes on from there"
            )
        if num_vain:
            time.sleep(retry_seconds * 2 ** (num_vain - 1))


def _attempt(url: str, part: BinaryIO, expected: Entry, report: Progress) -> None:
    """Ask once for what is missing, and write down what comes."""
    start = _size_of(part)
    if start > expected.num_bytes:
        start = _start_over(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            if start and answer.status != http.client.PARTIAL_CONTENT:  # it knows no ranges: all of it comes
                start = _start_over(part)
            _refuse_other_size(url, start, answer, expected)
            _receive(url, answer, part, expected, report)
    except BytewrightError:  # ours, of the disk or of what the server says; all others are the network's
        raise
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # the file there is shorter than ours
            raise _too_short(url, error.headers.get("Content-Range", ""), expected, part) from None
        if error.code in (408, 429) or error.code >= 500:
            raise _BrokenError(f"the server answered {error.code} {error.reason}") from None
        raise DownloadError(f"{url}: the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _BrokenError(f"cannot reach the server: {error.reason}") from None
    except (http.client.HTTPException, OSError) as error:
        raise _BrokenError(f"the connection broke: {error or type(error).__name__}") from None


def _refuse_other_size(url: str, start: int, answer: http.client.HTTPResponse, expected: Entry) -> None:
    """Check what the server says of the file before a byte of it is written."""
    total: int | None = None
    if answer.status == http.client.PARTIAL_CONTENT:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != start:
            raise DownloadError(
                f"{url}: was asked for the bytes from {start} on, but sends"
                f" {answer.headers.get('Content-Range', 'others')!r}"
            )
        total = None if found[2] == "*" else int(found[2])
    elif (announced := answer.headers.get("Content-Length", "")).isdigit():
        total = int(announced)
    if total is not None and total != expected.num_bytes:
        raise DownloadError(
            f"{url}: has {total} bytes there, but {expected.num_bytes} were expected; it is another file"
        )


def _receive(
    url: str, answer: http.client.HTTPResponse, part: BinaryIO, expected: Entry, report: Progress
) -> None:
    """Write down what comes, as it comes: what a broken connection brought is kept."""
    size = _size_of(part)
    report("download", size, expected.num_bytes)
    while block := answer.read1(BLOCK):
        size += len(block)
        if size > expected.num_bytes:
            _start_over(part)
            raise DownloadError(f"{url}: sends more than the {expected.num_bytes} bytes that were expected")
        with filesystem.explain("write", Path(part.name)):
            part.write(block)
            part.flush()
        report("download", size, expected.num_bytes)


def _check(url: str, part: BinaryIO, target: Path, expected: Entry, report: Progress) -> None:
    part.seek(0)
    found = _digest(part, expected.num_bytes, report)
    if found != expected.sha256:
        atomic.remove(part_of(target))
        raise DownloadError(
            f"{url}: what came has the SHA-256 {found[:12]}…, but {expected.sha256[:12]}… was expected;"
            " it was removed"
        )


def _digest(file: BinaryIO, total: int, report: Progress | None) -> str:
    digest, done = hashlib.sha256(), 0
    while block := file.read(4 * BLOCK):
        digest.update(block)
        done += len(block)
        if report is not None:
            report("check", done, total)
    return digest.hexdigest()


def _too_short(url: str, content_range: str, expected: Entry, part: BinaryIO) -> DownloadError:
    """Explain a server that has nothing beyond what we have, which is not all of it."""
    start = _size_of(part)
    _start_over(part)
    said = content_range.partition("/")[2]
    if said.isdigit() and int(said) != expected.num_bytes:
        return DownloadError(
            f"{url}: has {said} bytes there, but {expected.num_bytes} were expected; it is another file"
        )
    return DownloadError(f"{url}: sends nothing after {start} of the {expected.num_bytes} bytes expected")


def require_space(target: Path, num_bytes: int) -> None:
    """Raise unless the disk of `target` has room for so many bytes more."""
    free = shutil.disk_usage(target.parent).free
    if free < num_bytes:
        raise StorageError(
            f"cannot write {target}: {num_bytes} bytes are still to come, but the disk has only {free} left"
        )


def _size_of(part: BinaryIO) -> int:
    return os.fstat(part.fileno()).st_size


def _start_over(part: BinaryIO) -> int:
    with filesystem.explain("write", Path(part.name)):
        part.truncate(0)
    return 0
