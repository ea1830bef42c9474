"""How many floating-point operations per second a device does at best: what a utilisation is a share of.

By the maker's data sheet where the device is known; measured with bare matrix products where it is not.
Knows nothing of models.
"""

from __future__ import annotations

import time

import torch

PEAK_FLOPS = {
    # Dense peaks by a word of the device's name, from the makers' data sheets; fp32 is true fp32, not TF32.
    "H200": {"bf16": 989e12, "fp32": 67e12},
    "GH200": {"bf16": 989e12, "fp32": 67e12},
    "H100": {"bf16": 989e12, "fp32": 67e12},
    "A100": {"bf16": 312e12, "fp32": 19.5e12},
}


def peak_flops(device: torch.device, precision: str) -> float:
    """Matrix FLOPs per second that the device does at best, by its data sheet or, where unknown, measured."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for known, peaks in PEAK_FLOPS.items():
            if known in name.replace("-", " ").split():
                return peaks[precision]
    return _measure_matmul(device, torch.bfloat16 if precision == "bf16" else torch.float32)


def _measure_matmul(device: torch.device, dtype: torch.dtype, size: int = 768) -> float:
    """Best of a few products of square matrices; takes well under a second on a slow core."""
    a = torch.ones(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        (a @ a)[0, 0].item()  # the read waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
