"""Compare predictions of `account` with measurements: peak memory, largest batch, seconds per step.

    python benchmarks/accounting.py --json out.json                     # a GPU, all parts: minutes
    python benchmarks/accounting.py --parts memory                      # peak of an eager step, 40 cases
    python benchmarks/accounting.py --device cpu --parts memory         # resident memory
    python benchmarks/accounting.py --again out.json                    # predict again for old measurements

- memory: peak of a later step, from the GPU's allocator (on the CPU: from the kernel, in a new process).
- fit: run the largest predicted batch for 80 GB (with the allocator capped) and for the whole device. It must
  fit, and the first batch more than 5 % larger must not. Both may use expandable segments, as with
  PYTORCH_ALLOC_CONF=expandable_segments:True; the row also records whether the batch fits without them.
- time: the efficiency of the first shape is measured and used to predict the others.

A case that fails becomes a row with its error. The JSON is written after every case.
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
from harness import describe_machine, installed_versions, source_commit, wide_console
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
"""The error that is accepted for a peak of any size."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The parts and shapes to measure."""

    device: Literal["cuda", "cpu"] = "cuda"
    parts: tuple[Part, ...] = ("memory", "fit", "time", "compiled", "compiled time")
    only: str = ""
    """Measure only the shapes whose name contains this text."""
    json: Path | None = None
    """Write the results to this JSON file."""
    again: Path | None = None
    """Predict again for the measurements in this file instead of measuring."""


