"""Clipping by the global norm: if the norm of all gradients together exceeds a limit, scale them down.

`clip_gradients` is the reference implementation. `fused.apply_clipped` uses the same `global_norm` and
`clip_factor` as part of the update. Neither synchronises with the device.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from bytewright import with_aliases
from bytewright.errors import wrong_value
from bytewright.model.layers import at_least_float32

EPSILON = 1e-6
"""Avoids a division by zero; the usual value."""


@with_aliases(max_l2_norm="max_norm")
def clip_gradients(parameters: Tensor | Iterable[Tensor], max_norm: float) -> Float[Tensor, ""]:
    """Scale all gradients in place so that their global norm is at most `max_norm`; return the norm before.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip_gradients([weight], 1.0).item(), [round(g, 3) for g in weight.grad.tolist()]
    (5.0, [0.6, 0.8])
    """
    if not max_norm >= 0:
        raise wrong_value("max_norm", "at least 0", max_norm)
    if isinstance(parameters, Tensor):  # iterating over a tensor yields rows, which have no gradients
        parameters = [parameters]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = global_norm(gradients)
    for gradient in gradients:
        gradient.mul_(clip_factor(norm, max_norm).to(gradient.dtype))
    return norm


def global_norm(tensors: Iterable[Float[Tensor, ...]]) -> Float[Tensor, ""]:
    """Return the norm of all tensors as one vector, in at least float32."""
    squares = [at_least_float32(tensor).square().sum() for tensor in tensors]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())


def clip_factor(norm: Float[Tensor, ""], max_norm: float) -> Float[Tensor, ""]:
    """Return the factor for the gradients: 1 up to `max_norm`, and max_norm / (norm + ε) above it."""
    return torch.where(norm > max_norm, max_norm / (norm + EPSILON), 1.0)
