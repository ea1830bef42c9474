"""Check and measure the fused decoding step: single steps, whole generations, and the engine of the server.

    python benchmarks/decoding.py --json decoding.json [--base FOLDER]                 # a GPU
    TRITON_INTERPRET=1 python benchmarks/decoding.py --device cpu --json decoding.json   # tests this script

Each section runs in its own process, so that a fault of one does not lose the results of the others. A
section starts only while time is left. Only checks, and runs that compile, share the GPU with others. FOLDER
has the sources (`src`) of another commit to compare with. The sections (`decoding_checks` has the first two):

- check: logits of steps compared with the model's forward in float32, with all kinds of parts; ids compared
  with the reference generator in float32; equal bits in two runs.
- rows: ids of requests alone and among others, from the engine with 256 slots.
- steps: time of a captured step, as it is and with single options changed.
- generation: tokens per second of calls after prompts of 16 and 768 tokens, and the share of the memory
  bandwidth; generation-base: with FOLDER; peer: with `transformers`.
- engine: `serving_engine.py` with 256 slots.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from decoding_checks import (
    SAMPLINGS,
    TINY,
    Rows,
    fuse,
    guarded,
    is_mine,
    measure_check,
    measure_rows,
)
from generation import SHAPES, draw_prompts, generate_with_peer, load_peer, make_model
from harness import Figure, describe_machine, installed_versions, source_commit, wide_console
from rich.table import Table

from bytewright.generate import Generator, SamplingConfig
from bytewright.generate.decoder import Decoder
from bytewright.model import TransformerLM

SHARES = {"check": 4, "rows": 1, "steps": 8}
"""Sections that run first, all at once and in shares: checks, and the compilation of steps."""
BANDWIDTH = 4.8e12
"""Bytes per second of the memory of an H200."""
CASES = (("gpt2", 1, 16), ("gpt2", 1, 768), ("gpt2", 32, 16), ("gpt2", 32, 768), ("base", 1, 16))
"""Shape, batch size and tokens of a prompt."""


def main() -> None:
    """Run one section, or all of them in processes of their own."""
    arguments = parse_arguments()
    if arguments.device == "cpu":
        SHAPES.update(dict.fromkeys(SHAPES, TINY))
    if arguments.section:
        rows = MEASURE[arguments.section](arguments)
        arguments.json.write_text(json.dumps(rows, indent=1))
        return
    console = wide_console()
    end = time.monotonic() + arguments.seconds
    results: dict[str, Any] = {
        "machine": describe_machine(),
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "commit": source_commit(),
        "versions": installed_versions(["torch", "triton", "transformers"]),
    }
    with tempfile.TemporaryDirectory() as folder:
        if arguments.device == "cuda":
            begun = time.monotonic()
            shares = {section: count for section, count in SHARES.items() if section in arguments.sections}
            jobs = {
                section: [Job(section, arguments, end, folder, (n, count)) for n in range(count)]
                for section, count in shares.items()
            }
            found = {section: [row for job in jobs[section] for row in job.wait()] for section in jobs}
            results.update({section: rows for section, rows in found.items() if section != "steps"})
            console.print(f"== checks and compilation: {time.monotonic() - begun:.0f} s", style="bold")
        for section in arguments.sections:
            if section not in results:
                begun = time.monotonic()
                results[section] = Job(section, arguments, end, folder, None).wait()
                console.print(f"== {section}: {time.monotonic() - begun:.0f} s", style="bold")
            arguments.json.write_text(json.dumps(results, indent=1))
    for section in arguments.sections:
        print_rows(console, section, results[section])


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=145)
    parser.add_argument("--base", type=Path, help="folder with src of another commit")
    parser.add_argument("--sections", nargs="+", choices=[*MEASURE], default=[*MEASURE])
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=int, nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


class Job:
    """A process that runs a section or a share of it."""

    def __init__(
        self,
        section: str,
        arguments: argparse.Namespace,
        end: float,
        folder: str,
        share: tuple[int, int] | None,
    ) -> None:
        left = end - time.monotonic()
        self.path = Path(folder) / f"{section}-{share}.json"
        self.end, self.process, self.error = end, None, ""
        if left < 5 or (section == "generation-base" and not arguments.base):
            self.error = "no time left" if left < 5 else "no --base"
            return
        command = [sys.executable, __file__, "--device", arguments.device, "--section", section]
        command += ["--seconds", str(left), "--json", str(self.path)]
        command += [] if share is None else ["--share", *map(str, share)]
        environment = dict(os.environ)
        if section == "generation-base":
            environment["PYTHONPATH"] = str(arguments.base / "src")
        self.log = self.path.with_suffix(".log").open("w+")
        self.process = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)

    def wait(self) -> Rows:
        """Return the rows of the section, and one with the error if there was one."""
        if self.process is not None:
            try:
                self.process.wait(timeout=max(self.end + 5 - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.error = "time limit"
            if self.process.returncode:
                self.log.seek(0)
                self.error = self.log.read()[-1500:]
        rows: Rows = json.loads(self.path.read_text()) if self.path.exists() else []
        return rows + ([{"error": self.error}] if self.error or not rows else [])


@functools.cache
def model_of(shape: str, device: str, dtype: torch.dtype) -> TransformerLM:
    """Return a model of a shape; building it takes seconds."""
    return make_model(SHAPES[shape], device, "fp32").to(dtype)


def precision_of(arguments: argparse.Namespace) -> torch.dtype:
    """Return the precision of the measurements; the interpreter cannot multiply in bfloat16."""
    return torch.bfloat16 if arguments.device == "cuda" else torch.float16


# -- steps


def variants_of(num_rows: int) -> dict[str, Any]:
    """Return the options of steps to compare, by name; None are those of `options_for`."""
    from bytewright.generate.fused_step import options_for

    used, replace = options_for(num_rows), dataclasses.replace
    found: dict[str, Any] = {"default": None, "no overlap": replace(used, overlap=False)}
    if num_rows == 1:
        found["split 128"] = replace(used, split=128)
    else:
        found["split 64"] = replace(used, split=64)
        products = ("qkv", "output", "up", "down")
        wider = {name: replace(getattr(used, name), warps=4) for name in products}
        single = {name: replace(getattr(used, name), inputs=256, chains=1) for name in products}
        found["4 warps"] = replace(used, **wider)
        found["one chain"] = replace(used, **single)
        found["library qkv and up"] = replace(used, qkv=None, up=None)
    return {name: options for name, options in found.items() if options != used}


def make_steps(arguments: argparse.Namespace, case: tuple[str, int, int], options: Any, sampling: Any) -> Any:
    """Return captured steps after prompts, and 30 tokens further."""
    from bytewright.generate.device_steps import DeviceSteps

    shape, batch_size, length = case
    on_gpu = arguments.device == "cuda"
    length = length if on_gpu else 5
    decoder = fuse(Decoder(model_of(shape, arguments.device, precision_of(arguments)), batch_size), options)
    capacity = min(length + 200, SHAPES[shape].context_length)
    steps = DeviceSteps(decoder, sampling, batch_size, capacity, captured=on_gpu)
    prompts = torch.randint(SHAPES[shape].vocab_size, (batch_size, length)).tolist()
    with torch.inference_mode():
        steps.start(prompts, 0, min(150, capacity - length))
        for _ in range(30 if on_gpu else 1):
            steps.take()
    return steps


def measure_steps(arguments: argparse.Namespace) -> Rows:
    """Measure captured steps with several options."""
    rows: Rows = []
    deadline = time.monotonic() + min(arguments.seconds - 5, 60)
    on_gpu = arguments.device == "cuda"
    for case in CASES if on_gpu else CASES[:1]:
        todo = [(name, options, "greedy") for name, options in variants_of(case[1]).items()]
        todo += [("default", None, name) for name in list(SAMPLINGS)[1:]]

        def measure(options: Any, sampling: str, case: Any = case) -> dict[str, Any]:
            steps = make_steps(arguments, case, options, SAMPLINGS[sampling])
            if arguments.share:
                return {}
            with torch.inference_mode():
                seconds = seconds_of(steps.take, 10 if on_gpu else 1, 8 if on_gpu else 1)
            return {"us": 1e6 * seconds, "tokens_per_s": case[1] / seconds}

        for number, (name, options, sampling) in enumerate(todo if on_gpu else todo[:1] + todo[-2:]):
            if is_mine(number, arguments.share) and time.monotonic() < deadline:
                label = {"case": str(case), "variant": name, "sampling": sampling}
                guarded(rows, label, functools.partial(measure, options, sampling))
                arguments.json.write_text(json.dumps(rows))
    return rows


def seconds_of(call: Callable[[], Any], count: int, repeats: int) -> float:
    """Return the median of the seconds of a call among `count` calls, by device events on a GPU."""
    times: list[float] = []
    for _ in range(repeats):
        begun = time.perf_counter()
        if torch.cuda.is_available():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
        for _ in range(count):
            call()
        if torch.cuda.is_available():
            end.record()
            end.synchronize()
            times.append(float(start.elapsed_time(end)) / 1e3 / count)
        else:
            times.append((time.perf_counter() - begun) / count)
    return statistics.median(times)


# -- generation


def measure_generation(arguments: argparse.Namespace, repeats: int = 4) -> Rows:
    """Measure whole calls of our generator, greedy and sampled."""
    rows: Rows = []
    on_gpu = arguments.device == "cuda"
    variant = "base" if arguments.section == "generation-base" else "fused"
    for case in CASES if on_gpu else CASES[:1]:
        shape, batch_size, length = case
        model = model_of(shape, arguments.device, precision_of(arguments))
        prompts = draw_prompts(
            batch_size, argparse.Namespace(prompt_tokens=length if on_gpu else 5, shape=shape)
        )

        def measure(sampling: SamplingConfig) -> dict[str, Any]:
            generator = Generator(model, batch_size)  # noqa: B023
            speeds = []
            for turn in range(repeats + 2 if on_gpu else 1):  # the second call captures
                start = time.perf_counter()
                generator.generate(prompts, sampling)  # noqa: B023
                if turn > 1 or not on_gpu:
                    speeds.append(batch_size * sampling.max_new_tokens / (time.perf_counter() - start))  # noqa: B023
            figure = Figure.of(speeds)
            num_bytes = bytes_of_step(generator.decoder, batch_size, length + sampling.max_new_tokens / 2)  # noqa: B023
            share = num_bytes * figure.median / batch_size / BANDWIDTH  # noqa: B023
            found = {"tokens_per_s": figure.median, "lowest": figure.lowest, "highest": figure.highest}
            return {**found, "bandwidth": share}

        for name, sampling in SAMPLINGS.items():
            sampling = sampling if on_gpu else dataclasses.replace(sampling, max_new_tokens=2)
            label = {"case": str(case), "variant": variant, "sampling": name}
            guarded(rows, label, functools.partial(measure, sampling))
            arguments.json.write_text(json.dumps(rows))
    return rows


def bytes_of_step(decoder: Decoder, num_rows: int, num_tokens: float) -> float:
    """Return the bytes of the weights and of the cache that a step must read."""
    weights = [decoder.head.weight]
    for block in decoder.blocks:
        weights += [block.attention.qkv.weight, block.attention.output.weight]
        ffn: Any = block.ffn
        weights += [ffn.up.weight, ffn.down.weight]
    config = decoder.config
    per_token = 2 * config.num_layers * config.kv_heads * config.d_head * decoder.head.weight.element_size()
    return sum(weight.nbytes for weight in weights) + num_rows * num_tokens * per_token


def measure_peer(arguments: argparse.Namespace, repeats: int = 2) -> Rows:
    """Measure `transformers` with its static cache, compiled; the first call compiles."""
    rows: Rows = []
    deadline = time.monotonic() + arguments.seconds
    for case in (CASES[1], CASES[3], CASES[4], CASES[0], CASES[2]) if arguments.device == "cuda" else ():
        if time.monotonic() > deadline - 20:
            break
        shape, batch_size, length = case

        def measure() -> dict[str, Any]:
            model = make_model(SHAPES[shape], "cuda", "bf16")  # noqa: B023
            generate = generate_with_peer(load_peer(model), cache_implementation="static")
            prompts = draw_prompts(batch_size, argparse.Namespace(prompt_tokens=length, shape=shape))  # noqa: B023
            speeds = []
            for turn in range(repeats + 2):
                start = time.perf_counter()
                generate(prompts, 200)
                torch.cuda.synchronize()
                if turn > 1:
                    speeds.append(batch_size * 200 / (time.perf_counter() - start))  # noqa: B023
            return {"tokens_per_s": Figure.of(speeds).median}

        guarded(rows, {"case": str(case), "variant": "transformers, static, compiled"}, measure)
        arguments.json.write_text(json.dumps(rows))
    return rows


# -- engine


def measure_engine(arguments: argparse.Namespace) -> Rows:
    """Run `serving_engine.py`."""
    rows: Rows = []
    on_gpu = arguments.device == "cuda"
    script = Path(__file__).with_name("serving_engine.py")
    for shape in ("gpt2", "base") if on_gpu else ("base",):
        path = arguments.json.with_suffix(f".{shape}.json")
        command = [sys.executable, str(script), "--device", arguments.device, "--json", str(path)]
        command += ["--shape", shape, "--repeats", "2" if on_gpu else "1"]
        if on_gpu:
            command += ["--precision", "bf16", "--slots", "256", "--rounds", "6"]
        else:
            command += ["--slots", "2", "--new-tokens", "2", "--rounds", "1"]

        def measure() -> dict[str, Any]:
            begun = time.monotonic()
            subprocess.run(command, check=True, timeout=40, stdout=subprocess.DEVNULL)  # noqa: B023
            found = json.loads(path.read_text())  # noqa: B023
            speeds = {name: row["median"] for name, row in found["rows"].items()}
            seconds = {"seconds": time.monotonic() - begun}
            return {**speeds, "ratio": found["ratio"], "equal slots": found["has_equal_rows"], **seconds}

        guarded(rows, {"shape": shape}, measure)
        arguments.json.write_text(json.dumps(rows))
    return rows


MEASURE: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "check": measure_check,
    "rows": measure_rows,
    "steps": measure_steps,
    "generation": measure_generation,
    "generation-base": measure_generation,
    "engine": measure_engine,
    "peer": measure_peer,
}
"""The function of each section."""


def print_rows(console: Any, section: str, rows: Rows) -> None:
    """Print the rows of a section as a table."""
    table = Table(title=section, title_justify="left")
    headings = list(dict.fromkeys(key for row in rows for key in row))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        cells = [row.get(heading, "") for heading in headings]
        table.add_row(*(f"{cell:,.4g}" if isinstance(cell, float) else str(cell) for cell in cells))
    console.print(table)


if __name__ == "__main__":
    main()
