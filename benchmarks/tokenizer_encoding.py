"""Measure encoding: the same text and vocabulary with every library; compare speed, memory and ids.

    python benchmarks/corpora.py                      # once: builds the text
    python benchmarks/tokenizer_encoding.py --json benchmarks/out/encoding.json

Cold is the first call in a new process; warm is the median of later calls on the same text in that process.
Building the tokenizer is not timed. The contestants take turns, each in its own process. Some libraries
return an id for each separator between documents of a file; the comparison ignores these ids. Libraries that
do not read files and are much slower than those that do are excluded from the columns that read files.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from corpora import DATA, MB, SEED, corpus
from harness import (
    Call,
    Column,
    Figure,
    Result,
    WorkerRun,
    check_names,
    describe_machine,
    installed_versions,
    is_usable,
    print_column,
    print_summary,
    run_worker,
    source_commit,
    wide_console,
    write_columns,
)
from rich.console import Console
from tokenizer_peers import ENCODERS, OURS
from vocabularies import ranks, vocabulary_files

GREETING = "Hello, world! How are you?"


@dataclass(frozen=True)
class Task:
    """The kind of call (a method of `Encoder`) and its input: a corpus file, or `text` if it is given."""

    input_kind: str
    corpus: str = ""
    text: str | None = None


def random_unicode(num_bytes: int) -> str:
    """Draw code points of all planes except surrogates until their UTF-8 has `num_bytes` bytes."""
    chance = random.Random(SEED)
    characters: list[str] = []
    size = 0
    while size < num_bytes:
        code = chance.randrange(0x110000)
        if not 0xD800 <= code < 0xE000:
            characters.append(chr(code))
            size += len(characters[-1].encode())
    return "".join(characters)


TASKS = {
    "document-20mb": Task("document", "technical-20mb-one-document.txt"),
    "batch-100mb": Task("batch", "technical-100mb.txt"),
    "file-100mb": Task("file", "technical-100mb.txt"),
    "token-file-100mb": Task("token_file", "technical-100mb.txt"),
    "tiny": Task("tiny", text=GREETING),
    "odd-letter-1mb": Task("document", text="a" * MB),
    "odd-spaces-1mb": Task("document", text=" " * MB),
    "odd-unicode-1mb": Task("document", text=random_unicode(MB)),
}


def measure_encoding(
    name: str, contestants: list[str], repeats: int, num_threads: int, console: Console
) -> Iterator[Column]:
    """Run the contestants in turns; yield a cold and a warm column, or one column for the tiny call."""
    task = TASKS[name]
    if "file" in task.input_kind:
        contestants = [c for c in contestants if ENCODERS[c].reads_files]
    runs: dict[str, list[WorkerRun]] = {contestant: [] for contestant in contestants}
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        source = corpus(task.corpus) if task.text is None else Path(folder) / "input.txt"
        if task.text is not None:
            source.write_text(task.text, newline="")
        for _ in range(repeats):
            for contestant in contestants:
                job = {
                    "kind": "encode",
                    "contestant": contestant,
                    "input_kind": task.input_kind,
                    "input": str(source),
                    "num_threads": num_threads,
                    "output": str(Path(folder) / f"{contestant}.npy"),
                }
                run = run_worker(job, num_threads)
                runs[contestant].append(run)
                cost = run.error or " ".join(f"{call.seconds:.3g}" for call in run.calls)
                console.print(f"  {name} {contestant}: {cost}", style="dim")
        agreements = {c: compare_ids(Path(folder), c) for c in contestants}
        num_bytes = source.stat().st_size
    if task.input_kind == "tiny":
        results = [summarise_calls(c, runs[c], slice(None), agreements[c]) for c in contestants]
        yield Column(name, results, unit_seconds=1e-6)
        return
    for title, calls in (("cold", slice(0, 1)), ("warm", slice(1, None))):
        results = [summarise_calls(c, runs[c], calls, agreements[c]) for c in contestants]
        yield Column(f"{name} {title}", results, num_bytes=num_bytes)


def summarise_calls(contestant: str, runs: list[WorkerRun], calls: slice, agreement: str) -> Result:
    """Return the medians over processes of the median over the selected calls of each process."""
    if error := next((run.error for run in runs if run.error), None):
        return Result(contestant, error=error)

    def middle(costs: list[Call]) -> Call:
        return Call(
            statistics.median(c.seconds for c in costs), statistics.median(c.cpu_seconds for c in costs)
        )

    chosen = [middle(run.calls[calls]) for run in runs]
    if len({run.output for run in runs}) > 1:
        agreement += "; differs from run to run"
    return Result(
        contestant,
        seconds=Figure.of(call.seconds for call in chosen),
        cpu_seconds=Figure.of(call.cpu_seconds for call in chosen),
        peak_rss_mb=Figure.of(run.peak_rss_mb for run in runs),
        peak_anon_mb=Figure.of(run.peak_anon_mb for run in runs),
        agreement=agreement,
    )


def compare_ids(folder: Path, contestant: str) -> str:
    """Describe where a contestant's ids first differ from ours, or from tiktoken's if ours are missing."""
    theirs_path = folder / f"{contestant}.npy"
    if not theirs_path.exists():
        return ""
    _, end_of_text = ranks()
    theirs = np.load(theirs_path)
    theirs = theirs[theirs != end_of_text]
    standard = next((name for name in (OURS, "tiktoken") if (folder / f"{name}.npy").exists()), contestant)
    if standard == contestant:
        return f"{len(theirs):,} ids"
    expected = np.load(folder / f"{standard}.npy")
    expected = expected[expected != end_of_text]
    if np.array_equal(theirs, expected):
        return f"same ids as {standard}"
    common = min(len(theirs), len(expected))
    different = np.flatnonzero(theirs[:common] != expected[:common])
    first = int(different[0]) if len(different) else common
    return f"{len(theirs):,} ids, {standard} {len(expected):,}: first differs at {first:,}"


def main(
    columns: tuple[str, ...] = tuple(TASKS),
    only: tuple[str, ...] = tuple(ENCODERS),
    repeats: int = 3,
    threads: int = 2,
    json_path: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Measure encoding.

    Args:
        columns: columns to run: document-20mb, batch-100mb, file-100mb, token-file-100mb, tiny,
            odd-letter-1mb, odd-spaces-1mb, odd-unicode-1mb.
        only: encoders to run.
        repeats: processes per encoder and column; the table shows the median.
        threads: number of threads of each encoder.
        json_path: write the results to this JSON file.

    """
    check_names(columns, TASKS)
    check_names(only, ENCODERS)
    console = wide_console()
    contestants = [name for name in only if is_usable(name, ENCODERS[name].module, console)]
    about = {
        "machine": describe_machine(),
        "commit": source_commit(),
        "versions": installed_versions(sorted({contestant.package for contestant in ENCODERS.values()})),
        "vocabulary": vocabulary_files()[0].name,
        "threads": threads,
        "repeats": repeats,
        "corpora": [json.loads(path.read_text()) for path in sorted(DATA.glob("technical-*.json"))],
    }
    console.print({key: value for key, value in about.items() if key != "corpora"})
    measured: list[Column] = []
    for name in columns:
        for column in measure_encoding(name, contestants, repeats, threads, console):
            measured.append(column)
            print_column(console, column, OURS)
        if json_path:
            write_columns(json_path, measured, about)
    print_summary(console, measured, OURS)


if __name__ == "__main__":
    tyro.cli(main)
