"""Reference generation: run the model over the whole sequence, choose a token, append it, repeat.

One prompt at a time, without a cache: each token costs a full forward pass. `generator` must return the same
ids.
"""

from __future__ import annotations

import contextlib
import operator
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, SupportsIndex

import torch

from bytewright.errors import UsageError
from bytewright.generate.sampling import SamplingConfig, check_chosen, choose_tokens, draw_uniforms
from bytewright.model.config import ModelConfig
from bytewright.model.transformer import TransformerLM

Reason = Literal["stop", "length", "context"]
"""Why a sequence ended: at a stop token, after `max_new_tokens`, or because the context is full."""


@dataclass(frozen=True)
class Completion:
    """The continuation of a prompt, and why it ended."""

    ids: list[int]
    """The new ids, without the prompt and without a stop token."""
    reason: Reason


def find_reason(
    config: ModelConfig, prompt: Sequence[int], num_written: int, sampling: SamplingConfig
) -> Reason:
    """Return why a sequence ended after `num_written` new tokens."""
    if num_written == sampling.max_new_tokens:
        return "length"
    is_full = len(prompt) + num_written == config.context_length and not sampling.slide
    return "context" if is_full else "stop"


@torch.no_grad()
def generate_reference(
    model: TransformerLM, prompt: Sequence[int], sampling: SamplingConfig, random_stream: int = 0
) -> Completion:
    """Return the completion of one prompt, from the random stream with the key (seed, random_stream).

    It equals `generate(model, prompts, sampling)[random_stream]` if this prompt has that place in `prompts`.
    """
    check_prompts(model.config, [prompt], slide=sampling.slide)
    device = model.token_embeddings.weight.device
    ids = torch.tensor([int(id) for id in prompt], device=device)
    uniforms = draw_uniforms(sampling.seed, random_stream, sampling.max_new_tokens).to(device)
    written: list[int] = []
    for uniform in uniforms:
        if len(ids) == model.config.context_length and not sampling.slide:
            return Completion(ids=written, reason="context")
        window = ids[-model.config.context_length :]
        id = choose_tokens(model(window)[-1], sampling, uniform)
        check_chosen([int(id)], len(written), sampling.sampler)
        if id.item() in sampling.stop_tokens:
            return Completion(ids=written, reason="stop")
        written.append(int(id))
        ids = torch.cat((ids, id.unsqueeze(0)))
    return Completion(ids=written, reason="length")


def check_prompts(config: ModelConfig, prompts: Sequence[Sequence[int]], *, slide: bool = False) -> None:
    """Raise `UsageError` if the model cannot continue a prompt; with `slide` it can be of any length."""
    if not len(prompts):
        raise UsageError("at least one prompt is required", key="prompts")
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise UsageError(f"prompt {number} is empty; it must have at least one token", key="prompts")
        if len(prompt) >= config.context_length and not slide:
            message = (
                f"prompt {number} has {len(prompt)} tokens, which leaves no room in the model's context of"
                f" {config.context_length}; shorten it"
            )
            raise UsageError(message, key="prompts", expected=config.context_length - 1, found=len(prompt))
        check_ids(config, prompt, f"prompt {number}")


def check_ids(config: ModelConfig, ids: Sequence[int], name: str, *, key: str = "prompts") -> None:
    """Raise `UsageError` if an id is not in the vocabulary of the model.

    `name` is what has the ids, and `key` is the option of the user.
    """
    with contextlib.suppress(TypeError, OverflowError):
        numbers = array("q", list(ids))  # `array` would read bytes as the memory of its numbers
        if not numbers or (min(numbers) >= 0 and max(numbers) < config.vocab_size):
            return
    for place, id in enumerate(ids):
        if not _is_index(id) or not 0 <= id < config.vocab_size:
            raise UsageError(
                f"{name} has the id {id} at position {place}; ids must be from 0 to {config.vocab_size - 1}",
                key=key,
                found=id,
            )


def _is_index(id: SupportsIndex) -> bool:
    """Return whether an id is a whole number; a tensor of fractions has `__index__`, too."""
    try:
        operator.index(id)
    except TypeError:
        return False
    return True
