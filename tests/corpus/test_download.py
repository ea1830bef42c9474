"""A download is complete and verified or does not appear, however a real local server behaves."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import http.client
import os
import random
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from web_server import Behaviour, serve

from bytewright.corpus.download import (
    CORPORA,
    DownloadError,
    PublicCorpus,
    PublicFile,
    download,
    get_file,
    matches,
    part_of,
)
from bytewright.errors import BytewrightError, FormatError, StorageError, UsageError
from bytewright.storage.manifest import Entry
from conftest import HANG_SECONDS, RunCommand
from rejection import rejects

DATA = random.Random(5).randbytes(1_000_000)


def entry_of(data: bytes) -> Entry:
    return Entry(len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect to the local server directly."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


class Served(NamedTuple):
    behaviour: Behaviour
    url: str
    target: Path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    behaviour = Behaviour(DATA)
    with serve(behaviour) as url:
        yield Served(behaviour, url, tmp_path / "new" / "file.txt")


def fetch(served: Served, expected: Entry | None = None) -> None:
    download(served.url, served.target, expected or entry_of(DATA), retry_seconds=0.001)


def files_of(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def test_a_download_reports_progress_and_leaves_only_the_target(served: Served) -> None:
    reports: list[tuple[str, int, int]] = []
    download(served.url, served.target, entry_of(DATA), progress=lambda *report: reports.append(report))
    assert served.target.read_bytes() == DATA
    assert files_of(served.target) == ["file.txt"]
    assert [done for stage, done, _ in reports if stage == "download"][-1] == len(DATA)
    assert reports[-1] == ("check", len(DATA), len(DATA))
    assert matches(served.target, entry_of(DATA))
    assert not matches(served.target, Entry(len(DATA), "0" * 64))
    assert not matches(served.target, Entry(len(DATA) + 1, entry_of(DATA).sha256))


def test_a_connection_that_breaks_repeatedly_is_resumed(served: Served) -> None:
    served.behaviour.breaks_off_after = 300_000
    fetch(served)
    assert served.target.read_bytes() == DATA
    assert served.behaviour.asked == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]


def test_network_errors_during_a_transfer_are_retried(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError(errno.EHOSTUNREACH, "No route to host"), ssl.SSLError("bad record")])
    read = http.client.HTTPResponse.read1

    def read_or_fail(answer: http.client.HTTPResponse, size: int = -1) -> bytes:
        if (failure := next(failures, None)) is not None:
            raise failure
        return read(answer, size)

    monkeypatch.setattr(http.client.HTTPResponse, "read1", read_or_fail)
    fetch(served)
    assert served.target.read_bytes() == DATA
    assert len(served.behaviour.asked) == 3


def test_bytes_of_an_earlier_attempt_are_not_requested_again(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(DATA[:400_000])
    fetch(served)
    assert served.target.read_bytes() == DATA
    assert served.behaviour.asked == ["bytes=400000-"]


def test_a_complete_part_is_only_verified(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(DATA)
    fetch(served)
    assert served.target.read_bytes() == DATA
    assert served.behaviour.asked == []


def test_a_server_without_range_support_sends_the_whole_file(served: Served) -> None:
    served.behaviour.supports_ranges = False
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(b"x" * 400_000)
    fetch(served)
    assert served.target.read_bytes() == DATA


def test_ranges_survive_a_redirect(served: Served) -> None:
    served.behaviour.redirects = True
    served.behaviour.breaks_off_after = 600_000
    fetch(served)
    assert served.target.read_bytes() == DATA
    assert served.behaviour.asked == [None, "bytes=600000-"]


def test_a_request_to_a_busy_server_is_repeated(served: Served) -> None:
    served.behaviour.refusals = [503, 429, 500]
    fetch(served)
    assert served.target.read_bytes() == DATA


def test_without_an_announced_length_the_checksum_decides(served: Served) -> None:
    served.behaviour.announces = False
    fetch(served)
    assert served.target.read_bytes() == DATA


def assert_rejected(served: Served, *words: str, found: object = None, kept: int | None = None) -> None:
    """The download fails with one sentence, no target appears, and `kept` bytes (or no part) remain."""
    with pytest.raises(DownloadError) as caught:
        fetch(served)
    assert "\n" not in str(caught.value)
    assert served.url in str(caught.value)
    assert caught.value.found == found
    for word in words:
        assert word in str(caught.value)
    assert not served.target.exists()
    part = part_of(served.target)
    assert (part.stat().st_size if part.exists() else None) == kept


def test_a_server_that_sends_less_than_it_announces_is_an_error(served: Served) -> None:
    served.behaviour.data = DATA[:500_000]
    served.behaviour.claims = len(DATA)
    assert_rejected(served, "sends only 500000 of the expected 1000000 bytes", found=500_000, kept=0)


def test_a_download_fails_after_some_attempts_and_can_be_resumed(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(DATA[:70])
    served.behaviour.refusals = [503] * 100
    words = ("no data in 6 attempts", "503", "70 of 1000000 bytes", "run the command again to resume")
    assert_rejected(served, *words, found=70, kept=70)
    assert len(served.behaviour.asked) == 6


def test_an_unreachable_server_is_one_sentence(tmp_path: Path) -> None:
    with serve(Behaviour(DATA)) as url:
        pass  # the server has ended
    served = Served(Behaviour(DATA), url, tmp_path / "file.txt")
    assert_rejected(served, "cannot reach the server", found=0, kept=0)


def test_a_missing_file_is_reported_without_a_retry(served: Served) -> None:
    served.behaviour.refusals = [404]
    assert_rejected(served, "the server answered 404 Not Found", found=404, kept=0)
    assert len(served.behaviour.asked) == 1


@pytest.mark.parametrize("claims", [len(DATA) - 1, len(DATA) + 1, 10**15])
def test_another_announced_length_is_rejected_before_a_byte_is_written(served: Served, claims: int) -> None:
    served.behaviour.claims = claims
    assert_rejected(served, found=claims, kept=0)
    assert served.behaviour.asked == [None]


def test_a_wrong_checksum_removes_the_received_bytes(served: Served) -> None:
    wrong = DATA[:-1] + bytes([DATA[-1] ^ 1])
    served.behaviour.data = wrong
    assert_rejected(
        served, "expected SHA-256", "the file was removed", found=entry_of(wrong).sha256, kept=None
    )
    served.behaviour.data = DATA
    fetch(served)
    assert served.target.read_bytes() == DATA


def test_after_a_part_of_another_file_the_next_attempt_starts_from_the_beginning(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(b"x" * 1000)
    assert_rejected(served, found=entry_of(b"x" * 1000 + DATA[1000:]).sha256, kept=None)
    fetch(served)
    assert served.target.read_bytes() == DATA


def test_more_bytes_than_expected_are_rejected(served: Served) -> None:
    served.behaviour.announces = False
    served.behaviour.data = DATA * 2
    assert_rejected(served, "more than the expected 1000000 bytes", kept=0)


def test_a_range_with_another_start_is_rejected(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(DATA[:1000])
    served.behaviour.range_offset = 7
    assert_rejected(served, "expected the bytes from 1000 on", found="bytes 1007-999999/1000000", kept=1000)


def test_a_file_shorter_than_the_received_part_is_rejected_and_the_part_emptied(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(DATA[:600_000])
    served.behaviour.data = DATA[:500_000]
    assert_rejected(served, "expected 1000000 bytes, but the server's file has 500000", found=500_000, kept=0)


def test_a_part_longer_than_the_file_is_downloaded_again(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(DATA + b"x")
    fetch(served)
    assert served.target.read_bytes() == DATA
    assert served.behaviour.asked == [None]


def test_two_processes_do_not_write_one_file(served: Served) -> None:
    served.target.parent.mkdir()
    with part_of(served.target).open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with rejects(UsageError, path=served.target):
            fetch(served)


def test_too_little_disk_space_is_reported_before_the_first_request(served: Served) -> None:
    with rejects(StorageError, expected=10**18):
        fetch(served, Entry(10**18, "0" * 64))
    assert served.behaviour.asked == []


@pytest.mark.fault
def test_a_killed_download_is_resumed(served: Served) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path;"
        "from bytewright.corpus.download import download; from bytewright.storage.manifest import Entry\n"
        "def kill(stage, done, total):\n"
        "    if done > 400_000: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"download({served.url!r}, Path({str(served.target)!r}), Entry({len(DATA)}, ''), progress=kill)"
    )
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run([sys.executable, "-c", program], env=environment, timeout=HANG_SECONDS)
    assert done.returncode == -signal.SIGKILL
    arrived = part_of(served.target).stat().st_size
    assert 400_000 < arrived < len(DATA)
    fetch(served)
    assert served.target.read_bytes() == DATA
    assert served.behaviour.asked == [None, f"bytes={arrived}-"]


# The corpora


def test_addresses_name_a_revision_and_checksums_are_sha256() -> None:
    for corpus in CORPORA.values():
        for file in corpus.files:
            assert file.url.startswith("https://")
            assert "/resolve/main/" not in file.url
            for entry in (file.sent, file.text):
                assert len(bytes.fromhex(entry.sha256)) == 32
            assert file.is_packed or file.sent == file.text


def packed_file(url: str, packed: bytes) -> PublicFile:
    return PublicFile(url=f"{url}.gz", sent=entry_of(packed), text=entry_of(DATA))


def test_a_compressed_file_is_decompressed_verified_and_removed(served: Served) -> None:
    packed = gzip.compress(DATA)
    served.behaviour.data = packed
    folder = served.target.parent
    file = packed_file(served.url, packed)
    assert get_file(file, folder)
    assert served.target.read_bytes() == DATA
    assert files_of(served.target) == ["file.txt"]
    assert not get_file(file, folder), "a valid copy exists"
    assert len(served.behaviour.asked) == 1


@pytest.mark.parametrize("packed", [b"not compressed", gzip.compress(DATA)[:-5], gzip.compress(DATA[:-1])])
def test_a_compressed_file_with_unexpected_contents_is_rejected(served: Served, packed: bytes) -> None:
    served.behaviour.data = packed
    with pytest.raises(FormatError) as caught:
        get_file(packed_file(served.url, packed), served.target.parent)
    assert caught.value.path == served.target.parent / "file.txt.gz"
    assert not served.target.exists()


def test_without_space_to_decompress_the_downloaded_file_is_kept(served: Served) -> None:
    packed = gzip.compress(bytes(10_000))
    served.behaviour.data = packed
    file = PublicFile(url=f"{served.url}.gz", sent=entry_of(packed), text=Entry(10**18, "0" * 64))
    with pytest.raises(StorageError) as caught:
        get_file(file, served.target.parent)
    assert caught.value.path == served.target
    assert files_of(served.target) == ["file.txt.gz"]
    with pytest.raises(BytewrightError):
        get_file(file, served.target.parent)
    assert len(served.behaviour.asked) == 1, "it was not downloaded again"


def test_the_command_downloads_the_files(
    run: RunCommand, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = PublicFile(url=served.url, sent=entry_of(DATA), text=entry_of(DATA))
    monkeypatch.setitem(CORPORA, "tinystories", PublicCorpus(about="tales", files=(file,)))
    outcome = run("corpus", "get", "tinystories", "--out", served.target.parent)
    assert outcome.code == 0
    assert outcome.out.startswith(f"Wrote {served.target}: 1.0 MB, SHA-256 {file.text.sha256[:12]}…")
    assert "is already complete" in run("corpus", "get", "tinystories", "--out", served.target.parent).out
    shutil.rmtree(served.target.parent)
    served.behaviour.refusals = [404]
    outcome = run("corpus", "get", "tinystories", "--out", served.target.parent)
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("bytewright: http://127.0.0.1")
    assert run("corpus", "get", "tinystroies").code == 2
