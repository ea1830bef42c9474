"""Score and continue texts with a model, as evaluation harnesses require.

`score_continuations` returns log p of continuations given their contexts. `generate_until` generates text up
to a stop string. Both process requests of different lengths in batches, which affect rounding only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from bytewright.errors import UsageError
from bytewright.formatting import Progress
from bytewright.generate import Generator, SamplingConfig
from bytewright.model import TransformerLM
from bytewright.model.layers import at_least_float32
from bytewright.tokenizer import Tokenizer

Ids = Sequence[int]


@dataclass(frozen=True)
class Score:
    """The score of one continuation."""

    log_probability: float
    """The sum of ln p of its tokens, each given all tokens before it."""
    is_greedy: bool
    """Whether each of its tokens is the likeliest one."""


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Return the ids of a context and of the text after it, which are encoded together.

    White space at the end of the context belongs to the continuation, as in lm-evaluation-harness: a token
    often begins with the space before a word.
    """
    ids = tokenizer.encode(context.rstrip())
    return ids, tokenizer.encode(context + continuation)[len(ids) :]


@torch.no_grad()
def score_continuations(
    model: TransformerLM,
    pairs: Sequence[tuple[Ids, Ids]],
    *,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> list[Score]:
    """Return the score of each (context, continuation); a context must not be empty.

    If both together exceed the model's context by more than one token, the beginning is left out. If this
    leaves no token before the continuation, `UsageError` is raised.
    """
    context_length = model.config.context_length
    for context, continuation in pairs:
        if not len(context):
            raise UsageError("a context is empty; it must have at least one token", key="context")
        if len(continuation) > context_length:
            message = (
                f"a continuation has {len(continuation)} tokens, but the model's context has"
                f" {context_length}; use a shorter text or a model with a longer context"
            )
            raise UsageError(message, key="continuation", expected=context_length, found=len(continuation))
    scores = [Score(0.0, is_greedy=True)] * len(pairs)
    by_length = sorted(range(len(pairs)), key=lambda number: -sum(map(len, pairs[number])))  # saves padding
    device = model.output_weight.device
    for first in range(0, len(pairs), batch_size):
        numbers = by_length[first : first + batch_size]
        sequences = [[*pairs[n][0], *pairs[n][1]][-context_length - 1 :] for n in numbers]
        ids = torch.zeros(len(numbers), max(2, *map(len, sequences)), dtype=torch.long)
        for row, sequence in zip(ids, sequences, strict=True):
            row[: len(sequence)] = torch.tensor(sequence)  # padding follows, and attention is causal
        ids = ids.to(device)
        logits = at_least_float32(model(ids[:, :-1]))
        targets = ids[:, 1:]
        log_p = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(dim=-1)
        is_likeliest = logits.argmax(dim=-1) == targets
        for row, (number, sequence) in enumerate(zip(numbers, sequences, strict=True)):
            last = len(sequence) - 1
            part = slice(last - len(pairs[number][1]), last)
            is_greedy = bool(is_likeliest[row, part].all())
            scores[number] = Score(log_p[row, part].double().sum().item(), is_greedy)
        if progress is not None:
            progress(min(first + batch_size, len(pairs)), len(pairs))
    return scores


def generate_until(
    generator: Generator,
    tokenizer: Tokenizer,
    prompts: Sequence[Ids],
    sampling: SamplingConfig,
    stop_strings: Sequence[str] = (),
) -> list[str]:
    """Return the text that follows each prompt, up to the first stop string, which is not part of it.

    Generation ends when every text contains a stop string, or ends otherwise (see `SamplingConfig`).
    """
    sampling = replace(sampling, num_ids=tokenizer.vocab_size)
    decoders = [tokenizer.stream_decoder() for _ in prompts]
    texts = [""] * len(prompts)
    is_stopped = [False] * len(prompts)
    for ids in generator.stream(prompts, sampling):
        for row, id in enumerate(ids):
            if id is not None and not is_stopped[row]:
                texts[row] += decoders[row].feed(id)
                is_stopped[row] = any(stop in texts[row] for stop in stop_strings)
        if all(is_stopped):
            break
    for row, decoder in enumerate(decoders):
        texts[row] = cut_at_stop(texts[row] + decoder.finish(), stop_strings)
    return texts


def cut_at_stop(text: str, stop_strings: Sequence[str]) -> str:
    """Return the text before the first stop string in it.

    >>> cut_at_stop("one. two! three.", ["!", "."])
    'one'
    """
    places = [text.find(stop) for stop in stop_strings if stop and stop in text]
    return text[: min(places)] if places else text
