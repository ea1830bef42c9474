"""The process of the studio: it listens until SIGINT or SIGTERM, which ends open streams first."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import FrameType
from typing import Any

from bytewright.serve.server import AnnouncedServer, ServerOptions, configure, listening_socket
from bytewright.studio.app import make_studio_app
from bytewright.studio.context import Studio


def run_studio(path: Path, options: ServerOptions, *, announce: Callable[[str], object]) -> None:
    """Serve the studio of a folder until a signal arrives; `announce` gets the address.

    The signal is raised again after the server has ended.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    server = StudioServer(path, options, announce)
    with listening_socket(options) as listener:
        server.run(sockets=[listener])


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
            self.studio.stop()
            self.studio.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the streams and then the server."""
        self.studio.stop()
        super().handle_exit(sig, frame)
