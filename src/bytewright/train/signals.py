"""SIGINT and SIGTERM as a wish instead of an end: the loop finishes its step, saves, and leaves.

The first signal is only noted. A second one of the same kind acts as it would have without us, so a run that
hangs can still be stopped. Exit codes are the shell's: 128 + number, 130 for SIGINT and 143 for SIGTERM.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopSignals:
    """Notes the first SIGINT or SIGTERM while it is entered; does nothing outside the main thread."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        signal.signal(number, self._previous.pop(self.received))


def exit_code_of(received: signal.Signals | None) -> int:
    """Give the exit code of a run that stopped for this signal, or 0 for none."""
    return 128 + received if received else 0
