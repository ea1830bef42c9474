"""Kill a run of the base experiment at full size and speed, resume it, and compare all bits.

    python benchmarks/exact_resume.py                              # bf16, compiled, fused; AdamW
    python benchmarks/exact_resume.py --set optimizer.name=muon
    python benchmarks/exact_resume.py --device cpu --set precision=fp32 --set batch_size=2

Three runs train on random ids in separate processes, each with an empty compiler cache: two without
interruption, and one that is killed (SIGKILL) after its first checkpoint and resumed. The script compares the
SHA-256 of weights and optimizer state, and every line of metrics except measured times. If they differ, it
prints the first step and the tensors that differ, and the exit code is 1.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from harness import describe_machine, installed_versions, source_commit, wide_console, write_report
from rich.console import Console
from rich.table import Table

from bytewright.data.tokenfile import TokenFileWriter
from bytewright.storage import atomic
from bytewright.train import resume, train
from bytewright.train.checkpoint import CheckpointFolder, read_tensors
from bytewright.train.config import DeviceName
from bytewright.train.metrics import MEASURED_FIELDS
from bytewright.train.metrics_log import read_metrics
from bytewright.train.recipe import read_config, read_recipe, to_plain

RECIPE = Path(__file__).parents[1] / "recipes" / "base.toml"
NUM_TOKENS = 2_000_000
FILES = {"weights": "model.safetensors", "optimizer": "optimizer.safetensors"}
TENSORS_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """The run to train."""

    device: DeviceName = "auto"
    steps: int = 100
    """Steps of a run; it saves a checkpoint halfway and is killed after that."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Replace a value of recipes/base.toml."""
    json: Path | None = None
    """Write the results to this JSON file."""


@dataclass(frozen=True)
class Difference:
    """A difference between two runs: its place and its size."""

    place: str
    found: str


def write_inputs(folder: Path, options: Options) -> None:
    """Write the token file and the config of the runs."""
    overrides = [f"device={options.device}", *options.set]
    vocab_size = read_recipe(RECIPE, overrides).model.vocab_size
    uniform = np.random.default_rng(0).random(NUM_TOKENS)
    ids = (uniform**3 * vocab_size).astype(np.uint16)  # skewed like text: common ids repeat in a batch
    path = folder / "tokens.npy"
    with TokenFileWriter(path, tokenizer_fingerprint="0" * 64, vocabulary_size=vocab_size) as writer:
        writer.append(ids)
    overrides += [
        f"data.train={path.absolute()}",
        f"budget.steps={options.steps}",
        "log_every=1",
        "sample_every=0",
    ]
    config = to_plain(read_recipe(RECIPE, [*overrides, f"save_every={options.steps // 2}"]))
    config["data"] |= {"validation": None, "tokenizer": None}
    config["budget"]["tokens"] = None
    atomic.write_json(folder / "config.json", config)


def start(folder: Path, name: str, cache: str) -> subprocess.Popen[bytes]:
    """Start a process that trains or resumes the run `name` with its own compiler cache."""
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"{cache}-inductor"),
        "TRITON_CACHE_DIR": str(folder / f"{cache}-triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "4",
    }
    command = [sys.executable, __file__, "--worker", str(folder / name)]
    return subprocess.Popen(command, env=os.environ | caches)


def train_or_resume(run: Path) -> None:
    """Train or resume a run in this process."""
    quiet = Console(file=io.StringIO())
    if (run / "config.json").exists():
        resume(run, console=quiet)
    else:
        train(read_config(run.parent / "config.json"), run, console=quiet)


def kill_when_saved(process: subprocess.Popen[bytes], run: Path) -> bool:
    """Kill a run's process after its first checkpoint; return whether it was still running."""
    checkpoints = CheckpointFolder(run / "checkpoints")
    while process.poll() is None and not checkpoints.steps():
        time.sleep(0.005)
    process.kill()
    return process.wait() == -signal.SIGKILL and len(checkpoints.steps()) == 1


