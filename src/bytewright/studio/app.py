"""The server of the studio: its views, its page, the checks before every request, and the process.

The files of the page are read when the server starts, and requests select one of them by name: no path of a
request reaches the file system. If the server requires an API key, the page asks for it and exchanges it for
a cookie at `/login`. The files of the page themselves need no key.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import bytewright
from bytewright.errors import BytewrightError
from bytewright.serve.app import Lifespan
from bytewright.serve.guard import Guard, GuardOptions, RejectedError
from bytewright.serve.protocol import json_response, read_body
from bytewright.serve.server import AnnouncedServer, ServerOptions, configure, run_server
from bytewright.studio import calculator, inside, runs, tokenizers, write
from bytewright.studio.context import Studio

STATIC = Path(__file__).with_name("static")
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
COOKIE = "bytewright_studio"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


VIEWS = (runs, tokenizers, write, inside, calculator)
"""The modules of the views; each has `make_routes`."""


def make_studio_app(studio: Studio, options: GuardOptions, *, lifespan: Lifespan | None = None) -> ASGIApp:
    """Return the app of a studio: the page, and the endpoints of all views."""
    files = read_static()

    async def show_page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            raise RejectedError(404, "the page has no such file")
        content, content_type = files[name]
        return Response(content, headers={"cache-control": "no-cache"}, media_type=content_type)

    async def show_studio(request: Request) -> Response:
        folder = studio.folder
        about = {"folder": folder.name, "argument": folder.argument, "version": bytewright.__version__}
        return json_response(about)

    async def log_in(request: Request) -> Response:
        """Exchange the API key for a cookie, which the browser sends with links and streams, too."""
        body = await read_body(request, ["key"])
        key = options.api_key or ""
        if not hmac.compare_digest(body["key"].as_text().encode(), key.encode()):
            raise RejectedError(401, "the API key is wrong")
        response = json_response({"ok": True})
        response.set_cookie(COOKIE, cookie_of(key), httponly=True, samesite="strict")
        return response

    async def show_health(request: Request) -> Response:
        return json_response({"status": "ok"})

    routes = [
        Route("/", show_page),
        Route("/static/{name:path}", show_page),
        Route("/login", log_in, methods=["POST"]),
        Route("/health", show_health),
        Route("/api/studio", show_studio),
        *(route for view in VIEWS for route in view.make_routes(studio)),
    ]
    return StudioGuard(Router(routes, redirect_slashes=False, lifespan=lifespan), options, studio)


def read_static() -> dict[str, tuple[bytes, str]]:
    """Return the files of the page by their names below `static`, with their types."""
    return {
        path.relative_to(STATIC).as_posix(): (path.read_bytes(), CONTENT_TYPES[path.suffix])
        for path in STATIC.rglob("*")
        if path.suffix in CONTENT_TYPES
    }


def cookie_of(key: str) -> str:
    """Return the value of the cookie for an API key; the key cannot be computed from it."""
    return hashlib.sha256(b"bytewright studio " + key.encode()).hexdigest()


class StudioGuard(Guard):
    """The checks of `serve`, with a cookie as an alternative to the header, and with security headers.

    Errors name files by their path below the folder of the studio.
    """

    def __init__(self, app: ASGIApp, options: GuardOptions, studio: Studio) -> None:
        super().__init__(app, options)
        self.studio = studio

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await super().__call__(scope, receive, send_secured)

    def describe(self, error: BytewrightError) -> str:
        """Return the message of an error for the page."""
        return self.studio.describe(error)

    def is_open(self, path: str) -> bool:
        """Return whether a path needs no API key: the files of the page, and the exchange of the key."""
        return super().is_open(path) or path in ("/", "/login") or path.startswith("/static/")

    def has_key(self, headers: Headers, key: str) -> bool:
        """Return whether a request has the API key, or the cookie for it."""
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        return hmac.compare_digest(cookie.encode(), cookie_of(key).encode()) or super().has_key(headers, key)


def run_studio(path: Path, options: ServerOptions, *, announce: Callable[[str], object]) -> None:
    """Serve the studio of a folder until a signal arrives; `announce` gets the address.

    A signal is raised again after the server has ended.
    """
    run_server(StudioServer(path, options, announce), options)


class StudioServer(AnnouncedServer):
    """The server of a studio; a signal ends its streams first, and then the server."""

    def __init__(self, path: Path, options: ServerOptions, announce: Callable[[str], object]) -> None:
        self.studio = Studio(path)
        app = make_studio_app(self.studio, options.guard, lifespan=self._end_studio)
        super().__init__(configure(app, options), announce)

    @contextlib.asynccontextmanager
    async def _end_studio(self, app: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.studio.end_streams()
            self.studio.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the streams and then the server."""
        self.studio.end_streams()
        super().handle_exit(sig, frame)
