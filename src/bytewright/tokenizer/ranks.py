"""Merges from ranks: which two tokens each token was made of, when only the order of the tokens is known.

A tiktoken file lists tokens, not merges, and its library merges *any* two neighbours that together spell a
token, lowest rank first. The two ways of encoding agree on every text exactly when each token is *reachable*:
when its own bytes encode to it. (Until its merge is due, a stretch of text that will become it is merged just
as the token alone would be, since nothing merges across its ends; so the same two halves meet.) Every trained
vocabulary is like that. For others, the formats and features that rely on it refuse with a sentence.

It promises time about linear in the size of the tokens, also for one giant token. It knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from bytewright.errors import TokenizerError
from bytewright.storage.json_reader import shorten
from bytewright.tokenizer.vocabulary import Merge, Vocabulary


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