def wait_for_success(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process; exit with an error message if it failed."""
    if process.wait():
        raise SystemExit(f"a run failed with exit code {process.returncode}; its output is above")


def compare(whole: Path, other: Path) -> dict[str, list[Difference]]:
    """List the differences of metrics, weights and optimizer state; an empty list means equal bits."""
    left, right = last_checkpoint(whole), last_checkpoint(other)
    result = {"metrics": compare_metrics(whole, other)}
    for what, file in FILES.items():
        equal = hash_file(left / file) == hash_file(right / file)
        result[what] = [] if equal else compare_tensors(left / file, right / file)
    return result


def compare_metrics(whole: Path, other: Path) -> list[Difference]:
    """List the fields of the first line that differ, except measured times."""
    lines = [list(read_metrics(run / "metrics.jsonl")) for run in (whole, other)]
    if len(lines[0]) != len(lines[1]):
        return [Difference("number of lines", f"{len(lines[0])} and {len(lines[1])}")]
    for first, second in zip(*lines, strict=True):
        fields = [name for name in first if name not in MEASURED_FIELDS and first[name] != second.get(name)]
        if fields:
            return [
                Difference(f"step {first['step']}, {name}", f"{first[name]!r} and {second.get(name)!r}")
                for name in fields
            ]
    return []


def compare_tensors(first: Path, second: Path) -> list[Difference]:
    """List the tensors of two files that differ, the largest difference first."""
    tensors, others = (read_tensors(path.read_bytes(), str(path))[0] for path in (first, second))
    if tensors.keys() != others.keys():
        return [Difference("names", f"{len(tensors)} and {len(others)} tensors, not of the same names")]
    found = []
    for name, tensor in tensors.items():
        gap = (tensor.double() - others[name].double()).abs()
        if gap.any():
            share = gap.count_nonzero().item() / gap.numel()
            largest = gap.max().item()
            found.append((largest, Difference(name, f"{share:.1%} of the numbers, by at most {largest:.1e}")))
    if not found:
        return [Difference("header", "the numbers are equal, but the files differ")]
    return [difference for _, difference in sorted(found, key=lambda each: -each[0])]


def last_checkpoint(run: Path) -> Path:
    """Return the folder of a run's last checkpoint."""
    checkpoints = CheckpointFolder(run / "checkpoints")
    return checkpoints.at(checkpoints.steps()[-1])


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def print_differences(console: Console, name: str, differences: dict[str, list[Difference]]) -> None:
    """Print one comparison."""
    table = Table(title=f"{name}, compared with the uninterrupted run", title_justify="left")
    for heading in ("", "", "where", "difference"):
        table.add_column(heading)
    for what, found in differences.items():
        rest = f" ({len(found) - TENSORS_NAMED} more)" if len(found) > TENSORS_NAMED else ""
        table.add_row(
            what,
            "[bold red]differ" if found else "[green]equal",
            "\n".join(each.place for each in found[:TENSORS_NAMED]) + rest,
            "\n".join(each.found for each in found[:TENSORS_NAMED]),
        )
    console.print(table)


def main(options: Options) -> None:
    """Train the three runs, compare them and print the differences."""
    began, console = time.perf_counter(), wide_console()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_inputs(folder, options)
        whole, again = start(folder, "whole", "first"), start(folder, "again", "second")
        if not kill_when_saved(start(folder, "killed", "third"), folder / "killed"):
            raise SystemExit("the run finished before it could be killed; use more --steps")
        wait_for_success(whole)
        wait_for_success(again)
        wait_for_success(start(folder, "killed", "first"))  # resumed with a warm compiler cache, as users do
        outcome = {
            "the same run again": compare(folder / "whole", folder / "again"),
            "the run killed and resumed": compare(folder / "whole", folder / "killed"),
        }
        digests = {what: hash_file(last_checkpoint(folder / "whole") / file) for what, file in FILES.items()}
    for name, differences in outcome.items():
        print_differences(console, name, differences)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    console.print(
        f"{options.steps} steps on {device}, {time.perf_counter() - began:.0f} s in all", style="dim"
    )
    if options.json:
        plain: dict[str, Any] = json.loads(json.dumps(outcome, default=vars))
        about = {
            "machine": describe_machine(),
            "commit": source_commit(),
            "versions": installed_versions(["torch"]),
            "device": device,
        }
        write_report(
            options.json, about | {"set": list(options.set), "sha256": digests, "differences": plain}
        )
    if any(found for differences in outcome.values() for found in differences.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        train_or_resume(Path(sys.argv[2]))
    else:
        main(tyro.cli(Options, description=__doc__))