class Report:
    """The rows measured so far; writes the JSON after every case."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options, self.console = options, console
        self.rows: list[Row] = []
        self.about = describe_machine() | {
            "commit": source_commit(),
            "versions": installed_versions(["torch"]),
        }
        if options.device == "cuda" and not options.again:
            self.about["gpu"] = torch.cuda.get_device_name()
            self.about["memory_bytes"] = torch.cuda.mem_get_info()[1]
            self.about["rates"] = device_rates(measure_device("cuda"))
        self._began = time.perf_counter()

    def add(self, part: Part, case: Case, measure: Callable[[Case], Row]) -> None:
        """Measure one case and append its row, with the error if it fails."""
        row: Row = {"part": part, "case": case.to_json()}
        began = time.perf_counter()
        try:
            row |= measure(case)
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            row["error"] = f"{type(error).__name__}: {first_line}"
            row["traceback"] = traceback.format_exc()[-2000:]
        release_memory(case.device)
        row["took_seconds"] = round(time.perf_counter() - began, 2)
        self.rows.append(row)
        seen = row.get("error") or row.get("measured", row.get("verdict"))
        elapsed = time.perf_counter() - self._began
        self.console.print(
            f"{elapsed:6.1f} s  {part}: {case.name}, {case.config.implementation}, {case.precision}: {seen}"
        )
        self.write()

    def write(self) -> None:
        """Write all rows so far to the JSON file."""
        if self.options.json:
            self.options.json.parent.mkdir(parents=True, exist_ok=True)
            self.options.json.write_text(json.dumps(self.about | {"rows": self.rows}, indent=1) + "\n")


def device_rates(device: Device) -> dict[str, float]:
    """Return the measured rates of a device as plain values."""
    rates: dict[str, float] = {name: rate for name, rate in device.flops_per_second.items()}  # noqa: C416
    return rates | {"bytes_per_second": device.bytes_per_second}


def release_memory(device: str) -> None:
    """Release all memory of the last case."""
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch._C._cuda_clearCublasWorkspaces()  # 32 MiB per stream that has run a product
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def run_memory(report: Report, options: Options) -> None:
    """Measure the peak memory of eager steps: every shape, both implementations, both precisions."""
    on_gpu = options.device == "cuda"
    for name, (config, batch_size) in (SHAPES if on_gpu else CPU_SHAPES).items():
        for implementation in ("reference", "fused") if options.only in name else ():
            for bf16 in (False, True) if on_gpu else (False,):
                case = Case(
                    name=name,
                    config=changed(config, implementation=implementation),
                    batch_size=batch_size,
                    precision="bf16" if bf16 else "fp32",
                    device=options.device,
                )
                report.add("memory", case, measure_peak if on_gpu else measure_resident)


def run_compiled(report: Report, options: Options) -> None:
    """Measure the peak memory of compiled steps, which runs on a GPU use."""
    for name, (config, batch_size) in COMPILED_SHAPES.items():
        if options.only in name:
            case = Case(name=name, config=config, batch_size=batch_size, precision="bf16", compiled=True)
            report.add("compiled", case, measure_peak)


def run_compiled_time(report: Report, options: Options) -> None:
    """Measure seconds per compiled step."""
    for name, (config, batch_size) in COMPILED_SHAPES.items():
        if options.only in name:
            case = Case(name=name, config=config, batch_size=batch_size, precision="bf16", compiled=True)
            report.add("compiled time", case, measure_seconds)


def run_time(report: Report, options: Options) -> None:
    """Measure seconds per eager step."""
    for name, (config, batch_size) in TIMED_SHAPES.items():
        if options.only in name:
            case = Case(
                name=name, config=config, batch_size=batch_size, precision="bf16", device=options.device
            )
            report.add("time", case, measure_seconds)


def run_fit(report: Report, options: Options) -> None:
    """Run the largest batch predicted for a memory size and the first batch more than 5 % larger."""
    total = torch.cuda.mem_get_info()[1]
    for name, config in FITTED_SHAPES.items():
        for memory, cap in ((80e9, 80e9), (total, None)) if options.only in name else ():
            named = largest_batch(config, memory, precision="bf16")

            def measure(case: Case, cap: float | None = cap, named: int = named) -> Row:
                case_above = changed_batch(case, int(named * 1.05) + 1)
                with capped(cap):
                    row: Row = {"named": named, "above": case_above.batch_size}
                    row["named_fits"] = does_fit(case, expandable=False)
                    release_memory(case.device)
                    row["named_fits_expandable"] = row["named_fits"] or does_fit(case, expandable=True)
                    release_memory(case.device)
                    row["above_fits"] = does_fit(case_above, expandable=True)
                held = row["named_fits_expandable"] and not row["above_fits"]
                return row | {"verdict": "held" if held else "not held"}

            case = Case(
                name=f"{name} in {memory / 1e9:.1f} GB", config=config, batch_size=named, precision="bf16"
            )
            report.add("fit", case, measure)


def changed_batch(case: Case, batch_size: int) -> Case:
    """Return the case with another batch size."""
    return Case.from_json(case.to_json() | {"batch_size": batch_size})


RUNNERS: dict[Part, Callable[[Report, Options], None]] = {
    "memory": run_memory,
    "fit": run_fit,
    "time": run_time,
    "compiled": run_compiled,
    "compiled time": run_compiled_time,
}


def predict(rows: list[Row], rates: dict[str, float] | None) -> None:
    """Add the prediction to every measured row."""
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
    """Return whether a prediction is within its tolerance."""
    off = abs(row["predicted"] - row["measured"])
    tolerance = CPU_TOLERANCE if row["case"]["device"] == "cpu" else TOLERANCE[row["part"]]
    return bool(off <= tolerance * row["measured"] or (row["part"] == "memory" and off <= SLACK))


def print_tables(rows: list[Row], console: Console) -> None:
    """Print predicted and measured values."""
    table = Table(title="Predicted and measured (MiB, or ms per step)", title_justify="left")
    for heading in (
        "part",
        "shape",
        "implementation",
        "precision",
        "predicted",
        "measured",
        "ratio",
        "",
        "at",
    ):
        is_number = heading in ("predicted", "measured", "ratio")
        table.add_column(heading, justify="right" if is_number else "left")
    for row in rows:
        case = row["case"]
        cells = [row["part"], case["name"], case["config"]["implementation"], case["precision"]]
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
    checked = [is_within(row) for row in rows if "predicted" in row]
    console.print(f"{sum(checked)} of {len(checked)} predictions are within their tolerance")


def main(options: Options) -> None:
    """Measure or read the rows, predict, print the tables and write the JSON."""
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
