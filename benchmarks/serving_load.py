"""The load of serving.py, for locust: clients that stream one completion after another.

The environment variable SERVING_LOAD has the request as JSON. At the end the figures are written to the file
`result`. Tokens are counted as events with text, which all servers send once per token; the first `warm_up`
seconds are not counted. The time of a request is measured from sending it to its last token. It is recorded
if the request was sent after the warm-up and ended before the end of the load. So the load must last several
times as long as a request.
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
whole_request: list[float] = []
per_token: list[float] = []
"""The time of a request, divided by its number of tokens."""
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
            if num_tokens and sent - START > LOAD["warm_up"]:
                whole_request.append(last - sent)
                per_token.append((last - sent) / num_tokens)


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
        "request_ms": quantiles(whole_request),
        "request_ms_per_token": quantiles(per_token),
    }
    Path(LOAD["result"]).write_text(json.dumps(figures))


def quantiles(seconds: list[float]) -> dict[str, float | None]:
    """Count the values; return their median and 99th percentile in milliseconds, None without values."""
    ordered = [1000 * value for value in sorted(seconds)]
    figures: dict[str, float | None] = {"count": len(ordered)}
    for share in (50, 99):
        figures[f"p{share}"] = ordered[len(ordered) * share // 100] if ordered else None
    return figures
