"""The app: all routes of the server, behind the checks of `guard`.

`/v1/completions` is a plain ASGI application. While the engine works, it also waits for a disconnect of the
client, and then cancels the jobs at once. A response starts with the first update, so that a request that
fails before it gets a proper status.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from bytewright.errors import shorten
from bytewright.serve.guard import RETRY_SECONDS, Guard, GuardOptions, RejectedError
from bytewright.serve.jobs import EngineError, Job, Update
from bytewright.serve.protocol import (
    CompletionRequest,
    CompletionWriter,
    choice_of,
    error_body,
    event,
    json_response,
    read_body,
    read_completion,
    read_ids,
    read_model_name,
)
from bytewright.serve.service import Arrival, ServedModel, Service, Updates
from bytewright.serve.text import ChoiceText

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def make_app(service: Service, options: GuardOptions, *, lifespan: Lifespan | None = None) -> ASGIApp:
    """Return the app of a service."""
    endpoints = Endpoints(service)
    routes = [
        Route("/v1/completions", Completions(service), methods=["POST"]),
        Route("/v1/models", endpoints.list_models),
        Route("/v1/models/{name:path}", endpoints.show_model),
        Route("/tokenize", endpoints.tokenize, methods=["POST"]),
        Route("/detokenize", endpoints.detokenize, methods=["POST"]),
        Route("/health", endpoints.show_health),
        Route("/metrics", endpoints.show_metrics),
    ]
    paths = [route.path for route in routes if not route.param_convertors]
    return Guard(Router(routes, redirect_slashes=False, lifespan=lifespan), options, service, paths)


class Endpoints:
    """The endpoints that answer at once."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def _describe_model(self) -> dict[str, Any]:
        loaded = self.service.loaded
        return {
            "id": loaded.name,
            "object": "model",
            "created": 0,
            "owned_by": "bytewright",
            "context_length": loaded.model.config.context_length,
            "vocab_size": loaded.tokenizer.vocab_size,
        }

    async def list_models(self, request: Request) -> Response:
        """Answer /v1/models."""
        return json_response({"object": "list", "data": [self._describe_model()]})

    async def show_model(self, request: Request) -> Response:
        """Answer /v1/models/NAME."""
        _check_model(request.path_params["name"], self.service.loaded)
        return json_response(self._describe_model())

    async def tokenize(self, request: Request) -> Response:
        """Answer /tokenize: text to ids."""
        loaded = self.service.loaded
        body = await read_body(request, ["model", "prompt"])
        _check_model(read_model_name(body), loaded)
        ids = loaded.tokenizer.encode(body["prompt"].as_text())
        limit = loaded.model.config.context_length
        return json_response({"tokens": ids, "count": len(ids), "max_model_len": limit})

    async def detokenize(self, request: Request) -> Response:
        """Answer /detokenize: ids to text."""
        loaded = self.service.loaded
        body = await read_body(request, ["model", "tokens"])
        _check_model(read_model_name(body), loaded)
        ids = read_ids(body["tokens"], loaded.tokenizer)
        return json_response({"prompt": loaded.tokenizer.decode(ids)})

    async def show_health(self, request: Request) -> Response:
        """Answer /health."""
        if self.service.state == "ready":
            return json_response({"status": "ok"})
        return json_response({"status": self.service.state}, 503, {"retry-after": str(RETRY_SECONDS)})

    async def show_metrics(self, request: Request) -> Response:
        """Answer /metrics."""
        content = self.service.metrics.render()
        return Response(content, media_type="text/plain; version=0.0.4; charset=utf-8")


