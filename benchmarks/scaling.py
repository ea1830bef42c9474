"""Train all points of the isoFLOP sweeps on the world book within a time limit, on one GPU.

    python benchmarks/scaling.py --json scaling.json --limit 540                      # an H200
    python benchmarks/scaling.py --json scaling.json --scale smoke --documents 60     # two cores, minutes

    python benchmarks/scaling.py --json more.json --earlier scaling.json --points isotoken:1280:3

The sweeps recipes/isoflop_*.toml state sizes, tokens, rates and seeds. First come the rates; the best at the
base width, by validation documents, is used for all sizes. Then one seed of each level of compute, then
further seeds, those of the sizes near the minimum of a level first. With `--points`, only these points are
run, in their order, at the rate that earlier runs chose. The results are of test documents, as bits of the
model by kind of choice. `--json` has all runs, and `points` for `bytewright fit`; a second file,
`…-fitting.json`, has the points of test documents that fit into the context. Both are written after each run.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import describe_machine, installed_versions, source_commit, write_report
from rich.console import Console
from rich.table import Table
from run_pool import Result, RunPool, Task, median_speed, read_earlier, select_new, shared_gpu
from world_documents import DocumentEvaluation, Documents

from bytewright.account import count_flops, count_parameters
from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.worldbook import Worldbook
from bytewright.corpus.worldbook.files import write_worldbook
from bytewright.experiments.sweep import Trial, read_sweep
from bytewright.system import usable_cores
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.train import train_tokenizer
from bytewright.train.config import DataConfig

RECIPES = Path(__file__).parents[1] / "recipes"
LEVELS = ("isoflop_low", "isoflop_middle", "isoflop_high")
RATES = "isoflop_rate"
TOKENIZER_BYTES = 50_000_000
"""How much text the tokenizer is trained on."""
DEFAULT_FLOPS = 1.2e14
MAX_SPEED = 6e6
"""The assumed FLOP/s, and the most tokens per second, of a shape that has not been measured yet."""
LARGE = 1024
"""Models of at least this width occupy two slots."""
NATS_PER_BIT = math.log(2)
POINT = re.compile(r"(?P<sweep>\w+):(?P<width>\d+):(?:(?P<first>\d+)-)?(?P<last>\d+)")


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, help="the results")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds after which everything ends")
    parser.add_argument("--slots", type=int, help="runs at a time; by default 6 with MPS, and otherwise 3")
    parser.add_argument(
        "--mps", action="store_true", help="run kernels of several runs on the GPU at the same time"
    )
    parser.add_argument("--scale", choices=("smoke",), help="a small size of the same sweeps, for a CPU")
    parser.add_argument("--documents", type=int, default=1000, help="test documents of any length")
    parser.add_argument("--earlier", type=Path, nargs="*", default=[], help="earlier results; not repeated")
    parser.add_argument("--sweeps", nargs="+", default=[RATES, *LEVELS], help="the sweeps of recipes to run")
    parser.add_argument(
        "--points",
        nargs="+",
        type=Point.parse,
        metavar="SWEEP:WIDTH:SEEDS",
        help="sizes to run instead of --sweeps; SEEDS is a number (3) or a range (5-9)",
    )
    parser.add_argument("--work", type=Path, help="folder for texts and runs; by default a temporary one")
    options = parser.parse_args()
    if options.points:
        options.sweeps = list(dict.fromkeys(point.sweep for point in options.points))
    return options


@dataclass(frozen=True)
class Point:
    """A size of a sweep with some seeds; those of earlier calls are not run again."""

    sweep: str
    width: int
    seeds: range

    @classmethod
    def parse(cls, text: str) -> Point:
        """Read SWEEP:WIDTH:SEEDS, where SEEDS is a number of seeds or the first and the last one.

        >>> Point.parse("isotoken:128:3").seeds, Point.parse("isotoken:128:5-9").seeds
        (range(0, 3), range(5, 10))
        """
        match = POINT.fullmatch(text)
        seeds = range(0)
        if match:
            last = int(match["last"])
            seeds = range(last) if match["first"] is None else range(int(match["first"]), last + 1)
        if not match or not seeds:
            message = f"expected a point such as isotoken:128:3 or isotoken:128:5-9, but found {text!r}"
            raise argparse.ArgumentTypeError(message)
        return cls(match["sweep"], int(match["width"]), seeds)

    def trials(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the trials of this size, one for each variant and seed; exit if there is none."""
        trials = list(trials)
        by_variant = {variant_of(each): each for each in trials if each.config.model.d_model == self.width}
        if not by_variant:
            widths = ", ".join(map(str, sorted({each.config.model.d_model for each in trials})))
            raise SystemExit(
                f"--points: the sweep {self.sweep} has the widths {widths}, but not {self.width}"
            )
        return [
            dataclasses.replace(trial, config=dataclasses.replace(trial.config, seed=seed))
            for seed in self.seeds
            for trial in by_variant.values()
        ]


