"""Start the ranks of a test with torchrun, and read what they did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bytewright.train.checkpoint_list import CheckpointList
from runs import RECIPE, make_ids, write_tokens

PARALLEL = RECIPE.replace("batch_size = 4", "batch_size = 12\naccumulate = 12").replace(
    "[model]", "[parallel]\nthreads = 1\n[model]"
)
RUN_COMMANDS = Path(__file__).parents[1] / "parallel" / "run_commands.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def environment(**changes: str) -> dict[str, str]:
    """Return the variables of a launcher: without those of an enclosing one, with one thread per rank."""
    kept = {name: value for name, value in os.environ.items() if "RANK" not in name and name != "WORLD_SIZE"}
    return {**kept, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **changes}


def torchrun(num_ranks: int, *arguments: str | Path, options: Sequence[str] = ()) -> list[str]:
    """Return the command line that starts ranks of `bytewright` with these arguments."""
    program = ["-m", "bytewright", *map(str, arguments)]
    return [*TORCHRUN, f"--nproc-per-node={num_ranks}", *options, *program]


def run_on_ranks(num_ranks: int, folder: Path, commands: Sequence[Any], timeout: int) -> list[list[Any]]:
    """Run command lines on ranks, one after the other; return exit code and output by rank and command.

    `commands` is a list of argument lists, or a list of such lists for each rank.
    """
    listed, out = folder / f"commands-{num_ranks}.json", folder / f"results-{num_ranks}"
    listed.write_text(json.dumps(commands, default=str))
    launch = [*TORCHRUN, f"--nproc-per-node={num_ranks}", str(RUN_COMMANDS), str(listed), str(out)]
    done = subprocess.run(launch, env=environment(), capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(Path(f"{out}-{rank}.json").read_text()) for rank in range(num_ranks)]


def write_recipe(folder: Path) -> Path:
    """Write a recipe of 12 parts, and its data."""
    text = PARALLEL
    for name, ids in (("train", make_ids(2000)), ("validation", make_ids(500, seed=1))):
        path = write_tokens(folder / f"{name}.npy", ids)
        text = text.replace(f'"{name}.npy"', f'"{path}"')
    (folder / "recipe.toml").write_text(text)
    return folder / "recipe.toml"


def command(folder: Path, name: str, *changes: str) -> list[str]:
    """Return the arguments of the command that trains the recipe in `folder` as the run `name`."""
    arguments = ["train", str(folder / "recipe.toml"), "--out", str(folder / name)]
    return [*arguments, *(["--set", *changes] if changes else [])]


class Launched:
    """A torchrun process and its ranks; use it as a context manager, which kills all of them."""

    def __init__(
        self, num_ranks: int, run: Path, *arguments: str | Path, options: Sequence[str] = ()
    ) -> None:
        self.run = run
        self.process = subprocess.Popen(
            torchrun(num_ranks, *arguments, options=options),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_checkpoint(self, timeout: float, after: int = 0) -> None:
        """Wait until the run has a checkpoint after the step `after`, or has ended."""
        deadline = time.monotonic() + timeout
        while max(CheckpointList(self.run / "checkpoints").steps(), default=0) <= after:
            if self.process.poll() is not None:
                return
            assert time.monotonic() < deadline, "no checkpoint"
            time.sleep(0.02)

    def pids(self) -> dict[int, int]:
        """Return the process of each rank; they are children of torchrun in sessions of their own."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if parent != str(self.process.pid):
                    continue
                variables = (entry / "environ").read_text().split("\0")
                found[int(next(text[5:] for text in variables if text.startswith("RANK=")))] = int(entry.name)
            except (OSError, StopIteration):  # not a process, or it has ended
                continue
        return found

    def kill(self, rank: int) -> None:
        """Kill a rank."""
        os.kill(self.pids()[rank], signal.SIGKILL)

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids().values() if self.process.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()
