"""Run a job in a new process and measure its time and memory; describe the machine; print and save tables.

The worker process measures wall and CPU seconds around the timed call only, after import and preparation. A
thread of the parent process reads `/proc/<pid>/status` every 5 ms until the call has returned. Peak RSS is
the kernel's high-water mark (VmHWM) and exact; peak RssAnon is the highest sample. Nothing is subtracted: the
interpreter, the library and input held in memory are included, as they are for a user.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SAMPLE_SECONDS = 0.005
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Call:
    """One timed call inside a worker."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class WorkerRun:
    """The calls of one worker process in order (the first is the cold one) and its memory, or its error."""

    calls: list[Call] = field(default_factory=list)
    peak_rss_mb: float = 0.0
    peak_anon_mb: float = 0.0
    output: str = ""
    error: str | None = None


def timed(call: Callable[[], Any]) -> tuple[Call, Any]:
    """Run `call` once and return its cost and its result."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = call()
    return Call(time.perf_counter() - wall, time.process_time() - cpu), result


class _MemorySampler(threading.Thread):
    """Sample the memory of another process and keep the peaks, in megabytes of 10**6 bytes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak_rss_mb = 0.0
        self.peak_anon_mb = 0.0
        self._status = Path(f"/proc/{pid}/status")
        self._finished = threading.Event()

    def run(self) -> None:
        while not self._finished.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        try:
            status = self._status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            return
        fields = dict(line.split(":", 1) for line in status.splitlines())
        self.peak_rss_mb = max(self.peak_rss_mb, _megabytes(fields.get("VmHWM")))
        self.peak_anon_mb = max(self.peak_anon_mb, _megabytes(fields.get("RssAnon")))

    def finish(self) -> None:
        self._finished.set()
        self.join()
        self._sample()


def _megabytes(kilobytes: str | None) -> float:
    return int(kilobytes.split()[0]) * 1024 / 1e6 if kilobytes else 0.0


def run_worker(job: Mapping[str, Any], num_threads: int, timeout_seconds: float = 3600) -> WorkerRun:
    """Run a job in `worker.py` and sample the memory of that process until the timed calls have finished.

    The worker writes its times to a pipe and waits for a reply. It hashes and saves its output only after
    the reply, when memory is no longer sampled.
    """
    from_worker, worker_writes = os.pipe()
    worker_reads, to_worker = os.pipe()
    environment = os.environ | {"RAYON_NUM_THREADS": str(num_threads), "TOKENIZERS_PARALLELISM": "true"}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "worker.py"), str(worker_reads), str(worker_writes), json.dumps(job)],
        pass_fds=(worker_reads, worker_writes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    os.close(worker_reads)
    os.close(worker_writes)
    sampler = _MemorySampler(process.pid)
    sampler.start()
    killer = threading.Timer(timeout_seconds, process.kill)
    killer.start()
    errors: list[str] = []
    drain = threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True)
    drain.start()
    with os.fdopen(from_worker) as reader, os.fdopen(to_worker, "w") as writer:
        calls = reader.readline()
        sampler.finish()
        if calls:
            writer.write("continue\n")
            writer.flush()
        output = reader.readline()
    code = process.wait()
    killer.cancel()
    drain.join()
    if code or not calls:
        return WorkerRun(error=(errors[-1].strip() if errors else f"exit code {code}"))
    return WorkerRun(
        calls=[Call(**call) for call in json.loads(calls)],
        peak_rss_mb=sampler.peak_rss_mb,
        peak_anon_mb=sampler.peak_anon_mb,
        output=output.strip(),
    )


@dataclass(frozen=True)
class Figure:
    """Median, minimum and maximum of several samples."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, samples: Iterable[float]) -> Figure:
        """Summarise samples: `[3, 1, 2]` has median 2, lowest 1 and highest 3."""
        values = sorted(samples)
        return cls(statistics.median(values), values[0], values[-1])


@dataclass
class Result:
    """The measurements of one contestant (Bytewright or a peer) in one column. Field names are JSON keys."""

    contestant: str
    seconds: Figure | None = None
    cpu_seconds: Figure | None = None
    peak_rss_mb: Figure | None = None
    peak_anon_mb: Figure | None = None
    agreement: str = ""
    error: str | None = None


@dataclass
class Column:
    """One measured task with the results of all contestants; `num_bytes` is the input size for encoding."""

    title: str
    results: list[Result]
    num_bytes: int | None = None
    unit_seconds: float = 1.0  # 1e-6 selects microseconds

    def fastest_peer(self, ours: str) -> Result | None:
        """Return the peer with the smallest median, or None when no peer finished."""
        peers = [result for result in self.results if result.contestant != ours and result.seconds]
        return min(peers, key=lambda peer: peer.seconds.median if peer.seconds else 0.0, default=None)


def wide_console() -> Console:
    """Return a console that prints tables 160 columns wide when the output is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory, kernel, Python version and the load average at the start."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next(
        (line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if "model name" in line), "?"
    )
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


