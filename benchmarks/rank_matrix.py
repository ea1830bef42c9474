"""Compare all bits of training on 1, 2, 4 and 8 ranks, and of runs that are killed 20 times. CPU only.

    python benchmarks/rank_matrix.py --json results/matrix.json                  # 16 cores: eight minutes
    python benchmarks/rank_matrix.py --kills 0 --strategies shard --ranks 8 1   # jobs in this order
    python benchmarks/rank_matrix.py --steps 6 --kills 2 --ranks 1 2 --compile off --cores 2       # to try it

The matrix: AdamW and Muon, fp32 and bf16, eager and compiled, replicated and sharded, each for 200 steps of
eight parts with clipping. The SHA-256 of weights, optimizer state and metrics must not depend on the number
of ranks. The kills: one run for each strategy is killed at random moments, and every session has another
number of ranks. It must equal an uninterrupted run of one process. All runs train on random ids. Jobs
run next to each other as far as there are cores. A job that fails, or that the time limit stops, is listed;
the others count. The results are written after each run. The exit code is 1 unless everything is identical.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from harness import describe_machine, installed_versions, source_commit, wide_console, write_report
from rich.console import Console
from rich.table import Table

from bytewright.train import resume, train
from bytewright.train.checkpoint_list import CheckpointList
from bytewright.train.recipe import read_config
from parallel import digest, write_config, write_ids

SHAPE = (
    "model.vocab_size=512",
    "model.d_model=64",
    "model.d_ff=192",
    "model.num_layers=2",
    "model.num_heads=4",
    "model.context_length=32",
    "batch_size=16",
    "accumulate=8",
    "device=cpu",
    "parallel.threads=1",
    "eval_tokens=2048",
)
STRATEGIES = ("replicate", "shard")
STARTING_SECONDS = 8.0
"""A quarter of the kills come within this time after the start, whether or not a step was taken."""


@dataclass
class Jobs:
    """Runs processes next to each other, as far as there are cores and time."""

    cores: int
    deadline: float
    folder: Path
    errors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._free = self.cores
        self._changed = threading.Condition()
        self._waiting: list[object] = []

    @contextlib.contextmanager
    def claim(self, wanted: int) -> Iterator[None]:
        """Wait for this number of cores; a job that needs more than there are gets all of them.

        Jobs get their cores in the order of their claims, so that one for many cores is not overtaken.
        """
        wanted, own = min(wanted, self.cores), object()
        with self._changed:
            self._waiting.append(own)
            self._changed.wait_for(lambda: self._waiting[0] is own and self._free >= wanted)
            self._waiting.remove(own)
            self._free -= wanted
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()

    @property
    def seconds_left(self) -> float:
        """How much of the time limit is left."""
        return max(0.0, self.deadline - time.monotonic())

    def start(self, num_ranks: int | None, *arguments: str) -> subprocess.Popen[str]:
        """Start a worker in one process (None), or on the ranks of torchrun."""
        command = [sys.executable]
        if num_ranks is not None:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
        changes = {
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "cache"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "CUDA_VISIBLE_DEVICES": "",
        }
        log = (self.folder / f"{Path(arguments[0]).name}.log").open("a")
        return subprocess.Popen(
            [*command, __file__, "--worker", *arguments],
            stdout=log,
            stderr=log,
            text=True,
            env=os.environ | changes,
        )

    def finish(self, process: subprocess.Popen[str]) -> bool:
        """Wait for a worker until the time is over, then kill it; return whether it succeeded."""
        try:
            return process.wait(self.seconds_left) == 0
        except subprocess.TimeoutExpired:
            kill(process, everything=True)
            return False


def main() -> int:
    """Run all jobs, print the tables and write the results."""
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as name:
        jobs = Jobs(options.cores, time.monotonic() + 60 * options.minutes, Path(name))
        write_ids(jobs.folder / "tokens.npy", vocab_size=512, num_tokens=200_000)
        with ThreadPoolExecutor(64) as pool:
            strategies = options.strategies if options.kills else ()
            killed = [pool.submit(kill_often, jobs, strategy, options) for strategy in strategies]
            trained = [pool.submit(train_group, jobs, *job, options) for job in matrix_jobs(options)]
            about = {
                "machine": describe_machine(),
                "versions": installed_versions(["torch", "numpy"]),
                "commit": source_commit(),
                "settings": {key: str(value) for key, value in vars(options).items()},
            }
            num_done = 0
            jobs_in_progress: list[Future[Any]] = [*killed, *trained]
            while wait(jobs_in_progress, timeout=2.0).not_done:
                if (found := len(list(jobs.folder.glob("*.done")))) > num_done:
                    num_done = found
                    print(f"{jobs.seconds_left:.0f} s left: {num_done} runs are done", flush=True)
                    write_results(options.json, about, collect(jobs, [], options))
        results = collect(jobs, [one.result() for one in killed], options)
    write_results(options.json, about, results)
    print_tables(results["matrix"], results["kills"], results["errors"], options)
    return 0 if results["is_same"] else 1


def collect(jobs: Jobs, kills: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Return the digests of the runs that are done, and what failed."""
    errors = dict(jobs.errors)
    matrix = [compare_kind(jobs, kind, options, errors) for kind in kinds_of(options)]
    is_same = all(row["is_same"] and row["is_complete"] for row in [*matrix, *kills])
    return {"is_same": is_same, "matrix": matrix, "kills": kills, "errors": dict(sorted(errors.items()))}


