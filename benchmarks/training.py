"""Measure training steps: our base model, a plain compiled baseline and the Llama of `transformers`.

    python benchmarks/training.py                                            # two cores: batch 8 in fp32
    python benchmarks/training.py --device cuda --precision bf16 --batch-sizes 64 128 256
    python benchmarks/training.py --device cuda --precision bf16 --profile   # time per operation of our step

Each contestant runs in its own process. All compile at the same time and then take turns, so other load on
the machine affects all of them. The table shows tokens per second (median, min-max), the ratio to the fastest
peer, the share of the FLOP/s that plain matrix products reach on this machine, and the loss after the first
turn. The losses must agree, because all start from the same weights and read the same batches. The JSON is
written after every batch size.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import tyro
from harness import Figure, describe_machine, installed_versions, is_usable, source_commit, wide_console
from model_peers import CONTESTANTS, OURS, Shape
from rich.console import Console
from rich.table import Table

from bytewright.account import training_flops_per_token
from bytewright.storage import atomic

LOSS_TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}
"""The largest difference between the losses of contestants that compute the same thing."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    device: str = "cpu"
    precision: str = "fp32"
    batch_sizes: tuple[int, ...] = (8,)
    only: tuple[str, ...] = tuple(CONTESTANTS)
    """Contestants to run."""
    steps: int = 4
    """Steps per turn."""
    repeats: int = 3
    """Turns per contestant."""
    warmup: int = 3
    """Steps before the first turn, for compilation and caches."""
    compile: bool = True
    profile: bool = False
    """Also print the time per operation of our step."""
    json: Path | None = None
    """Write the results to this JSON file."""


@dataclass
class ContestantProcess:
    """The process of one contestant and its results so far."""

    name: str
    process: subprocess.Popen[str]
    speeds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    build_seconds: float = 0.0
    profile: list[dict[str, Any]] = field(default_factory=list)

    def request(self, command: str) -> dict[str, Any]:
        """Send a command and return the reply."""
        self.send(command)
        return self.receive()

    def send(self, command: str) -> None:
        """Send a command."""
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Wait for the reply to a command and return it."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} failed with exit code {self.process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        return reply


