"""Connections above the limit, data that is not HTTP, and clients that end their sending side."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bytewright.errors import UsageError
from bytewright.serve.app import wait_for_disconnect
from bytewright.serve.guard import GuardOptions
from bytewright.serve.protocol import read_body
from bytewright.serve.server import ServerOptions, configure, listening_socket
from rejection import rejects
from servers import HANG_SECONDS

REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
MAX_CONNECTIONS = 3


async def answer_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("answer")(scope, receive, send)


@contextlib.asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    """Serve an app with the protocol of the server; yield the port."""
    options = ServerOptions(port=0, max_connections=MAX_CONNECTIONS)
    with listening_socket(options) as listener:
        config = configure(app, options)
        config.lifespan = "off"
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup([listener])
        try:
            yield listener.getsockname()[1]
        finally:
            await server.shutdown([listener])


def test_an_address_that_cannot_be_used_is_an_error_that_names_the_wrong_option() -> None:
    with listening_socket(ServerOptions(port=0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        elsewhere = GuardOptions(host="192.0.2.1", api_key="key")  # an address for documentation
        for options, key, found in [
            (ServerOptions(port=port), "port", port),
            (ServerOptions(port=2**16), "port", 2**16),
            (ServerOptions(port=0, guard=elsewhere), "host", "192.0.2.1"),
        ]:
            with rejects(UsageError, key=key, found=found) as caught, listening_socket(options):
                pass
            assert "Errno" not in str(caught.value)


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def with_server(app: ASGIApp, use: Callable[[Callable[[], Awaitable[Connection]]], Awaitable[None]]) -> None:
    """Run `use` with a function that connects to a server."""

    async def run() -> None:
        async with asyncio.timeout(HANG_SECONDS), serving(app) as port, contextlib.AsyncExitStack() as stack:

            async def connect() -> Connection:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                stack.callback(writer.close)
                return reader, writer

            await use(connect)

    asyncio.run(run())


async def read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers and the body of a response whose length is stated."""
    status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    headers = dict(line.split(": ", 1) for line in lines if line)
    return int(status_line.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


def test_a_connection_above_the_limit_is_answered_with_503_and_closed() -> None:
    async def use(connect: Callable[[], Awaitable[Connection]]) -> None:
        accepted = [await connect() for _ in range(MAX_CONNECTIONS)]
        for reader, writer in accepted:
            writer.write(REQUEST)
            assert (await read_response(reader))[0] == 200
        reader, writer = await connect()
        writer.write(REQUEST)
        status, headers, body = await read_response(reader)
        assert status == 503
        assert int(headers["retry-after"]) >= 1
        assert headers["content-type"] == "application/json"
        error: dict[str, Any] = json.loads(body)["error"]
        assert (error["type"], error["code"]) == ("server_error", 503)
        assert await reader.read() == b""
        reader, writer = accepted[0]  # the accepted connections can still be used
        writer.write(REQUEST)
        assert (await read_response(reader))[0] == 200
        writer.close()
        await writer.wait_closed()
        status = 503
        while status == 503:  # until the server has processed the end of that connection
            reader, writer = await connect()
            writer.write(REQUEST)
            status, _, _ = await read_response(reader)
        assert status == 200

    with_server(answer_at_once, use)


def test_data_that_is_not_http_is_answered_with_400_as_json() -> None:
    async def use(connect: Callable[[], Awaitable[Connection]]) -> None:
        reader, writer = await connect()
        writer.write(b"hello\r\n\r\n")
        status, headers, body = await read_response(reader)
        assert (status, headers["content-type"]) == (400, "application/json")
        assert json.loads(body)["error"]["code"] == 400
        assert await reader.read() == b""

    with_server(answer_at_once, use)


def test_clients_cannot_cause_warnings_but_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def use(connect: Callable[[], Awaitable[Connection]]) -> None:
        reader, writer = await connect()
        writer.write(b"hello\r\n\r\n")
        assert (await read_response(reader))[0] == 400
        for upgrade in ("websocket", "h2c"):
            reader, writer = await connect()
            headers = f"Connection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
            writer.write(REQUEST.removesuffix(b"\r\n") + headers.encode())
            assert (await read_response(reader))[0] == 200

    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("of the app")

    async def use_failing(connect: Callable[[], Awaitable[Connection]]) -> None:
        reader, writer = await connect()
        writer.write(REQUEST)
        assert (await reader.readline()).startswith(b"HTTP/1.1 500")

    with_server(answer_at_once, use)
    assert caplog.messages == []
    with_server(fail, use_failing)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_broken_body_of_an_answered_request_ends_the_connection() -> None:
    """The response was sent, so the error has no response of its own."""
    errors: list[dict[str, Any]] = []

    async def use(connect: Callable[[], Awaitable[Connection]]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        reader, writer = await connect()
        writer.write(CHUNKED)
        assert (await read_response(reader))[0] == 200
        writer.write(b"not a chunk\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""

    with_server(answer_at_once, use)
    assert not errors


def test_a_request_that_is_answered_at_once_may_end_the_sending_side() -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(Request(scope, receive), ["prompt"])
        await Response(body["prompt"].as_text())(scope, receive, send)

    async def use(connect: Callable[[], Awaitable[Connection]]) -> None:
        reader, writer = await connect()
        head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 15\r\n\r\n"
        writer.write(head + b'{"prompt": "a"}')
        writer.write_eof()
        assert (await read_response(reader))[::2] == (200, b"a")

    with_server(answer, use)


def test_the_end_of_the_sending_side_cancels_a_request_that_waits() -> None:
    """A client that closes its connection sends the same, and its jobs must not occupy slots."""
    num_cancelled = 0

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_cancelled
        await wait_for_disconnect(receive)
        num_cancelled += 1

    async def use(connect: Callable[[], Awaitable[Connection]]) -> None:
        reader, writer = await connect()
        writer.write(REQUEST)
        writer.write_eof()
        assert await reader.read() == b""
        reader, writer = await connect()
        writer.write(REQUEST)
        writer.close()
        while num_cancelled < 2:
            await asyncio.sleep(0.01)

    with_server(wait, use)
