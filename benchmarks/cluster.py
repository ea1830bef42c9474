"""Measure corpora on a cluster: its cost on one machine, and the memory of the process that merges tables.

    python benchmarks/cluster.py cost novels.txt --size 1GB --json benchmarks/out/cluster-cost.json
    python benchmarks/cluster.py memory --json benchmarks/out/cluster-memory.json

`cost` repeats a text up to a size, starts Dask with one worker process per core on this machine, and trains a
tokenizer and encodes the text with and without it, in turns. The ratio of the times is the cost of the
cluster; the start of its processes is not part of it. On a machine with other work, the ratio of the
processor times is more reliable than that of the elapsed times. `memory` merges the tables of a simulated
corpus of 1 TB: 1,000 tables of 1 GB of text each. Ranks of words follow a power law, so the number of
distinct words grows with the exponent 0.6 of the text (Heaps' law), as in web text. Another process makes the
tables.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import psutil
import tyro
from harness import describe_machine, source_commit, wide_console, write_report
from rich.table import Table

from bytewright._native import WordCounter, WordTable
from bytewright.corpus import END_OF_TEXT
from bytewright.executors import map_in_order, open_cluster
from bytewright.formatting import format_bytes, format_seconds, parse_bytes
from bytewright.system import usable_cores
from bytewright.tokenizer import Tokenizer, train_tokenizer
from bytewright.tokenizer.cluster import TableMerger, count_on, cut_texts, encode_on

JsonPath = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]

HEAPS = 0.6
"""The exponent of Heaps' law; ranks then follow a power law with the exponent 1/0.6."""
LETTERS = 9


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Compare a cluster on this machine with one process."""

    text: Annotated[Path, tyro.conf.Positional]
    """Any plain text; a mark ends each repetition."""

    size: str = "1GB"
    """The size of the repeated text."""

    vocab_size: int = 10_000

    repeats: int = 7

    json: JsonPath = None

    def run(self) -> None:
        """Measure in turns, and print the ratios."""
        num_bytes = int(parse_bytes(self.size, default_unit="B", key="--size"))
        machine = describe_machine()
        with tempfile.TemporaryDirectory(prefix="bytewright-") as name:
            folder = Path(name)
            text = _repeat(self.text, folder / "text.txt", num_bytes)
            with open_cluster(f"local:{usable_cores()}") as (executor, num_workers):

                def train_on_cluster() -> Any:
                    cut = cut_texts([str(text)], [END_OF_TEXT])
                    table = count_on(executor, cut, [END_OF_TEXT], num_workers=num_workers)
                    return train_tokenizer(table, self.vocab_size, [END_OF_TEXT])

                tokenizer = Tokenizer.from_vocabulary(train_on_cluster().vocabulary)
                cut = cut_texts([str(text)], [END_OF_TEXT])
                numbers = iter(range(10**6))

                def encode_on_cluster() -> Any:
                    out = folder / f"many-{next(numbers)}"  # an existing dataset would be reused
                    return encode_on(executor, tokenizer, cut, out, num_workers=num_workers)

                contestants: dict[str, dict[str, Callable[[], Any]]] = {
                    "train": {
                        "one process": lambda: train_tokenizer(text, self.vocab_size, [END_OF_TEXT]),
                        "cluster": train_on_cluster,
                    },
                    "encode": {
                        "one process": lambda: tokenizer.encode_file(text, folder / "one.npy"),
                        "cluster": encode_on_cluster,
                    },
                }
                measured = {work: _measure(calls, self.repeats) for work, calls in contestants.items()}
        machine["load_average_at_end"] = os.getloadavg()[0]
        table = Table("work", "clock", "one process", "cluster", "ratio", "median ratio", "lowest", "highest")
        for work, clocks in measured.items():
            for clock, seconds in clocks.items():
                one, many = seconds["one process"], seconds["cluster"]
                ratios = [cluster / alone for cluster, alone in zip(many, one, strict=True)]
                shown = (min(many) / min(one), median(ratios), min(ratios), max(ratios))
                fastest = (format_seconds(min(one)), format_seconds(min(many)))
                table.add_row(work, clock, *fastest, *(f"{ratio:.2f}" for ratio in shown))
        wide_console().print(table)
        report = {"text": self.text.name, "text_bytes": num_bytes, "num_workers": num_workers}
        _write(self.json, machine, report | measured)


def _measure(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, list[float]]]:
    """Return elapsed seconds and processor seconds, each by the name of the call."""
    clocks = {"elapsed": time.perf_counter, "processor": _processor_seconds}
    seconds: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in calls} for clock in clocks}
    for _ in range(repeats):
        for name, call in calls.items():
            started = {clock: read() for clock, read in clocks.items()}
            call()
            for clock, read in clocks.items():
                seconds[clock][name].append(read() - started[clock])
    return seconds


def _processor_seconds() -> float:
    """Return the processor time of this process and its workers; other work hardly changes it."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def _repeat(source: Path, target: Path, num_bytes: int) -> Path:
    text = source.read_bytes() + f"\n{END_OF_TEXT}\n".encode()
    with open(target, "wb") as file:
        for start in range(0, num_bytes, len(text)):
            file.write(text[: num_bytes - start])
    return target


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Merge the tables of a simulated corpus of 1 TB, and measure the memory of the process that merges."""

    num_tables: int = 1000

    words: int = 1_000_000
    """Distinct words of one table, that is of 1 GB of text."""

    vocab_size: int = 1000
    """The merges that are learned from the result; 256: none."""

    json: JsonPath = None

    def run(self) -> None:
        """Merge, and print the sizes and the peak."""
        machine = describe_machine()
        figures: dict[str, Any] = {"num_tables": self.num_tables, "words_per_table": self.words}
        with ProcessPoolExecutor(1, get_context("spawn")) as executor:
            executor.submit(make_table, (self.words, 0)).result()
            base = _peak_memory(reset=True)
            merger, table_bytes, seconds = TableMerger(), 0, 0.0
            tasks = ((self.words, number) for number in range(1, self.num_tables + 1))
            for data in map_in_order(executor, make_table, tasks, num_workers=1):
                table_bytes += len(data)
                started = time.perf_counter()
                merger.add(WordTable(data))
                seconds += time.perf_counter() - started
        started = time.perf_counter()
        table = merger.finish()
        seconds += time.perf_counter() - started
        figures |= {
            "num_distinct_words": table.stats()[2],
            "bytes_of_all_tables": table_bytes,
            "bytes_of_merged_table": table.num_bytes,
            "peak_of_merging": _peak_memory() - base,
            "seconds_of_merging": seconds,
        }
        merged = table.num_bytes
        _peak_memory(reset=True)
        train_tokenizer(table, self.vocab_size)
        figures["peak_of_learning"] = _peak_memory() - base
        rows = Table("figure", "value", "per merged table")
        for name, value in figures.items():
            is_size = "bytes" in name or "peak" in name
            shown = format_bytes(value) if is_size else f"{value:,.0f}"
            rows.add_row(name.replace("_", " "), shown, f"{value / merged:.2f}" if is_size else "")
        wide_console().print(rows)
        _write(self.json, machine, figures)


def make_table(task: tuple[int, int]) -> bytes:
    """Return the table of 1 GB of simulated text: its frequent words, and a random part of the rare ones.

    In a text of n words, those with ranks up to R occur almost surely, and about as many words are rarer.
    Their ranks are drawn from the tail of the power law, so that Heaps' law holds for the union of tables.
    """
    num_words, seed = task
    random = np.random.default_rng(seed)
    num_frequent = num_words // 2
    tail = 1 / (1 / HEAPS - 1)
    num_drawn = int(0.62 * num_words)  # of which about half a million per million are distinct
    rare = num_frequent * random.random(num_drawn) ** -tail
    ranks = np.concatenate([np.arange(num_frequent), np.unique(rare.astype(np.uint64))])
    mixed = ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(21)
    words = np.full((len(ranks), LETTERS + 1), ord(" "), dtype=np.uint8)
    for place in range(1, LETTERS + 1):
        words[:, place] = ord("a") + mixed % np.uint64(26)
        mixed //= np.uint64(26)
    counter = WordCounter("gpt2", [])
    counter.add_text(words.tobytes())
    return counter.table_bytes()


def _peak_memory(*, reset: bool = False) -> int:
    """Return the high-water mark of the resident memory in bytes, or reset it and return the current size."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmRSS" if reset else "VmHWM"].split()[0])


def _write(path: Path | None, machine: dict[str, Any], figures: dict[str, Any]) -> None:
    if path is not None:
        write_report(path, {"machine": machine, "commit": source_commit(), **figures})


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"cost": Cost, "memory": Memory}).run()
