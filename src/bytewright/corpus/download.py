"""Download public corpora: resumable, with known sizes and checksums, written atomically.

`NAME.part` next to the target holds the received bytes. It survives a broken connection and the end of this
process; the next attempt requests only the rest (HTTP Range). The target appears in one step after size and
SHA-256 match, so a wrong or incomplete file never replaces it. The proxy settings of urllib apply.

The addresses in `CORPORA` name one revision each, so the files cannot change. The checksums were published by
several independent users of these files and agree with each other; they were not measured for this project.
Each corpus has its own licence, named in `about`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import io
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bytewright.corpus.file_formats import read_blocks
from bytewright.errors import BytewrightError, FormatError, UsageError
from bytewright.storage import atomic, filesystem
from bytewright.storage.manifest import Entry

PART_SUFFIX = ".part"
BLOCK = 2**18
TIMEOUT_SECONDS = 60.0
MAX_ATTEMPTS = 6
"""The number of successive attempts without a byte after which a download fails."""
RETRY_SECONDS = 1.0
"""The wait after the first such attempt; each further one doubles it."""

DownloadProgress = Callable[[str, int, int], object]
"""Called with the stage ("download", "check", "unpack"), the bytes processed and the total bytes."""


HUB = "https://huggingface.co/datasets"
TINY_STORIES = f"{HUB}/roneneldan/TinyStories/resolve/f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
OPEN_WEB_TEXT = f"{HUB}/stanford-cs336/owt-sample/resolve/488afadefc224407de5645a3c8c53b64ed923537"


@dataclass(frozen=True, kw_only=True)
class PublicFile:
    """One file: its address, and size and checksum of the file as sent and of its decompressed text."""

    url: str
    sent: Entry
    text: Entry

    @property
    def is_packed(self) -> bool:
        """Whether the file is compressed."""
        return self.url.endswith(".gz")

    @property
    def name(self) -> str:
        """The name of the text file on disk."""
        return self.url.rpartition("/")[2].removesuffix(".gz")


@dataclass(frozen=True, kw_only=True)
class PublicCorpus:
    """The description and the files of a corpus."""

    about: str
    files: tuple[PublicFile, ...]


def _plain(url: str, num_bytes: int, sha256: str) -> PublicFile:
    return PublicFile(url=url, sent=Entry(num_bytes, sha256), text=Entry(num_bytes, sha256))


CORPORA: dict[str, PublicCorpus] = {
    "tinystories": PublicCorpus(
        about="TinyStories, version 2 (Eldan and Li, 2023): children's stories written by GPT-4;"
        " licence CDLA-Sharing-1.0",
        files=(
            _plain(
                f"{TINY_STORIES}/TinyStoriesV2-GPT4-valid.txt",
                22_502_601,
                "6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d",
            ),
            _plain(
                f"{TINY_STORIES}/TinyStoriesV2-GPT4-train.txt",
                2_227_753_162,
                "6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443",
            ),
        ),
    ),
    "openwebtext": PublicCorpus(
        about="a sample of OpenWebText (Gokaslan and Cohen, 2019): pages that people linked to; the texts"
        " belong to their authors",
        files=(
            PublicFile(
                url=f"{OPEN_WEB_TEXT}/owt_valid.txt.gz",
                sent=Entry(111_785_382, "bc73db5da2f19c360836b9c8a88094e13346ec83798c2f40060be39135768c80"),
                text=Entry(289_998_753, "2406f278e71829d273b315e9b403285baea7022b26a96d2728dd8b776ea40660"),
            ),
            PublicFile(
                url=f"{OPEN_WEB_TEXT}/owt_train.txt.gz",
                sent=Entry(4_591_240_837, "b19ae88cfbc4016b304c348522455fe38ebac48fffed955adcc7191a89e38ccf"),
                text=Entry(
                    11_920_511_059, "bbeb7f291a981ecfd5cf44b84d0f654b9e96c53dff99f2556b7d2cccaf8c1918"
                ),
            ),
        ),
    ),
}
"""The corpora by name. The validation file comes first: it is small, so errors appear early."""


class DownloadError(BytewrightError, OSError):
    """A server rejected a request, could not be reached, or sent an unexpected file."""


class _BrokenError(Exception):
    """The connection broke or the server is busy: the request can be repeated."""


def get_file(file: PublicFile, folder: Path, *, progress: DownloadProgress | None = None) -> bool:
    """Download one file into `folder` and decompress it; return False if a valid copy already exists."""
    target = folder / file.name
    if matches(target, file.text, progress=progress):
        return False
    if not file.is_packed:
        download(file.url, target, file.sent, progress=progress)
        return True
    packed = folder / f"{file.name}.gz"
    if not matches(packed, file.sent, progress=progress):
        download(file.url, packed, file.sent, progress=progress)
    _gunzip(packed, target, file.text, progress)
    atomic.remove_if_present(packed)
    return True


def _gunzip(packed: Path, target: Path, expected: Entry, progress: DownloadProgress | None) -> None:
    """Decompress a gzip file to `target`, which appears only if size and checksum match."""
    filesystem.check_space(target, expected.num_bytes, "the text")
    digest, done = hashlib.sha256(), 0
    with filesystem.open_to_read(packed) as source, atomic.write_stream(target) as out:
        for block in read_blocks(source, packed, ".gz"):
            digest.update(block)
            out.write(block)
            done += len(block)
            if progress is not None:
                progress("unpack", done, expected.num_bytes)
        if (found := Entry(done, digest.hexdigest())) != expected:
            message = (
                f"{packed}: decompresses to {found.num_bytes} bytes with SHA-256 {found.sha256[:12]}…;"
                f" expected {expected.num_bytes} bytes with {expected.sha256[:12]}…"
            )
            raise FormatError(message, path=packed, expected=expected, found=found)


def download(
    url: str,
    target: Path,
    expected: Entry,
    *,
    progress: DownloadProgress | None = None,
    retry_seconds: float = RETRY_SECONDS,
) -> None:
    """Download `url` to `target`, or resume the download; `expected` is the size and SHA-256 of the file."""
    report = progress or (lambda stage, done, total: None)
    with _open_part(target) as part:
        filesystem.check_space(target, expected.num_bytes - _size_of(part), "the rest of the file")
        _fetch(url, part, expected, report, retry_seconds)
        _check(url, part, target, expected, report)
        with filesystem.explain("write", target), filesystem.Directory.open(target.parent) as folder:
            os.fsync(part.fileno())
            folder.rename(part_of(target).name, target.name)
            folder.sync()


def part_of(target: Path) -> Path:
    """Return the path of the received part of a file: `stories.txt -> stories.txt.part`."""
    return target.with_name(target.name + PART_SUFFIX)


def matches(path: Path, expected: Entry, *, progress: DownloadProgress | None = None) -> bool:
    """Return whether `path` is a file of the expected size and SHA-256."""
    with filesystem.explain("read", path):
        if not path.is_file() or path.stat().st_size != expected.num_bytes:
            return False
        with filesystem.open_to_read(path) as file:
            return _digest(file, expected.num_bytes, progress) == expected.sha256


@contextlib.contextmanager
def _open_part(target: Path) -> Iterator[BinaryIO]:
    """Open the received part of a file, and lock it against other processes."""
    with (
        io.BufferedRandom(atomic.open_to_append(part_of(target))) as part,
        filesystem.explain("write", target),
    ):
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError.at(
                target, "another process is downloading this file; wait until it has finished"
            ) from None
        yield part


def _fetch(url: str, part: BinaryIO, expected: Entry, report: DownloadProgress, retry_seconds: float) -> None:
    """Request the missing bytes until the part is complete; fail after `MAX_ATTEMPTS` without progress."""
    num_failed = 0
    while (before := _size_of(part)) != expected.num_bytes:
        try:
            _attempt(url, part, expected, report)
            reason = "the connection ended early"
        except _BrokenError as error:
            reason = str(error)
        if _size_of(part) == expected.num_bytes:
            return
        num_failed = 0 if _size_of(part) > before else num_failed + 1
        if num_failed == MAX_ATTEMPTS:
            message = (
                f"{url}: no data in {MAX_ATTEMPTS} attempts ({reason}); {_size_of(part)} of"
                f" {expected.num_bytes} bytes are in {part.name}; run the command again to resume"
            )
            raise DownloadError(message, path=part.name, expected=expected.num_bytes, found=_size_of(part))
        if num_failed:
            time.sleep(retry_seconds * 2 ** (num_failed - 1))


def _attempt(url: str, part: BinaryIO, expected: Entry, report: DownloadProgress) -> None:
    """Send one request for the missing bytes, and append the answer to the part."""
    start = _size_of(part)
    if start > expected.num_bytes:
        start = _start_over(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            if start and answer.status != http.client.PARTIAL_CONTENT:  # no support for ranges: sends all
                start = _start_over(part)
            _check_announced_size(url, start, answer, expected)
            _receive(url, answer, part, expected, report)
    except BytewrightError:  # raised by this module; all other exceptions are network errors
        raise
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # the server's file is shorter
            raise _too_short(url, error.headers.get("Content-Range", ""), expected, part) from None
        if error.code in (408, 429) or error.code >= 500:
            raise _BrokenError(f"the server answered {error.code} {error.reason}") from None
        message = f"{url}: the server answered {error.code} {error.reason}"
        raise DownloadError(message, found=error.code) from None
    except urllib.error.URLError as error:
        raise _BrokenError(f"cannot reach the server: {error.reason}") from None
    except (http.client.HTTPException, OSError) as error:
        raise _BrokenError(f"the connection broke: {error or type(error).__name__}") from None


def _check_announced_size(url: str, start: int, answer: http.client.HTTPResponse, expected: Entry) -> None:
    """Raise if the answer's headers announce another range or another size."""
    total: int | None = None
    if answer.status == http.client.PARTIAL_CONTENT:
        content_range = answer.headers.get("Content-Range", "")
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", content_range)
        if match is None or int(match[1]) != start:
            message = f"{url}: expected the bytes from {start} on, but the server sends {content_range!r}"
            raise DownloadError(message, expected=start, found=content_range)
        total = None if match[2] == "*" else int(match[2])
    elif (announced := answer.headers.get("Content-Length", "")).isdigit():
        total = int(announced)
    if total is not None and total != expected.num_bytes:
        raise _other_size(url, expected, total)


