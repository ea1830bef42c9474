"""Trains the base experiment's model beside a plain compiled baseline and Llama of `transformers`.

    python benchmarks/training.py                                            # two cores: batch 8 in fp32
    python benchmarks/training.py --device cuda --precision bf16 --batch-sizes 64 128 256
    python benchmarks/training.py --device cuda --precision bf16 --profile   # where our time goes

Each contestant has a process of its own; all build and compile at once, then they take turns, so that
a noisy minute of the machine hits everybody. The table gives tokens per second (median, min-max), the ratio
to the fastest peer, the share of the FLOP/s that bare matrix products reach on this machine, and the loss at
the end of the first round: all start from the same weights on the same batches, so it must agree. JSON is
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
from harness import Figure, commit, is_usable, machine, versions, wide_console
from rich.console import Console
from rich.table import Table
from training_contestants import CONTESTANTS, OURS, Shape

from bytewright.account import training_flops_per_token
from bytewright.storage import atomic

LOSS_TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}
"""How far apart the losses of one step may be before the contestants do not compute the same thing."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    device: str = "cpu"
    precision: str = "fp32"
    batch_sizes: tuple[int, ...] = (8,)
    only: tuple[str, ...] = tuple(CONTESTANTS)
    """Contestants, by name."""
    steps: int = 4
    """Steps in a turn."""
    repeats: int = 3
    """Turns of each contestant."""
    warmup: int = 3
    """Steps before the first turn: compiling, and filling caches."""
    compile: bool = True
    profile: bool = False
    """Also say where our own time goes."""
    json: Path | None = None
    """Write the figures here, too."""


