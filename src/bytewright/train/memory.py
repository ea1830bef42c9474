"""How much memory a run takes at its peak, beyond what the process held before it.

On a GPU the allocator counts it; on the CPU the kernel keeps a high-water mark of the resident memory, which
Linux lets a process forget. Elsewhere nobody knows, and no figure is given. Building a model and compiling
its first step have peaks of their own that say nothing about training: `begin` forgets them, but on a CPU
for what malloc keeps of them (`malloc`). Resident memory also tells of the pages of a token file that were
looked at. Knows nothing of models.
"""

from __future__ import annotations

from pathlib import Path

import torch

from bytewright.tokenizer.memory import read_status

_FORGET = Path("/proc/self/clear_refs")
_HIGH_WATER_MARK = "5"
"""What the kernel wants to be told to forget it: see proc(5)."""


class PeakMemory:
    """The peak from `begin` on, over what was there when this was made."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.has_begun = False
        self._most_data: int | None = None
        self._before = torch.cuda.memory_allocated(device) if device.type == "cuda" else read_status("VmRSS")

    def begin(self) -> None:
        """Forget the peak so far."""
        self.has_begun = True
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self._before is not None:
            try:
                _FORGET.write_text(_HIGH_WATER_MARK)
            except OSError:  # a sandbox may forbid it, and then the mark is that of the whole process
                self._before = None

    def leave_out(self, data_bytes: int) -> None:
        """Take the data of the run that begins, on the device by now, for no part of what the run takes.

        The first run's was there before; a later one's, with the same step, counts where it is more.
        """
        if self._most_data is None:
            self._most_data = data_bytes
        elif self._before is not None and data_bytes > self._most_data:
            self._before += data_bytes - self._most_data
            self._most_data = data_bytes

    def start_over(self) -> None:
        """Wait for another `begin`; not on a GPU, where a recorded step takes the same memory unseen."""
        if self.device.type != "cuda":
            self.has_begun = False

    def peak(self) -> int | None:
        """Give the peak in bytes; None before `begin`, and where nobody knows."""
        if not self.has_begun or self._before is None:
            return None
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) - self._before
        highest = read_status("VmHWM")
        return None if highest is None else max(0, highest - self._before)
