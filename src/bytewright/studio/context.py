"""What the endpoints of several views share.

`Studio` is an argument of every view. `EventStream` is a response of server-sent events. `read_request_text`
returns the text that a request sends to a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from starlette.types import Receive, Scope, Send

from bytewright.errors import BytewrightError, UsageError
from bytewright.serve.app import wait_for_disconnect
from bytewright.serve.guard import RejectedError
from bytewright.serve.protocol import event
from bytewright.storage.json_reader import Json
from bytewright.studio.folder import StudioFolder
from bytewright.studio.models import Models

NUM_THREADS = 4
MAX_STREAMS = 48
"""How many streams of events may be open: one per visible page of Runs, and one per text being generated."""
STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
QUIET_SECONDS = 15.0
"""After this time without an event a comment is sent, so that proxies keep the connection."""
MAX_TEXT_CHARACTERS = 100_000

Event = tuple[str, object]
"""The name of an event, and its data, which are sent as JSON."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Studio:
    """The folder that a studio shows, its models in memory, threads for its work, and its open streams."""

    def __init__(self, path: Path) -> None:
        self.folder = StudioFolder(path)
        self.models = Models(self.folder)
        self.num_streams = 0
        self.is_stopping = asyncio.Event()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="studio")

    async def compute(
        self, function: Callable[Arguments, Result], *given: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        """Run a function on a thread and return its result; the event loop continues meanwhile."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *given, **options))

    @contextlib.contextmanager
    def open_stream(self) -> Iterator[None]:
        """Count a stream while it is open; raise `RejectedError` with status 503 if there are too many."""
        if self.num_streams >= MAX_STREAMS:
            message = (
                f"the studio has {MAX_STREAMS} open streams, which is the limit: one per visible page of"
                " Runs, and one per text that is being generated; close a page, or stop a text"
            )
            raise RejectedError(503, message)
        self.num_streams += 1
        try:
            yield
        finally:
            self.num_streams -= 1

    def describe(self, error: BytewrightError) -> str:
        """Return the message of an error, with paths relative to the folder."""
        return str(error).replace(f"{self.folder.path}{os.sep}", "")

    def end_streams(self) -> None:
        """End all streams, so that the server can end."""
        self.is_stopping.set()

    def close(self) -> None:
        """Shut down the threads without waiting for work that has begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def read_request_text(body: Json) -> str:
    """Return the text that a request sends to a model."""
    text = body["text"].as_text()
    if len(text) > MAX_TEXT_CHARACTERS:
        raise UsageError(f"the text has more than {MAX_TEXT_CHARACTERS:,} characters; shorten it", key="text")
    return text


class EventStream:
    """An ASGI response that sends the events of an asynchronous generator.

    It ends with the generator, or when the client disconnects or the server ends; the generator is then
    closed. A `BytewrightError` in the generator is sent as the event `error` and ends the stream.
    """

    def __init__(self, studio: Studio, events: AsyncGenerator[Event, None]) -> None:
        self.studio, self.events = studio, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        with self.studio.open_stream():
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            sending = asyncio.create_task(self._send_events(send))
            others = {
                asyncio.create_task(wait_for_disconnect(receive)),
                asyncio.create_task(self.studio.is_stopping.wait()),
            }
            try:
                await asyncio.wait({sending, *others}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, *others):
                    task.cancel()
                await asyncio.gather(sending, *others, return_exceptions=True)
            if not sending.cancelled() and (error := sending.exception()):
                raise error
            with contextlib.suppress(OSError):
                await send({"type": "http.response.body", "body": b""})

    async def _send_events(self, send: Send) -> None:
        try:
            async with contextlib.aclosing(_with_comments(self.events)) as messages:
                async for message in messages:
                    await send({"type": "http.response.body", "body": message, "more_body": True})
        except BytewrightError as error:
            body = event({"message": self.studio.describe(error)}, "error")
            await send({"type": "http.response.body", "body": body, "more_body": True})


async def _with_comments(events: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    """Yield the events as bytes, with a comment after each `QUIET_SECONDS` without one."""
    coming: asyncio.Task[Event] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({coming}, timeout=QUIET_SECONDS)
            if not done:
                yield b": no event\n\n"
                continue
            task, coming = coming, None
            try:
                name, data = task.result()
            except StopAsyncIteration:
                return
            yield event(data, name)
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await events.aclose()
