"""Checks of what a command was given, made before any work starts.

A file that is missing, is no file, or is empty is the user's mistake: one sentence, exit code 2. This module
knows which kinds of tokenizer files there are only through `bytewright.tokenizer`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bytewright.errors import StorageError, UsageError
from bytewright.storage import atomic

if TYPE_CHECKING:
    from bytewright.tokenizer import Tokenizer, Vocabulary


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
