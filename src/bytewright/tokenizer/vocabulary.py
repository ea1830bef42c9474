"""What a tokenizer *is*: tokens, merges, special tokens and a pattern, with nothing that runs.

`Vocabulary` is the value that the trainer produces, that every file format reads and writes, and that both
twins encode with. It is checked once, on construction, so that everything behind it may rely on these facts:

- ids are unique and fit in 32 bits; no two ordinary tokens are the same bytes, and there is one;
- both halves of a merge are bytes or were made by an *earlier* merge; what it makes is an ordinary token, and
  no other merge makes that token, so "merges in order" and "lowest rank first" mean the same thing;
- special tokens are non-empty, distinct, valid Unicode, and have ids of their own.

A byte may lack a token. Such a vocabulary encodes every text without that byte, and any other is an error.

It knows nothing of files, threads or the native extension.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from bytewright.errors import FormatError, TokenizerError, UsageError
from bytewright.storage.json_reader import shorten

MAX_TOKEN_ID = 2**32 - 1

PATTERNS: Mapping[str, str] = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt4": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
}
"""The pre-tokenisation patterns that have a name; any other pattern is a regular expression."""

SPELLINGS = {expression: name for name, expression in PATTERNS.items()} | {
    # The same two patterns as their authors first published them, which is how most files spell them.
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ): "gpt4",
}
"""Every spelling of a named pattern that is recognised as such."""

_LOOKS_LIKE_A_NAME = re.compile(r"[\w-]+")

Merge = tuple[bytes, bytes]
Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    r"""Tokens by id, merges in order of creation, special tokens by text, and the pre-tokenisation pattern.

    `tokens` holds the special tokens too, as their UTF-8 bytes. `pattern` is a name from `PATTERNS` or a
    regular expression of the user's own; one that spells out a named pattern becomes the name. The reference
    reads such an expression with Python's `regex` and the fast twin with Rust's `fancy-regex`, whose syntax
    differs in places (`\h`, `&&` in classes, `$`, `\X`): what both read alike is safe.
    """

    tokens: Mapping[int, bytes]
    merges: tuple[Merge, ...]
    special_tokens: Mapping[str, int]
    pattern: str = "gpt2"

    def __post_init__(self) -> None:
        for field in ("tokens", "special_tokens"):
            # A copy, for what the caller does with his is his affair; and nobody can change ours.
            object.__setattr__(self, field, MappingProxyType(dict(getattr(self, field))))
        object.__setattr__(self, "merges", tuple(self.merges))
        object.__setattr__(self, "pattern", name_of_pattern(self.pattern))
        _encode(self.pattern, "pattern")
        _check_special_tokens(self.special_tokens, self.tokens)
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
        """Join tokens, merges and special tokens, these with their ids or by name alone.

        Names that `tokens` lacks get the next free ids. A special token may be spelled like an ordinary one
        (a byte, or what a merge makes): of two ids with the same bytes, the larger is the special one.

        >>> tokens = {id: bytes([id]) for id in range(256)} | {300: b"<|end|>"}
        >>> dict(Vocabulary.from_parts(tokens, [], ["<|end|>", "a"]).special_tokens)
        {'<|end|>': 300, 'a': 301}
        """
        tokens, merges = dict(tokens), tuple(merges)
        if isinstance(special_tokens, Mapping):
            for special, id in special_tokens.items():
                tokens.setdefault(id, _encode(special, "special token"))
            return cls(tokens=tokens, merges=merges, special_tokens=special_tokens, pattern=pattern)
        special_tokens = list_special_tokens(special_tokens)
        if (duplicate := first_duplicate(special_tokens)) is not None:
            raise TokenizerError(f"special token {shorten(duplicate)} is given twice")
        wanted = {_encode(special, "special token") for special in special_tokens}
        lengths = {len(token) for token in wanted}  # a token may be as long as the text it was learnt from
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
        """Copy and send to other processes what was checked; views as such cannot be."""
        return Vocabulary.from_parts, (
            dict(self.tokens),
            self.merges,
            dict(self.special_tokens),
            self.pattern,
        )

    @cached_property
    def ids_of_ordinary_tokens(self) -> dict[bytes, int]:
        """The id of every token that is not special, by its bytes."""
        special_ids = set(self.special_tokens.values())
        return {token: id for id, token in self.tokens.items() if id not in special_ids}

    @cached_property
    def bytes_without_token(self) -> bytes:
        """The bytes that no ordinary token spells, in order; none of them can be encoded."""
        return bytes(byte for byte in range(256) if bytes([byte]) not in self.ids_of_ordinary_tokens)

    @cached_property
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


def name_of_pattern(pattern: str) -> str:
    """Return the name of a pattern that is spelled out, if it has one, or else the pattern as it is.

    A pattern that looks like a name but is none is refused: as a regular expression it would match only
    itself, and a vocabulary trained with it would be rubbish.

    >>> name_of_pattern(PATTERNS["gpt2"]), name_of_pattern("gpt2"), name_of_pattern("[a-z]+")
    ('gpt2', 'gpt2', '[a-z]+')
    >>> name_of_pattern("gpt5")
    Traceback (most recent call last):
    bytewright.errors.TokenizerError: pattern 'gpt5' has no meaning; known are gpt2 and gpt4, and a regular \
