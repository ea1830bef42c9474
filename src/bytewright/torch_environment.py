"""Environment variables that torch and its libraries read once, set before that.

`import bytewright` calls `prepare`, so commands, the Python API and tests have the same settings. Variables
that the user has set are not changed. Import bytewright before torch, because:

- GNU OpenMP reads its variables when torch loads it. After that the spin limit has no effect.
- oneDNN reads its limit at the first product, and the CUDA allocator its configuration at its first use.

Commands also call `keep_compiled_steps`, a setting for whole processes that a library should not make.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

KERNELS = Path(__file__).resolve().parent / "model" / "kernels"
CPUINFO = Path("/proc/cpuinfo")

ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""The variable that limits the instruction sets of oneDNN, and its former name, which oneDNN still reads."""
ISA_LIMIT = "AVX512_CORE_FP16"
"""The newest instruction set of oneDNN without AMX: as fast as its bf16 instructions without tiles."""

AMX_FEATURES = 1 << 22 | 1 << 24
"""AMX-BF16 and AMX-TILE in EDX of CPUID leaf 7."""
TILE_STATE = 1 << 17 | 1 << 18
"""The configuration and the data of tiles in XCR0: the operating system saves both."""
PALETTE_LEAF = 0x1D
"""The CPUID leaf that describes the tiles."""

PRODUCT = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import torch
x = torch.ones(256, 256, dtype=torch.bfloat16)
product = x @ x
"""
"""A product that uses AMX if oneDNN detects it. Smaller products do not use oneDNN."""


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables of the allocator, of OpenMP and of oneDNN that the user has not set."""
    # Segments of fixed size cannot be joined, so fragmentation makes the largest batches fail. The variable
    # PYTORCH_CUDA_ALLOC_CONF is the former name.
    if "PYTORCH_CUDA_ALLOC_CONF" not in environment:
        environment.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    # Waiting threads of GNU OpenMP spin for milliseconds. If another process is busy, they occupy the cores
    # that the others need, and a small model trains up to ten times more slowly.
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "2000")
    if not any(name in environment for name in ISA_VARIABLES) and amx_faults():
        environment[ISA_VARIABLES[0]] = ISA_LIMIT


def keep_compiled_steps(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let torch cache compiled steps across processes although they contain custom gradients.

    Without this, every process traces a step again, which takes seconds. The cache key of torch does not
    include the code of custom gradients, so a hash of our kernels is added to it. Gradients in a user's code
    are not in the key, so only commands call this.
    """
    environment.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD", "1")
    tag = f"bytewright {digest(KERNELS)}"
    given = environment.get("TORCH_COMPILE_CACHE_KEY_TAG", "")
    if tag not in given:
        environment["TORCH_COMPILE_CACHE_KEY_TAG"] = f"{given} {tag}".strip()


def digest(folder: Path) -> str:
    """Return a hash of the Python files in `folder`."""
    import hashlib

    texts = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def amx_faults() -> bool:
    """Return whether this processor advertises AMX, but a bf16 product with it would kill the process."""
    try:
        from bytewright._native import read_amx
    except ImportError:
        return product_faults(CPUINFO)
    report = read_amx()
    return report is not None and lacks_palette(*report)


def lacks_palette(max_leaf: int, features: int, xcr0: int, palette: int) -> bool:
    """Return whether CPUID and XCR0 advertise AMX, but CPUID describes no tiles.

    Tile instructions fault on such machines: some virtual machines with Sapphire Rapids processors.

    >>> lacks_palette(max_leaf=0x1C, features=0x01C0_0000, xcr0=0x6_00E7, palette=0)
    True
    """
    is_advertised = features & AMX_FEATURES == AMX_FEATURES and xcr0 & TILE_STATE == TILE_STATE
    return is_advertised and (max_leaf < PALETTE_LEAF or palette == 0)


def product_faults(cpuinfo: Path, program: str = PRODUCT) -> bool:
    """Return whether an illegal instruction kills a child process that computes a bf16 product with AMX.

    This replaces `lacks_palette` if the native extension is missing. The child takes seconds, so its result
    is cached in the user's cache folder, one file per kind of processor.
    """
    import contextlib
    import hashlib
    import signal
    import subprocess
    import sys

    from bytewright.storage import atomic

    try:
        lines = cpuinfo.read_text().split("\n\n")[0].splitlines()
    except OSError:  # not Linux
        return False
    if not any(line.startswith("flags") and "amx_bf16" in line.split() for line in lines):
        return False
    kind = "\n".join(line for line in lines if not line.startswith(("cpu MHz", "bogomips")))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "bytewright")
    answer = cache / f"amx-{hashlib.sha256(kind.encode()).hexdigest()[:16]}"
    with contextlib.suppress(OSError):
        if (found := answer.read_bytes()) in (b"works", b"faults"):  # not damaged
            return found == b"faults"
    code = subprocess.run([sys.executable, "-c", program], capture_output=True).returncode
    is_answered = code in (0, -signal.SIGILL)  # otherwise torch cannot be imported, or the child was killed
    if is_answered and cache.is_absolute():  # it is relative if there is no home folder
        with contextlib.suppress(OSError):  # without a cache, every process tries again
            atomic.write_text(answer, "works" if code == 0 else "faults")
    return code == -signal.SIGILL
