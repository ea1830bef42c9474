"""Train the base experiment on several ranks: compare all bits, and measure what exact sums cost.

    python benchmarks/parallel.py bits --json results/bits.json    # a GPU that all ranks share, four minutes
    python benchmarks/parallel.py cost --json results/cost.json    # two cores: ranks against threads
    python benchmarks/parallel.py bits --device cpu --small --set precision=fp32 --set compile=off

`bits` trains the same run in one process and on 1, 2 and 4 ranks, and compares the SHA-256 of weights and
optimizer state and all lines of metrics. It also compares the speed under torchrun with that of a single
process. `cost` compares 2 ranks of 1 thread with 1 process of 2 threads, round by round, and measures how far
the fast reduction deviates from the exact one. All runs train on random ids. The last table has the results;
the exit code is 1 if bits differ.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from harness import describe_machine, installed_versions, source_commit, wide_console, write_report
from rich.console import Console
from rich.table import Table

from bytewright.data.tokenfile import TokenFileWriter
from bytewright.storage import atomic
from bytewright.train import train
from bytewright.train.checkpoint import CheckpointFolder, read_tensors
from bytewright.train.config import DeviceName
from bytewright.train.metrics import MEASURED_FIELDS, read_metrics
from bytewright.train.recipe import read_config, read_recipe, to_plain

RECIPE = Path(__file__).parents[1] / "recipes" / "base.toml"
SMALL = (
    "model.d_model=64",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.context_length=32",
    "batch_size=16",
)
NUM_TOKENS = 2_000_000
WARM_UP = 2
"""Records at the start of a run whose speed does not count: they include compilation."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    kind: Annotated[Literal["bits", "cost"], tyro.conf.Positional]
    json: Path | None = None
    """Write the results to this JSON file."""
    device: DeviceName = "auto"
    steps: int = 20
    """Steps of the runs whose bits are compared."""
    timed_steps: int = 400
    """Steps of the runs whose speed is compared on a GPU."""
    rounds: int = 3
    """How often each speed is measured."""
    small: bool = False
    """Use a tiny model, to try the script."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Replace a value of recipes/base.toml."""


@dataclass
class Bench:
    """The folder of all runs, and the settings that they share."""

    options: Options
    folder: Path
    shared: list[str]

    def train(self, name: str, num_ranks: int | None, *changes: str) -> Path:
        """Train a run in one process (None) or on ranks of torchrun; return its folder."""
        run = self.folder / name
        config = to_plain(read_recipe(RECIPE, [*self.shared, *changes]))
        config["data"] |= {"validation": str(self.folder / "tokens.npy"), "tokenizer": None}
        config["budget"]["tokens"] = None
        atomic.write_json(self.folder / f"{name}.json", config)
        command = [sys.executable]
        if num_ranks is not None:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
        command += [__file__, "--worker", str(run)]
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "cache")}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
        return run


def prepare(options: Options, folder: Path) -> Bench:
    """Write the token file, and return the settings of all runs."""
    changes = [*(SMALL if options.small else ()), f"device={options.device}", *options.set]
    vocab_size = read_recipe(RECIPE, changes).model.vocab_size
    ids = (np.random.default_rng(0).random(NUM_TOKENS) ** 3 * vocab_size).astype(np.uint16)
    path = folder / "tokens.npy"
    with TokenFileWriter(path, tokenizer_fingerprint="0" * 64, vocabulary_size=vocab_size) as writer:
        writer.append(ids)
    changes += [f"data.train={path}", "eval_tokens=65536"]
    changes += ["sample_every=0", "keep_last=1", "eval_every=1000000", "save_every=1000000"]
    return Bench(options, folder, changes)


def speed_of(run: Path) -> float:
    """Return the median tokens per second of a run, without its first records."""
    records = [record for record in read_metrics(run / "metrics.jsonl") if "tokens_per_second" in record]
    return float(statistics.median(record["tokens_per_second"] for record in records[WARM_UP:]))


def digest(run: Path) -> dict[str, str]:
    """Return the SHA-256 of weights, optimizer state and metrics without measured fields."""
    checkpoints = CheckpointFolder(run / "checkpoints")
    last = checkpoints.at(checkpoints.steps()[-1])
    records = [
        {name: value for name, value in record.items() if name not in MEASURED_FIELDS}
        for record in read_metrics(run / "metrics.jsonl")
    ]
    texts = {"weights": (last / "model.safetensors").read_bytes(), "metrics": repr(records).encode()}
    texts["optimizer"] = (last / "optimizer.safetensors").read_bytes()
    return {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}


def deviation(run: Path, from_run: Path) -> float:
    """Return the norm of the difference of two runs' weights, relative to the norm of the weights."""
    weights = []
    for each in (run, from_run):
        checkpoints = CheckpointFolder(each / "checkpoints")
        path = checkpoints.at(checkpoints.steps()[-1]) / "model.safetensors"
        tensors, _ = read_tensors(path.read_bytes(), str(path))
        weights.append(torch.cat([tensor.double().flatten() for tensor in tensors.values()]))
    return float((weights[0] - weights[1]).norm() / weights[1].norm())


