"""The reference loss: the mean cross-entropy of the next token, in nats.

`fused.language_model_loss` selects between this loss and the fused one.
"""

from __future__ import annotations

from jaxtyping import Float, Integer
from torch import Tensor

from bytewright.errors import UsageError
from bytewright.model.layers import at_least_float32, check_integers, check_range


def cross_entropy(
    logits: Float[Tensor, "*batch vocab"], targets: Integer[Tensor, "*batch"]
) -> Float[Tensor, ""]:
    """Return the mean of -log softmax(logits)[target] over all positions.

    The largest logit is subtracted first, so that `exp` cannot overflow. Half-precision logits are converted
    to float32: 8 bits of mantissa are too few for a sum of ten thousand exponentials.

    >>> import torch
    >>> round(cross_entropy(torch.zeros(2, 3, 10), torch.zeros(2, 3, dtype=torch.long)).item(), 6)  # ln 10
    2.302585
    >>> cross_entropy(torch.tensor([1000.0, -1000.0]), torch.tensor(0)).item()
    0.0
    """
    check_targets(logits, targets)
    logits = at_least_float32(logits)
    logits = logits - logits.amax(dim=-1, keepdim=True).detach()
    log_normaliser = logits.exp().sum(dim=-1).log()
    try:
        log_score = logits.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    except RuntimeError:
        check_range("targets", targets.long(), logits.shape[-1])
        raise
    return (log_normaliser - log_score).mean()


def check_targets(predictions: Tensor, targets: Tensor) -> None:
    """Raise unless `targets` holds one id for each prediction; torch would broadcast some other shapes."""
    check_integers(targets)
    expected, found = tuple(predictions.shape[:-1]), tuple(targets.shape)
    if found != expected:
        raise UsageError(
            f"targets of shape {found} do not fit predictions of shape {tuple(predictions.shape)};"
            f" expected {expected}",
            key="targets",
            expected=expected,
            found=found,
        )
