"""Invalid input is one sentence and a nonzero exit code, and leaves no incomplete files."""

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
from conftest import HANG_SECONDS, Outcome, RunCommand

PROGRAM = [sys.executable, "-m", "bytewright.cli.main"]


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, with its contents."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def assert_rejected(outcome: Outcome, *words: str, code: int = 2) -> None:
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
    # inputs that are missing, directories or empty
    (TRAIN.format(source="nowhere.txt", out="new", size=400), "nowhere.txt"),
    (TRAIN.format(source="empty.txt", out="new", size=400), "empty.txt"),
    (TRAIN.format(source="stories.txt nowhere.txt", out="new", size=400), "nowhere.txt"),
    (TRAIN.format(source="empty-folder", out="new", size=400), "empty-folder"),
    ("tokenizer train --out new --vocab-size 400", "FILE"),
    (ENCODE.format(source="nowhere.txt", out="new.npy"), "nowhere.txt"),
    (ENCODE.format(source="empty.txt", out="new.npy"), "empty.txt"),
    ("tokenizer encode nowhere stories.txt --out new.npy", "nowhere"),
    ("tokenizer encode taken stories.txt --out new.npy", "taken"),
    ("tokenizer encode empty.txt --text x", "empty.txt"),
    ("tokenizer encode tok", "--out"),
    ("tokenizer encode tok stories.txt", "--out"),
    ("tokenizer encode tok stories.txt --text x", "--text"),
    (DECODE.format(source="nowhere.npy", out="new.txt"), "nowhere.npy"),
    (DECODE.format(source="taken", out="new.txt"), "taken"),
    (DECODE.format(source="empty.txt", out="new.txt"), "empty.txt"),
    (DECODE.format(source="stories.txt", out="new.txt"), "stories.txt"),
    (TRAIN.format(source="stories.txt", out="new", size=10**30), "1000"),
    ("tokenizer decode tok", "--ids"),
    ("tokenizer decode tok --ids 99999", "99999"),
    ("tokenizer decode tok --ids -1", "-1"),
    ("tokenizer inspect nowhere", "nowhere"),
    ("tokenizer inspect empty-folder", "empty-folder"),
    ("tokenizer inspect tok nowhere.txt", "nowhere.txt"),
    ("tokenizer inspect tok taken", "taken"),
    ("tokenizer inspect tok empty.txt", "empty.txt"),
    ("tokenizer inspect tok --throughput", "--throughput"),
    ("tokenizer inspect tok stories.txt --text x", "--text"),
    ("tokenizer compare tok nowhere", "nowhere"),
    ("tokenizer compare tok tok empty.txt", "empty.txt"),
    ("tokenizer compare tok tok taken", "taken"),
    ("tokenizer convert nowhere --to gpt2 --out new", "nowhere"),
    ("tokenizer convert tok --to huggingface --out new", "new"),
    ("tokenizer convert tok --to tiktoken --out new.json", "new.json"),
    # files that are not plain text
    *(
        (command.format(source=source), source)
        for source in ("docs.jsonl", "docs.jsonl.gz")
        for command in (
            "tokenizer train {source} --out new --vocab-size 400",
            "tokenizer encode tok {source} --out new.npy",
            "tokenizer inspect tok {source}",
            "tokenizer compare tok tok stories.txt {source}",
        )
    ),
    # values of options
    (TRAIN.format(source="stories.txt", out="new", size=256), "256"),
    (TRAIN.format(source="stories.txt", out="new", size=-5), "-5"),
    (TRAIN.format(source="stories.txt", out="new", size=400) + " --special-tokens a b a", "'a'"),
    (TRAIN.format(source="stories.txt", out="new", size=400) + " --min-count 0", "--min-count"),
    (TRAIN.format(source="stories.txt", out="new", size=400) + " --pattern (", "pattern"),
    (TRAIN.format(source="stories.txt", out="new", size=400) + " --num-threads -1", "--num-threads"),
    # existing targets
    (TRAIN.format(source="stories.txt", out="tok", size=400), "tok"),
    (TRAIN.format(source="stories.txt", out="taken", size=400), "taken"),
    (ENCODE.format(source="stories.txt", out="taken.npy"), "taken.npy"),
    ("tokenizer convert tok --to bytewright --out taken", "taken"),
    ("tokenizer convert tok --to huggingface --out taken.json --special-tokens x", "special"),
    ("demo --out taken", "taken"),
    ("demo --out taken.npy", "taken.npy"),
]

# The command is right, but this machine does not allow the write.
UNWRITABLE = [
    (TRAIN.format(source="stories.txt", out="taken", size=400) + " --replace", "taken"),
    (TRAIN.format(source="stories.txt", out="stories.txt", size=400), "stories.txt"),
    (TRAIN.format(source="stories.txt", out="stories.txt/below", size=400), "stories.txt/below"),
    (TRAIN.format(source="stories.txt", out="/proc/tokenizer", size=400), "/proc/tokenizer"),
    (ENCODE.format(source="stories.txt", out="taken") + " --replace", "taken"),
    (ENCODE.format(source="stories.txt", out="/proc/new.npy"), "/proc/new.npy"),
    (ENCODE.format(source="stories.txt", out="stories.txt/new.npy"), "stories.txt/new.npy"),
    ("tokenizer convert tok --to tiktoken --out /proc/ranks", "/proc/ranks"),
    ("demo --out /proc/demo", "/proc/demo"),
]


@pytest.mark.parametrize(("command", "subject"), CASES, ids=[command for command, _ in CASES])
def test_a_wrong_command_or_input_is_one_sentence_and_changes_nothing(
    run: RunCommand, place: Path, monkeypatch: pytest.MonkeyPatch, command: str, subject: str
) -> None:
    monkeypatch.chdir(place)
    before = tree(place)
    outcome = run(*command.split())
    assert_rejected(outcome, subject)
    assert tree(place) == before


@pytest.mark.parametrize(("command", "subject"), UNWRITABLE, ids=[command for command, _ in UNWRITABLE])
def test_an_unwritable_target_is_rejected_before_the_work_and_changes_nothing(
    run: RunCommand, place: Path, monkeypatch: pytest.MonkeyPatch, command: str, subject: str
) -> None:
    if "/proc" in command and not Path("/proc/self").exists():
        pytest.skip("needs a /proc, where not even root can create files")
    monkeypatch.chdir(place)
    before = tree(place)
    outcome = run(*command.split())
    assert outcome.code != 0
    assert_rejected(outcome, subject, code=outcome.code)
    assert tree(place) == before


def test_a_changed_tokenizer_is_rejected(
    run: RunCommand, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    vocabulary = place / "tok" / "vocabulary.json"
    vocabulary.write_bytes(vocabulary.read_bytes().replace(b"gpt2", b"gpt4", 1))
    assert_rejected(run("tokenizer", "inspect", "tok"), "vocabulary.json")


def test_a_token_file_of_another_tokenizer_is_rejected(
    run: RunCommand, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    assert run("tokenizer", "encode", "tok", "stories.txt", "--out", "s.npy").code == 0
    assert run("tokenizer", "train", "stories.txt", "--out", "other", "--vocab-size", "300").code == 0
    assert_rejected(run("tokenizer", "decode", "other", "s.npy"), "s.npy")


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
def test_a_full_disk_is_one_sentence_and_leaves_no_incomplete_file(tiny_disk: Path, command: str) -> None:
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
def test_a_limit_on_file_size_is_one_sentence_and_leaves_no_incomplete_file(
    big_place: Path, command: str
) -> None:
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
