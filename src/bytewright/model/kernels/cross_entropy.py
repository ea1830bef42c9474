"""The output head and its loss with gradients: each row of logits is read twice and written once.

The gradient of a row overwrites its logits, and the products that use it follow immediately. This is one
operator, because the compiler would copy what is overwritten. Rows of logits should start at multiples of 16
bytes. Otherwise, as with a vocabulary of 50,257, matrix units load single numbers and a product takes several
times as long. The matrix is then padded with rows of zeros to a multiple of 64, whose logits are ignored.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from bytewright.data.sampler import IGNORED

SHORT_ROW = 16_384
"""Rows up to this many logits are read in blocks of 2,048 by 8 warps, longer ones in blocks of 8,192 by 16.

Fewer programs then share a multiprocessor, and the L2 cache holds their rows until the second pass.
"""

ALIGNED_BYTES, ALIGNED_ROWS = 16, 64
"""The alignment of rows of logits, and the multiple to which the rows of an unaligned head are padded."""

LOG2E, LN2 = math.log2(math.e), math.log(2)


@triton.jit
def _load_logits(logits, columns, vocab_size, width):
    # The mask of a load ends at the aligned width: one that ends at an odd number is loaded in single numbers
    x = tl.load(logits + columns, mask=columns < width, other=float("-inf")).to(tl.float32)
    return tl.where(columns < vocab_size, x, float("-inf"))


@triton.jit
def _row(
    logits, targets, losses, vocab_size, width,
    LOG2E: tl.constexpr, LN2: tl.constexpr, BLOCK: tl.constexpr, WITH_GRADIENT: tl.constexpr,
    MASKED: tl.constexpr, IGNORED: tl.constexpr,
):  # fmt: skip
    """Compute the loss of one row by a running log-sum-exp in base 2; overwrite it with softmax - onehot.

    Columns from the vocabulary size to `width` are padding; their probability and gradient are 0. With
    `MASKED`, so are the loss and the gradient of a row whose target is `IGNORED`.
    """
    row = tl.program_id(0)
    logits += row.to(tl.int64) * width
    target = tl.load(targets + row).to(tl.int32)
    # An invalid target makes the loss NaN, so that the step is not accepted, instead of reading another row.
    is_id = (target >= 0) & (target < vocab_size)
    score = tl.load(logits + target, mask=is_id, other=float("nan")).to(tl.float32)
    largest = tl.full([BLOCK], -3e38, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocab_size, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = _load_logits(logits, columns, vocab_size, width) * LOG2E
        new_largest = tl.maximum(largest, x)
        total = total * tl.exp2(largest - new_largest) + tl.exp2(x - new_largest)
        largest = new_largest
    top = tl.max(largest, 0)
    normaliser = top + tl.log2(tl.sum(total * tl.exp2(largest - top), 0))
    loss = normaliser * LN2 - score
    if MASKED:
        loss = tl.where(target == IGNORED, 0.0, loss)
    tl.store(losses + row, loss)
    if WITH_GRADIENT:
        for first in range(0, width, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            x = _load_logits(logits, columns, vocab_size, width) * LOG2E
            gradient = tl.exp2(x - normaliser) - tl.where(columns == target, 1.0, 0.0)
            if MASKED:
                gradient = tl.where(target == IGNORED, 0.0, gradient)
            tl.store(logits + columns, gradient.to(logits.dtype.element_ty), mask=columns < width)


def cross_entropy_(
    logits: Tensor,
    targets: Tensor,
    *,
    with_gradient: bool,
    vocab_size: int | None = None,
    masked: bool = False,
) -> Tensor:
    """Return -log softmax(row)[target] of every row; with `with_gradient`, `logits` become softmax - onehot.

    Columns from `vocab_size` on are padding. With `masked`, rows whose target is `IGNORED` become 0.
    """
    num_rows, width = logits.shape
    losses = logits.new_empty(num_rows, dtype=torch.float32)
    block, num_warps = (2_048, 8) if width <= SHORT_ROW else (8_192, 16)
    _row[(num_rows,)](
        logits, targets, losses, width if vocab_size is None else vocab_size, width,
        LOG2E=LOG2E, LN2=LN2, BLOCK=block, WITH_GRADIENT=with_gradient, MASKED=masked, IGNORED=IGNORED,
        num_warps=num_warps,
    )  # fmt: skip
    return losses


@torch.library.custom_op(
    "bytewright::total_cross_entropy",
    mutates_args=(),
    schema="(Tensor hidden, Tensor weight, Tensor targets, SymInt chunk_size, bool wants_gradient,"
    " bool masked=False) -> (Tensor, Tensor, Tensor)",
)
def total_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    chunk_size: int,
    wants_gradient: bool,
    masked: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed loss of the logits `hidden @ weightᵀ`, and its gradients (empty if not requested)."""
    matrix = _with_aligned_logits(weight.to(hidden.dtype))
    total = torch.zeros((), device=hidden.device)
    hidden_gradient = torch.empty_like(hidden) if wants_gradient else hidden.new_empty(0)
    shape = matrix.shape if wants_gradient else (0,)
    weight_gradient = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
    for first in range(0, len(hidden), chunk_size):
        chunk = slice(first, first + chunk_size)
        rows = hidden[chunk]
        logits = rows @ matrix.T
        losses = cross_entropy_(
            logits, targets[chunk], with_gradient=wants_gradient, vocab_size=len(weight), masked=masked
        )
        total += losses.sum()
        if wants_gradient:
            torch.mm(logits, matrix, out=hidden_gradient[chunk])
            _add_product(weight_gradient, logits.T, rows)
        del logits  # or they would stay alive while those of the next chunk are computed
    return total, hidden_gradient, weight_gradient[: len(weight)]


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add the product of two matrices to `total`, on a GPU in float32 by the product itself."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.ops.aten.addmm.dtype_out(total, a, b, total.dtype, out=total)
    else:
        total += a @ b


def _with_aligned_logits(matrix: Tensor) -> Tensor:
    """Return the head, padded with rows of zeros if rows of its logits would not be aligned."""
    if len(matrix) * matrix.element_size() % ALIGNED_BYTES == 0:
        return matrix
    return pad(matrix, (0, 0, 0, -len(matrix) % ALIGNED_ROWS))


@total_cross_entropy.register_fake
def _(hidden, weight, targets, chunk_size, wants_gradient, masked=False):
    return (
        hidden.new_empty((), dtype=torch.float32),
        hidden.new_empty(hidden.shape if wants_gradient else 0),
        weight.new_empty(weight.shape if wants_gradient else 0),
    )
