"""Several runs of a sweep at once, each in a process of its own with its share of the cores.

A process carries out one run by the same command that carries out all of them; what it says goes into a log
beside the runs, and how the run ended is read from the run's folder. If this process is asked to stop, so
are the others, and each saves before it leaves. Knows nothing of what a run is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bytewright.storage import atomic
from bytewright.system import usable_cores

POLL_SECONDS = 0.1
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


def run_at_once(
    commands: Mapping[str, Sequence[str]],
    num_jobs: int,
    logs: Path,
    ended: Callable[[str, int, str], None],
) -> int:
    """Run commands by name, so many at a time; `ended` hears the name, exit code and last words of each.

    All have as many threads, also those that are left when a sweep goes on, and the last, which may run
    alone: on a CPU their number decides bits. Returns 0, or the exit code of one that a signal stopped.
    """
    waiting, running = list(commands.items()), dict[str, subprocess.Popen[bytes]]()
    threads = max(1, usable_cores() // num_jobs)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    stopped = 0
    try:
        while waiting or running:
            while waiting and len(running) < num_jobs and not stopped:
                name, command = waiting.pop(0)
                with atomic.open_to_append(logs / f"{name}.log", within=logs.parent) as log:
                    log.truncate(0)
                    running[name] = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                    )
            for name, process in list(running.items()):
                code = process.poll()
                if code is not None:
                    del running[name]
                    ended(name, code, _last_words(logs / f"{name}.log"))
                    stopped = code if code in STOPPED else stopped
            if stopped:
                waiting.clear()
            time.sleep(POLL_SECONDS)
    except BaseException:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        raise
    return stopped


def _last_words(log: Path) -> str:
    lines = atomic.read_bytes(log).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "said nothing"
