"""`Vocabulary`: the tokens, merges, special tokens and pattern of a tokenizer.

The trainer returns a `Vocabulary`, the file formats read and write it, and both implementations encode with
it. It is validated once, on construction, and guarantees:

- ids are unique and fit into 32 bits; at least one token is ordinary, and ordinary tokens are distinct;
- both halves of a merge are bytes or results of *earlier* merges;
- the result of a merge is an ordinary token that no other merge produces, so "merges in order" and "lowest
  rank first" are the same;
- special tokens are non-empty, distinct, valid Unicode, and have their own ids.

A byte may lack a token. Then only texts without that byte can be encoded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from bytewright.corpus import END_OF_TEXT
from bytewright.errors import FormatError, TokenizerError, UsageError, shorten
from bytewright.storage.filesystem import StrPath

MAX_TOKEN_ID = 2**32 - 1

PATTERNS: Mapping[str, str] = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt4": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
}
"""The named pre-tokenisation patterns; any other pattern is a regular expression."""

SPELLINGS = {expression: name for name, expression in PATTERNS.items()} | {
    # The same patterns as first published, which most files contain.
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ): "gpt4",
}
"""All recognised spellings of the named patterns."""

_LOOKS_LIKE_A_NAME = re.compile(r"[\w-]+")

Merge = tuple[bytes, bytes]
Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    r"""Tokens by id, merges in order of creation, special tokens by text, and the pre-tokenisation pattern.

    `tokens` includes the special tokens as UTF-8 bytes. `pattern` is a name from `PATTERNS` or a regular
    expression; an expression equal to a named pattern is replaced by the name. The reference uses Python's
    `regex` and the fused implementation Rust's `fancy-regex`. Their syntax differs in places (`\h`, `&&` in
    classes, `$`, `\X`); use only expressions that both interpret alike.
    """

    tokens: Mapping[int, bytes]
    merges: tuple[Merge, ...]
    special_tokens: Mapping[str, int]
    pattern: str = "gpt2"

    def __post_init__(self) -> None:
        for field in ("tokens", "special_tokens"):
            # A read-only copy: later changes by the caller have no effect.
            object.__setattr__(self, field, MappingProxyType(dict(getattr(self, field))))
        object.__setattr__(self, "merges", tuple(self.merges))
        object.__setattr__(self, "pattern", name_of_pattern(self.pattern))
        _encode(self.pattern, "pattern")
        _check_special_tokens(self.special_tokens, self.tokens)
        _check_types(self.tokens, self.merges)
        _check_tokens(self.tokens, set(self.special_tokens.values()))
        _check_merges(self.merges, self.ids_of_ordinary_tokens)

    @classmethod
    def from_parts(
        cls,
        tokens: Mapping[int, bytes],
        merges: Iterable[Merge],
        special_tokens: Mapping[str, int] | Iterable[str] | None = None,
        pattern: str = "gpt2",
    ) -> Vocabulary:
        """Return a vocabulary; special tokens may be given with their ids or by name only.

        Names that are not in `tokens` get the next free ids. A special token may have the same bytes as an
        ordinary one (a byte or the result of a merge). Then the larger of the two ids is the special one.

        >>> tokens = {id: bytes([id]) for id in range(256)} | {300: b"<|end|>"}
        >>> dict(Vocabulary.from_parts(tokens, [], ["<|end|>", "a"]).special_tokens)
        {'<|end|>': 300, 'a': 301}
        """
        tokens, merges = dict(tokens), tuple(merges)
        _check_types(tokens, merges)
        if isinstance(special_tokens, Mapping):
            for special, id in special_tokens.items():
                tokens.setdefault(id, _encode(special, "special token"))
            return cls(tokens=tokens, merges=merges, special_tokens=special_tokens, pattern=pattern)
        special_tokens = list_special_tokens(special_tokens)
        if (duplicate := first_duplicate(special_tokens)) is not None:
            message = f"special token {shorten(duplicate)} is given twice"
            raise TokenizerError(message, key="special_tokens", found=duplicate)
        wanted = {_encode(special, "special token") for special in special_tokens}
        lengths = {len(token) for token in wanted}  # long tokens are not concatenated: that costs memory
        made_by_merge = {a + b for a, b in merges if len(a) + len(b) in lengths}
        free: dict[bytes, int] = {}
        ordinary: set[bytes] = set()
        for id in sorted(id for id, token in tokens.items() if token in wanted):
            token = tokens[id]
            if token not in ordinary and (len(token) == 1 or token in made_by_merge):
                ordinary.add(token)
            else:
                free.setdefault(token, id)
        next_id = max(tokens, default=-1) + 1
        specials: dict[str, int] = {}
        for special in special_tokens:
            token = _encode(special, "special token")
            if token not in free:
                free[token] = next_id
                tokens[next_id] = token
                next_id += 1
            specials[special] = free[token]
        return cls(tokens=tokens, merges=merges, special_tokens=specials, pattern=pattern)

    def __reduce__(self) -> tuple[object, ...]:
        """Return the parts for copying and pickling; mapping proxies cannot be pickled."""
        return Vocabulary.from_parts, (
            dict(self.tokens),
            self.merges,
            dict(self.special_tokens),
            self.pattern,
        )

    @cached_property
    def ids_of_ordinary_tokens(self) -> dict[bytes, int]:
        """The ids of all tokens that are not special, by their bytes."""
        special_ids = set(self.special_tokens.values())
        return {token: id for id, token in self.tokens.items() if id not in special_ids}

    @cached_property
    def bytes_without_token(self) -> bytes:
        """The bytes without an ordinary token, in order; they cannot be encoded."""
        return bytes(byte for byte in range(256) if bytes([byte]) not in self.ids_of_ordinary_tokens)

    @cached_property
    def size(self) -> int:
        """The largest id plus one: the number of rows of an embedding."""
        return max(self.tokens) + 1

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of everything that affects ids, as 64 hexadecimal digits.

        The length precedes each field, so different vocabularies are hashed as different streams of bytes.
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


def name_of_pattern(pattern: str) -> str:
    """Return the name of a pattern that is written out, or the pattern itself if it has no name.

    An unknown name raises `TokenizerError`: as a regular expression it would match only itself.

    >>> name_of_pattern(PATTERNS["gpt2"]), name_of_pattern("gpt2"), name_of_pattern("[a-z]+")
    ('gpt2', 'gpt2', '[a-z]+')
    >>> name_of_pattern("gpt5")
    Traceback (most recent call last):
    bytewright.errors.TokenizerError: unknown pattern 'gpt5'; known are gpt2 and gpt4 (a regular expression \
must contain more than letters, digits, _ and -)
    """
    if isinstance(pattern, str) and pattern not in PATTERNS and _LOOKS_LIKE_A_NAME.fullmatch(pattern):
        message = (
            f"unknown pattern {shorten(pattern)}; known are {' and '.join(PATTERNS)} (a regular expression"
            " must contain more than letters, digits, _ and -)"
        )
        raise TokenizerError(message, key="pattern", found=pattern)
    return SPELLINGS.get(pattern, pattern)


def list_special_tokens(special_tokens: Iterable[str] | None, key: str = "special_tokens") -> list[str]:
    """Return the names of special tokens as a list; a single string is rejected. `key` names the argument."""
    if isinstance(special_tokens, str):
        message = f"{key} must be a list of strings, but is the string {shorten(special_tokens)}"
        raise UsageError(message, key=key, found=special_tokens)
    return list(special_tokens or ())


def find_end_of_text(vocabulary: Vocabulary) -> tuple[str, int] | None:
    """Return the special token that ends a text, with its id: `END_OF_TEXT`, or else the first one."""
    specials = vocabulary.special_tokens
    if not specials:
        return None
    name = END_OF_TEXT if END_OF_TEXT in specials else min(specials, key=lambda special: specials[special])
    return name, specials[name]


def check_all_bytes(vocabulary: Vocabulary, purpose: str) -> None:
    """Raise `TokenizerError` unless each of the 256 bytes has a token, which `purpose` requires."""
    if missing := vocabulary.bytes_without_token:
        message = f"byte {missing[0]:#04x} has no token; {purpose} requires all 256 bytes"
        raise TokenizerError(message, found=missing[0])


@contextmanager
def naming_files(*files: StrPath) -> Iterator[None]:
    """Convert a `TokenizerError` in the block to a `FormatError` that names the files.

    >>> with naming_files("vocab.json", "merges.txt"):
    ...     raise TokenizerError("byte 0x61 is missing")
    Traceback (most recent call last):
    bytewright.errors.FormatError: vocab.json, merges.txt: byte 0x61 is missing
    """
    try:
        yield
    except TokenizerError as error:
        names = ", ".join(str(Path(file)) for file in files)
        message = f"{names}: {error}"
        raise FormatError(message, path=files[0], key=error.key, found=error.found) from None


def first_duplicate(items: Iterable[Item]) -> Item | None:
    """Return the first item that occurs a second time, or None: `["a", "b", "a"] -> "a"`."""
    seen: set[Item] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


def _encode(text: str, what: str) -> bytes:
    if not isinstance(text, str):
        raise TokenizerError(f"{what} {shorten(text)} is not a string", found=text)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = f"{what} {shorten(text)} is not Unicode text: character {error.start} is a lone surrogate"
        raise TokenizerError(message, found=text) from None


def _check_types(tokens: Mapping[int, bytes], merges: tuple[Merge, ...]) -> None:
    for id, token in tokens.items():
        if type(id) is not int or not 0 <= id <= MAX_TOKEN_ID:
            message = f"token id {shorten(id)} is not an integer from 0 to {MAX_TOKEN_ID}"
            raise TokenizerError(message, expected=MAX_TOKEN_ID, found=id)
        if not isinstance(token, bytes) or not token:
            raise TokenizerError(f"token {id} must be one or more bytes, not {shorten(token)}", found=token)
    for number, merge in enumerate(merges):
        if not isinstance(merge, tuple) or [type(half) for half in merge] != [bytes, bytes]:
            message = f"merge {number} must be a tuple of two byte strings, not {shorten(merge)}"
            raise TokenizerError(message, expected="(bytes, bytes)", found=merge)


def _check_special_tokens(special_tokens: Mapping[str, int], tokens: Mapping[int, bytes]) -> None:
    owner: dict[int, str] = {}
    for special, id in special_tokens.items():
        token = _encode(special, "special token")
        if not token:
            raise TokenizerError("a special token is empty; it must be at least one character")
        if id in owner:
            message = f"special tokens {shorten(owner[id])} and {shorten(special)} share the id {shorten(id)}"
            raise TokenizerError(message, found=id)
        if tokens.get(id) != token:
            stands_for = f"stands for {shorten(tokens[id])}" if id in tokens else "is not in the vocabulary"
            message = f"special token {shorten(special)} has the id {shorten(id)}, but that id {stands_for}"
            raise TokenizerError(message, expected=token, found=tokens.get(id))
        owner[id] = special


def _check_tokens(tokens: Mapping[int, bytes], special_ids: set[int]) -> None:
    id_of: dict[bytes, int] = {}
    for id, token in tokens.items():
        if id in special_ids:
            continue
        if token in id_of:
            message = f"ids {id_of[token]} and {id} stand for the same token {shorten(token)}"
            raise TokenizerError(message, found=token)
        id_of[token] = id
    if not id_of:
        raise TokenizerError("the vocabulary has no ordinary token; it must have at least one")


def _check_merges(merges: tuple[Merge, ...], ordinary_tokens: Mapping[bytes, int]) -> None:
    made = {id for token, id in ordinary_tokens.items() if len(token) == 1}
    for number, (left, right) in enumerate(merges):
        product = ordinary_tokens.get(left + right)
        if ordinary_tokens.get(left) not in made or ordinary_tokens.get(right) not in made:
            missing = left if ordinary_tokens.get(left) not in made else right
            reason = "has no token" if len(missing) == 1 else "no earlier merge makes"
            problem = f"uses {shorten(missing)}, which {reason}"
        elif product is None:
            problem = f"makes {shorten(left + right)}, which is not in the vocabulary"
        elif product in made:
            problem = f"makes {shorten(left + right)}, which an earlier merge makes already"
        else:
            made.add(product)
            continue
        message = f"merge {number} ({shorten(left)}, {shorten(right)}) {problem}"
        raise TokenizerError(message, found=(left, right))
