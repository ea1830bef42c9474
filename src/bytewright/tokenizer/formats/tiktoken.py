"""tiktoken's format: one token a line, in base64, with its rank, which is also its id.

The file says nothing of merges, which are recovered from the ranks, nor of special tokens and pattern, which
are arguments here as they are in tiktoken. Only vocabularies in which every token is reachable mean the same
there and here (see `ranks`); any other is refused on reading and on writing. Where one special token begins
like another, tiktoken does not say which it takes; we take the longer. Every byte must have a token.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping

from bytewright.errors import FormatError, TokenizerError
from bytewright.storage import atomic
from bytewright.storage.json_reader import read_lines, shorten
from bytewright.tokenizer.vocabulary import (
    Vocabulary,
    blaming,
    check_all_bytes,
    check_reachable,
    name_of_pattern,
    recover_merges,
)

FORMAT = "tiktoken's format"
_RANK = re.compile(r"0|[1-9][0-9]{0,9}")


def write_tiktoken(vocabulary: Vocabulary, path: atomic.StrPath) -> None:
    """Write the ranks of the ordinary tokens; special tokens and pattern are arguments of tiktoken itself."""
    check_all_bytes(vocabulary, FORMAT)
    check_reachable(vocabulary)
    id_of = vocabulary.ids_of_ordinary_tokens
    previous = -1
    for number, (left, right) in enumerate(vocabulary.merges):
        id = id_of[left + right]
        if id < previous:
            raise TokenizerError(
                f"tiktoken merges in the order of ids, but merge {number} makes id {id} after id {previous}"
            )
        previous = id
    lines = [
        base64.b64encode(token).decode() + f" {id}\n"
        for token, id in sorted(id_of.items(), key=lambda item: item[1])
    ]
    atomic.write_text(path, "".join(lines))


def read_tiktoken(
    path: atomic.StrPath,
    *,
    special_tokens: Mapping[str, int] | Iterable[str] = (),
    pattern: str = "gpt2",
) -> Vocabulary:
    """Read a ranks file; special tokens without ids of their own get the next free ones."""
    pattern = name_of_pattern(pattern)
    tokens = _read_ranks(path)
    with blaming(path):
        merges = recover_merges([tokens[rank] for rank in sorted(tokens) if len(tokens[rank]) > 1])
        vocabulary = Vocabulary.from_parts(tokens, merges, special_tokens, pattern)
        check_all_bytes(vocabulary, FORMAT)  # tiktoken panics without them, and truncated files show by this
        return vocabulary


def _read_ranks(path: atomic.StrPath) -> dict[int, bytes]:
    tokens: dict[int, bytes] = {}
    line_of: dict[bytes, int] = {}
    for number, line in enumerate(read_lines(path), start=1):
        spelling, _, rank = line.partition(" ")
        try:
            token = base64.b64decode(spelling, validate=True)
        except (binascii.Error, ValueError):
            token = b""
        if not token:
            raise FormatError(
                f"{path}: line {number} should begin with a token in base64, but is {shorten(line)}"
            )
        if not _RANK.fullmatch(rank):
            raise FormatError(f"{path}: line {number} should end in a rank, but ends in {shorten(rank)}")
        if int(rank) in tokens:
            raise FormatError(f"{path}: line {number} gives rank {rank} again")
        if token in line_of:
            raise FormatError(f"{path}: line {number} gives the token of line {line_of[token]} again")
        tokens[int(rank)] = token
        line_of[token] = number
    return tokens
