"""The endpoints of the views Write and Inside, with real requests to a real server."""

from __future__ import annotations

import base64
import json
import math
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch

from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.storybook import Storybook
from bytewright.experiments.recognition import is_of_storybook
from bytewright.generate import SamplingConfig, generate
from bytewright.generate.interpret import (
    attention_weights_by_layer,
    logit_lens,
    residual_norms,
    stream_with_logits,
    token_losses,
)
from bytewright.generate.text import encode_document, stop_tokens_of
from bytewright.model import TransformerLM
from bytewright.studio import write
from bytewright.studio.folder import StudioFolder
from bytewright.studio.models import MAX_MODELS, Models
from bytewright.tokenizer import Tokenizer
from bytewright.train.run import Run
from bytewright.train.run_model import write_imported_model
from story_runs import train_on_stories
from studios import HANG_SECONDS, USER, OpenStudio, open_studio, read_events, write_chat_model

CONTEXT = 512
STORY = Storybook.load().story(seed=3, index=1).text


class Opened:
    """A studio with a run on stories, and with imported models that share its tokenizer."""

    def __init__(self, studio: OpenStudio, folder: Path) -> None:
        self.studio, self.folder = studio, folder
        self.run = Run(folder / "run")
        self.tokenizer: Tokenizer = self.run.tokenizer
        self.model: TransformerLM = self.run.load_model()
        self.model.eval()
        runs = studio.get("/api/write/runs").json()["runs"]
        self.ids: dict[str, str] = {run["name"]: run["id"] for run in runs}

    def read(self, text: str, *, run: str = "run", **options: Any) -> dict[str, Any]:
        """Return the answer of `/api/write/read`."""
        body = {"run": self.ids[run], "text": text, **options}
        response = self.studio.post("/api/write/read", body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def stream(self, ids: list[int], *, run: str = "run", **options: Any) -> list[tuple[str, Any]]:
        """Return the events of `/api/write/stream`."""
        body = {"run": self.ids[run], "ids": ids, **options}
        url = f"{self.studio.url}/api/write/stream"
        with httpx2.stream("POST", url, json=body, timeout=HANG_SECONDS, verify=False) as response:
            assert response.status_code == 200, response.read()
            return list(read_events(response))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("studio")
    run = Run(train_on_stories(folder, context_length=CONTEXT))
    for number in range(MAX_MODELS):
        write_imported_model(folder / f"imported-{number}", run.load_model(), run.tokenizer.vocabulary)
    (folder / "empty").mkdir()
    (folder / "empty" / "config.json").write_text("{}")
    with open_studio(folder) as studio:
        yield Opened(studio, folder)


def test_runs_with_a_model_are_listed(opened: Opened) -> None:
    assert set(opened.ids) == {"run", *(f"imported-{number}" for number in range(MAX_MODELS))}


def test_the_tokens_of_a_text_have_the_bits_of_the_model_and_the_true_ones(opened: Opened) -> None:
    answer = opened.read(STORY)
    assert answer["grammar"] is True
    ids = encode_document(opened.tokenizer, STORY)
    tokens = answer["tokens"]
    assert [*answer["start"], *(token["id"] for token in tokens)] == ids
    assert "".join(token["text"] for token in tokens) == f"\n{STORY}"
    losses = (token_losses(opened.model, ids) / math.log(2)).tolist()
    assert [token["bits"] for token in tokens] == pytest.approx(losses, abs=1e-4)
    # Without its last line break and the end token, which are certain, the story has all of its bits.
    true_bits = math.fsum(token["true_bits"] for token in tokens)
    assert true_bits == pytest.approx(Storybook.load().parse(STORY).bits, abs=1e-6)
    for token in tokens:
        before = token["before"]
        assert before["expected_excess"] > -1e-9
        likeliest = [candidate["p"] for candidate in before["candidates"]][: write.NUM_CANDIDATES]
        assert likeliest == sorted(likeliest, reverse=True)
        if before["num_possible"] <= write.NUM_CANDIDATES:
            assert sum(candidate["true"] for candidate in before["candidates"]) == pytest.approx(1)
    assert answer["next"]["true_entropy"] == pytest.approx(0, abs=1e-9)


def test_tokens_outside_the_grammar_have_no_true_bits(opened: Opened) -> None:
    tokens = opened.read("Once upon a zebra sang")["tokens"]
    bits = [token.get("true_bits", "unknown") for token in tokens]
    first = bits.index(None)
    assert "".join(token["text"] for token in tokens[:first]).startswith("\nOnce upon a")
    assert all(isinstance(each, float) for each in bits[:first])
    assert set(bits[first + 1 :]) == {"unknown"}


def test_true_probabilities_can_be_requested_or_left_out(opened: Opened) -> None:
    assert "true_bits" not in opened.read("Once", grammar=False)["tokens"][0]
    assert opened.read("Once", run="imported-0")["grammar"] is False
    assert "true_bits" in opened.read("Once", run="imported-0", grammar=True)["tokens"][0]


@pytest.mark.parametrize(
    "settings", [{"temperature": 0}, {"temperature": 0.8, "top_k": 20}, {"top_p": 0.9, "seed": 7}]
)
def test_the_stream_has_the_ids_of_generate(opened: Opened, settings: dict[str, Any]) -> None:
    ids = encode_document(opened.tokenizer, "Once upon")
    *events, end = opened.stream(ids, max_tokens=12, **({"seed": 1} | settings))
    sampling = SamplingConfig(
        max_new_tokens=12,
        **({"seed": 1} | settings),
        stop_tokens=stop_tokens_of(opened.tokenizer),
        num_ids=opened.tokenizer.vocab_size,
    )
    (expected,) = generate(opened.model, [ids], sampling)
    found = [data["id"] for name, data in events if name == "token"]
    assert found[: len(expected.ids)] == expected.ids
    assert end == ("end", {"reason": expected.reason})
    losses = token_losses(opened.model, ids + found) / math.log(2)
    assert [token["bits"] for _, token in events] == pytest.approx(losses[-len(found) :].tolist(), abs=1e-4)
    if settings.get("temperature") == 0:
        for _, token in events:
            likeliest = token["before"]["candidates"][0]
            assert (likeliest["id"], likeliest["drawn"]) == (token["id"], 1)
            assert token["bits"] == pytest.approx(-math.log2(likeliest["p"]))


def test_a_stream_ends_at_a_full_context(opened: Opened) -> None:
    ids = encode_document(opened.tokenizer, STORY * 3)[: CONTEXT - 6]
    events = opened.stream(ids, max_tokens=100, seed=2)
    assert events[-1] == ("end", {"reason": "context"})
    assert len(events) == 6 + 1


def test_every_special_token_ends_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = write_chat_model(tmp_path / "chat")
    monkeypatch.setattr(write, "NUM_CANDIDATES", tokenizer.vocab_size)
    with open_studio(tmp_path) as studio:
        (run,) = studio.get("/api/write/runs").json()["runs"]
        body = {"run": run["id"], "text": f"cat{USER}"}
        read = studio.post("/api/write/read", body).json()
        inside = studio.post("/api/inside/read", body).json()
    stops = set(tokenizer.special_tokens.values())
    assert len(stops) == 2
    assert {each["id"] for each in read["next"]["candidates"] if each["stop"]} == stops
    assert [each["text"] for each in read["tokens"] if each["stop"]] == [USER]
    assert {each["text"] for each in inside["tokens"].values() if each["stop"]} >= {END_OF_TEXT, USER}


@pytest.mark.parametrize(
    ("path", "body", "status", "key"),
    [
        ("read", {"text": "a"}, 400, "run"),
        ("read", {"run": "../../etc", "text": "a"}, 404, None),
        ("read", {"run": "RUN", "text": "a " * CONTEXT}, 400, "text"),
        ("read", {"run": "RUN", "text": "a" * 200_000}, 400, "text"),
        ("read", {"run": "RUN", "text": "a", "temperature": -1}, 400, "temperature"),
        ("read", {"run": "RUN", "text": "a", "more": 1}, 400, "more"),
        ("stream", {"run": "RUN", "ids": []}, 400, "ids"),
        ("stream", {"run": "RUN", "ids": [10**6]}, 400, "ids"),
        ("stream", {"run": "RUN", "ids": [1] * CONTEXT}, 400, "ids"),
        ("stream", {"run": "RUN", "ids": [1], "max_tokens": 10**6}, 400, None),
    ],
)
def test_wrong_requests_are_answered_with_one_sentence(
    opened: Opened, path: str, body: dict[str, Any], status: int, key: str | None
) -> None:
    body = body | ({"run": opened.ids["run"]} if body.get("run") == "RUN" else {})
    response = opened.studio.post(f"/api/write/{path}", body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert "\n" not in error["message"]
    assert key is None or error["param"] == key


def test_a_client_that_leaves_ends_its_generation(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []

    def slow_stream(*given: Any) -> Iterator[Any]:
        for token in stream_with_logits(*given):
            chosen.append(token.id)
            time.sleep(0.05)
            yield token

    monkeypatch.setattr(write, "stream_with_logits", slow_stream)
    body = {"run": opened.ids["run"], "ids": encode_document(opened.tokenizer, ""), "max_tokens": 250}
    url = f"{opened.studio.url}/api/write/stream"
    with httpx2.stream("POST", url, json=body | {"seed": 4}, timeout=HANG_SECONDS, verify=False) as response:
        next(read_events(response))
    studio = opened.studio.server.studio
    deadline = time.monotonic() + HANG_SECONDS
    while studio.num_streams and time.monotonic() < deadline:
        time.sleep(0.01)
    assert studio.num_streams == 0
    count = len(chosen)
    assert count < 250
    time.sleep(0.3)
    assert len(chosen) <= count + 1


def test_at_most_two_models_are_kept_and_a_new_checkpoint_is_loaded(opened: Opened, tmp_path: Path) -> None:
    models = Models(StudioFolder(opened.folder))
    loaded = [models.load(id) for id in opened.ids.values()]
    assert len(models._loaded) == MAX_MODELS
    assert models.load(list(opened.ids.values())[-1]) is loaded[-1]
    shutil.copytree(opened.folder / "run", tmp_path / "run")
    models = Models(StudioFolder(tmp_path))
    (id,) = models.folder.scan().runs
    first = models.load(id)
    checkpoints = tmp_path / "run" / "checkpoints"
    (old,) = [path for path in checkpoints.iterdir() if path.name.startswith("step-")]
    old.rename(old.with_name(old.name[:-1] + "3"))
    assert models.load(id) is not first


def test_models_of_the_storybook_are_recognised_by_their_data_or_else_by_their_samples(
    opened: Opened, tmp_path: Path
) -> None:
    assert is_of_storybook(opened.run)
    moved = Run(shutil.copytree(opened.folder / "run", tmp_path / "run"))
    shutil.rmtree(moved.path / "samples", ignore_errors=True)
    assert not is_of_storybook(moved)
    (moved.path / "samples").mkdir()
    (moved.path / "samples" / "step-2.txt").write_text(STORY[:200])
    assert is_of_storybook(moved)
    (moved.path / "samples" / "step-3.txt").write_text("It is a truth universally acknowledged")
    assert not is_of_storybook(moved)
    # The data decide, also without the record of the corpus: an early sample may leave the grammar at once.
    shutil.copytree(opened.folder / "data", tmp_path / "data", ignore=shutil.ignore_patterns("corpus.json"))
    assert is_of_storybook(moved)


def test_inside_shows_what_the_library_returns(opened: Opened) -> None:
    text = "Once upon a time, a brave mouse"
    answer = opened.studio.post("/api/inside/read", {"run": opened.ids["run"], "text": text}).json()
    ids = encode_document(opened.tokenizer, text)
    assert answer["ids"] == ids
    assert answer["num_tokens"] == len(ids)
    assert answer["tokens"][str(ids[0])] == {"id": ids[0], "text": END_OF_TEXT, "stop": True}
    weights = attention_weights_by_layer(opened.model, ids)
    packed = np.frombuffer(base64.b64decode(answer["attention"]), np.uint8) / 255
    rows, columns = np.tril_indices(len(ids))
    assert packed == pytest.approx(weights.numpy()[..., rows, columns].ravel(), abs=1 / 500)
    expected = residual_norms(opened.model, ids)
    torch.testing.assert_close(torch.tensor(answer["norms"]), expected, atol=1e-3, rtol=1e-3)
    for found, layer in zip(answer["lens"], logit_lens(opened.model, ids, top=5), strict=True):
        assert found["ids"] == layer.ids.tolist()
        torch.testing.assert_close(torch.tensor(found["p"]), layer.probabilities, atol=1e-4, rtol=1e-3)


def test_inside_shows_the_beginning_of_a_long_text(opened: Opened) -> None:
    body = {"run": opened.ids["run"], "text": STORY * 3}
    answer = opened.studio.post("/api/inside/read", body).json()
    assert len(answer["ids"]) == 256
    assert answer["num_tokens"] == len(encode_document(opened.tokenizer, STORY * 3))


def test_requests_at_the_same_time_do_not_mix(opened: Opened) -> None:
    """The hooks that record activations are registered on the model, which all threads share."""
    texts = [STORY[: 30 * number] for number in range(1, 9)]

    def read(text: str) -> dict[str, Any]:
        body = {"run": opened.ids["run"], "text": text}
        response = opened.studio.post("/api/inside/read", body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    alone = [read(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        together = pool.map(read, texts * 2)
        others = pool.map(opened.read, texts)
        assert list(together) == alone * 2
        assert all(answer["tokens"] for answer in others)


@pytest.mark.parametrize("weight", ["token_embeddings.weight", "lm_head.weight"])
@pytest.mark.parametrize("path", ["/api/write/read", "/api/inside/read"])
def test_a_diverged_model_is_answered_with_one_sentence(
    opened: Opened, tmp_path: Path, path: str, weight: str
) -> None:
    model = opened.run.load_model()
    with torch.no_grad():
        model.get_parameter(weight).fill_(torch.nan)
    write_imported_model(tmp_path / "diverged", model, opened.tokenizer.vocabulary)
    with open_studio(tmp_path) as studio:
        (run,) = studio.get("/api/write/runs").json()["runs"]
        response = studio.post(path, {"run": run["id"], "text": "Once"})
    assert response.status_code == 400
    assert "diverged" in response.json()["error"]["message"]


def test_answers_are_json_that_browsers_accept(opened: Opened) -> None:
    """Infinite numbers are not JSON."""
    response = opened.studio.post("/api/write/read", {"run": opened.ids["run"], "text": "zebra\u2028\0é"})
    json.loads(response.text, parse_constant=pytest.fail)
