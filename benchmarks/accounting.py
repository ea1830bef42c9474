"""Holds the accountant to what the machine does: peak memory, the largest batch that fits, seconds per step.

    python benchmarks/accounting.py --json out.json                          # a GPU: all parts, minutes
    python benchmarks/accounting.py --parts memory                           # peak of an eager step, 40 cases
    python benchmarks/accounting.py --device cpu                             # resident memory

Memory: a model of the shape is built, takes two steps, and the peak of a later one is read from the allocator
(on the CPU: from the kernel, in a process of its own). Fit: the largest batch that the accountant names for
80 GB (the allocator is capped there) and for the device's own memory is run, and so is the first one more
than 5 % above it, which must not fit. Time: the efficiency of one shape is measured and the others are
predicted with it. Each case stands on its own: one that fails is a row of the table. JSON is written after
every case.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from harness import commit, machine, versions, wide_console
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bytewright.account.presets import PRESETS
from bytewright.model import ModelConfig, TransformerLM
from bytewright.train.config import OptimizerConfig
from bytewright.train.setup import make_optimizer
from bytewright.train.step import TrainStep

Part = Literal["memory", "compiled", "fit", "time"]
MIB = 2**20

BASE, SMALL, MEDIUM, XL = (PRESETS[name] for name in ("base", "gpt2-small", "gpt2-medium", "gpt2-xl"))
TINY = ModelConfig(vocab_size=1000, context_length=64, d_model=64, num_layers=2, num_heads=4)


def changed(config: ModelConfig, **changes: Any) -> ModelConfig:
    """Shorten `dataclasses.replace`."""
    return dataclasses.replace(config, **changes)


SHAPES: dict[str, tuple[ModelConfig, int]] = {
    "tiny, batch 256": (TINY, 256),
    "base, batch 1": (BASE, 1),
    "base, batch 32": (BASE, 32),
    "base, batch 256": (BASE, 256),
    "base, tied, 4 of 16 kv heads, qk-norm, context 512, batch 16": (
        changed(BASE, tie_embeddings=True, num_kv_heads=4, qk_norm=True, context_length=512),
        16,
    ),
    "gpt2-small, batch 8": (SMALL, 8),
    "gpt2-small, post-norm, silu, no positions, context 256, batch 32": (
        changed(SMALL, norm="post", ffn="silu", position="none", context_length=256),
        32,
    ),
    "gpt2-medium, batch 4": (MEDIUM, 4),
    "gpt2-xl, 4 layers, batch 8": (changed(XL, num_layers=4), 8),
    "gpt2-xl, batch 1": (XL, 1),
}
"""What an eager step is measured at: from tiny to GPT-2 XL, batches 1 to 256, every choice somewhere."""

COMPILED_SHAPES: dict[str, tuple[ModelConfig, int]] = {
    "base, batch 256": (BASE, 256),
    "gpt2-small, 6 layers, batch 16": (changed(SMALL, num_layers=6), 16),
    "gpt2-xl, 4 layers, batch 8": (changed(XL, num_layers=4), 8),
}

TIMED_SHAPES: dict[str, tuple[ModelConfig, int]] = {
    "gpt2-small, batch 32": (SMALL, 32),
    "base, batch 256": (BASE, 256),
    "gpt2-medium, batch 16": (MEDIUM, 16),
    "gpt2-xl, 12 layers, batch 16": (changed(XL, num_layers=12), 16),
}
"""The first is the one whose efficiency is measured; the others are predicted with it."""

CPU_SHAPES: dict[str, tuple[ModelConfig, int]] = {
    "tiny, batch 256": (TINY, 256),
    "base, batch 2": (BASE, 2),
    "base, batch 16": (BASE, 16),
    "base, tied, 4 of 16 kv heads, qk-norm, batch 4": (
        changed(BASE, tie_embeddings=True, num_kv_heads=4, qk_norm=True),
        4,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    device: str = "cuda"
    parts: tuple[Part, ...] = ("memory", "fit", "time", "compiled")
    only: str = ""
    """Measure only the shapes whose name holds this."""
    json: Path | None = None
    """Write the figures here, too."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training step to measure."""

    name: str
    config: ModelConfig
    batch_size: int
    precision: Literal["fp32", "bf16"] = "fp32"
    compiled: bool = False
    device: str = "cuda"

    @property
    def twin(self) -> str:
        """Which twin: of model, loss and optimizer."""
        return "readable" if self.config.implementation == "reference" else "fused"

    def build(self) -> tuple[TrainStep, list[tuple[Tensor, Tensor]]]:
        """Make the step as a run would, and one batch for it."""
        torch.manual_seed(0)
        compute_dtype = torch.bfloat16 if self.precision == "bf16" else None
        model = TransformerLM(self.config, device=self.device, compute_dtype=compute_dtype)
        optimizer = make_optimizer(model, OptimizerConfig(implementation=self.config.implementation))
        backend = "inductor" if self.compiled else None
        shape = (self.batch_size, self.config.context_length + 1)
        windows = torch.randint(self.config.vocab_size, shape, device=self.device)
        return TrainStep(model, optimizer, max_grad_norm=1.0, backend=backend), [
            (windows[:, :-1], windows[:, 1:])
        ]

    def to_json(self) -> dict[str, Any]:
        """Describe the case in plain values; `from_json` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Case:
        """Undo `to_json`."""
        return cls(**{**fields, "config": ModelConfig.from_dict(fields["config"])})


def measure_peak(case: Case) -> dict[str, Any]:
    """Peak of the allocator in a later step on the GPU, as a whole and by phase."""
    step, batches = case.build()
    step(batches)
    step(batches)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(batches)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "measured": stats["allocated_bytes.all.peak"],
        "requested": stats["requested_bytes.all.peak"],
        "reserved": stats["reserved_bytes.all.peak"],
        "before": before,
        "phases": {} if case.compiled else _peaks_by_phase(step, batches[0]),
    }


def _peaks_by_phase(step: TrainStep, batch: tuple[Tensor, Tensor]) -> dict[str, int]:
    """Where the peak stands: forward and backward once more, one by one; the update comes after."""
    peaks = {}

    def note(name: str) -> None:
        torch.cuda.synchronize()
        peaks[f"{name} peak"] = torch.cuda.max_memory_allocated()
        peaks[f"{name} end"] = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()

    step.optimizer.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    loss = step.loss(*batch)
    note("forward")
    gradients = torch.autograd.grad(loss, list(step.model.parameters()))
    note("backward")
    del gradients
    return peaks


def measure_resident(case: Case) -> dict[str, Any]:
    """Peak of the resident memory of a later step on the CPU, in a process of its own."""
    command = [sys.executable, __file__, "--worker", json.dumps(case.to_json())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def work(case: Case) -> dict[str, Any]:
    """Be the process of `measure_resident`."""
    torch.set_num_threads(1)
    (torch.zeros(64, 64) @ torch.zeros(64, 64)).sum().item()  # what torch itself takes when it first works
    empty = _status("VmRSS")
    step, batches = case.build()
    step(batches)
    Path("/proc/self/clear_refs").write_text("5")  # forget the high-water mark: building had its own
    step(batches)
    step(batches)
    return {"measured": _status("VmHWM"), "empty": empty}


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def measure_seconds(case: Case, at_least: float = 1.0) -> dict[str, Any]:
    """Median time of a step."""
    step, batches = case.build()
    for _ in range(3):
        step(batches)
    spent: list[float] = []
    while sum(spent) < at_least or len(spent) < 3:
        wait(case.device)
        began = time.perf_counter()
        for _ in range(4):
            step(batches)
        wait(case.device)
        spent.append((time.perf_counter() - began) / 4)
    return {"measured": sorted(spent)[len(spent) // 2], "spread": [min(spent), max(spent)]}


def wait(device: str) -> None:
    """Wait until the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def does_fit(case: Case) -> bool:
    """Whether three steps run without running out of memory."""
    try:
        step, batches = case.build()
        for _ in range(3):
            result = step(batches)
        result.loss.item()
    except torch.OutOfMemoryError:
        return False
    return True


