"""Triton kernels of the fused layers, for NVIDIA GPUs.

Each kernel replaces several passes over memory by one. The same input gives the same bits: no sum uses
atomics. Only `decoding.attend_and_store` has an atomic counter, which does not change the order of additions.
The kernels of training are operators (`torch.ops.bytewright.…`) with their own gradient, which
`torch.compile` accepts; `register_fake` states the shapes of their results. The reference modules define
their results. The modules of this package import Triton: call `on_gpu` or `supports` first, and use tensor
operations if it returns False.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

HALF_TYPES = (torch.bfloat16, torch.float16)
HAS_TRITON = importlib.util.find_spec("triton") is not None

OLDEST_GPU = (8, 0)
"""Compute capability: GPUs before Ampere lack bfloat16 and the shared memory that attention needs."""


def on_gpu(x: Tensor) -> bool:
    """Return whether `x` is on an NVIDIA GPU that the kernels support, and Triton is installed."""
    return HAS_TRITON and x.is_cuda and torch.version.hip is None and _is_supported_gpu()


def _is_supported_gpu() -> bool:
    return torch.cuda.get_device_capability() >= OLDEST_GPU


# The mark of torch.compiler.assume_constant_result. That function imports the compiler, which takes seconds,
# and a process that compiles nothing does not need it.
_is_supported_gpu._dynamo_marked_constant = True  # type: ignore[attr-defined]


def supports(x: Tensor) -> bool:
    """Return whether the kernels support `x`: in a half-precision type on an NVIDIA GPU."""
    return x.dtype in HALF_TYPES and on_gpu(x)