def start_process(name: str, shape: Shape, batch_size: int, options: Options) -> ContestantProcess:
    """Start the process of a contestant and send it the warm-up steps."""
    job = json.dumps({"name": name, "shape": asdict(shape), "batch_size": batch_size})
    process = subprocess.Popen(
        [sys.executable, __file__, "--worker", job], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    contestant = ContestantProcess(name, process)
    contestant.send(f"run {options.warmup}")
    return contestant


def measure_speeds(
    shape: Shape, batch_size: int, options: Options, names: list[str], console: Console
) -> list[ContestantProcess]:
    """Run the contestants in turns; return them with their speeds and losses."""
    contestants = [start_process(name, shape, batch_size, options) for name in names]
    for contestant in contestants:
        contestant.build_seconds = contestant.receive()["seconds"]
        ready = f"  batch {batch_size}, {contestant.name}: ready after {contestant.build_seconds:.0f} s"
        console.print(ready, style="dim")
    for _ in range(options.repeats):
        for contestant in contestants:
            reply = contestant.request(f"run {options.steps}")
            contestant.speeds.append(options.steps * batch_size * shape.context_length / reply["seconds"])
            contestant.losses.append(reply["loss"])
    if options.profile:
        for contestant in contestants:
            if contestant.name == OURS:
                contestant.profile = contestant.request("profile 3")["rows"]
                print_profile(console, contestant.profile, batch_size)
    for contestant in contestants:
        contestant.request("stop")
        contestant.process.wait()
    return contestants


def measure_matmul_flops(shape: Shape) -> float:
    """Return the FLOP/s of plain matrix products with the shapes of this model."""
    device = torch.device(shape.device)
    dtype = torch.bfloat16 if shape.is_bf16 else torch.float32
    rows, times = (65_536, 20) if device.type == "cuda" else (2_048, 1)
    a = torch.randn(rows, shape.d_model, device=device, dtype=dtype)
    b = torch.randn(shape.d_model, 4 * shape.d_model, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(20):
        synchronize(shape)
        began = time.perf_counter()
        for _ in range(times):
            a @ b
        synchronize(shape)
        best = min(best, (time.perf_counter() - began) / times)
    return 2 * a.numel() * b.shape[1] / best


def print_table(
    console: Console, shape: Shape, batch_size: int, contestants: list[ContestantProcess], peak: float
) -> None:
    """Print the table of one batch size."""
    table = Table(title=f"batch {batch_size}, {shape.precision} on {shape.device}", title_justify="left")
    for heading in (
        "",
        "tokens/s",
        "min-max",
        "÷ fastest peer",
        "of plain matmul",
        "loss, turn 1",
        "build s",
    ):
        table.add_column(heading, justify="left" if not heading else "right")
    peers = [Figure.of(c.speeds).median for c in contestants if c.name != OURS]
    flops = training_flops_per_token(shape.model_config())
    for contestant in sorted(contestants, key=lambda c: -Figure.of(c.speeds).median):
        speed = Figure.of(contestant.speeds)
        table.add_row(
            contestant.name,
            f"{speed.median:,.0f}",
            f"{speed.lowest:,.0f}-{speed.highest:,.0f}",
            f"{speed.median / max(peers):.2f}x" if peers else "",
            f"{speed.median * flops / peak:.0%}",
            f"{contestant.losses[0]:.4f}",
            f"{contestant.build_seconds:.0f}",
        )
    console.print(table)
    spread = max(c.losses[0] for c in contestants) - min(c.losses[0] for c in contestants)
    if spread > LOSS_TOLERANCE[shape.precision]:
        console.print(
            f"the losses differ by {spread:.4f}: the contestants do not train the same model",
            style="bold red",
        )


def print_profile(console: Console, rows: list[dict[str, Any]], batch_size: int) -> None:
    """Print the time per operation of our step, with all matrix products in one row."""
    products = sum(row["ms"] for row in rows if is_product(row["name"]))
    rows = [row for row in rows if not is_product(row["name"])]
    rows = sorted([{"name": "matrix products", "ms": products}, *rows], key=lambda row: -row["ms"])
    table = Table(title=f"batch {batch_size}: time per operation of our step", title_justify="left")
    for heading in ("operation", "ms per step", "share"):
        table.add_column(heading, justify="left" if heading == "operation" else "right")
    total = sum(row["ms"] for row in rows)
    for row in rows[:20]:
        table.add_row(row["name"][:70], f"{row['ms']:.2f}", f"{row['ms'] / total:.1%}")
    table.add_row("total", f"{total:.2f}", "")
    console.print(table)


def is_product(name: str) -> bool:
    """Return whether a kernel or operation name of a profile is a matrix product."""
    return any(
        part in name
        for part in ("nvjet", "gemm", "cutlass", "splitK", "aten::mm", "aten::addmm", "aten::bmm")
    )


def main(options: Options) -> None:
    """Measure all batch sizes, print the tables and write the JSON."""
    console = wide_console()
    about = describe_machine() | {
        "commit": source_commit(),
        "versions": installed_versions(["torch", "transformers"]),
    }
    if options.device == "cuda":
        about["gpu"] = torch.cuda.get_device_name()
    console.print(about)
    shape = Shape(device=options.device, precision=options.precision, compile=options.compile)
    names = [name for name in options.only if is_usable(name, CONTESTANTS[name][1], console)]
    peak = measure_matmul_flops(shape)
    console.print(f"plain matmul: {peak / 1e12:.3g} TFLOP/s")
    columns: list[dict[str, Any]] = []
    for batch_size in options.batch_sizes:
        contestants = measure_speeds(shape, batch_size, options, names, console)
        print_table(console, shape, batch_size, contestants, peak)
        columns.append(
            {
                "batch_size": batch_size,
                "results": [
                    {
                        "name": c.name,
                        "tokens_per_second": c.speeds,
                        "losses": c.losses,
                        "build_seconds": c.build_seconds,
                        "profile": c.profile,
                    }
                    for c in contestants
                ],
            }
        )
        if options.json:
            record = about | {"shape": asdict(shape), "matmul_flops": peak, "columns": columns}
            atomic.write_json(options.json, record)


def serve_commands(job: dict[str, Any]) -> None:
    """Build the step of a contestant and execute the commands on stdin, in the contestant's process."""
    shape = Shape(**job["shape"])
    step = CONTESTANTS[job["name"]][0](shape)
    torch.manual_seed(1)
    number = 0

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        """Return skewed random ids: the loss decreases at first, so wrong updates are visible."""
        nonlocal number
        generator = torch.Generator().manual_seed(number)
        number += 1
        uniform = torch.rand(job["batch_size"], shape.context_length + 1, generator=generator)
        ids = (uniform**3 * shape.vocab_size).long().to(shape.device)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def run(count: int) -> dict[str, float]:
        batches = [batch() for _ in range(count)]
        synchronize(shape)
        began = time.perf_counter()
        for ids, targets in batches:
            loss = step(ids, targets)
        last = loss.item()
        synchronize(shape)
        return {"seconds": time.perf_counter() - began, "loss": last}

    replies = sys.stdout
    sys.stdout = sys.stderr  # libraries may print; the pipe carries replies only
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        match command:
            case "run":
                reply: dict[str, Any] = run(int(argument))
            case "profile":
                reply = {"rows": profile(run, int(argument))}
            case _:
                reply = {}
        print(json.dumps(reply), file=replies, flush=True)
        if command == "stop":
            return


def profile(run: Callable[[int], object], num_steps: int) -> list[dict[str, Any]]:
    """Return the time of every operation in a few steps, the most expensive first."""
    with torch.profiler.profile() as profiler:
        run(num_steps)
    rows = []
    for event in profiler.key_averages():
        micros = event.self_device_time_total or (
            0 if torch.cuda.is_available() else event.self_cpu_time_total
        )
        if micros:
            rows.append({"name": event.key, "ms": micros / 1000 / num_steps})
    return sorted(rows, key=lambda row: -row["ms"])


def synchronize(shape: Shape) -> None:
    """Wait until the device has finished all launched work."""
    if shape.device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        serve_commands(json.loads(sys.argv[2]))
    else:
        main(tyro.cli(Options, description=__doc__))
