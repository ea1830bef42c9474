"""`corpus storybook` and `corpus check` on the command line."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

from bytewright.corpus import SEPARATOR
from bytewright.corpus.storybook import Storybook, read_stories, write_stories
from conftest import HANG_SECONDS, Outcome, RunCommand

PROGRAM = [sys.executable, "-m", "bytewright.cli.main"]


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Four stories: a good one, one with a wrong name, one that breaks off, and a copy."""
    good, wrong, broken, copied = (story.text for story in islice(Storybook.load().stories(3), 4))
    plot = Storybook.load().parse(wrong).plot
    assert plot is not None
    name = next(name for name in ("Mary", "Tom") if name != plot["name"])
    first, *rest = wrong.split("\n")
    texts = [good, "\n".join([first.replace(plot["name"], name), *rest]), broken[:-20], copied]
    (tmp_path / "samples.txt").write_text("".join(text + SEPARATOR for text in texts))
    (tmp_path / "train.txt").write_text(copied + SEPARATOR)
    return tmp_path / "samples.txt"


def test_storybook_writes_stories_and_prints_their_information_content(
    run: RunCommand, tmp_path: Path
) -> None:
    out = tmp_path / "stories.txt"
    outcome = run("corpus", "storybook", "--size", "30kB", "--seed", "5", "--out", out)
    assert outcome.code == 0
    written = write_stories(tmp_path / "again.txt", 30_000, seed=5)
    assert out.read_bytes() == (tmp_path / "again.txt").read_bytes()
    assert f"{written.num_stories} stories" in outcome.out
    assert f"{written.bits_per_byte:.4f} bits per byte" in outcome.out


def test_storybook_writes_the_other_split(run: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "valid.txt"
    assert run("corpus", "storybook", "--size", "9kB", "--split", "validation", "--out", out).code == 0
    generated = islice(Storybook.load().stories(1, "validation"), 20)
    assert list(read_stories(out)) == [story.text for story in generated][: len(list(read_stories(out)))]


def test_check_prints_the_shares_and_the_problems(run: RunCommand, samples: Path) -> None:
    outcome = run("corpus", "check", samples, "--train", samples.parent / "train.txt")
    assert outcome.code == 0
    assert "stories that are also consistent  50.0%" in outcome.out
    assert "copies of training stories        25.0%" in outcome.out
    assert "it contradicts itself about: " in outcome.out
    assert "story 2 leaves the grammar at sentence" in outcome.out
    assert "story 3 leaves the grammar at sentence" in outcome.out


def test_check_prints_everything_as_json(run: RunCommand, samples: Path) -> None:
    outcome = run("corpus", "check", samples, "--json")
    assert outcome.code == 0
    report = json.loads(outcome.out)
    assert (report["num_stories"], report["consistent"], report["copies"]) == (4, 0.5, None)
    assert [story["is_consistent"] for story in report["stories"]] == [True, False, False, True]
    assert report["stories"][0]["bits"] > 100
    assert report["stories"][1]["bits"] is None
    assert report["stories"][1]["leaves_at_character"] > 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["storybook", "--size", "many", "--out", "a.txt"], "--size 'many' is not a size"),
        (["storybook", "--size", "50XB", "--out", "a.txt"], "50XB"),
        (["storybook", "--size", "9" * 400, "--out", "a.txt"], "write a number and a unit"),
        (["storybook", "--size=-3MB", "--out", "a.txt"], "--size '-3MB' is not a size"),
        (["storybook", "--size", "10", "--out", "a.txt"], "size must be at least"),
        (
            ["storybook", "--size", "9kB", "--out", "a.txt", "--seed", "-1"],
            "--seed must be at least 0, but is -1",
        ),
        (
            ["storybook", "--size", "9kB", "--out", "a.txt", "--num-workers", "0"],
            "--num-workers must be at least 1",
        ),
        (["storybook", "--size", "9kB", "--out", "taken.txt"], "exists already"),
        (["check", "nowhere.txt"], "nowhere.txt does not exist"),
        (["check", "."], "is a directory"),
        (["check", "empty.txt"], "is empty"),
        (["check", "binary"], "byte 4 is not UTF-8"),
        (["check", "taken.txt", "--train", "nowhere.txt"], "nowhere.txt does not exist"),
        (["check", "taken.txt", "--num-workers", "0"], "--num-workers must be at least 1"),
    ],
)
def test_a_mistake_is_one_sentence_and_changes_nothing(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.txt").write_text("mine")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary").write_bytes(b"\x7fELF\xff\xfe")
    before = sorted(tmp_path.iterdir())
    outcome: Outcome = run("corpus", *words)
    assert outcome.code == 2
    assert outcome.out == ""
    assert complaint in outcome.err
    assert outcome.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "taken.txt").read_text() == "mine"


@pytest.mark.fault
def test_a_full_disk_is_one_sentence_and_leaves_no_incomplete_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "corpus", "storybook", "--size", "3MB", "--out", "a.txt"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000)),
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("bytewright: cannot write")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.fault
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_storybook_with_its_code_and_no_incomplete_files(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    """The whole process group gets it, as with Ctrl-C in a terminal; workers must not print tracebacks."""
    writing = subprocess.Popen(
        [*PROGRAM, "corpus", "storybook", "--size", "2GB", "--num-workers", "2", "--out", "a.txt"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert writing.stderr is not None
    assert "stories:" in writing.stderr.readline(), "progress comes once stories are being written"
    os.killpg(writing.pid, number)
    out, err = writing.communicate(timeout=HANG_SECONDS)
    assert writing.returncode == code, err
    assert err.splitlines()[-1] == f"bytewright: {'interrupted' if code == 130 else 'terminated'}"
    assert "Traceback" not in err
    assert out == ""
    deadline = time.monotonic() + HANG_SECONDS
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:  # the workers may end after the command
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())


def test_check_reports_a_file_without_an_end_token(run: RunCommand, tmp_path: Path, samples: Path) -> None:
    (tmp_path / "one.txt").write_text("Once upon a time.")
    outcome = run("corpus", "check", tmp_path / "one.txt")
    assert outcome.code == 0
    assert "has no <|endoftext|>" in outcome.err
    assert run("corpus", "check", samples).err == ""
