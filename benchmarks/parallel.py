"""Train the base experiment on several ranks: compare all bits, and measure what exact sums cost.

    python benchmarks/parallel.py bits --json results/bits.json    # a GPU that all ranks share, four minutes
    python benchmarks/parallel.py cost --json results/cost.json    # two cores: ranks against threads
    python benchmarks/parallel.py deviation --small --device cpu --steps 160
    python benchmarks/parallel.py bits --device cpu --small --set precision=fp32 compile=off

`bits` trains the same run in one process and on 1, 2 and 4 ranks, and compares the SHA-256 of weights and
optimizer state and all lines of metrics. It also compares the speed under torchrun with that of a single
process. `cost` compares 2 ranks of 1 thread with 1 process of 2 threads, round by round. `deviation` measures
how far the fast reduction deviates from the exact one. All runs train on random ids. The last table has the
results; the exit code is 1 if bits differ. A run that fails is reported, and the others count.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import describe_machine, installed_versions, source_commit, wide_console, write_report
from rich.console import Console
from rich.table import Table

from bytewright.data.tokenfile import TokenFileWriter
from bytewright.storage import atomic
from bytewright.train import train
from bytewright.train.checkpoint import CheckpointFolder, read_tensors
from bytewright.train.metrics import MEASURED_FIELDS
from bytewright.train.metrics_log import read_metrics
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


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=list(MEASUREMENTS))
    parser.add_argument("--json", type=Path, help="write the results to this JSON file")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], default="auto")
    parser.add_argument("--strategy", choices=["replicate", "shard"], default="replicate")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="for the bits")
    parser.add_argument("--steps", type=int, default=20, help="steps of the runs whose bits are compared")
    parser.add_argument("--timed-steps", type=int, default=400, help="steps of the timed runs on a GPU")
    parser.add_argument("--rounds", type=int, default=3, help="how often each speed is measured; 0: never")
    parser.add_argument("--small", action="store_true", help="use a tiny model, to try the script")
    parser.add_argument("--set", nargs="*", default=[], help="replace values of recipes/base.toml")
    return parser.parse_args()


@dataclass
class RunLauncher:
    """The folder of all runs, and the settings that they share."""

    options: argparse.Namespace
    folder: Path
    shared: list[str]

    def train(self, name: str, num_ranks: int | None, *changes: str) -> Path:
        """Train a run in one process (None) or on ranks of torchrun; return its folder."""
        run = self.folder / name
        write_config(self.folder, name, [*self.shared, *changes])
        command = [sys.executable]
        if num_ranks is not None:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
        command += [__file__, "--worker", str(run)]
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "cache")}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            print(f"{name} failed:\n{done.stderr[-3000:]}", file=sys.stderr)
        return run


def write_config(folder: Path, name: str, changes: Sequence[str]) -> None:
    """Write the config of a run on tokens.npy: that of recipes/base.toml with changes."""
    config = to_plain(
        read_recipe(RECIPE, [f"data.train={folder / 'tokens.npy'}", "sample_every=0", *changes])
    )
    config["data"] |= {"validation": str(folder / "tokens.npy"), "tokenizer": None}
    config["budget"]["tokens"] = None
    atomic.write_json(folder / f"{name}.json", config)


def write_ids(path: Path, *, vocab_size: int, num_tokens: int = NUM_TOKENS) -> None:
    """Write a file of random ids."""
    ids = (np.random.default_rng(0).random(num_tokens) ** 3 * vocab_size).astype(np.uint16)
    with TokenFileWriter(path, tokenizer_fingerprint="0" * 64, vocabulary_size=vocab_size) as writer:
        writer.append(ids)


def prepare(options: argparse.Namespace, folder: Path) -> RunLauncher:
    """Write the token file, and return the settings of all runs."""
    changes = [*(SMALL if options.small else ()), f"device={options.device}", *options.set]
    write_ids(folder / "tokens.npy", vocab_size=read_recipe(RECIPE, changes).model.vocab_size)
    changes += [f"parallel.strategy={options.strategy}", "eval_tokens=65536"]
    changes += ["keep_last=1", "eval_every=1000000", "save_every=1000000"]
    return RunLauncher(options, folder, changes)


def speed_of(run: Path) -> float:
    """Return the median tokens per second of a run, without its first records; NaN if it failed."""
    if not (run / "metrics.jsonl").exists():
        return math.nan
    records = [record for record in read_metrics(run / "metrics.jsonl") if "tokens_per_second" in record]
    speeds = [record["tokens_per_second"] for record in records[WARM_UP:]]
    return float(statistics.median(speeds)) if speeds else math.nan


def digest(run: Path) -> dict[str, str]:
    """Return the SHA-256 of weights, optimizer state and metrics without measured fields.

    Empty if the run has no checkpoint.
    """
    checkpoints = CheckpointFolder(run / "checkpoints")
    if not checkpoints.steps():
        return {}
    last = checkpoints.at(checkpoints.steps()[-1])
    records = [
        {name: value for name, value in record.items() if name not in MEASURED_FIELDS}
        for record in read_metrics(run / "metrics.jsonl")
    ]
    texts = {"weights": (last / "model.safetensors").read_bytes(), "metrics": repr(records).encode()}
    texts["optimizer"] = (last / "optimizer.safetensors").read_bytes()
    return {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}


def deviation(run: Path, from_run: Path, step: int) -> float:
    """Return the norm of the difference of two runs' weights at a step, relative to that of the weights."""
    weights = []
    for each in (run, from_run):
        path = CheckpointFolder(each / "checkpoints").at(step) / "model.safetensors"
        tensors, _ = read_tensors(path.read_bytes(), str(path))
        weights.append(torch.cat([tensors[name].double().flatten() for name in sorted(tensors)]))
    return float((weights[0] - weights[1]).norm() / weights[1].norm())


