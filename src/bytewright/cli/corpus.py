"""`bytewright corpus get`, `stats`, `text`, `storybook` and `check`: make, convert and measure text files."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bytewright.cli import options
from bytewright.corpus import END_OF_TEXT
from bytewright.formatting import format_bytes, format_seconds, parse_bytes
from bytewright.storage import atomic
from bytewright.system import usable_cores

if TYPE_CHECKING:
    from bytewright.corpus.stats import CorpusStats
    from bytewright.corpus.storybook import CheckReport, StoryCheck


@dataclass(frozen=True, kw_only=True)
class GetCorpus:
    """Download the files of a public corpus, and check size and SHA-256 of each.

    A download that breaks off is resumed by the same command. A file that is there already and whole is not
    downloaded again. `tinystories` is 2.3 GB; `openwebtext`, a sample, comes as 4.7 GB and is unpacked to
    12.2 GB.

    For example:
      bytewright corpus get tinystories
      bytewright corpus get openwebtext --out data
    """

    name: Annotated[Literal["tinystories", "openwebtext"], tyro.conf.Positional]
    """Which corpus."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("data")
    """Where its files go."""

    def run(self) -> None:
        """Bring one file after the other."""
        from bytewright.cli import console
        from bytewright.corpus.download import CORPORA, get_file

        corpus = CORPORA[self.name]
        console.stderr().print(f"{self.name}: {corpus.about}.", soft_wrap=True)
        for file in corpus.files:
            with console.progress() as report:
                is_new = get_file(
                    file,
                    self.out,
                    progress=lambda what, done, total: report(what, done, total, "bytes"),
                )
            size = format_bytes(file.text.num_bytes)
            what = (
                f"Wrote {self.out / file.name}: {size}"
                if is_new
                else f"{self.out / file.name} is there already"
            )
            console.stdout().print(f"{what}, SHA-256 {file.text.sha256[:12]}… as expected.", soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class MeasureCorpus:
    """Count bytes, documents, words and characters of a file, and list its most common words.

    Reads plain text (documents end with <|endoftext|>), JSON lines and Parquet; the first two also packed as
    .gz or .zst. Memory stays bounded, however large the file is.

    For example:
      bytewright corpus stats stories.txt
      bytewright corpus stats pages.jsonl.zst --field body --top 50 --json
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A .txt, .jsonl or .parquet file."""

    field: str = "text"
    """Which field of a JSON line, or column of a Parquet file, holds the text."""

    top: int = 20
    """How many of the most common words to list."""

    json: bool = False
    """Print the figures as JSON."""

    def run(self) -> None:
        """Count and print."""
        from bytewright.cli import console
        from bytewright.corpus.stats import measure_corpus

        options.require_at_least(0, self.top, "--top")
        with console.progress() as report:
            stats = measure_corpus(
                options.require_file(self.file),
                field=self.field,
                num_common=self.top,
                progress=lambda done, total: report("count", done, total, "bytes"),
            )
        if self.json:
            print(json.dumps(dataclasses.asdict(stats)))
        else:
            _print(stats)


def _print(stats: CorpusStats) -> None:
    from bytewright.cli import console

    table = console.table("", "")
    about = "" if stats.is_exact else "about "
    table.add_row("bytes", f"{stats.num_bytes:,}")
    table.add_row("documents", f"{stats.num_documents:,}")
    table.add_row("words", f"{stats.num_words:,}")
    table.add_row("different words", f"{about}{stats.num_distinct_words:,}")
    table.add_row("characters", f"{stats.num_characters:,}")
    if stats.num_invalid_bytes:
        table.add_row("bytes that are not UTF-8", f"{stats.num_invalid_bytes:,}")
    if stats.num_zero_bytes:
        table.add_row("zero bytes", f"{stats.num_zero_bytes:,}")
    table.add_row("longest document", f"{stats.longest_document:,} bytes")
    table.add_row("mean document", f"{stats.mean_document:,.0f} bytes")
    console.stdout().print(table)
    if stats.common_words:
        common = console.table("word", "count", "share")
        for word, count in stats.common_words:
            common.add_row(word, f"{count:,}", f"{count / stats.num_words:.2%}")
        console.stdout().print(common)


@dataclass(frozen=True, kw_only=True)
class WriteText:
    """Write the documents of JSON lines, Parquet or text files, packed or not, as one plain text.

    That is what the tokenizer commands read. After each document stands <|endoftext|> on a line of its own;
    documents without text are left out. Memory stays bounded, however large the files are.

    For example:
      bytewright corpus text pages.jsonl.zst --out pages.txt
      bytewright corpus text part-1.parquet part-2.parquet --field content --out pages.txt
    """

    files: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="FILE [FILE ...]", help_behavior_hint="(required)"),
    ]
    """.txt, .jsonl or .parquet files; the first two may be packed as .gz or .zst."""

    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """The text to write."""

    field: str = "text"
    """Which field of a JSON line, or column of a Parquet file, holds the text."""

    replace: options.Replace = False

    def run(self) -> None:
        """Write the text, and say what became of documents that could not stay as they were."""
        files = [options.require_file(path) for path in options.require_some(self.files, "a file")]
        for path in files:
            atomic.check_not_input(path, self.out)
        atomic.check_target(self.out, replace=self.replace)

        from bytewright.cli import console
        from bytewright.corpus.text import write_documents

        with console.progress() as report:
            written = write_documents(
                files,
                self.out,
                field=self.field,
                progress=lambda done, total: report("read", done, total, "bytes"),
            )
        if written.num_left_out:
            console.stderr().print(f"Documents without text, left out: {written.num_left_out:,}.")
        if written.num_divided:
            console.stderr().print(
                f"Documents with {END_OF_TEXT} inside, divided there: {written.num_divided:,}."
            )
        console.stdout().print(
            f"Wrote {self.out}: {written.num_documents:,} documents, {format_bytes(written.num_bytes)}.",
            soft_wrap=True,
        )