def variant_of(trial: Trial) -> str:
    """Return the name of the settings that a trial has, or nothing if its sweep has no variants."""
    return str(trial.labels.get("variant", ""))


class Texts:
    """The text, tokenizer and token files of the sweeps, in a folder."""

    def __init__(self, folder: Path, trial: Trial, num_documents: int) -> None:
        assert trial.corpus is not None
        self.folder, self.corpus, self.num_documents = folder, trial.corpus, num_documents
        self.context_length = trial.config.model.context_length
        self.tokenizer = folder / "tokenizer"
        self.seconds: dict[str, float] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def _write(self, name: str, size: int, split: Any, num_threads: int = 1) -> Path:
        start = time.perf_counter()
        path = self.folder / f"{name}.txt"
        write_worldbook(
            path,
            size,
            world=self.corpus.world,
            seed=self.corpus.seed,
            split=split,
            num_threads=num_threads,
        )
        self.seconds[f"generate {name}"] = time.perf_counter() - start
        return path

    def prepare_small(self) -> Path:
        """Train the tokenizer; return the token file of a small text, for the warm-up."""
        size = min(TOKENIZER_BYTES, self.corpus.worldbook or 0)
        text = self._write("small", size, "train", usable_cores())
        trained = train_tokenizer(text, self.corpus.vocab_size, [END_OF_TEXT])
        Tokenizer.from_vocabulary(trained.vocabulary).save(self.tokenizer)
        return self._encode(text)

    def prepare_large(self) -> Path:
        """Return the token file of the whole text."""
        text = self._write("train", self.corpus.worldbook or 0, "train", usable_cores())
        encoded = self._encode(text)
        text.unlink()
        return encoded

    def _encode(self, text: Path) -> Path:
        start = time.perf_counter()
        target = text.with_suffix(".npy")
        Tokenizer.load(self.tokenizer).encode_file(text, target)
        self.seconds[f"encode {text.stem}"] = time.perf_counter() - start
        return target

    def read_documents(self) -> DocumentEvaluation:
        """Generate validation and test documents, parse and encode them."""
        start = time.perf_counter()
        tokenizer = Tokenizer.load(self.tokenizer)
        book = Worldbook(self.corpus.world)
        read = functools.partial(
            Documents.read, book=book, tokenizer=tokenizer, context_length=self.context_length
        )
        number = self.num_documents
        mean = 2_200  # bytes of a document
        validation = read(self._write("validation", number * mean // 2, "validation"), num_any=number)
        test = read(self._write("test", 4 * number * mean, "test"), num_any=number)
        self.seconds["documents"] = time.perf_counter() - start
        return DocumentEvaluation(validation, test, number, self.context_length)


def make_task(trial: Trial, sweep: str, data: Path, lr: float | None = None) -> Task:
    """Return the run of a trial on a token file; `lr` replaces the rate of trials without a variant."""
    config, variant = dataclasses.replace(trial.config, data=DataConfig(train=data)), variant_of(trial)
    if lr is not None and not variant:
        config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, lr=lr))
    model = config.model
    num_steps = config.num_steps
    assert num_steps is not None
    parameters = count_parameters(model)
    num_tokens = num_steps * config.tokens_per_step
    about = {
        "sweep": sweep,
        "width": model.d_model,
        "parameters": parameters.total,
        "parameters_without_embeddings": parameters.without_embeddings,
        "tokens": num_tokens,
        "steps": num_steps,
        "flops": count_flops(model).training / model.context_length * num_tokens,
        "lr": config.optimizer.lr,
        "seed": config.seed,
    }
    name = f"{model.d_model}-{num_tokens}-{config.optimizer.lr:g}-{config.seed}"
    shape = str(model.d_model)
    if variant:
        about["variant"] = variant
        name, shape = (f"{each}-{variant.replace(' ', '-').replace(',', '')}" for each in (name, shape))
    return Task(name, shape, config, about, num_slots=2 if model.d_model >= LARGE else 1)


