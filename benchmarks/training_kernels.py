"""Compare training steps with the previous source, a plain compiled baseline, grouped heads and norms.

    python benchmarks/training_kernels.py --device cuda --old BEFORE/src --json kernels.json

`--old` is the package folder of an earlier version. Each contestant runs in its own process. The processes of
a wave compile at the same time; then those of each group take turns, so that ratios are of the same minute.
At the same time as the first wave compiles, one process checks every kernel against float64 on fresh random
inputs and times single kernels. A contestant that fails is reported, and the others continue. The JSON is
written after every group.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SHAPES: dict[str, dict[str, int]] = {
    "base": {
        "vocab_size": 10_000, "context_length": 256, "d_model": 512, "d_ff": 1344, "num_layers": 4,
        "num_heads": 16, "batch_size": 256,
    },
    "12x768": {
        "vocab_size": 50_257, "context_length": 1024, "d_model": 768, "d_ff": 2048, "num_layers": 12,
        "num_heads": 12, "batch_size": 32,
    },
    "8x1024": {
        "vocab_size": 10_000, "context_length": 2048, "d_model": 1024, "d_ff": 2752, "num_layers": 8,
        "num_heads": 8, "batch_size": 16,
    },
}  # fmt: skip
SHAPES["4x768"] = SHAPES["12x768"] | {"num_layers": 4}
SHAPES["3x1024"] = SHAPES["8x1024"] | {"num_layers": 3}
TINY = {"vocab_size": 101, "context_length": 32, "d_model": 64, "d_ff": 64, "num_heads": 4, "batch_size": 2}


@dataclass
class Contestant:
    """One way to compute the steps of a shape."""

    label: str
    source: str = "new"
    """"new", "old" or "plain"."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings of the model that differ from the shape."""
    is_profiled: bool = False
    process: subprocess.Popen[str] | None = None
    error: str = ""
    milliseconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    build_seconds: float = 0.0
    peak_gib: float = 0.0
    profile: list[dict[str, Any]] = field(default_factory=list)

    def start(self, shape: dict[str, int], options: argparse.Namespace) -> None:
        """Start the process, which builds and compiles the step."""
        source = options.old if self.source == "old" else HERE.parent / "src"
        paths = [str(source), str(HERE), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        environment |= {"TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "1"}
        job = {
            "source": self.source, "shape": shape, "changes": self.changes, "device": options.device,
            "compile": not options.no_compile,
        }  # fmt: skip
        command = [sys.executable, "-P", __file__, "--worker", json.dumps(job)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def send(self, command: str) -> None:
        """Send a command to the process unless it has failed."""
        if self.process is not None and self.process.stdin is not None and not self.error:
            try:
                self.process.stdin.write(command + "\n")
                self.process.stdin.flush()
            except OSError as failure:
                self.error = repr(failure)

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the reply to a command; empty if the process fails or exceeds the deadline."""
        if self.error or self.process is None or self.process.stdout is None:
            return {}
        ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        line = self.process.stdout.readline() if ready else ""
        reply: dict[str, Any] = json.loads(line) if line else {"error": "no reply before the deadline"}
        self.error = str(reply.get("error", ""))
        return {} if self.error else reply

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def make_groups() -> list[list[tuple[str, list[Contestant]]]]:
    """Return the waves; each is a list of groups, a shape with its contestants."""

    def main_group(*more: Contestant) -> list[Contestant]:
        return [
            Contestant("new", is_profiled=True),
            Contestant("old", "old", is_profiled=True),
            Contestant("plain", "plain"),
            *more,
        ]

    first = [
        ("12x768", main_group()),
        (
            "base",
            main_group(
                Contestant("4 kv heads", changes={"num_kv_heads": 4}),
                Contestant("qk norm", changes={"qk_norm": True}),
            ),
        ),
    ]
    second = [
        ("8x1024", main_group()),
        (
            "4x768",
            [
                Contestant("new"),
                Contestant("4 kv heads", changes={"num_kv_heads": 4}),
                Contestant("qk norm", changes={"qk_norm": True}),
            ],
        ),
        (
            "3x1024",
            [
                Contestant("new"),
                Contestant("2 kv heads", changes={"num_kv_heads": 2}),
                Contestant("qk norm", changes={"qk_norm": True}),
            ],
        ),
    ]
    return [first, second]


def measure_group(contestants: list[Contestant], steps: int, rounds: int, deadline: float) -> None:
    """Let the contestants of a group take turns, then profile some of them."""
    for _ in range(rounds):
        for contestant in contestants:
            contestant.send(f"run {steps}")
            reply = contestant.receive(deadline)
            if reply:
                contestant.milliseconds.append(1e3 * reply["seconds"] / steps)
                contestant.losses.append(reply["loss"])
                contestant.peak_gib = reply["peak_gib"]
    for contestant in contestants:
        if contestant.is_profiled:
            contestant.send("profile 3")
            contestant.profile = contestant.receive(deadline).get("rows", [])


def describe(shape: str, contestants: list[Contestant]) -> list[dict[str, Any]]:
    """Return the results of a group; speeds are relative to "new" within the same round."""
    rows = []
    of_label = {contestant.label: contestant for contestant in contestants}
    new = of_label.get("new")
    for contestant in contestants:
        row: dict[str, Any] = {
            "shape": shape,
            "label": contestant.label,
            "ms": statistics.median(contestant.milliseconds) if contestant.milliseconds else None,
            "all_ms": contestant.milliseconds,
            "loss": contestant.losses[0] if contestant.losses else None,
            "build_seconds": contestant.build_seconds,
            "peak_gib": contestant.peak_gib,
            "error": contestant.error,
            "profile": contestant.profile,
        }
        if new is not None and new.milliseconds and contestant.milliseconds:
            pairs = zip(contestant.milliseconds, new.milliseconds, strict=False)
            row["time_over_new"] = statistics.median(theirs / ours for theirs, ours in pairs)
        rows.append(row)
    return rows


def run_waves(options: argparse.Namespace, record: dict[str, Any]) -> None:
    """Measure all groups until the deadline; write the JSON after each."""
    deadline = time.monotonic() + options.seconds
    checks = start_checks(options)
    for wave in make_groups():
        wave = [(shape, group) for shape, group in wave if not options.only or shape in options.only]
        for shape, group in wave:
            sizes = SHAPES[shape] | (TINY if options.tiny else {})
            for contestant in group:
                contestant.start(sizes, options)
                contestant.send("run 3")
        if checks is not None:
            record["checks"] = finish_checks(checks, deadline)
            checks = None
            write(options, record)
        for _, group in wave:
            for contestant in group:
                contestant.build_seconds = contestant.receive(deadline).get("seconds", 0.0)
        for shape, group in wave:
            steps = max(1, options.steps * (3 if shape == "base" else 1) // (2 if shape[0] in "34" else 1))
            measure_group(group, steps, options.rounds, deadline)
            record["rows"] += describe(shape, group)
            write(options, record)
        for _, group in wave:
            for contestant in group:
                contestant.stop()


def start_checks(options: argparse.Namespace) -> subprocess.Popen[str] | None:
    """Start the process that checks and times single kernels."""
    if options.device != "cuda" or options.no_checks:
        return None
    environment = os.environ | {"PYTHONPATH": f"{HERE.parent / 'src'}:{HERE}"}
    command = [sys.executable, "-P", str(HERE / "training_kernel_checks.py")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def finish_checks(process: subprocess.Popen[str], deadline: float) -> list[dict[str, Any]]:
    """Return the rows that the process of the checks printed, one JSON object per line."""
    try:
        output, _ = process.communicate(timeout=max(1.0, min(90.0, deadline - time.monotonic())))
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    rows = []
    for line in output.splitlines():
        if line.startswith("{"):
            rows.append(json.loads(line))
    return rows


def write(options: argparse.Namespace, record: dict[str, Any]) -> None:
    """Write all results so far."""
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def print_results(record: dict[str, Any]) -> None:
    """Print the profiles, then the checks, then the table of all groups."""
    for row in record["rows"]:
        if row["profile"]:
            total = sum(kernel["ms"] for kernel in row["profile"])
            print(f"\n{row['shape']} {row['label']}: {total:.2f} ms on the device")
            for kernel in row["profile"][:25]:
                print(f"  {kernel['ms']:7.3f} {kernel['count']:5.0f} {kernel['name'][:90]}")
    print()
    for check in record["checks"]:
        print(" ".join(f"{key}={value}" for key, value in check.items()))
    print(f"\n{'shape':8} {'contestant':18} {'ms':>8} {'÷ new':>7} {'loss':>9} {'GiB':>6} {'build':>6}")
    for row in record["rows"]:
        if row["ms"] is None:
            print(f"{row['shape']:8} {row['label']:18} failed: {row['error'][:100]}")
            continue
        ratio = f"{row['time_over_new']:7.3f}" if "time_over_new" in row else f"{'':7}"
        print(
            f"{row['shape']:8} {row['label']:18} {row['ms']:8.2f} {ratio} {row['loss']:9.4f}"
            f" {row['peak_gib']:6.1f} {row['build_seconds']:6.0f}"
        )


def serve_commands(job: dict[str, Any]) -> None:
    """Build the step of a contestant and execute the commands of standard input."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print; the pipe carries replies only
    try:
        run, profile = build_step(job)
        for line in sys.stdin:
            command, _, argument = line.strip().partition(" ")
            reply = run(int(argument)) if command == "run" else {"rows": profile(int(argument))}
            print(json.dumps(reply), file=replies, flush=True)
    except Exception:
        print(json.dumps({"error": traceback.format_exc()[-1500:]}), file=replies, flush=True)
        raise


def build_step(job: dict[str, Any]) -> tuple[Any, Any]:
    """Return the functions that run and profile steps of the package that this process imports."""
    import torch

    device, sizes = job["device"], dict(job["shape"])
    batch_size = sizes.pop("batch_size")
    precision = "bf16" if device == "cuda" else "fp32"
    if job["source"] == "plain":
        from model_peers import Shape, plain

        step = plain(Shape(**sizes, device=device, precision=precision, compile=job["compile"]))
    else:
        step = build_our_step(job, sizes, torch.bfloat16 if precision == "bf16" else None)
    number = 0

    def synchronize() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def run(count: int) -> dict[str, float]:
        nonlocal number
        batches = []
        for _ in range(count):
            generator = torch.Generator().manual_seed(number)
            number += 1
            uniform = torch.rand(batch_size, sizes["context_length"] + 1, generator=generator)
            ids = (uniform**3 * sizes["vocab_size"]).long().to(device)
            batches.append((ids[:, :-1].contiguous(), ids[:, 1:].contiguous()))
        synchronize()
        began = time.perf_counter()
        for ids, targets in batches:
            loss = step(ids, targets)
        synchronize()
        seconds = time.perf_counter() - began
        peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
        return {"seconds": seconds, "loss": loss.item(), "peak_gib": peak}

    def profile(count: int) -> list[dict[str, Any]]:
        with torch.profiler.profile() as profiler:
            run(count)
        rows = [
            {
                "name": event.key,
                "ms": event.self_device_time_total / 1000 / count,
                "count": event.count / count,
            }
            for event in profiler.key_averages()
            if event.self_device_time_total
        ]
        return sorted(rows, key=lambda row: -float(row["ms"]))[:60]

    return run, profile


def build_our_step(job: dict[str, Any], sizes: dict[str, Any], dtype: Any) -> Any:
    """Return a step of our model with the settings of `model_peers`, which an old version may not have."""
    import torch

    from bytewright.model import ModelConfig, TransformerLM
    from bytewright.optim.build import build_optimizer
    from bytewright.train.config import OptimizerConfig
    from bytewright.train.step import TrainStep

    torch.manual_seed(0)
    model = TransformerLM(ModelConfig(**sizes, **job["changes"]), compute_dtype=dtype)
    model.to(job["device"])
    config = OptimizerConfig(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    backend = "inductor" if job["compile"] else None
    step = TrainStep(model, build_optimizer(model, config), max_grad_norm=1.0, backend=backend)
    return lambda ids, targets: step([(ids, targets)]).loss


def main() -> None:
    """Measure, and print one table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--old", type=Path, default=HERE.parent / "src", help="package folder of the old version"
    )
    parser.add_argument("--only", nargs="*", help="shapes to measure; by default all")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=300, help="time limit of all measurements")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to test the script")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve_commands(json.loads(options.worker))
        return
    record: dict[str, Any] = {"rows": [], "checks": []}
    run_waves(options, record)
    write(options, record)
    print_results(record)


if __name__ == "__main__":
    main()
