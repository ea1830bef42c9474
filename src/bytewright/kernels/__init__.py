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


def on_gpu(x: Tensor) -> bool:
    """Tell whether `x` is where the kernels run: on an NVIDIA GPU, with Triton at hand."""
    return HAS_TRITON and x.is_cuda and torch.version.hip is None


def can_serve(x: Tensor) -> bool:
    """Tell whether the kernels are for tensors like `x`: in a half-precision type on an NVIDIA GPU."""
    return x.dtype in HALF_TYPES and on_gpu(x)
