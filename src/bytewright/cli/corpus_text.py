"""`bytewright corpus text`: the documents of files in any format as one plain text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bytewright.cli import inputs, options
from bytewright.end_of_text import END_OF_TEXT
from bytewright.storage import atomic


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
        files = [inputs.require_file(path) for path in inputs.require_some(self.files, "a file")]
        for path in files:
            atomic.refuse_own_input(path, self.out)
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
            f"Wrote {self.out}: {written.num_documents:,} documents,"
            f" {console.format_bytes(written.num_bytes)}.",
            soft_wrap=True,
        )
