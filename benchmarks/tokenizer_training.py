"""Measure BPE training: the same text with every library; compare speed, memory and learned merges.

    python benchmarks/corpora.py                      # once: builds the text
    python benchmarks/tokenizer_training.py --json benchmarks/out/training.json

The contestants take turns, each in its own process, so other load on the machine affects all of them. The
last column of each table shows where a peer's merges first differ from ours. We break ties by the greater
pair of byte strings and every peer by another rule, so a difference at the first tie is expected.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from corpora import DATA, corpus
from harness import (
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
from tokenizer_peers import OURS, TRAINERS


@dataclass(frozen=True)
class Task:
    """One column: a corpus and a vocabulary size."""

    corpus: str
    vocab_size: int


TASKS = {
    "5mb-10k": Task("technical-5mb.txt", 10_000),
    "5mb-32k": Task("technical-5mb.txt", 32_000),
    "100mb-10k": Task("technical-100mb.txt", 10_000),
    "100mb-32k": Task("technical-100mb.txt", 32_000),
    "1gb-10k": Task("technical-1gb.txt", 10_000),
}


def measure_training(
    name: str, contestants: list[str], repeats: int, num_threads: int, console: Console
) -> Column:
    """Run the contestants in turn, `repeats` times, and compare their merges with ours."""
    task = TASKS[name]
    source = corpus(task.corpus)
    runs: dict[str, list[WorkerRun]] = {contestant: [] for contestant in contestants}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            for contestant in contestants:
                job = {
                    "kind": "train",
                    "contestant": contestant,
                    "corpus": str(source),
                    "vocab_size": task.vocab_size,
                    "num_threads": num_threads,
                    "output": str(Path(folder) / contestant),
                }
                run = run_worker(job, num_threads)
                runs[contestant].append(run)
                cost = run.error or f"{run.calls[0].seconds:.3f} s, RssAnon {run.peak_anon_mb:.0f} MB"
                console.print(f"  {name} {contestant}: {cost}", style="dim")
        results = [summarise_runs(contestant, runs[contestant], Path(folder)) for contestant in contestants]
    return Column(name, results)


def summarise_runs(contestant: str, runs: list[WorkerRun], folder: Path) -> Result:
    """Return the medians over a contestant's runs and a description of its merges."""
    if error := next((run.error for run in runs if run.error), None):
        return Result(contestant, error=error)
    agreement = compare_tokens(folder / OURS, folder / contestant)
    if len({run.output for run in runs}) > 1:
        agreement += "; differs from run to run"
    return Result(
        contestant,
        seconds=Figure.of(run.calls[0].seconds for run in runs),
        cpu_seconds=Figure.of(run.calls[0].cpu_seconds for run in runs),
        peak_rss_mb=Figure.of(run.peak_rss_mb for run in runs),
        peak_anon_mb=Figure.of(run.peak_anon_mb for run in runs),
        agreement=agreement,
    )


def compare_tokens(ours: Path, theirs: Path) -> str:
    """Describe where the learned tokens first differ from ours and which share of ours they contain."""
    learned = [bytes.fromhex(line) for line in theirs.read_text().split()]
    if ours == theirs or not ours.exists():
        return f"{len(learned):,} merges"
    expected = [bytes.fromhex(line) for line in ours.read_text().split()]
    if learned == expected:
        return f"{len(learned):,} merges, same as ours"
    first = next(
        (i for i, (a, b) in enumerate(zip(learned, expected, strict=False)) if a != b),
        min(len(learned), len(expected)),
    )
    pair = f"{_at(learned, first)} for our {_at(expected, first)}"
    shared = len(set(learned) & set(expected)) / len(expected)
    return f"{len(learned):,} merges, first differs at {first} ({pair}), {shared:.1%} of ours"


def _at(tokens: list[bytes], index: int) -> str:
    return repr(tokens[index])[1:] if index < len(tokens) else "nothing"


def main(
    columns: tuple[str, ...] = tuple(TASKS),
    only: tuple[str, ...] = tuple(TRAINERS),
    repeats: int = 3,
    threads: int = 2,
    json_path: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Measure training.

    Args:
        columns: columns to run: 5mb-10k, 5mb-32k, 100mb-10k, 100mb-32k, 1gb-10k.
        only: trainers to run.
        repeats: processes per trainer and column; the table shows the median.
        threads: number of threads of each trainer.
        json_path: write the results to this JSON file.

    """
    check_names(columns, TASKS)
    check_names(only, TRAINERS)
    console = wide_console()
    contestants = [name for name in only if is_usable(name, TRAINERS[name].module, console)]
    about = {
        "machine": describe_machine(),
        "commit": source_commit(),
        "versions": installed_versions(trainer.package for trainer in TRAINERS.values()),
        "threads": threads,
        "repeats": repeats,
        "corpora": [json.loads(path.read_text()) for path in sorted(DATA.glob("technical-*.json"))],
    }
    console.print({key: about[key] for key in ("machine", "commit", "versions", "threads", "repeats")})
    measured = []
    for name in columns:
        measured.append(measure_training(name, contestants, repeats, threads, console))
        print_column(console, measured[-1], OURS)
        if json_path:
            write_columns(json_path, measured, about)
    print_summary(console, measured, OURS)


if __name__ == "__main__":
    tyro.cli(main)
