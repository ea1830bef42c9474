"""Inspect a model: next-token probabilities, losses, attention weights, residual norms, logit lens.

All functions handle ids, and work for both implementations and for parts of plugins. They leave the model
unchanged, but some register hooks while they run: do not call them for one model from several threads.
Attention weights are those of the reference attention, computed from the inputs that the layers of the
model receive. Fused attention never has them in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn import Module

from bytewright.errors import UsageError, wrong_value
from bytewright.generate.generator import Generator
from bytewright.generate.reference import check_ids, check_prompts
from bytewright.generate.sampling import SamplingConfig, check_chosen, choose_tokens, draw_uniforms
from bytewright.generate.scoring import compute_losses, plan_windows
from bytewright.model.layers import at_least_float32, softmax
from bytewright.model.transformer import TransformerLM


@torch.no_grad()
def predict_next_token(model: TransformerLM, ids: Sequence[int]) -> Float[Tensor, " vocab"]:
    """Return the probability of every id as the next token after `ids`, without temperature or filters."""
    return softmax(at_least_float32(model(_prompt(model, ids))[-1]), dim=-1)


@torch.no_grad()
def token_losses(
    model: TransformerLM, ids: Sequence[int], *, progress: Callable[[int, int], None] | None = None
) -> Float[Tensor, " seq_minus_one"]:
    """Return -ln p of each token after the first, given the tokens before it.

    A text longer than the context is read in overlapping windows. So every token after the first window has
    at least half a context before it. `progress` receives the scored tokens and their total.
    """
    check_ids(model.config, ids, "ids")
    if len(ids) < 2:
        raise wrong_value("ids", "at least two tokens: the first is not predicted", list(ids))
    tokens = torch.tensor(list(ids), device=_device(model))
    losses: list[Tensor] = []
    for start, first, end in plan_windows(len(ids), model.config.context_length):
        (window_losses,) = compute_losses(model, tokens[None, start:end])
        losses.append(window_losses[first - start - 1 :])
        if progress is not None:
            progress(end - 1, len(ids) - 1)
    return torch.cat(losses)


@torch.no_grad()
def attention_weights_by_layer(
    model: TransformerLM, ids: Sequence[int]
) -> Float[Tensor, "layers heads queries keys"]:
    """Return the weight of each earlier token for each token, by layer and head; rows sum to 1.

    Raise `UsageError` if an attention layer has no method `weights`, for example the attention of a plugin.
    """
    attentions = [layer.get_submodule("attn") for layer in model.layers]
    for number, attention in enumerate(attentions):
        if not callable(getattr(attention, "weights", None)):
            message = (
                f"the attention of layer {number}, {type(attention).__name__}, has no method weights(x) that "
                "returns its attention weights"
            )
            raise UsageError(message, key="attention", found=type(attention).__name__)
    with _recorded_inputs(attentions) as inputs:
        model.hidden_states(_prompt(model, ids))
    weights = [attention.weights(x) for attention, x in zip(attentions, inputs, strict=True)]  # type: ignore[operator]
    return at_least_float32(torch.stack(weights))


class LensLayer(NamedTuple):
    """The most probable next tokens at every position, if the model ended after one layer."""

    ids: Integer[Tensor, "seq top"]
    probabilities: Float[Tensor, "seq top"]


@torch.no_grad()
def logit_lens(model: TransformerLM, ids: Sequence[int], *, top: int = 1) -> list[LensLayer]:
    """Return the predictions that the final norm and the head make from each layer's output.

    Entry 0 is of the embeddings, entry i of the output of layer i. The last entry has the predictions of the
    model itself.
    """
    if not 1 <= top <= model.config.vocab_size:
        raise wrong_value("top", f"from 1 to {model.config.vocab_size}", top)
    found = []
    for hidden in _residual_stream(model, ids):
        scaled = model.head_input(hidden)
        logits = at_least_float32(scaled @ model.output_weight.to(scaled.dtype).T)
        best = softmax(logits, dim=-1).topk(top, dim=-1)
        found.append(LensLayer(best.indices, best.values))
    return found


@torch.no_grad()
def residual_norms(model: TransformerLM, ids: Sequence[int]) -> Float[Tensor, "states seq"]:
    """Return the Euclidean norm of the residual stream at every position.

    Row 0 is of the embeddings, row i of the output of layer i.
    """
    return torch.stack([at_least_float32(hidden).norm(dim=-1) for hidden in _residual_stream(model, ids)])


class ChosenToken(NamedTuple):
    """A token that generation chose, and the logits that it was chosen from."""

    id: int
    logits: Float[Tensor, " vocab"]


@torch.no_grad()
def stream_with_logits(
    generator: Generator, prompt: Sequence[int], sampling: SamplingConfig
) -> Iterator[ChosenToken]:
    """Yield the tokens that `Generator.generate` chooses for one prompt, each with its logits.

    A stop token ends the sequence as there, but is yielded too. `sampling.slide` is not supported.
    """
    check_prompts(generator.config, [prompt])
    uniforms = draw_uniforms(sampling.seed, 0, sampling.max_new_tokens).to(generator.device)
    room = generator.config.context_length - len(prompt)
    score_next = _next_scorer(generator, prompt, min(room, sampling.max_new_tokens))
    last: int | None = None
    for place, uniform in enumerate(uniforms[:room]):
        logits = score_next(last)
        last = int(choose_tokens(logits, sampling, uniform))
        check_chosen([last], place, sampling.sampler)
        yield ChosenToken(last, at_least_float32(logits))
        if last in sampling.stop_tokens:
            return


def _next_scorer(
    generator: Generator, prompt: Sequence[int], num_steps: int
) -> Callable[[int | None], Float[Tensor, " vocab"]]:
    """Return a function that appends a token to the prompt and returns the logits of the next one.

    It appends nothing if the token is None, which it must be in the first call.
    """
    ids = torch.tensor(list(prompt), device=generator.device)
    if not generator.has_decoder:

        def score_whole(id: int | None) -> Tensor:
            nonlocal ids
            if id is not None:
                ids = torch.cat((ids, ids.new_tensor([id])))
            logits: Tensor = generator.model(ids)[-1]
            return logits

        return score_whole
    decoder = generator.decoder
    cache = decoder.new_cache(1, len(prompt) + num_steps)
    length = len(prompt)

    def score_next(id: int | None) -> Tensor:
        nonlocal length
        if id is None:
            return decoder.read(cache, ids.unsqueeze(0), ids.new_tensor([length]))[0]
        position, token = ids.new_tensor([length]), ids.new_tensor([id])
        length += 1
        return decoder.step(cache, token, position, length, aligned=True)[0]

    return score_next


def _residual_stream(model: TransformerLM, ids: Sequence[int]) -> list[Float[Tensor, "seq d_model"]]:
    """Return the input of the first layer, and the output of every layer."""
    outputs: list[Tensor] = []
    handle = model.layers[-1].register_forward_hook(lambda _, __, output: outputs.append(output))
    try:
        with _recorded_inputs(list(model.layers)) as inputs:
            model.hidden_states(_prompt(model, ids))
    finally:
        handle.remove()
    return [*inputs, *outputs]


@contextmanager
def _recorded_inputs(modules: Sequence[Module]) -> Iterator[list[Tensor]]:
    """Yield a list that receives the first argument of each call of `modules`."""
    inputs: list[Tensor] = []
    handles = [
        module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
        for module in modules
    ]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


def _prompt(model: TransformerLM, ids: Sequence[int]) -> Integer[Tensor, " seq"]:
    """Return checked ids on the device of the model."""
    check_ids(model.config, ids, "ids")
    if not ids:
        raise wrong_value("ids", "at least one token", [])
    if len(ids) > model.config.context_length:
        message = (
            f"the text has {len(ids)} tokens, but the model's context is {model.config.context_length}; "
            "shorten the text"
        )
        raise UsageError(message, key="ids", expected=model.config.context_length, found=len(ids))
    return torch.tensor(list(ids), device=_device(model))


def _device(model: TransformerLM) -> torch.device:
    return model.token_embeddings.weight.device
