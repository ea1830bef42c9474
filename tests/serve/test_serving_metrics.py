"""The latencies at `/metrics`: each token counts once, at the time when the engine reported it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bytewright.serve.engine import Engine, EngineStats
from bytewright.serve.jobs import Job, Update
from scripted_engine import Report, request_with_reports

IDS = [40] * 8


def report_on_a_gpu(jobs: Sequence[Job]) -> Iterator[Report]:
    """Report several tokens at once after the first."""
    updates = [(10.5, Update(IDS[:1])), (10.9, Update(IDS)), (11.1, Update(IDS[:4], reason="length"))]
    return ((seconds, job, update) for seconds, update in updates for job in jobs)


def request_figures(tokenizer: Path, body: dict[str, Any]) -> str:
    """Return the figures of a service after one request."""
    response, figures = request_with_reports(tokenizer, body, report_on_a_gpu)
    assert response.status_code == 200, response.text
    return figures


def read_figure(figures: str, name: str) -> float:
    found = re.search(rf"^bytewright_{re.escape(name)} (\S+)$", figures, re.MULTILINE)
    assert found, name
    return float(found[1])


@pytest.mark.parametrize("is_stream", [False, True])
def test_latencies_count_every_token_once_when_it_arrives(tokenizer: Path, is_stream: bool) -> None:
    body = {"prompt": "a", "n": 2, "max_tokens": 13, "stream": is_stream}
    figures = request_figures(tokenizer, body)
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
    figures = request_figures(tokenizer, {"prompt": "a", "max_tokens": 13})
    names = ("slots", "slots_in_use", "running_texts", "waiting_texts", "waiting_tokens")
    assert [read_figure(figures, name) for name in names] == [4, 2, 3, 5, 70]
