"""The endpoint `/v1/completions`: one request, from its body to the last event of its stream.

The endpoint is a plain ASGI application. While the engine works, it also waits for a disconnect of the
client, and then cancels the jobs at once. A response starts with the first update, so that a request that
fails before it gets a proper status.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bytewright.errors import shorten
from bytewright.serve.engine import EngineError, Job, Update
from bytewright.serve.metrics import Metrics
from bytewright.serve.protocol import (
    CompletionRequest,
    CompletionWriter,
    choice_of,
    dump,
    error_body,
    event,
    read_completion,
)
from bytewright.serve.service import Service, Updates
from bytewright.serve.text import ChoiceText


class _Choice:
    """One text of a request."""

    def __init__(self, request: CompletionRequest, index: int, service: Service) -> None:
        self.index = index
        self.prompt_text, self.prompt = request.prompts[index // request.n]
        has_logprobs = request.logprobs is not None
        self.text = ChoiceText(service.loaded.tokenizer, request.stop, has_logprobs=has_logprobs)
        self.must_echo = request.echo
        self.waits_for_scores = request.echo and has_logprobs and len(self.prompt) > 1
        self.last_token = 0.0
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


class Completions:
    """The endpoint: an ASGI application that runs one request at a time in each call."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self.service, self.metrics = service, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = time.perf_counter()
        loaded = self.service.loaded
        request = read_completion(await Request(scope, receive).body(), loaded.tokenizer)
        if request.model not in (None, loaded.name):
            response = error_body(f"this server has no model {shorten(request.model)}", 404, "model")
            await json_response(response, 404)(scope, receive, send)
            return
        jobs = request.jobs()
        for job in jobs:
            self.service.engine.check(job)
        with self.service.run(jobs) as updates:
            watcher = asyncio.create_task(watch_disconnect(receive, updates))
            try:
                answer = self._stream if request.stream else self._collect
                await answer(request, jobs, updates, send, started)
            except ClientDisconnect:
                self.metrics.count_disconnect()
            finally:
                watcher.cancel()

    async def _collect(
        self, request: CompletionRequest, jobs: Sequence[Job], updates: Updates, send: Send, started: float
    ) -> None:
        """Wait for all choices and send one response."""
        choices = {job: _Choice(request, index, self.service) for index, job in enumerate(jobs)}
        texts = dict.fromkeys(jobs, "")
        open_jobs = set(jobs)
        while open_jobs:
            job, update = await self._next(updates)
            if job not in open_jobs:
                continue
            if update.ids and not any(choice.text.num_tokens for choice in choices.values()):
                self.metrics.first_token.observe(time.perf_counter() - started)
            texts[job] += choices[job].feed(update)
            if choices[job].reason is not None:
                open_jobs.discard(job)
                self.service.engine.cancel([job])
        writer = CompletionWriter(request, self.service.loaded.name)
        results = [
            choice_of(choice.index, texts[job], choice.text.take_logprobs(is_last=True), choice.reason)
            for job, choice in choices.items()
        ]
        num_new_tokens = sum(choice.text.num_tokens for choice in choices.values())
        body = writer.whole(results, num_new_tokens)
        await send_start(send, "application/json", len(body))
        await send_body(send, body, more=False)
        self.metrics.duration.observe(time.perf_counter() - started)

    async def _stream(
        self, request: CompletionRequest, jobs: Sequence[Job], updates: Updates, send: Send, started: float
    ) -> None:
        """Send the text of all choices as it is written."""
        choices = {job: _Choice(request, index, self.service) for index, job in enumerate(jobs)}
        open_jobs = set(jobs)
        writer = CompletionWriter(request, self.service.loaded.name)
        has_started = False
        while open_jobs:
            try:
                batch = [await self._next(updates)]
                while not updates.empty():  # a slow client gets several tokens at once
                    batch.append(await self._next(updates))
            except EngineError as error:
                if not has_started:
                    raise
                await send_body(send, event(error_body(str(error), 500)), more=False)
                return
            events = []
            for job, update in batch:
                if job not in open_jobs:
                    continue
                choice = choices[job]
                if update.ids and choice.text.num_tokens:
                    self.metrics.next_token.observe(time.perf_counter() - choice.last_token)
                elif update.ids:
                    self.metrics.first_token.observe(time.perf_counter() - started)
                choice.last_token = time.perf_counter()
                text = choice.feed(update)
                is_last = choice.reason is not None
                logprobs = choice.text.take_logprobs(is_last=is_last)
                if text or is_last or (logprobs and logprobs["tokens"]):
                    events.append(writer.chunk(choice_of(choice.index, text, logprobs, choice.reason)))
                if is_last:
                    open_jobs.discard(job)
                    self.service.engine.cancel([job])
            if events:
                if not has_started:
                    await send_start(send, "text/event-stream")
                    has_started = True
                await send_body(send, b"".join(events), more=True)
        num_new_tokens = sum(choice.text.num_tokens for choice in choices.values())
        await send_body(send, writer.end(num_new_tokens), more=False)
        self.metrics.duration.observe(time.perf_counter() - started)

    async def _next(self, updates: Updates) -> tuple[Job, Update]:
        """Return the next update; raise if the client has gone or a job failed."""
        found = await updates.get()
        if found is None:
            raise ClientDisconnect
        job, update = found
        if update.error is not None:
            raise EngineError(update.error)
        return job, update


async def watch_disconnect(receive: Receive, updates: Updates) -> None:
    """Put None into the queue when the client disconnects."""
    with contextlib.suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
        updates.put_nowait(None)


async def send_start(send: Send, content_type: str, length: int | None = None) -> None:
    """Send the status line and the headers of a successful response."""
    headers = [(b"content-type", content_type.encode()), (b"cache-control", b"no-store")]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def send_body(send: Send, body: bytes, *, more: bool) -> None:
    """Send a part of the body."""
    await send({"type": "http.response.body", "body": body, "more_body": more})


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with JSON."""
    return Response(dump(content), status, headers, media_type="application/json")
