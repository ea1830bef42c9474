"""Holds the accountant to what the machine does: peak memory, the largest batch that fits, seconds per step.

    python benchmarks/accounting.py --json out.json                     # a GPU, all parts: minutes
    python benchmarks/accounting.py --parts memory                      # peak of an eager step, 40 cases
    python benchmarks/accounting.py --device cpu --parts memory         # resident memory
    python benchmarks/accounting.py --again out.json                    # predict anew for those measurements

Memory: a model of the shape is built, takes two steps, and the peak of a later one is read from the allocator
(on the CPU: from the kernel, in a process of its own). Fit: the largest batch that the accountant names for
80 GB (the allocator is capped there) and for the device's own memory is run, and so is the first one more
than 5 % above it, which must not fit; the allocator may join its segments for that, as it does with
PYTORCH_ALLOC_CONF=expandable_segments:True, and whether the first would fit without is noted. Time: the
efficiency of one shape is measured and the others are predicted with it. Each case stands on its own: one
that fails is a row of the table. JSON is written after every case.
"""

from __future__ import annotations

import gc
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from accounting_cases import (
    COMPILED_SHAPES,
    CPU_SHAPES,
    FITTED_SHAPES,
    SHAPES,
    TIMED_SHAPES,
    Case,
    capped,
    changed,
    does_fit,
    measure_peak,
    measure_resident,
    measure_seconds,
)
from harness import commit, machine, versions, wide_console
from rich.console import Console
from rich.table import Table

from bytewright.account import Device, largest_batch, measure_device, roofline, training_memory
from bytewright.account.time import least_seconds

Part = Literal["memory", "fit", "time", "compiled", "compiled time"]
Row = dict[str, Any]
MIB = 2**20
TOLERANCE = {"memory": 0.03, "compiled": 0.10, "time": 0.15, "compiled time": 0.15}
CPU_TOLERANCE = 0.20
SLACK = 32 * MIB
"""How far a peak may be off, whatever its size."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    device: Literal["cuda", "cpu"] = "cuda"
    parts: tuple[Part, ...] = ("memory", "fit", "time", "compiled", "compiled time")
    only: str = ""
    """Measure only the shapes whose name holds this."""
    json: Path | None = None
    """Write the figures here, too."""
    again: Path | None = None
    """Measure nothing: predict anew for the measurements in this file."""


class Report:
    """The rows so far; written after every case, printed at the end."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options, self.console = options, console
        self.rows: list[Row] = []
        self.about = machine() | {"commit": commit(), "versions": versions(["torch"])}
        if options.device == "cuda" and not options.again:
            self.about["gpu"] = torch.cuda.get_device_name()
            self.about["memory_bytes"] = torch.cuda.mem_get_info()[1]
            self.about["rates"] = rates_of(measure_device("cuda"))
        self._began = time.perf_counter()

    def add(self, part: Part, case: Case, measure: Callable[[Case], Row]) -> None:
        """Measure one case and write it down, whatever comes of it."""
        row: Row = {"part": part, "case": case.to_json(), "twin": case.twin}
        began = time.perf_counter()
        try:
            row |= measure(case)
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            row["error"] = f"{type(error).__name__}: {first_line}"
            row["traceback"] = traceback.format_exc()[-2000:]
        clear(case.device)
        row["took_seconds"] = round(time.perf_counter() - began, 2)
        self.rows.append(row)
        seen = row.get("error") or row.get("measured", row.get("verdict"))
        elapsed = time.perf_counter() - self._began
        self.console.print(f"{elapsed:6.1f} s  {part}: {case.name}, {case.twin}, {case.precision}: {seen}")
        self.write()

    def write(self) -> None:
        """Write everything so far."""
        if self.options.json:
            self.options.json.parent.mkdir(parents=True, exist_ok=True)
            self.options.json.write_text(json.dumps(self.about | {"rows": self.rows}, indent=1) + "\n")


def rates_of(device: Device) -> dict[str, float]:
    """Write down what a device was measured to do."""
    rates: dict[str, float] = {name: rate for name, rate in device.flops_per_second.items()}  # noqa: C416
    return rates | {"bytes_per_second": device.bytes_per_second}


def clear(device: str) -> None:
    """Give all memory of the last case back."""
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch._C._cuda_clearCublasWorkspaces()  # 32 MiB for each stream that has seen a product
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def run_memory(report: Report, options: Options) -> None:
    """Peak memory of eager steps: every shape, both twins, both precisions."""
    on_gpu = options.device == "cuda"
    for name, (config, batch_size) in (SHAPES if on_gpu else CPU_SHAPES).items():
        for twin in ("reference", "fused") if options.only in name else ():
            for bf16 in (False, True) if on_gpu else (False,):
                case = Case(
                    name=name,
                    config=changed(config, implementation=twin),
                    batch_size=batch_size,
                    precision="bf16" if bf16 else "fp32",
                    device=options.device,
                )
                report.add("memory", case, measure_peak if on_gpu else measure_resident)


def run_compiled(report: Report, options: Options) -> None:
    """Peak memory of compiled steps, as runs on a GPU take them."""
    for name, (config, batch_size) in COMPILED_SHAPES.items():
        if options.only in name:
            case = Case(name=name, config=config, batch_size=batch_size, precision="bf16", compiled=True)
            report.add("compiled", case, measure_peak)


