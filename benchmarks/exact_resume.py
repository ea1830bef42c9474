"""Kills a run of the base experiment at full size and speed, resumes it, and demands the same bits.

    python benchmarks/exact_resume.py                              # bf16, compiled, fused; AdamW
    python benchmarks/exact_resume.py --set optimizer.name=muon
    python benchmarks/exact_resume.py --device cpu --set precision=fp32 --set batch_size=2

Trains on random ids in processes of their own, each with an empty compiler cache: once in one piece, once
more in one piece, and once killed (SIGKILL) after its first checkpoint and resumed. Compares the SHA-256 of
weights and optimizer state and every line of metrics less the clock's fields. Where they differ it says in
which step first, in which tensors and by how much, and leaves with 1.
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
from harness import commit, machine, versions, wide_console, write_report
from rich.console import Console
from rich.table import Table

from bytewright.data.tokenfile import TokenFileWriter
from bytewright.storage import atomic
from bytewright.train import resume, train
from bytewright.train.checkpoint import CheckpointFolder
from bytewright.train.config import Device
from bytewright.train.metrics import MEASURED_FIELDS, read_metrics
from bytewright.train.recipe import read_config, read_recipe, to_plain
from bytewright.train.state import read_tensors

RECIPE = Path(__file__).parents[1] / "recipes" / "base.toml"
NUM_TOKENS = 2_000_000
FILES = {"weights": "model.safetensors", "optimizer": "optimizer.safetensors"}
TENSORS_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to train."""

    device: Device = "auto"
    steps: int = 100
    """Steps of a run; it is saved halfway, and killed after that."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Replace a value of recipes/base.toml."""
    json: Path | None = None
    """Write the outcome here, too."""


@dataclass(frozen=True)
class Difference:
    """What one run has otherwise than another: a place, and how much."""

    place: str
    found: str


def write_inputs(folder: Path, options: Options) -> None:
    """Write token file and config."""
    overrides = [f"device={options.device}", *options.set]
    vocab_size = read_recipe(RECIPE, overrides).model.vocab_size
    uniform = np.random.default_rng(0).random(NUM_TOKENS)
    ids = (uniform**3 * vocab_size).astype(np.uint16)  # skewed, as text is: common ids meet in a batch
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
    """Start a process that trains or resumes the run `name`, with a compiler cache of its own."""
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"{cache}-inductor"),
        "TRITON_CACHE_DIR": str(folder / f"{cache}-triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "4",
    }
    command = [sys.executable, __file__, "--worker", str(folder / name)]
    return subprocess.Popen(command, env=os.environ | caches)


def work(run: Path) -> None:
    """Train or resume in this process."""
    quiet = Console(file=io.StringIO())
    if (run / "config.json").exists():
        resume(run, console=quiet)
    else:
        train(read_config(run.parent / "config.json"), run, console=quiet)


def kill_when_saved(process: subprocess.Popen[bytes], run: Path) -> bool:
    """Wait for the first checkpoint of a run and kill its process; say whether it was in time."""
    checkpoints = CheckpointFolder(run / "checkpoints")
    while process.poll() is None and not checkpoints.steps():
        time.sleep(0.005)
    process.kill()
    return process.wait() == -signal.SIGKILL and len(checkpoints.steps()) == 1


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that must end well."""
    if process.wait():
        raise SystemExit(f"a run failed with exit code {process.returncode}; what it printed is above")


def compare(whole: Path, other: Path) -> dict[str, list[Difference]]:
    """Compare all that two runs left: nothing in a list means equal bits."""
    left, right = last_checkpoint(whole), last_checkpoint(other)
    result = {"metrics": compare_metrics(whole, other)}
    for what, file in FILES.items():
        equal = hash_file(left / file) == hash_file(right / file)
        result[what] = [] if equal else compare_tensors(left / file, right / file)
    return result


def compare_metrics(whole: Path, other: Path) -> list[Difference]:
    """Find the first line, and the fields in it, that differ but for the clock."""
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
    """Say which tensors of two files differ, the most different first."""
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
        return [Difference("header", "the numbers are equal, the files are not")]
    return [difference for _, difference in sorted(found, key=lambda each: -each[0])]


def last_checkpoint(run: Path) -> Path:
    """Name the last checkpoint of a run."""
    checkpoints = CheckpointFolder(run / "checkpoints")
    return checkpoints.at(checkpoints.steps()[-1])


def hash_file(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def report(console: Console, name: str, differences: dict[str, list[Difference]]) -> None:
    """Print one comparison."""
    table = Table(title=f"{name}, beside the run in one piece", title_justify="left")
    for heading in ("", "", "where", "how"):
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
    """Train the three runs, compare, report."""
    began, console = time.perf_counter(), wide_console()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_inputs(folder, options)
        whole, again = start(folder, "whole", "first"), start(folder, "again", "second")
        if not kill_when_saved(start(folder, "killed", "third"), folder / "killed"):
            raise SystemExit(
                "the run to be killed ended by itself, so nothing was shown; give it more --steps"
            )
        finish(whole)
        finish(again)
        finish(start(folder, "killed", "first"))  # the last one with a warm cache: another user's case
        outcome = {
            "the same run again": compare(folder / "whole", folder / "again"),
            "the run killed and resumed": compare(folder / "whole", folder / "killed"),
        }
        digests = {what: hash_file(last_checkpoint(folder / "whole") / file) for what, file in FILES.items()}
    for name, differences in outcome.items():
        report(console, name, differences)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    console.print(
        f"{options.steps} steps on {device}, {time.perf_counter() - began:.0f} s in all", style="dim"
    )
    if options.json:
        plain: dict[str, Any] = json.loads(json.dumps(outcome, default=vars))
        about = {"machine": machine(), "commit": commit(), "versions": versions(["torch"]), "device": device}
        write_report(
            options.json, about | {"set": list(options.set), "sha256": digests, "differences": plain}
        )
    if any(found for differences in outcome.values() for found in differences.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]))
    else:
        main(tyro.cli(Options, description=__doc__))
