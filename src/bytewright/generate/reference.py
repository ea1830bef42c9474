"""Generation by the definition: run the model over everything so far, choose a token, append it, repeat.

The readable twin of `generate`: one prompt at a time, no cache, no batch. It costs a full forward pass per
token and promises the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from bytewright.errors import UsageError
from bytewright.generate.sampling import SamplingConfig, choose_tokens, draw_uniforms, refuse_no_token
from bytewright.model.config import ModelConfig
from bytewright.model.transformer import TransformerLM

Reason = Literal["stop", "length", "context"]
"""A stop token came, `max_new_tokens` were written, or prompt and completion fill the model's context."""


@dataclass(frozen=True)
class Completion:
    """What was written after a prompt, and why it ends there."""

    ids: list[int]
    """The new ids alone; a stop token is not among them."""
    reason: Reason


def find_reason(config: ModelConfig, prompt: Sequence[int], num_written: int, max_new_tokens: int) -> Reason:
    """Return why a sequence ended after `num_written` new tokens."""
    if num_written == max_new_tokens:
        return "length"
    return "context" if len(prompt) + num_written == config.context_length else "stop"


@torch.no_grad()
def generate_reference(
    model: TransformerLM, prompt: Sequence[int], sampling: SamplingConfig, row: int = 0
) -> Completion:
    """Continue one prompt; `generate(model, prompts, sampling)[row]` must be equal for prompts[row]."""
    check_prompts(model.config, [prompt])
    device = model.token_embeddings.weight.device
    ids = torch.tensor(list(prompt), device=device)
    uniforms = draw_uniforms(sampling.seed, row, sampling.max_new_tokens).to(device)
    written: list[int] = []
    for uniform in uniforms:
        if len(ids) == model.config.context_length:
            return Completion(ids=written, reason="context")
        id = choose_tokens(model(ids)[-1], sampling, uniform)
        refuse_no_token([int(id)], len(written))
        if id.item() in sampling.stop_tokens:
            return Completion(ids=written, reason="stop")
        written.append(int(id))
        ids = torch.cat((ids, id.unsqueeze(0)))
    return Completion(ids=written, reason="length")


def check_prompts(config: ModelConfig, prompts: Sequence[Sequence[int]]) -> None:
    """Raise `UsageError` for a prompt that the model cannot read, naming the prompt by its number."""
    if not len(prompts):
        raise UsageError("there is no prompt to continue")
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise UsageError(f"prompt {number} is empty: the model needs at least one token to go on from")
        if len(prompt) >= config.context_length:
            raise UsageError(
                f"prompt {number} has {len(prompt)} tokens, which leaves no room in the model's context of "
                f"{config.context_length}"
            )
        for place, id in enumerate(prompt):
            if not hasattr(id, "__index__") or not 0 <= id < config.vocab_size:
                raise UsageError(
                    f"prompt {number} has the id {id} at place {place}, outside the vocabulary of "
                    f"{config.vocab_size}"
                )
