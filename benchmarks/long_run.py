"""What the base step is slowed by when it goes on and on, and what it takes to get to the first one.

    python benchmarks/long_run.py --json benchmarks/out/long-run.json
    python benchmarks/long_run.py --device cpu --turns 2 --steps 1 --set batch_size=2 --set precision=fp32

Trains the model of recipes/base.toml on random ids, turn after turn without a rest, and asks the card for its
power and clock meanwhile; then once more after a rest. A card that was held back by its power or its heat is
faster then. The times to the first step and to the first evaluation are those of this process: run it twice,
and the second finds the compiler's caches warm; with TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD=1, as
every command has it, it finds the whole step in them.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from harness import commit, machine, versions, wide_console, write_report
from rich.table import Table

from bytewright.data.sampler import Batch
from bytewright.train.config import Device
from bytewright.train.engine import Engine
from bytewright.train.recipe import read_recipe
from bytewright.train.setup import find_device

RECIPE = Path(__file__).parents[1] / "recipes" / "base.toml"
ASKED = ("power.draw", "power.limit", "clocks.sm", "temperature.gpu")
NUM_BATCHES = 8
REST_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """How long, and of what."""

    device: Device = "auto"
    turns: int = 8
    steps: int = 50
    """Steps of a turn."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Replace a value of recipes/base.toml."""
    json: Path | None = None
    """Write the outcome here, too."""


class Stepper:
    """The base step on batches of random ids that are on the device already."""

    def __init__(self, options: Options) -> None:
        config = read_recipe(RECIPE, [f"device={options.device}", *options.set])
        self.device = find_device(config.device)
        self.tokens_per_step = config.tokens_per_step
        began = time.perf_counter()
        self.engine = Engine(config, self.device)
        self.seconds = {"model and optimizer": time.perf_counter() - began}
        size = config.batch_size, config.model.context_length + 1
        self.batches = [self._draw(size, config.model.vocab_size, seed) for seed in range(NUM_BATCHES)]
        self.seconds["first step"] = self.time(1)
        self.seconds["second step"] = self.time(1)
        began = time.perf_counter()
        self.engine.step.measure(*self.batches[0]).item()
        self.seconds["first evaluation"] = time.perf_counter() - began

    def _draw(self, size: tuple[int, int], vocab_size: int, seed: int) -> Batch:
        """Draw ids as skewed as those of text: common ones meet in a batch."""
        uniform = torch.rand(size, generator=torch.Generator().manual_seed(seed))
        ids = (uniform**3 * vocab_size).long().to(self.device)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def time(self, num_steps: int) -> float:
        """Seconds for so many steps, until the last one is done."""
        began = time.perf_counter()
        for number in range(num_steps):
            result = self.engine.step([self.batches[number % NUM_BATCHES]])
        result.loss.item()
        return time.perf_counter() - began

    def speed(self, num_steps: int) -> float:
        """Tokens per second over so many steps."""
        return num_steps * self.tokens_per_step / self.time(num_steps)


@contextmanager
def watching_the_card() -> Iterator[list[dict[str, float]]]:
    """Ask an NVIDIA card for its state once a second; give a list that fills meanwhile, or stays empty."""
    seen: list[dict[str, float]] = []
    is_over = threading.Event()

    def watch() -> None:
        command = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits"]
        while not is_over.wait(1.0):
            try:
                line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                values = [float(word) for word in line.splitlines()[0].split(",")]
            except (OSError, subprocess.CalledProcessError, ValueError):
                return
            seen.append(dict(zip(ASKED, values, strict=True)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        is_over.set()
        watcher.join()


def main(options: Options) -> None:
    """Start, go on, rest, go on; report."""
    console = wide_console()
    stepper = Stepper(options)
    with watching_the_card() as seen:
        turns = [stepper.speed(options.steps) for _ in range(options.turns)]
    time.sleep(REST_SECONDS)
    after_rest = stepper.speed(max(1, options.steps // 5))
    table = Table(title="The base step, on and on", title_justify="left")
    for heading in ("", "tokens/s"):
        table.add_column(heading, justify="right")
    for number, speed in enumerate(turns, start=1):
        table.add_row(f"turn {number}, {options.steps} steps", f"{speed:,.0f}")
    table.add_row(f"after {REST_SECONDS:.0f} s of rest", f"{after_rest:,.0f}")
    console.print(table)
    for name in ASKED if seen else ():
        values = [moment[name] for moment in seen]
        console.print(
            f"{name}: median {statistics.median(values):,.0f}, {min(values):,.0f} to {max(values):,.0f}"
        )
    console.print(", ".join(f"{name} {seconds:.1f} s" for name, seconds in stepper.seconds.items()))
    if options.json:
        about = {"machine": machine(), "commit": commit(), "versions": versions(["torch"])}
        write_report(
            options.json,
            about
            | {"set": list(options.set), "turns": turns, "after_rest": after_rest}
            | {"card": seen, "seconds": stepper.seconds},
        )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