def repeat_task(tasks: Iterable[Task]) -> Task:
    """Return the shortest run again: it shows whether later code gives the same result."""
    task = min(tasks, key=lambda task: task.num_tokens)
    return dataclasses.replace(task, name=f"repeat-{task.name}", about={**task.about, "sweep": "repeat"})


class Record:
    """All results so far, and the files that hold them."""

    def __init__(self, path: Path, evaluation: DocumentEvaluation, texts: Texts, **settings: Any) -> None:
        self.path, self.evaluation, self.texts = path, evaluation, texts
        self.runs: list[Result] = []
        self.lr: float | None = None
        self.sets = evaluation.sets()
        on_gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        self.about: dict[str, Any] = {
            "machine": describe_machine() | {"cuda": on_gpu},
            "commit": source_commit(),
            "versions": installed_versions(["torch"]),
            **settings,
        }

    def continue_from(self, paths: Sequence[Path]) -> None:
        """Add the runs of earlier calls, which must have measured the same tokens of the same documents."""
        for path in paths:
            earlier = json.loads(path.read_text())["sets"]
            for name, (documents, chosen) in self.sets.items():
                ours = documents.summarise(chosen) | {"cells": [list(cell) for cell in documents.cells]}
                for key in ("documents", "bytes", "tokens", "choices", "cells"):
                    if earlier[name][key] != ours[key]:
                        raise SystemExit(
                            f"{path}: the {name} documents have other {key} than those of this call;"
                            " leave out this file, or use its --scale, --documents and versions"
                        )
        self.runs = read_earlier(paths)

    def add(self, task: Task, result: Result) -> None:
        """Add a run with its losses, and write the files."""
        for name, bits in result.get("model_bits", {}).items():
            documents, chosen = self.sets[name]
            about = documents.summarise(chosen)
            result[f"{name}_loss"] = sum(bits) / about["tokens"] * NATS_PER_BIT
            result[f"{name}_bits_per_byte"] = sum(bits) / about["bytes"]
        result["commit"] = self.about["commit"]
        self.runs.append(result)
        shown = result.get("error") or f"{result['test_loss']:.4f} nats, {result['training_seconds']:.1f} s"
        print(f"{len(self.runs):3} {task.name}: {shown}", flush=True)
        self.write()

    def expect_speed(self, task: Task) -> float:
        """Return the tokens per second that a run may reach: the median of its width, if there is one."""
        flops_per_token: float = task.about["flops"] / task.about["tokens"]
        measured = median_speed(self.runs, width=task.about["width"])
        return measured or min(MAX_SPEED, DEFAULT_FLOPS / flops_per_token)

    def floor(self, name: str) -> float:
        """Return the entropy of a set of documents in bits per byte."""
        documents, chosen = self.sets[name]
        return float(documents.true_bits[chosen].sum() / documents.num_bytes[chosen].sum())

    def points(self, name: str) -> list[dict[str, Any]]:
        """Return the points of the levels at the chosen rate, with the excess by kind in bits per byte."""
        documents, chosen = self.sets[name]
        num_bytes = documents.num_bytes[chosen].sum()
        true_bits = documents.true_bits[chosen].sum(axis=0)
        points = []
        for run in self.runs:
            is_level = run.get("sweep") in (RATES, *LEVELS)
            if "error" in run or run["lr"] != self.lr or not is_level:
                continue
            excess: dict[str, float] = {}
            for (kind, _, _), above in zip(
                documents.cells, np.array(run["model_bits"][name]) - true_bits, strict=True
            ):
                excess[kind] = excess.get(kind, 0.0) + float(above / num_bytes)
            points.append(
                {
                    "parameters": run["parameters"],
                    "tokens": run["tokens"],
                    "flops": run["flops"],
                    "seed": run["seed"],
                    "loss": run[f"{name}_bits_per_byte"],
                    "floor": self.floor(name),
                    "excess": excess,
                }
            )
        return points

    def write(self) -> None:
        """Write both files."""
        world = self.texts.corpus.world
        shared = {
            "unit": "bits per byte",
            "world": {"seed": world.seed, "exponent": str(world.exponent), "people": world.num_people},
        }
        sets = {
            name: documents.summarise(chosen) | {"cells": documents.cells, "floor": self.floor(name)}
            for name, (documents, chosen) in self.sets.items()
        }
        whole: dict[str, Any] = {
            "title": "IsoFLOP runs on the world book",
            **shared,
            "points": self.points("test"),
        }
        whole |= {"lr": self.lr, "seconds": self.texts.seconds, "sets": sets, "runs": self.runs, **self.about}
        write_report(self.path, whole)
        fitting = {"title": "IsoFLOP runs: documents that fit into the context", **shared}
        path = self.path.with_name(f"{self.path.stem}-fitting.json")
        write_report(path, fitting | {"points": self.points("fitting")})

    def choose_rate(self, width: int, default: float) -> float:
        """Return the rate with the lowest validation loss in the sweep of rates, if it was run at a width."""
        found = {
            run["lr"]: run["validation_loss"]
            for run in self.runs
            if "error" not in run
            and run["width"] == width
            and math.isfinite(run["validation_loss"])
            and (run["sweep"], run["seed"]) == (RATES, 0)
        }
        return min(found, key=lambda lr: found[lr], default=default)

    def order_seeds(self, tasks: Iterable[Task]) -> list[Task]:
        """Return tasks of further seeds: low levels first, in each the sizes near its minimum first."""
        losses: dict[str, dict[int, float]] = {}
        for run in self.runs:
            if "error" not in run and run["lr"] == self.lr and run["seed"] == 0:
                losses.setdefault(level_of(run), {})[run["width"]] = run["test_loss"]

        def key(task: Task) -> tuple[float, ...]:
            found = losses.get(level_of(task.about), {})
            widths = sorted(found)
            width = task.about["width"]
            if width not in found:
                return (99.0, 0.0, 0.0)
            best = min(widths, key=lambda each: found[each])
            distance = abs(widths.index(width) - widths.index(best))
            return (float(distance > 1), float(distance), task.about["flops"])

        return sorted(tasks, key=key)


