"""The load of serving.py, for locust: clients that stream one completion after another.

The environment variable SERVING_LOAD has the request as JSON. At the end the figures are written to the file
`result`. Tokens are counted as events with text, which all servers send once per token; the first `warm_up`
seconds are not counted.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from locust import HttpUser, constant, events, task

LOAD = json.loads(os.environ["SERVING_LOAD"])
START = time.perf_counter()

first_token: list[float] = []
next_token: list[float] = []
counts = {"tokens": 0, "errors": 0, "requests": 0}
span = [0.0, 0.0]
"""The times of the first and the last token that count."""


class Client(HttpUser):  # type: ignore[misc]
    """One client."""

    wait_time = constant(0)

    @task  # type: ignore[untyped-decorator]
    def complete(self) -> None:
        """Send one request and time its events."""
        body = {name: LOAD[name] for name in ("model", "prompt", "max_tokens")}
        body |= {"temperature": 0, "stream": True}
        sent = last = time.perf_counter()
        num_tokens = 0
        with self.client.post("/v1/completions", json=body, stream=True, catch_response=True) as response:
            if response.status_code != 200:
                counts["errors"] += 1
                response.failure(str(response.status_code))
                time.sleep(0.1)
                return
            for line in response.iter_lines():
                if not line.startswith(b"data: {") or not has_text(json.loads(line[6:])):
                    continue
                now = time.perf_counter()
                num_tokens += 1
                if now - START > LOAD["warm_up"]:
                    counts["tokens"] += 1
                    span[0], span[1] = span[0] or now, now
                    if num_tokens > 1:
                        next_token.append(now - last)
                    elif sent - START > LOAD["warm_up"]:
                        first_token.append(now - sent)
                last = now
            counts["requests"] += 1


def has_text(event: dict[str, Any]) -> bool:
    """Return whether an event has new text."""
    choices = event.get("choices") or [{}]
    return bool(choices[0].get("text"))


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def write_figures(environment: object, **options: object) -> None:
    """Write the figures of all clients."""
    figures = {
        **counts,
        "tokens_per_second": counts["tokens"] / max(span[1] - span[0], 1e-9),
        "first_token_ms": quantiles(first_token),
        "next_token_ms": quantiles(next_token),
    }
    Path(LOAD["result"]).write_text(json.dumps(figures))


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile in milliseconds; 0 without values."""
    ordered = sorted(seconds) or [0.0]
    return {
        f"p{share}": 1000 * ordered[min(len(ordered) * share // 100, len(ordered) - 1)] for share in (50, 99)
    }
