"""Thousands of reproducible random strings, for tests where hypothesis would be too slow.

Half of each string comes from pieces that patterns distinguish, half from random code points, which change
with each batch. Strings are short, so that their beginnings and ends are tested as much as the rest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from texts import WORDS

CODE_POINTS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
"""All code points of Unicode except surrogates, which have no UTF-8 form."""

BATCH = 1000


def random_strings(
    num_strings: int, seed: int, characters: Sequence[str] = CODE_POINTS, pieces: Sequence[str] = WORDS
) -> Iterator[list[str]]:
    """Yield batches of strings of random pieces and characters."""
    draw = random.Random(seed)
    for _ in range(num_strings // BATCH):
        strange = draw.choices(characters, k=4 * len(pieces))
        pool = [*list(pieces) * 4, *strange]
        yield ["".join(draw.choices(pool, k=draw.randint(1, 12))) for _ in range(BATCH)]
