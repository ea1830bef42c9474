"""Trains BPE beside every peer on the same text; says who is how fast, in how much memory, with what result.

    python benchmarks/corpora.py                      # once: builds the text
    python benchmarks/tokenizer_training.py --json benchmarks/out/training.json

Contestants take turns, one process each, so that a noisy minute of the machine hits everybody. The last
column of each table says where a peer's merges leave ours: ours break ties by the greater pair of byte
strings, each peer by a rule of its own, so a difference at the first tie is expected.
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
    Run,
    check_names,
    commit,
    is_usable,
    machine,
    print_column,
    print_summary,
    run_worker,
    versions,
    wide_console,
    write_columns,
)
from rich.console import Console
from trainers import OURS, TRAINERS


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


def measure(name: str, contestants: list[str], repeats: int, num_threads: int, console: Console) -> Column:
    """Run everybody in turn, `repeats` times, and compare what they learned with ours."""
    task = TASKS[name]
    source = corpus(task.corpus)
    runs: dict[str, list[Run]] = {contestant: [] for contestant in contestants}
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
        results = [summarise(contestant, runs[contestant], Path(folder)) for contestant in contestants]
    return Column(name, results)


def summarise(contestant: str, runs: list[Run], folder: Path) -> Result:
    """Turn a contestant's runs into medians and a word on its output."""
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
    """Say where the learned tokens first differ from ours, and how many are the same in the end."""
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
        columns: which of 5mb-10k, 5mb-32k, 100mb-10k, 100mb-32k, 1gb-10k to run.
        only: which trainers to run.
        repeats: processes per trainer and column; the median is reported.
        threads: how many threads each trainer may use.
        json_path: where to write the figures as JSON.

    """
    check_names(columns, TASKS)
    check_names(only, TRAINERS)
    console = wide_console()
    contestants = [name for name in only if is_usable(name, TRAINERS[name].module, console)]
    about = {
        "machine": machine(),
        "commit": commit(),
        "versions": versions(trainer.package for trainer in TRAINERS.values()),
        "threads": threads,
        "repeats": repeats,
        "corpora": [json.loads(path.read_text()) for path in sorted(DATA.glob("technical-*.json"))],
    }
    console.print({key: about[key] for key in ("machine", "commit", "versions", "threads", "repeats")})
    measured = []
    for name in columns:
        measured.append(measure(name, contestants, repeats, threads, console))
        print_column(console, measured[-1], OURS)
        if json_path:
            write_columns(json_path, measured, about)
    print_summary(console, measured, OURS)


if __name__ == "__main__":
    tyro.cli(main)
