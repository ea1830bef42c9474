"""Copies between the host and the device that the host does not wait for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor


def send(values: Tensor, device: torch.device) -> Tensor:
    """Return values of the host on the device, without waiting for the copy to a GPU."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def fetch(ids: Int[Tensor, "rows steps"]) -> Callable[[], list[list[int]]]:
    """Start to copy ids to the host; return a function that waits for them."""
    if not ids.is_cuda:
        found: list[list[int]] = ids.tolist()
        return lambda: found
    on_host = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=True)
    on_host.copy_(ids, non_blocking=True)
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record()

    def wait() -> list[list[int]]:
        ready.synchronize()
        found: list[list[int]] = on_host.tolist()
        return found

    return wait