def size_of_text(trial: Trial) -> int:
    """Return the bytes of training text that a trial states."""
    return 0 if trial.corpus is None else trial.corpus.worldbook or 0


def level_of(about: Any) -> str:
    """Return the level of compute of a run, to two digits."""
    return f"{about['flops']:.1e}"


def print_table(record: Record) -> None:
    """Print all runs by level and size, with mean and standard deviation over seeds."""
    console = Console(width=150)
    table = Table(title=f"test documents; floor {record.floor('test'):.5f} bits per byte, rate {record.lr}")
    for heading in ("FLOPs", "width", "parameters", "tokens", "lr", "seeds", "nats/token", "bits/byte"):
        table.add_column(heading, justify="right")
    for heading in ("std", "fitting: excess", "facts: excess", "tokens/s", "variant"):
        table.add_column(heading, justify="right")
    complete = [run for run in record.runs if "error" not in run and run["sweep"] != "repeat"]

    def setting(run: Result) -> tuple[Any, ...]:
        return level_of(run), run["width"], run["tokens"], run["lr"], run.get("variant", "")

    for _, group in itertools.groupby(sorted(complete, key=setting), key=setting):
        runs = list(group)
        losses = [run["test_bits_per_byte"] for run in runs]
        fitting = np.mean([run["fitting_bits_per_byte"] for run in runs]) - record.floor("fitting")
        documents, chosen = record.sets["test"]
        facts = [kind == "fact" for kind, _, _ in documents.cells]
        of_facts = [np.array(run["model_bits"]["test"])[facts].sum() for run in runs]
        table.add_row(
            level_of(runs[0]),
            str(runs[0]["width"]),
            f"{runs[0]['parameters'] / 1e6:.1f}M",
            f"{runs[0]['tokens'] / 1e6:.1f}M",
            f"{runs[0]['lr']:g}",
            str(len(runs)),
            f"{np.mean([run['test_loss'] for run in runs]):.4f}",
            f"{np.mean(losses):.5f}",
            f"{np.std(losses, ddof=1):.5f}" if len(losses) > 1 else "",
            f"{fitting:.5f}",
            f"{np.mean(of_facts) / documents.num_bytes[chosen].sum():.5f}",
            f"{np.mean([run['tokens'] / run['training_seconds'] for run in runs]) / 1e6:.2f}M",
            runs[0].get("variant", ""),
        )
    console.print(table)
    for run in record.runs:
        if "error" in run:
            print(f"failed: {run['name']}: {run['error']}")


