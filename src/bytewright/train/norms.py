"""What goes on inside a model: how large its weights and activations are, layer by layer.

They are measured as root mean squares, so layers of different sizes can be compared: a weight matrix at its
initialisation has about the spread that it was drawn with, a residual stream that grows from block to block
shows it here. The activations come from an extra forward pass of the plain model over one window, so a
compiled step is not touched.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn import Module

from bytewright.model import TransformerLM


def root_mean_square(tensor: Float[Tensor, ...]) -> Float[Tensor, ""]:
    """Size of a typical element."""
    return tensor.detach().float().square().mean().sqrt()


@torch.no_grad()
def measure_norms(model: TransformerLM, ids: Integer[Tensor, "batch seq"]) -> dict[str, dict[str, float]]:
    """Root mean square of every weight, and of what each block and the embedding put out for `ids`."""
    activations: dict[str, Tensor] = {}

    def watch(name: str, module: Module) -> torch.utils.hooks.RemovableHandle:
        def note(_module: Module, _inputs: object, output: Tensor) -> None:
            activations[name] = root_mean_square(output)

        return module.register_forward_hook(note)

    watched: dict[str, Module] = {"token_embeddings": model.token_embeddings}
    watched |= {f"layers.{number}": layer for number, layer in enumerate(model.layers)}
    handles = [watch(name, module) for name, module in watched.items()]
    try:
        model.hidden_states(ids)
    finally:
        for handle in handles:
            handle.remove()
    weights = {name.removesuffix(".weight"): root_mean_square(p) for name, p in model.named_parameters()}
    return {"weight_rms": _to_host(weights), "activation_rms": _to_host(activations)}


def _to_host(values: dict[str, Tensor]) -> dict[str, float]:
    if not values:
        return {}
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
