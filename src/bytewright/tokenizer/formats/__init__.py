"""Read and write tokenizer files, one module per format.

| format | functions | not contained |
|---|---|---|
| folder of Bytewright | `read_bytewright`, `write_bytewright` | (complete) |
| GPT-2 `vocab.json` + `merges.txt` | `read_gpt2`, `write_gpt2` | special tokens, other patterns |
| Hugging Face `tokenizer.json` | `read_huggingface`, `write_huggingface` | specials spelled like others |
| tiktoken ranks | `read_tiktoken`, `write_tiktoken` | special tokens, pattern, unreachable tokens |

Files are untrusted. A reader returns a valid `Vocabulary` or raises a `FormatError` with the file, the
position, and what was expected and found. Memory and time are proportional to the file. Special tokens
and patterns that a format does not contain are arguments of its reader. Writers raise `TokenizerError` for
anything else that a format cannot represent. `read_vocabulary` detects the format of a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bytewright.data.tokenfile import TokenFile
from bytewright.errors import FormatError, UsageError
from bytewright.storage import atomic
from bytewright.tokenizer.formats.folder import read_bytewright, write_bytewright
from bytewright.tokenizer.formats.gpt2 import read_gpt2, write_gpt2
from bytewright.tokenizer.formats.huggingface import (
    read_huggingface,
    to_tokenizer_json,
    warn_of_pattern,
    write_huggingface,
)
from bytewright.tokenizer.formats.tiktoken import read_tiktoken, write_tiktoken
from bytewright.tokenizer.vocabulary import Vocabulary

__all__ = [
    "read_bytewright",
    "read_gpt2",
    "read_huggingface",
    "read_tiktoken",
    "read_vocabulary",
    "read_vocabulary_of",
    "to_tokenizer_json",
    "warn_of_pattern",
    "write_bytewright",
    "write_gpt2",
    "write_huggingface",
    "write_tiktoken",
]

GPT2_FILES = ("vocab.json", "merges.txt")


def read_vocabulary(
    path: atomic.StrPath, special_tokens: Sequence[str] = (), pattern: str | None = None
) -> Vocabulary:
    """Return the vocabulary of a tokenizer in any of the four formats.

    A folder contains our own format, GPT-2's two files or a `tokenizer.json`. A file is a `tokenizer.json` if
    its name ends in `.json`, else ranks. Special tokens may be given only for the formats without them, and a
    pattern only for ranks (default: GPT-2's).
    """
    path = Path(path)
    with atomic.explain("read", path):
        is_folder = path.is_dir()
        names = {child.name for child in path.iterdir()} if is_folder else set()
    if not is_folder and path.suffix != ".json":
        return read_tiktoken(path, special_tokens=special_tokens, pattern=pattern or "gpt2")
    if is_folder and not names:
        raise FormatError.at(path, "the folder is empty; expected a tokenizer in it")
    if len(names & set(GPT2_FILES)) == 1 and names.isdisjoint({"vocabulary.json", "tokenizer.json"}):
        found, missing = sorted(GPT2_FILES, key=names.__contains__, reverse=True)
        message = f"{path}: {missing} is missing; GPT-2's format needs it next to {found}"
        raise FormatError(message, path=path, expected=missing, found=found)
    if pattern is not None:
        raise UsageError.at(path, "contains its pattern, so none can be given", key="pattern")
    if names.issuperset(GPT2_FILES):
        return read_gpt2(path / "vocab.json", path / "merges.txt", special_tokens)
    if special_tokens:
        raise UsageError.at(path, "contains its special tokens, so none can be given", key="special_tokens")
    if not is_folder or "tokenizer.json" in names:
        return read_huggingface(path / "tokenizer.json" if is_folder else path)
    if names.isdisjoint({"manifest.json", "vocabulary.json"}):
        problem = "is not a tokenizer: it has no vocabulary.json, vocab.json or tokenizer.json"
        if (path / "tokenizer" / "manifest.json").is_file():
            problem = f"is not a tokenizer, but contains one; name {path / 'tokenizer'}"
        raise FormatError.at(path, problem)
    return read_bytewright(path)


def read_vocabulary_of(tokens: TokenFile, path: atomic.StrPath) -> Vocabulary:
    """Return the vocabulary of the tokenizer at `path`; raise unless `tokens` were encoded with it."""
    vocabulary = read_vocabulary(path)
    tokens.require_tokenizer(vocabulary.fingerprint)
    if vocabulary.size != tokens.manifest.vocabulary_size:  # tables of that size are made
        raise FormatError(
            f"{tokens.path}: its manifest has a vocabulary of {tokens.manifest.vocabulary_size},"
            f" but that of {path} is {vocabulary.size}",
            path=tokens.path,
            expected=vocabulary.size,
            found=tokens.manifest.vocabulary_size,
        )
    return vocabulary
