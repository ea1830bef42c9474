"""Train many short runs on one GPU: a process per model shape, and several runs at a time.

A process compiles the step of its shape once, in a warm-up run of a few steps on a small token file, and then
trains one run after the other. All shapes compile at the same time, while the caller prepares the data. A run
that fails, or whose process dies, is reported, and the others continue. No run starts that would not end
before the deadline, by the speed of the runs of its shape so far.

Processes take turns on a GPU, and each has it for the same time. `shared_gpu` starts NVIDIA's Multi-Process
Service (MPS), with which small kernels of several processes run at the same time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

WARM_UP_STEPS = 6
START_SECONDS = 3.0
"""What a run takes besides its steps: data, initial weights and evaluation."""
MARGIN = 1.2
"""A run starts if this multiple of its expected time is left, since other runs can make it slower."""
TRY_GPU = "import torch; x = torch.ones(512, 512, device='cuda'); assert (x @ x).sum().item() == 2**27"
TRY_SECONDS = 60.0
CLOSE_SECONDS = 5.0
"""After this time, processes that have not ended are killed; it is for all of them together."""

Result = dict[str, Any]
Evaluate = Callable[[Any], Mapping[str, Any]]
"""Returns the measurements of a trained model; is sent to the processes, so it must be picklable."""


@dataclass(frozen=True)
class Task:
    """One run: its config, and the shape whose process trains it."""

    name: str
    shape: str
    config: Any  # TrainConfig
    about: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the result."""
    num_slots: int = 1
    """How many slots the run occupies: more for a large model, so that fewer others run at the same time."""

    @property
    def num_tokens(self) -> int:
        """Tokens to train on."""
        return int(self.config.num_steps * self.config.tokens_per_step)


