"""`bytewright corpus get`: public corpora, downloaded and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


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
        from bytewright.corpus.public import CORPORA, get_file

        corpus = CORPORA[self.name]
        console.stderr().print(f"{self.name}: {corpus.about}.", soft_wrap=True)
        for file in corpus.files:
            with console.progress() as report:
                is_new = get_file(
                    file,
                    self.out,
                    progress=lambda what, done, total: report(what, done, total, "bytes"),
                )
            size = console.format_bytes(file.text.num_bytes)
            what = (
                f"Wrote {self.out / file.name}: {size}"
                if is_new
                else f"{self.out / file.name} is there already"
            )
            console.stdout().print(f"{what}, SHA-256 {file.text.sha256[:12]}… as expected.", soft_wrap=True)
