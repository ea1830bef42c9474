"""The service: the engine and the tokenizer of one model, shared by all routes of the app.

The engine reports on its own thread. `Service` passes its updates to the event loop, and each open request
receives those of its jobs in a queue. A request that ends for any reason leaves no job behind.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bytewright.model import TransformerLM
from bytewright.serve.engine import Engine, EngineClosedError, Job, Update
from bytewright.tokenizer import Tokenizer

State = Literal["loading", "ready", "draining", "failed"]


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer and the name under which it is served."""

    model: TransformerLM
    tokenizer: Tokenizer
    name: str


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The size of the batch and of the queue."""

    num_slots: int = 32
    max_waiting: int = 256
    max_waiting_tokens: int = 2**18


class NotReadyError(EngineClosedError):
    """The model is still being loaded."""


Updates = asyncio.Queue[tuple[Job, Update] | None]
"""The updates of a request's jobs; None means that the client has gone."""


class Service:
    """One model that is served. All methods but `report` belong to the event loop's thread."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.is_draining = False
        self.num_open = 0
        """The number of requests that wait for their jobs."""
        self._loaded: LoadedModel | None = None
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[Job, Updates] = {}

    def load(self, loaded: LoadedModel, loop: asyncio.AbstractEventLoop) -> None:
        """Start the engine for a model; this takes a while and may run on another thread."""
        engine = Engine(
            loaded.model,
            self.report,
            num_slots=self.options.num_slots,
            num_ids=min(loaded.tokenizer.vocab_size, loaded.model.config.vocab_size),
            max_waiting=self.options.max_waiting,
            max_waiting_tokens=self.options.max_waiting_tokens,
        )
        self._loop = loop
        engine.start()
        self._loaded, self._engine = loaded, engine
        if self.is_draining:
            engine.close()

    @property
    def state(self) -> State:
        """Whether the service is loading, ready or draining, or its engine has failed."""
        if self.is_draining:
            return "draining"
        if self._engine is None:
            return "loading"
        return "failed" if self._engine.is_device_lost else "ready"

    @property
    def is_loaded(self) -> bool:
        """Whether the model was loaded."""
        return self._engine is not None

    @property
    def engine(self) -> Engine:
        """The engine; raise `NotReadyError` while the model is loaded."""
        if self._engine is None:
            raise NotReadyError("the model is being loaded; try again in a moment")
        return self._engine

    @property
    def loaded(self) -> LoadedModel:
        """The model; raise `NotReadyError` while it is loaded."""
        if self._loaded is None:
            raise NotReadyError("the model is being loaded; try again in a moment")
        return self._loaded

    @contextlib.contextmanager
    def run(self, jobs: Sequence[Job]) -> Iterator[Updates]:
        """Submit jobs and yield the queue of their updates; jobs that are left at the end are cancelled."""
        queue: Updates = asyncio.Queue()
        self._queues.update(dict.fromkeys(jobs, queue))
        self.num_open += 1
        try:
            self.engine.submit(jobs)
            yield queue
        finally:
            self.num_open -= 1
            left = [job for job in jobs if self._queues.pop(job, None) is not None]
            if left:
                self.engine.cancel(left)

    def report(self, updates: list[tuple[Job, Update]]) -> None:
        """Pass updates from the thread of the engine to the event loop."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop was closed while the engine stopped
            self._loop.call_soon_threadsafe(self._deliver, updates)

    def _deliver(self, updates: list[tuple[Job, Update]]) -> None:
        for job, update in updates:
            queue = self._queues.get(job)
            if queue is not None:
                queue.put_nowait((job, update))
                if update.is_last:
                    del self._queues[job]

    def drain(self) -> None:
        """Reject new requests from now on."""
        self.is_draining = True
        if self._engine is not None:
            self._engine.close()

    async def stop(self) -> None:
        """End all jobs that are left with an error, and the engine."""
        self.drain()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.stop)
