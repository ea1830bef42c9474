"""Responses of server-sent events. A response ends when its source, its client or the server ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from starlette.types import Receive, Scope, Send

from bytewright.errors import BytewrightError
from bytewright.serve.protocol import dump
from bytewright.studio.context import Studio

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
QUIET_SECONDS = 15.0
"""After this time without an event a comment is sent, so that proxies keep the connection."""

Event = tuple[str, object]
"""The name of an event, and its data, which are sent as JSON."""


class EventStream:
    """An ASGI response that sends the events of an asynchronous iterator.

    An error of Bytewright in the iterator becomes the event `error` with its `message`, and ends the stream.
    The iterator is closed when the client leaves or the server ends.
    """

    def __init__(self, studio: Studio, events: AsyncGenerator[Event, None]) -> None:
        self.studio, self.events = studio, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        with self.studio.open_stream():
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            sending = asyncio.create_task(self._send_events(send))
            others = {
                asyncio.create_task(_wait_for_disconnect(receive)),
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
            body = format_event("error", {"message": str(error)})
            await send({"type": "http.response.body", "body": body, "more_body": True})


def format_event(name: str, data: object) -> bytes:
    r"""Return one server-sent event.

    >>> format_event("runs", [1, 2])
    b'event: runs\ndata: [1,2]\n\n'
    """
    return b"event: " + name.encode() + b"\ndata: " + dump(data) + b"\n\n"


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
            yield format_event(name, data)
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await events.aclose()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
