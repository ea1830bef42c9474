# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803
"""Products whose epilogue computes the gate of SwiGLU, forward and backward, to compare with separate passes.

The output tile of a product stays on chip while the gate is computed: the forward pass saves reading gate and
up again, the backward pass saves writing and reading the gradient of the gated product.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


class Tile(NamedTuple):
    """Rows, columns and depth of a tile, warps and stages, and whether programs compute several tiles."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int
    is_persistent: bool


@triton.jit
def _locate(tile, num_row_tiles, num_column_tiles, GROUP: tl.constexpr):
    """Return row and column of a tile: programs that run together share tiles of both operands."""
    per_group = GROUP * num_column_tiles
    first_row = tile // per_group * GROUP
    size = tl.minimum(num_row_tiles - first_row, GROUP)
    return first_row + tile % per_group % size, tile % per_group // size


@triton.jit
def _forward(
    x, weights, joined, out, num_rows, width, depth,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    num_row_tiles, num_column_tiles = tl.cdiv(num_rows, BM), tl.cdiv(width, BN)
    for tile in tl.range(
        tl.program_id(0), num_row_tiles * num_column_tiles, tl.num_programs(0), flatten=True
    ):
        row_tile, column_tile = _locate(tile, num_row_tiles, num_column_tiles, GROUP)
        row, column = row_tile * BM, column_tile * BN
        gate, up = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
        for k in range(0, depth, BK):
            a = x.load([row, k])
            gate = tl.dot(a, tl.trans(tl.reshape(weights.load([0, column, k]), [BN, BK])), gate)
            up = tl.dot(a, tl.trans(tl.reshape(weights.load([1, column, k]), [BN, BK])), up)
        joined.store([row, 0, column], tl.reshape(gate.to(tl.bfloat16), [BM, 1, BN]))
        joined.store([row, 1, column], tl.reshape(up.to(tl.bfloat16), [BM, 1, BN]))
        out.store([row, column], (gate * tl.sigmoid(gate) * up).to(tl.bfloat16))


@triton.jit
def _backward(
    dout, w2, joined, djoined, num_rows, width, depth,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    num_row_tiles, num_column_tiles = tl.cdiv(num_rows, BM), tl.cdiv(width, BN)
    for tile in tl.range(
        tl.program_id(0), num_row_tiles * num_column_tiles, tl.num_programs(0), flatten=True
    ):
        row_tile, column_tile = _locate(tile, num_row_tiles, num_column_tiles, GROUP)
        row, column = row_tile * BM, column_tile * BN
        upstream = tl.zeros([BM, BN], tl.float32)
        for k in range(0, depth, BK):
            upstream = tl.dot(dout.load([row, k]), w2.load([k, column]), upstream)
        gate = tl.reshape(joined.load([row, 0, column]), [BM, BN]).to(tl.float32)
        up = tl.reshape(joined.load([row, 1, column]), [BM, BN]).to(tl.float32)
        s = tl.sigmoid(gate)
        dup = upstream * gate * s
        dgate = upstream * up * s * (1 + gate * (1 - s))
        djoined.store([row, 0, column], tl.reshape(dgate.to(tl.bfloat16), [BM, 1, BN]))
        djoined.store([row, 1, column], tl.reshape(dup.to(tl.bfloat16), [BM, 1, BN]))


def _halves(x: Tensor, tile: Tile) -> TensorDescriptor:
    """Describe a joined tensor as (rows, 2, width), so that a tile at the edge stays inside its half."""
    rows, width = x.shape
    shape, strides = [rows, 2, width // 2], [width, width // 2, 1]
    return TensorDescriptor(x, shape, strides, [tile.rows, 1, tile.columns])


def _launch(num_rows: int, width: int, tile: Tile) -> tuple[int]:
    num_tiles = triton.cdiv(num_rows, tile.rows) * triton.cdiv(width, tile.columns)
    count = torch.cuda.get_device_properties(0).multi_processor_count
    return (min(num_tiles, count) if tile.is_persistent else num_tiles,)


def gate_forward(x: Tensor, weights: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """Return x @ weightsᵀ, gate and up joined, and silu(gate) * up."""
    (rows, depth), width = x.shape, len(weights) // 2
    joined, out = x.new_empty(rows, 2 * width), x.new_empty(rows, width)
    _forward[_launch(rows, width, tile)](
        TensorDescriptor.from_tensor(x, [tile.rows, tile.depth]),
        TensorDescriptor(
            weights, [2, width, depth], [width * depth, depth, 1], [1, tile.columns, tile.depth]
        ),
        _halves(joined, tile), TensorDescriptor.from_tensor(out, [tile.rows, tile.columns]),
        rows, width, depth, BM=tile.rows, BN=tile.columns, BK=tile.depth, GROUP=8,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return joined, out


def gate_backward(dout: Tensor, w2: Tensor, joined: Tensor, tile: Tile) -> Tensor:
    """Return the gradient of the joined projection from that of the layer's result."""
    (rows, depth), width = dout.shape, w2.shape[1]
    djoined = torch.empty_like(joined)
    _backward[_launch(rows, width, tile)](
        TensorDescriptor.from_tensor(dout, [tile.rows, tile.depth]),
        TensorDescriptor.from_tensor(w2, [tile.depth, tile.columns]),
        _halves(joined, tile), _halves(djoined, tile),
        rows, width, depth, BM=tile.rows, BN=tile.columns, BK=tile.depth, GROUP=8,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return djoined


FORWARD_TILES = [
    Tile(128, 128, 64, 8, 3, True),
    Tile(128, 128, 64, 8, 3, False),
    Tile(128, 64, 64, 4, 3, False),
    Tile(256, 64, 64, 8, 3, True),
]
BACKWARD_TILES = [
    Tile(128, 128, 64, 8, 3, True),
    Tile(128, 128, 64, 8, 3, False),
    Tile(128, 64, 64, 4, 4, False),
    Tile(64, 128, 64, 4, 3, False),
]
