"""What goes on inside: norms of weights and activations by layer, and how busy the machine is.

The norms are root mean squares, so layers of different sizes can be compared: a weight matrix at its
initialisation has about the spread that it was drawn with, a residual stream that grows from block to block
shows it here. The activations come from an extra forward pass of the plain model over one window, so a
compiled step is not touched.
"""

from __future__ import annotations

import time

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn import Module

from bytewright.model import TransformerLM

PEAK_FLOPS = {
    # Dense peaks by a word of the device's name, from the makers' data sheets; fp32 is true fp32, not TF32.
    "H200": {"bf16": 989e12, "fp32": 67e12},
    "GH200": {"bf16": 989e12, "fp32": 67e12},
    "H100": {"bf16": 989e12, "fp32": 67e12},
    "A100": {"bf16": 312e12, "fp32": 19.5e12},
}


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


def peak_flops(device: torch.device, precision: str) -> float:
    """Matrix FLOPs per second that the device does at best, by its data sheet or, where unknown, measured."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for known, peaks in PEAK_FLOPS.items():
            if known in name.replace("-", " ").split():
                return peaks[precision]
    return _measure_matmul(device, torch.bfloat16 if precision == "bf16" else torch.float32)


def _measure_matmul(device: torch.device, dtype: torch.dtype, size: int = 768) -> float:
    """Best of a few products of square matrices; takes well under a second on a slow core."""
    a = torch.ones(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        (a @ a)[0, 0].item()  # the read waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def _to_host(values: dict[str, Tensor]) -> dict[str, float]:
    if not values:
        return {}
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
