"""Freed memory, kept by the process while a loop runs.

glibc's malloc asks the system for every large block and gives it back as soon as it is freed. A training step
on the CPU frees gigabytes of tensors and the next one asks for as much again, and the system clears every
page before it hands it out: on two cores that took a fifth of the time of the base experiment's step. While
kept, the process holds on to what it needed at its peak, about a sixth more than at the peak itself. What
MALLOC_ variables of the environment asked for is overridden. Other C libraries are left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

# The options of mallopt(3). To set one stops glibc for good from raising its thresholds to the size of what
# is freed, so afterwards they get what it would have come to at the most.
_TRIM_THRESHOLD, _NEVER, _HIGHEST_TRIM = -1, -1, 64 * 2**20
_MMAP_THRESHOLD, _HIGHEST_MMAP = -3, 32 * 2**20
_MMAP_MAX, _DEFAULT_MMAP_MAX = -4, 65536


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Take large blocks from the heap, and give nothing back to the system until the block ends."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
        libc.mallopt(_MMAP_THRESHOLD, _HIGHEST_MMAP)
        libc.mallopt(_TRIM_THRESHOLD, _HIGHEST_TRIM)
        libc.malloc_trim(0)
