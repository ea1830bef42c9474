"""How much memory this machine has, and how much of it a process here may use.

A container is often allowed less than the machine has, and whoever takes more is killed without a word: what
plans by memory must plan by `usable_memory`. Knows nothing of GPUs, and does not need torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux tells the limit of a container: control groups of version 2, and of version 1."""


def total_memory() -> int:
    """Bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_memory(limits: Sequence[Path] = LIMITS) -> int:
    """Bytes of memory that may be used here: those of the machine, or as many as its container is allowed."""
    return min([total_memory(), *(limit for path in limits if (limit := _read(path)) is not None)])


def _read(path: Path) -> int | None:
    try:
        words = path.read_text().strip()
    except OSError:  # no container, no Linux, or not for our eyes
        return None
    return int(words) if words.isdecimal() else None  # "max": no limit
