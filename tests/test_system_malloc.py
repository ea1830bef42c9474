"""Freed memory stays with the process while it is kept, and goes back to the system afterwards."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from bytewright.system import keep_freed_memory

MIB = 2**20


COUNT_FAULTS = """
import resource, torch
from bytewright.system import keep_freed_memory
def count_faults(after):  # pages that the system hands out for one more tensor
    for _ in range(after):
        torch.ones(2**26, dtype=torch.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**26, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
with keep_freed_memory():
    kept = count_faults(after=8)
print(kept, count_faults(after=0))
"""
"""Runs in a process of its own: glibc keeps large blocks only in the heap of the main thread."""


@pytest.mark.skipif(sys.platform != "linux", reason="what glibc does")
def test_a_tensor_takes_the_memory_of_the_last_one_while_it_is_kept() -> None:
    pages = 64 * MIB // resource.getpagesize()
    done = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, text=True, check=True)
    kept, afterwards = map(int, done.stdout.split())
    assert kept < pages / 100
    assert afterwards > pages / 600, "back with the system, whatever size its pages have"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_goes_back_to_the_system_at_the_end() -> None:
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


def test_a_c_library_without_the_switch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    steps = []
    with keep_freed_memory():
        steps.append("inside")
    assert steps == ["inside"]
