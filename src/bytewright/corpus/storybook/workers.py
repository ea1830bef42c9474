"""Runs one function over many pieces of work in several processes, and gives the results in order.

At most a few pieces per worker are under way or waiting for their turn, so endless work takes bounded memory.
Workers do not hear Ctrl-C or SIGTERM: the process that started them does, and ends them on its way out,
whatever the reason; should it be killed, they find the other end of their pipe closed and leave.

There is one pipe for each worker and no lock between them: `multiprocessing.Pool` has locks, and a worker
that dies while it holds one leaves the pool waiting for ever.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from bytewright.errors import BytewrightError

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
    with _workers(function, num_workers) as idle:
        pieces = enumerate(work)
        busy: dict[Connection, int] = {}
        results: dict[int, Result] = {}
        next_result, exhausted = 0, False
        while True:
            while idle and not exhausted and len(busy) + len(results) < PIECES_PER_WORKER * num_workers:
                step = next(pieces, None)
                if step is None:
                    exhausted = True
                else:
                    with _alive():
                        idle[-1].send(step[1])
                    busy[idle.pop()] = step[0]
            if not busy:
                return
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                results[busy.pop(connection)] = _receive(connection)
                idle.append(connection)
            while next_result in results:
                yield results.pop(next_result)
                next_result += 1


@contextlib.contextmanager
def _workers(function: Callable[[Any], Any], num_workers: int) -> Iterator[list[Connection]]:
    """Start workers, and give the pipe to each; end them when the block ends."""
    # A fresh interpreter each: a fork of a process with threads, which torch has, may hang.
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(num_workers)]
    processes = [context.Process(target=_serve, args=(theirs, function), daemon=True) for _, theirs in pipes]
    try:
        with _signals_held_back():
            for process in processes:
                process.start()
        for _, theirs in pipes:
            theirs.close()
        yield [ours for ours, _ in pipes]
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
        for ours, theirs in pipes:
            ours.close()
            theirs.close()


def _serve(connection: Connection, function: Callable[[Any], Any]) -> None:
    """Answer each piece of work with a result or an error, until the pipe is closed."""
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            piece = connection.recv()
            try:
                answer: tuple[Any, Exception | None] = (function(piece), None)
            except Exception as error:
                answer = (None, error)
            connection.send(answer)


def _receive(connection: Connection) -> Any:
    with _alive():
        result, error = connection.recv()
    if error is not None:
        raise error
    return result


@contextlib.contextmanager
def _alive() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError):
        raise BytewrightError("a worker process ended all of a sudden; was it killed?") from None


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Keep signals from this thread for a moment, and for good from the processes started meanwhile."""
    # The first process also starts the resource tracker, which in Python 3.11 lets signals through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
