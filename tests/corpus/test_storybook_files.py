"""Files of stories: the same bytes for any number of workers, complete stories, and reading them back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from bytewright.corpus import SEPARATOR
from bytewright.corpus.books import read_floor_of_text
from bytewright.corpus.storybook import (
    KnownStories,
    Storybook,
    check_story_file,
    read_stories,
    write_stories,
)
from bytewright.errors import BytewrightError, FormatError, StorageError, UsageError
from bytewright.executors import map_in_processes
from bytewright.storage.manifest import manifest_path_of
from conftest import HANG_SECONDS
from rejection import rejects

BOOK = Storybook.load()


def test_any_number_of_workers_writes_the_same_bytes(tmp_path: Path) -> None:
    written = [
        write_stories(tmp_path / f"{workers}.txt", 1_200_000, seed=4, num_workers=workers)
        for workers in (1, 2, 3)
    ]
    assert written[0] == written[1] == written[2]
    assert len({(tmp_path / f"{workers}.txt").read_bytes() for workers in (1, 2, 3)}) == 1


def test_a_file_contains_the_first_complete_stories_of_its_split_and_reports_their_bits(
    tmp_path: Path,
) -> None:
    path = tmp_path / "stories.txt"
    written = write_stories(path, 50_000, seed=9, split="validation")
    generated = list(islice(BOOK.stories(9, "validation"), written.num_stories + 1))
    assert path.read_text() == "".join(story.text + SEPARATOR for story in generated[:-1])
    assert (
        written.num_bytes
        == path.stat().st_size
        <= 50_000
        < written.num_bytes + len(generated[-1].text + SEPARATOR)
    )
    assert written.bits == pytest.approx(sum(story.bits for story in generated[:-1]))
    text_bytes = written.num_bytes - written.num_stories * len("<|endoftext|>")
    assert written.bits_per_byte == pytest.approx(written.bits / text_bytes)
    assert list(read_stories(path)) == [story.text for story in generated[:-1]]


def test_the_manifest_has_the_floor_until_the_file_changes(tmp_path: Path) -> None:
    path, other = tmp_path / "stories.txt", tmp_path / "other.txt"
    written = write_stories(path, 20_000, seed=9)
    assert read_floor_of_text(path) == pytest.approx(written.bits_per_byte)
    other.write_bytes(path.read_bytes())
    assert read_floor_of_text(other) is None
    manifest_path_of(other).write_text(json.dumps({"format": "of another program"}))
    assert read_floor_of_text(other) is None
    path.write_text(path.read_text() + "One more sentence.")
    assert read_floor_of_text(path) is None


def test_a_file_that_cannot_be_replaced_keeps_its_manifest(tmp_path: Path) -> None:
    path = tmp_path / "stories.txt"
    written = write_stories(path, 20_000, seed=9)

    def fail(done: int, total: int) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_stories(path, 10**9, seed=1, progress=fail)
    assert read_floor_of_text(path) == pytest.approx(written.bits_per_byte)


def test_a_larger_file_begins_with_the_smaller_one(tmp_path: Path) -> None:
    small = write_stories(tmp_path / "small.txt", 20_000, seed=1)
    write_stories(tmp_path / "large.txt", 60_000, seed=1)
    assert (tmp_path / "large.txt").read_bytes()[: small.num_bytes] == (tmp_path / "small.txt").read_bytes()


def test_progress_increases_and_never_exceeds_the_total(tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    write_stories(tmp_path / "a.txt", 2_000_000, seed=1, progress=lambda *each: reports.append(each))
    assert len(reports) > 2
    assert reports == sorted(reports)
    assert all(done <= total == 2_000_000 for done, total in reports)


def test_a_size_too_small_for_one_story_is_rejected(tmp_path: Path) -> None:
    with rejects(UsageError, key="size", found=100):
        write_stories(tmp_path / "a.txt", 100, seed=1)
    assert not list(tmp_path.iterdir())


def test_an_error_while_writing_leaves_no_file(tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        write_stories(tmp_path / "a.txt", 10**9, seed=1, num_workers=2, progress=fail)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("block", [1, 7, 10**6])
def test_stories_are_read_back_for_every_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr("bytewright.corpus.books.BYTES_PER_READ", block)
    path = tmp_path / "stories.txt"
    path.write_text("One.\n<|endoftext|>\nTwo,\nzwölf.<|endoftext|><|endoftext|>\nBroken o")
    assert list(read_stories(path)) == ["One.", "Two,\nzwölf.", "", "Broken o"]
    path.write_text("One.\n<|endoftext|>\n \n")
    assert list(read_stories(path)) == ["One."]


def test_a_file_that_is_not_text_is_rejected_with_the_position(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"One.\n<|endoftext|>\nTw\xff\xfe")
    with rejects(FormatError, path=path, expected="UTF-8") as caught:
        list(read_stories(path))
    assert "byte 21 " in str(caught.value)
    path.write_bytes(b"a" * 1_200_000)
    with rejects(FormatError, path=path, expected="<|endoftext|>"):
        list(read_stories(path))
    with rejects(StorageError, path=tmp_path / "nowhere"):
        list(read_stories(tmp_path / "nowhere"))


def test_check_file_finds_inconsistent_stories_and_copies_of_training_stories(tmp_path: Path) -> None:
    write_stories(tmp_path / "train.txt", 30_000, seed=1)
    generated = [story.text for story in islice(BOOK.stories(2), 4)]
    copied = next(read_stories(tmp_path / "train.txt"))
    (tmp_path / "samples.txt").write_text(
        "".join(text + SEPARATOR for text in [*generated, copied, generated[0][:-1]])
    )
    report = check_story_file(tmp_path / "samples.txt", training_path=tmp_path / "train.txt")
    assert [story.is_consistent for story in report.stories] == [True] * 5 + [False]
    assert [story.is_copy for story in report.stories] == [False] * 4 + [True, False]


def test_checking_with_two_workers_yields_the_same_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bytewright.corpus.books.BYTES_PER_READ", 10_000)  # use workers for a small file
    write_stories(tmp_path / "a.txt", 100_000, seed=1)
    reports: list[int] = []
    report = check_story_file(
        tmp_path / "a.txt", num_workers=2, progress=lambda done, total: reports.append(done)
    )
    assert report == check_story_file(tmp_path / "a.txt")
    assert report.consistent == 1
    assert reports[-1] == (tmp_path / "a.txt").stat().st_size


def test_known_stories_contains_exactly_the_given_texts() -> None:
    known = KnownStories(["One.", "Two."])
    assert "One." in known
    assert "One" not in known


def test_few_tasks_are_queued_and_results_are_in_order() -> None:
    given: list[int] = []

    def endless() -> Iterator[str]:
        for number in range(10**9):
            given.append(number)
            yield "x" * number

    with closing(map_in_processes(len, endless(), num_workers=2)) as results:
        assert list(islice(results, 50)) == list(range(50))
    assert len(given) < 60


def die(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.fault
def test_a_killed_worker_raises_an_error() -> None:
    with pytest.raises(BytewrightError):
        list(map_in_processes(die, range(20), num_workers=2))


def kill_other(pid_file: Path) -> None:
    """In the first worker, write its pid; in the other one, kill the first."""
    try:
        with open(pid_file, "x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        while not (pid := pid_file.read_text()):
            time.sleep(0.01)
        os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.5)


@pytest.mark.fault
def test_a_killed_worker_raises_an_error_although_another_one_lives(tmp_path: Path) -> None:
    with pytest.raises(BytewrightError):
        list(map_in_processes(kill_other, [tmp_path / "pid"] * 20, num_workers=2))


def get_signals(number: int) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    return number


@pytest.mark.fault
def test_signals_to_the_process_group_do_not_end_workers_while_they_send_results() -> None:
    assert list(map_in_processes(get_signals, range(3), num_workers=2)) == [0, 1, 2]


@pytest.mark.fault
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """The workers hold the write end of the parent's standard output, which is closed when they end."""
    program = (
        "from bytewright.corpus.storybook import files\n"
        "files.usable_cores = lambda: 2\n"
        "def report(done, total): print(done, flush=True)\n"
        "if __name__ == '__main__':\n"
        "    files.write_stories('a.txt', 10**12, seed=1, num_workers=2, progress=report)\n"
    )
    (tmp_path / "program.py").write_text(program)
    parent = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) > 0, "both workers have started"
    parent.kill()
    parent.communicate(timeout=HANG_SECONDS)
    assert parent.returncode == -signal.SIGKILL


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="no number"):
        list(map_in_processes(int, ["3", "no number"], num_workers=2))