expression holds more than letters, digits, _ and -
    """
    if isinstance(pattern, str) and pattern not in PATTERNS and _LOOKS_LIKE_A_NAME.fullmatch(pattern):
        raise TokenizerError(
            f"pattern {shorten(pattern)} has no meaning; known are {' and '.join(PATTERNS)},"
            " and a regular expression holds more than letters, digits, _ and -"
        )
    return SPELLINGS.get(pattern, pattern)


def list_special_tokens(special_tokens: Iterable[str] | None) -> list[str]:
    """Return the names of special tokens as a list; a single text is refused, for its letters would pass."""
    if isinstance(special_tokens, str):
        raise UsageError(f"special_tokens is the text {shorten(special_tokens)}; expected a list of texts")
    return list(special_tokens or ())


def check_all_bytes(vocabulary: Vocabulary, purpose: str) -> None:
    """Raise a `TokenizerError` unless each of the 256 bytes has a token, as `purpose` needs."""
    if missing := vocabulary.bytes_without_token:
        raise TokenizerError(f"byte {missing[0]:#04x} has no token; {purpose} needs all 256 bytes")


@contextmanager
def blaming(*files: str | os.PathLike[str]) -> Iterator[None]:
    """Name the files whose contents contradict themselves.

    >>> with blaming("vocab.json", "merges.txt"):
    ...     raise TokenizerError("byte 0x61 is missing")
    Traceback (most recent call last):
    bytewright.errors.FormatError: vocab.json, merges.txt: byte 0x61 is missing
    """
    try:
        yield
    except TokenizerError as error:
        raise FormatError(f"{', '.join(str(Path(file)) for file in files)}: {error}") from None


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
        raise TokenizerError(f"{what} {shorten(text)} is not a string")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"{what} {shorten(text)} is not Unicode text: character {error.start} is a lone surrogate"
        ) from None


def _check_special_tokens(special_tokens: Mapping[str, int], tokens: Mapping[int, bytes]) -> None:
    owner: dict[int, str] = {}
    for special, id in special_tokens.items():
        token = _encode(special, "special token")
        if not token:
            raise TokenizerError("a special token is empty; it must be at least one character")
        if id in owner:
            raise TokenizerError(
                f"special tokens {shorten(owner[id])} and {shorten(special)} share the id {shorten(id)}"
            )
        if tokens.get(id) != token:
            stands_for = f"stands for {shorten(tokens[id])}" if id in tokens else "is not in the vocabulary"
            raise TokenizerError(
                f"special token {shorten(special)} has the id {shorten(id)}, but that id {stands_for}"
            )
        owner[id] = special


def _check_tokens(tokens: Mapping[int, bytes], special_ids: set[int]) -> None:
    id_of: dict[bytes, int] = {}
    for id, token in tokens.items():
        if type(id) is not int or not 0 <= id <= MAX_TOKEN_ID:
            raise TokenizerError(f"token id {shorten(id)} is not an integer from 0 to {MAX_TOKEN_ID}")
        if not isinstance(token, bytes) or not token:
            raise TokenizerError(f"token {id} must be one or more bytes, not {shorten(token)}")
        if id in special_ids:
            continue
        if token in id_of:
            raise TokenizerError(f"ids {id_of[token]} and {id} stand for the same token {shorten(token)}")
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
            complaint = f"uses {shorten(missing)}, which {reason}"
        elif product is None:
            complaint = f"makes {shorten(left + right)}, which is not in the vocabulary"
        elif product in made:
            complaint = f"makes {shorten(left + right)}, which an earlier merge makes already"
        else:
            made.add(product)
            continue
        raise TokenizerError(f"merge {number} ({shorten(left)}, {shorten(right)}) {complaint}")


# Merges from ranks


def recover_merges(tokens: Sequence[bytes]) -> tuple[Merge, ...]:
    """Recover the merges that made `tokens`, the tokens of two or more bytes in the order of their ranks.

    >>> recover_merges([b"st", b"est", b"ne", b"west", b"newest"])
    ((b's', b't'), (b'e', b'st'), (b'n', b'e'), (b'w', b'est'), (b'ne', b'west'))
    >>> recover_merges([b"ab", b"bc", b"abcd"])
    Traceback (most recent call last):
    bytewright.errors.TokenizerError: token b'abcd' cannot be reached: its bytes become [b'ab', b'c', b'd']
    """
    token_of = [bytes([byte]) for byte in range(256)]
    made: dict[tuple[int, int], int] = {}
    merges: list[Merge] = []
    for number, token in enumerate(tokens, start=256):
        parts = merge_in_order(token, made)
        if len(parts) != 2:
            pieces = shorten([token_of[part] for part in parts])
            raise TokenizerError(f"token {shorten(token)} cannot be reached: its bytes become {pieces}")
        left, right = parts
        made[left, right] = number
        merges.append((token_of[left], token_of[right]))
        token_of.append(token)
    return tuple(merges)


def check_reachable(vocabulary: Vocabulary) -> None:
    """Raise a `TokenizerError` that names a token whose own bytes do not encode to it, if there is one.

    >>> tokens = dict(enumerate([*(bytes([byte]) for byte in range(256)), b"<|end|>"]))
    >>> check_reachable(Vocabulary.from_parts(tokens, [], ["<|end|>"]))
    >>> check_reachable(Vocabulary.from_parts(tokens, []))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bytewright.errors.TokenizerError: token b'<|end|>' (id 256) cannot be reached: no merge makes it (...)
    """
    products = [left + right for left, right in vocabulary.merges]
    made = set(products)
    for token, id in vocabulary.ids_of_ordinary_tokens.items():
        if len(token) > 1 and token not in made:
            raise TokenizerError(
                f"token {shorten(token)} (id {id}) cannot be reached: no merge makes it"
                " (a special token must be named as one)"
            )
    for merge, recovered in zip(vocabulary.merges, recover_merges(products), strict=True):
        if merge != recovered:
            raise TokenizerError(
                f"token {shorten(merge[0] + merge[1])} cannot be reached: it is made of {shorten(merge)},"
                f" but its bytes become {shorten(recovered)} first"
            )


def merge_in_order(word: bytes, made: Mapping[tuple[int, int], int]) -> list[int]:
    """Merge inside one word, lowest first, in time O(n log n); `made` gives the number that a pair becomes.

    Numbers below 256 are bytes. This is the readable twin's `encode_word` for words of any length: the tokens
    are a linked list, and a heap holds the pairs to merge, some of them gone by the time they come up.

    >>> merge_in_order(b"aaab", {(97, 97): 256, (256, 97): 257})
    [257, 98]
    """
    numbers = list(word)
    end = len(numbers)
    after = list(range(1, end + 1))
    before = list(range(-1, end - 1))
    heap = [(made[pair], place) for place, pair in enumerate(pairwise(numbers)) if pair in made]
    heapify(heap)
    while heap:
        number, place = heappop(heap)
        partner = after[place]
        if partner == end or made.get((numbers[place], numbers[partner])) != number:
            continue
        numbers[place], numbers[partner] = number, -1
        after[place] = after[partner]
        if after[place] < end:
            before[after[place]] = place
        for left in (before[place], place):
            if left >= 0 and after[left] < end:
                pair = numbers[left], numbers[after[left]]
                if pair in made:
                    heappush(heap, (made[pair], left))
    return [number for number in numbers if number >= 0]
