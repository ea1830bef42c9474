"""The permissions of an ordinary user, for tests that may run as root."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """Run the block without root's permission to read every file.

    Other users cannot read the folders that pytest makes, so use one of `tempfile`.
    """
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
