"""Every bad input gives one clear sentence, a code that is not 0, and leaves nothing half-written."""

from __future__ import annotations

import gzip
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bytewright.tokenizer import Tokenizer
from conftest import HANG_SECONDS, Outcome, Run

PROGRAM = [sys.executable, "-m", "bytewright.cli.main"]


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, with its contents."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def assert_refused(outcome: Outcome, *words: str, code: int = 2) -> None:
    assert outcome.code == code, outcome
    assert outcome.err.startswith("bytewright: ")
    assert outcome.err.count("\n") == 1, f"more than one line: {outcome.err}"
    assert outcome.out == ""
    for word in words:
        assert word in outcome.err


@pytest.fixture
def place(tmp_path: Path, stories: Path, tokenizer: Path) -> Path:
    """A folder with good and bad inputs in it."""
    shutil.copy(stories, tmp_path / "stories.txt")
    shutil.copytree(tokenizer, tmp_path / "tok")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "empty-folder").mkdir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("years of work")
    (tmp_path / "taken.npy").write_text("something else")
    (tmp_path / "docs.jsonl").write_text('{"text": "owl"}')
    (tmp_path / "docs.jsonl.gz").write_bytes(gzip.compress(b'{"text": "owl"}'))
    return tmp_path


TRAIN = "tokenizer train {source} --out {out} --vocab-size {size}"
ENCODE = "tokenizer encode tok {source} --out {out}"
DECODE = "tokenizer decode tok {source} --out {out}"

CASES = [
    # missing file, directory, empty file: what is read
    (TRAIN.format(source="nowhere.txt", out="new", size=400), ["nowhere.txt", "does not exist"]),
    (TRAIN.format(source="empty.txt", out="new", size=400), ["empty.txt", "empty"]),
    (TRAIN.format(source="stories.txt nowhere.txt", out="new", size=400), ["nowhere.txt"]),
    (TRAIN.format(source="empty-folder", out="new", size=400), ["empty-folder", "no files"]),
    ("tokenizer train --out new --vocab-size 400", ["a text is missing"]),
    (ENCODE.format(source="nowhere.txt", out="new.npy"), ["nowhere.txt", "does not exist"]),
    (ENCODE.format(source="taken", out="new.npy"), ["taken", "directory"]),
    (ENCODE.format(source="empty.txt", out="new.npy"), ["empty.txt", "empty"]),
    ("tokenizer encode nowhere stories.txt --out new.npy", ["nowhere", "does not exist"]),
    ("tokenizer encode taken stories.txt --out new.npy", ["taken", "not written by Bytewright"]),
    ("tokenizer encode empty.txt --text x", ["empty.txt"]),
    ("tokenizer encode tok", ["--out", "--text"]),
    ("tokenizer encode tok stories.txt", ["--out"]),
    ("tokenizer encode tok stories.txt --text x", ["not both"]),
    (DECODE.format(source="nowhere.npy", out="new.txt"), ["nowhere.npy", "does not exist"]),
    (DECODE.format(source="taken", out="new.txt"), ["taken", "directory"]),
    (DECODE.format(source="empty.txt", out="new.txt"), ["empty.txt", "empty"]),
    (DECODE.format(source="stories.txt", out="new.txt"), ["stories.txt", "no .npy file"]),
    (TRAIN.format(source="stories.txt", out="new", size=10**30), ["1000", "too large"]),
    ("tokenizer decode tok", ["--ids"]),
    ("tokenizer decode tok --ids 99999", ["99999", "outside the vocabulary"]),
    ("tokenizer decode tok --ids -1", ["-1", "outside the vocabulary"]),
    ("tokenizer inspect nowhere", ["nowhere", "does not exist"]),
    ("tokenizer inspect empty-folder", ["empty-folder"]),
    ("tokenizer inspect tok nowhere.txt", ["nowhere.txt", "does not exist"]),
    ("tokenizer inspect tok taken", ["taken", "directory"]),
    ("tokenizer inspect tok empty.txt", ["empty.txt", "empty"]),
    ("tokenizer inspect tok --throughput", ["--throughput", "text"]),
    ("tokenizer inspect tok stories.txt --text x", ["not both"]),
    ("tokenizer compare tok nowhere", ["nowhere", "does not exist"]),
    ("tokenizer compare tok tok empty.txt", ["empty.txt", "empty"]),
    ("tokenizer compare tok tok taken", ["taken", "directory"]),
    ("tokenizer convert nowhere --to gpt2 --out new", ["nowhere", "does not exist"]),
    ("tokenizer convert tok --to huggingface --out new", ["new", ".json"]),
    ("tokenizer convert tok --to tiktoken --out new.json", ["new.json", ".json"]),
    # what is no plain text
    *(
        (command.format(source=source), [source, "a tokenizer reads plain text", "bytewright corpus text"])
        for source in ("docs.jsonl", "docs.jsonl.gz")
        for command in (
            "tokenizer train {source} --out new --vocab-size 400",
            "tokenizer encode tok {source} --out new.npy",
            "tokenizer inspect tok {source}",
            "tokenizer compare tok tok stories.txt {source}",
        )
    ),
    # what is asked for
    (TRAIN.format(source="stories.txt", out="new", size=256), ["256", "257"]),
    (TRAIN.format(source="stories.txt", out="new", size=-5), ["-5", "257"]),
    (TRAIN.format(source="stories.txt", out="new", size=400) + " --special-tokens a b a", ["'a'", "twice"]),
    (TRAIN.format(source="stories.txt", out="new", size=400) + " --min-count 0", ["--min-count", "0"]),
    (TRAIN.format(source="stories.txt", out="new", size=400) + " --pattern (", ["pattern"]),
    (TRAIN.format(source="stories.txt", out="new", size=400) + " --num-threads -1", ["--num-threads", "-1"]),
    # where it goes
    (TRAIN.format(source="stories.txt", out="tok", size=400), ["tok", "exists already", "set replace"]),
    (TRAIN.format(source="stories.txt", out="taken", size=400), ["taken", "exists already"]),
    (ENCODE.format(source="stories.txt", out="taken.npy"), ["taken.npy", "exists already"]),
    ("tokenizer convert tok --to bytewright --out taken", ["taken", "exists already"]),
    ("tokenizer convert tok --to huggingface --out taken.json --special-tokens x", ["special"]),
    ("demo --out taken", ["taken", "holds no demo"]),
    ("demo --out taken.npy", ["taken.npy", "is a file"]),
]

