"""Measure how many facts a model stores: small models on documents about people only, on one GPU.

    python benchmarks/capacity.py --json capacity.json --mps                                      # an H200
    python benchmarks/capacity.py --json capacity.json --widths 16 --tokens 1e6 --vocab-size 300  # two cores

The people, their frequencies and their facts are those of the world book, but all sections are of the genre
`people`. So a token states more facts, and there is little else to learn. First comes the learning rate: the
best of three on validation documents, at one width and a quarter of the tokens. Then each width is trained on
all tokens with several seeds, and on half of them with one. The results are the bits of the models on whole
documents, by kind of choice and octave of rank.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from harness import describe_machine, installed_versions, source_commit, write_report
from rich.console import Console
from rich.table import Table
from run_pool import Result, RunPool, Task, shared_gpu
from world_documents import DocumentEvaluation, Documents

from bytewright.account import count_parameters
from bytewright.corpus import END_OF_TEXT, SEPARATOR
from bytewright.corpus.worldbook import Split, Worldbook
from bytewright.corpus.worldbook.book import SPLITS, load_grammar
from bytewright.corpus.worldbook.curves import count_mentions
from bytewright.corpus.worldbook.fused import make_writer
from bytewright.corpus.worldbook.world import World
from bytewright.system import usable_cores
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.train import train_tokenizer
from bytewright.train.config import DataConfig
from bytewright.train.recipe import read_recipe

RECIPE = Path(__file__).parents[1] / "recipes" / "isoflop.toml"
EXPONENT = Decimal(1)
RATES = (2e-3, 4e-3, 8e-3)
HEAD_DIM = 16
CONTEXT_LENGTH = 256
BATCH_SIZE = 64
HALF, QUARTER = 2, 4
"""Divisors of the number of tokens: of the shorter runs, and of those that choose the rate."""
TOKENIZER_BYTES = 20_000_000
MAX_BYTES_PER_TOKEN = 4.0
MAX_SPEED = 4e6
"""The assumed tokens per second of a process that has not completed a run."""


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, help="the results")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds after which everything ends")
    parser.add_argument("--mps", action="store_true", help="run kernels of several runs at the same time")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 48, 64])
    parser.add_argument("--people", type=int, default=2**13, help="number of people in the world")
    parser.add_argument("--rate", type=float, help="the learning rate; without it, the best of three")
    parser.add_argument("--tokens", type=float, default=600e6, help="training tokens of a run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--vocab-size", type=int, default=512)
    parser.add_argument("--documents", type=int, default=1000, help="test documents")
    options = parser.parse_args()
    if any(width <= 0 or width % HEAD_DIM for width in options.widths):
        parser.error(f"--widths must be positive multiples of {HEAD_DIM}, the dimension of a head")
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1, but is {options.seeds}")
    if options.documents < 2:
        parser.error(f"--documents must be at least 2, but is {options.documents}")
    return options


def people_book(num_people: int) -> Worldbook:
    """Return a world book with this number of people, and with sections about people only."""
    grammar = dataclasses.replace(load_grammar(), genres={"people": 1})
    return Worldbook(World(exponent=EXPONENT, num_people=num_people), grammar)


def octave(rank: int | None) -> str:
    """Return the range of ranks, from a power of two to below the next one, that contains a rank.

    >>> octave(1), octave(7), octave(64), octave(None)
    ('1-1', '4-7', '64-127', '-')
    """
    if rank is None:
        return "-"
    low = 1 << (rank.bit_length() - 1)
    return f"{low}-{2 * low - 1}"


def write_documents(path: Path, book: Worldbook, split: Split, num_bytes: int) -> None:
    """Write about `num_bytes` of documents of a split, at least the first 512."""
    writer, count = make_writer(book.machine), 512

    def write(first: int) -> bytes:
        return writer.write(SPLITS.index(split), 1, first, count, SEPARATOR.encode())[0]

    per_document = len(write(0)) / count
    firsts = range(0, round(num_bytes / per_document) + count, count)
    cores = usable_cores()
    with ThreadPoolExecutor(cores) as executor, path.open("wb") as stream:
        for start in range(0, len(firsts), 4 * cores):
            stream.writelines(executor.map(write, firsts[start : start + 4 * cores]))


@dataclass(frozen=True)
class Plan:
    """The texts and the settings that all runs share."""

    folder: Path
    book: Worldbook
    num_tokens: int
    vocab_size: int

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer."""
        return self.folder / "tokenizer"

    def prepare_small(self) -> Path:
        """Train the tokenizer; return the token file of its text, for the warm-up."""
        text = self.folder / "small.txt"
        write_documents(text, self.book, "train", TOKENIZER_BYTES)
        trained = train_tokenizer(text, self.vocab_size, [END_OF_TEXT])
        Tokenizer.from_vocabulary(trained.vocabulary).save(self.tokenizer)
        return self._encode(text)

    def prepare_large(self) -> Path:
        """Return the token file of all training text, which no run reads twice."""
        text = self.folder / "train.txt"
        write_documents(text, self.book, "train", int(self.num_tokens * MAX_BYTES_PER_TOKEN))
        tokens = self._encode(text)
        if (found := len(np.load(tokens, mmap_mode="r"))) < self.num_tokens:
            raise SystemExit(
                f"the training text has {found:,} tokens, but a run reads {self.num_tokens:,};"
                " use a smaller --vocab-size, or raise MAX_BYTES_PER_TOKEN"
            )
        return tokens

    def _encode(self, text: Path) -> Path:
        target = text.with_suffix(".npy")
        Tokenizer.load(self.tokenizer).encode_file(text, target)
        return target

    def read_documents(self, num_test: int) -> DocumentEvaluation:
        """Return the evaluation on `num_test` test documents and half as many validation documents."""
        mean = self.book.entropy().num_sections * 250  # more than the mean bytes of a document
        tokenizer = Tokenizer.load(self.tokenizer)

        def read(split: Split, num_any: int) -> Documents:
            file = self.folder / f"{split}.txt"
            write_documents(file, self.book, split, int(num_any * mean))
            return Documents.read(
                file, self.book, tokenizer, num_any=num_any, context_length=0, label_rank=octave
            )

        return DocumentEvaluation(
            read("validation", num_test // 2), read("test", num_test), num_test, CONTEXT_LENGTH
        )

    def task(self, data: Path, width: int, lr: float, seed: int, divisor: int = 1) -> Task:
        """Return the run of a width on the number of tokens divided by `divisor`."""
        settings = {
            "model.vocab_size": self.vocab_size,
            "model.context_length": CONTEXT_LENGTH,
            "model.d_model": width,
            "model.num_heads": width // HEAD_DIM,
            "batch_size": BATCH_SIZE,
            "budget.tokens": self.num_tokens // divisor,
            "schedule.warmup": 400 // divisor,
            "optimizer.lr": lr,
            "seed": seed,
        }
        config = read_recipe(RECIPE, [f"{name}={value}" for name, value in settings.items()])
        config = dataclasses.replace(config, data=DataConfig(train=data))
        assert config.num_steps is not None
        parameters = count_parameters(config.model)
        about = {
            "width": width,
            "parameters": parameters.total,
            "parameters_without_embeddings": parameters.without_embeddings,
            "tokens": config.num_steps * config.tokens_per_step,
            "lr": lr,
            "seed": seed,
        }
        name = f"{width}-{about['tokens']}-{lr:g}-{seed}"
        return Task(name, process_name(width, seed, divisor), config, about)


def process_name(width: int, seed: int, divisor: int = 1) -> str:
    """Return the name of the process of a run; runs that choose the rate use those of longer runs."""
    return f"{width}-{seed}-{divisor}"


class Record:
    """All results so far, and the file that holds them."""

    def __init__(self, path: Path, plan: Plan, evaluation: DocumentEvaluation, is_shared: bool) -> None:
        self.path, self.sets, self.runs = path, evaluation.sets(), list[Result]()
        self.num_documents = {name: int(chosen.sum()) for name, (_, chosen) in self.sets.items()}
        self.fact_bits = self._count_fact_bits(plan.book)
        world = plan.book.world
        self.about = {
            "exponent": str(world.exponent),
            "people": world.num_people,
            "machine": describe_machine(),
            "commit": source_commit(),
            "versions": installed_versions(["torch"]),
            "mps": is_shared,
            "vocab_size": plan.vocab_size,
            "context_length": CONTEXT_LENGTH,
            "batch_size": BATCH_SIZE,
        }

    def _count_fact_bits(self, book: Worldbook) -> float:
        """Return the bits per test document that facts cost if none is known."""
        mentions = count_mentions(book.grammar, book.entropy().num_sections)
        bits_per_fact = mentions.bits_per_mention / sum(mentions.rates.values())
        documents, chosen = self.sets["test"]
        is_fact = [kind == "fact" for kind, _, _ in documents.cells]
        num_facts = documents.num_choices[chosen].sum(axis=0)[is_fact].sum()
        return bits_per_fact * float(num_facts) / self.num_documents["test"]

    def excess(self, run: Result, name: str, *kinds: str) -> float:
        """Return the excess of some kinds of choice in bits per document; without kinds, of all."""
        documents, chosen = self.sets[name]
        above = np.array(run["model_bits"][name]) - documents.true_bits[chosen].sum(axis=0)
        wanted = [not kinds or kind in kinds for kind, _, _ in documents.cells]
        return float(above[wanted].sum()) / self.num_documents[name]

    def add(self, task: Task, result: Result) -> None:
        """Add a run and write the file."""
        self.runs.append(result)
        shown = result.get("error") or (
            f"facts {self.excess(result, 'test', 'fact'):.2f} of {self.fact_bits:.2f} bits,"
            f" all {self.excess(result, 'test'):.2f}, {result['training_seconds']:.0f} s"
        )
        print(f"{len(self.runs):3} {task.name}: {shown}", flush=True)
        self.write()

    def write(self) -> None:
        """Write the file."""
        sets = {
            name: documents.summarise(chosen) | {"cells": documents.cells}
            for name, (documents, chosen) in self.sets.items()
            if name != "fitting"
        }
        write_report(self.path, {"title": "Capacity", **self.about, "sets": sets, "runs": self.runs})

    def complete_runs(self) -> list[Result]:
        """Return the complete runs; exit if there is none."""
        complete = [run for run in self.runs if "error" not in run]
        if not complete:
            raise SystemExit("no run was completed: all failed, or none would end within --limit")
        return complete

    def best_rate(self) -> float:
        """Return the rate of the run with the lowest loss on validation documents."""
        return float(min(self.complete_runs(), key=lambda run: self.excess(run, "validation"))["lr"])


def print_table(record: Record) -> None:
    """Print the excess of each size, number of tokens and rate; exit if no run was completed."""
    table = Table(title=f"excess in bits per document; facts cost {record.fact_bits:.1f} if none is known")
    for heading in ("width", "parameters", "tokens", "rate", "seeds", "facts", "by seed", "names", "all"):
        table.add_column(heading, justify="right")
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for run in record.complete_runs():
        groups.setdefault((run["width"], run["parameters"], run["tokens"], run["lr"]), []).append(run)
    for key, runs in sorted(groups.items()):
        facts = [record.excess(run, "test", "fact") for run in runs]
        names = [record.excess(run, "test", "person") for run in runs]
        total = [record.excess(run, "test") for run in runs]
        means = (f"{statistics.mean(each):.2f}" for each in (names, total))
        by_seed = " ".join(f"{each:.2f}" for each in facts)
        table.add_row(
            *(str(each) for each in key), str(len(runs)), f"{statistics.mean(facts):.2f}", by_seed, *means
        )
    Console(width=150).print(table)


def main() -> None:
    """Run everything within the limit and print a table."""
    options, start = parse_arguments(), time.monotonic()
    with shared_gpu(options.mps) as is_shared, tempfile.TemporaryDirectory(prefix="capacity") as folder:
        plan = Plan(Path(folder), people_book(options.people), int(options.tokens), options.vocab_size)
        small = plan.prepare_small()
        pool = RunPool(Path(folder) / "runs", num_slots=24, deadline=start + options.limit - 8)
        try:
            all_runs = [
                *((width, seed, 1) for seed in range(options.seeds) for width in options.widths),
                *((width, 0, HALF) for width in options.widths),
            ]
            pool.warm_up(
                plan.task(small, width, RATES[0], seed, divisor) for width, seed, divisor in all_runs
            )
            data = plan.prepare_large()
            evaluation = plan.read_documents(options.documents)
            record = Record(options.json, plan, evaluation, is_shared)
            print(f"{time.monotonic() - start:.0f} s: the data is ready", flush=True)

            def run(tasks: Iterable[Task]) -> None:
                pool.run(list(tasks), evaluation, record.add, lambda task: MAX_SPEED)

            if (lr := options.rate) is None:
                middle = options.widths[len(options.widths) // 2]
                processes = [process_name(middle, number % options.seeds) for number in range(len(RATES))]
                run(
                    dataclasses.replace(plan.task(data, middle, each, 0, QUARTER), shape=process)
                    for each, process in zip(RATES, processes, strict=True)
                )
                lr = record.best_rate()
            print(f"{time.monotonic() - start:.0f} s: the rate is {lr}", flush=True)
            run(plan.task(data, width, lr, seed, divisor) for width, seed, divisor in all_runs)
        finally:
            pool.close()
    print(f"{time.monotonic() - start:.0f} s in all")
    print_table(record)


if __name__ == "__main__":
    main()
