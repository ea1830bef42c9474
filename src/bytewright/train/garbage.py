"""The garbage collector, stopped while a loop runs.

Left to itself it looks through every object of the process at moments of its own choosing, and a GPU that is
fed step by step stands idle meanwhile. What is alive when the block begins is taken out of its sight;
`gc.collect()` at a moment that suits finds what the block itself has left behind.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_stopped() -> Iterator[None]:
    """Collect now, then not again until the block ends.

    Afterwards everything is in the collector's sight, also what others had taken out of it (Python 3.12 does
    so with what it starts with): left out, a run's model and data would never be freed.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