def main() -> None:
    """Run everything and print a table."""
    options, start = parse_arguments(), time.monotonic()
    with shared_gpu(options.mps) as is_shared, tempfile.TemporaryDirectory(prefix="scaling") as temporary:
        run_all(options, start, options.work or Path(temporary), is_shared)


def run_all(options: argparse.Namespace, start: float, work: Path, is_shared: bool) -> None:
    """Run everything that no earlier call has run, and print a table."""
    num_slots = options.slots or (6 if is_shared else 3)
    files = {name: RECIPES / f"{name}.toml" for name in options.sweeps}
    sweeps = {name: read_sweep(file, scale=options.scale).trials for name, file in files.items()}
    points = [
        (point.sweep, trial) for point in options.points or () for trial in point.trials(sweeps[point.sweep])
    ]
    trials = [trial for _, trial in points] or [trial for name in sweeps for trial in sweeps[name]]
    texts = Texts(work / "texts", max(trials, key=size_of_text), options.documents)
    small = texts.prepare_small()
    pool = RunPool(work / "runs", num_slots=num_slots, deadline=start + options.limit - 8)
    try:
        warm = [make_task(trial, "warm-up", small) for trial in trials]
        pool.warm_up(sorted(warm, key=lambda task: -task.about["parameters"]))
        data = texts.prepare_large()
        evaluation = texts.read_documents()
        settings = {"scale": options.scale, "slots": num_slots, "mps": is_shared}
        record = Record(options.json, evaluation, texts, **settings)
        record.continue_from(options.earlier)
        print(f"{time.monotonic() - start:.0f} s: the data is ready; {texts.seconds}", flush=True)

        def run(tasks: Iterable[Task]) -> None:
            pool.run(select_new(tasks, record.runs), evaluation, record.add, record.expect_speed)

        run(make_task(trial, RATES, data) for trial in sweeps.get(RATES, []))
        middle = read_sweep(RECIPES / f"{RATES}.toml", scale=options.scale).trials[0].config.model.d_model
        stated = read_sweep(RECIPES / f"{LEVELS[0]}.toml", scale=options.scale).trials[0].config.optimizer.lr
        record.lr = record.choose_rate(middle, stated)
        print(f"{time.monotonic() - start:.0f} s: the rate is {record.lr}", flush=True)
        if options.points:
            tasks = [make_task(trial, name, data, record.lr) for name, trial in points]
            done = {each["name"] for each in record.runs}
            earlier = [task for task in tasks if task.name in done]
            again = [repeat_task(earlier)] if earlier else []
            run([*tasks[:1], *again, *tasks[1:]])
        else:
            others = [name for name in options.sweeps if name != RATES]
            tasks = [make_task(trial, name, data, record.lr) for name in others for trial in sweeps[name]]
            run(task for task in tasks if task.config.seed == 0)
            run(record.order_seeds(task for task in tasks if task.config.seed != 0))
    finally:
        pool.close()
    record.write()
    print(f"{time.monotonic() - start:.0f} s in all")
    print_table(record)


if __name__ == "__main__":
    main()
