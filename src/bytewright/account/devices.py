"""The peak rates of machines: FLOP/s of matrix products by precision, bytes/s of memory, its size, and watts.

The rates of `DEVICES` are from the manufacturers' data sheets (dense, without sparsity). `measure_device`
times matrix products and a copy on this machine. A GPU is identified by the full name that its driver
reports, because the parts of a family differ. An H100 PCIe has three quarters of the rate of an H100 SXM.

The watts are the power limit of the data sheet. A device that computes all the time draws about as much, but
never more. The power of a CPU is not known.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bytewright.errors import UsageError, suggest
from bytewright.model.costs import DeviceKind
from bytewright.system import usable_memory

Rate = Literal["fp32", "tf32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """The peak rates of a machine: FLOP/s by precision, bytes/s and bytes of its memory, and its power."""

    name: str
    flops_per_second: Mapping[Rate, float]
    bytes_per_second: float
    memory_bytes: float
    kind: DeviceKind = "cuda"
    is_measured: bool = False
    watts: float | None = None
    """The power limit; None if it is not known."""

    def peak(self, rate: Rate) -> float:
        """Return the FLOP/s of matrix products in one precision."""
        return self.flops_per_second[rate]

    def balance(self, rate: Rate) -> float:
        """Return the FLOPs per byte above which arithmetic is the limit, and below which memory is."""
        return self.peak(rate) / self.bytes_per_second


def _device(
    name: str, tflops: tuple[float, float, float], *, gb_per_second: float, gb: float, watts: float
) -> Device:
    """Return a GPU by its TFLOP/s in fp32, tf32 and bf16."""
    fp32, tf32, bf16 = (1e12 * rate for rate in tflops)
    return Device(
        name=name,
        flops_per_second={"fp32": fp32, "tf32": tf32, "bf16": bf16},
        bytes_per_second=gb_per_second * 1e9,
        memory_bytes=gb * 1e9,
        watts=watts,
    )


def _geforce(name: str, *, tflops: float, gb_per_second: float, gb: float, watts: float) -> Device:
    """Return a GeForce card by the TFLOP/s of its shaders in fp32.

    In the three generations listed, the tensor cores of these cards accumulate in fp32 at half the rate of
    fp16. In products that accumulate in fp32, as in training, bf16 has twice the rate of the shaders, and
    tf32 the same rate.
    """
    rates = (tflops, tflops, 2 * tflops)
    return _device(f"GeForce {name} {gb:.0f} GB", rates, gb_per_second=gb_per_second, gb=gb, watts=watts)


DEVICES: Mapping[str, Device] = {
    "a100": _device("A100 SXM 80 GB", (19.5, 156, 312), gb_per_second=2039, gb=80, watts=400),
    "h100": _device("H100 SXM 80 GB", (67, 495, 989), gb_per_second=3350, gb=80, watts=700),
    "h200": _device("H200 SXM 141 GB", (67, 495, 989), gb_per_second=4800, gb=141, watts=700),
    "b200": _device("B200 180 GB", (75, 1125, 2250), gb_per_second=7700, gb=180, watts=1000),
    "rtx3060": _geforce("RTX 3060", tflops=12.7, gb_per_second=360, gb=12, watts=170),
    "rtx3090": _geforce("RTX 3090", tflops=35.6, gb_per_second=936, gb=24, watts=350),
    "rtx4060": _geforce("RTX 4060", tflops=15.1, gb_per_second=272, gb=8, watts=115),
    "rtx4070": _geforce("RTX 4070", tflops=29.1, gb_per_second=504, gb=12, watts=200),
    "rtx4080": _geforce("RTX 4080", tflops=48.7, gb_per_second=716.8, gb=16, watts=320),
    "rtx4090": _geforce("RTX 4090", tflops=82.6, gb_per_second=1008, gb=24, watts=450),
    "rtx5070": _geforce("RTX 5070", tflops=30.9, gb_per_second=672, gb=12, watts=250),
    "rtx5080": _geforce("RTX 5080", tflops=56.3, gb_per_second=960, gb=16, watts=360),
    "rtx5090": _geforce("RTX 5090", tflops=104.8, gb_per_second=1792, gb=32, watts=575),
}
"""GPUs by the name that `find_device` accepts. The sources are NVIDIA's data sheets of A100, H100, H200 and
HGX B200. For GeForce cards they are the white papers "Ampere GA102 GPU Architecture", "Ada GPU Architecture"
and "RTX Blackwell GPU Architecture" and the pages of the cards. Memory is counted with 10⁹ bytes to a GB, so
a part of it remains for the driver."""

NAMES: Mapping[str, str] = {
    "A100-SXM4-80GB": "a100",
    "H100 80GB HBM3": "h100",
    "H200": "h200",
    "B200": "b200",
    "GeForce RTX 3090": "rtx3090",
    "GeForce RTX 4060": "rtx4060",
    "GeForce RTX 4080": "rtx4080",
    "GeForce RTX 4090": "rtx4090",
    "GeForce RTX 5070": "rtx5070",
    "GeForce RTX 5080": "rtx5080",
    "GeForce RTX 5090": "rtx5090",
}
"""The drivers' names of `DEVICES`. All others are measured: PCIe and NVL cards, GH200, MIG slices, laptop
GPUs, and the RTX 3060 and 4070, which were sold with two kinds of memory under one name."""


def find_known(name: str) -> Device | None:
    """Return the data sheet of a GPU by its driver's name, or None if the name is not known exactly.

    >>> device = find_known("NVIDIA H200")
    >>> device and device.name
    'H200 SXM 141 GB'
    >>> find_known("NVIDIA H100 PCIe") is None
    True
    """
    key = NAMES.get(name.removeprefix("NVIDIA "))
    return None if key is None else DEVICES[key]


def find_device(name: str) -> Device:
    """Return the device with this name; "cpu" and "measure" time this machine.

    Capitals, spaces and hyphens do not matter.

    >>> find_device("h100").peak("tf32"), find_device("RTX 4090").watts
    (495000000000000.0, 450)
    >>> find_device("h1000")
    Traceback (most recent call last):
    bytewright.errors.UsageError: unknown device 'h1000'; did you mean h100?
    """
    key = re.sub(r"[\s_-]", "", name.lower()).removeprefix("geforce")
    if key == "measure":
        return measure_device("cuda" if torch.cuda.is_available() else "cpu")
    if key == "cpu":
        return measure_device("cpu")
    if key not in DEVICES:
        known = [*DEVICES, "cpu", "measure"]
        raise UsageError(f"unknown device {name!r}{suggest(key, known)}", key="device", found=name)
    return DEVICES[key]


def measure_device(kind: str) -> Device:
    """Time matrix products and a copy on this machine; takes one or two seconds."""
    device = torch.device(kind)
    on_gpu = device.type == "cuda"
    size = 8192 if on_gpu else 1024
    name = torch.cuda.get_device_name(device) if on_gpu else f"this CPU, {torch.get_num_threads()} threads"
    known = find_known(name)
    return Device(
        name=name,
        flops_per_second={
            "fp32": measure_matmul(device, torch.float32, size=size),
            "tf32": measure_matmul(device, torch.float32, size=size, tf32=on_gpu),  # on a CPU as fp32
            "bf16": measure_matmul(device, torch.bfloat16, size=size),
        },
        bytes_per_second=_measure_copy(device),
        memory_bytes=torch.cuda.mem_get_info(device)[1] if on_gpu else float(usable_memory()),
        kind="cuda" if on_gpu else "cpu",
        is_measured=True,
        watts=known.watts if known else None,
    )


@functools.cache
def machine_of(device: torch.device) -> Device:
    """Return the rates of a device: from its data sheet if its name is known, measured otherwise."""
    if device.type == "cuda" and (known := find_known(torch.cuda.get_device_name(device))):
        memory = float(torch.cuda.get_device_properties(device).total_memory)
        return dataclasses.replace(known, memory_bytes=memory)
    return measure_device("cuda" if device.type == "cuda" else "cpu")


def measure_matmul(device: torch.device, dtype: torch.dtype, *, size: int, tf32: bool = False) -> float:
    """Return the FLOP/s of the fastest of a few products of square matrices."""
    a, b = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else before)
    try:
        return 2 * size**3 / _best_seconds(lambda: a @ b)
    finally:
        torch.set_float32_matmul_precision(before)


def _measure_copy(device: torch.device) -> float:
    """Return the bytes/s, read and written, of a copy that is larger than any cache."""
    num_bytes = 2**30 if device.type == "cuda" else 2**27
    source, target = (torch.ones(num_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * num_bytes / _best_seconds(lambda: target.copy_(source))


def _best_seconds(work: Callable[[], Tensor]) -> float:
    """Return the shortest time of several runs: other load rarely disturbs all of them.

    The runs take 0.3 seconds together and are at least five, unless these would take more than a second.
    """
    taken: list[float] = []
    while sum(taken) < 0.3 or (len(taken) < 5 and sum(taken) < 1.0):
        start = time.perf_counter()
        work().view(-1)[0].item()  # synchronises with the device
        taken.append(time.perf_counter() - start)
    return min(taken)


def peak_flops(device: torch.device, precision: str) -> float:
    """Return the peak FLOP/s of matrix products: from the data sheet of a known GPU, else measured."""
    if device.type == "cuda" and (known := find_known(torch.cuda.get_device_name(device))):
        return known.peak("bf16" if precision == "bf16" else "fp32")
    return _measure_peak(device, torch.bfloat16 if precision == "bf16" else torch.float32)


@functools.cache
def _measure_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Measure once per process, so that all runs of a process use the same peak."""
    # On a GPU, the products are so large that the launch time does not matter.
    return measure_matmul(device, dtype, size=8192 if device.type == "cuda" else 768)
