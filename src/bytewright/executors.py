"""Run functions on the workers of a cluster, through `concurrent.futures.Executor`.

`open_cluster` connects to a Dask scheduler, or starts Dask workers on this machine. Everything else works
with any executor: a process pool, for example. `map_unordered` and `map_in_order` keep a bounded number of
tasks pending, which bounds the memory for results. `map_in_processes` starts its own worker processes, which
end with this process, even if it is killed. Dask runs the tasks of a lost worker again. Errors of the cluster
become `ClusterError`: one sentence with the remedy.

Dask sends pickled functions over its network connections. Only connect to clusters that you trust.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import multiprocessing
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from itertools import islice
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, TypeVar

import bytewright
from bytewright.errors import BytewrightError, ClusterError, UsageError, first_line, shorten

CONNECT_SECONDS = 10
"""How long to wait for the scheduler."""
WORKER_SECONDS = 30
"""How long to wait for the first worker, which may just have been started."""
TASKS_PER_WORKER = 2
"""How many tasks are pending for each worker: one that runs, and one that follows."""

Work = TypeVar("Work")
Result = TypeVar("Result")


@contextlib.contextmanager
def open_cluster(address: str) -> Iterator[tuple[Executor, int]]:
    """Yield an executor and its number of workers: `tcp://host:8786`, or `local:4` for four processes here.

    Each thread of a Dask worker counts as one worker. At the end of the block, pending tasks are cancelled,
    and local workers are stopped. A remote cluster keeps running.
    """
    num_local = _parse_address(address)
    distributed = _import_distributed()
    quiet = logging.getLogger("distributed")
    before = quiet.level
    quiet.setLevel(logging.CRITICAL)  # Dask logs every lost connection; errors are raised below
    with contextlib.ExitStack() as stack:
        stack.callback(quiet.setLevel, before)
        scheduler: Any = address
        if num_local is not None:
            scheduler = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=num_local,
                    threads_per_worker=1,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                )
            )
        try:
            client = distributed.Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            message = (
                f"no Dask scheduler answers at {address} ({first_line(error)}); start one with"
                " `dask scheduler`, or use local:2"
            )
            raise ClusterError(message, key="cluster", found=address) from None
        stack.enter_context(client)
        num_workers = _check_workers(client, address)
        executor = client.get_executor(pure=False)
        stack.callback(executor.shutdown, wait=False)
        yield executor, num_workers


def _parse_address(address: str) -> int | None:
    """Return the number of local workers, or None for the address of a scheduler."""
    local = re.fullmatch(r"local:([1-9]\d{0,3})", address)
    if local:
        return int(local[1])
    if not re.fullmatch(r"[a-z]+://\S+", address):
        expected = "tcp://HOST:PORT of a Dask scheduler, or local:N for N processes on this machine"
        message = f"cluster must be {expected}, but is {shorten(address)}"
        raise UsageError(message, key="cluster", expected=expected, found=address)
    return None


def _import_distributed() -> Any:
    try:
        return importlib.import_module("distributed")
    except ImportError:
        message = "a cluster needs Dask; install it in the clone of Bytewright with: pip install '.[cluster]'"
        raise UsageError(message, key="cluster", expected="distributed") from None


def _check_workers(client: Any, address: str) -> int:
    """Return the number of worker threads; raise if there are none, or if one has another version."""
    try:
        client.wait_for_workers(1, timeout=WORKER_SECONDS)
    except TimeoutError:
        message = f"the scheduler at {address} has no workers; start one with `dask worker {address}`"
        raise ClusterError(message, key="cluster", found=address) from None
    versions = client.get_versions(packages=["bytewright"])
    expected = versions["client"]["packages"]["bytewright"]
    for worker, described in versions["workers"].items():
        found = described["packages"]["bytewright"]
        if expected is not None and found != expected:  # None: this process runs from a source tree
            raise _wrong_version(f"the worker {worker}", expected, found)
    return sum(client.nthreads().values())


def _wrong_version(worker: str, expected: str, found: str | None) -> ClusterError:
    state = "does not have bytewright" if found is None else f"has bytewright {found}"
    message = f"{worker} {state}, but this process has {expected}; install the same version there"
    return ClusterError(message, key="version", expected=expected, found=found)


# Tasks


def map_unordered(
    executor: Executor, function: Callable[[Work], Result], work: Iterable[Work], *, num_workers: int
) -> Generator[tuple[Work, Result], None, None]:
    """Yield each item of `work` with the result of a function, as soon as the result is available.

    The function must be importable on the workers. Close the generator to cancel pending tasks.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as executor:
    ...     sorted(map_unordered(executor, len, ["a", "bcd"], num_workers=2))
    [('a', 1), ('bcd', 3)]
    """
    queue = iter(work)
    pending: dict[Future[Result], Work] = {}
    with _explain_errors(pending):
        while True:
            for each in islice(queue, TASKS_PER_WORKER * num_workers - len(pending)):
                pending[_submit(executor, function, each)] = each
            if not pending:
                return
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield pending.pop(future), future.result()


def map_in_order(
    executor: Executor, function: Callable[[Work], Result], work: Iterable[Work], *, num_workers: int
) -> Generator[Result, None, None]:
    """Yield the results of a function in the order of `work`; `work` may be infinite.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as executor:
    ...     list(map_in_order(executor, len, ["a", "bcd"], num_workers=2))
    [1, 3]
    """
    pending: deque[Future[Result]] = deque()
    with _explain_errors(pending):
        for each in work:
            pending.append(_submit(executor, function, each))
            if len(pending) == TASKS_PER_WORKER * num_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _submit(executor: Executor, function: Callable[[Work], Result], work: Work) -> Future[Result]:
    return executor.submit(_run, _own_version(), function, work)


@functools.cache
def _own_version() -> str:
    """Return the version of this process; reading it from the package metadata takes a millisecond."""
    return bytewright.__version__


def _run(version: str, function: Callable[[Work], Result], work: Work) -> Result:
    """Call a function on a worker, which may have joined after `open_cluster` checked the versions."""
    if _own_version() != version:
        raise _wrong_version("a worker", version, _own_version())
    return function(work)


@contextlib.contextmanager
def _explain_errors(pending: Iterable[Future[Any]]) -> Iterator[None]:
    """Raise errors of the cluster as one sentence, and cancel the tasks that are left."""
    try:
        yield
    except BrokenExecutor:
        message = "a worker process ended unexpectedly; it may have been killed for lack of memory"
        raise ClusterError(f"{message}; run the command again", key="cluster") from None
    except CancelledError:
        message = (
            "the connection to the Dask scheduler was lost; check the scheduler, and run the command again"
        )
        raise ClusterError(message, key="cluster") from None
    except (GeneratorExit, BytewrightError, KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        if (explained := _explain(error)) is None:
            raise
        raise explained from None
    finally:
        for future in list(pending):
            future.cancel()


def _explain(error: Exception) -> ClusterError | None:
    """Return the error of a user for an exception of Dask, or None for a bug in a task."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 9:
        causes.append(cause if isinstance(cause, Exception) else error)
    for each in causes:
        if isinstance(each, ImportError):
            message = (
                f"a worker cannot import the package ({first_line(each)}); install the same bytewright there"
            )
            return ClusterError(message, key="version", found=each.name)
        if type(each).__name__ == "KilledWorker":
            message = (
                "several workers ended while they ran the same task, probably for lack of memory; start"
                " workers with more memory, and run the command again"
            )
            return ClusterError(message, key="cluster")
        if type(each).__module__.startswith("distributed"):
            message = f"the Dask cluster failed ({first_line(each)}); check it, and run the command again"
            return ClusterError(message, key="cluster")
    return None


