"""`corpus worldbook` and `corpus check` on the command line."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from bytewright.corpus.storybook import write_stories
from bytewright.corpus.worldbook import World
from bytewright.corpus.worldbook.files import read_world_manifest, write_worldbook
from bytewright.storage.manifest import manifest_path_of
from conftest import RunCommand


def test_worldbook_writes_documents_and_prints_their_information_content(
    run: RunCommand, tmp_path: Path
) -> None:
    out = tmp_path / "world.txt"
    options = ("--size", "30kB", "--world", 5, "--exponent", "1.5", "--people", 1000, "--seed", 2)
    outcome = run("corpus", "worldbook", *options, "--split", "test", "--out", out)
    assert outcome.code == 0
    world = World(seed=5, exponent=Decimal("1.5"), num_people=1000)
    written = write_worldbook(tmp_path / "again.txt", 30_000, world=world, seed=2, split="test")
    assert out.read_bytes() == (tmp_path / "again.txt").read_bytes()
    assert read_world_manifest(out) == written
    assert f"{written.num_documents} documents" in outcome.out
    assert f"{written.bits_per_byte:.4f} bits per byte" in outcome.out
    assert "entropy" not in outcome.out  # that is the mean over all files


@pytest.mark.parametrize(("book", "words"), [("worldbook", ": 1 document,"), ("storybook", ": 1 story,")])
def test_one_text_is_in_the_singular(run: RunCommand, tmp_path: Path, book: str, words: str) -> None:
    outcome = run("corpus", book, "--size", "900", "--out", tmp_path / "one.txt")
    assert words in outcome.out


def test_check_recognises_the_book_and_the_world(run: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "world.txt"
    write_worldbook(out, 20_000, world=World(seed=8))
    outcome = run("corpus", "check", out, "--train", out)
    assert outcome.code == 0
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert "documents that are also consistent 100.0%" in lines
    assert "copies of training documents 100.0%" in lines
    report = json.loads(run("corpus", "check", out, "--json").out)
    assert (report["book"], report["consistent"], report["copies"]) == ("worldbook", 1.0, None)
    manifest_path_of(out).unlink()
    outcome = run("corpus", "check", out, "--json")
    assert "world.txt.json" in outcome.err
    report = json.loads(outcome.out)
    stated, right = report["facts"]["fact"]
    assert (report["well_formed"], right < stated / 2) == (1.0, True), "the default world has other facts"
    first = next(n for n, each in enumerate(report["documents"], 1) if not each["is_consistent"])
    assert f"document {first} states wrong facts" in run("corpus", "check", out).out
    outcome = run("corpus", "check", out, "--world", 8, "--json")
    assert json.loads(outcome.out)["consistent"] == 1.0
    assert "world.txt.json" not in outcome.err


def test_check_states_the_world_that_it_assumes(run: RunCommand, tmp_path: Path) -> None:
    """Facts do not depend on the exponent, so a wrong one shows in no figure."""
    out = tmp_path / "world.txt"
    write_worldbook(out, 20_000, world=World(exponent=Decimal("1.5")))
    manifest_path_of(out).unlink()
    assert "--world 1 --exponent 1.25 --people 1073741823" in run("corpus", "check", out).err
    assert run("corpus", "check", out, "--exponent", "1.5").err == ""


def test_check_lists_documents_that_leave_the_grammar(run: RunCommand, tmp_path: Path) -> None:
    write_worldbook(tmp_path / "world.txt", 20_000, world=World())
    text = (tmp_path / "world.txt").read_text()
    (tmp_path / "broken.txt").write_text("".join(f"{text[:400]}<|endoftext|>\n" for _ in range(12)))
    outcome = run("corpus", "check", tmp_path / "broken.txt")
    assert "document 1 leaves the grammar at character 4" in outcome.out
    assert "and 2 more" in outcome.out


@pytest.mark.parametrize("first", ["story.txt", "world.txt"])
def test_check_states_that_a_file_has_texts_of_both_books(
    run: RunCommand, tmp_path: Path, first: str
) -> None:
    write_worldbook(tmp_path / "world.txt", 30_000, world=World())
    write_stories(tmp_path / "story.txt", 60_000, seed=1)
    counts = {
        name: (tmp_path / name).read_text().count("<|endoftext|>") for name in ("world.txt", "story.txt")
    }
    assert min(counts.values()) > 20
    (other,) = set(counts) - {first}
    mixed = tmp_path / "mixed.txt"
    mixed.write_text(
        (tmp_path / first).read_text() + (tmp_path / other).read_text() + "Nothing.<|endoftext|>"
    )
    outcome = run("corpus", "check", mixed, "--json")
    assert f"{counts[other]} of {sum(counts.values()) + 1} texts" in outcome.err
    report = json.loads(outcome.out)
    checks = report["documents" if first == "world.txt" else "stories"]
    assert sum(each["is_of_other_book"] for each in checks) == counts[other]
    assert "texts are from the" not in run("corpus", "check", tmp_path / first).err


def test_a_file_in_place_of_the_manifest_is_not_replaced(run: RunCommand, tmp_path: Path) -> None:
    out, notes = tmp_path / "world.txt", tmp_path / "world.txt.json"
    notes.write_text("my notes")
    outcome = run("corpus", "worldbook", "--size", "20kB", "--out", out)
    assert (outcome.code, notes.read_text(), out.exists()) == (2, "my notes", False)
    assert str(notes) in outcome.err
    assert run("corpus", "worldbook", "--size", "20kB", "--out", out, "--replace").code == 0
    assert read_world_manifest(out) is not None


@pytest.mark.parametrize(
    "words",
    [
        ("--size", "many"),
        ("--size", "1MB", "--exponent", "steep"),
        ("--size", "1MB", "--exponent", "9"),
        ("--size", "1MB", "--world", "-1"),
        ("--size", "1MB", "--people", "1"),
        ("--size", "1MB", "--seed", "-1"),
        ("--size", "5B"),
    ],
)
def test_a_wrong_option_is_one_sentence(run: RunCommand, tmp_path: Path, words: tuple[str, ...]) -> None:
    outcome = run("corpus", "worldbook", *words, "--out", tmp_path / "a.txt")
    assert (outcome.code, outcome.out) == (2, "")
    assert words[-2].removeprefix("--") in outcome.err
    if words[1] == "1MB":
        assert words[-2] in outcome.err, "the message names the option, not the argument of a function"
    assert not list(tmp_path.iterdir())
