"""The app: all routes of the server, behind the checks of `guard`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from bytewright.errors import FormatError, shorten
from bytewright.serve.completions import Completions, json_response
from bytewright.serve.guard import Guard, GuardOptions
from bytewright.serve.metrics import Metrics
from bytewright.serve.protocol import check_keys, error_body, read_object
from bytewright.serve.service import Service

Handler = Callable[[Request], Awaitable[Response]]
Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def make_app(service: Service, options: GuardOptions, *, lifespan: Lifespan | None = None) -> ASGIApp:
    """Return the app of a service."""
    metrics = Metrics(service)
    routes = [
        Route("/v1/completions", Completions(service, metrics), methods=["POST"]),
        Route("/v1/models", list_models(service)),
        Route("/v1/models/{name:path}", show_model(service)),
        Route("/tokenize", tokenize(service), methods=["POST"]),
        Route("/detokenize", detokenize(service), methods=["POST"]),
        Route("/health", show_health(service)),
        Route("/metrics", show_metrics(metrics)),
    ]
    router = Router(routes, redirect_slashes=False, lifespan=lifespan)
    return Guard(router, options, counter=metrics, is_draining=lambda: service.is_draining)


def describe_model(service: Service) -> dict[str, Any]:
    """Return the served model as the API describes it."""
    loaded = service.loaded
    return {
        "id": loaded.name,
        "object": "model",
        "created": 0,
        "owned_by": "bytewright",
        "context_length": loaded.model.config.context_length,
        "vocab_size": loaded.tokenizer.vocab_size,
    }


def list_models(service: Service) -> Handler:
    """Return the handler of /v1/models."""

    async def handle(request: Request) -> Response:
        return json_response({"object": "list", "data": [describe_model(service)]})

    return handle


def show_model(service: Service) -> Handler:
    """Return the handler of /v1/models/NAME."""

    async def handle(request: Request) -> Response:
        model = describe_model(service)
        if request.path_params["name"] != model["id"]:
            return json_response(error_body("this server has no such model", 404, "model"), 404)
        return json_response(model)

    return handle


def tokenize(service: Service) -> Handler:
    """Return the handler of /tokenize: text to ids."""

    async def handle(request: Request) -> Response:
        tokenizer = service.loaded.tokenizer
        body = read_object(await request.body())
        check_keys(body, ["model", "prompt"])
        ids = tokenizer.encode(body["prompt"].as_text())
        limit = service.loaded.model.config.context_length
        return json_response({"tokens": ids, "count": len(ids), "max_model_len": limit})

    return handle


def detokenize(service: Service) -> Handler:
    """Return the handler of /detokenize: ids to text."""

    async def handle(request: Request) -> Response:
        tokenizer = service.loaded.tokenizer
        body = read_object(await request.body())
        check_keys(body, ["model", "tokens"])
        ids = [it.as_integer() for it in body["tokens"].elements()]
        for id in ids:
            if id not in tokenizer.vocab:
                message = f"request: tokens has the id {shorten(id)}, which is not in the vocabulary"
                raise FormatError(message, key="tokens", found=id)
        return json_response({"prompt": tokenizer.decode(ids)})

    return handle


def show_health(service: Service) -> Handler:
    """Return the handler of /health."""

    async def handle(request: Request) -> Response:
        if service.state == "ready":
            return json_response({"status": "ok"})
        return json_response({"status": service.state}, 503, {"retry-after": "5"})

    return handle


def show_metrics(metrics: Metrics) -> Handler:
    """Return the handler of /metrics."""

    async def handle(request: Request) -> Response:
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return handle
