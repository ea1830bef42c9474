"""The endpoint of the view Inside: attention, residual norms and the logit lens for a text.

    POST /api/inside/read    {run, text, top}

Attention weights are sent as bytes, 255 for a weight of 1, because there are layers x heads x tokens² of
them. A text is read as the beginning of a document. A long text is truncated to the number of tokens that
`compute_token_limit` returns; `num_tokens` of the answer counts the tokens of the whole text.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import torch
from jaxtyping import Float
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from torch import Tensor

from bytewright.errors import UsageError
from bytewright.generate.interpret import attention_weights_by_layer, logit_lens, residual_norms
from bytewright.generate.text import encode_document
from bytewright.serve.protocol import json_response, read_body, read_integer
from bytewright.storage.json_reader import Json
from bytewright.studio.context import Studio, read_request_text
from bytewright.studio.models import check_finite

MAX_WEIGHTS = 2_000_000
"""The largest number of attention weights in an answer."""
MAX_TOKENS = 256
MAX_TOP = 10


def make_routes(studio: Studio) -> list[BaseRoute]:
    """Return the endpoints."""

    async def read(request: Request) -> Response:
        body = await read_body(request, ["run", "text", "top"])
        return json_response(await studio.compute(_read, studio, body))

    return [Route("/api/inside/read", read, methods=["POST"])]


def _read(studio: Studio, body: Json) -> dict[str, Any]:
    loaded = studio.models.load(body["run"].as_text())
    model, config = loaded.model, loaded.model.config
    top = read_integer(body.get("top"), 5, least=1, most=MAX_TOP)
    ids = encode_document(loaded.tokenizer, read_request_text(body))
    num_tokens = len(ids)
    ids = ids[: compute_token_limit(config.num_layers * config.num_heads, config.context_length)]
    weights, notice = None, ""
    with loaded.lock:
        lens = logit_lens(model, ids, top=min(top, config.vocab_size))
        norms = residual_norms(model, ids)
        try:
            weights = attention_weights_by_layer(model, ids)
        except UsageError as error:  # a plugin's attention may have no weights; the rest can still be shown
            notice = str(error)
    for values in (norms, *(layer.probabilities for layer in lens)):
        check_finite(values)
    shown = {id for layer in lens for id in layer.ids.flatten().tolist()} | set(ids)
    return {
        "ids": ids,
        "num_tokens": num_tokens,
        "tokens": {id: loaded.describe_token(id) for id in sorted(shown)},
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "norms": [[round(value, 4) for value in row] for row in norms.tolist()],
        "lens": [
            {
                "ids": layer.ids.tolist(),
                "p": [[round(p, 5) for p in row] for row in layer.probabilities.tolist()],
            }
            for layer in lens
        ],
        "attention": None if weights is None else pack_weights(weights),
        "notice": notice,
    }


def compute_token_limit(num_maps: int, context_length: int) -> int:
    """Return how many tokens of a text are shown at most, for a number of attention maps.

    >>> compute_token_limit(6, 256), compute_token_limit(144, 1024)
    (256, 166)
    """
    # n tokens have n(n+1)/2 weights in each map.
    return min(context_length, MAX_TOKENS, math.isqrt(2 * MAX_WEIGHTS // num_maps))


def pack_weights(weights: Float[Tensor, "layers heads queries keys"]) -> str:
    """Return the weights on each token itself and on those before it as Base64 of one byte each.

    The order is layer, head, token, earlier token.
    """
    num_tokens = weights.shape[-1]
    rows, columns = torch.tril_indices(num_tokens, num_tokens)
    scaled = (weights.cpu()[..., rows, columns] * 255).round().clamp(0, 255).to(torch.uint8)
    return base64.b64encode(scaled.numpy().tobytes()).decode("ascii")
