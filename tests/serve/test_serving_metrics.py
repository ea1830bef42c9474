"""The latencies at `/metrics`: each token counts once, at the time when the engine reported it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bytewright.model import ModelConfig, TransformerLM
from bytewright.serve.app import make_app
from bytewright.serve.engine import Engine, EngineStats
from bytewright.serve.guard import GuardOptions
from bytewright.serve.jobs import Job, Update
from bytewright.serve.service import EngineOptions, ServedModel, Service
from bytewright.tokenizer import Tokenizer

IDS = [40] * 8
REPORTS = [(10.5, Update(IDS[:1])), (10.9, Update(IDS)), (11.1, Update(IDS[:4], reason="length"))]
"""What a test's engine reports of each job, and when: as on a GPU, several tokens at once."""


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 10.0

    def __call__(self) -> float:
        return self.now


async def request_figures(tokenizer: Tokenizer, body: dict[str, Any]) -> str:
    """Return the figures of a service after one request, of which all updates arrive before they are read."""
    clock = Clock()
    service = Service(EngineOptions(num_slots=1), clock)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=64, d_model=8, num_layers=1, num_heads=1
    )
    service.load(ServedModel(TransformerLM(config), tokenizer, "tiny"), asyncio.get_running_loop())

    def report_all(jobs: Sequence[Job]) -> None:
        for clock.now, update in REPORTS:
            service.report([(job, update) for job in jobs])
        clock.now = 20.0

    service.engine.submit = report_all  # type: ignore[method-assign]
    transport = httpx2.ASGITransport(app=make_app(service, GuardOptions()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        figures = await client.get("/metrics")
    await service.stop()
    return figures.text


def read_figure(figures: str, name: str) -> float:
    found = re.search(rf"^bytewright_{re.escape(name)} (\S+)$", figures, re.MULTILINE)
    assert found, name
    return float(found[1])


@pytest.mark.parametrize("is_stream", [False, True])
def test_latencies_count_every_token_once_when_it_arrives(tokenizer: Path, is_stream: bool) -> None:
    words = Tokenizer.load(tokenizer)
    body = {"prompt": "a", "n": 2, "max_tokens": 13, "stream": is_stream}
    figures = asyncio.run(request_figures(words, body))
    assert read_figure(figures, "first_token_seconds_count") == 2
    assert read_figure(figures, "first_token_seconds_sum") == pytest.approx(2 * 0.5)
    assert read_figure(figures, "next_token_seconds_count") == 2 * 12
    assert read_figure(figures, "next_token_seconds_sum") == pytest.approx(2 * 0.6)
    for limit, count in (("0.025", 0), ("0.1", 24), ("+Inf", 24)):  # 0.4 s by 8, and 0.2 s by 4
        assert read_figure(figures, f'next_token_seconds_bucket{{le="{limit}"}}') == count
    assert read_figure(figures, "completion_seconds_sum") == 10


def test_texts_that_run_and_wait_are_figures(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU more texts run than slots are in use, since slots are free before the last tokens arrive."""
    stats = EngineStats(num_slots=4, num_slots_in_use=2, num_running=3, num_waiting=5, num_waiting_tokens=70)
    monkeypatch.setattr(Engine, "stats", lambda engine: stats)
    figures = asyncio.run(request_figures(Tokenizer.load(tokenizer), {"prompt": "a", "max_tokens": 13}))
    names = ("slots", "slots_in_use", "running_texts", "waiting_texts", "waiting_tokens")
    assert [read_figure(figures, name) for name in names] == [4, 2, 3, 5, 70]
