"""True next-token probabilities of the storybook, for the models that were trained on it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from bytewright.corpus.storybook import NextTokens, Position, Storybook
from bytewright.tokenizer import Tokenizer

MAX_POSITIONS = 300
"""How many positions are cached, so that a continued branch is not parsed again from its beginning."""


class TrueTokens:
    """True next-token probabilities, with a cache of the positions of recent texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._next_tokens: NextTokens = Storybook.load().next_tokens(tokenizer)
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[int, ...], Position | None] = OrderedDict()

    def positions(self, ids: Sequence[int]) -> list[Position | None]:
        """Return the positions before each token and after the last, as `NextTokens.positions`."""
        with self._lock:
            found = self._next_tokens.positions(ids[:1])
            for length in range(2, len(ids) + 1):
                found.append(self._extend(tuple(ids[:length]), found[-1]))
            return found

    def after(self, ids: Sequence[int], before: Position | None) -> Position | None:
        """Return the position after `ids`, given the one before the last of them."""
        with self._lock:
            return self._extend(tuple(ids), before)

    def _extend(self, ids: tuple[int, ...], before: Position | None) -> Position | None:
        if ids in self._cache:
            self._cache.move_to_end(ids)
            return self._cache[ids]
        is_end = ids[-1] == self._next_tokens.end
        found = self._next_tokens.start() if is_end else before and before.after(ids[-1])
        self._cache[ids] = found
        if len(self._cache) > MAX_POSITIONS:
            self._cache.popitem(last=False)
        return found
