"""Triton kernels behind the fast twins, for an NVIDIA GPU.

Each fuses what the library and its compiler leave apart, in one pass over memory, without atomics: the same
input gives the same bits. What training uses is an operator (`torch.ops.bytewright.…`) with a gradient of its
own, so `torch.compile` carries it along; its schema is spelled out, since annotations are wrapped in tests.
The readable twins define what they compute; `can_serve` says whether they are for a tensor at all, and
whoever asks falls back on plain tensor algebra where they are not. Their modules import Triton: ask first.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

HALF_TYPES = (torch.bfloat16, torch.float16)
HAS_TRITON = importlib.util.find_spec("triton") is not None


OLDEST_GPU = (8, 0)
"""Compute capability: GPUs before Ampere have no bfloat16, and less shared memory than attention takes."""


def on_gpu(x: Tensor) -> bool:
    """Tell whether `x` is where the kernels run: on an NVIDIA GPU that they fit, with Triton at hand."""
    return HAS_TRITON and x.is_cuda and torch.version.hip is None and _is_young_enough()


@torch.compiler.assume_constant_result
def _is_young_enough() -> bool:
    return torch.cuda.get_device_capability() >= OLDEST_GPU


def can_serve(x: Tensor) -> bool:
    """Tell whether the kernels are for tensors like `x`: in a half-precision type on an NVIDIA GPU."""
    return x.dtype in HALF_TYPES and on_gpu(x)