class Completions:
    """The endpoint /v1/completions."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = self.service.clock()
        loaded = self.service.loaded
        request = read_completion(await Request(scope, receive).body(), loaded.tokenizer)
        _check_model(request.model, loaded)
        request.check_prompts(loaded.model.config)
        jobs = request.jobs()
        for job in jobs:
            self.service.engine.check(job)
        with self.service.run(jobs) as updates:
            answer = _Answer(self.service, request, jobs, updates, started)
            watcher = asyncio.create_task(_watch_disconnect(receive, updates))
            try:
                await (answer.stream if request.stream else answer.send_whole)(send)
            finally:
                watcher.cancel()


class _Choice:
    """One text of a request."""

    def __init__(self, request: CompletionRequest, index: int, service: Service) -> None:
        self.index = index
        self.prompt_text, self.prompt = request.prompts[index // request.n]
        has_logprobs = request.logprobs is not None
        self.text = ChoiceText(service.loaded.tokenizer, request.stop, has_logprobs=has_logprobs)
        self.must_echo = request.echo
        self.waits_for_scores = request.echo and has_logprobs and len(self.prompt) > 1
        self.last_arrival: float | None = None
        """When the newest tokens arrived."""
        self.reason: str | None = None

    def feed(self, update: Update) -> str:
        """Return the text that an update adds; set `reason` at the end."""
        pieces = []
        if self.must_echo and (update.prompt_scores or not self.waits_for_scores or update.is_last):
            pieces.append(self.text.feed_prompt(self.prompt_text, self.prompt, update.prompt_scores))
            self.must_echo = False
        pieces.append(self.text.feed(update.ids, update.scores))
        if update.reason is not None:
            pieces.append(self.text.finish())
        self.reason = "stop" if self.text.is_stopped else update.reason
        return "".join(pieces)


class _Answer:
    """The answer to one request, from the updates of its jobs: as a whole or as a stream.

    The request began at the time `started` of the service's clock.
    """

    def __init__(
        self,
        service: Service,
        request: CompletionRequest,
        jobs: Sequence[Job],
        updates: Updates,
        started: float,
    ) -> None:
        self.service, self.metrics, self.updates = service, service.metrics, updates
        self.started = started
        self.writer = CompletionWriter(request, service.loaded.name)
        self.choices = {job: _Choice(request, index, service) for index, job in enumerate(jobs)}
        self.open_jobs = set(jobs)

    @property
    def num_tokens(self) -> int:
        """The number of new tokens of all choices."""
        return sum(choice.text.num_tokens for choice in self.choices.values())

    async def send_whole(self, send: Send) -> None:
        """Wait for all choices and send one response."""
        texts = dict.fromkeys(self.choices, "")
        while self.open_jobs:
            arrival = await self._next()
            if arrival.job in self.open_jobs:
                texts[arrival.job] += self._feed(arrival)
        results = [
            choice_of(choice.index, texts[job], choice.text.take_logprobs(is_last=True), choice.reason)
            for job, choice in self.choices.items()
        ]
        body = self.writer.whole(results, self.num_tokens)
        await _send_start(send, "application/json", len(body))
        await _send_body(send, body, more=False)
        self.metrics.duration.add(self.service.clock() - self.started)

    async def stream(self, send: Send) -> None:
        """Send the text of all choices as it is written."""
        has_started = False
        while self.open_jobs:
            batch = [await self._next()]
            while not self.updates.empty():  # a slow client gets several tokens at once
                batch.append(await self._next())
            events = b""
            try:
                for arrival in batch:
                    if arrival.job in self.open_jobs:
                        events += self._write_event(arrival)
            except EngineError as error:
                if not has_started:
                    raise
                await _send_body(send, events + event(error_body(str(error), 500)), more=False)
                return
            if events:
                if not has_started:
                    await _send_start(send, "text/event-stream")
                    has_started = True
                await _send_body(send, events, more=True)
        await _send_body(send, self.writer.end(self.num_tokens), more=False)
        self.metrics.duration.add(self.service.clock() - self.started)

    async def _next(self) -> Arrival:
        """Return the next update, also of an ended choice; raise if the client has disconnected."""
        arrival = await self.updates.get()
        if arrival is None:
            raise ClientDisconnect
        return arrival

    def _feed(self, arrival: Arrival) -> str:
        """Return the text that an update adds, and cancel the job at its end; raise if the job failed."""
        if arrival.update.error is not None:
            raise EngineError(arrival.update.error)
        choice = self.choices[arrival.job]
        self._record_times(choice, arrival)
        text = choice.feed(arrival.update)
        if choice.reason is not None:
            self.open_jobs.discard(arrival.job)
            self.service.engine.cancel([arrival.job])
        return text

    def _record_times(self, choice: _Choice, arrival: Arrival) -> None:
        """Record the latencies of new tokens; those of one update share its time in equal parts."""
        count = len(arrival.update.ids)
        if not count:
            return
        if choice.last_arrival is None:  # the engine reports the first token alone
            self.metrics.first_token.add(arrival.seconds - self.started)
        else:
            self.metrics.next_token.add((arrival.seconds - choice.last_arrival) / count, count)
        choice.last_arrival = arrival.seconds

    def _write_event(self, arrival: Arrival) -> bytes:
        """Return the event of an update, or nothing if it adds nothing."""
        choice = self.choices[arrival.job]
        text = self._feed(arrival)
        is_last = choice.reason is not None
        logprobs = choice.text.take_logprobs(is_last=is_last)
        if text or is_last or (logprobs and logprobs["tokens"]):
            return self.writer.chunk(choice_of(choice.index, text, logprobs, choice.reason))
        return b""


def _check_model(name: str | None, loaded: ServedModel) -> None:
    """Raise if a request names another model."""
    if name not in (None, loaded.name):
        message = f"this server has no model {shorten(name)}; its model is {shorten(loaded.name)}"
        raise RejectedError(404, message, key="model")


async def _watch_disconnect(receive: Receive, updates: Updates) -> None:
    """Put None into the queue when the client disconnects."""
    with contextlib.suppress(asyncio.CancelledError):
        await wait_for_disconnect(receive)
        updates.put_nowait(None)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_start(send: Send, content_type: str, length: int | None = None) -> None:
    """Send the status line and the headers of a successful response."""
    headers = [(b"content-type", content_type.encode()), (b"cache-control", b"no-store")]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send_body(send: Send, body: bytes, *, more: bool) -> None:
    """Send a part of the body."""
    await send({"type": "http.response.body", "body": body, "more_body": more})
