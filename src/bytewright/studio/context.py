"""`Studio`: what the endpoints of all views share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from bytewright.serve.guard import RejectedError
from bytewright.studio.folder import StudioFolder
from bytewright.studio.models import Models

NUM_THREADS = 4
MAX_STREAMS = 48
"""How many streams of events may be open; every page that shows runs has one."""

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
            message = f"{MAX_STREAMS} streams are open, the limit of the studio; close a page that shows it"
            raise RejectedError(503, message)
        self.num_streams += 1
        try:
            yield
        finally:
            self.num_streams -= 1

    def stop(self) -> None:
        """End all streams, so that the server can end."""
        self.is_stopping.set()

    def close(self) -> None:
        """Shut down the threads without waiting for work that has begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)
