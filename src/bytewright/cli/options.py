"""Options that several commands have in common, spelled and explained the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

ANY_FORMAT = "our folder or GPT-2's, a tokenizer.json, or a file of tiktoken ranks"

BYTES_SHOWN = 60
"""How much of a token is shown in a list."""

TokenizerPath = Annotated[
    Path, tyro.conf.Positional, tyro.conf.arg(metavar="TOKENIZER", help=f"The tokenizer: {ANY_FORMAT}.")
]

RunPath = Annotated[
    Path,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="RUN", help="The folder of the run, or of one checkpoint."),
]

RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="The folder of the run.")]

OptionalFile = Annotated[
    Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE]", help_behavior_hint="(optional)")
]

OutputFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")]

OutputFolder = Annotated[Path, tyro.conf.arg(metavar="FOLDER")]

Overrides = Annotated[
    tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]],
    tyro.conf.arg(metavar="KEY=VALUE …", help_behavior_hint="(optional, repeatable)"),
]
"""Groups of values: `--set a=1 b=2 --set c=3` means three, as `list_overrides` gives them."""

GivenText = Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="(optional)")]

GivenFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")]

NumThreads = Annotated[
    int | None,
    tyro.conf.arg(
        metavar="INT",
        help="How many threads to use; the result does not depend on it.",
        help_behavior_hint="(default: all cores)",
    ),
]

NumWorkers = Annotated[
    int | None,
    tyro.conf.arg(
        metavar="INT",
        help="How many processes to use; the result does not depend on it.",
        help_behavior_hint="(default: all cores)",
    ),
]

Replace = Annotated[
    bool, tyro.conf.arg(help="Replace what is there already.", help_behavior_hint="(default: refuse)")
]


def list_overrides(groups: tuple[tuple[str, ...], ...]) -> list[str]:
    """List all values that were given, in order."""
    return [pair for group in groups for pair in group]
