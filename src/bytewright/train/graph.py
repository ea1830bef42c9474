"""A function of tensors whose work on the GPU is recorded once and then replayed.

At small batches a step consists of hundreds of short kernels, and launching them one by one takes longer than
running them. A CUDA graph launches them all with one word. What it takes for that: the function must ask
nothing of the device (`.item()`), always do the same, and read whatever changes from its arguments or from
tensors that are written in place. Nothing here knows what the function computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]


class Recorded:
    """`function`, run as it is at first, then from a recording.

    A first call runs plainly: compilers compile, libraries allocate. A second one with arguments of the same
    shapes is recorded, and replayed from then on. Arguments of other shapes always run plainly.

    `function` only ever sees contiguous tensors: to a compiler another layout is another function, and what
    is compiled while a step is being recorded may not ask the device anything, as compilers do.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self._shapes: list[torch.Size] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._arguments: list[Tensor] = []
        self._results: tuple[Tensor, ...] = ()

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Run or replay; the results are the caller's own."""
        shapes = [tensor.shape for tensor in arguments]
        is_known = shapes == self._shapes
        if self._graph is None and is_known:
            self._record(arguments)
        if self._graph is None or not is_known:
            if self._graph is None:
                self._shapes = shapes
            return self.function(*(tensor.contiguous() for tensor in arguments))
        for own, given in zip(self._arguments, arguments, strict=True):
            own.copy_(given)
        self._graph.replay()
        return tuple(result.clone() for result in self._results)

    def _record(self, arguments: Sequence[Tensor]) -> None:
        self._arguments = [tensor.clone(memory_format=torch.contiguous_format) for tensor in arguments]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._results = self.function(*self._arguments)
        self._graph = graph
