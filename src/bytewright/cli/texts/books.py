"""`bytewright corpus storybook`, `worldbook` and `check`: generate text of the two books, and check it."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bytewright.cli import console, options
from bytewright.corpus import END_OF_TEXT
from bytewright.errors import UsageError, wrong_value
from bytewright.formatting import format_bytes, format_number, format_seconds, parse_bytes
from bytewright.storage import atomic, filesystem
from bytewright.storage.manifest import manifest_path_of
from bytewright.system import usable_cores

if TYPE_CHECKING:
    from bytewright.corpus.storybook import CheckReport, StoryCheck, Written
    from bytewright.corpus.worldbook import World
    from bytewright.corpus.worldbook.check import DocumentCheck, WorldReport

NUM_LISTED = 10
"""How many texts outside the language are listed."""
FACT_TITLES = {
    "fact": "facts about people that are right",
    "recall": "holders of things that are right",
    "result": "sums that are right",
}


@dataclass(frozen=True, kw_only=True)
class WriteStorybook:
    """Generate a corpus of short stories whose entropy is known; no download is needed.

    The same seed gives the same bytes on any machine and with any number of workers. Training and validation
    stories never share a plot. <|endoftext|> on a line of its own follows each story. FILE.json records the
    exact information content of the file, which becomes the floor of losses on it.

    For example:
      bytewright corpus storybook --size 50MB --seed 1 --out stories.txt
      bytewright corpus storybook --size 1MB --seed 1 --split validation --out stories-valid.txt
    """

    out: options.NewFile
    """The file to write."""
    size: Annotated[str, tyro.conf.arg(metavar="SIZE")]
    """The maximum size of the file, such as 500kB, 50MB or 1GB; only whole stories are written."""
    seed: int = 1
    """The seed of the random choices; another seed gives other stories."""
    split: Literal["train", "validation"] = "train"
    """Stories for training, or for validation: the tenth of all plots that training never uses."""
    num_workers: options.NumWorkers = None
    cluster: options.Cluster = None
    replace: options.Replace = False

    def run(self) -> None:
        """Write the stories, and print their size and information content."""
        size = int(parse_bytes(self.size, default_unit="B", key="--size"))
        options.require_at_least(1, self.num_workers, "--num-workers")
        options.require_at_least(0, self.seed, "--seed")
        for path in (self.out, manifest_path_of(self.out)):
            atomic.check_target(path, replace=self.replace)
        filesystem.check_space(self.out, size, "the text")
        if self.cluster is not None and self.num_workers is not None:
            raise UsageError("give either --num-workers or --cluster, not both", key="--num-workers")
        started = time.perf_counter()
        written = self._write(size)
        seconds = time.perf_counter() - started
        count = format_number(written.num_stories, "story", "stories")
        _print_written(self.out, count, written.num_bytes, seconds, written.bits_per_byte)

    def _write(self, size: int) -> Written:
        if self.cluster is not None:
            from bytewright.cli.texts.cluster import write_stories_on

            return write_stories_on(self.cluster, self.out, size, seed=self.seed, split=self.split)
        from bytewright.corpus.storybook import write_stories

        with console.phase_progress("stories", "bytes") as progress:
            return write_stories(
                self.out,
                size,
                seed=self.seed,
                split=self.split,
                num_workers=self.num_workers or usable_cores(),
                progress=progress,
            )


@dataclass(frozen=True, kw_only=True)
class WriteWorldbook:
    """Generate a corpus about one world, with known entropy and known scaling curves.

    Documents state facts about people, whose frequencies follow a power law. They also contain nested tales,
    things that change hands, sums, and prose with a large vocabulary. The same options give the same bytes on
    any machine. FILE.json records the world and the exact information content of the file.

    For example:
      bytewright corpus worldbook --size 500MB --out world.txt
      bytewright corpus worldbook --size 5MB --split validation --out world-valid.txt
      bytewright corpus worldbook --size 500MB --world 7 --exponent 1.5 --out other.txt
    """

    out: options.NewFile
    """The file to write."""
    size: Annotated[str, tyro.conf.arg(metavar="SIZE")]
    """The maximum size of the file, such as 50MB or 1GB; only whole documents are written."""
    world: int = 1
    """The seed of the world: another one gives people other names and facts."""
    exponent: Annotated[str, tyro.conf.arg(metavar="S")] = "1.25"
    """The person of rank i is mentioned with probability proportional to i to the power of -S."""
    people: int = 2**30 - 1
    """The number of people in the world."""
    seed: int = 1
    """The seed of the documents: another one gives other documents about the same world."""
    split: Literal["train", "validation", "test"] = "train"
    """Documents for training, validation or test; the splits have different random numbers."""
    num_workers: options.NumWorkers = None
    replace: options.Replace = False

    def run(self) -> None:
        """Write the documents, and print their size and information content."""
        size = int(parse_bytes(self.size, default_unit="B", key="--size"))
        options.require_at_least(1, self.num_workers, "--num-workers")
        if not 0 <= self.seed < 2**64:
            raise wrong_value("--seed", "from 0 to 2^64 - 1", self.seed)
        for path in (self.out, manifest_path_of(self.out)):
            atomic.check_target(path, replace=self.replace)
        filesystem.check_space(self.out, size, "the text")
        world = make_world(self.world, self.exponent, self.people)

        from bytewright.corpus.worldbook.files import write_worldbook

        started = time.perf_counter()
        with console.phase_progress("documents", "bytes") as progress:
            written = write_worldbook(
                self.out,
                size,
                world=world,
                seed=self.seed,
                split=self.split,
                num_threads=self.num_workers or usable_cores(),
                progress=progress,
            )
        seconds = time.perf_counter() - started
        count = format_number(written.num_documents, "document")
        _print_written(self.out, count, written.num_bytes, seconds, written.bits_per_byte)


def _print_written(out: Path, count: str, num_bytes: int, seconds: float, bits_per_byte: float) -> None:
    console.print_line(
        f"Wrote {out}: {count}, {format_bytes(num_bytes)} in {format_seconds(seconds)}. Its information"
        f" content is {bits_per_byte:.4f} bits per byte, the loss of a model with the true probabilities."
    )


@dataclass(frozen=True, kw_only=True)
class CheckStories:
    """Parse stories, and count those that are well-formed, consistent, or copies of training stories.

    The stories are from the storybook, from the world book, or from a model that was trained on one of them;
    each ends with <|endoftext|>. The first stories show from which book all are; a remark counts those of the
    other book. A consistent story has an exact probability. For any other, the output states where it leaves
    the grammar, what it contradicts, or how many of its facts are wrong. The facts of a world book depend on
    its world, which FILE.json or the options state.

    For example:
      bytewright corpus check samples.txt
      bytewright corpus check samples.txt --train stories.txt --json
      bytewright corpus check samples.txt --world 7 --exponent 1.5
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The stories to check."""
    world: Annotated[int | None, options.arg("INT", "(default: as in FILE.json, or 1)")] = None
    """The seed of a world book."""
    exponent: Annotated[str | None, options.arg("S", "(default: as in FILE.json, or 1.25)")] = None
    """The exponent of a world book."""
    people: Annotated[int | None, options.arg("INT", "(default: as in FILE.json, or 1073741823)")] = None
    """The number of people of a world book."""
    train: options.FileOption = None
    """The training text of the model; a story that is in it word for word is a copy."""
    json: bool = False
    """Print the result as JSON, with every story."""
    num_workers: options.NumWorkers = None

    def run(self) -> None:
        """Check the stories and print the result."""
        options.require_file(self.source)
        if self.train is not None:
            options.require_file(self.train)
        options.require_at_least(1, self.num_workers, "--num-workers")

        from bytewright.corpus.storybook import CheckReport, check_story_file
        from bytewright.corpus.worldbook.check import check_document_file, is_document, recognise_book

        world = find_world(self.source, self.world, self.exponent, self.people)
        report: CheckReport | WorldReport
        with console.phase_progress("check", "bytes") as progress:
            settings: dict[str, Any] = {
                "training_path": self.train,
                "num_workers": self.num_workers or usable_cores(),
                "progress": progress,
            }
            if recognise_book(self.source, world) == "worldbook":
                report = check_document_file(self.source, world, **settings)
            else:
                is_of_other_book = partial(is_document, world)
                report = check_story_file(self.source, is_of_other_book=is_of_other_book, **settings)
        copies = None if self.train is None else report.copies
        print_other_book(self.source, report)
        if self.world is None and self.exponent is None and self.people is None:
            print_default_world(self.source, report)
        if isinstance(report, CheckReport):
            if len(report.stories) == 1 and END_OF_TEXT.encode() not in atomic.read_bytes(self.source):
                console.print_remark(
                    f"{self.source} has no {END_OF_TEXT}, so its whole text was checked as one story;"
                    " the token must follow each story."
                )
            if self.json:
                print(json.dumps(story_report_fields(report, copies), allow_nan=False))
            else:
                print_story_check(report, copies)
        elif self.json:
            print(json.dumps(world_report_fields(report, copies), allow_nan=False))
        else:
            print_world_check(report, copies)


def find_world(file: Path, seed: int | None, exponent: str | None, num_people: int | None) -> World:
    """Return the world of a text: from the options, else from its manifest, else the default."""
    from bytewright.corpus.worldbook import World
    from bytewright.corpus.worldbook.files import read_world_manifest

    manifest = read_world_manifest(file)
    world = World() if manifest is None else manifest.world
    return make_world(
        world.seed if seed is None else seed,
        str(world.exponent) if exponent is None else exponent,
        world.num_people if num_people is None else num_people,
    )


def make_world(seed: int, exponent: str, num_people: int) -> World:
    """Return the world of the options; values outside the ranges raise `UsageError`."""
    from bytewright.corpus.worldbook import World

    try:
        power = Decimal(exponent)
    except InvalidOperation:
        raise wrong_value("--exponent", "a number such as 1.25", exponent) from None
    try:
        return World(seed=seed, exponent=power, num_people=num_people)
    except UsageError as error:
        option = {"seed": "--world", "exponent": "--exponent", "num_people": "--people"}[str(error.key)]
        raise wrong_value(option, str(error.expected), error.found) from None


def story_report_fields(report: CheckReport, copies: float | None) -> dict[str, object]:
    """Return the shares and all stories; infinite and unknown values are null."""
    return {
        "num_stories": len(report.stories),
        "num_sentences": report.num_sentences,
        "sound_sentences": report.sound_sentences,
        "well_formed": report.well_formed,
        "consistent": report.consistent,
        "copies": copies,
        "bits_per_story": report.bits_per_story,
        "stories": _list_checks(report.stories),
    }


def world_report_fields(report: WorldReport, copies: float | None) -> dict[str, object]:
    """Return the shares and all documents; infinite and unknown values are null."""
    return {
        "book": "worldbook",
        "num_documents": len(report.documents),
        "well_formed": report.well_formed,
        "consistent": report.consistent,
        "copies": copies,
        "bits_per_document": report.bits_per_document,
        "facts": {kind: report.right_facts(kind) for kind in FACT_TITLES},
        "documents": _list_checks(report.documents),
    }


def _list_checks(checks: Sequence[Any]) -> object:
    from bytewright.train.metrics import finite

    return finite([dataclasses.asdict(check) for check in checks])


def print_story_check(report: CheckReport, copies: float | None) -> None:
    """Print the shares as a table, then the first stories that are not consistent."""
    rows = {
        "stories": f"{len(report.stories):,}",
        "sentences that are well-formed": f"{report.sound_sentences:.1%}",
        "stories that are well-formed": f"{report.well_formed:.1%}",
        "stories that are also consistent": f"{report.consistent:.1%}",
    }
    if copies is not None:
        rows["copies of training stories"] = f"{copies:.1%}"
    if report.bits_per_story is not None:
        rows["bits per consistent story"] = f"{report.bits_per_story:.1f}"
    console.print_table(("", ""), rows.items())
    _print_first(
        [
            f"story {number:,} {describe_problem(story)}"
            for number, story in enumerate(report.stories, 1)
            if not story.is_consistent
        ]
    )


def print_world_check(report: WorldReport, copies: float | None) -> None:
    """Print the shares as a table, then the first documents that leave the grammar."""
    rows = {
        "documents of the world book": f"{len(report.documents):,}",
        "documents that are well-formed": f"{report.well_formed:.1%}",
        "documents that are also consistent": f"{report.consistent:.1%}",
    }
    for kind, title in FACT_TITLES.items():
        stated, right = report.right_facts(kind)
        if stated:
            rows[title] = f"{right / stated:.1%} of {stated:,}"
    if copies is not None:
        rows["copies of training documents"] = f"{copies:.1%}"
    if report.bits_per_document is not None:
        rows["bits per consistent document"] = f"{report.bits_per_document:.1f}"
    console.print_table(("", ""), rows.items())
    _print_first(
        [
            f"document {number:,} {describe_document(each)}"
            for number, each in enumerate(report.documents, 1)
            if not each.is_consistent
        ]
    )


def print_other_book(source: Path, report: CheckReport | WorldReport) -> None:
    """Print a remark if a file has well-formed texts of the book that it was not checked against."""
    from bytewright.corpus.storybook import CheckReport
    from bytewright.corpus.worldbook.check import TEXTS_RECOGNISED

    if isinstance(report, CheckReport):
        checks: Sequence[Any] = report.stories
        book, other = "storybook", "world book"
    else:
        checks = report.documents
        book, other = "world book", "storybook"
    if num_others := sum(each.is_of_other_book for each in checks):
        console.print_remark(
            f"{source}: {num_others:,} of {len(checks):,} texts are from the {other}, but all were checked"
            f" against the {book}, since the first {TEXTS_RECOGNISED} decide. Check the texts of each book in"
            " a file of their own."
        )


def print_default_world(source: Path, report: CheckReport | WorldReport) -> None:
    """Print a remark if a text of the world book has no manifest, so that its world is assumed."""
    from bytewright.corpus.worldbook import World
    from bytewright.corpus.worldbook.check import WorldReport

    manifest = manifest_path_of(source)
    if isinstance(report, WorldReport) and not manifest.is_file():
        world = World()
        console.print_remark(
            f"{source} has no manifest {manifest.name}, so its facts and bits are those of the default world"
            f" (--world {world.seed} --exponent {world.exponent} --people {world.num_people}). If it is about"
            " another world, give these options."
        )


def _print_first(problems: Sequence[str]) -> None:
    for problem in problems[:NUM_LISTED]:
        console.print_line(problem)
    if len(problems) > NUM_LISTED:
        console.print_line(f"and {len(problems) - NUM_LISTED:,} more; --json lists them all")


def describe_document(document: DocumentCheck) -> str:
    """Return where a document leaves the grammar, or else how many of its facts are wrong."""
    if document.leaves_at_character is not None:
        return f"leaves the grammar at character {document.leaves_at_character}, at {document.found!r}"
    wrong = sum(stated - right for stated, right in document.facts.values())
    return f"states wrong facts: {wrong:,} of {sum(stated for stated, _ in document.facts.values()):,}"


def describe_problem(story: StoryCheck) -> str:
    """Return where a story leaves the grammar, and its contradictions."""
    place = f"sentence {story.leaves_at_sentence}, character {story.leaves_at_character}"
    facts = ", ".join(story.contradictions)
    contradictions = f"; it contradicts itself about: {facts}" if facts else ""
    return f"leaves the grammar at {place}, at {story.found!r}{contradictions}"
