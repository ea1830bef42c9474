"""What torch and its libraries are asked for by every command, before they are imported.

They read it from the environment; whoever has set a variable there has the last word, but for the tag that
keeps compiled steps of other kernels apart, which is added to theirs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import MutableMapping
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "kernels"


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Ask for memory in segments that grow, for threads that sleep, for compiled steps that are kept."""
    # Segments of fixed sizes never join: what lies free between them is lost, and the largest batch that
    # should fit does not.
    if "PYTORCH_CUDA_ALLOC_CONF" not in environment:  # its former name
        environment.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    # GNU OpenMP lets threads that wait for each other spin for milliseconds. Beside another busy process they
    # would keep each other's cores busy with waiting, and a small model would train ten times more slowly.
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "2000")
    # A step holds a gradient of our own (that of the head and its loss), and such a step is traced anew in
    # every process, for seconds, unless torch is allowed to keep it. What it then keeps does not notice if an
    # operator's gradient changes, so its key must: by the text of the kernels.
    environment.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD", "1")
    tag = f"bytewright {digest(KERNELS)}"
    given = environment.get("TORCH_COMPILE_CACHE_KEY_TAG", "")
    if tag not in given:
        environment["TORCH_COMPILE_CACHE_KEY_TAG"] = f"{given} {tag}".strip()


def digest(folder: Path) -> str:
    """Name the Python files in `folder` by what they say."""
    texts = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]
