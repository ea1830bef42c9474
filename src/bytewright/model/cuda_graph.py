"""CUDA graphs: the GPU work of a function, captured once and launched in one call from then on.

At small batch sizes a step consists of hundreds of short kernels, and launching them one by one takes longer
than running them. A function can be captured if it never synchronises with the host (`.item()`) and always
launches the same kernels. Values that change must be in its arguments or in tensors that are written in
place.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def capture(function: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Capture one call of `function`; return the graph and the call's result, which each replay overwrites.

    Call `function` once before: compilation and library set-up cannot be captured.

    torch keeps one cuBLAS workspace per stream and captures all graphs on the same stream. Without the two
    calls below, a graph can contain the address of a workspace in the memory pool of an earlier graph, or in
    the general pool. That memory is released when the earlier graph is deleted and the workspaces are
    cleared, as `torch.compile(mode="reduce-overhead")` does. Then the next replay fails. The first call makes
    the capture allocate a workspace in the graph's own pool, which is freed with the graph. The second call
    keeps later captures from using it.
    """
    graph = torch.cuda.CUDAGraph()
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with without_garbage_collection(), torch.cuda.graph(graph):
            result = function()
    finally:
        torch._C._cuda_clearCublasWorkspaces()
    return graph, result


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable Python's collection of cyclic garbage until the block ends.

    The collector can delete an earlier graph at any moment. CUDA does not allow that during a capture.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def capture_after_run(
    function: Callable[[], Result], state: Sequence[Tensor]
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Run `function` once and capture the next call; `state` has the tensors that the run changes.

    The run lets the libraries allocate their workspaces. Its changes of `state` are undone.
    """
    before = [tensor.clone() for tensor in state]
    function()
    for tensor, value in zip(state, before, strict=True):
        tensor.copy_(value)
    return capture(function)


class CudaGraphFunction:
    """Calls `function` directly at first, then replays a CUDA graph of it.

    The first call compiles and allocates. The second call with arguments of the same shapes is captured, and
    replayed from then on. Calls with arguments of other shapes are never captured.

    `function` always receives contiguous tensors. A compiler treats another layout as another function, and
    compiling synchronises with the device, which is not allowed during capture.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self.function = function
        self._shapes: list[torch.Size] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._arguments: list[Tensor] = []
        self._results: tuple[Tensor, ...] = ()

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Return the results of `function` in tensors that later calls do not overwrite."""
        shapes = [tensor.shape for tensor in arguments]
        if shapes != self._shapes:
            if self._graph is None:
                self._shapes = shapes
            return self.function(*(tensor.contiguous() for tensor in arguments))
        if self._graph is None:
            self._arguments = [tensor.clone(memory_format=torch.contiguous_format) for tensor in arguments]
            self._graph, self._results = capture(lambda: self.function(*self._arguments))
        for buffer, argument in zip(self._arguments, arguments, strict=True):
            buffer.copy_(argument)
        self._graph.replay()
        return tuple(result.clone() for result in self._results)
