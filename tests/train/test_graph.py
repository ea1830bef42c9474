"""What a recorded function promises before it is recorded; for the rest a GPU is needed (test_gpu)."""

from __future__ import annotations

import torch
from torch import Tensor

from bytewright.train.graph import Recorded


def test_the_function_sees_the_layout_that_a_recording_has() -> None:
    """Windows are cut into views; a recording has tensors of its own, and compiled code must fit both."""
    seen: list[tuple[int, ...]] = []

    def function(first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        seen.extend((first.stride(), second.stride()))
        return (first + second,)

    windows = torch.arange(12).reshape(3, 4)
    (total,) = Recorded(function)(windows[:, :-1], windows[:, 1:])
    assert seen == [(3, 1), (3, 1)]
    assert total.equal(windows[:, :-1] + windows[:, 1:])
