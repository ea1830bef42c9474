"""How wrong the predictions are: the cross-entropy of the next token, in nats.

`cross_entropy` is the readable twin, straight from the definition with the log-sum-exp kept in range. The
fast twin works on hidden states and never holds all logits at once; `language_model_loss` calls the one that
the model's `implementation` names. Nothing here knows about optimizers or data.
"""

from __future__ import annotations

from jaxtyping import Float, Integer
from torch import Tensor

from bytewright.model import TransformerLM
from bytewright.model.fused import check_targets, linear_cross_entropy
from bytewright.model.layers import at_least_float32, check_range


def cross_entropy(
    logits: Float[Tensor, "*batch vocab"], targets: Integer[Tensor, "*batch"]
) -> Float[Tensor, ""]:
    """Mean of -log softmax(logits)[target] over all positions.

    The largest logit is taken off first, so that `exp` stays at most 1 whatever the logits are.
    Half-precision logits are raised to float32: a sum of ten thousand exponentials has no place in 8 bits of
    mantissa.

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


def language_model_loss(
    model: TransformerLM, ids: Integer[Tensor, "*batch seq"], targets: Integer[Tensor, "*batch seq"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy of predicting `targets` from `ids`, by the twin that the model is built from."""
    if model.config.implementation == "reference":
        return cross_entropy(model(ids), targets)
    return linear_cross_entropy(model.hidden_states(ids), model.output_weight, targets)