@dataclass(frozen=True, kw_only=True)
class WriteStorybook:
    """Write a corpus that needs no download: little stories whose entropy is known.

    The same seed gives the same bytes on any machine and with any number of workers. Training and validation
    stories never share a plot. After each story stands <|endoftext|> on a line of its own.

    For example:
      bytewright corpus storybook --size 50MB --seed 1 --out stories.txt
      bytewright corpus storybook --size 1MB --seed 1 --split validation --out stories-valid.txt
    """

    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """The file to write."""

    size: Annotated[str, tyro.conf.arg(metavar="SIZE")]
    """How large the file may be at most, such as 500kB, 50MB or 1GB; whole stories are written."""

    seed: int = 1
    """Which stories: another seed, other stories."""

    split: Literal["train", "validation"] = "train"
    """Stories to train on, or the tenth of all plots that is kept apart."""

    num_workers: options.NumWorkers = None

    replace: options.Replace = False

    def run(self) -> None:
        """Write the stories and say what they weigh."""
        size = int(parse_bytes(self.size, default_unit="B", key="--size"))
        options.require_at_least(1, self.num_workers, "--num-workers")
        options.require_at_least(0, self.seed, "--seed")
        atomic.check_target(self.out, replace=self.replace)

        from bytewright.cli import console
        from bytewright.corpus.storybook import write_stories

        started = time.perf_counter()
        with console.progress() as report:
            written = write_stories(
                self.out,
                size,
                seed=self.seed,
                split=self.split,
                num_workers=self.num_workers or usable_cores(),
                progress=lambda done, total: report("stories", done, total, "bytes"),
            )
        seconds = time.perf_counter() - started
        console.stdout().print(
            f"Wrote {self.out}: {written.num_stories:,} stories, {format_bytes(written.num_bytes)}"
            f" in {format_seconds(seconds)}. They carry {written.bits_per_byte:.4f} bits per byte:"
            " no model of the grammar can be expected to need fewer.",
            soft_wrap=True,
        )


STORIES_LISTED = 10


@dataclass(frozen=True, kw_only=True)
class CheckStories:
    """Parse stories back: how many are well-formed, how many tell one consistent plot, how many are copies.

    The stories may come from the storybook or from a model that was trained on it; each ends with
    <|endoftext|>. A story in the language has an exact probability; of any other it is said where it leaves
    the language, and which facts contradict each other.

    For example:
      bytewright corpus check samples.txt
      bytewright corpus check samples.txt --train stories.txt --json
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE", help="The stories to check.")]

    train: options.OutputFile = None
    """The text that a model was trained on; stories that stand in it word for word are copies."""

    json: bool = False
    """Print everything as JSON, story by story."""

    num_workers: options.NumWorkers = None

    def run(self) -> None:
        """Check the stories and print what was found."""
        options.require_file(self.source)
        if self.train is not None:
            options.require_file(self.train)
        options.require_at_least(1, self.num_workers, "--num-workers")

        from bytewright.cli import console
        from bytewright.corpus.storybook import check_file

        with console.progress() as report:
            checked = check_file(
                self.source,
                training_path=self.train,
                num_workers=self.num_workers or usable_cores(),
                progress=lambda done, total: report("check", done, total, "bytes"),
            )
        if self.json:
            print(json.dumps(as_json(checked, copies_known=self.train is not None), allow_nan=False))
        else:
            print_report(checked, copies_known=self.train is not None)


def as_json(report: CheckReport, *, copies_known: bool) -> dict[str, object]:
    """Give the shares, and everything about every story; what is infinite or unknown is null."""
    stories = [dataclasses.asdict(story) for story in report.stories]
    for story in stories:
        story["bits"] = story["bits"] if math.isfinite(story["bits"]) else None
    return {
        "num_stories": len(report.stories),
        "num_sentences": report.num_sentences,
        "sound_sentences": report.sound_sentences,
        "well_formed": report.well_formed,
        "consistent": report.consistent,
        "copies": report.copies if copies_known else None,
        "bits_per_story": report.bits_per_story,
        "stories": stories,
    }


def print_report(report: CheckReport, *, copies_known: bool) -> None:
    """Print the shares as a table, then the first stories that are not in the language."""
    from bytewright.cli import console

    out = console.stdout()
    table = console.table("", "")
    table.add_row("stories", f"{len(report.stories):,}")
    table.add_row("sentences that are well-formed", f"{report.sound_sentences:.1%}")
    table.add_row("stories that are well-formed", f"{report.well_formed:.1%}")
    table.add_row("stories that are consistent, too", f"{report.consistent:.1%}")
    if copies_known:
        table.add_row("copies of training stories", f"{report.copies:.1%}")
    if report.bits_per_story is not None:
        table.add_row("bits per consistent story", f"{report.bits_per_story:.1f}")
    out.print(table)
    outside = [(number, story) for number, story in enumerate(report.stories, 1) if not story.is_consistent]
    for number, story in outside[:STORIES_LISTED]:
        out.print(f"story {number:,} {_complaint(story)}", soft_wrap=True)
    if len(outside) > STORIES_LISTED:
        out.print(f"and {len(outside) - STORIES_LISTED:,} more; --json lists them all")


def _complaint(story: StoryCheck) -> str:
    place = f"sentence {story.leaves_at_sentence}, character {story.leaves_at_character}"
    facts = (
        f"; it contradicts itself about: {', '.join(story.contradictions)}" if story.contradictions else ""
    )
    return f"leaves the language at {place}, at {story.found!r}{facts}"