def run_compiled_time(report: Report, options: Options) -> None:
    """Seconds per compiled step."""
    for name, (config, batch_size) in COMPILED_SHAPES.items():
        if options.only in name:
            case = Case(name=name, config=config, batch_size=batch_size, precision="bf16", compiled=True)
            report.add("compiled time", case, measure_seconds)


def run_time(report: Report, options: Options) -> None:
    """Seconds per eager step."""
    for name, (config, batch_size) in TIMED_SHAPES.items():
        if options.only in name:
            case = Case(
                name=name, config=config, batch_size=batch_size, precision="bf16", device=options.device
            )
            report.add("time", case, measure_seconds)


def run_fit(report: Report, options: Options) -> None:
    """Run the largest batch that is named for a memory, and the first more than 5 % above it."""
    total = torch.cuda.mem_get_info()[1]
    for name, config in FITTED_SHAPES.items():
        for memory, cap in ((80e9, 80e9), (total, None)) if options.only in name else ():
            named = largest_batch(config, memory, precision="bf16")

            def measure(case: Case, cap: float | None = cap, named: int = named) -> Row:
                case_above = changed_batch(case, int(named * 1.05) + 1)
                with capped(cap):
                    row: Row = {"named": named, "above": case_above.batch_size}
                    row["named_fits"] = does_fit(case, expandable=False)
                    clear(case.device)
                    row["named_fits_expandable"] = row["named_fits"] or does_fit(case, expandable=True)
                    clear(case.device)
                    row["above_fits"] = does_fit(case_above, expandable=True)
                held = row["named_fits_expandable"] and not row["above_fits"]
                return row | {"verdict": "held" if held else "not held"}

            case = Case(
                name=f"{name} in {memory / 1e9:.1f} GB", config=config, batch_size=named, precision="bf16"
            )
            report.add("fit", case, measure)


def changed_batch(case: Case, batch_size: int) -> Case:
    """Take another batch size."""
    return Case.from_json(case.to_json() | {"batch_size": batch_size})


RUNNERS: dict[Part, Callable[[Report, Options], None]] = {
    "memory": run_memory,
    "fit": run_fit,
    "time": run_time,
    "compiled": run_compiled,
    "compiled time": run_compiled_time,
}


def predict(rows: list[Row], rates: dict[str, float] | None) -> None:
    """Put the prediction into every row that was measured."""
    efficiency: dict[str, float] = {}
    for row in rows:
        if "measured" not in row:
            continue
        case = Case.from_json(row["case"])
        if row["part"] in ("memory", "compiled"):
            memory = training_memory(
                case.config,
                batch_size=case.batch_size,
                precision=case.precision,
                compiled=case.compiled,
                device=case.device,
            )
            row["predicted"] = memory.peak + row.get("empty", 0)
            row["moment"] = memory.peak_moment.name
        elif rates is not None:
            device = Device(
                name="measured",
                flops_per_second={"fp32": rates["fp32"], "tf32": rates["tf32"], "bf16": rates["bf16"]},
                bytes_per_second=rates["bytes_per_second"],
                memory_bytes=0,
            )
            parts = roofline(
                case.config, device, batch_size=case.batch_size, precision="bf16", compiled=case.compiled
            )
            reached = least_seconds(parts) / row["measured"]
            row["efficiency"] = reached
            row["predicted"] = least_seconds(parts) / efficiency.setdefault(row["part"], reached)


def is_within(row: Row) -> bool:
    """Whether a prediction is as close as it has to be."""
    off = abs(row["predicted"] - row["measured"])
    tolerance = CPU_TOLERANCE if row["case"]["device"] == "cpu" else TOLERANCE[row["part"]]
    return bool(off <= tolerance * row["measured"] or (row["part"] == "memory" and off <= SLACK))


def print_tables(rows: list[Row], console: Console) -> None:
    """Print what was predicted beside what was measured."""
    table = Table(title="Predicted and measured (MiB, or ms per step)", title_justify="left")
    for heading in ("part", "shape", "twin", "precision", "predicted", "measured", "ratio", "", "at"):
        is_number = heading in ("predicted", "measured", "ratio")
        table.add_column(heading, justify="right" if is_number else "left")
    for row in rows:
        case = row["case"]
        cells = [row["part"], case["name"], row["twin"], case["precision"]]
        if "predicted" in row:
            scale = 1e3 if "time" in row["part"] else 1 / MIB
            cells += [f"{row[key] * scale:,.1f}" for key in ("predicted", "measured")]
            cells += [f"{row['predicted'] / row['measured']:.3f}", "ok" if is_within(row) else "OFF"]
            cells.append(row.get("moment", ""))
        elif "verdict" in row:
            cells += [f"{row['named']} fits, {row['above']} does not", row["verdict"]]
        else:
            cells += ["", row.get("error", "")]
        table.add_row(*cells)
    console.print(table)
    judged = [is_within(row) for row in rows if "predicted" in row]
    console.print(f"{sum(judged)} of {len(judged)} predictions are within their bounds")


def main(options: Options) -> None:
    """Measure, print, and write."""
    console = wide_console()
    report = Report(options, console)
    if options.again:
        report.about = json.loads(options.again.read_text())
        report.rows = report.about.pop("rows")
    else:
        console.print(report.about)
        for part in options.parts:
            RUNNERS[part](report, options)
    predict(report.rows, report.about.get("rates"))
    report.write()
    print_tables(report.rows, console)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