def source_commit() -> str:
    """Return the commit of the measured source, in the form that runs record."""
    from bytewright.train.run_files import (
        find_commit,  # imports torch, which must not count in a worker's memory
    )

    return find_commit() or "?"


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each package, or 'absent'."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def check_names(asked: Iterable[str], known: Iterable[str]) -> None:
    """Exit with an error message if a name on the command line is not known to the benchmark."""
    known = list(known)
    for name in asked:
        if name not in known:
            raise SystemExit(f"unknown name {name!r}; choose from {', '.join(known)}")


def is_usable(contestant: str, module: str, console: Console) -> bool:
    """Return whether a contestant's module can be imported; print the reason if it cannot."""
    check = subprocess.run(
        [sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False
    )
    if check.returncode:
        reason = (check.stderr.strip().splitlines() or ["no reason given"])[-1]
        console.print(
            f"{contestant} is skipped: {reason} (`pip install -e '.[bench]'` installs all contestants)",
            style="bold red",
            markup=False,
        )
    return not check.returncode


def print_column(console: Console, column: Column, ours: str) -> None:
    """Print the results of one column, fastest first, with ratios to the fastest peer."""
    microseconds = column.unit_seconds < 1
    fastest = column.fastest_peer(ours)
    table = Table(title=column.title, title_justify="left")
    headings = ["", "µs" if microseconds else "seconds", "min-max", "speed ÷ fastest peer"]
    headings += ["MB/s"] if column.num_bytes else []
    headings += ["CPU s", "peak RSS MB", "peak RssAnon MB", "output"]
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("", "output") else "right")
    for result in sorted(column.results, key=lambda r: r.seconds.median if r.seconds else float("inf")):
        style = "bold" if result.contestant == ours else None
        table.add_row(*_cells(column, result, fastest), style=style)
    console.print(table)


def _cells(column: Column, result: Result, fastest: Result | None) -> list[str]:
    if result.seconds is None:
        return [result.contestant, "failed", *[""] * (6 if column.num_bytes else 5), result.error or ""]
    scale = 1 / column.unit_seconds
    seconds = result.seconds
    cells = [
        result.contestant,
        three_digits(seconds.median * scale),
        f"{three_digits(seconds.lowest * scale)}-{three_digits(seconds.highest * scale)}",
        f"{fastest.seconds.median / seconds.median:.2f}" if fastest and fastest.seconds else "",
    ]
    if column.num_bytes:
        cells.append(three_digits(column.num_bytes / 1e6 / seconds.median))
    cells.append(three_digits(result.cpu_seconds.median) if result.cpu_seconds and scale == 1 else "")
    for memory in (result.peak_rss_mb, result.peak_anon_mb):
        cells.append(f"{memory.median:.0f}" if memory else "")
    return [*cells, result.agreement]


def three_digits(value: float) -> str:
    """Format a number with three significant digits and no exponent.

    >>> three_digits(0.0123456), three_digits(2.5), three_digits(1234.5)
    ('0.0123', '2.50', '1234')
    """
    if value <= 0:
        return "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def print_summary(console: Console, columns: Iterable[Column], ours: str) -> None:
    """Print one line per column: ours, the fastest peer and the ratio to the peer with the least memory."""
    table = Table(title="Ours and the fastest peer", title_justify="left")
    for heading in (
        "column",
        "ours",
        "fastest peer",
        "times faster",
        "times less CPU",
        "RssAnon ÷ lowest peer",
    ):
        table.add_column(heading, justify="left" if heading in ("column", "fastest peer") else "right")
    for column in columns:
        mine = next((r for r in column.results if r.contestant == ours and r.seconds), None)
        fastest = column.fastest_peer(ours)
        if not (mine and mine.seconds and fastest and fastest.seconds):
            continue
        scale, unit = 1 / column.unit_seconds, "µs" if column.unit_seconds < 1 else "s"
        anon = [r.peak_anon_mb.median for r in column.results if r.contestant != ours and r.peak_anon_mb]
        table.add_row(
            column.title,
            f"{three_digits(mine.seconds.median * scale)} {unit}",
            f"{fastest.contestant} {three_digits(fastest.seconds.median * scale)} {unit}",
            f"{fastest.seconds.median / mine.seconds.median:.2f}",
            f"{fastest.cpu_seconds.median / mine.cpu_seconds.median:.2f}"
            if fastest.cpu_seconds and mine.cpu_seconds
            else "",
            f"{mine.peak_anon_mb.median / min(anon):.2f}" if mine.peak_anon_mb and anon else "",
        )
    if table.row_count:
        console.print(table)


def write_columns(path: Path, columns: Iterable[Column], about: Mapping[str, Any]) -> None:
    """Write the contents of all tables and the measuring conditions as JSON."""
    write_report(path, {**about, "columns": [asdict(column) for column in columns]})


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write a report as indented JSON; create its folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