@contextlib.contextmanager
def capped(num_bytes: float | None) -> Iterator[None]:
    """Let the allocator have at most so many bytes."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(1.0 if num_bytes is None else num_bytes / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def clear(device: str) -> None:
    """Give all memory of the last case back."""
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


class Report:
    """The rows so far; written after every case, printed at the end."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options, self.console = options, console
        self.rows: list[dict[str, Any]] = []
        self.about = machine() | {"commit": commit(), "versions": versions(["torch"])}
        if options.device == "cuda":
            self.about["gpu"] = torch.cuda.get_device_name()
            self.about["memory_bytes"] = torch.cuda.mem_get_info()[1]
        self._began = time.perf_counter()

    def add(self, part: Part, case: Case, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure one case and write it down, whatever comes of it."""
        row: dict[str, Any] = {"part": part, "case": case.to_json(), "twin": case.twin}
        began = time.perf_counter()
        try:
            row |= measure()
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            row["traceback"] = traceback.format_exc()[-2000:]
        clear(case.device)
        row["took_seconds"] = round(time.perf_counter() - began, 2)
        self.rows.append(row)
        self.console.print(
            f"{time.perf_counter() - self._began:6.1f} s  {part}: {case.name}, {case.twin}, "
            f"{case.precision}: "
            f"{row.get('error') or row.get('measured', row.get('verdict'))}"
        )
        if self.options.json:
            self.options.json.parent.mkdir(parents=True, exist_ok=True)
            self.options.json.write_text(json.dumps(self.about | {"rows": self.rows}, indent=1) + "\n")


def run_memory(report: Report, options: Options) -> None:
    """Peak memory of eager steps: every shape, both twins, both precisions."""
    shapes = SHAPES if options.device == "cuda" else CPU_SHAPES
    for name, (config, batch_size) in shapes.items():
        for twin in ("reference", "fused"):
            for precision in ("fp32", "bf16") if options.device == "cuda" else ("fp32",):
                if options.only not in name:
                    continue
                case = Case(
                    name=name,
                    config=changed(config, implementation=twin),
                    batch_size=batch_size,
                    precision=precision,
                    device=options.device,
                )
                measure = measure_peak if options.device == "cuda" else measure_resident
                report.add("memory", case, lambda case=case, measure=measure: measure(case))  # type: ignore[misc]


def run_compiled(report: Report, options: Options) -> None:
    """Peak memory and time of compiled steps, as runs on a GPU take them."""
    for name, (config, batch_size) in COMPILED_SHAPES.items():
        if options.only not in name:
            continue
        case = Case(name=name, config=config, batch_size=batch_size, precision="bf16", compiled=True)
        report.add("compiled", case, lambda case=case: measure_peak(case))  # type: ignore[misc]


def run_time(report: Report, options: Options) -> None:
    """Seconds per step."""
    for name, (config, batch_size) in TIMED_SHAPES.items():
        if options.only not in name:
            continue
        case = Case(name=name, config=config, batch_size=batch_size, precision="bf16", device=options.device)
        report.add("time", case, lambda case=case: measure_seconds(case))  # type: ignore[misc]


PART_RUNNERS: dict[Part, Callable[[Report, Options], None]] = {
    "memory": run_memory,
    "compiled": run_compiled,
    "time": run_time,
}


def print_tables(report: Report) -> None:
    """Print what was predicted beside what was measured."""
    table = Table(title="predicted and measured", title_justify="left")
    for heading in ("part", "shape", "twin", "precision", "predicted", "measured", "ratio"):
        table.add_column(
            heading, justify="right" if heading in ("predicted", "measured", "ratio") else "left"
        )
    for row in report.rows:
        case, measured, predicted = row["case"], row.get("measured"), row.get("predicted")
        table.add_row(
            row["part"],
            case["name"],
            row["twin"],
            case["precision"],
            "" if predicted is None else f"{predicted / MIB:,.1f}",
            row.get("error", "") if measured is None else f"{measured / MIB:,.1f}",
            f"{predicted / measured:.3f}" if predicted and measured else "",
        )
    report.console.print(table)


def main(options: Options) -> None:
    """Measure, print, and write."""
    console = wide_console()
    report = Report(options, console)
    console.print(report.about)
    for part in options.parts:
        if part in PART_RUNNERS:
            PART_RUNNERS[part](report, options)
    print_tables(report)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(work(Case.from_json(json.loads(sys.argv[2])))))
    else:
        main(tyro.cli(Options, description=__doc__))