def compare_bits(launcher: RunLauncher) -> tuple[dict[str, Any], Table]:
    """Train on several numbers of ranks; return the results and their table."""
    steps, timed = launcher.options.steps, launcher.options.timed_steps
    changes = ["accumulate=4", f"budget.steps={steps}", "log_every=1", "parallel.threads=1"]
    cases = {"one process": None, **{f"torchrun, {number}": number for number in launcher.options.ranks}}
    digests = {
        label: digest(launcher.train(f"bits-{num_ranks}", num_ranks, *changes))
        for label, num_ranks in cases.items()
    }
    speeds: dict[str, list[float]] = {"one process": [], "torchrun, 1": []}
    for number in range(launcher.options.rounds):
        for label, num_ranks in (("one process", None), ("torchrun, 1", 1)):
            more = [f"budget.steps={timed}", f"log_every={max(1, timed // 20)}", "save_every=1000000"]
            speeds[label].append(speed_of(launcher.train(f"timed-{number}-{num_ranks}", num_ranks, *more)))
    ratio = math.nan
    if launcher.options.rounds:
        ratio = statistics.median(speeds["torchrun, 1"]) / statistics.median(speeds["one process"])
    title = f"{launcher.options.strategy}, {steps} steps, 4 parts"
    title += f"; torchrun with 1 rank ÷ one process: {ratio:.3f}"
    table = Table(title=title)
    for heading in ("run", "weights", "optimizer", "metrics", "bits"):
        table.add_column(heading)
    expected = digests["one process"]
    for label, found in digests.items():
        same = "identical" if found and found == expected else "DIFFERENT" if found else "FAILED"
        shown = [found.get(name, "-")[:12] for name in ("weights", "optimizer", "metrics")]
        table.add_row(label, *shown, same)
    is_same = bool(expected) and all(found == expected for found in digests.values())
    return {"is_same": is_same, "digests": digests, "tokens_per_second": speeds, "ratio": ratio}, table