def write_results(path: Path | None, about: dict[str, Any], results: dict[str, Any]) -> None:
    """Write the results with their machine, if a file was given."""
    if path is not None:
        write_report(path, {**about, **results})


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the results to this JSON file")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--compile", nargs="+", choices=["off", "on"], default=["on", "off"])
    parser.add_argument("--kills", type=int, default=20, help="kills of each strategy")
    parser.add_argument("--kill-steps", type=int, default=1200, help="steps of the runs that are killed")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--minutes", type=float, default=8.0, help="when to stop what is not finished")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    return parser.parse_args()


Kind = tuple[str, str, str, str]
"""Strategy, compilation, optimizer and precision."""


def kinds_of(options: argparse.Namespace) -> list[Kind]:
    """Return all kinds of runs."""
    strategies, compiled = sorted(options.strategies), sorted(options.compile)
    return list(itertools.product(strategies, compiled, ("adamw", "muon"), ("fp32", "bf16")))


def matrix_jobs(options: argparse.Namespace) -> list[tuple[int, list[Kind]]]:
    """Return the runs of each process: those of one strategy and compilation, on a number of ranks.

    The order is that of the options. By default compiled runs, which take longest, come first.
    """
    return [
        (num_ranks, [kind for kind in kinds_of(options) if kind[:2] == (strategy, compiled)])
        for compiled, num_ranks, strategy in itertools.product(
            options.compile, options.ranks, options.strategies
        )
    ]


def name_of(kind: Kind, num_ranks: int) -> str:
    """Return the name of a run."""
    return f"{'-'.join(kind)}-{num_ranks}"


def train_group(jobs: Jobs, num_ranks: int, kinds: Sequence[Kind], options: argparse.Namespace) -> None:
    """Train runs of several kinds on a number of ranks, one after the other in the same processes."""
    names = []
    for kind in kinds:
        strategy, compiled, optimizer, precision = kind
        changes = [*SHAPE, f"parallel.strategy={strategy}", f"compile={compiled}", f"precision={precision}"]
        changes += [f"optimizer.name={optimizer}", f"budget.steps={options.steps}", "log_every=1"]
        changes += [f"save_every={options.steps}", f"eval_every={options.steps // 2}"]
        names.append(name_of(kind, num_ranks))
        write_config(jobs.folder, names[-1], changes)
    with jobs.claim(num_ranks):
        process = jobs.start(None if num_ranks == 1 else num_ranks, *(str(jobs.folder / n) for n in names))
        is_done = jobs.finish(process)
    if not is_done:
        jobs.errors[f"{names[0]} and others"] = (jobs.folder / f"{names[0]}.log").read_text()[-300:]
    for name in names:
        if (failure := jobs.folder / f"{name}.error").exists():
            jobs.errors[name] = failure.read_text()


