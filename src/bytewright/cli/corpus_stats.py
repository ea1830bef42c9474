"""`bytewright corpus stats`: what is in a file of text."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bytewright.cli import inputs

if TYPE_CHECKING:
    from bytewright.corpus.stats import CorpusStats


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

        inputs.require_at_least(0, self.top, "--top")
        with console.progress() as report:
            stats = measure_corpus(
                inputs.require_file(self.file),
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
