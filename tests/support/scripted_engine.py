"""A service whose engine reports given updates instead of running jobs, and one request to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx2

from bytewright.model import ModelConfig, TransformerLM
from bytewright.serve.app import make_app
from bytewright.serve.guard import GuardOptions
from bytewright.serve.jobs import Job, Update
from bytewright.serve.service import EngineOptions, ServedModel, Service
from bytewright.tokenizer import Tokenizer

Report = tuple[float, Job, Update]
"""An update of a job, and when the engine reports it."""


class Clock:
    """A clock that a test sets; requests are sent at 10 s and answered at 20 s."""

    def __init__(self) -> None:
        self.now = 10.0

    def __call__(self) -> float:
        return self.now


def request_with_reports(
    tokenizer: Path, body: dict[str, Any], make_reports: Callable[[Sequence[Job]], Iterable[Report]]
) -> tuple[httpx2.Response, str]:
    """Return the answer to a request, of which all updates arrive before they are read, and the figures."""
    return asyncio.run(_request(Tokenizer.load(tokenizer), body, make_reports))


async def _request(
    tokenizer: Tokenizer, body: dict[str, Any], make_reports: Callable[[Sequence[Job]], Iterable[Report]]
) -> tuple[httpx2.Response, str]:
    clock = Clock()
    service = Service(EngineOptions(num_slots=1), clock)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=64, d_model=8, num_layers=1, num_heads=1
    )
    service.load(ServedModel(TransformerLM(config), tokenizer, "tiny"), asyncio.get_running_loop())

    def report_all(jobs: Sequence[Job]) -> None:
        for clock.now, job, update in make_reports(jobs):
            service.report([(job, update)])
        clock.now = 20.0

    service.engine.submit = report_all  # type: ignore[method-assign]
    transport = httpx2.ASGITransport(app=make_app(service, GuardOptions()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        response = await client.post("/v1/completions", json=body)
        figures = await client.get("/metrics")
    await service.stop()
    return response, figures.text
