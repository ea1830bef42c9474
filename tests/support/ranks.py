"""Start the ranks of a test with torchrun, and read what they did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
