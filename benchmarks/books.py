"""Measure how fast the two generated books are written, in turns: `python benchmarks/books.py --json FILE`.

Both write files through the same functions as the command line, with the same number of workers. Processor
time includes that of worker processes and threads.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import describe_machine, source_commit

from bytewright.corpus.storybook import write_stories
from bytewright.corpus.worldbook import World
from bytewright.corpus.worldbook.files import write_worldbook
from bytewright.system import usable_cores


def main() -> None:
    """Measure both books, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--size", type=int, default=200_000_000, help="bytes of the world book per repetition"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    num_workers = usable_cores()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "book.txt")

        def write_storybook() -> int:
            size = options.size // 10  # it takes about ten times as long
            return write_stories(out, size, seed=1, num_workers=num_workers).num_bytes

        def write_world() -> int:
            return write_worldbook(out, options.size, world=World(), num_threads=num_workers).num_bytes

        books: dict[str, Callable[[], int]] = {"storybook": write_storybook, "worldbook": write_world}
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in books}
        for _ in range(options.repeats):
            for name, write in books.items():
                runs[name].append(measure(write))
    figures = {}
    for name, found in runs.items():
        wall, processor = (statistics.median(column) for column in zip(*found, strict=True))
        figures[name] = {"MB/s": wall, "MB per processor second": processor, "runs": found}
        print(f"{name}: {wall:.1f} MB/s with {num_workers} workers, {processor:.1f} MB per processor second")
    if options.json:
        about = {"machine": describe_machine(), "commit": source_commit(), "num_workers": num_workers}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**about, "books": figures}, indent=2) + "\n")


def measure(write: Callable[[], int]) -> tuple[float, float]:
    """Return MB per second of wall time and of processor time."""
    started, used = time.perf_counter(), processor_seconds()
    num_bytes = write()
    return (
        num_bytes / (time.perf_counter() - started) / 1e6,
        num_bytes / (processor_seconds() - used) / 1e6,
    )


def processor_seconds() -> float:
    """Return the processor time of this process and of the workers that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
