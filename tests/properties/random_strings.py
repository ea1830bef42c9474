"""Random strings by the thousand, the same for the same seed, where hypothesis would be too slow.

Half of each string comes from pieces that patterns tell apart, half from code points of anywhere in Unicode,
which change from batch to batch. Strings are short: where they begin and end matters as much as the rest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from texts import WORDS

CODE_POINTS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
"""All of Unicode; a lone surrogate is no text and has no UTF-8."""

BATCH = 1000


def random_strings(
    num_strings: int, seed: int, characters: Sequence[str] = CODE_POINTS, pieces: Sequence[str] = WORDS
) -> Iterator[list[str]]:
    """Give batches of strings whose pieces and characters are drawn from those given."""
    draw = random.Random(seed)
    for _ in range(num_strings // BATCH):
        strange = draw.choices(characters, k=4 * len(pieces))
        pool = [*pieces * 4, *strange]
        yield ["".join(draw.choices(pool, k=draw.randint(1, 12))) for _ in range(BATCH)]
