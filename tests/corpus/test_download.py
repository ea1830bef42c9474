"""A download arrives whole and checked or not at all, whatever a real server on this machine does."""

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

from bytewright.corpus import public
from bytewright.corpus.download import DownloadError, download, matches, part_of
from bytewright.corpus.public import CORPORA, PublicCorpus, PublicFile, get_file
from bytewright.errors import BytewrightError, FormatError, StorageError, UsageError
from bytewright.storage.manifest import Entry
from conftest import HANG_SECONDS, Run

DATA = random.Random(5).randbytes(1_000_000)


def entry_of(data: bytes) -> Entry:
    return Entry(len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is on this machine."""
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


def test_a_file_arrives_with_progress_and_nothing_else_is_left(served: Served) -> None:
    told: list[tuple[str, int, int]] = []
    download(served.url, served.target, entry_of(DATA), progress=lambda *progress: told.append(progress))
    assert served.target.read_bytes() == DATA
    assert files_of(served.target) == ["file.txt"]
    assert [progress[1] for progress in told if progress[0] == "download"][-1] == len(DATA)
    assert told[-1] == ("check", len(DATA), len(DATA))
    assert matches(served.target, entry_of(DATA))
    assert not matches(served.target, Entry(len(DATA), "0" * 64))
    assert not matches(served.target, Entry(len(DATA) + 1, entry_of(DATA).sha256))


def test_a_connection_that_breaks_off_again_and_again_is_resumed_where_it_was(served: Served) -> None:
    served.behaviour.breaks_off_after = 300_000
    fetch(served)
    assert served.target.read_bytes() == DATA
    assert served.behaviour.asked == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]


def test_a_network_that_fails_in_mid_transfer_is_not_taken_for_the_disk(
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


def test_what_an_earlier_attempt_brought_is_not_asked_for_again(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(DATA[:400_000])
    fetch(served)
    assert served.target.read_bytes() == DATA
    assert served.behaviour.asked == ["bytes=400000-"]


def test_a_part_that_is_whole_already_is_only_checked(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(DATA)
    fetch(served)
    assert served.target.read_bytes() == DATA
    assert served.behaviour.asked == []


def test_a_server_that_knows_no_ranges_sends_all_of_it_again(served: Served) -> None:
    served.behaviour.knows_ranges = False
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


def test_a_server_that_is_busy_is_asked_again(served: Served) -> None:
    served.behaviour.refusals = [503, 429, 500]
    fetch(served)
    assert served.target.read_bytes() == DATA


def test_a_server_that_announces_no_length_is_believed_by_the_checksum(served: Served) -> None:
    served.behaviour.announces = False
    fetch(served)
    assert served.target.read_bytes() == DATA


def assert_refused(
    served: Served, *words: str, expected: Entry | None = None, kept: int | None = None
) -> None:
    """The download fails in one sentence, no target appears, and `kept` bytes of a part stay, or no part."""
    with pytest.raises(DownloadError) as caught:
        fetch(served, expected)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert not served.target.exists()
    part = part_of(served.target)
    assert (part.stat().st_size if part.exists() else None) == kept


def test_a_server_that_announces_more_than_it_ever_sends_is_given_up(served: Served) -> None:
    served.behaviour.data = DATA[:500_000]
    served.behaviour.claims = len(DATA)
    assert_refused(served, "sends nothing after 500000 of the 1000000 bytes", kept=0)


def test_a_server_that_is_down_is_given_up_after_some_attempts_with_the_way_to_go_on(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(DATA[:70])
    served.behaviour.refusals = [503] * 100
    assert_refused(served, "gave up after 6 attempts", "503", "70 of 1000000 bytes", "goes on", kept=70)
    assert len(served.behaviour.asked) == 6


def test_an_address_where_nobody_answers_is_one_sentence(tmp_path: Path) -> None:
    with serve(Behaviour(DATA)) as url:
        pass  # and gone
    served = Served(Behaviour(DATA), url, tmp_path / "file.txt")
    assert_refused(served, "cannot reach the server", kept=0)


def test_a_file_that_is_not_there_is_said_at_once(served: Served) -> None:
    served.behaviour.refusals = [404]
    assert_refused(served, "404 Not Found", kept=0)
    assert len(served.behaviour.asked) == 1


@pytest.mark.parametrize("claims", [len(DATA) - 1, len(DATA) + 1, 10**15])
def test_a_server_that_announces_another_length_is_refused_before_a_byte_is_taken(
    served: Served, claims: int
) -> None:
    served.behaviour.claims = claims
    assert_refused(served, f"has {claims} bytes there, but 1000000 were expected", kept=0)
    assert served.behaviour.asked == [None]


def test_wrong_bytes_are_found_by_their_checksum_and_removed(served: Served) -> None:
    served.behaviour.data = DATA[:-1] + bytes([DATA[-1] ^ 1])
    assert_refused(served, "SHA-256", "it was removed", kept=None)
    served.behaviour.data = DATA
    fetch(served)
    assert served.target.read_bytes() == DATA


def test_a_part_of_another_file_is_found_by_the_checksum_and_the_next_attempt_starts_anew(
    served: Served,
) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(b"x" * 1000)
    assert_refused(served, "SHA-256", kept=None)
    fetch(served)
    assert served.target.read_bytes() == DATA


def test_more_bytes_than_announced_beforehand_are_cut_off_and_refused(served: Served) -> None:
    served.behaviour.announces = False
    served.behaviour.data = DATA * 2
    assert_refused(served, "more than the 1000000 bytes", kept=0)


def test_a_range_that_starts_elsewhere_is_refused(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(DATA[:1000])
    served.behaviour.range_offset = 7
    assert_refused(served, "from 1000 on", "bytes 1007-", kept=1000)


def test_a_file_that_became_shorter_than_our_part_is_refused_and_the_part_goes(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(DATA[:600_000])
    served.behaviour.data = DATA[:500_000]
    assert_refused(served, "has 500000 bytes there, but 1000000 were expected", kept=0)


def test_a_part_longer_than_the_file_is_begun_anew(served: Served) -> None:
    served.target.parent.mkdir()
    part_of(served.target).write_bytes(DATA + b"x")
    fetch(served)
    assert served.target.read_bytes() == DATA
    assert served.behaviour.asked == [None]


def test_two_processes_do_not_write_one_file(served: Served) -> None:
    served.target.parent.mkdir()
    with part_of(served.target).open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="is being downloaded by another process"):
            fetch(served)


def test_a_disk_without_room_is_refused_before_anything_is_asked_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match="bytes are still to come, but the disk has only"):
        fetch(served, Entry(10**18, "0" * 64))
    assert served.behaviour.asked == []


@pytest.mark.fault
def test_a_killed_download_goes_on_where_it_was(served: Served) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path;"
        "from bytewright.corpus.download import download; from bytewright.storage.manifest import Entry\n"
        "def kill(what, done, total):\n"
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


def test_the_addresses_are_of_one_revision_and_the_sums_have_the_right_form() -> None:
    for corpus in CORPORA.values():
        for file in corpus.files:
            assert file.url.startswith("https://")
            assert "/resolve/main/" not in file.url
            for entry in (file.sent, file.text):
                assert len(bytes.fromhex(entry.sha256)) == 32
            assert file.is_packed or file.sent == file.text


def packed_file(url: str, packed: bytes) -> PublicFile:
    return PublicFile(url=f"{url}.gz", sent=entry_of(packed), text=entry_of(DATA))


def test_a_packed_file_is_unpacked_checked_and_the_packed_one_removed(served: Served) -> None:
    packed = gzip.compress(DATA)
    served.behaviour.data = packed
    folder = served.target.parent
    file = packed_file(served.url, packed)
    assert get_file(file, folder)
    assert served.target.read_bytes() == DATA
    assert files_of(served.target) == ["file.txt"]
    assert not get_file(file, folder), "it is there already"
    assert len(served.behaviour.asked) == 1


@pytest.mark.parametrize("packed", [b"not packed at all", gzip.compress(DATA)[:-5], gzip.compress(DATA[:-1])])
def test_a_packed_file_that_becomes_something_else_is_refused(served: Served, packed: bytes) -> None:
    served.behaviour.data = packed
    with pytest.raises(FormatError):
        get_file(packed_file(served.url, packed), served.target.parent)
    assert not served.target.exists()


def test_no_room_to_unpack_is_refused_and_the_packed_file_stays_for_the_next_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = gzip.compress(bytes(10_000))
    served.behaviour.data = packed
    file = PublicFile(url=f"{served.url}.gz", sent=entry_of(packed), text=Entry(10**18, "0" * 64))
    with pytest.raises(StorageError, match="the disk has only"):
        get_file(file, served.target.parent)
    assert files_of(served.target) == ["file.txt.gz"]
    with pytest.raises(BytewrightError):
        get_file(file, served.target.parent)
    assert len(served.behaviour.asked) == 1, "it was not downloaded again"


def test_the_command_brings_the_files_and_says_so(
    run: Run, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = PublicFile(url=served.url, sent=entry_of(DATA), text=entry_of(DATA))
    monkeypatch.setattr(public, "CORPORA", {"tinystories": PublicCorpus(about="tales", files=(file,))})
    outcome = run("corpus", "get", "tinystories", "--out", served.target.parent)
    assert outcome.code == 0
    assert outcome.out.startswith(f"Wrote {served.target}: 1.0 MB, SHA-256 {file.text.sha256[:12]}…")
    assert "is there already" in run("corpus", "get", "tinystories", "--out", served.target.parent).out
    shutil.rmtree(served.target.parent)
    served.behaviour.refusals = [404]
    outcome = run("corpus", "get", "tinystories", "--out", served.target.parent)
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("bytewright: http://127.0.0.1")
    assert run("corpus", "get", "tinystroies").code == 2