@dataclass
class Contestant:
    """One contestant in its process, and what it has shown so far."""

    name: str
    process: subprocess.Popen[str]
    speeds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    build_seconds: float = 0.0
    profile: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, command: str) -> dict[str, Any]:
        """Give a command and wait for the answer."""
        self.tell(command)
        return self.hear()

    def tell(self, command: str) -> None:
        """Give a command."""
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for the answer to a command."""
        assert self.process.stdout
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name} died with exit code {self.process.wait()}")
        reply: dict[str, Any] = json.loads(answer)
        return reply


def start(name: str, shape: Shape, batch_size: int, options: Options) -> Contestant:
    """Start the process of a contestant, and let it build."""
    job = json.dumps({"name": name, "shape": asdict(shape), "batch_size": batch_size})
    process = subprocess.Popen(
        [sys.executable, __file__, "--worker", job], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    contestant = Contestant(name, process)
    contestant.tell(f"run {options.warmup}")
    return contestant


def measure(
    shape: Shape, batch_size: int, options: Options, names: list[str], console: Console
) -> list[Contestant]:
    """Let everybody take turns; return them with their speeds."""
    contestants = [start(name, shape, batch_size, options) for name in names]
    for contestant in contestants:
        contestant.build_seconds = contestant.hear()["seconds"]
        ready = f"  batch {batch_size}, {contestant.name}: ready after {contestant.build_seconds:.0f} s"
        console.print(ready, style="dim")
    for _ in range(options.repeats):
        for contestant in contestants:
            answer = contestant.ask(f"run {options.steps}")
            contestant.speeds.append(options.steps * batch_size * shape.context_length / answer["seconds"])
            contestant.losses.append(answer["loss"])
    if options.profile:
        for contestant in contestants:
            if contestant.name == OURS:
                contestant.profile = contestant.ask("profile 3")["rows"]
                print_profile(console, contestant.profile, batch_size)
    for contestant in contestants:
        contestant.ask("stop")
        contestant.process.wait()
    return contestants


def matmul_flops(shape: Shape) -> float:
    """FLOP/s of bare matrix products, of the kind that this model is made of."""
    device = torch.device(shape.device)
    dtype = torch.bfloat16 if shape.is_bf16 else torch.float32
    rows, times = (65_536, 20) if device.type == "cuda" else (2_048, 1)
    a = torch.randn(rows, shape.d_model, device=device, dtype=dtype)
    b = torch.randn(shape.d_model, 4 * shape.d_model, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(20):
        wait(shape)
        began = time.perf_counter()
        for _ in range(times):
            a @ b
        wait(shape)
        best = min(best, (time.perf_counter() - began) / times)
    return 2 * a.numel() * b.shape[1] / best


def print_table(
    console: Console, shape: Shape, batch_size: int, contestants: list[Contestant], peak: float
) -> None:
    """Print one batch size."""
    table = Table(title=f"batch {batch_size}, {shape.precision} on {shape.device}", title_justify="left")
    for heading in (
        "",
        "tokens/s",
        "min-max",
        "÷ fastest peer",
        "of bare matmul",
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
            f"the losses differ by {spread:.4f}: these do not train the same thing", style="bold red"
        )


def print_profile(console: Console, rows: list[dict[str, Any]], batch_size: int) -> None:
    """Print where the time of our step goes: all matrix products in one row, the rest by operation."""
    products = sum(row["ms"] for row in rows if is_product(row["name"]))
    rows = [row for row in rows if not is_product(row["name"])]
    rows = sorted([{"name": "matrix products", "ms": products}, *rows], key=lambda row: -row["ms"])
    table = Table(title=f"batch {batch_size}: where our step spends its time", title_justify="left")
    for heading in ("operation", "ms per step", "share"):
        table.add_column(heading, justify="left" if heading == "operation" else "right")
    total = sum(row["ms"] for row in rows)
    for row in rows[:20]:
        table.add_row(row["name"][:70], f"{row['ms']:.2f}", f"{row['ms'] / total:.1%}")
    table.add_row("total", f"{total:.2f}", "")
    console.print(table)


def is_product(name: str) -> bool:
    """Tell a matrix product by the name that its kernel or operation has in a profile."""
    return any(
        part in name
        for part in ("nvjet", "gemm", "cutlass", "splitK", "aten::mm", "aten::addmm", "aten::bmm")
    )


def main(options: Options) -> None:
    """Measure, print, and write."""
    console = wide_console()
    about = machine() | {"commit": commit(), "versions": versions(["torch", "transformers"])}
    if options.device == "cuda":
        about["gpu"] = torch.cuda.get_device_name()
    console.print(about)
    shape = Shape(device=options.device, precision=options.precision, compile=options.compile)
    names = [name for name in options.only if is_usable(name, CONTESTANTS[name][1], console)]
    peak = matmul_flops(shape)
    console.print(f"bare matmul: {peak / 1e12:.3g} TFLOP/s")
    columns: list[dict[str, Any]] = []
    for batch_size in options.batch_sizes:
        contestants = measure(shape, batch_size, options, names, console)
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


def work(job: dict[str, Any]) -> None:
    """Be a contestant: build the step, then run as many steps as each line of stdin asks for."""
    shape = Shape(**job["shape"])
    step = CONTESTANTS[job["name"]][0](shape)
    torch.manual_seed(1)
    number = 0

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        """Skewed random ids: the loss falls at first, so that wrong updates show."""
        nonlocal number
        generator = torch.Generator().manual_seed(number)
        number += 1
        uniform = torch.rand(job["batch_size"], shape.context_length + 1, generator=generator)
        ids = (uniform**3 * shape.vocab_size).long().to(shape.device)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def run(count: int) -> dict[str, float]:
        batches = [batch() for _ in range(count)]
        wait(shape)
        began = time.perf_counter()
        for ids, targets in batches:
            loss = step(ids, targets)
        last = loss.item()
        wait(shape)
        return {"seconds": time.perf_counter() - began, "loss": last}

    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries may print; the answers have the pipe to themselves
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        match command:
            case "run":
                answer: dict[str, Any] = run(int(argument))
            case "profile":
                answer = {"rows": profile(run, int(argument))}
            case _:
                answer = {}
        print(json.dumps(answer), file=answers, flush=True)
        if command == "stop":
            return


def profile(run: Callable[[int], object], num_steps: int) -> list[dict[str, Any]]:
    """Time every operation of a few steps by itself, the most expensive first."""
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


def wait(shape: Shape) -> None:
    """Wait until the device has done all it was given."""
    if shape.device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(json.loads(sys.argv[2]))
    else:
        main(tyro.cli(Options, description=__doc__))
