"""A real Dask cluster on the loopback interface: one scheduler and several workers, each a process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS_TO_START = 300
"""Only a hang exceeds this, also on a loaded machine."""


@dataclass
class DaskCluster:
    """The address of the scheduler, and the processes of the workers."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]

    def kill_worker(self, number: int) -> None:
        """Kill a worker without warning."""
        assert self.workers[number].poll() is None
        self.workers[number].send_signal(signal.SIGKILL)
        self.workers[number].wait()


@contextlib.contextmanager
def start_cluster(
    folder: Path, num_workers: int, *, environment: Mapping[str, str] | None = None
) -> Iterator[DaskCluster]:
    """Start `dask scheduler` and `dask worker` processes; end all of them with the block."""
    from distributed import Client

    file = folder / "scheduler.json"
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *arguments]
        settings: dict[str, Any] = {
            "cwd": folder,
            "env": {**os.environ, **(environment or {})},
            "stdin": subprocess.DEVNULL,
        }
        with open(folder / f"log-{len(processes)}.txt", "wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, **settings))
        return processes[-1]

    try:
        scheduler = start(
            *("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show"),
            *("--scheduler-file", str(file)),
        )
        deadline = time.monotonic() + SECONDS_TO_START
        address = None
        while address is None:
            assert scheduler.poll() is None, (folder / "log-0.txt").read_text()
            assert time.monotonic() < deadline, "the scheduler did not start"
            time.sleep(0.05)
            with contextlib.suppress(OSError, ValueError):  # it is not written atomically
                address = json.loads(file.read_text())["address"]
        worker = ["worker", address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny"]
        worker += ["--no-dashboard", "--memory-limit", "0", "--local-directory", str(folder)]
        workers = [start(*worker) for _ in range(num_workers)]
        if workers:
            with Client(address, timeout=SECONDS_TO_START, set_as_default=False) as client:
                client.wait_for_workers(num_workers, timeout=SECONDS_TO_START)
        yield DaskCluster(address, scheduler, workers)
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()
