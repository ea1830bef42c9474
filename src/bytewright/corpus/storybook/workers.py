"""Runs one function over many pieces of work in several processes, and gives the results in order.

At most a few pieces per worker are under way at a time, so endless work takes bounded memory. Workers do not
hear Ctrl-C: the process that started them does, and ends them on its way out, whatever the reason.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")

PIECES_PER_WORKER = 3


def map_in_order(
    function: Callable[[Work], Result], work: Iterable[Work], num_workers: int
) -> Generator[Result, None, None]:
    """Apply a function of a module to each piece of work; with one worker, in this very process.

    Close the generator to end the workers early (`contextlib.closing`); an error that is still being handled
    would keep it, and them, alive.

    >>> list(map_in_order(len, ["a", "bcd"], num_workers=1))
    [1, 3]
    """
    if num_workers == 1:
        yield from map(function, work)
        return
    # A fresh interpreter each: a fork of a process with threads, which torch has, may hang.
    with _interrupts_held_back():
        pool = multiprocessing.get_context("spawn").Pool(num_workers)
    try:
        waiting: deque[multiprocessing.pool.AsyncResult[Result]] = deque()
        for piece in work:
            waiting.append(pool.apply_async(function, (piece,)))
            if len(waiting) >= PIECES_PER_WORKER * num_workers:
                yield waiting.popleft().get()
        while waiting:
            yield waiting.popleft().get()
    finally:
        pool.terminate()
        pool.join()


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Keep Ctrl-C from this thread for a moment, and for good from the processes started meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
