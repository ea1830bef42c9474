"""Figures of the server for Prometheus: requests, tokens, slots, queue and latencies.

Latencies are recorded by the routes. Everything else is read from the engine when `/metrics` is requested.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bytewright.serve.service import Service

PREFIX = "bytewright_"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The figures of one app, in a registry of their own."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(service))
        self._responses = Counter(
            PREFIX + "responses", "Responses by status", ["status"], registry=self.registry
        )
        self._disconnects = Counter(
            PREFIX + "disconnects", "Clients that left before the end", registry=self.registry
        )
        self.first_token = self._histogram("first_token_seconds", "Time until the first token")
        self.next_token = self._histogram("next_token_seconds", "Time between two tokens of a stream")
        self.duration = self._histogram("completion_seconds", "Time of a whole completion")

    def _histogram(self, name: str, summary: str) -> Histogram:
        return Histogram(PREFIX + name, summary, buckets=SECONDS, registry=self.registry)

    def count_response(self, status: int) -> None:
        """Count a response."""
        self._responses.labels(str(status)).inc()

    def count_disconnect(self) -> None:
        """Count a client that left before its response was complete."""
        self._disconnects.inc()

    def render(self) -> bytes:
        """Return all figures in the text format of Prometheus."""
        text: bytes = generate_latest(self.registry)
        return text


class _EngineCollector:
    """Reads the counters of the engine."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        """Yield the current figures."""
        yield GaugeMetricFamily(PREFIX + "ready", "1 if requests are accepted", self.service.state == "ready")
        if not self.service.is_loaded:
            return
        stats = self.service.engine.stats()
        for name, summary, value in (
            ("slots", "Texts that can be generated at the same time", stats.num_slots),
            ("slots_in_use", "Texts that are generated now", stats.num_running),
            ("waiting_texts", "Texts in the queue", stats.num_waiting),
            ("waiting_tokens", "Tokens of the texts in the queue", stats.num_waiting_tokens),
            ("longest_turn_seconds", "The longest time between two steps", stats.longest_step_seconds),
        ):
            yield GaugeMetricFamily(PREFIX + name, summary, value)
        for name, summary, value in (
            ("steps", "Steps of the model", stats.num_steps),
            ("chunks", "Chunks of prompts that were read", stats.num_chunks),
            ("prompt_tokens", "Tokens of prompts that were read", stats.num_prompt_tokens),
            ("new_tokens", "Tokens that were generated", stats.num_new_tokens),
            ("busy_seconds", "Time in which the engine worked", stats.step_seconds),
        ):
            yield CounterMetricFamily(PREFIX + name, summary, value)
