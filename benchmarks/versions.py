"""Compare the speed of training and generation of several versions of the source.

    git worktree add ../before COMMIT
    python benchmarks/versions.py --versions ../before . . --device cuda --precision bf16 --json versions.json

A version is the root of a checkout. Each version runs in its own process, with its own package and its own
`model_peers.py`. All processes are built first. Then they take turns: only one of them computes at a time.
Naming a version twice shows the noise: the ratio of equal code differs from 1 only by chance. The table has
the median time per operation and, over the rounds, the median and the quartiles of its ratio to the first
version within the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NEW_TOKENS = 200
STEPS_PER_TURN = 40


def build_operations(device: str, precision: str, batch_size: int) -> dict[str, Callable[[], None]]:
    """Return the operations of the version that this process imports."""
    import torch
    from model_peers import Shape, ours

    from bytewright.generate import SamplingConfig
    from bytewright.generate.generator import Generator
    from bytewright.model import TransformerLM

    shape = Shape(device=device, precision=precision, compile=device == "cuda")
    step = ours(shape)
    draw = torch.Generator().manual_seed(0)
    size = (batch_size, shape.context_length + 1)
    window = torch.randint(shape.vocab_size, size, generator=draw).to(device)
    ids, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()
    dtype = torch.bfloat16 if shape.is_bf16 else None
    model = TransformerLM(shape.model_config(), compute_dtype=dtype).to(device)
    sampling = SamplingConfig(max_new_tokens=NEW_TOKENS, temperature=0.0)

    def train() -> None:
        for _ in range(STEPS_PER_TURN if device == "cuda" else 1):
            step(ids, targets)
        if device == "cuda":
            torch.cuda.synchronize()

    def generate(num_prompts: int) -> Callable[[], None]:
        prompts = [window[0, :16].tolist()] * num_prompts
        generator = Generator(model, num_prompts)

        def run() -> None:
            generator.generate(prompts, sampling)

        return run

    return {
        f"training, batch {batch_size}": train,
        f"generation, batch 1, {NEW_TOKENS} tokens": generate(1),
        f"generation, batch 32, {NEW_TOKENS} tokens": generate(32),
    }


def run_worker(device: str, precision: str, batch_size: int) -> None:
    """Time the operation that each line of standard input names."""
    operations = build_operations(device, precision, batch_size)
    for operation in operations.values():
        for _ in range(3):
            operation()
    print(json.dumps(list(operations)), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        operations[line.strip()]()
        print(time.perf_counter() - start, flush=True)


def start_version(root: Path, worker: list[str]) -> subprocess.Popen[str]:
    """Start a process that imports the package and the contestants of this checkout."""
    paths = [str(root / "src"), str(root / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-P", __file__, "--worker", *worker]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def commit_of(root: Path) -> str:
    """Return the short name of the commit of a checkout; "?" for a folder without a repository."""
    command = ["git", "-C", str(root), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "?"


def request(process: subprocess.Popen[str], operation: str) -> float:
    """Return the seconds that a version needs for an operation."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(operation + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def compare(processes: list[subprocess.Popen[str]], rounds: int) -> list[dict[str, Any]]:
    """Run all operations of all versions in turns; return a row per operation and version."""
    names: list[str] = []
    for process in processes:
        assert process.stdout is not None
        names = json.loads(process.stdout.readline())
    rows = []
    for name in names:
        times = [[request(process, name) for process in processes] for _ in range(rounds)]
        for number in range(len(processes)):
            ratios = [of_round[number] / of_round[0] for of_round in times]
            low, middle, high = statistics.quantiles(ratios, n=4)
            rows.append(
                {
                    "operation": name,
                    "version": number,
                    "milliseconds": 1e3 * statistics.median(of_round[number] for of_round in times),
                    "ratio": middle,
                    "quartiles": [low, high],
                }
            )
    return rows


def main() -> None:
    """Compare the versions that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--versions", nargs="+", type=Path, help="roots of checkouts; the first one is 1.0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=3, metavar=("DEVICE", "PRECISION", "BATCH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        device, precision, batch_size = options.worker
        run_worker(device, precision, int(batch_size))
        return
    worker = [options.device, options.precision, str(options.batch_size)]
    processes = [start_version(root, worker) for root in options.versions]
    rows = compare(processes, options.rounds)
    for process in processes:
        process.communicate()
    for row in rows:
        low, high = row["quartiles"]
        print(
            f"{row['operation']:34} version {row['version']}  {row['milliseconds']:9.2f} ms"
            f"  ratio {row['ratio']:.3f}  quartiles {low:.3f} to {high:.3f}"
        )
    if options.json:
        # Workers do not import this: the module of an older version may have other functions.
        from harness import describe_machine, installed_versions, write_report

        report = {
            "machine": describe_machine(),
            "versions": installed_versions(["torch", "numpy"]),
            "commits": [commit_of(root) for root in options.versions],
            "rounds": options.rounds,
            "device": options.device,
            "precision": options.precision,
            "rows": rows,
        }
        write_report(options.json, report)


if __name__ == "__main__":
    main()
