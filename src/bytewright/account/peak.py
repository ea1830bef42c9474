"""How many floating-point operations per second a device does at best: what a utilisation is a share of.

By the maker's data sheet where the device is known; measured with bare matrix products where it is not.
Knows nothing of models.
"""

from __future__ import annotations

import functools

import torch

from bytewright.account.devices import find_known, measure_matmul

SIZES = {"cuda": 8192, "cpu": 768}
"""Rows of the products that are timed: on a GPU so many that starting one takes no time beside it."""


def peak_flops(device: torch.device, precision: str) -> float:
    """Matrix FLOPs per second that the device does at best, by its data sheet or, where unknown, measured."""
    if device.type == "cuda" and (known := find_known(torch.cuda.get_device_name(device))):
        return known.peak("bf16" if precision == "bf16" else "fp32")
    return _measure(device, torch.bfloat16 if precision == "bf16" else torch.float32)


@functools.cache
def _measure(device: torch.device, dtype: torch.dtype) -> float:
    """Measure once a process: utilisations of runs that share one are shares of the same."""
    return measure_matmul(device, dtype, size=SIZES["cuda" if device.type == "cuda" else "cpu"])