def work(pipe: Connection, folder: Path, num_threads: int) -> None:
    """Train the runs that arrive through `pipe`, until None arrives."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    import torch
    from rich.console import Console

    from bytewright.train import Run, train
    from bytewright.train.session.engine import CompiledStepCache

    torch.set_num_threads(num_threads)
    engines = CompiledStepCache()
    quiet = Console(file=io.StringIO())
    while (message := pipe.recv()) is not None:
        task, evaluate = message
        try:
            measured: Result = {}

            def measure(model: Any, step: int, measured: Result = measured, evaluate: Any = evaluate) -> str:
                start = time.perf_counter()
                measured |= evaluate(model) if evaluate is not None else {}
                measured["evaluation_seconds"] = time.perf_counter() - start
                return ""

            start = time.perf_counter()
            run = folder / task.name
            config = dataclasses.replace(task.config, sample_every=10**9, save_every=10**9, eval_every=10**9)
            train(config, run, console=quiet, sample=measure, engines=engines, final_checkpoint=False)
            last = [record for record in Run(run).records if "loss" in record][-1]
            measured |= {
                "training_loss": last["loss"],
                "training_seconds": last["seconds"],
                "wall_seconds": time.perf_counter() - start,
            }
            pipe.send((task.name, measured))
        except Exception as error:
            engines.clear()
            traceback.print_exc()
            pipe.send((task.name, {"error": f"{type(error).__name__}: {error}"[:500]}))


def read_earlier(paths: Iterable[Path]) -> list[Result]:
    """Return the complete runs of earlier calls, which need not be repeated, each once."""
    runs = [run for path in paths for run in json.loads(path.read_text())["runs"] if "error" not in run]
    return list({run["name"]: run for run in runs}.values())


def median_speed(runs: Iterable[Result], **wanted: Any) -> float | None:
    """Return the median speed, in tokens per second, of the complete runs that have these fields."""
    speeds = [
        run["tokens"] / run["training_seconds"]
        for run in runs
        if "error" not in run and all(run.get(name) == value for name, value in wanted.items())
    ]
    return statistics.median(speeds) if speeds else None


@contextlib.contextmanager
def shared_gpu(wanted: bool) -> Iterator[bool]:
    """Start MPS if `wanted`, before the first use of the GPU; yield whether it works here."""
    if not wanted:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        os.environ.update(dict.fromkeys(names, folder))
        try:
            works = _start_mps()
            if not works:
                _stop_mps()
                for name in names:
                    del os.environ[name]
            yield works
        finally:
            _stop_mps()
            for name in names:
                os.environ.pop(name, None)


def _start_mps() -> bool:
    """Start the MPS daemon, and let two processes at a time use the GPU through it."""
    try:
        subprocess.run(
            ["nvidia-cuda-mps-control", "-d"],
            check=True,
            timeout=TRY_SECONDS,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        users = [subprocess.Popen([sys.executable, "-c", TRY_GPU]) for _ in range(2)]
        try:
            codes = [user.wait(TRY_SECONDS) for user in users]
        finally:
            for user in users:
                user.kill()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"MPS is not used: {error}", flush=True)
        return False
    servers = _control_mps("get_server_list")
    if any(codes) or not servers.strip().isdigit():
        print(f"MPS is not used: exit codes {codes}, servers {servers!r}", flush=True)
        return False
    return True


def _stop_mps() -> None:
    _control_mps("quit -t 5")


def _control_mps(command: str) -> str:
    """Send a command to the MPS daemon; return its answer, or what failed."""
    try:
        process = subprocess.run(
            ["nvidia-cuda-mps-control"], input=f"{command}\n", capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return process.stdout


def select_new(tasks: Iterable[Task], runs: Iterable[Result]) -> list[Task]:
    """Return the tasks that no complete run of `runs` has, each once."""
    done = {run["name"] for run in runs if "error" not in run}
    return list({task.name: task for task in tasks if task.name not in done}.values())


class Member:
    """A process and what it is doing."""

    def __init__(self, shape: str, folder: Path, num_threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.shape = shape
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, folder, num_threads), daemon=True)
        self.process.start()
        theirs.close()
        self.task: Task | None = None
        self.started = 0.0
        self.is_alive = True
        self.is_warm = False
        self.speed: float | None = None
        """Tokens per second of the last run, while other runs shared the GPU."""


class RunPool:
    """Processes that train runs; `deadline` is a value of `time.monotonic`."""

    def __init__(self, folder: Path, *, num_slots: int, deadline: float, num_threads: int = 2) -> None:
        self.folder, self.num_slots, self.deadline, self.num_threads = (
            folder,
            num_slots,
            deadline,
            num_threads,
        )
        self.members: dict[str, Member] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def warm_up(self, tasks: Iterable[Task]) -> None:
        """Start a process for the shape of each task, and compile it by `WARM_UP_STEPS` of the task."""
        for task in tasks:
            if task.shape not in self.members:
                member = self.members[task.shape] = Member(task.shape, self.folder, self.num_threads)
                budget = dataclasses.replace(task.config.budget, tokens=None, steps=WARM_UP_STEPS)
                config = dataclasses.replace(task.config, budget=budget)
                name = f"warm-up-{task.shape}"
                self._send(member, dataclasses.replace(task, name=name, config=config), None)

    def run(
        self,
        tasks: Sequence[Task],
        evaluate: Evaluate,
        on_result: Callable[[Task, Result], None],
        default_speed: Callable[[Task], float],
    ) -> None:
        """Train the tasks, the first ones first, until all are done or none would end before the deadline."""
        waiting = list(tasks)
        while waiting or any(member.task for member in self.members.values()):
            self._start(waiting, evaluate, default_speed)
            busy = [member for member in self.members.values() if member.task is not None]
            remaining = self.deadline - time.monotonic()
            if not busy or remaining <= 0:
                return
            for ready in wait([member.pipe for member in busy], timeout=min(5.0, remaining)):
                member = next(each for each in busy if each.pipe is ready)
                task, result = self._receive(member)
                if not member.is_alive:
                    waiting = [each for each in waiting if each.shape != member.shape]
                if not task.name.startswith("warm-up"):
                    if "error" not in result:
                        member.speed = task.num_tokens / result["training_seconds"]
                    on_result(task, {**task.about, "name": task.name, **result})
                elif "error" in result:
                    on_result(task, {"name": task.name, **result})

    def _start(self, waiting: list[Task], evaluate: Evaluate, default_speed: Callable[[Task], float]) -> None:
        """Send waiting tasks to free processes; drop those that would end too late."""
        for task in list(waiting):
            used = sum(m.task.num_slots for m in self.members.values() if m.task is not None and m.is_warm)
            member = self.members[task.shape]
            if used >= self.num_slots:
                return
            if not member.is_alive:
                waiting.remove(task)
            elif member.task is None:
                seconds = MARGIN * task.num_tokens / (member.speed or default_speed(task)) + START_SECONDS
                if time.monotonic() + seconds >= self.deadline:
                    waiting.remove(task)
                elif used and used + task.num_slots > self.num_slots:
                    return  # until enough runs have ended; smaller tasks must not overtake this one
                else:
                    waiting.remove(task)
                    self._send(member, task, evaluate)

    def _send(self, member: Member, task: Task, evaluate: Evaluate | None) -> None:
        member.task, member.started = task, time.monotonic()
        member.pipe.send((task, evaluate))

    def _receive(self, member: Member) -> tuple[Task, Result]:
        task = member.task
        assert task is not None
        try:
            _, result = member.pipe.recv()
        except (EOFError, OSError):
            member.is_alive = False
            result = {"error": "the process ended"}
        member.task, member.is_warm = None, True
        return task, result

    def close(self) -> None:
        """End all processes, also those that are training."""
        for member in self.members.values():
            with contextlib.suppress(OSError):
                if member.task is None and member.is_alive:
                    member.pipe.send(None)
                else:
                    member.process.terminate()
        last = time.monotonic() + CLOSE_SECONDS
        for member in self.members.values():
            member.process.join(timeout=max(0.0, last - time.monotonic()))
            if member.process.is_alive():
                member.process.kill()
