"""Reading and writing tokenizer files: our own folder, and the three formats that others read.

| format | read | write | what it cannot say |
|---|---|---|---|
| our folder | `read_folder` | `write_folder` | nothing is lost |
| GPT-2 `vocab.json` + `merges.txt` | `read_gpt2` | `write_gpt2` | which tokens are special; another pattern |
| Hugging Face `tokenizer.json` | `read_huggingface` | `write_huggingface` | specials spelled like tokens |
| tiktoken ranks | `read_tiktoken` | `write_tiktoken` | special tokens, the pattern, unreachable tokens |

Readers give a `Vocabulary` or one sentence, and trust nothing in a file (see `formats`, a module for each).
Special tokens and pattern that a format leaves out are arguments of its reader; anything else that it cannot
say is refused on writing. `read_vocabulary` finds out which one a path holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bytewright.errors import FormatError, UsageError
from bytewright.storage import atomic
from bytewright.tokenizer.formats.folder import read_folder, write_folder
from bytewright.tokenizer.formats.gpt2 import read_gpt2, write_gpt2
from bytewright.tokenizer.formats.huggingface import read_huggingface, warn_of_pattern, write_huggingface
from bytewright.tokenizer.formats.tiktoken import read_tiktoken, write_tiktoken
from bytewright.tokenizer.vocabulary import Vocabulary

__all__ = [
    "read_folder",
    "read_gpt2",
    "read_huggingface",
    "read_tiktoken",
    "read_vocabulary",
    "warn_of_pattern",
    "write_folder",
    "write_gpt2",
    "write_huggingface",
    "write_tiktoken",
]

GPT2_FILES = ("vocab.json", "merges.txt")


def read_vocabulary(
    path: atomic.StrPath, special_tokens: Sequence[str] = (), pattern: str | None = None
) -> Vocabulary:
    """Read a tokenizer in whichever of the four formats `path` is.

    A folder may hold our own format, GPT-2's two files or a `tokenizer.json`; a file is a `tokenizer.json` if
    its name ends in `.json`, and ranks if not. Special tokens may be named only for the formats that do not,
    and a pattern only for ranks, where it is GPT-2's by default.
    """
    path = Path(path)
    with atomic.explain("read", path):
        is_folder = path.is_dir()
        names = {child.name for child in path.iterdir()} if is_folder else set()
    if not is_folder and path.suffix != ".json":
        return read_tiktoken(path, special_tokens=special_tokens, pattern=pattern or "gpt2")
    if is_folder and not names:
        raise FormatError(f"{path}: the folder is empty; expected a tokenizer in it")
    if len(names & set(GPT2_FILES)) == 1 and names.isdisjoint({"vocabulary.json", "tokenizer.json"}):
        found, missing = sorted(GPT2_FILES, key=names.__contains__, reverse=True)
        raise FormatError(f"{path}: has {found} but no {missing}, and GPT-2's format needs both")
    if pattern is not None:
        raise UsageError(f"{path}: has a pattern of its own, so none can be given")
    if names.issuperset(GPT2_FILES):
        return read_gpt2(path / "vocab.json", path / "merges.txt", special_tokens)
    if special_tokens:
        raise UsageError(f"{path}: says itself which tokens are special, so none can be named")
    if not is_folder or "tokenizer.json" in names:
        return read_huggingface(path / "tokenizer.json" if is_folder else path)
    return read_folder(path)
