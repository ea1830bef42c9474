"""Checks that odd input stays cheap: twice the text may take at most 2.3 times as long, and nothing may fail.

    python benchmarks/tokenizer_scaling.py --json benchmarks/out/scaling.json

One letter, spaces, `^`, random letters and random bytes, of 1, 2, 10 and 20 MB each, are trained on and
encoded with both named patterns. Such text is one enormous pre-token, or nothing but tiny ones; it is what
makes a tokenizer that is quadratic in the length of a word hang. Every call has a process of its own: within
one, a short text would reuse memory that a long one has to ask the system for. Each time is the best of
several, since noise only ever adds; the ratio of processor times beside it tells a slow algorithm from a busy
machine. Leaves with exit code 1 when a ratio is over the limit or a call raises.
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
    commit,
    is_usable,
    machine,
    three_digits,
    timed,
    wide_console,
    write_report,
)
from rich.table import Table
from trainers import OURS
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
    """The time for n and 2n bytes of one kind of text, or the error that came instead."""

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
        """How much longer twice the text takes."""
        return self.seconds_for_twice / self.seconds if self.seconds else float("inf")

    @property
    def holds(self) -> bool:
        """Whether the promise was kept."""
        return self.error is None and self.ratio <= LIMIT


def trainer(pattern: str, text: bytes, folder: Path) -> Callable[[], Any]:
    """Prepare training on a file of this text."""
    train_bpe = import_module("bytewright.tokenizer.train").train_bpe
    path = folder / "odd.txt"
    path.write_bytes(text)
    return lambda: train_bpe(path, VOCAB_SIZE, [], pattern=pattern)


def encoder(pattern: str, text: bytes, folder: Path) -> Callable[[], Any]:
    """Prepare encoding this text with the benchmark's vocabulary, by a tokenizer that has seen nothing."""
    tokenizer_class = import_module("bytewright.tokenizer").Tokenizer
    from_files = tokenizer_class.from_files(*vocabulary_files())
    tokenizer = tokenizer_class(from_files.vocab, from_files.merges, pattern=pattern)
    return lambda: tokenizer.encode_array(text)


JOBS: dict[str, Callable[[str, bytes, Path], Callable[[], Any]]] = {"train": trainer, "encode": encoder}


def run_once(job: str, pattern: str, kind: str, num_bytes: int) -> Call:
    """Time one job in this process."""
    with tempfile.TemporaryDirectory() as folder:
        return timed(JOBS[job](pattern, ODD_TEXTS[kind](num_bytes), Path(folder)))[0]


def measure(job: str, pattern: str, kind: str, megabytes: int, repeats: int) -> Scaling:
    """Time one job on n and on 2n bytes, in turns, and keep the best of each."""
    scaling = Scaling(job, pattern, kind, megabytes)
    sizes = [megabytes * MB, 2 * megabytes * MB]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        try:
            # Not counted: memory that the machine has not used for long is slow to come the first time.
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
    """Measure how training and encoding grow with odd input.

    Args:
        megabytes: the sizes n to compare with 2n.
        jobs: train, encode, or both.
        repeats: how often each is timed; the best counts.
        json_path: where to write the figures as JSON.

    """
    check_names(jobs, JOBS)
    console = wide_console()
    if not is_usable(OURS, "bytewright._native", console):
        raise SystemExit(1)
    about = {"machine": machine(), "commit": commit(), "limit": LIMIT, "repeats": repeats}
    console.print(about)
    table = Table(title=f"time(2n) / time(n), at most {LIMIT}", title_justify="left")
    for heading in ("job", "pattern", "text", "n MB", "time(n) s", "time(2n) s", "ratio", "CPU ratio"):
        table.add_column(heading, justify="left" if heading in ("job", "pattern", "text") else "right")
    measured: list[Scaling] = []
    for job in jobs:
        for pattern in PATTERNS:
            for kind in ODD_TEXTS:
                for size in megabytes:
                    scaling = measure(job, pattern, kind, size, repeats)
                    measured.append(scaling)
                    style = None if scaling.holds else "bold red"
                    console.print("  " + " ".join(_cells(scaling)), style=style or "dim")
                    table.add_row(*_cells(scaling), style=style)
    console.print(table)
    if json_path:
        rows = [{**asdict(scaling), "ratio": scaling.ratio, "holds": scaling.holds} for scaling in measured]
        write_report(json_path, {**about, "measured": rows})
    broken = sum(not scaling.holds for scaling in measured)
    console.print(f"{len(measured) - broken} of {len(measured)} hold.")
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    tyro.cli(main)
