"""The process of the server: loading the model, signals, and timeouts of connections.

The server listens before the model is loaded and answers 503 until then. SIGTERM or SIGINT starts to drain:
new requests are answered with 503, accepted ones finish or, after `drain_seconds`, get an error. A second
signal ends accepted requests with an error at once. The server then ends when clients have received their
last bytes, at most `LAST_SECONDS` later. It does not wait for a model that is still being loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bytewright.errors import UsageError
from bytewright.serve.app import make_app
from bytewright.serve.guard import RETRY_SECONDS, GuardOptions
from bytewright.serve.protocol import dump, error_body, json_response
from bytewright.serve.service import EngineOptions, ServedModel, Service

MAX_HEADER_BYTES = 2**16
SEND_BUFFER_BYTES = 2**16
ARRIVAL_SECONDS = 0.3
"""How long a connection may take to send its request when the server ends; it is answered with 503."""
LAST_SECONDS = 5
"""How long open connections may take to receive their last bytes when the server ends."""
LOADING_THREAD = "loading the model"


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where the server listens, and its limits."""

    port: int = 8000
    """0 chooses a free port."""
    guard: GuardOptions = field(default_factory=GuardOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    header_seconds: float = 10.0
    """The longest time to receive the headers of a request."""
    write_seconds: float = 30.0
    """The longest time that a client may not read while there is more to send."""
    drain_seconds: float = 30.0
    max_connections: int = 512


def serve(
    load: Callable[[], ServedModel],
    options: ServerOptions,
    *,
    announce: Callable[[str], object],
) -> None:
    """Serve a model until a signal arrives; `announce` gets the address, and again when the model is ready.

    `load` runs on a thread of its own; its error ends the server and is raised here. A signal is raised again
    after the server has ended. If the thread is still running then, it is left behind (`is_loading`).
    """
    service = Service(options.engine)
    failure: list[BaseException] = []

    def load_model(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loaded = load()
            if not service.is_draining:
                service.load(loaded, loop)
        except BaseException as error:
            failure.append(error)
            server.should_exit = True
            return
        if service.is_draining:
            return
        announce(f"{loaded.name} is ready, {options.engine.num_slots} slots")
        if not service.engine.has_equal_slots:
            logging.getLogger(__name__).warning(
                "on this machine the last bits of logits depend on the slot; a number of slots that is a"
                " multiple of the number of threads may avoid it"
            )

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        # Not `asyncio.to_thread`: the event loop and Python wait for its threads before they end.
        loop = asyncio.get_running_loop()
        threading.Thread(target=load_model, args=[loop], name=LOADING_THREAD, daemon=True).start()
        yield
        await service.stop()

    app = make_app(service, options.guard, lifespan=lifespan)
    server = _Server(configure(app, options), service, options, announce)
    run_server(server, options)
    if failure:
        raise failure[0]


def is_loading() -> bool:
    """Return whether a server of this process loads its model, also if the server itself has ended.

    Use `os._exit` to end the process then: when Python is finalised, it stops the thread inside torch, which
    aborts the process.
    """
    return any(thread.name == LOADING_THREAD for thread in threading.enumerate())


def run_server(server: uvicorn.Server, options: ServerOptions) -> None:
    """Listen on the address of the options until the server ends; warnings are written to stderr."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    with listening_socket(options) as listener:
        server.run(sockets=[listener])


def configure(app: Any, options: ServerOptions) -> uvicorn.Config:
    """Return the configuration of uvicorn for an app: HTTP/1.1 only, with the limits of `options`."""

    class Protocol(LimitedProtocol):
        header_seconds, write_seconds = options.header_seconds, options.write_seconds
        max_connections = options.max_connections

    return uvicorn.Config(
        app,
        http=Protocol,
        loop="asyncio",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=LAST_SECONDS,
    )


@contextlib.contextmanager
def listening_socket(options: ServerOptions) -> Any:
    """Yield a socket that listens; raise `UsageError` if the address cannot be used."""
    family = socket.AF_INET6 if ":" in options.guard.host else socket.AF_INET
    # asyncio disables Nagle's algorithm, which delays small writes by 40 ms, only if the protocol is stated.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((options.guard.host, options.port))
        except (OSError, OverflowError) as error:
            problem, key = _describe_bind_error(error)
            message = f"cannot listen on {options.guard.host}, port {options.port}: {problem}"
            found = options.guard.host if key == "host" else options.port
            raise UsageError(message, key=key, found=found) from None
        yield listener
    finally:
        listener.close()


def _describe_bind_error(error: OSError | OverflowError) -> tuple[str, str]:
    """Return why an address cannot be used and how to fix it, and the wrong option, "host" or "port"."""
    if isinstance(error, OverflowError):
        return "a port is a number from 0 to 65535", "port"
    if error.errno == errno.EADDRINUSE:
        return "another process uses it; end that process, or choose another --port (0: any free one)", "port"
    if error.errno == errno.EACCES:
        return "only root may use it; choose a --port from 1024 on", "port"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address; use 127.0.0.1, or 0.0.0.0 for all addresses", "host"
    return str(error.strerror or error), "port"


class AnnouncedServer(uvicorn.Server):
    """A server that announces its address when it listens."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[str], object]) -> None:
        super().__init__(config)
        self.announce = announce

    async def startup(self, sockets: Any = None) -> None:
        """Start to listen and announce the address."""
        await super().startup(sockets)
        host, port = sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.announce(f"listening on http://{shown}:{port}, Ctrl-C ends it")


class _Server(AnnouncedServer):
    """A server that drains before it ends."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        options: ServerOptions,
        announce: Callable[[str], object],
    ) -> None:
        super().__init__(config, announce)
        self.service, self.options = service, options
        self._deadline: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to drain at the first signal; the second one ends the time to drain.

        The second one does not set `should_exit`: uvicorn would then wait for requests that still run.
        """
        self._captured_signals.append(sig)
        seconds = self.options.drain_seconds if self._deadline is None else 0.0
        self._deadline = time.monotonic() + seconds
        self.service.drain()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end: after draining."""
        if self._deadline is not None:
            is_late = time.monotonic() >= self._deadline
            if is_late or self.service.num_open == 0:
                await self.service.stop()
                return True
        return bool(await super().on_tick(counter))

    async def shutdown(self, sockets: Any = None) -> None:
        """Accept and answer what has arrived, then close all connections.

        The system resets a connection that is closed while it holds data that was not read.
        """
        await _take_turns()  # accept what waits
        loop = asyncio.get_running_loop()
        for server in self.servers:
            for listener in server.sockets:
                loop.remove_reader(listener.fileno())
        await _take_turns()  # asyncio loses a connection whose server is closed before it has a transport
        for server in self.servers:
            server.close()
        await asyncio.sleep(ARRIVAL_SECONDS)
        await super().shutdown(sockets)


async def _reject_connection(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request on a connection above the limit, and close the connection."""
    headers = {"retry-after": str(RETRY_SECONDS), "connection": "close"}
    body = error_body("the server has too many connections; try again later", 503)
    await json_response(body, 503, headers)(scope, receive, send)


async def _take_turns() -> None:
    """Let the event loop poll its sockets, run their handlers, and run what these start."""
    for _ in range(3):
        await asyncio.sleep(0)


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with limits: the number of connections, and the time of clients that send or read slowly.

    The time for the rest of a body whose request was answered before it arrived is limited, too.

    The end of a client's data counts as a disconnect, which cancels its jobs: a client that ends only its
    sending side cannot be distinguished from one that closes its connection.

    Warnings about a connection are not logged: data that is not HTTP and requests for a WebSocket cause them,
    so any client could fill the log. Errors are logged.
    """

    header_seconds = 10.0
    write_seconds = 30.0
    max_connections = 512

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = logging.getLogger("uvicorn.error.connection")
        self.logger.setLevel(logging.ERROR)
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the time for the first headers, and bound what the system stores for a slow client."""
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self.app = _reject_connection
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        """Process data; headers that have begun must be complete in time."""
        was_in_body = self.conn.their_state is h11.SEND_BODY
        super().data_received(data)
        if was_in_body and self.conn.their_state is h11.IDLE:
            self._stop("_header_timer")  # it was that of the rest of the body
        self._watch_headers()

    def on_response_complete(self) -> None:
        """Start the time for the rest of the body, which no application reads."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        super().connection_lost(exc)
        self._stop("_header_timer")
        self._stop("_write_timer")

    def send_400_response(self, msg: str) -> None:
        """Answer data that is not HTTP, and close the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # a response has begun
            self.transport.abort()
            return
        body = dump(error_body(msg, 400))
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        response = h11.Response(
            status_code=400, headers=[*headers, ("connection", "close")], reason=b"Bad Request"
        )
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def pause_writing(self) -> None:
        """Start the time for the client to read."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that time."""
        super().resume_writing()
        self._stop("_write_timer")

    def _watch_headers(self) -> None:
        is_answered = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        if self.conn.their_state is not h11.IDLE and not is_answered:
            self._stop("_header_timer")
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_seconds, self.transport.abort)

    def _stop(self, name: str) -> None:
        timer = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)
