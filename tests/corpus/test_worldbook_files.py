"""Files of the world book: the fused generator, manifests, and checks of texts."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from small_world import SMALL

from bytewright.corpus import SEPARATOR
from bytewright.corpus.storybook import check_story_file, read_stories, write_stories
from bytewright.corpus.worldbook import World, Worldbook
from bytewright.corpus.worldbook.book import SPLITS
from bytewright.corpus.worldbook.check import check_document, check_document_file, recognise_book
from bytewright.corpus.worldbook.files import read_world_manifest, write_worldbook
from bytewright.corpus.worldbook.fused import make_writer
from bytewright.errors import FormatError, StorageError, UsageError
from bytewright.storage.manifest import manifest_path_of
from rejection import rejects

WORLD = World()
BOOK = Worldbook(WORLD)


@pytest.mark.parametrize(
    "book",
    [BOOK, SMALL, Worldbook(World(seed=2**64 - 1, exponent=Decimal(0), num_people=131))],
    ids=["full", "small", "flat"],
)
@pytest.mark.parametrize("split", SPLITS)
def test_the_fused_generator_writes_the_documents_of_the_reference(book: Worldbook, split: str) -> None:
    number = SPLITS.index(split)
    text, documents = make_writer(book.machine).write(number, 9, 30, 40, b"|")
    start = 0
    for index, (length, bits) in enumerate(documents, 30):
        document = book.document(SPLITS[number], 9, index)
        assert text[start : start + length].decode() == document.text + "|"
        assert bits == pytest.approx(document.bits, rel=1e-12, abs=1e-9)
        start += length
    assert start == len(text)


def test_any_number_of_threads_writes_the_same_bytes(tmp_path: Path) -> None:
    written = [
        write_worldbook(tmp_path / f"{threads}.txt", 3_000_000, world=WORLD, seed=4, num_threads=threads)
        for threads in (1, 2, 3)
    ]
    assert written[0] == written[1] == written[2]
    assert len({(tmp_path / f"{threads}.txt").read_bytes() for threads in (1, 2, 3)}) == 1


def test_a_file_contains_the_first_complete_documents_and_its_manifest_their_bits(tmp_path: Path) -> None:
    path = tmp_path / "world.txt"
    written = write_worldbook(path, 50_000, world=WORLD, seed=9, split="validation")
    generated = list(islice(BOOK.documents("validation", 9), written.num_documents + 1))
    assert path.read_text() == "".join(document.text + SEPARATOR for document in generated[:-1])
    assert written.num_bytes == path.stat().st_size <= 50_000
    assert written.num_bytes + len(generated[-1].text + SEPARATOR) > 50_000
    assert written.bits == pytest.approx(math.fsum(document.bits for document in generated[:-1]), rel=1e-12)
    assert read_world_manifest(path) == written
    assert list(read_stories(path)) == [document.text for document in generated[:-1]]


def test_a_larger_file_begins_with_the_smaller_one(tmp_path: Path) -> None:
    small = write_worldbook(tmp_path / "small.txt", 20_000, world=WORLD)
    write_worldbook(tmp_path / "large.txt", 2_000_000, world=WORLD)
    assert (tmp_path / "large.txt").read_bytes()[: small.num_bytes] == (tmp_path / "small.txt").read_bytes()


def test_progress_increases_and_never_exceeds_the_total(tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    write_worldbook(tmp_path / "a.txt", 4_000_000, world=WORLD, progress=lambda *each: reports.append(each))
    assert len(reports) > 2
    assert reports == sorted(reports)
    assert all(done <= total == 4_000_000 for done, total in reports)


def test_a_size_too_small_for_one_document_is_rejected(tmp_path: Path) -> None:
    with rejects(UsageError, key="size", found=20):
        write_worldbook(tmp_path / "a.txt", 20, world=WORLD)
    assert not list(tmp_path.iterdir())


def test_an_error_while_writing_leaves_no_file_and_no_thread(tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        write_worldbook(tmp_path / "a.txt", 10**12, world=WORLD, num_threads=2, progress=fail)
    assert not list(tmp_path.iterdir())


def test_a_replacement_that_fails_leaves_the_old_text_and_its_manifest(tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "a.txt"
    written = write_worldbook(path, 9_000, world=WORLD)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        write_worldbook(path, 10**12, world=World(seed=2), progress=fail)
    with rejects(UsageError, key="size", found=20):
        write_worldbook(path, 20, world=World(seed=2))
    assert path.read_bytes() == before
    assert read_world_manifest(path) == written, (
        "without it, the text would count as one of the default world"
    )


def test_a_missing_text_is_an_error_of_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "world.txt"
    for check in (partial(check_document_file, world=WORLD), check_story_file):
        with rejects(StorageError, path=path):
            check(path)
    write_worldbook(path, 9_000, world=WORLD)
    path.unlink()
    with rejects(StorageError, path=path):
        read_world_manifest(path)


def test_a_manifest_that_does_not_fit_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "world.txt"
    write_worldbook(path, 9_000, world=WORLD)
    path.write_text(path.read_text() + "more")
    with rejects(FormatError, path=path):
        read_world_manifest(path)
    manifest_path_of(path).write_text(manifest_path_of(path).read_text().replace("1.25", "1.5"))
    with rejects(FormatError, path=manifest_path_of(path)):
        read_world_manifest(path)
    manifest_path_of(path).write_text(json.dumps({"format": "something else"}))
    assert read_world_manifest(path) is None
    manifest_path_of(path).unlink()
    assert read_world_manifest(path) is None


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("exponent", "5", "from 0 to 4"),
        ("exponent", "steep", "a number such as 1.25 as text"),
        ("exponent", 1.25, "a string"),
        ("seed", -1, "from 0 to 2^64 - 1"),
        ("seed", "1", "an integer"),
        ("num_people", 1, "from 2 to 1073741823"),
    ],
)
def test_a_manifest_with_an_invalid_world_is_rejected(
    tmp_path: Path, field: str, value: object, expected: str
) -> None:
    path = tmp_path / "world.txt"
    write_worldbook(path, 9_000, world=WORLD)
    notes = manifest_path_of(path)
    fields = json.loads(notes.read_text())
    del fields["checksum"]
    fields["world"][field] = value
    notes.write_text(json.dumps(fields))
    with rejects(FormatError, path=notes, key=f"world.{field}", expected=expected, found=value):
        read_world_manifest(path)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"seed": -1}, "seed"),
        ({"exponent": Decimal("NaN")}, "exponent"),
        ({"exponent": Decimal(5)}, "exponent"),
        ({"num_people": 1}, "num_people"),
        ({"num_people": 2**30}, "num_people"),
    ],
)
def test_a_world_outside_the_limits_is_rejected(fields: dict[str, object], key: str) -> None:
    with rejects(UsageError, key=key):
        World(**fields)  # type: ignore[arg-type]


# Checks


def test_the_book_of_a_text_is_recognised(tmp_path: Path) -> None:
    write_worldbook(tmp_path / "world.txt", 9_000, world=WORLD)
    write_stories(tmp_path / "stories.txt", 9_000, seed=1)
    (tmp_path / "other.txt").write_text("Nothing.\n<|endoftext|>\n")
    assert recognise_book(tmp_path / "world.txt", WORLD) == "worldbook"
    assert recognise_book(tmp_path / "world.txt", World(seed=77)) == "worldbook"
    assert recognise_book(tmp_path / "stories.txt", WORLD) == "storybook"
    assert recognise_book(tmp_path / "other.txt", WORLD) == "storybook"
    broken = (tmp_path / "world.txt").read_text().replace(" the ", " teh ", 3)
    (tmp_path / "broken.txt").write_text(broken)
    assert recognise_book(tmp_path / "broken.txt", WORLD) == "worldbook"


def test_a_wrong_fact_is_counted_and_the_rest_is_still_checked() -> None:
    document = next(each for each in BOOK.documents("train") if "page on " in each.text)
    checked = check_document(BOOK, document.text)
    assert checked.is_consistent
    assert checked.bits == document.bits
    wrong = re.sub(r"(page on \w+ \w+), an? \w+ in \w+", r"\1, an ogre in Nowhere", document.text, count=1)
    again = check_document(BOOK, wrong)
    assert (again.is_consistent, again.has_shape, again.bits) == (False, True, math.inf)
    stated, right = again.facts["fact"]
    assert (stated, right) == (checked.facts["fact"][0], checked.facts["fact"][1] - 2)
    broken = check_document(BOOK, document.text[:-1])
    assert not broken.has_shape
    assert broken.leaves_at_character == len(document.text)


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (r"The answer is (\d+)\.", "0", "result"),
        (r"page on \w+ \w+, (an? \w+) in", "s", "fact"),
        (r"Who had the [\w ]+ now\? (\w+) did", "s", "recall"),
    ],
)
def test_a_longer_word_that_begins_like_the_right_fact_is_wrong(before: str, after: str, kind: str) -> None:
    text = next(each.text for each in BOOK.documents("train") if re.search(before, each.text))
    checked = check_document(BOOK, text)
    match = re.search(before, text)
    assert match is not None
    again = check_document(BOOK, text[: match.end(1)] + after + text[match.end(1) :])
    assert again.has_shape
    assert again.facts[kind] == (checked.facts[kind][0], checked.facts[kind][1] - 1)


def test_check_file_counts_consistent_documents_and_copies(tmp_path: Path) -> None:
    write_worldbook(tmp_path / "train.txt", 30_000, world=WORLD)
    copied = next(read_stories(tmp_path / "train.txt"))
    texts = [each.text for each in islice(BOOK.documents("test"), 3)]
    (tmp_path / "samples.txt").write_text("".join(text + SEPARATOR for text in [*texts, copied, copied[:-9]]))
    report = check_document_file(tmp_path / "samples.txt", WORLD, training_path=tmp_path / "train.txt")
    assert (report.consistent, report.well_formed, report.copies) == (0.8, 0.8, 0.2)
    assert report.bits_per_document is not None
    stated, right = report.right_facts("fact")
    assert stated == right
