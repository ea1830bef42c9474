"""The API of a real server, with the client of OpenAI: texts, streams, scores, counts and errors."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from bytewright.errors import FormatError
from bytewright.generate import Generator, SamplingConfig
from bytewright.generate.interpret import token_losses
from bytewright.generate.text import encode_prompt, stop_tokens_of
from bytewright.model import ModelConfig, TransformerLM
from bytewright.serve.app import make_app
from bytewright.serve.guard import GuardOptions
from bytewright.serve.protocol import read_completion
from bytewright.serve.service import EngineOptions, ServedModel, Service
from bytewright.storage.json_reader import Json
from bytewright.tokenizer import Tokenizer
from bytewright.train import Run
from rejection import rejects
from servers import HANG_SECONDS, RunningServer, running_server, write_run


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    return write_run(tmp_path_factory.mktemp("serve") / "tiny", tokenizer)


@pytest.fixture(scope="module")
def server(run_path: Path) -> Iterator[RunningServer]:
    with running_server(run_path, "--slots", "4", "--max-waiting", "300") as server:
        yield server
        assert server.stop() == 143
        assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(run_path: Path) -> TransformerLM:
    return Run.open(run_path).load_model()


@pytest.fixture(scope="module")
def words(run_path: Path) -> Tokenizer:
    return Run.open(run_path).tokenizer


def sampling_of(words: Tokenizer, **options: Any) -> SamplingConfig:
    return SamplingConfig(stop_tokens=stop_tokens_of(words), num_ids=words.vocab_size, **options)


def random_request(generator: random.Random, words: Tokenizer) -> dict[str, Any]:
    length = generator.randint(1, 120)
    return {
        "prompt": [generator.randrange(words.vocab_size - 1) for _ in range(length)],
        "max_tokens": generator.randint(1, 24),
        "temperature": generator.choice([0.0, 0.7, 1.0]),
        "top_p": generator.choice([1.0, 0.9]),
        "extra_body": {"top_k": generator.choice([-1, 20]), "min_p": generator.choice([0.0, 0.02])},
        "seed": generator.randrange(2**63),
    }


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_random_requests_get_the_text_of_generate(
    client: openai.OpenAI, model: TransformerLM, words: Tokenizer, count: int
) -> None:
    """Both compute in float32, but in other shapes. Rounding decides about one token in 100,000.

    `tests/serve/test_serving_engine.py` compares in float64, where all ids are equal.
    """
    generator, fused = random.Random(0), Generator(model)
    requests = [random_request(generator, words) for _ in range(count)]
    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(lambda it: client.completions.create(model="tiny", **it), requests))
    num_equal = 0
    for request, response in zip(requests, responses, strict=True):
        extra = request["extra_body"]
        sampling = sampling_of(
            words,
            max_new_tokens=request["max_tokens"],
            temperature=request["temperature"],
            top_p=request["top_p"],
            top_k=extra["top_k"] if extra["top_k"] > 0 else None,
            min_p=extra["min_p"],
            seed=request["seed"],
        )
        (expected,) = fused.generate([request["prompt"]], sampling)
        (choice,) = response.choices
        assert response.usage is not None
        assert response.usage.prompt_tokens == len(request["prompt"])
        if choice.text == words.decode(expected.ids):
            assert choice.finish_reason == ("stop" if expected.reason == "stop" else "length")
            assert response.usage.completion_tokens == len(expected.ids)
            num_equal += 1
    assert num_equal >= count - 2


def test_choices_are_the_texts_of_generate_in_order(
    client: openai.OpenAI, model: TransformerLM, words: Tokenizer
) -> None:
    prompts = ["Once upon", "The cat"]
    response = client.completions.create(model="tiny", prompt=prompts, n=2, max_tokens=6, seed=7)
    ids = [encode_prompt(words, text) for text in prompts for _ in range(2)]
    expected = Generator(model).generate(ids, sampling_of(words, max_new_tokens=6, seed=7))
    assert [choice.index for choice in response.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in response.choices] == [words.decode(it.ids) for it in expected]


@pytest.mark.parametrize("prompt", ["", None, [10, 11], ["a", [10, 11]]])
def test_all_forms_of_prompts_are_accepted(server: RunningServer, prompt: object) -> None:
    response = server.complete(prompt=prompt, max_tokens=2, temperature=0)
    assert response["choices"]


def test_a_stream_has_the_text_of_the_response_and_its_usage(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"prompt": "Once", "max_tokens": 40, "seed": 4, "n": 2, "echo": True}
    whole = client.completions.create(model="tiny", **options)
    chunks = list(
        client.completions.create(
            model="tiny", stream=True, stream_options={"include_usage": True}, **options
        )
    )
    for index, choice in enumerate(whole.choices):
        mine = [it for chunk in chunks for it in chunk.choices if it.index == index]
        assert "".join(it.text for it in mine) == choice.text
        assert [it.finish_reason for it in mine] == [None] * (len(mine) - 1) + [choice.finish_reason]
        assert len(mine) > 2
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].choices == []


def test_streams_never_cut_a_character(server: RunningServer, words: Tokenizer) -> None:
    """Tokens of this model are often single bytes; each piece is whole characters, or U+FFFD as decoded."""
    for seed in range(6):
        options = {"prompt": "é", "max_tokens": 60, "seed": seed, "temperature": 2.0}
        whole = server.complete(**options)
        pieces = []
        with httpx2.stream("POST", f"{server.url}/v1/completions", json={**options, "stream": True}) as it:
            for line in it.iter_lines():
                if line.startswith("data: {"):
                    pieces.append(json.loads(line[6:])["choices"][0]["text"])
        assert "".join(pieces) == whole["choices"][0]["text"]


def test_logprobs_with_echo_score_the_prompt(
    client: openai.OpenAI, model: TransformerLM, words: Tokenizer
) -> None:
    """The request of lm-evaluation-harness: token ids, echo, one logprob, one new token."""
    ids = words.encode("Once upon a time there was a cat")
    response = client.completions.create(
        model="tiny", prompt=ids, echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234
    )
    logprobs = response.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    losses = token_losses(model, ids).tolist()
    assert logprobs.token_logprobs[0] is None
    assert [-(it or 0) for it in logprobs.token_logprobs[1:-1]] == pytest.approx(losses, abs=1e-4)
    assert len(logprobs.token_logprobs) == len(ids) + 1
    assert logprobs.token_logprobs[-1] == max(logprobs.top_logprobs[-1].values())
    text = response.choices[0].text
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        if not token.startswith("bytes:"):
            assert text[offset:].startswith(token)


def test_a_prompt_is_scored_without_new_tokens(client: openai.OpenAI) -> None:
    response = client.completions.create(model="tiny", prompt="a cat", echo=True, logprobs=0, max_tokens=0)
    assert response.choices[0].text == "a cat"
    assert response.usage is not None
    assert response.usage.completion_tokens == 0


def test_a_prompt_of_one_token_is_echoed_before_the_text(server: RunningServer, words: Tokenizer) -> None:
    """It has no scores, because its only token is not predicted."""
    (id,) = words.encode("O")
    options = {"prompt": [id], "max_tokens": 5, "temperature": 0}
    text = server.complete(**options)["choices"][0]["text"]
    (choice,) = server.complete(**options, echo=True, logprobs=1)["choices"]
    assert choice["text"] == "O" + text
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"][:2] == [0, 1]


def test_stop_strings_are_found_across_tokens(server: RunningServer, words: Tokenizer) -> None:
    options = {"prompt": "Once", "max_tokens": 60, "seed": 11, "temperature": 1.0}
    text = server.complete(**options)["choices"][0]["text"]
    for start, end in ((5, 7), (10, 20), (0, 3)):
        stop = text[start:end]
        response = server.complete(**options, stop=["never found", stop], logprobs=0)
        stopped = response["choices"][0]
        assert stopped["text"] == text[: text.index(stop)]
        assert stopped["finish_reason"] == "stop"
        assert all(it < len(stopped["text"]) for it in stopped["logprobs"]["text_offset"])
        assert response["usage"]["completion_tokens"] < 60


def test_a_text_ends_at_the_context_with_the_reason_length(server: RunningServer) -> None:
    response = server.complete(prompt=[40] * 150, max_tokens=100, seed=2)
    assert response["usage"]["completion_tokens"] <= 10
    assert response["choices"][0]["finish_reason"] in ("length", "stop")


def test_a_request_without_a_seed_gets_another_text_each_time(server: RunningServer) -> None:
    options = {"prompt": "Once", "max_tokens": 30}
    assert server.complete(**options)["choices"] != server.complete(**options)["choices"]


def test_a_seeded_request_gets_the_same_text_under_load(server: RunningServer) -> None:
    """Also the same log-probabilities, which are compared exactly."""
    request = {"prompt": "Once upon a time", "max_tokens": 30, "seed": 5, "logprobs": 3}
    alone = server.complete(**request)["choices"]
    done = threading.Event()

    def keep_busy(number: int) -> None:
        seed = 0
        while not done.is_set():
            seed += 1
            prompt = "The cat " * (1 + (number * 7 + seed) % 20)
            server.complete(prompt=prompt, max_tokens=1 + seed % 13, seed=seed, top_p=0.9)

    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(keep_busy, number) for number in range(7)]
        try:
            for _ in range(5):
                assert server.complete(**request)["choices"] == alone
        finally:
            done.set()
        for other in others:
            other.result()


def test_a_cancelled_stream_frees_its_slot(server: RunningServer, client: openai.OpenAI) -> None:
    for _ in range(6):  # more than there are slots
        stream = client.completions.create(model="tiny", prompt="Once", max_tokens=150, seed=3, stream=True)
        next(iter(stream))
        stream.close()
    server.complete(prompt="Once", max_tokens=2)
    assert server.metric("slots_in_use") == 0
    assert server.metric("waiting_texts") == 0


def test_models_and_tokens_are_described(client: openai.OpenAI, server: RunningServer) -> None:
    (found,) = client.models.list().data
    assert found.id == client.models.retrieve(found.id).id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="a")
    ids = server.post("/tokenize", {"prompt": "Once upon"}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json() == {"prompt": "Once upon"}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"temprature": 1}, "temprature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": "x"}, "seed"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [5] * 160}, "prompt"),
        ({"prompt": ["a", [5] * 160]}, "prompt[1]"),
        ({"prompt": ["a", [5, 10**9]]}, "prompt[1]"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": 1}, "stop"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": "yes"}, "echo"),
        ({"stream_options": {"usage": True}}, "usage"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": True}, "best_of"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"suffix": "end"}, "suffix"),
    ],
)
def test_a_wrong_option_is_rejected_by_name(server: RunningServer, changes: dict[str, Any], key: str) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 1, **changes})
    response = httpx2.post(f"{server.url}/v1/completions", content=body, timeout=HANG_SECONDS, verify=False)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == key
    assert "\n" not in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"n": NaN}', b'{"a": 1, "a": 1}', b"[" * 5000, b'{"n": 1e999}']
)
def test_a_body_that_is_not_an_object_is_rejected(server: RunningServer, body: bytes) -> None:
    response = httpx2.post(f"{server.url}/v1/completions", content=body, timeout=HANG_SECONDS, verify=False)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["param"] is None


def test_a_prompt_may_fill_the_context_if_it_is_only_scored(server: RunningServer) -> None:
    options = {"prompt": [[5] * 160, [5]], "max_tokens": 0, "echo": True, "logprobs": 0}
    assert len(server.complete(**options)["choices"][0]["logprobs"]["tokens"]) == 160


@pytest.mark.parametrize(
    ("prompt", "place"), [("", "prompt"), ([256], "prompt"), (["a", [5, 256]], "prompt[1]")]
)
def test_ids_that_the_tokenizer_has_and_the_model_lacks_are_rejected_by_prompt(
    words: Tokenizer, prompt: object, place: str
) -> None:
    """The vocabulary of a tokenizer can be larger than that of the model. An empty text is the end token."""
    config = ModelConfig(vocab_size=256, context_length=16, d_model=8, num_layers=1, num_heads=1)

    async def request() -> dict[str, Any]:
        service = Service(EngineOptions(num_slots=1))
        service.load(ServedModel(TransformerLM(config), words, "tiny"), asyncio.get_running_loop())
        transport = httpx2.ASGITransport(app=make_app(service, GuardOptions()))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            response = await client.post("/v1/completions", json={"prompt": prompt})
        await service.stop()
        assert response.status_code == 400, response.text
        error: dict[str, Any] = response.json()["error"]
        return error

    error = asyncio.run(request())
    assert error["param"] == place
    assert error["message"].startswith(f"request: {place} has the id ")


def test_ids_are_read_without_an_object_for_each(words: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop waits while a body is read."""
    num_made = 0

    def count_elements(
        array: Json, elements: Callable[[Json], Iterator[Json]] = Json.elements
    ) -> Iterator[Json]:
        nonlocal num_made
        for each in elements(array):
            num_made += 1
            yield each

    monkeypatch.setattr(Json, "elements", count_elements)
    ids = [40] * 10_000
    assert read_completion(json.dumps({"prompt": ids}).encode(), words).prompts[0][1] == ids
    assert read_completion(json.dumps({"prompt": [ids, [40]]}).encode(), words).prompts[0][1] == ids
    with rejects(FormatError, key="prompt[10000]"):
        read_completion(json.dumps({"prompt": [*ids, "a"]}).encode(), words)
    assert num_made == 2  # the two prompts of the second request


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [65]}),
    ],
)
def test_a_request_may_name_the_model_but_no_other(
    server: RunningServer, path: str, body: dict[str, Any]
) -> None:
    assert server.post(path, {**body, "model": "tiny"}).status_code == 200
    response = server.post(path, {**body, "model": "other"})
    assert response.status_code == 404
    assert response.json()["error"]["param"] == "model"
    (model,) = server.get("/v1/models").json()["data"]
    assert f"its model is {model['id']!r}" in response.json()["error"]["message"]
    assert server.post(path, {**body, "model": 1}).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/../etc/passwd", 404),
        ("PUT", "/health", 405),
        ("GET", "/tokenize", 405),
    ],
)
def test_other_paths_and_methods_are_rejected(
    server: RunningServer, method: str, path: str, status: int
) -> None:
    response = httpx2.request(method, server.url + path, timeout=HANG_SECONDS, verify=False)
    assert response.status_code == status
    assert response.json()["error"]["code"] == status
    assert ("/v1/completions" in response.json()["error"]["message"]) == (status == 404)
    assert ("allow" in response.headers) == (status == 405)
    if status == 405:
        allowed = "POST" if method == "GET" else "GET or HEAD"
        assert response.json()["error"]["message"].endswith(f"; use {allowed}")
