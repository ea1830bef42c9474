"""Losses, registered by name, and the reference of the default: the mean cross-entropy of the next token.

A loss is a function of the hidden states, the output matrix and the targets. It returns one number, the mean
over all positions. The logits are `hidden @ output_weight.T`. If it has a parameter `masked`, it can be used
with masked data. With True, it returns the mean over the positions whose target is not `IGNORED`. All other
parameters are options (`[loss.options]`). `of_logits` makes a loss from a function of logits; it supports
masked data:

    @losses.register("z_loss")
    @of_logits
    def z_loss(logits, targets, *, weight: float = 1e-4): ...

`fused.language_model_loss` selects between the reference cross-entropy and the fused one. `fused.make_loss`
returns any registered loss as a function of a model and a batch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bytewright import with_aliases
from bytewright.data.sampler import IGNORED
from bytewright.errors import UsageError
from bytewright.model.layers import at_least_float32, check_integers, check_range
from bytewright.registry import losses

Loss = Callable[..., Tensor]
"""A function of (hidden, output_weight, targets) and options that returns the mean loss, a scalar."""

PROVIDED = ("hidden", "output_weight", "logits", "targets", "masked")
"""The parameters of a loss that are not options."""

LOGITS_AT_ONCE = {"cpu": 5 * 2**20, "cuda": 2**29}
"""Number of logits that a loss computes at a time: fits a CPU's cache, or keeps a GPU busy."""


@with_aliases(inputs="logits")
def cross_entropy(
    logits: Float[Tensor, "*batch vocab"], targets: Integer[Tensor, "*batch"], *, masked: bool = False
) -> Float[Tensor, ""]:
    """Return the mean of -log softmax(logits)[target] over all positions.

    With `masked`, positions whose target is `IGNORED` (-100) do not count; if none counts, the result is 0.
    The largest logit is subtracted first, so that `exp` cannot overflow. Half-precision logits are converted
    to float32: 8 bits of mantissa are too few for a sum of ten thousand exponentials.

    >>> import torch
    >>> round(cross_entropy(torch.zeros(2, 3, 10), torch.zeros(2, 3, dtype=torch.long)).item(), 6)  # ln 10
    2.302585
    >>> cross_entropy(torch.tensor([1000.0, -1000.0]), torch.tensor(0)).item()
    0.0
    """
    check_targets(logits, targets)
    given = targets
    if masked:
        targets = given.masked_fill(given == IGNORED, 0)
    logits = at_least_float32(logits)
    logits = logits - logits.amax(dim=-1, keepdim=True).detach()
    log_normaliser = logits.exp().sum(dim=-1).log()
    try:
        log_score = logits.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    except RuntimeError:
        check_range("targets", targets.long(), logits.shape[-1])
        raise
    losses = log_normaliser - log_score
    if not masked:
        return losses.mean()
    counted = given != IGNORED
    return losses.where(counted, 0.0).sum() / counted.sum().clamp(min=1)


@losses.register("cross_entropy")
def output_cross_entropy(
    hidden: Float[Tensor, "*batch d_model"],
    output_weight: Float[Tensor, "vocab d_model"],
    targets: Integer[Tensor, "*batch"],
    *,
    masked: bool = False,
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of the logits; `fused.linear_cross_entropy` computes them in chunks."""
    return cross_entropy(hidden @ output_weight.to(hidden.dtype).T, targets, masked=masked)


def of_logits(function: Callable[..., Tensor]) -> Loss:
    """Return a loss made from a function of logits and targets; use it as a decorator.

    The function gets logits in at least float32, of shape (rows, vocab), and targets of shape (rows,). It
    returns the loss of each row; that of a row that does not count is discarded. It is called for a chunk of
    rows at a time, and again in the backward pass. So the logits of a whole batch never exist at once.
    """

    @functools.wraps(function)
    def loss(
        hidden: Tensor, output_weight: Tensor, targets: Tensor, *, masked: bool = False, **options: Any
    ) -> Tensor:
        check_targets(hidden, targets)
        matrix = output_weight.to(hidden.dtype)

        def sum_of(rows: Tensor, matrix: Tensor, ids: Tensor) -> Tensor:
            known = ids.masked_fill(ids == IGNORED, 0) if masked else ids
            values = function(at_least_float32(rows @ matrix.T), known, **options)
            if not isinstance(values, Tensor) or values.shape != ids.shape:
                name, found = getattr(function, "__name__", "a loss"), describe_value(values)
                message = f"{name} must return the loss of each of {len(ids)} rows, but returned {found}"
                raise UsageError(message, key="loss.name", expected=tuple(ids.shape), found=found)
            return (values.where(ids != IGNORED, 0.0) if masked else values).sum()

        size = choose_chunk_size(hidden.device.type, len(output_weight))
        rows, ids = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1).long()
        sums = [
            checkpoint(sum_of, part, matrix, target, use_reentrant=False, preserve_rng_state=False)
            for part, target in zip(torch.split(rows, size), torch.split(ids, size), strict=True)
        ]
        count = (ids != IGNORED).sum().clamp(min=1) if masked else len(ids)
        return torch.stack(sums).sum() / count

    loss.supports_mask = True  # type: ignore[attr-defined]
    return loss


def describe_value(value: object) -> object:
    """Return what an error states about the result of a user's function: a tensor's shape, or the type."""
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def supports_mask(part: Callable[..., Any]) -> bool:
    """Return whether a registered loss can leave out the positions whose target is `IGNORED`."""
    call = part.__call__ if isinstance(part, type) else part
    return bool(getattr(part, "supports_mask", False)) or "masked" in inspect.signature(call).parameters


def choose_chunk_size(device_type: str, vocab_size: int) -> int:
    """Return the number of positions per chunk of logits; on a GPU a power of two, for full tiles."""
    if device_type == "cpu":
        return max(1, LOGITS_AT_ONCE["cpu"] // vocab_size)
    return 1 << (max(1, LOGITS_AT_ONCE["cuda"] // vocab_size).bit_length() - 1)


def check_targets(predictions: Tensor, targets: Tensor) -> None:
    """Raise unless `targets` holds one id for each prediction; torch would broadcast some other shapes."""
    check_integers(targets)
    expected, found = tuple(predictions.shape[:-1]), tuple(targets.shape)
    if found != expected:
        message = (
            f"targets of shape {found} do not fit predictions of shape {tuple(predictions.shape)};"
            f" expected {expected}"
        )
        raise UsageError(message, key="targets", expected=expected, found=found)
