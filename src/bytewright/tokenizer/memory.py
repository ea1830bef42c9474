"""How much memory this process has had to itself, at the most.

On Linux that is `RssAnon`, looked at whenever `look` is called: a memory-mapped corpus is the system's to
drop and does not count. Elsewhere it is the largest resident size that the system remembers, which counts it.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


class PeakMemory:
    """Remembers the largest amount of memory that it was there to see."""

    def __init__(self) -> None:
        self._peak = 0
        self.look()

    def look(self) -> None:
        """Look now."""
        self._peak = max(self._peak, memory_now())

    def peak(self) -> int:
        """Look once more and return the largest amount seen, in bytes."""
        self.look()
        return self._peak


def memory_now() -> int:
    """Return the memory that is this process's own, in bytes."""
    own = read_status("RssAnon")
    if own is not None:
        return own
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def read_status(field: str) -> int | None:
    """Return a size that Linux tells of this process, in bytes; None where there is no such figure."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)
