"""A job that fails after its text has ended, or beside other jobs of its request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bytewright.serve.jobs import NOT_FINITE, Job, Update
from bytewright.tokenizer import Tokenizer
from scripted_engine import Report, request_with_reports

FAILED = Update(error=NOT_FINITE)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("num_choices", [1, 2])
def test_an_error_after_a_stop_string_is_ignored(tokenizer: Path, is_stream: bool, num_choices: int) -> None:
    """The engine may compute a token after the stop string before it learns of the end."""
    words = Tokenizer.load(tokenizer)

    def report(jobs: Sequence[Job]) -> list[Report]:
        reports = [(11.0, jobs[0], Update(words.encode("ok. END"))), (11.1, jobs[0], FAILED)]
        last = Update(words.encode("fine"), reason="length")
        return reports + [(11.2, job, last) for job in jobs[1:]]

    body = {"prompt": "a", "max_tokens": 20, "stop": "END", "stream": is_stream, "n": num_choices}
    response, _ = request_with_reports(tokenizer, body, report)
    assert response.status_code == 200, response.text
    if is_stream:
        *events, last = (line.removeprefix("data: ") for line in response.text.split("\n\n") if line)
        assert last == "[DONE]"
        choices = [choice for each in events for choice in json.loads(each)["choices"]]
    else:
        choices = response.json()["choices"]
    for index, (text, reason) in enumerate([("ok. ", "stop"), ("fine", "length")][:num_choices]):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == text
        assert own[-1]["finish_reason"] == reason


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_failed_choice_fails_its_request(tokenizer: Path, is_stream: bool) -> None:
    def report(jobs: Sequence[Job]) -> list[Report]:
        return [(11.0, jobs[0], Update([40], reason="length")), (11.1, jobs[1], FAILED)]

    body = {"prompt": "a", "max_tokens": 20, "n": 2, "stream": is_stream}
    response, _ = request_with_reports(tokenizer, body, report)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == NOT_FINITE