def kill_often(jobs: Jobs, strategy: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train a run that is killed again and again, and one that is not; return how they compare."""
    changes = [*SHAPE, f"parallel.strategy={strategy}", f"budget.steps={options.kill_steps}"]
    changes += ["save_every=10", "eval_every=100", "log_every=5", "keep_last=2", "precision=fp32"]
    changes += ["compile=off"]
    whole, run = (jobs.folder / f"{name}-{strategy}" for name in ("whole", "killed"))
    for path in (whole, run):
        write_config(jobs.folder, path.name, changes)
    with jobs.claim(1):
        jobs.finish(jobs.start(None, str(whole)))
    chance, num_ranks = random.Random(options.seed), 0
    sessions: list[dict[str, Any]] = []
    while len(sessions) < options.kills and jobs.seconds_left > 60:
        others = [number for number in options.ranks if number != num_ranks]
        num_ranks = chance.choice(others or options.ranks)
        with jobs.claim(num_ranks):
            sessions.append(kill_once(jobs, run, num_ranks, chance))
    num_ranks = options.ranks[-1]
    with jobs.claim(num_ranks):
        is_complete = jobs.finish(jobs.start(num_ranks, str(run)))
    is_same = bool(is_complete and digest(run) == digest(whole))
    for path in (whole, run):
        if (failure := jobs.folder / f"{path.name}.error").exists():
            jobs.errors[path.name] = failure.read_text()
    return {
        "strategy": strategy,
        "is_same": is_same,
        "is_complete": is_complete and len(sessions) == options.kills,
        "kills": sessions,
    }


def kill_once(jobs: Jobs, run: Path, num_ranks: int, chance: random.Random) -> dict[str, Any]:
    """Start or resume a run on ranks, and kill one of them or all at a random moment."""
    before = last_step(run)
    process = jobs.start(num_ranks, str(run))
    if chance.random() < 0.25:
        time.sleep(chance.uniform(0.0, STARTING_SECONDS))
    else:
        while last_step(run) <= before and process.poll() is None and jobs.seconds_left:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.4))
    everything = chance.random() < 0.5
    victim = kill(process, everything=everything, chance=chance)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(min(60.0, jobs.seconds_left))
    kill(process, everything=True)
    return {"ranks": num_ranks, "victim": victim, "before": before, "after": last_step(run)}


def last_step(run: Path) -> int:
    """Return the step of the last checkpoint of a run."""
    return max(CheckpointList(run / "checkpoints").steps(), default=0)


def kill(process: subprocess.Popen[str], *, everything: bool, chance: random.Random | None = None) -> str:
    """Kill (SIGKILL) a random rank of torchrun, or all of them with torchrun itself; return which."""
    children = find_children(process.pid)
    if not everything and children and chance is not None:
        number = chance.randrange(len(children))
        victims, name = [children[number]], f"process {number}"
    else:
        victims, name = [process.pid, *children], "all"
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if everything:
        process.wait()
    return name


def find_children(pid: int) -> list[int]:
    """Return the children of a process: the ranks, if it is torchrun."""
    try:
        return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def compare_kind(
    jobs: Jobs, kind: Kind, options: argparse.Namespace, errors: dict[str, str]
) -> dict[str, Any]:
    """Return the digests of a kind on every number of ranks, and whether they are equal."""
    digests: dict[str, Any] = {}
    for num_ranks in options.ranks:
        run = jobs.folder / name_of(kind, num_ranks)
        is_done = run.with_name(f"{run.name}.done").exists()
        digests[str(num_ranks)] = digest(run) if is_done else None
        if not is_done:
            errors.setdefault(run.name, "not finished")
    every = [one for one in digests.values() if one is not None]
    return {
        "kind": list(kind),
        "is_same": bool(every) and every == every[:1] * len(every),
        "is_complete": None not in digests.values(),
        **digests,
    }


def print_tables(
    matrix: Sequence[dict[str, Any]],
    kills: Sequence[dict[str, Any]],
    errors: dict[str, str],
    options: argparse.Namespace,
) -> None:
    """Print one row per kind and one per killed run."""
    console = wide_console()
    for name, text in errors.items():
        console.print(f"{name}: {text[-300:]}", style="red", markup=False)
    table = Table(title=f"SHA-256 of the weights after {options.steps} steps; bits: also state and metrics")
    for heading in ("strategy", "compile", "optimizer", "precision", *(f"{n} ranks" for n in options.ranks)):
        table.add_column(heading)
    table.add_column("bits")
    for row in matrix:
        digests = [row[str(num_ranks)] for num_ranks in options.ranks]
        shown = ["-" if one is None else one["weights"][:10] for one in digests]
        table.add_row(*row["kind"], *shown, format_bits(row))
    console.print(table)
    table = Table(title="killed runs against an uninterrupted run of one process")
    for heading in ("strategy", "kills", "ranks of the sessions", "bits"):
        table.add_column(heading)
    for row in kills:
        ranks = " ".join(str(session["ranks"]) for session in row["kills"])
        table.add_row(row["strategy"], str(len(row["kills"])), ranks, format_bits(row))
    console.print(table)


def format_bits(row: dict[str, Any]) -> str:
    """Return whether the runs of a row are equal, as far as they are finished."""
    if row["is_complete"]:
        return "identical" if row["is_same"] else "DIFFERENT"
    return "identical, incomplete" if row["is_same"] else "incomplete"


def work(paths: Sequence[Path]) -> int:
    """Train or continue the runs at `paths`, each with the config of the same name; return the exit code."""
    code = 0
    for path in paths:
        try:
            if (path / "config.json").exists():
                resume(path, console=Console(quiet=True))
            else:
                train(read_config(path.parent / f"{path.name}.json"), path, console=Console(quiet=True))
            if os.environ.get("RANK", "0") == "0":
                (path.parent / f"{path.name}.done").touch()
        except Exception as error:
            code = 1
            if os.environ.get("RANK", "0") == "0":
                (path.parent / f"{path.name}.error").write_text(f"{type(error).__name__}: {error}")
        torch.compiler.reset()
    return code


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        sys.exit(work([Path(name) for name in sys.argv[2:]]))
    sys.exit(main())
