"""SiLU(gate) ⊙ up of a joined projection, and its gradient, each in one pass over memory.

The compiler computes the gradient of a joined projection as two halves and reads all inputs twice. This
kernel reads an element of gate together with its partner in up and writes both gradients.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Elements per program: enough that every thread loads 16 bytes at a time."""


@triton.jit
def _forward(joined, out, num_elements, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < num_elements
    at_gate = place + place // WIDTH * WIDTH  # a row of `joined` is twice as wide: gate, then up
    gate = tl.load(joined + at_gate, mask=mask).to(tl.float32)
    up = tl.load(joined + at_gate + WIDTH, mask=mask).to(tl.float32)
    tl.store(out + place, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _backward(joined, dout, djoined, num_elements, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < num_elements
    at_gate = place + place // WIDTH * WIDTH
    gate = tl.load(joined + at_gate, mask=mask).to(tl.float32)
    up = tl.load(joined + at_gate + WIDTH, mask=mask).to(tl.float32)
    upstream = tl.load(dout + place, mask=mask).to(tl.float32)
    s = tl.sigmoid(gate)
    dgate = upstream * up * s * (1 + gate * (1 - s))
    tl.store(djoined + at_gate, dgate.to(djoined.dtype.element_ty), mask=mask)
    tl.store(djoined + at_gate + WIDTH, (upstream * gate * s).to(djoined.dtype.element_ty), mask=mask)


@torch.library.custom_op("bytewright::silu_gate", mutates_args=(), schema="(Tensor joined) -> Tensor")
def silu_gate(joined: Tensor) -> Tensor:
    """Return silu(gate) * up, where gate and up are the halves of the last dimension."""
    joined = joined.contiguous()
    out = joined.new_empty(*joined.shape[:-1], joined.shape[-1] // 2)
    _forward[(triton.cdiv(out.numel(), BLOCK),)](joined, out, out.numel(), WIDTH=out.shape[-1], BLOCK=BLOCK)
    return out


@torch.library.custom_op(
    "bytewright::silu_gate_backward", mutates_args=(), schema="(Tensor dout, Tensor joined) -> Tensor"
)
def silu_gate_backward(dout: Tensor, joined: Tensor) -> Tensor:
    """Return the gradient of the joined projection."""
    joined, dout = joined.contiguous(), dout.contiguous()
    djoined = torch.empty_like(joined)
    _backward[(triton.cdiv(dout.numel(), BLOCK),)](
        joined, dout, djoined, dout.numel(), WIDTH=dout.shape[-1], BLOCK=BLOCK
    )
    return djoined


@silu_gate.register_fake
def _(joined):
    return joined.new_empty(*joined.shape[:-1], joined.shape[-1] // 2)


@silu_gate_backward.register_fake
def _(dout, joined):
    return joined.new_empty(joined.shape)


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, dout: Tensor) -> Tensor:
    (joined,) = ctx.saved_tensors
    gradient: Tensor = silu_gate_backward(dout, joined)
    return gradient


silu_gate.register_autograd(_differentiate, setup_context=_save)
