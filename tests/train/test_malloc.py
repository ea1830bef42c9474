"""Freed memory stays with the process while it is kept, and goes back to the system afterwards."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch

from bytewright.train.malloc import freed_memory_kept

MIB = 2**20


def count_faults(num_bytes: int, *, after: int) -> int:
    """Count the pages that the system has to hand out for a tensor after so many others of its size.

    The first few may each need some: an aligned block does not always fit where the last one was.
    """
    for _ in range(after):
        torch.ones(num_bytes, dtype=torch.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(num_bytes, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="what glibc does")
def test_a_tensor_takes_the_memory_of_the_last_one_while_it_is_kept() -> None:
    pages = 64 * MIB // resource.getpagesize()
    with freed_memory_kept():
        assert count_faults(64 * MIB, after=8) < pages / 100
    assert count_faults(64 * MIB, after=0) > pages / 600, "back with the system, whatever size its pages have"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_goes_back_to_the_system_at_the_end() -> None:
    script = """
import torch
from pathlib import Path
from bytewright.train.malloc import freed_memory_kept
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20
before = resident()
with freed_memory_kept():
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
    with freed_memory_kept():
        steps.append("inside")
    assert steps == ["inside"]
