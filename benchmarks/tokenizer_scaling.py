"""Check that training and encoding scale linearly: twice the text takes at most 2.3 times as long.

    python benchmarks/tokenizer_scaling.py --json benchmarks/out/scaling.json

The inputs are one letter, spaces, `^`, random letters and random bytes of 1, 2, 10 and 20 MB, with both named
patterns. Such text is one enormous pre-token, or only tiny ones; a tokenizer that is quadratic in the word
length does not finish on it. Every call runs in a new process, because a short text in a used process would
reuse memory that a long text has to allocate. Each time is the minimum of several calls, because noise only
adds time. The ratio of processor times distinguishes a slow algorithm from a busy machine. The exit code is 1
if a ratio exceeds the limit or a call fails.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from corpora import MB, SEED
from harness import (
    Call,
    check_names,
    describe_machine,
    is_usable,
    source_commit,
    three_digits,
    timed,
    wide_console,
    write_report,
)
from rich.table import Table
from tokenizer_peers import OURS
from vocabularies import vocabulary_files

LIMIT = 2.3
VOCAB_SIZE = 1_000
PATTERNS = ("gpt2", "gpt4")


def _random_bytes(num_bytes: int, lowest: int, highest: int) -> bytes:
    return np.random.default_rng(SEED).integers(lowest, highest + 1, num_bytes, dtype=np.uint8).tobytes()


ODD_TEXTS: dict[str, Callable[[int], bytes]] = {
    "one letter": lambda num_bytes: b"a" * num_bytes,
    "spaces": lambda num_bytes: b" " * num_bytes,
    "^": lambda num_bytes: b"^" * num_bytes,
    "random letters": lambda num_bytes: _random_bytes(num_bytes, ord("a"), ord("z")),
    "random bytes": lambda num_bytes: _random_bytes(num_bytes, 0, 255),
}


@dataclass
class Scaling:
    """The times for n and 2n bytes of one kind of text, or the error. Field names are JSON keys."""

    job: str
    pattern: str
    text: str
    megabytes: int
    seconds: float = 0.0
    seconds_for_twice: float = 0.0
    cpu_ratio: float = 0.0
    error: str | None = None

    @property
    def ratio(self) -> float:
        """Return time(2n) / time(n)."""
        return self.seconds_for_twice / self.seconds if self.seconds else float("inf")

    @property
    def holds(self) -> bool:
        """Return whether the ratio is within the limit."""
        return self.error is None and self.ratio <= LIMIT


def prepare_training(pattern: str, text: bytes, folder: Path) -> Callable[[], Any]:
    """Return a call that trains on a file of this text."""
    train_bpe = import_module("bytewright.tokenizer.train").train_bpe
    path = folder / "odd.txt"
    path.write_bytes(text)
    return lambda: train_bpe(path, VOCAB_SIZE, [], pattern=pattern)


def prepare_encoding(pattern: str, text: bytes, folder: Path) -> Callable[[], Any]:
    """Return a call that encodes this text with a new tokenizer of the benchmark's vocabulary."""
    tokenizer_class = import_module("bytewright.tokenizer").Tokenizer
    from_files = tokenizer_class.from_files(*vocabulary_files())
    tokenizer = tokenizer_class(from_files.vocab, from_files.merges, pattern=pattern)
    return lambda: tokenizer.encode_array(text)


JOBS = {"train": prepare_training, "encode": prepare_encoding}


def run_once(job: str, pattern: str, kind: str, num_bytes: int) -> Call:
    """Time one job in this process."""
    with tempfile.TemporaryDirectory() as folder:
        return timed(JOBS[job](pattern, ODD_TEXTS[kind](num_bytes), Path(folder)))[0]


def measure_scaling(job: str, pattern: str, kind: str, megabytes: int, repeats: int) -> Scaling:
    """Time one job on n and on 2n bytes alternately and keep the minimum of each."""
    scaling = Scaling(job, pattern, kind, megabytes)
    sizes = [megabytes * MB, 2 * megabytes * MB]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        try:
            # The first call is not counted: the system is slow to provide memory that was unused for long.
            fresh.submit(run_once, job, pattern, kind, sizes[-1]).result()
            rounds = [
                [fresh.submit(run_once, job, pattern, kind, size).result() for size in sizes]
                for _ in range(repeats)
            ]
            scaling.seconds, scaling.seconds_for_twice = (min(r[i].seconds for r in rounds) for i in (0, 1))
            once, twice = (min(r[i].cpu_seconds for r in rounds) for i in (0, 1))
            scaling.cpu_ratio = twice / once
        except Exception as error:
            scaling.error = f"{type(error).__name__}: {error}"
    return scaling


def _cells(scaling: Scaling) -> list[str]:
    place = [scaling.job, scaling.pattern, scaling.text, str(scaling.megabytes)]
    if scaling.error:
        return [*place, "", "", scaling.error, ""]
    times = [three_digits(scaling.seconds), three_digits(scaling.seconds_for_twice)]
    return [*place, *times, f"{scaling.ratio:.2f}", f"{scaling.cpu_ratio:.2f}"]


def main(
    megabytes: tuple[int, ...] = (1, 10),
    jobs: tuple[str, ...] = tuple(JOBS),
    repeats: int = 5,
    json_path: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Measure how the time of training and encoding grows with unusual input.

    Args:
        megabytes: the sizes n to compare with 2n.
        jobs: train, encode, or both.
        repeats: timed calls of each job; the table shows the minimum.
        json_path: write the results to this JSON file.

    """
    check_names(jobs, JOBS)
    console = wide_console()
    if not is_usable(OURS, "bytewright._native", console):
        raise SystemExit(1)
    about = {"machine": describe_machine(), "commit": source_commit(), "limit": LIMIT, "repeats": repeats}
    console.print(about)
    table = Table(title=f"time(2n) / time(n), at most {LIMIT}", title_justify="left")
    for heading in ("job", "pattern", "text", "n MB", "time(n) s", "time(2n) s", "ratio", "CPU ratio"):
        table.add_column(heading, justify="left" if heading in ("job", "pattern", "text") else "right")
    measured: list[Scaling] = []
    for job in jobs:
        for pattern in PATTERNS:
            for kind in ODD_TEXTS:
                for size in megabytes:
                    scaling = measure_scaling(job, pattern, kind, size, repeats)
                    measured.append(scaling)
                    style = None if scaling.holds else "bold red"
                    console.print("  " + " ".join(_cells(scaling)), style=style or "dim")
                    table.add_row(*_cells(scaling), style=style)
    console.print(table)
    if json_path:
        rows = [{**asdict(scaling), "ratio": scaling.ratio, "holds": scaling.holds} for scaling in measured]
        write_report(json_path, {**about, "measured": rows})
    broken = sum(not scaling.holds for scaling in measured)
    console.print(f"{len(measured) - broken} of {len(measured)} are within the limit.")
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    tyro.cli(main)