def measure_cost(launcher: RunLauncher) -> tuple[dict[str, Any], Table]:
    """Compare ranks with threads, and fast with exact; return the results and their table."""
    shape = [
        "device=cpu",
        "precision=fp32",
        "compile=off",
        "log_every=1",
        "budget.steps=8",
        "eval_tokens=4096",
    ]
    shape += [] if launcher.options.small else ["batch_size=8"]
    contestants = {
        "1 process, 2 threads": (None, ["accumulate=1", "parallel.threads=2"]),
        "2 ranks, 1 thread, exact": (2, ["accumulate=2", "parallel.threads=1"]),
        "2 ranks, 1 thread, fast": (2, ["accumulate=2", "parallel.threads=1", "parallel.reduction=fast"]),
    }
    speeds: dict[str, list[float]] = {label: [] for label in contestants}
    for number in range(launcher.options.rounds):
        for position, (label, (num_ranks, changes)) in enumerate(contestants.items()):
            run = launcher.train(f"cost-{number}-{position}", num_ranks, *shape, *changes)
            speeds[label].append(speed_of(run))
    baseline = speeds["1 process, 2 threads"]
    ratios = {
        label: [mine / other for mine, other in zip(values, baseline, strict=True)]
        for label, values in speeds.items()
    }
    table = Table(
        title="ranks against threads on two cores, base shape" if not launcher.options.small else ""
    )
    for heading in ("", "tokens/s", "÷ 1 process", "lowest", "highest"):
        table.add_column(heading)
    for label, values in ratios.items():
        middle = [statistics.median(speeds[label]), statistics.median(values), min(values), max(values)]
        table.add_row(label, f"{middle[0]:,.0f}", *(f"{value:.2f}" for value in middle[1:]))
    return {"is_same": True, "tokens_per_second": speeds, "ratios": ratios}, table


def measure_deviation(launcher: RunLauncher) -> tuple[dict[str, Any], Table]:
    """Compare fast runs with the exact one at several steps; return the results and their table."""
    steps = launcher.options.steps
    marks = sorted({max(1, steps // 16), max(1, steps // 4), steps})
    changes = ["compile=off", "precision=fp32", "accumulate=8", "batch_size=16", "parallel.threads=1"]
    changes += [f"budget.steps={steps}", "log_every=1", f"save_every={marks[0]}", "keep_last=1000"]
    exact = launcher.train("exact", None, *changes)
    rows = []
    table = Table(title="fast against exact: difference of the weights ÷ their norm, and of the loss")
    for heading in ("ranks", "step", "weights", "loss, relative"):
        table.add_column(heading)
    for num_ranks in launcher.options.ranks:
        ranks = None if num_ranks == 1 else num_ranks
        fast = launcher.train(f"fast-{num_ranks}", ranks, *changes, "parallel.reduction=fast")
        for step in marks:
            row = {"ranks": num_ranks, "step": step, "weights": deviation(fast, exact, step)}
            losses = [loss_at(run, step) for run in (fast, exact)]
            row["loss"] = abs(losses[0] - losses[1]) / losses[1]
            rows.append(row)
            table.add_row(str(num_ranks), str(step), f"{row['weights']:.1e}", f"{row['loss']:.1e}")
    return {"is_same": True, "deviation": rows}, table


def loss_at(run: Path, step: int) -> float:
    """Return the training loss that a run recorded at a step."""
    records = read_metrics(run / "metrics.jsonl")
    return float(next(one["loss"] for one in records if one["step"] == step and "loss" in one))


MEASUREMENTS = {"bits": compare_bits, "cost": measure_cost, "deviation": measure_deviation}


def main() -> int:
    """Measure, print the table and write the results."""
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        launcher = prepare(options, Path(folder))
        results, table = MEASUREMENTS[options.kind](launcher)
    about = {
        "machine": describe_machine(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "versions": installed_versions(["torch", "numpy"]),
        "commit": source_commit(),
        "shared_settings": launcher.shared,
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
        sys.exit(main())
