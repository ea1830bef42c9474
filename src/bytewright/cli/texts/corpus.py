"""`bytewright corpus get`, `stats` and `text`: download, measure and convert text files."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bytewright.cli import console, options
from bytewright.corpus import END_OF_TEXT
from bytewright.formatting import format_bytes
from bytewright.storage import atomic

if TYPE_CHECKING:
    from bytewright.corpus.stats import CorpusStats


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
    out: options.OutputFolder = Path("data")
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
        sources = options.require_some(self.files, "FILE", "corpus stats")
        if self.cluster is None:
            stats = self._measure(sources)
        else:
            from bytewright.cli.texts.cluster import check_options, measure_on_cluster

            check_options(clean=self.clean)
            stats = measure_on_cluster(self.cluster, sources, field=self.field, num_common=self.top)
        if self.json:
            print(json.dumps(dataclasses.asdict(stats)))
        else:
            print_stats(stats)

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
        sources = options.require_some(self.files, "FILE", "corpus text")
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
