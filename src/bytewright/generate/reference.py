"""Generation by the definition: run the model over everything so far, choose a token, append it, repeat.

The readable twin of `generate`: one prompt at a time, no cache, no batch. It costs a full forward pass per
token and promises the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bytewright.generate.generator import Completion, check_prompts
from bytewright.generate.sampling import SamplingConfig, choose_tokens, draw_uniforms, refuse_no_token
from bytewright.model import TransformerLM


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
