"""Measure the engine of the server without HTTP: sequences of mixed length against one static batch.

    python benchmarks/serving_engine.py                                              # two cores, fp32
    python benchmarks/serving_engine.py --device cuda --precision bf16 --slots 256   # a GPU

The static batch generates `--new-tokens` greedy tokens after `--prompt-tokens` in all rows at once: no row
ever waits. The engine gets `--rounds` times as many sequences as it has slots, with prompts of 1 to
2·`--prompt-tokens` and texts of 1 to 2·`--new-tokens` tokens, so that slots are filled again all the time.
The table shows new tokens per second of both, and their ratio. The last sequences, which leave slots empty,
are not counted: the clock stops when the queue is empty. Both take turns.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from generation import SHAPES, make_model
from harness import Figure, describe_machine, installed_versions, source_commit, wide_console
from rich.table import Table

from bytewright.generate import Generator, SamplingConfig
from bytewright.model import TransformerLM
from bytewright.serve.engine import Engine
from bytewright.serve.jobs import Job, Update
from bytewright.storage import atomic
from bytewright.system import freeze_objects


def main() -> None:
    """Measure both in turns, print the table and write the JSON."""
    arguments = parse_arguments()
    console = wide_console()
    about = {
        "machine": describe_machine(),
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "commit": source_commit(),
        "versions": installed_versions(["torch"]),
        "settings": {key: str(value) for key, value in vars(arguments).items()},
    }
    console.print(about)
    model = make_model(SHAPES[arguments.shape], arguments.device, arguments.precision).eval()
    static, driver = StaticBatch(model, arguments), EngineDriver(model, arguments)
    speeds: dict[str, list[float]] = {"static batch": [], "engine": []}
    for turn in range(arguments.repeats + 1):  # the first turn captures and allocates
        for name, measure in (("static batch", static.measure), ("engine", driver.measure)):
            speed = measure(seed=turn)
            if turn:
                speeds[name].append(speed)
    driver.engine.stop()
    figures = {name: Figure.of(values) for name, values in speeds.items()}
    ratio = figures["engine"].median / figures["static batch"].median
    table = Table(title=f"{arguments.slots} sequences at a time", title_justify="left")
    for heading in ("", "tokens/s", "min-max", "÷ static batch"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for name, figure in figures.items():
        spread = f"{figure.lowest:,.0f}-{figure.highest:,.0f}"
        table.add_row(name, f"{figure.median:,.0f}", spread, f"{ratio:.2f}" if name == "engine" else "")
    console.print(table)
    if arguments.json:
        rows = {name: asdict(figure) for name, figure in figures.items()}
        has_equal_slots = driver.engine.has_equal_slots  # its key in recorded results is "has_equal_rows"
        atomic.write_json(
            arguments.json, {**about, "rows": rows, "ratio": ratio, "has_equal_rows": has_equal_slots}
        )


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--shape", choices=SHAPES, default="base")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


class StaticBatch:
    """`generate` with all rows in step."""

    def __init__(self, model: TransformerLM, arguments: argparse.Namespace) -> None:
        self.generator, self.arguments = Generator(model, arguments.slots), arguments
        self.vocab_size = model.config.vocab_size

    def measure(self, seed: int) -> float:
        """Return new tokens per second of one batch."""
        count, length = self.arguments.slots, self.arguments.prompt_tokens
        drawn = torch.Generator().manual_seed(seed)
        prompts = torch.randint(self.vocab_size, (count, length), generator=drawn).tolist()
        sampling = SamplingConfig(max_new_tokens=self.arguments.new_tokens, temperature=0.0)
        start = time.perf_counter()
        completions = self.generator.generate(prompts, sampling)
        return sum(len(completion.ids) for completion in completions) / (time.perf_counter() - start)


class EngineDriver:
    """The engine with a queue that is always full."""

    def __init__(self, model: TransformerLM, arguments: argparse.Namespace) -> None:
        self.arguments, self.vocab_size = arguments, model.config.vocab_size
        self.context_length = model.config.context_length
        self.num_jobs = arguments.rounds * arguments.slots
        self.engine = Engine(
            model,
            self.report,
            num_slots=arguments.slots,
            max_waiting=self.num_jobs,
            max_waiting_tokens=2**62,
        )
        freeze_objects()  # as the server does
        self.engine.start()
        self.num_ended = self.num_tokens = 0
        self.counted: list[tuple[int, float]] = []
        self.all_ended = threading.Event()

    def report(self, updates: list[tuple[Job, Update]]) -> None:
        """Count tokens; note the time at which the last sequence has got a slot."""
        for _, update in updates:
            self.num_tokens += len(update.ids)
            self.num_ended += update.is_last
        if self.num_ended >= self.num_jobs - self.arguments.slots:
            self.counted.append((self.num_tokens, time.perf_counter()))
        if self.num_ended == self.num_jobs:
            self.all_ended.set()

    def measure(self, seed: int) -> float:
        """Return new tokens per second while the queue is not empty."""
        self.num_ended = self.num_tokens = 0
        self.counted.clear()
        self.all_ended.clear()
        jobs = [self.make_job(random.Random(f"{seed}-{number}")) for number in range(self.num_jobs)]
        start = time.perf_counter()
        self.engine.submit(jobs)
        self.all_ended.wait()
        num_tokens, end = self.counted[0]
        return num_tokens / (end - start)

    def make_job(self, generator: random.Random) -> Job:
        """Return a sequence of random length."""
        length = generator.randint(1, 2 * self.arguments.prompt_tokens)
        room = self.context_length - length
        num_new = min(generator.randint(1, 2 * self.arguments.new_tokens), room)
        prompt: list[Any] = [generator.randrange(self.vocab_size) for _ in range(length)]
        return Job(prompt, SamplingConfig(max_new_tokens=num_new, temperature=0.0))


if __name__ == "__main__":
    main()
