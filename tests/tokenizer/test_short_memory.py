"""When memory runs out, the native core raises MemoryError; it does not panic, abort or deadlock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS and /proc")


@pytest.mark.parametrize("num_limits", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_every_operation_raises_memory_error_and_works_again(num_limits: int) -> None:
    # With RUST_BACKTRACE=1 the standard library's report of a panic deadlocks if memory is short.
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("short_memory.py")), str(num_limits)],
        env=os.environ | {"RUST_BACKTRACE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    outcomes: dict[str, Counter[str]] = {}
    for line in ran.stdout.splitlines():
        name, _, outcome = line.split("\t")
        outcomes.setdefault(name, Counter())[outcome] += 1
    assert "panicked" not in ran.stderr
    assert outcomes
    for name, counts in outcomes.items():
        assert set(counts) == {"done", "MemoryError"}, name
