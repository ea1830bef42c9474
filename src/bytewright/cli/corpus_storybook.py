"""`bytewright corpus storybook`: as many stories as fit into a file, and the floor under all their models."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from bytewright.cli import inputs, options
from bytewright.errors import UsageError
from bytewright.formatting import format_seconds
from bytewright.storage import atomic

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


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
        size = parse_size(self.size)
        inputs.require_at_least(1, self.num_workers, "--num-workers")
        inputs.require_at_least(0, self.seed, "--seed")
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
                num_workers=self.num_workers or os.cpu_count() or 1,
                progress=lambda done, total: report("stories", done, total, "bytes"),
            )
        seconds = time.perf_counter() - started
        console.stdout().print(
            f"Wrote {self.out}: {written.num_stories:,} stories, {console.format_bytes(written.num_bytes)}"
            f" in {format_seconds(seconds)}. They carry {written.bits_per_byte:.4f} bits per byte:"
            " no model of the grammar can be expected to need fewer.",
            soft_wrap=True,
        )


def parse_size(text: str) -> int:
    """Read a size such as 50MB; units are decimal unless they say otherwise (MiB).

    >>> parse_size("50MB"), parse_size("1.5 kB"), parse_size("2MiB"), parse_size("800")
    (50000000, 1500, 2097152, 800)
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?) ?([a-z]*)", text.strip().lower())
    if not match or match[2] not in UNITS:
        raise UsageError(f"--size is {text!r}; a number with a unit is needed, such as 500kB, 50MB or 1GB")
    return int(float(match[1]) * UNITS[match[2]])
