"""Plan the overlapping windows in which a text that is longer than the context is scored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Window(NamedTuple):
    """A part of a text: the model reads ids `start` … `end`-1 and predicts those from `first` on."""

    start: int
    first: int
    end: int


def plan_windows(num_ids: int, context_length: int) -> Iterator[Window]:
    """Yield the windows of a text; together they predict every id but the first once.

    The first window predicts as many ids as fit. Each further window predicts half as many or, if it is the
    last one, fewer. So every id after the first window has at least half a context before it.

    >>> [tuple(window) for window in plan_windows(num_ids=10, context_length=4)]
    [(0, 1, 5), (2, 5, 7), (4, 7, 9), (5, 9, 10)]
    """
    end = min(num_ids, context_length + 1)
    yield Window(0, 1, end)
    while end < num_ids:
        first, end = end, min(num_ids, end + max(1, context_length // 2))
        yield Window(end - context_length - 1, first, end)
