"""The endpoints of the view Write: a text with the distribution of every token, and its continuation.

    GET  /api/write/runs      runs that have a model
    POST /api/write/read      {run, text, …}   the tokens of a text, each with the distribution before it
    POST /api/write/stream    {run, ids, …}    events: a `token` for each new token, then `end`

A text is read as the beginning of a document: after an end token and a line break. Each token has an id, a
text, and `stop`, which says whether it ends a text, as every special token does. Probabilities of the model
are without temperature and filters, so that they can be compared with the true ones. `drawn` is the
probability with which a token is chosen under the settings of the request.

True probabilities are those of the storybook. `grammar` requests them; by default they are included if the
run was trained on the storybook. A token that no story can have at its position has the true probability 0.
The tokens after it have no true probabilities, until the next story begins.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from torch import Tensor

from bytewright.corpus.storybook import Position
from bytewright.errors import UsageError
from bytewright.generate import SamplingConfig
from bytewright.generate.interpret import stream_with_logits
from bytewright.generate.sampling import next_token_probabilities
from bytewright.generate.text import encode_document
from bytewright.model.layers import at_least_float32
from bytewright.serve.protocol import json_response, read_body, read_integer, read_sampling
from bytewright.storage.json_reader import Json
from bytewright.studio.context import Event, EventStream, Studio, read_request_text
from bytewright.studio.models import StudioModel, check_finite

NUM_CANDIDATES = 10
"""A distribution lists this many of the likeliest tokens by the model, and as many by the grammar."""
MAX_NEW_TOKENS = 512
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")


def make_routes(studio: Studio) -> list[BaseRoute]:
    """Return the endpoints."""

    async def list_runs(request: Request) -> Response:
        return json_response({"runs": await studio.compute(studio.models.list_runs)})

    async def read(request: Request) -> Response:
        body = await read_body(request, ["run", "text", "grammar", *SAMPLING])
        return json_response(await studio.compute(_read, studio, body))

    async def stream(request: Request) -> EventStream:
        body = await read_body(request, ["run", "ids", "grammar", "max_tokens", *SAMPLING])
        settings, ids = await studio.compute(_read_continuation, studio, body)
        return EventStream(studio, _write(studio, settings, ids))

    return [
        Route("/api/write/runs", list_runs),
        Route("/api/write/read", read, methods=["POST"]),
        Route("/api/write/stream", stream, methods=["POST"]),
    ]


@dataclass(frozen=True)
class _Settings:
    """The model and the sampling settings of a request."""

    model: StudioModel
    sampling: SamplingConfig
    has_truth: bool
    """Whether true probabilities are included."""


def _read_settings(studio: Studio, body: Json) -> _Settings:
    model = studio.models.load(body["run"].as_text())
    sampling = read_sampling(body, model.tokenizer)
    max_tokens = read_integer(body.get("max_tokens"), 100, least=1, most=MAX_NEW_TOKENS)
    sampling = replace(sampling, max_new_tokens=max_tokens, num_ids=model.num_ids)
    has_truth = body.get("grammar").as_boolean(model.is_of_storybook)
    if has_truth:
        _ = model.true_tokens  # raises if the tokenizer does not support it
    return _Settings(model, sampling, has_truth)


def _read(studio: Studio, body: Json) -> dict[str, Any]:
    """Return the tokens of a text, the distribution before each of them, and the one after the last."""
    settings = _read_settings(studio, body)
    model = settings.model
    ids = encode_document(model.tokenizer, read_request_text(body))
    length = model.model.config.context_length
    if len(ids) >= length:
        message = f"the text has {len(ids):,} tokens, but the model's context is {length:,}; shorten the text"
        raise UsageError(message, key="text", expected=length - 1, found=len(ids))
    with torch.no_grad(), model.lock:
        device = model.model.token_embeddings.weight.device
        logits = at_least_float32(model.model(torch.tensor(ids, device=device))).cpu()
    check_finite(logits)
    positions = model.true_tokens.positions(ids) if settings.has_truth else [None] * (len(ids) + 1)
    after = [
        _describe_distribution(settings, row, position)
        for row, position in zip(logits, positions[1:], strict=True)
    ]
    tokens = [
        _describe_token(settings, id, row, position, before)
        for id, row, position, before in zip(ids[1:], logits, positions[1:], after, strict=False)
    ]
    has_end_token = ids[0] in model.stop_ids
    if not has_end_token:  # the first token of the text, which nothing predicts
        tokens.insert(0, model.describe_token(ids[0]))
    return {
        "tokens": tokens,
        "start": ids[:1] if has_end_token else [],
        "next": after[-1],
        "grammar": settings.has_truth,
    }


def _read_continuation(studio: Studio, body: Json) -> tuple[_Settings, list[int]]:
    """Return the settings and the checked ids of a request for a continuation."""
    settings = _read_settings(studio, body)
    length = settings.model.model.config.context_length
    ids = [each.as_integer() for each in body["ids"].elements()]
    if not 1 <= len(ids) < length:
        message = f"the text has {len(ids):,} tokens; the model continues texts of 1 to {length - 1:,} tokens"
        raise UsageError(message, key="ids", expected=length - 1, found=len(ids))
    for id in ids:
        if not 0 <= id < settings.model.num_ids:
            raise UsageError(f"the vocabulary of the run has no id {id}", key="ids", found=id)
    return settings, ids


async def _write(studio: Studio, settings: _Settings, ids: list[int]) -> AsyncGenerator[Event, None]:
    """Yield an event for each new token; closing the generator ends the generation."""
    events = _generate(settings, ids)

    def next_event() -> Event | None:
        with settings.model.lock:
            return next(events, None)

    while (event := await studio.compute(next_event)) is not None:
        yield event


def _generate(settings: _Settings, prompt: list[int]) -> Iterator[Event]:
    model, ids = settings.model, list(prompt)
    position = model.true_tokens.positions(ids)[-1] if settings.has_truth else None
    num_written, reason = 0, "length"
    for id, logits in stream_with_logits(model.generator, ids, settings.sampling):
        row = logits.cpu()
        before = _describe_distribution(settings, row, position)
        yield "token", _describe_token(settings, id, row, position, before)
        ids.append(id)
        num_written += 1
        if id in model.stop_ids:
            reason = "stop"
        elif settings.has_truth:
            position = model.true_tokens.after(ids, position)
    if reason == "length" and num_written < settings.sampling.max_new_tokens:
        reason = "context"
    yield "end", {"reason": reason}


# Distributions


def _describe_distribution(
    settings: _Settings, logits: Float[Tensor, " vocab"], position: Position | None
) -> dict[str, Any]:
    """Return the distribution of the next token: of the model, and the true one if there is one."""
    model = settings.model
    logits = logits[: model.num_ids].double()
    log_probabilities = torch.log_softmax(logits, dim=-1)
    probabilities = log_probabilities.exp()
    if settings.sampling.temperature > 0:
        drawn = next_token_probabilities(logits, settings.sampling)
    else:
        drawn = torch.zeros_like(logits).scatter(0, logits.argmax(dim=-1, keepdim=True), 1.0)
    truth = {} if position is None else position.probabilities
    ids = probabilities.topk(min(NUM_CANDIDATES, model.num_ids)).indices.tolist()
    truly_likely = sorted(truth, key=lambda id: -truth[id])[:NUM_CANDIDATES]
    ids += [id for id in truly_likely if id not in ids]
    found: dict[str, Any] = {
        "entropy": _bits(-(probabilities * log_probabilities).sum()),
        "candidates": [
            {
                **model.describe_token(id),
                "p": float(probabilities[id]),
                "drawn": float(drawn[id]),
                **({} if position is None else {"true": truth.get(id, 0.0)}),
            }
            for id in ids
        ],
    }
    if position is not None:
        expected = math.fsum(p * -float(log_probabilities[id]) for id, p in truth.items()) / math.log(2)
        found["true_entropy"] = position.entropy
        found["expected_excess"] = expected - position.entropy
        found["num_possible"] = len(truth)
    return found


def _describe_token(
    settings: _Settings,
    id: int,
    logits: Float[Tensor, " vocab"],
    position: Position | None,
    before: dict[str, Any],
) -> dict[str, Any]:
    """Return a token with its surprise in bits, by the model and by the grammar.

    `before` is the distribution that the token was chosen from.
    """
    log_probability = torch.log_softmax(logits[: settings.model.num_ids].double(), dim=-1)[id]
    found = {
        **settings.model.describe_token(id),
        "bits": _bits(-log_probability),
        "before": before,
    }
    if position is not None:
        true = position.probabilities.get(id, 0.0)
        found["true_bits"] = abs(math.log2(true)) if true else None
    return found


def _bits(nats: Tensor) -> float:
    return float(nats) / math.log(2)
