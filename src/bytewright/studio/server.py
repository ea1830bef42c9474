"""The process of the studio: it listens until SIGINT or SIGTERM, which ends open streams first."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from bytewright.serve.server import AnnouncedServer, ServerOptions, configure, listening_socket
from bytewright.studio.app import make_studio_app
from bytewright.studio.context import Studio


def run_studio(path: Path, options: ServerOptions, *, announce: Callable[[str], object]) -> None:
    """Serve the studio of a folder until a signal arrives; `announce` gets the address.

    The signal is raised again after the server has ended.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    studio = Studio(path)

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        studio.stop()

    app = make_studio_app(studio, options.guard, lifespan=lifespan)
    server = _Server(configure(app, options), studio, announce)
    try:
        with listening_socket(options) as listener:
            server.run(sockets=[listener])
    finally:
        studio.close()


class _Server(AnnouncedServer):
    """A server that ends its streams when a signal arrives."""

    def __init__(self, config: uvicorn.Config, studio: Studio, announce: Callable[[str], object]) -> None:
        super().__init__(config, announce)
        self.studio = studio

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the streams and then the server."""
        self.studio.stop()
        super().handle_exit(sig, frame)
