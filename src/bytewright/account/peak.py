"""How many floating-point operations per second a device does at best: what a utilisation is a share of.

By the maker's data sheet where the device is known; measured with bare matrix products where it is not.
Knows nothing of models.
"""

from __future__ import annotations

import torch

from bytewright.account.devices import DEVICES, measure_matmul

KNOWN_NAMES = {"H200": "h200", "GH200": "h200", "H100": "h100", "A100": "a100", "B200": "b200"}
"""Words of a device's name, and whose rates are its own."""


def peak_flops(device: torch.device, precision: str) -> float:
    """Matrix FLOPs per second that the device does at best, by its data sheet or, where unknown, measured."""
    if device.type == "cuda":
        words = torch.cuda.get_device_name(device).replace("-", " ").split()
        for word, name in KNOWN_NAMES.items():
            if word in words:
                return DEVICES[name].peak("bf16" if precision == "bf16" else "fp32")
    return measure_matmul(device, torch.bfloat16 if precision == "bf16" else torch.float32, size=768)
