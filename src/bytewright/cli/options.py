"""Options that several commands share, and the checks of arguments that run before any work starts.

A file that is missing, empty or not a regular file raises `UsageError`: one sentence and exit code 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bytewright.errors import StorageError, UsageError
from bytewright.storage import atomic

if TYPE_CHECKING:
    from bytewright.tokenizer import Tokenizer, Vocabulary

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


def require_file(path: Path) -> Path:
    """Refuse a file that is missing, a directory, not a regular file, or empty."""
    require_exists(path)
    if path.is_dir():
        raise UsageError(f"{path} is a directory; a file is needed here")
    if not path.is_file():
        raise UsageError(f"{path} is not a regular file")
    if path.stat().st_size == 0:
        raise UsageError(f"{path} is empty")
    return path


def require_source(path: Path) -> Path:
    """Refuse what cannot be trained on: unlike `require_file`, a folder of texts will do."""
    require_exists(path)
    return path if path.is_dir() else require_file(path)


def require_exists(path: Path) -> Path:
    """Refuse a path at which there is nothing."""
    try:
        exists = path.exists()
    except OSError as error:
        raise UsageError(f"{path} cannot be looked at: {error.strerror}") from None
    if not exists:
        raise UsageError(f"{path} does not exist")
    return path


def read_text_bytes(path: Path) -> bytes:
    """Read a whole text as it is, valid UTF-8 or not."""
    try:
        return atomic.read_bytes(require_file(path))
    except StorageError as error:
        raise UsageError(str(error)) from None


def require_some(paths: tuple[Path, ...], what: str) -> tuple[Path, ...]:
    """Refuse an empty list of paths."""
    if not paths:
        raise UsageError(f"{what} is needed, and none was given (see --help)")
    return paths


def require_at_least(least: int, value: int | None, option: str) -> None:
    """Refuse a number that is too small; one that was not given is never too small."""
    if value is not None and value < least:
        raise UsageError(f"{option} is {value}; it must be at least {least}")


def load_vocabulary(
    path: Path, special_tokens: tuple[str, ...] = (), pattern: str | None = None
) -> Vocabulary:
    """Read a tokenizer from our folder, GPT-2's pair of files, a `tokenizer.json` or tiktoken ranks."""
    from bytewright.tokenizer.files import read_vocabulary

    try:
        return read_vocabulary(require_exists(path), special_tokens, pattern)
    except StorageError as error:
        raise UsageError(str(error)) from None


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer as `load_vocabulary` does, and make it ready for use."""
    from bytewright.tokenizer import Tokenizer

    return Tokenizer.from_vocabulary(load_vocabulary(path))
