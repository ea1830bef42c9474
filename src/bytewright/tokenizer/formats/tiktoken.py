"""tiktoken's format: one token per line, in base64, with its rank, which is also its id.

The file contains neither merges nor special tokens nor the pattern. The last two are arguments of the reader,
as in tiktoken. tiktoken merges *any* two neighbours whose concatenation is a token, lowest rank first. This
agrees with a list of merges on every text exactly if each token is *reachable*: if its bytes encode to it.
(No merge crosses the ends of a token before its own merge, so its bytes are merged in a text as in
isolation.) All trained vocabularies are reachable. Others are rejected on reading and writing. Where one
special token is a prefix of another, tiktoken's choice is undefined; we choose the longer one.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from bytewright.errors import FormatError, TokenizerError, shorten
from bytewright.storage import atomic
from bytewright.storage.json_reader import read_lines
from bytewright.tokenizer.vocabulary import Merge, Vocabulary, check_all_bytes, name_of_pattern, naming_files

FORMAT = "tiktoken's format"
_RANK = re.compile(r"0|[1-9][0-9]{0,9}")


def write_tiktoken(vocabulary: Vocabulary, path: atomic.StrPath) -> None:
    """Write the ranks of the ordinary tokens; tiktoken takes special tokens and pattern as arguments."""
    check_all_bytes(vocabulary, FORMAT)
    check_reachable(vocabulary)
    id_of = vocabulary.ids_of_ordinary_tokens
    previous = -1
    for number, (left, right) in enumerate(vocabulary.merges):
        id = id_of[left + right]
        if id < previous:
            message = (
                f"tiktoken merges in the order of ids, but merge {number} produces id {id} after {previous}"
            )
            raise TokenizerError(message, expected=previous, found=id)
        previous = id
    lines = [
        base64.b64encode(token).decode() + f" {id}\n"
        for token, id in sorted(id_of.items(), key=lambda item: item[1])
    ]
    atomic.write_text(path, "".join(lines))


def read_tiktoken(
    path: atomic.StrPath, *, special_tokens: Mapping[str, int] | Iterable[str] = (), pattern: str = "gpt2"
) -> Vocabulary:
    """Return the vocabulary of a ranks file; special tokens without ids get the next free ones."""
    pattern = name_of_pattern(pattern)
    tokens = _read_ranks(path)
    with naming_files(path):
        merges = recover_merges([tokens[rank] for rank in sorted(tokens) if len(tokens[rank]) > 1])
        vocabulary = Vocabulary.from_parts(tokens, merges, special_tokens, pattern)
        check_all_bytes(vocabulary, FORMAT)  # tiktoken panics without them; also detects truncated files
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
            problem = f"expected a token in base64, found {shorten(line)}"
        elif not _RANK.fullmatch(rank):
            problem = f"expected a rank after the token, found {shorten(rank)}"
        elif int(rank) in tokens:
            problem = f"rank {rank} is given twice"
        elif token in line_of:
            problem = f"the token of line {line_of[token]} is given twice"
        else:
            tokens[int(rank)] = token
            line_of[token] = number
            continue
        if number == 1:  # probably a text
            problem = (
                f"is not a tokenizer: line 1: {problem}; name a folder of Bytewright or GPT-2, a"
                " tokenizer.json, or a file of tiktoken ranks, and the text after it"
            )
            raise FormatError.at(path, problem)
        raise FormatError.at(path, f"line {number}: {problem}")
    return tokens


# Merges from ranks


def recover_merges(tokens: Sequence[bytes]) -> tuple[Merge, ...]:
    """Return the merges that produce `tokens`, the tokens of two or more bytes in the order of their ranks.

    The time is about linear in the size of the tokens, also for one giant token.

    >>> recover_merges([b"st", b"est", b"ne", b"west", b"newest"])
    ((b's', b't'), (b'e', b'st'), (b'n', b'e'), (b'w', b'est'), (b'ne', b'west'))
    >>> recover_merges([b"ab", b"bc", b"abcd"])
    Traceback (most recent call last):
    bytewright.errors.TokenizerError: token b'abcd' cannot be reached: its bytes encode to [b'ab', b'c', b'd']
    """
    token_of = [bytes([byte]) for byte in range(256)]
    made: dict[tuple[int, int], int] = {}
    merges: list[Merge] = []
    for number, token in enumerate(tokens, start=256):
        parts = merge_in_order(token, made)
        if len(parts) != 2:
            pieces = shorten([token_of[part] for part in parts])
            message = f"token {shorten(token)} cannot be reached: its bytes encode to {pieces}"
            raise TokenizerError(message, found=token)
        left, right = parts
        made[left, right] = number
        merges.append((token_of[left], token_of[right]))
        token_of.append(token)
    return tuple(merges)


def check_reachable(vocabulary: Vocabulary) -> None:
    """Raise `TokenizerError` for a token whose bytes do not encode to it.

    >>> tokens = dict(enumerate([*(bytes([byte]) for byte in range(256)), b"<|end|>"]))
    >>> check_reachable(Vocabulary.from_parts(tokens, [], ["<|end|>"]))
    >>> check_reachable(Vocabulary.from_parts(tokens, []))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bytewright.errors.TokenizerError: token b'<|end|>' (id 256) cannot be reached: no merge produces it (...)
    """
    products = [left + right for left, right in vocabulary.merges]
    made = set(products)
    for token, id in vocabulary.ids_of_ordinary_tokens.items():
        if len(token) > 1 and token not in made:
            problem = "cannot be reached: no merge produces it (special tokens must be declared)"
            raise TokenizerError(f"token {shorten(token)} (id {id}) {problem}", found=token)
    for merge, recovered in zip(vocabulary.merges, recover_merges(products), strict=True):
        if merge != recovered:
            token = merge[0] + merge[1]
            problem = f"its merge is {shorten(merge)}, but its bytes encode to {shorten(recovered)} first"
            raise TokenizerError(f"token {shorten(token)} cannot be reached: {problem}", found=token)


def merge_in_order(word: bytes, made: Mapping[tuple[int, int], int]) -> list[int]:
    """Return the tokens of one word after applying the merges, lowest first, in time O(n log n).

    `made` maps a pair of numbers to the number of its merge; numbers below 256 are bytes. The result is that
    of `reference.encode_word`. The tokens form a linked list, and a heap contains the pairs to merge;
    outdated entries of the heap are skipped.

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
