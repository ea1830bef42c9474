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

from bytewright.cli import console, options
from bytewright.corpus import END_OF_TEXT
from bytewright.errors import UsageError
from bytewright.formatting import format_bytes, format_seconds, parse_bytes
from bytewright.storage import atomic
from bytewright.system import usable_cores

if TYPE_CHECKING:
    from bytewright.corpus.stats import CorpusStats
    from bytewright.corpus.storybook import CheckReport, StoryCheck, Written


@dataclass(frozen=True, kw_only=True)
class GetCorpus:
    """Download the files of a public corpus, and check the size and SHA-256 of each.

    The same command resumes an interrupted download. Complete files are not downloaded again. `tinystories`
    has 2.3 GB; `openwebtext`, a sample, is a download of 4.7 GB that is unpacked to 12.2 GB.

    For example:
      bytewright corpus get tinystories
      bytewright corpus get openwebtext --out data
    """

    name: Annotated[Literal["tinystories", "openwebtext"], tyro.conf.Positional]
    """The name of the corpus."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("data")
    """The folder for its files."""

    def run(self) -> None:
        """Download one file after the other."""
        from bytewright.corpus.download import CORPORA, get_file

        corpus = CORPORA[self.name]
        console.print_remark(f"{self.name}: {corpus.about}.")
        for file in corpus.files:
            path = self.out / file.name
            with console.progress() as show:
                is_new = get_file(
                    file, self.out, progress=lambda what, done, total: show(what, done, total, "bytes")
                )
            size = format_bytes(file.text.num_bytes)
            result = f"Wrote {path}: {size}" if is_new else f"{path} is already complete"
            console.print_line(f"{result}, SHA-256 {file.text.sha256[:12]}… as expected.")


@dataclass(frozen=True, kw_only=True)
class MeasureCorpus:
    """Count the bytes, documents, words and characters of texts, and list the most common words.

    A folder means all files below it; a pattern in quotes means the files that match it; - means standard
    input, as plain text. Reads plain text (documents end with <|endoftext|>), JSON lines and Parquet; the
    first two also compressed as .gz or .zst. Bytes and characters do not include the end tokens. Memory is
    bounded for any file size.

    For example:
      bytewright corpus stats stories.txt
      bytewright corpus stats pages.jsonl.zst --field body --top 50 --json
      bytewright corpus stats books/ 'extra-*.txt'
      cat books/*.txt | bytewright corpus stats -
      bytewright corpus stats s3://bucket/books/ --cluster tcp://head:8786
    """

    files: options.Files
    """.txt, .jsonl or .parquet files, folders of them, patterns, or - for standard input."""

    field: options.TextField = "text"

    top: int = 20
    """How many of the most common words to list."""

    clean: options.Clean = False

    cluster: options.Cluster = None

    json: bool = False
    """Print the figures as JSON."""

    def run(self) -> None:
        """Count and print the figures."""
        options.require_at_least(0, self.top, "--top")
        sources = options.require_some(self.files, "a file")
        stats = self._measure(sources) if self.cluster is None else self._measure_on(self.cluster)
        if self.json:
            print(json.dumps(dataclasses.asdict(stats)))
        else:
            print_stats(stats)

    def _measure_on(self, cluster: str) -> CorpusStats:
        from bytewright.cli.texts.cluster import check_options, measure_on_cluster

        check_options(clean=self.clean)
        return measure_on_cluster(cluster, self.files, field=self.field, num_common=self.top)

    def _measure(self, sources: tuple[str, ...]) -> CorpusStats:
        from bytewright.corpus.stats import measure_corpus

        with (
            options.open_texts(sources, clean=self.clean) as files,
            console.phase_progress("count", "bytes") as progress,
        ):
            return measure_corpus(
                files, field=self.field, clean=self.clean, num_common=self.top, progress=progress
            )


def print_stats(stats: CorpusStats) -> None:
    """Print the counts as a table, then the most common words."""
    rows = {
        "bytes, without end tokens": f"{stats.num_bytes:,}",
        "documents": f"{stats.num_documents:,}",
        "words": f"{stats.num_words:,}",
        "different words": f"{'' if stats.is_exact else 'about '}{stats.num_distinct_words:,}",
        "characters": f"{stats.num_characters:,}",
    }
    if stats.num_invalid_bytes:
        rows["bytes that are not UTF-8"] = f"{stats.num_invalid_bytes:,}"
    if stats.num_zero_bytes:
        rows["zero bytes"] = f"{stats.num_zero_bytes:,}"
    rows["longest document"] = f"{stats.longest_document:,} bytes"
    rows["mean document"] = f"{stats.mean_document:,.0f} bytes"
    console.print_table(("", ""), rows.items())
    if stats.common_words:
        words = [(word, f"{n:,}", f"{n / stats.num_words:.2%}") for word, n in stats.common_words]
        console.print_table(("word", "count", "share"), words)


@dataclass(frozen=True, kw_only=True)
class WriteText:
    """Convert the documents of JSON lines, Parquet or text files to one plain text file.

    The tokenizer commands read such files. <|endoftext|> on a line of its own follows each document;
    documents without text are left out. A folder means all files below it; a pattern in quotes means the
    files that match it; - means standard input, as plain text. Memory is bounded for any file size.

    For example:
      bytewright corpus text pages.jsonl.zst --out pages.txt
      bytewright corpus text part-1.parquet part-2.parquet --field content --out pages.txt
      bytewright corpus text books/ --clean --out books.txt
    """

    files: options.Files
    """.txt, .jsonl or .parquet files (the first two also as .gz or .zst), folders, patterns, or -."""

    out: options.NewFile
    """The text file to write."""

    field: options.TextField = "text"

    clean: options.Clean = False

    replace: options.Replace = False

    def run(self) -> None:
        """Write the text, and report documents that were left out or divided."""
        sources = options.require_some(self.files, "a file")
        for path in sources:
            atomic.check_not_input(path, self.out)
        atomic.check_target(self.out, replace=self.replace)

        from bytewright.corpus.text import write_documents

        with (
            options.open_texts(sources, clean=self.clean) as files,
            console.phase_progress("read", "bytes") as progress,
        ):
            written = write_documents(files, self.out, field=self.field, clean=self.clean, progress=progress)
        if written.num_left_out:
            console.print_remark(f"Documents without text, left out: {written.num_left_out:,}.")
        if written.num_divided:
            divided = f"{written.num_divided:,}"
            console.print_remark(f"Documents with {END_OF_TEXT} inside, divided there: {divided}.")
        size = format_bytes(written.num_bytes)
        console.print_line(f"Wrote {self.out}: {written.num_documents:,} documents, {size}.")


@dataclass(frozen=True, kw_only=True)
class WriteStorybook:
    """Generate a corpus of short stories whose entropy is known; no download is needed.

    The same seed gives the same bytes on any machine and with any number of workers. Training and validation
    stories never share a plot. <|endoftext|> on a line of its own follows each story.

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
        """Write the stories, and print their size and entropy."""
        size = int(parse_bytes(self.size, default_unit="B", key="--size"))
        options.require_at_least(1, self.num_workers, "--num-workers")
        options.require_at_least(0, self.seed, "--seed")
        atomic.check_target(self.out, replace=self.replace)

        if self.cluster is not None and self.num_workers is not None:
            raise UsageError("give either --num-workers or --cluster, not both", key="--num-workers")
        started = time.perf_counter()
        written = self._write(size)
        seconds = time.perf_counter() - started
        console.print_line(
            f"Wrote {self.out}: {written.num_stories:,} stories, {format_bytes(written.num_bytes)}"
            f" in {format_seconds(seconds)}. Their entropy is {written.bits_per_byte:.4f} bits per"
            " byte: the expected loss of any model is at least that."
        )

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


STORIES_LISTED = 10


@dataclass(frozen=True, kw_only=True)
class CheckStories:
    """Parse stories, and count those that are well-formed, consistent, or copies of training stories.

    The stories are from the storybook, from the world book, or from a model that was trained on one of them;
    each ends with <|endoftext|>. The text itself shows from which book it is. A consistent story has an exact
    probability. For any other, the output states where it leaves the grammar and which facts are wrong. The
    facts of a world book depend on its world, which FILE.json or the options state.

    For example:
      bytewright corpus check samples.txt
      bytewright corpus check samples.txt --train stories.txt --json
      bytewright corpus check samples.txt --world 7 --exponent 1.5
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE", help="The stories to check.")]

    world: options.WorldSeed = None

    exponent: options.WorldExponent = None

    people: options.WorldPeople = None

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

        from bytewright.cli.texts import worldbook
        from bytewright.corpus.storybook import check_story_file
        from bytewright.corpus.worldbook.check import recognise_book

        world = worldbook.find_world(self.source, self.world, self.exponent, self.people)
        num_workers = self.num_workers or usable_cores()
        if recognise_book(self.source, world) == "worldbook":
            worldbook.check_documents(
                self.source, world, training_path=self.train, num_workers=num_workers, print_json=self.json
            )
            return
        with console.phase_progress("check", "bytes") as progress:
            checked = check_story_file(
                self.source, training_path=self.train, num_workers=num_workers, progress=progress
            )
        if len(checked.stories) == 1 and END_OF_TEXT.encode() not in atomic.read_bytes(self.source):
            console.print_remark(
                f"{self.source} has no {END_OF_TEXT}, so its whole text was checked as one story;"
                " the token must follow each story."
            )
        if self.json:
            print(
                json.dumps(story_report_fields(checked, copies_known=self.train is not None), allow_nan=False)
            )
        else:
            print_story_check(checked, copies_known=self.train is not None)


def story_report_fields(report: CheckReport, *, copies_known: bool) -> dict[str, object]:
    """Return the shares and all stories; infinite and unknown values are null."""
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


def print_story_check(report: CheckReport, *, copies_known: bool) -> None:
    """Print the shares as a table, then the first stories that are not consistent."""
    rows = {
        "stories": f"{len(report.stories):,}",
        "sentences that are well-formed": f"{report.sound_sentences:.1%}",
        "stories that are well-formed": f"{report.well_formed:.1%}",
        "stories that are also consistent": f"{report.consistent:.1%}",
    }
    if copies_known:
        rows["copies of training stories"] = f"{report.copies:.1%}"
    if report.bits_per_story is not None:
        rows["bits per consistent story"] = f"{report.bits_per_story:.1f}"
    console.print_table(("", ""), rows.items())
    outside = [(number, story) for number, story in enumerate(report.stories, 1) if not story.is_consistent]
    for number, story in outside[:STORIES_LISTED]:
        console.print_line(f"story {number:,} {describe_problem(story)}")
    if len(outside) > STORIES_LISTED:
        console.print_line(f"and {len(outside) - STORIES_LISTED:,} more; --json lists them all")


def describe_problem(story: StoryCheck) -> str:
    """Return where a story leaves the grammar, and its contradictions."""
    place = f"sentence {story.leaves_at_sentence}, character {story.leaves_at_character}"
    facts = ", ".join(story.contradictions)
    contradictions = f"; it contradicts itself about: {facts}" if facts else ""
    return f"leaves the grammar at {place}, at {story.found!r}{contradictions}"
