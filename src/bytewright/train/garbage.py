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
    """Collect now, then not again until the block ends; afterwards all is as it was before."""
    was_enabled, is_frozen_already = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if not is_frozen_already:  # what others froze cannot be told from what we did
            gc.unfreeze()
        if was_enabled:
            gc.enable()
