"""Memory limits, the memory of this process, the switches of malloc, and threads in little memory."""

from __future__ import annotations

import mmap
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from bytewright.account.devices import measure_device
from bytewright.system import (
    FIRST_WITH_CACHE,
    FIRST_WITH_MERGING,
    GPU_DRIVER,
    TUNABLES,
    WITHOUT_CACHES,
    Background,
    SampledPeakMemory,
    _glibc_version,
    keep_freed_memory,
    process_memory,
    restart_without_malloc_caches,
    return_freed_memory,
    total_memory,
    usable_memory,
)
from conftest import RunCommand

MIB = 2**20
linux_only = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")


@pytest.mark.parametrize(
    ("words", "expected"),
    [("1000000\n", 1_000_000), ("max\n", None), ("9223372036854771712\n", None), ("", None)],
)
def test_a_lower_limit_of_a_container_is_used(tmp_path: Path, words: str, expected: int | None) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(words)
    assert usable_memory([tmp_path / "missing", limit]) == (expected or total_memory())


def test_account_and_doctor_use_the_limit_of_the_container(
    monkeypatch: pytest.MonkeyPatch, run: RunCommand
) -> None:
    monkeypatch.setattr("bytewright.account.devices.usable_memory", lambda: 123_000_000)
    monkeypatch.setattr("bytewright.account.devices.measure_matmul", lambda *_, **__: 1e9)
    monkeypatch.setattr("bytewright.account.devices._measure_copy", lambda _: 1e9)
    assert measure_device("cpu").memory_bytes == 123_000_000
    monkeypatch.setattr("bytewright.cli.doctor.usable_memory", lambda: 123_000_000)
    assert "limited to 0.1 GB here" in run("doctor").out


def test_functions_run_on_other_threads_and_futures_raise_their_exceptions() -> None:
    both_run = threading.Barrier(2, timeout=60)  # two functions that wait for each other need two threads
    with Background(2) as background:
        futures = [background.submit(both_run.wait) for _ in range(2)]
        assert sorted(future.result() for future in futures) == [0, 1]
        with pytest.raises(ZeroDivisionError):
            background.submit(divmod, 1, 0).result()
        assert background.submit(threading.current_thread).result() is not threading.current_thread()


def test_functions_run_in_submit_if_there_is_no_memory_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bytewright.system.ROOM_FOR_THREAD", 2**60)
    with Background(2) as background:
        assert background.submit(threading.current_thread).result() is threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            background.submit(divmod, 1, 0).result()


def test_functions_that_have_not_started_are_dropped_at_exit() -> None:
    done: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go.wait(60)
        done.append(1)

    with Background(1) as background:
        background.submit(wait)
        background.submit(done.append, 2)
        begun.wait(60)
        threading.Timer(0.05, go.set).start()
    assert done == [1]


@linux_only
def test_the_peak_includes_private_memory_that_was_freed() -> None:
    peak = SampledPeakMemory()
    before = process_memory()
    with mmap.mmap(-1, 16 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as ours:
        for _ in range(len(ours) // 4096):
            ours.write(b"x" * 4096)
        assert process_memory() - before > 12 * MIB
        peak.sample()
    assert process_memory() - before < 12 * MIB
    assert peak.peak() - before > 12 * MIB, "freed memory is in the peak"


@linux_only
def test_pages_of_a_mapped_file_are_not_private_memory(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(16 * MIB))
    before = process_memory()
    mapped = np.memmap(tmp_path / "large", dtype=np.uint8, mode="r")
    assert int(mapped.max()) == 255  # every page has been read
    assert process_memory() - before < 8 * MIB


def test_without_proc_the_largest_resident_size_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bytewright.system._STATUS", tmp_path / "missing")
    assert process_memory() > MIB


COUNT_FAULTS = """
import resource, torch
from bytewright.system import keep_freed_memory
def count_faults(after):  # pages that the system provides for one more tensor
    for _ in range(after):
        torch.ones(2**26, dtype=torch.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**26, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
with keep_freed_memory():
    kept = count_faults(after=8)
print(kept, count_faults(after=0))
"""
"""For a separate process: glibc keeps large blocks only in the heap of the main thread."""


@linux_only
def test_a_tensor_reuses_the_memory_of_the_last_one_while_it_is_kept() -> None:
    pages = 64 * MIB // resource.getpagesize()
    # Before glibc 2.39, the caches of malloc prevent that aligned blocks are merged, at random.
    environment = {**os.environ, TUNABLES: WITHOUT_CACHES}
    done = subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS], env=environment, capture_output=True, text=True, check=True
    )
    kept, afterwards = map(int, done.stdout.split())
    assert kept < pages / 100
    assert afterwards > pages / 600, "returned to the system, for any page size"


@linux_only
def test_kept_memory_is_returned_to_the_system_at_the_end() -> None:
    script = """
import torch
from pathlib import Path
from bytewright.system import keep_freed_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20
before = resident()
with keep_freed_memory():
    torch.ones(2**28, dtype=torch.uint8)
    kept = resident() - before
print(kept, resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    kept, left = map(int, done.stdout.split())
    assert kept >= 256
    assert left < 64


@linux_only
def test_other_work_does_not_add_its_memory_to_what_is_kept() -> None:
    script = """
