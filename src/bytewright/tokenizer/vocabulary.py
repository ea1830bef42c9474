"""What a tokenizer *is*: tokens, merges, special tokens and a pattern, with nothing that runs.

`Vocabulary` is the value that the trainer produces, that every file format reads and writes, and that both
twins encode with. It is checked once, on construction, so that everything behind it may rely on these facts:

- every byte 0-255 is a token; ids are unique and fit in 32 bits; no two ordinary tokens are the same bytes;
- both halves of a merge are bytes or were made by an *earlier* merge, and what it makes is a token;
- special tokens are non-empty, distinct, and have ids of their own.

It knows nothing of files, threads or the native extension.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from bytewright.errors import TokenizerError

MAX_TOKEN_ID = 2**32 - 1

PATTERNS: Mapping[str, str] = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt4": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
}
"""The pre-tokenisation patterns that have a name; any other string given as a pattern is a regular expression."""

Merge = tuple[bytes, bytes]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Tokens by id, merges in order of creation, special tokens by text, and the pre-tokenisation pattern.

    `tokens` holds the special tokens too, as their UTF-8 bytes. `pattern` is a name from `PATTERNS` or a
    regular expression of the user's own.
    """

    tokens: Mapping[int, bytes]
    merges: tuple[Merge, ...]
    special_tokens: Mapping[str, int]
    pattern: str = "gpt2"

    def __post_init__(self) -> None:
        _check_tokens(self.tokens, self.special_tokens)
        _check_merges(self.merges, set(self.ids_of_ordinary_tokens))

    @classmethod
    def from_parts(
        cls,
        tokens: Mapping[int, bytes],
        merges: Iterable[Merge],
        special_tokens: Iterable[str] | None = None,
        pattern: str = "gpt2",
    ) -> Vocabulary:
        """Join tokens, merges and special tokens; specials that `tokens` lacks get the next free ids."""
        tokens = dict(tokens)
        special_tokens = list(special_tokens or ())
        if duplicate := first_duplicate(special_tokens):
            raise TokenizerError(f"special token {duplicate!r} is given twice")
        made_by_merge = {left + right for left, right in merges}
        id_of = {
            token: id for id, token in tokens.items() if token not in made_by_merge and len(token) != 1
        }
        next_id = max(tokens, default=-1) + 1
        specials: dict[str, int] = {}
        for special in special_tokens:
            token = special.encode()
            if token not in id_of:
                tokens[next_id] = token
                id_of[token] = next_id
                next_id += 1
            specials[special] = id_of[token]
        return cls(tokens=tokens, merges=tuple(merges), special_tokens=specials, pattern=pattern)

    @cached_property
    def ids_of_ordinary_tokens(self) -> dict[bytes, int]:
        """The id of every token that is not special, by its bytes."""
        special_ids = set(self.special_tokens.values())
        return {token: id for id, token in self.tokens.items() if id not in special_ids}

    @property
    def size(self) -> int:
        """One more than the largest id: the number of rows an embedding needs."""
        return max(self.tokens) + 1

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that decides how text becomes ids, as 64 hexadecimal digits.

        Every field is preceded by its length, so no two vocabularies spell the same stream of bytes.
        """
        digest = hashlib.sha256(b"bytewright vocabulary 1")

        def absorb(field: bytes) -> None:
            digest.update(len(field).to_bytes(8, "little"))
            digest.update(field)

        absorb(PATTERNS.get(self.pattern, self.pattern).encode())
        absorb(str(len(self.tokens)).encode())
        for id in sorted(self.tokens):
            absorb(str(id).encode())
            absorb(self.tokens[id])
        absorb(str(len(self.merges)).encode())
        for left, right in self.merges:
            absorb(left)
            absorb(right)
        for special in sorted(self.special_tokens):
            absorb(special.encode())
            absorb(str(self.special_tokens[special]).encode())
        return digest.hexdigest()


def first_duplicate(items: Iterable[str]) -> str | None:
    """Return the first item that occurs a second time, or None: `["a", "b", "a"] -> "a"`."""
    seen: set[str] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


def _check_tokens(tokens: Mapping[int, bytes], special_tokens: Mapping[str, int]) -> None:
    specials_by_id: dict[int, str] = {}
    for special, id in special_tokens.items():
        if not special:
            raise TokenizerError("a special token is empty; it must be at least one character")
        if id in specials_by_id:
            raise TokenizerError(f"special tokens {specials_by_id[id]!r} and {special!r} share the id {id}")
        if tokens.get(id) != special.encode():
            raise TokenizerError(
                f"special token {special!r} has the id {id}, but that id stands for {tokens.get(id)!r}"
            )
        specials_by_id[id] = special
    id_of: dict[bytes, int] = {}
    for id, token in tokens.items():
        if not 0 <= id <= MAX_TOKEN_ID:
            raise TokenizerError(f"token id {id} is outside the range 0 to {MAX_TOKEN_ID}")
        if not token:
            raise TokenizerError(f"token {id} is empty")
        if id in specials_by_id:
            continue
        if token in id_of:
            raise TokenizerError(f"ids {id_of[token]} and {id} stand for the same token {token!r}")
        id_of[token] = id
    for byte in range(256):
        if bytes([byte]) not in id_of:
            raise TokenizerError(f"byte {byte:#04x} is missing: a byte-level vocabulary holds all 256 bytes")


def _check_merges(merges: tuple[Merge, ...], ordinary_tokens: set[bytes]) -> None:
    made: set[bytes] = {bytes([byte]) for byte in range(256)}
    seen: set[Merge] = set()
    for number, (left, right) in enumerate(merges):
        if (left, right) in seen:
            raise TokenizerError(f"merge {number} ({left!r}, {right!r}) is given twice")
        seen.add((left, right))
        for half in (left, right):
            if half not in made:
                raise TokenizerError(
                    f"merge {number} ({left!r}, {right!r}) uses {half!r}, which no earlier merge makes"
                )
        if left + right not in ordinary_tokens:
            raise TokenizerError(
                f"merge {number} makes {left + right!r}, which is not in the vocabulary"
            )
        made.add(left + right)