# The user could repair these, but the command was not wrong: something on this machine refused.
REFUSED_BY_THE_MACHINE = [
    (TRAIN.format(source="stories.txt", out="taken", size=400) + " --replace", ["taken"]),
    (TRAIN.format(source="stories.txt", out="stories.txt", size=400), ["stories.txt", "a file stands where"]),
    (TRAIN.format(source="stories.txt", out="stories.txt/below", size=400), ["stories.txt/below"]),
    (TRAIN.format(source="stories.txt", out="/proc/tokenizer", size=400), ["/proc/tokenizer"]),
    (ENCODE.format(source="stories.txt", out="taken") + " --replace", ["taken", "directory"]),
    (ENCODE.format(source="stories.txt", out="/proc/new.npy"), ["/proc/new.npy"]),
    (ENCODE.format(source="stories.txt", out="stories.txt/new.npy"), ["stories.txt/new.npy"]),
    ("tokenizer convert tok --to tiktoken --out /proc/ranks", ["/proc/ranks"]),
    ("demo --out /proc/demo", ["/proc/demo"]),
]


@pytest.mark.parametrize(("command", "words"), CASES, ids=[command for command, _ in CASES])
def test_a_wrong_command_or_input_is_refused_in_one_sentence_and_changes_nothing(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: list[str]
) -> None:
    monkeypatch.chdir(place)
    before = tree(place)
    outcome = run(*command.split())
    assert_refused(outcome, *words)
    assert tree(place) == before


@pytest.mark.parametrize(
    ("command", "words"), REFUSED_BY_THE_MACHINE, ids=[command for command, _ in REFUSED_BY_THE_MACHINE]
)
def test_a_target_that_cannot_be_written_is_refused_before_the_work_and_nothing_changes(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: list[str]
) -> None:
    if "/proc" in command and not Path("/proc/self").exists():
        pytest.skip("needs a /proc, which takes no files even from root")
    monkeypatch.chdir(place)
    before = tree(place)
    outcome = run(*command.split())
    assert outcome.code != 0
    assert_refused(outcome, *words, code=outcome.code)
    assert tree(place) == before


def test_a_tokenizer_that_was_tampered_with_is_refused(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    vocabulary = place / "tok" / "vocabulary.json"
    vocabulary.write_bytes(vocabulary.read_bytes().replace(b"gpt2", b"gpt4", 1))
    assert_refused(run("tokenizer", "inspect", "tok"), "vocabulary.json", "SHA-256")


def test_a_token_file_of_another_tokenizer_is_refused(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    assert run("tokenizer", "encode", "tok", "stories.txt", "--out", "s.npy").code == 0
    assert run("tokenizer", "train", "stories.txt", "--out", "other", "--vocab-size", "300").code == 0
    assert_refused(run("tokenizer", "decode", "other", "s.npy"), "s.npy", "was encoded with tokenizer")


# A full disk: once by a limit on the size of files, once for real

FULL_DISK_COMMANDS = [
    "tokenizer train stories.txt --out {full}/new --vocab-size 400",
    "tokenizer encode tok big.txt --out {full}/new.npy",
    "tokenizer decode tok big.npy --out {full}/new.txt",
    "tokenizer convert tok --to huggingface --out {full}/new.json",
    "tokenizer convert tok --to gpt2 --out {full}/new",
    "demo --out {full}/demo",
]


def names_of_files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def big_place(place: Path) -> Path:
    (place / "big.txt").write_bytes((place / "stories.txt").read_bytes() * 10)
    Tokenizer.load(place / "tok").encode_file(place / "big.txt", place / "big.npy")
    (place / "full").mkdir()
    return place


@pytest.fixture
def tiny_disk(big_place: Path) -> Iterator[Path]:
    """A real file system with room for two pages."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "bytewright-test", str(big_place / "full")]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a tiny file system here ({error})")
    yield big_place
    subprocess.run(["umount", str(big_place / "full")], check=True)


@pytest.mark.fault
@pytest.mark.parametrize("command", FULL_DISK_COMMANDS)
def test_a_full_disk_gives_one_sentence_and_leaves_nothing(tiny_disk: Path, command: str) -> None:
    done = subprocess.run(
        [*PROGRAM, *command.format(full="full").split()],
        cwd=tiny_disk,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("bytewright: cannot write")
    assert done.stderr.endswith("no space left on the disk\n")
    assert "Traceback" not in done.stderr
    assert names_of_files(tiny_disk / "full") <= {"plan.json"}


@pytest.mark.fault
@pytest.mark.parametrize("command", FULL_DISK_COMMANDS)
def test_a_limit_on_file_size_gives_one_sentence_and_leaves_nothing(big_place: Path, command: str) -> None:
    done = subprocess.run(
        [*PROGRAM, *command.format(full="full").split()],
        cwd=big_place,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("bytewright: cannot write")
    assert "larger than the system allows" in done.stderr
    assert "Traceback" not in done.stderr
    assert names_of_files(big_place / "full") <= {"plan.json"}