import torch
from pathlib import Path
from bytewright.system import keep_freed_memory, return_freed_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20
before = resident()
with keep_freed_memory():
    torch.ones(2**28, dtype=torch.uint8)
    with return_freed_memory():
        released = resident() - before
        torch.ones(2**28, dtype=torch.uint8)
        freed = resident() - before
    torch.ones(2**28, dtype=torch.uint8)
    kept = resident() - before
print(released, freed, kept)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    released, freed, kept = map(int, done.stdout.split())
    assert released < 64
    assert freed < 64
    assert kept >= 256


RESTART = """
import os, sys
from pathlib import Path
from bytewright import system
system._glibc_version = lambda: {version}
system.GPU_DRIVER = Path(sys.argv[1])
print("began with", os.environ.get(system.TUNABLES), flush=True)
system.restart_without_malloc_caches()
print("ran", os.getpid(), sys.argv[2], os.environ.get(system.TUNABLES))
"""


def run_restart(
    *arguments: str, version: tuple[int, ...] | None, **environment: str
) -> tuple[list[str], int]:
    """Return the lines of a process that restarts itself if it must, and its id."""
    command = [sys.executable, "-c", RESTART.format(version=version), *arguments]
    clean = {name: value for name, value in os.environ.items() if name != TUNABLES} | environment
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean)
    lines = process.communicate()[0].splitlines()
    assert process.returncode == 0
    return lines, process.pid


def test_a_process_restarts_once_without_malloc_caches(tmp_path: Path) -> None:
    for version in ((2, 26), (2, 36), (2, 38)):
        lines, pid = run_restart(str(tmp_path / "no GPU"), "two words", version=version)
        # The id and the arguments are the same, and child processes do not inherit the setting.
        assert lines == ["began with None", f"began with {WITHOUT_CACHES}", f"ran {pid} two words None"]


def test_a_process_does_not_restart_if_that_is_not_needed(tmp_path: Path) -> None:
    gpu = tmp_path / "GPU"
    gpu.touch()
    for version, place in ((None, "no GPU"), ((2, 25), "no GPU"), ((2, 39), "no GPU"), ((2, 36), "GPU")):
        lines, pid = run_restart(str(tmp_path / place), "x", version=version)
        assert lines == ["began with None", f"ran {pid} x None"]


def test_settings_of_malloc_by_the_user_are_kept(tmp_path: Path) -> None:
    given = "glibc.malloc.tcache_count=3"
    lines, pid = run_restart(str(tmp_path / "no GPU"), "x", version=(2, 36), GLIBC_TUNABLES=given)
    assert lines == [f"began with {given}", f"ran {pid} x {given}"]


def test_a_process_that_does_not_know_its_interpreter_does_not_restart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`sys.executable` is empty if Python was started under another name, and None in some applications."""
    monkeypatch.setattr("bytewright.system._glibc_version", lambda: (2, 36))
    monkeypatch.setattr("bytewright.system.GPU_DRIVER", tmp_path / "no GPU")
    monkeypatch.delenv(TUNABLES, raising=False)
    for unknown in ("", None):
        monkeypatch.setattr("sys.executable", unknown)
        restart_without_malloc_caches()


TAKE_STEPS = """
import os, sys
from bytewright.system import keep_freed_memory, restart_without_malloc_caches
restart_without_malloc_caches()
import torch
from bytewright.train.recipe import read_recipe
from bytewright.train.session.engine import StepEngine
def private():
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon:"))
config = read_recipe(sys.argv[1])
engine = StepEngine(config, torch.device("cpu"))
ids = torch.zeros(config.batch_size, config.model.context_length, dtype=torch.long)
before = private()
with keep_freed_memory():
    for _ in range(4):
        engine.step([(ids, ids)])
    print(private() - before)
"""


@linux_only
def test_steps_take_less_memory_without_malloc_caches() -> None:
    """Measured for tiny.toml with glibc 2.36: 74 MB, and 93 to 100 MB with the caches."""
    version = _glibc_version()
    if version is None or not FIRST_WITH_CACHE <= version < FIRST_WITH_MERGING or GPU_DRIVER.exists():
        pytest.skip("this process is never restarted: another C library, or a GPU")
    recipe = Path(__file__).parents[1] / "recipes" / "tiny.toml"
    clean = {name: value for name, value in os.environ.items() if name != TUNABLES}
    found = []
    for environment in (clean, {**clean, TUNABLES: "glibc.malloc.tcache_count=7"}):  # 7 is the default
        command = [sys.executable, "-c", TAKE_STEPS, str(recipe)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        found.append(int(done.stdout))
    without_caches, with_caches = found
    assert without_caches < 0.95 * with_caches


def test_a_c_library_without_mallopt_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    steps = []
    with keep_freed_memory(), return_freed_memory():
        steps.append("inside")
    assert steps == ["inside"]
