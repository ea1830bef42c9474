"""What a run writes on the way, as text: the glue between the loop, the generator and the tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from bytewright.model import TransformerLM
    from bytewright.train import TrainConfig


def make_sampler(config: TrainConfig) -> Callable[[TransformerLM, int], str] | None:
    """Make the function that writes a sample with the model, or None if none are wanted or possible."""
    return None
