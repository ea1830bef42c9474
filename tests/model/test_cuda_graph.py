"""CUDA graphs: the layout a captured function receives, and replays next to other users of the process."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from bytewright.model.cuda_graph import CudaGraphFunction, capture, without_garbage_collection


def test_the_function_receives_the_layout_that_a_capture_has() -> None:
    """Batches are views and captures use contiguous buffers; compiled code must support both."""
    seen: list[tuple[int, ...]] = []

    def function(first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        seen.extend((first.stride(), second.stride()))
        return (first + second,)

    windows = torch.arange(12).reshape(3, 4)
    (total,) = CudaGraphFunction(function)(windows[:, :-1], windows[:, 1:])
    assert seen == [(3, 1), (3, 1)]
    assert total.equal(windows[:, :-1] + windows[:, 1:])


def test_garbage_is_not_collected_during_a_capture() -> None:
    gc.enable()
    with without_garbage_collection():
        assert not gc.isenabled()
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_survives_the_clearing_of_cublas_workspaces() -> None:
    """A second graph must not use the workspace of a first one, whose memory is released and overwritten."""
    generator = torch.Generator("cuda").manual_seed(0)
    x, weight = (
        torch.randn(shape, device="cuda", generator=generator, dtype=torch.bfloat16)
        for shape in ((32, 3072), (3072, 768))
    )

    def products() -> Tensor:
        result = x
        for _ in range(8):  # few rows and a long sum: cuBLAS splits the sum and needs its workspace
            result = (result @ weight).repeat(1, 4)
        return result

    expected = products()
    first, _ = capture(products)
    second, result = capture(products)
    del first
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    filler = [torch.full((2**22,), torch.nan, device="cuda") for _ in range(16)]
    second.replay()
    torch.cuda.synchronize()
    assert result.equal(expected)
    assert all(tensor.isnan().all() for tensor in filler), "the replay wrote into memory of others"
