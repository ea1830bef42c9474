"""Train in child processes that are killed, and resume each time; `test_resume` runs this script.

Each child is forked, so torch and its compiler, which a run imports, are loaded once. It is killed by SIGKILL
before its k-th disk operation, during its k-th forward pass, or after k milliseconds.

Usage: `kill_and_resume.py FOLDER SEED NUM_KILLS KIND…` trains the config in `FOLDER/config.json` twice:
`FOLDER/whole` without interruption and `FOLDER/killed` with kills. Both start from the weights in
`FOLDER/init`, if it exists. It prints the kills.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo
from rich.console import Console
from torch import Tensor

from bytewright.model import TransformerLM, language_model_loss
from bytewright.storage import filesystem
from bytewright.train import resume, train
from bytewright.train.recipe import read_config

LARGEST_K = {"operation": 45, "forward": 14, "millisecond": 200}


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_session(run: Path, kind: str | None, k: int) -> None:
    """Start or resume the run; kill this process at the k-th event of a kind, or never if it is None."""
    left = k

    def count(event: str) -> None:
        nonlocal left
        if event == kind:
            left -= 1
            if left == 0:
                kill_this_process()

    def loss(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        value = language_model_loss(model, ids, targets)
        count("forward")
        return value

    filesystem.before_operation = lambda *_: count("operation")
    console = Console(file=io.StringIO())
    if (run / "config.json").exists():
        resume(run, console=console, loss=loss)
    else:
        init = run.parent / "init" if (run.parent / "init").exists() else None
        train(read_config(run.parent / "config.json"), run, init=init, console=console, loss=loss)


def fork_session(run: Path, kind: str | None, k: int) -> int:
    """Run a session in a child process; return the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            run_session(run, kind, k)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if kind == "millisecond":
        time.sleep(k / 1000)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"the session failed with {os.WEXITSTATUS(status)} after {kind} {k}")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def main() -> None:
    """Train once without interruption, then once with kills and resumes."""
    folder, seed, num_kills, *kinds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
    torch.set_num_threads(1)  # a forked child does not have the threads of its parent
    chance = random.Random(seed)
    killed: list[str] = []
    fork_session(folder / "whole", None, 0)
    while len(killed) < num_kills:
        kind = kinds[len(killed) % len(kinds)]
        k = chance.randint(1, LARGEST_K[kind])
        if fork_session(folder / "killed", kind, k) == 0:
            break  # it finished before it could be killed
        killed.append(f"{kind} {k}")
    if fork_session(folder / "killed", None, 0):
        sys.exit("the last session was killed from outside")
    print(json.dumps(killed))


if __name__ == "__main__":
    main()
