"""Run a function in several processes that form a group of ranks, connected by gloo on this machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo

from bytewright.parallel.rank_group import VARIABLES, RankGroup

LIMIT_SECONDS = 900
"""Only a hang exceeds it, even on a loaded machine."""


def run_ranks(num_ranks: int, function: Callable[..., Any], *args: Any, may_die: bool = False) -> list[Any]:
    """Return the results of `function(ranks, *args)` on every rank, in their order.

    With `may_die`, the result of a rank that was killed is None.

    The processes are forked, so they need not import torch and its compiler again, and compute with one
    thread, because a fork has no threads of its parent.
    """
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        context.Process(target=_run, args=(rank, num_ranks, port, results, function, args))
        for rank in range(num_ranks)
    ]
    for process in ranks:
        process.start()
    try:
        found: dict[int, Any] = {}
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(found) < num_ranks:
            try:
                rank, value, error = results.get(timeout=1)
            except queue.Empty:
                if may_die:
                    found |= {rank: None for rank, one in enumerate(ranks) if one.exitcode == -signal.SIGKILL}
                assert time.monotonic() < deadline, f"ranks {set(range(num_ranks)) - found.keys()} hang"
                continue
            assert error is None, f"rank {rank} failed:\n{error}"
            found[rank] = pickle.loads(value)
        return [found[rank] for rank in range(num_ranks)]
    finally:
        for process in ranks:
            process.join(5)
            process.kill()


def _run(
    rank: int, num_ranks: int, port: int, results: Any, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    values = (rank, num_ranks, rank, num_ranks, "127.0.0.1", port)
    os.environ.update({name: str(value) for name, value in zip(VARIABLES, values, strict=True)})
    try:
        with RankGroup.open() as ranks:
            ranks.connect(torch.device("cpu"))
            value = function(ranks, *args)
        results.put((rank, pickle.dumps(value), None))  # a tensor would be sent as shared memory
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