def _other_size(url: str, expected: Entry, found: int) -> DownloadError:
    message = f"{url}: expected {expected.num_bytes} bytes, but the server's file has {found}"
    return DownloadError(message, expected=expected.num_bytes, found=found)


def _receive(
    url: str, answer: http.client.HTTPResponse, part: BinaryIO, expected: Entry, report: DownloadProgress
) -> None:
    """Append the answer to the part block by block, so that a broken connection loses no received bytes."""
    size = _size_of(part)
    report("download", size, expected.num_bytes)
    while block := answer.read1(BLOCK):
        size += len(block)
        if size > expected.num_bytes:
            _start_over(part)
            message = f"{url}: the server sends more than the expected {expected.num_bytes} bytes"
            raise DownloadError(message, expected=expected.num_bytes)
        with filesystem.explain("write", Path(part.name)):
            part.write(block)
            part.flush()
        report("download", size, expected.num_bytes)


def _check(url: str, part: BinaryIO, target: Path, expected: Entry, report: DownloadProgress) -> None:
    part.seek(0)
    found = _digest(part, expected.num_bytes, report)
    if found != expected.sha256:
        atomic.remove_if_present(part_of(target))
        problem = f"expected SHA-256 {expected.sha256[:12]}…, found {found[:12]}…; the file was removed"
        raise DownloadError(f"{url}: {problem}", expected=expected.sha256, found=found)


def _digest(file: BinaryIO, total: int, report: DownloadProgress | None) -> str:
    digest, done = hashlib.sha256(), 0
    while block := file.read(4 * BLOCK):
        digest.update(block)
        done += len(block)
        if report is not None:
            report("check", done, total)
    return digest.hexdigest()


def _too_short(url: str, content_range: str, expected: Entry, part: BinaryIO) -> DownloadError:
    """Return the error for a server whose file ends at or before the end of the incomplete part."""
    start = _size_of(part)
    _start_over(part)
    announced = content_range.partition("/")[2]
    if announced.isdigit() and int(announced) != expected.num_bytes:
        return _other_size(url, expected, int(announced))
    message = f"{url}: the server sends only {start} of the expected {expected.num_bytes} bytes"
    return DownloadError(message, expected=expected.num_bytes, found=start)


def _size_of(part: BinaryIO) -> int:
    return os.fstat(part.fileno()).st_size


def _start_over(part: BinaryIO) -> int:
    with filesystem.explain("write", Path(part.name)):
        part.truncate(0)
    return 0
