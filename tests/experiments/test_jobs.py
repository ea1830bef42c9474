"""Runs that go on at once share the cores that there are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bytewright.experiments.jobs import run_at_once

SAY = [sys.executable, "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"]


def threads_of(num_commands: int, num_jobs: int, logs: Path) -> list[str]:
    """Run commands that say how many threads they have been given."""
    said: list[str] = []
    commands = {f"c{number}": SAY for number in range(num_commands)}
    assert run_at_once(commands, num_jobs, logs, lambda name, code, words: said.append(words)) == 0
    return said


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no way here to be given fewer cores")
def test_the_usable_cores_are_divided_by_the_number_of_jobs(tmp_path: Path) -> None:
    usable = os.sched_getaffinity(0)
    share = str(max(1, len(usable) // 2))
    assert threads_of(3, 2, tmp_path) == [share] * 3
    assert threads_of(1, 2, tmp_path) == [share]
    try:
        os.sched_setaffinity(0, {min(usable)})
        assert threads_of(1, 1, tmp_path) == ["1"]
    finally:
        os.sched_setaffinity(0, usable)