def compare_bits(bench: Bench) -> tuple[dict[str, Any], Table]:
    """Train on 1, 2 and 4 ranks; return the results and their table."""
    steps, timed = bench.options.steps, bench.options.timed_steps
    changes = ["accumulate=4", f"budget.steps={steps}", "log_every=1", "parallel.threads=1"]
    runs = {
        label: bench.train(f"bits-{number}", num_ranks, *changes)
        for number, (label, num_ranks) in enumerate(
            {"one process": None, "torchrun, 1 rank": 1, "2 ranks": 2, "4 ranks": 4}.items()
        )
    }
    digests = {label: digest(run) for label, run in runs.items()}
    speeds: dict[str, list[float]] = {"one process": [], "torchrun, 1 rank": []}
    for number in range(bench.options.rounds):
        for label, num_ranks in (("one process", None), ("torchrun, 1 rank", 1)):
            more = [f"budget.steps={timed}", f"log_every={max(1, timed // 20)}", "save_every=1000000"]
            speeds[label].append(speed_of(bench.train(f"timed-{number}-{num_ranks}", num_ranks, *more)))
    ratio = statistics.median(speeds["torchrun, 1 rank"]) / statistics.median(speeds["one process"])
    table = Table(title=f"{steps} steps, 4 parts; speed of torchrun with 1 rank ÷ one process: {ratio:.3f}")
    for heading in ("run", "weights", "optimizer", "metrics", "bits"):
        table.add_column(heading)
    expected = digests["one process"]
    for label, found in digests.items():
        same = "identical" if found == expected else "DIFFERENT"
        table.add_row(label, found["weights"][:12], found["optimizer"][:12], found["metrics"][:12], same)
    is_same = all(found == expected for found in digests.values())
    return {"is_same": is_same, "digests": digests, "tokens_per_second": speeds, "ratio": ratio}, table


def measure_cost(bench: Bench) -> tuple[dict[str, Any], Table]:
    """Compare ranks with threads, and fast with exact; return the results and their table."""
    shape = ["device=cpu", "compile=off", "log_every=1", "budget.steps=8"]
    shape += [] if bench.options.small else ["batch_size=8"]
    contestants = {
        "1 process, 2 threads": (None, ["accumulate=1", "parallel.threads=2"]),
        "2 ranks, 1 thread, exact": (2, ["accumulate=2", "parallel.threads=1"]),
        "2 ranks, 1 thread, fast": (2, ["accumulate=2", "parallel.threads=1", "parallel.reduction=fast"]),
    }
    speeds: dict[str, list[float]] = {label: [] for label in contestants}
    for number in range(bench.options.rounds):
        for position, (label, (num_ranks, changes)) in enumerate(contestants.items()):
            run = bench.train(f"cost-{number}-{position}", num_ranks, *shape, *changes)
            speeds[label].append(speed_of(run))
    parts = ["accumulate=8", "parallel.threads=1", f"budget.steps={bench.options.steps}"]
    exact = bench.train("deviation-exact", 2, *shape[:3], *parts)
    fast = bench.train("deviation-fast", 2, *shape[:3], *parts, "parallel.reduction=fast")
    distance = deviation(fast, exact)
    baseline = speeds["1 process, 2 threads"]
    ratios = {
        label: [mine / other for mine, other in zip(values, baseline, strict=True)]
        for label, values in speeds.items()
    }
    title = (
        f"fast deviates from exact by {distance:.1e} of the weights' norm after {bench.options.steps} steps"
    )
    table = Table(title=title)
    for heading in ("", "tokens/s", "÷ 1 process", "lowest", "highest"):
        table.add_column(heading)
    for label, values in ratios.items():
        middle = [statistics.median(speeds[label]), statistics.median(values), min(values), max(values)]
        table.add_row(label, f"{middle[0]:,.0f}", *(f"{value:.2f}" for value in middle[1:]))
    return {"is_same": True, "tokens_per_second": speeds, "ratios": ratios, "deviation": distance}, table


def main(options: Options) -> int:
    """Measure, print the table and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        bench = prepare(options, Path(folder))
        results, table = (compare_bits if options.kind == "bits" else measure_cost)(bench)
    about = {
        "machine": describe_machine(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "versions": installed_versions(["torch", "numpy"]),
        "commit": source_commit(),
        "shared_settings": bench.shared,
    }
    if options.json is not None:
        write_report(options.json, {**about, **results})
    wide_console().print(table)
    return 0 if results["is_same"] else 1


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        run = Path(sys.argv[2])
        train(read_config(run.parent / f"{run.name}.json"), run, console=Console(quiet=True))
    else:
        sys.exit(main(tyro.cli(Options)))
