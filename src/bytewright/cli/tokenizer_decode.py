"""`bytewright tokenizer decode`: a token file, or ids on the command line, back to text."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bytewright import durable
from bytewright.cli import inputs
from bytewright.errors import UsageError

IDS_AT_A_TIME = 2**20


@dataclass(frozen=True, kw_only=True)
class DecodeIds:
    """Turn token ids back into the exact bytes they stand for.

    Refuses a token file that was encoded with another tokenizer.

    For example:
      bytewright tokenizer decode stories-10k stories.npy --out again.txt
      bytewright tokenizer decode stories-10k stories.npy | head
      bytewright tokenizer decode stories-10k --ids 430 511 32
    """

    tokenizer: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TOKENIZER")]
    """The tokenizer: our folder or GPT-2's, a tokenizer.json, or a file of tiktoken ranks."""

    source: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE]")] = None
    """The token file to decode."""

    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The text file to write; standard output by default."""

    ids: Annotated[tuple[int, ...], tyro.conf.arg(metavar="ID [ID ...]")] = ()
    """Decode these ids instead."""

    replace: bool = False
    """Replace a file that is there already."""
