"""Checks before every route (Host, Origin, API key, size and duration of the body), and error responses.

A web page of another site can make a browser send requests to this server. The Origin header then has the
name of that site; with DNS rebinding, the Host header has it, too. An Origin that differs from the Host is
rejected, and so is a wrong Host on a loopback address. On another address the server cannot determine its own
names. It then accepts any Host by default, but requires an API key, which such a page does not have. There
are no CORS headers.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bytewright.errors import BytewrightError, UsageError, shorten
from bytewright.serve.jobs import EngineClosedError, EngineError, QueueFullError
from bytewright.serve.protocol import error_body, json_response
from bytewright.serve.service import Service

logger = logging.getLogger(__name__)

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
OPEN_PATHS = ("/health",)
"""Paths that need no API key."""
RETRY_SECONDS = 5
"""The `Retry-After` of responses with the status 503: the server loads its model, shuts down, has too many
connections, or has lost its GPU. How long that takes is unknown. Retries at this rate cost the server little,
and clients notice soon that it is ready."""


@dataclass(frozen=True, kw_only=True)
class GuardOptions:
    """Who may send requests, and how large and slow they may be."""

    host: str = "127.0.0.1"
    """The address that the server listens on."""
    allowed_hosts: Sequence[str] = ()
    """Names in the Host header that are accepted, besides those of this machine and `host`."""
    api_key: str | None = None
    max_body_bytes: int = 2**20
    read_seconds: float = 20.0
    """The longest time to receive a body."""

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.api_key:
            message = (
                f"{self.host} can be reached by other machines, so an API key is required;"
                " set one, or use the host 127.0.0.1"
            )
            raise UsageError(message, key="api_key")

    def accepts_host(self, host: str) -> bool:
        """Return whether requests with a Host header are accepted.

        A server that other machines can reach accepts any name, unless `allowed_hosts` is given: requests
        have its API key.
        """
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        names = [name.lower() for name in self.allowed_hosts]
        if not is_loopback(self.host) and not names:
            return True
        own = f"[{self.host}]" if ":" in self.host else self.host
        return name.lower() in (*LOOPBACK_NAMES, own.lower(), *names)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class RejectedError(BytewrightError):
    """A request that is rejected with the given status; `key` is the option that is wrong, if it is one."""

    def __init__(self, status: int, message: str, *, key: str | None = None) -> None:
        super().__init__(message, key=key)
        self.status = status


class Guard:
    """Wraps an app: checks each request, limits its body, and turns errors into responses.

    With a `service`, its metrics count the responses. While it drains, errors of its engine have the status
    503 instead of 500. A response with the status 404 lists `paths`.
    """

    def __init__(
        self, app: ASGIApp, options: GuardOptions, service: Service | None = None, paths: Sequence[str] = ()
    ) -> None:
        self.app, self.options, self.service, self.paths = app, options, service, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                if self.service is not None:
                    self.service.metrics.count_response(message["status"])
            await send(message)

        try:
            self._check(scope)
            scope["app"] = self.app  # the router then raises errors instead of answering with plain text
            await self.app(scope, _LimitedBody(receive, self.options), send_and_note)
        except ClientDisconnect:
            if self.service is not None:
                self.service.metrics.count_disconnect()
        except Exception as error:
            status = self._status_of(error)
            if status == 500 and not isinstance(error, EngineError):
                logger.exception("a request failed")
            if has_started:
                raise
            await self._answer(scope, error, status)(scope, receive, send_and_note)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.options.accepts_host(hosts[0]):
            raise RejectedError(403, "the Host header does not name this server")
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}"):
            raise RejectedError(403, "requests from pages of other sites are not allowed")
        key = self.options.api_key
        if key is not None and not self.is_open(scope["path"]) and not self.has_key(headers, key):
            raise RejectedError(401, "the API key is missing or wrong; send Authorization: Bearer KEY")

    def is_open(self, path: str) -> bool:
        """Return whether a path needs no API key."""
        return path in OPEN_PATHS

    def has_key(self, headers: Headers, key: str) -> bool:
        """Return whether a request has the API key."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given.encode("latin-1"), key.encode())  # headers are decoded as Latin-1

    def describe(self, error: BytewrightError) -> str:
        """Return the message of an error for the client."""
        return str(error)

    def _status_of(self, error: Exception) -> int:
        match error:
            case RejectedError():
                return error.status
            case HTTPException():
                return int(error.status_code)
            case QueueFullError():
                return 429
            case EngineClosedError():
                return 503
            case EngineError():
                return 503 if self.service is not None and self.service.is_draining else 500
            case BytewrightError():
                return 400
        return 500

    def _answer(self, scope: Scope, error: Exception, status: int) -> ASGIApp:
        known = f"; this server has {', '.join(self.paths)}" if self.paths else ""
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}  # Allow, for 405
        allowed = " or ".join(sorted(headers.get("Allow", "").split(", ")))
        message = {
            404: f"there is no path {shorten(scope['path'])}{known}",
            405: f"{shorten(scope['path'])} does not accept {shorten(scope['method'])}; use {allowed}",
        }.get(status, "an internal error occurred; the log of the server has details")
        if isinstance(error, BytewrightError):
            message = self.describe(error)
        key = error.key if isinstance(error, BytewrightError) else None
        if isinstance(error, QueueFullError):
            headers["retry-after"] = str(error.retry_seconds)
        elif status == 503:
            headers["retry-after"] = str(RETRY_SECONDS)
        elif status == 401:
            headers["www-authenticate"] = "Bearer"
        if status in (408, 413):
            headers["connection"] = "close"  # the rest of the body is not read
        return json_response(error_body(message, status, key), status, headers)


class _LimitedBody:
    """A `receive` that raises if the body is too large or too slow."""

    def __init__(self, receive: Receive, options: GuardOptions) -> None:
        self.receive, self.options = receive, options
        self.num_bytes = 0
        self.is_complete = False
        self.deadline: float | None = None

    async def __call__(self) -> Message:
        if self.is_complete:
            return await self.receive()
        loop = asyncio.get_running_loop()
        self.deadline = self.deadline or loop.time() + self.options.read_seconds
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self.receive()
        except TimeoutError:
            message = f"the body did not arrive within {self.options.read_seconds:g} seconds"
            raise RejectedError(408, message) from None
        self.num_bytes += len(message.get("body", b""))
        self.is_complete = not message.get("more_body", False)
        if self.num_bytes > self.options.max_body_bytes:
            limit = self.options.max_body_bytes
            raise RejectedError(413, f"the body is larger than {limit} bytes, the limit of this server")
        return message
