"""The service: the engine and the tokenizer of one model, and figures for Prometheus, shared by all routes.

The engine reports on its own thread. `Service` passes its updates to the event loop, and each open request
receives those of its jobs in a queue. A request that ends for any reason leaves no job behind. Routes record
latencies in `Metrics`; it reads all other figures from the engine when `/metrics` is requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from bytewright.model import TransformerLM
from bytewright.serve.engine import Engine
from bytewright.serve.jobs import EngineClosedError, Job, Update
from bytewright.system import freeze_objects
from bytewright.tokenizer import Tokenizer

ServiceState = Literal["loading", "ready", "draining", "failed"]

PREFIX = "bytewright_"
"""The start of the names of all figures."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The limits of the buckets of latencies."""


@dataclass(frozen=True)
class ServedModel:
    """A model with its tokenizer and the name under which it is served."""

    model: TransformerLM
    tokenizer: Tokenizer
    name: str


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The size of the batch and of the queue: arguments of `Engine`."""

    num_slots: int = 32
    max_waiting: int = 256
    max_waiting_tokens: int = 2**18


class NotReadyError(EngineClosedError):
    """The model is still being loaded."""


class Arrival(NamedTuple):
    """An update of a job, and when the engine reported it."""

    job: Job
    update: Update
    seconds: float
    """The time of the service's clock. A request may read the update later, if its client is slow."""


Updates = asyncio.Queue[Arrival | None]
"""The updates of a request's jobs; None means that the client has disconnected."""


class Service:
    """One model that is served.

    The thread of the engine calls `report`, and `load` may run on a thread of its own. All other methods must
    be called on the thread of the event loop. `clock` returns the current time in seconds.
    """

    def __init__(self, options: EngineOptions, clock: Callable[[], float] = time.perf_counter) -> None:
        self.options, self.clock = options, clock
        self.is_draining = False
        self.num_open = 0
        """The number of requests that wait for their jobs."""
        self._loaded: ServedModel | None = None
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[Job, Updates] = {}
        self.metrics = Metrics(self)

    def load(self, loaded: ServedModel, loop: asyncio.AbstractEventLoop) -> None:
        """Start the engine for a model, which takes some time."""
        num_ids = min(loaded.tokenizer.vocab_size, loaded.model.config.vocab_size)
        engine = Engine(loaded.model, self.report, num_ids=num_ids, **asdict(self.options))
        self._loop = loop
        freeze_objects()  # a collection of garbage would delay all texts
        engine.start()
        self._loaded, self._engine = loaded, engine
        if self.is_draining:
            engine.close()

    @property
    def state(self) -> ServiceState:
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
    def loaded(self) -> ServedModel:
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
            self._loop.call_soon_threadsafe(self._deliver, updates, self.clock())

    def _deliver(self, updates: list[tuple[Job, Update]], seconds: float) -> None:
        for job, update in updates:
            queue = self._queues.get(job)
            if queue is not None:
                queue.put_nowait(Arrival(job, update, seconds))
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


class Histogram:
    """Counts of durations in the buckets `SECONDS`.

    A duration can be added several times in one call; `prometheus_client.Histogram` needs a call for each,
    and on a GPU a round of all slots has thousands of tokens.
    """

    def __init__(self, name: str, summary: str) -> None:
        self.name, self.summary = name, summary
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a duration `count` times."""
        self._counts[bisect_left(SECONDS, seconds)] += count
        self._sum += seconds * count

    def family(self) -> Metric:
        """Return the counts for Prometheus; each bucket includes the ones before it."""
        buckets = list(zip([*map(str, SECONDS), "+Inf"], accumulate(self._counts), strict=True))
        return HistogramMetricFamily(PREFIX + self.name, self.summary, buckets, self._sum)


class Metrics:
    """The figures of one service, in a registry of their own."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._responses = Counter(
            PREFIX + "responses", "Responses by status", ["status"], registry=self._registry
        )
        self._disconnects = Counter(
            PREFIX + "disconnects", "Clients that left before the end", registry=self._registry
        )
        self.first_token = Histogram("first_token_seconds", "Time until the first token of a text")
        self.next_token = Histogram("next_token_seconds", "Time between two tokens of a text")
        self.duration = Histogram("completion_seconds", "Time of a whole completion")

    def count_response(self, status: int) -> None:
        """Count a response."""
        self._responses.labels(str(status)).inc()

    def count_disconnect(self) -> None:
        """Count a client that left before its response was complete."""
        self._disconnects.inc()

    def render(self) -> bytes:
        """Return all figures in the text format of Prometheus."""
        text: bytes = generate_latest(self._registry)
        return text

    def collect(self) -> Iterator[Metric]:
        """Yield latencies and the current figures of the engine; the registry calls it."""
        for histogram in (self.first_token, self.next_token, self.duration):
            yield histogram.family()
        is_ready = self._service.state == "ready"
        yield GaugeMetricFamily(PREFIX + "ready", "1 if requests are accepted", is_ready)
        if not self._service.is_loaded:
            return
        stats = self._service.engine.stats()
        for name, summary, value in (
            ("slots", "Texts that can be generated at the same time", stats.num_slots),
            ("slots_in_use", "Slots that hold a text now", stats.num_slots_in_use),
            ("running_texts", "Texts in slots, or whose last tokens are computed", stats.num_running),
            ("waiting_texts", "Texts in the queue", stats.num_waiting),
            ("waiting_tokens", "Tokens of the texts in the queue", stats.num_waiting_tokens),
            ("longest_turn_seconds", "The longest turn of the engine", stats.longest_turn_seconds),
        ):
            yield GaugeMetricFamily(PREFIX + name, summary, value)
        for name, summary, value in (
            ("steps", "Steps of the model", stats.num_steps),
            ("chunks", "Chunks of prompts that were read", stats.num_chunks),
            ("prompt_tokens", "Tokens of prompts that were read", stats.num_prompt_tokens),
            ("new_tokens", "Tokens that were generated", stats.num_new_tokens),
            ("busy_seconds", "Time in which the engine worked", stats.busy_seconds),
        ):
            yield CounterMetricFamily(PREFIX + name, summary, value)