# Worker processes on this machine


def map_in_processes(
    function: Callable[[Work], Result], work: Iterable[Work], num_workers: int
) -> Generator[Result, None, None]:
    """Yield the results of a function in the order of `work`; one worker means this process.

    Close the generator to end the workers early (`contextlib.closing`).

    >>> list(map_in_processes(len, ["a", "bcd"], num_workers=1))
    [1, 3]
    """
    if num_workers == 1:
        yield from map(function, work)
        return
    executor = _WorkerProcesses(num_workers, _WorkerContext(), initializer=_end_with_parent)
    try:
        with contextlib.closing(map_in_order(executor, function, work, num_workers=num_workers)) as results:
            yield from results
    finally:
        executor.shutdown(cancel_futures=True)


class _WorkerProcesses(ProcessPoolExecutor):
    """A process pool whose workers block SIGINT and SIGTERM: this process handles them and ends its workers.

    Both can be sent to a whole process group. A worker that ended while it was sending a result would leave
    the executor waiting for the rest of it.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule a call. It may start a worker, which inherits the signal mask."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker(SpawnProcess):
    """A worker process. After one has died, the executor terminates the others, which block SIGTERM."""

    def terminate(self) -> None:
        """End the process."""
        self.kill()


class _WorkerContext(SpawnContext):
    """Starts new interpreters: forking a process that has threads, as torch does, can deadlock."""

    Process = _Worker


def _end_with_parent() -> None:
    """Start a thread that ends this worker when its parent ends, even by SIGKILL.

    The executor does not do this: its workers hold both ends of the task queue, so they never read its end.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_after_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_after_parent, daemon=True).start()
