"""The endpoints of the view Runs: the list of runs, the settings of a run, a stream of changes, and reports.

The stream `/api/runs/events?follow=ID,ID` has three kinds of events:

    runs      the ids of all runs in order, and the summaries of those that changed
    records   new records of a run that is followed, as rows of `COLUMNS`; `restart` means that the rows
              replace all earlier ones
    samples   the texts that a followed run has written, by step
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from bytewright.errors import BytewrightError, StorageError
from bytewright.model import ModelConfig
from bytewright.serve.protocol import json_response
from bytewright.storage import filesystem
from bytewright.storage.config_reader import build
from bytewright.studio.context import Event, EventStream, Studio
from bytewright.studio.folder import Found
from bytewright.studio.watch import WatchedRun, Watcher
from bytewright.train.metrics import is_finite
from bytewright.train.recipe import unflatten
from bytewright.train.run import Run

COLUMNS = (
    "step",
    "tokens",
    "seconds",
    "loss",
    "validation_loss",
    "bits_per_byte",
    "lr",
    "gradient_norm",
    "tokens_per_second",
)
MAX_ROWS = 3000
"""Longer curves are thinned; records of evaluations are kept."""
MAX_FOLLOWED = 16
NUM_SAMPLES = 12
MAX_SAMPLE_CHARACTERS = 20_000
MAX_REPORT_BYTES = 2**25
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
"""A report needs its own styles and nothing else; `sandbox` disables scripts and gives it no origin."""


def make_routes(studio: Studio) -> list[BaseRoute]:
    """Return the endpoints."""
    watcher = Watcher(studio)

    async def list_runs(request: Request) -> Response:
        await studio.compute(watcher.table.refresh)
        return json_response({"runs": [run.summary for run in watcher.table.runs.values()]})

    async def show_settings(request: Request) -> Response:
        run = await studio.compute(studio.folder.find_run, request.path_params["id"])
        return json_response({"settings": await studio.compute(read_settings, run)})

    async def stream_events(request: Request) -> EventStream:
        followed = [id for id in request.query_params.get("follow", "").split(",") if id]
        return EventStream(studio, follow_runs(watcher, followed[:MAX_FOLLOWED]))

    async def show_report(request: Request) -> Response:
        found = await studio.compute(studio.folder.find_report, request.path_params["id"])
        content = await studio.compute(read_report, found)
        headers = {"content-security-policy": REPORT_POLICY}
        return Response(content, headers=headers, media_type="text/html; charset=utf-8")

    return [
        Route("/api/runs", list_runs),
        Route("/api/runs/events", stream_events),
        Route("/api/runs/{id}/settings", show_settings),
        Route("/reports/{id}", show_report),
    ]


def read_settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run as JSON values; none if they cannot be read."""
    try:
        settings = run.settings
    except (BytewrightError, OSError):
        return {}
    return {
        key: value if value is None or isinstance(value, bool | int | str) or is_finite(value) else str(value)
        for key, value in (settings | derive_sizes(settings)).items()
    }


def derive_sizes(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of a model that settings may leave None; nothing if they describe no known model."""
    try:
        model = build(ModelConfig, unflatten(settings).get("model", {}), source="the settings")
        return {"model.d_ff": model.ffn_width, "model.num_kv_heads": model.kv_heads}
    except BytewrightError:  # a part of a plugin, or a field of another version
        return {}


async def follow_runs(watcher: Watcher, followed: Sequence[str]) -> AsyncGenerator[Event, None]:
    """Yield events about all runs, and the records and samples of those that are followed."""
    version = -1
    sent: dict[str, tuple[int, int]] = {}
    samples: dict[str, object] = {}
    await watcher.studio.compute(watcher.table.refresh)
    async with watcher.following():
        while True:
            before, version = version, await watcher.wait_for_change(version)
            runs = dict(watcher.table.runs)
            changed = [run for run in runs.values() if run.version > before]
            yield "runs", {"ids": list(runs), "runs": [run.summary for run in changed]}
            for run in changed:
                if run.id not in followed:
                    continue
                # Read before the records, which another thread may replace: the next event then restarts.
                num_restarts = run.reader.num_restarts
                last_restarts, start = sent.get(run.id, (-1, 0))
                is_restart = last_restarts != num_restarts
                records = run.reader.records
                end = len(records)
                rows = make_rows(records[0 if is_restart else start : end])
                if rows or is_restart:
                    yield "records", {"id": run.id, "restart": is_restart, "columns": COLUMNS, "rows": rows}
                sent[run.id] = num_restarts, end
                texts = await watcher.studio.compute(read_samples, run)
                if texts != samples.get(run.id):
                    samples[run.id] = texts
                    yield "samples", {"id": run.id, "samples": texts}


def make_rows(records: Sequence[Mapping[str, Any]]) -> list[list[float | None]]:
    """Return records of metrics as rows of `COLUMNS`, thinned to about `MAX_ROWS`."""
    lines = [record for record in records if "event" not in record]
    stride = -(-len(lines) // MAX_ROWS) or 1
    return [
        [line[name] if is_finite(line.get(name)) else None for name in COLUMNS]
        for number, line in enumerate(lines)
        if number % stride == 0 or "validation_loss" in line or number == len(lines) - 1
    ]


def read_samples(run: WatchedRun) -> list[dict[str, Any]]:
    """Return the last texts of a run, the newest first; none if they cannot be read."""
    try:
        samples = run.run.samples
    except (BytewrightError, OSError):
        return []
    steps = sorted(samples, reverse=True)[:NUM_SAMPLES]
    return [{"step": step, "text": samples[step][:MAX_SAMPLE_CHARACTERS]} for step in steps]


def read_report(found: Found) -> bytes:
    """Return the content of a report; links are not followed."""
    with filesystem.explain("read", found.path):
        descriptor = filesystem.open_regular(found.path, os.O_RDONLY | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            content = file.read(MAX_REPORT_BYTES + 1)
    if len(content) > MAX_REPORT_BYTES:
        raise StorageError(f"{found.name}: is larger than {MAX_REPORT_BYTES:,} bytes", path=found.path)
    return content
