"""Measure the speed of the base step over a long time, and the time until the first step.

    python benchmarks/long_run.py --json benchmarks/out/long-run.json
    python benchmarks/long_run.py --device cpu --turns 2 --steps 1 --set batch_size=2 --set precision=fp32

The script trains the model of recipes/base.toml on random ids in turns without a pause, and samples the GPU's
power, clock and temperature. Then it pauses and measures once more: a GPU that was limited by power or heat
is faster after the pause. The times until the first step and the first evaluation are those of this process.
Run the script twice to measure with warm compiler caches. They contain the whole step if
TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD=1 is set, as it is in every command.
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
from harness import describe_machine, installed_versions, source_commit, wide_console, write_report
from rich.table import Table

from bytewright.data.sampler import Batch
from bytewright.train.config import DeviceName
from bytewright.train.recipe import read_recipe
from bytewright.train.session.engine import StepEngine
from bytewright.train.setup import select_device

RECIPE = Path(__file__).parents[1] / "recipes" / "base.toml"
GPU_FIELDS = ("power.draw", "power.limit", "clocks.sm", "temperature.gpu")
NUM_BATCHES = 8
REST_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """The length of the measurement and the recipe's changes."""

    device: DeviceName = "auto"
    turns: int = 8
    steps: int = 50
    """Steps per turn."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Replace a value of recipes/base.toml."""
    json: Path | None = None
    """Write the results to this JSON file."""


class Stepper:
    """The base step on batches of random ids in device memory."""

    def __init__(self, options: Options) -> None:
        config = read_recipe(RECIPE, [f"device={options.device}", *options.set])
        self.device = select_device(config.device)
        self.tokens_per_step = config.tokens_per_step
        began = time.perf_counter()
        self.engine = StepEngine(config, self.device)
        self.seconds = {"model and optimizer": time.perf_counter() - began}
        size = config.batch_size, config.model.context_length + 1
        self.batches = [self._draw(size, config.model.vocab_size, seed) for seed in range(NUM_BATCHES)]
        self.seconds["first step"] = self.time(1)
        self.seconds["second step"] = self.time(1)
        began = time.perf_counter()
        self.engine.step.measure(*self.batches[0]).item()
        self.seconds["first evaluation"] = time.perf_counter() - began

    def _draw(self, size: tuple[int, int], vocab_size: int, seed: int) -> Batch:
        """Draw ids that are skewed like those of text: common ids repeat in a batch."""
        uniform = torch.rand(size, generator=torch.Generator().manual_seed(seed))
        ids = (uniform**3 * vocab_size).long().to(self.device)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def time(self, num_steps: int) -> float:
        """Return the seconds for this number of steps, including the last one."""
        began = time.perf_counter()
        for number in range(num_steps):
            result = self.engine.step([self.batches[number % NUM_BATCHES]])
        result.loss.item()
        return time.perf_counter() - began

    def speed(self, num_steps: int) -> float:
        """Return tokens per second over this number of steps."""
        return num_steps * self.tokens_per_step / self.time(num_steps)


@contextmanager
def sampled_gpu_state() -> Iterator[list[dict[str, float]]]:
    """Sample the state of an NVIDIA GPU once a second; yield the list of samples, empty without a GPU."""
    samples: list[dict[str, float]] = []
    is_finished = threading.Event()

    def sample() -> None:
        command = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
        while not is_finished.wait(1.0):
            try:
                line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                values = [float(word) for word in line.splitlines()[0].split(",")]
            except (OSError, subprocess.CalledProcessError, ValueError):
                return
            samples.append(dict(zip(GPU_FIELDS, values, strict=True)))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield samples
    finally:
        is_finished.set()
        sampler.join()


def main(options: Options) -> None:
    """Measure the turns, pause, measure once more, and print the results."""
    console = wide_console()
    stepper = Stepper(options)
    with sampled_gpu_state() as samples:
        turns = [stepper.speed(options.steps) for _ in range(options.turns)]
    time.sleep(REST_SECONDS)
    after_rest = stepper.speed(max(1, options.steps // 5))
    table = Table(title="Speed of the base step", title_justify="left")
    for heading in ("", "tokens/s"):
        table.add_column(heading, justify="right")
    for number, speed in enumerate(turns, start=1):
        table.add_row(f"turn {number}, {options.steps} steps", f"{speed:,.0f}")
    table.add_row(f"after a pause of {REST_SECONDS:.0f} s", f"{after_rest:,.0f}")
    console.print(table)
    for name in GPU_FIELDS if samples else ():
        values = [sample[name] for sample in samples]
        console.print(
            f"{name}: median {statistics.median(values):,.0f}, {min(values):,.0f} to {max(values):,.0f}"
        )
    console.print(", ".join(f"{name} {seconds:.1f} s" for name, seconds in stepper.seconds.items()))
    if options.json:
        about = {
            "machine": describe_machine(),
            "commit": source_commit(),
            "versions": installed_versions(["torch"]),
        }
        write_report(
            options.json,
            about
            | {"set": list(options.set), "turns": turns, "after_rest": after_rest}
            | {"card": samples, "seconds": stepper.seconds},
        )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
