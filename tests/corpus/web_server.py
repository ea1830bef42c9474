"""A real web server in a thread, with configurable misbehaviour."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Behaviour:
    """What the server does, and the requests it received."""

    data: bytes
    breaks_off_after: int | None = None
    """Bytes of an answer after which the connection is closed."""
    supports_ranges: bool = True
    claims: int | None = None
    """The announced length, if it is not the true one."""
    announces: bool = True
    """Whether the server announces a length."""
    range_offset: int = 0
    """The difference between the start of the sent and of the requested range."""
    refusals: list[int] = field(default_factory=list)
    """Status codes of the first answers."""
    redirects: bool = False
    """Whether every path except /final is redirected to /final."""
    asked: list[str | None] = field(default_factory=list)
    """The Range header of each request, in order."""


class _Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour

    def do_GET(self) -> None:
        behaviour = self.behaviour
        if behaviour.redirects and self.path != "/final":
            self.send_response(302)
            self.send_header("Location", "/final")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = self.headers.get("Range")
        behaviour.asked.append(asked)
        if behaviour.refusals:
            self.send_error(behaviour.refusals.pop(0))
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and behaviour.supports_ranges else 0
        total = len(behaviour.data) if behaviour.claims is None else behaviour.claims
        if start and start >= len(behaviour.data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{total}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            first = start + behaviour.range_offset
            self.send_header("Content-Range", f"bytes {first}-{total - 1}/{total}")
        if behaviour.announces:
            self.send_header("Content-Length", str(total - start))
        self.end_headers()
        self.wfile.write(behaviour.data[start:][: behaviour.breaks_off_after])

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def serve(behaviour: Behaviour) -> Iterator[str]:
    """Run a server; yield the address of its file."""
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/file.txt"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
