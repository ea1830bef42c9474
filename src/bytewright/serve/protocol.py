"""The completions API: read requests strictly, and write responses and errors.

Requests are untrusted. A wrong one raises `FormatError` or `UsageError`, whose sentence is the answer.
Options that would change the text and are not supported are rejected rather than ignored.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bytewright.errors import FormatError, UsageError, shorten, suggest
from bytewright.generate import SamplingConfig
from bytewright.generate.reference import check_ids
from bytewright.generate.text import encode_prompt, stop_tokens_of
from bytewright.model import ModelConfig
from bytewright.serve.jobs import Job
from bytewright.storage.json_reader import Json, parse_json
from bytewright.tokenizer import Tokenizer

MAX_CHOICES = 128
"""The largest number of texts per request."""
MAX_LOGPROBS = 20
MAX_STOPS, MAX_STOP_LENGTH = 16, 1000
DEFAULT_MAX_TOKENS = 16
"""As in the API of OpenAI."""

OPTIONS = (
    *("model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n"),
    *("echo", "logprobs", "stream", "stream_options", "user"),
)
NEUTRAL: Mapping[str, Sequence[object]] = {
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "suffix": ("",),
}
"""Options of OpenAI that are not supported, with the values that have no effect."""


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A checked request for completions."""

    model: str | None
    prompts: Sequence[tuple[str, Sequence[int]]]
    """Each prompt as text and as ids."""
    sampling: SamplingConfig
    stop: tuple[str, ...]
    n: int
    echo: bool
    logprobs: int | None
    stream: bool
    include_usage: bool

    def jobs(self) -> list[Job]:
        """Return the jobs of all choices; choice i uses random stream i, as text i of `generate`."""
        return [
            Job(
                ids,
                self.sampling,
                random_stream=number * self.n + copy,
                num_top=self.logprobs,
                scores_prompt=self.echo and self.logprobs is not None,
            )
            for number, (_, ids) in enumerate(self.prompts)
            for copy in range(self.n)
        ]

    def check_prompts(self, model: ModelConfig) -> None:
        """Raise if a prompt is too long for the context of a model, or has an id that the model lacks.

        A prompt must leave room for one token, unless no token is requested.
        """
        limit = model.context_length - min(1, self.sampling.max_new_tokens)
        for number, (_, ids) in enumerate(self.prompts):
            place = "prompt" if len(self.prompts) == 1 else f"prompt[{number}]"
            if len(ids) > limit:
                message = (
                    f"request: {place} has {len(ids)} tokens, but the model's context is"
                    f" {model.context_length}; shorten it to at most {limit} tokens"
                )
                raise FormatError(message, key=place, expected=limit, found=len(ids))
            check_ids(model, ids, f"request: {place}", key=place)

    def usage(self, num_new_tokens: int) -> dict[str, int]:
        """Return the numbers of tokens; each prompt counts once."""
        num_prompt_tokens = sum(len(ids) for _, ids in self.prompts)
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_new_tokens,
            "total_tokens": num_prompt_tokens + num_new_tokens,
        }


def read_object(body: bytes) -> Json:
    """Return the JSON object of a request's body."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"request: byte {error.start} of the body is not UTF-8") from None
    value = parse_json(text, "request")
    if not isinstance(value, dict):
        raise FormatError("request: the body should be a JSON object", expected=dict, found=value)
    return Json(value, Path("request"))


async def read_body(request: Request, known: Sequence[str]) -> Json:
    """Return the JSON object in the body of a request; raise if it has another key than those in `known`."""
    body = read_object(await request.body())
    check_keys(body, known)
    return body


def check_keys(request: Json, known: Sequence[str]) -> None:
    """Raise if the request has an unknown key."""
    for key in request.as_object():
        if key not in known:
            message = f"request: there is no option {shorten(key)}{suggest(key, known)}"
            raise FormatError(message, key=key)


def read_completion(body: bytes, tokenizer: Tokenizer) -> CompletionRequest:
    """Return the request in a body; raise an error with one sentence if anything is wrong with it."""
    request = read_object(body)
    check_keys(request, [*OPTIONS, *NEUTRAL])
    for key, values in NEUTRAL.items():
        option = request.get(key)
        is_neutral = option.value in values and not isinstance(option.value, bool)  # True equals 1
        if option.value is not None and not is_neutral:
            message = f"request: {key} is not supported; leave it out"
            raise FormatError(message, key=key, found=option.value)
    n = read_integer(request.get("n"), 1, least=1, most=MAX_CHOICES)
    prompts = read_prompts(request.get("prompt"), tokenizer)
    if len(prompts) * n > MAX_CHOICES:
        message = f"request: at most {MAX_CHOICES} texts can be requested; reduce n or the number of prompts"
        raise FormatError(message, key="n", expected=MAX_CHOICES, found=len(prompts) * n)
    options = request.get("stream_options")
    include_usage = False
    if options.value is not None:
        check_keys(options, ["include_usage"])
        include_usage = options.get("include_usage").as_boolean(False)
    logprobs = request.get("logprobs")
    return CompletionRequest(
        model=read_model_name(request),
        prompts=prompts,
        sampling=read_sampling(request, tokenizer),
        stop=read_stops(request.get("stop")),
        n=n,
        echo=request.get("echo").as_boolean(False),
        logprobs=None if logprobs.value is None else read_integer(logprobs, 0, least=0, most=MAX_LOGPROBS),
        stream=request.get("stream").as_boolean(False),
        include_usage=include_usage,
    )


def read_model_name(request: Json) -> str | None:
    """Return the name of the model that a request is for; None for any."""
    name = request.get("model")
    return None if name.value is None else name.as_text()


def read_sampling(request: Json, tokenizer: Tokenizer) -> SamplingConfig:
    """Return the sampling settings of a request; without a seed, a random one."""
    seed = request.get("seed")
    top_k = read_integer(request.get("top_k"), -1, least=-1)
    try:
        return SamplingConfig(
            max_new_tokens=read_integer(request.get("max_tokens"), DEFAULT_MAX_TOKENS, least=0, most=2**31),
            temperature=read_number(request.get("temperature"), 1.0),
            top_p=read_number(request.get("top_p"), 1.0),
            top_k=top_k if top_k > 0 else None,
            min_p=read_number(request.get("min_p"), 0.0),
            seed=secrets.randbits(64)
            if seed.value is None
            else read_integer(seed, 0, least=-(2**63), most=2**64 - 1) % 2**64,
            stop_tokens=stop_tokens_of(tokenizer),
            num_ids=tokenizer.vocab_size,
        )
    except UsageError as error:
        raise FormatError(f"request: {error}", key=error.key, found=error.found) from None


def read_prompts(prompt: Json, tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """Return the prompts: a text, ids, or a list of either."""
    if prompt.value is None or isinstance(prompt.value, str):
        text = "" if prompt.value is None else prompt.as_text()
        return [(text, encode_prompt(tokenizer, text))]
    if not isinstance(prompt.value, list) or not prompt.value:
        raise prompt.error("a text, ids, or a list of them that is not empty")
    if isinstance(prompt.value[0], int):
        return [_read_prompt_ids(prompt, tokenizer)]
    if (count := len(prompt.value)) > MAX_CHOICES:
        message = f"request: prompt has {count} texts; at most {MAX_CHOICES} are allowed"
        raise FormatError(message, key="prompt", expected=MAX_CHOICES, found=count)
    return [
        _read_prompt_ids(it, tokenizer)
        if isinstance(it.value, list)
        else (it.as_text(), encode_prompt(tokenizer, it.as_text()))
        for it in prompt.elements()
    ]


def _read_prompt_ids(ids: Json, tokenizer: Tokenizer) -> tuple[str, list[int]]:
    found = read_ids(ids, tokenizer)
    if not found:
        raise ids.error("a list of ids that is not empty")
    return tokenizer.decode(found), found


def read_ids(ids: Json, tokenizer: Tokenizer) -> list[int]:
    """Return a list of ids of the vocabulary.

    The event loop waits for it, and a body can have 500,000 ids, so there is no `Json` for each of them.
    """
    vocab = tokenizer.vocab
    values = ids.as_array()
    found = [id for id in values if type(id) is int]
    if len(found) < len(values):
        number, other = next((number, it) for number, it in enumerate(values) if type(it) is not int)
        raise Json(other, ids.file, f"{ids.place}[{number}]").error("an integer")
    unknown = next((id for id in found if id not in vocab), None)
    if unknown is not None:
        message = f"request: {ids.place} has the id {shorten(unknown)}, which is not in the vocabulary"
        raise FormatError(message, key=ids.place, found=unknown)
    return found


def read_stops(stop: Json) -> tuple[str, ...]:
    """Return the stop strings: none, one, or a list."""
    if stop.value is None:
        return ()
    if not isinstance(stop.value, str | list):
        raise stop.error("a text or a list of texts")
    stops = [stop] if isinstance(stop.value, str) else list(stop.elements())
    if len(stops) > MAX_STOPS:
        message = f"request: stop has {len(stops)} texts; at most {MAX_STOPS} are allowed"
        raise FormatError(message, key="stop", expected=MAX_STOPS, found=len(stops))
    for it in stops:
        length = len(it.as_text())
        if not 0 < length <= MAX_STOP_LENGTH:
            message = f"request: {it.place} has {length} characters; 1 to {MAX_STOP_LENGTH} are allowed"
            raise FormatError(message, key=it.place, expected=MAX_STOP_LENGTH, found=length)
    return tuple(it.as_text() for it in stops)


def read_integer(option: Json, default: int, *, least: int, most: int = 2**63) -> int:
    """Return an integer within limits; null or a missing value is the default."""
    return default if option.value is None else option.as_integer(least, most)


def read_number(option: Json, default: float) -> float:
    """Return a number; null or a missing value is the default."""
    return default if option.value is None else option.as_number()


class CompletionWriter:
    """Writes the responses to one request."""

    def __init__(self, request: CompletionRequest, model: str) -> None:
        self.request = request
        self.head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, choices: Sequence[Mapping[str, Any]], num_new_tokens: int) -> bytes:
        """Return the body of a response that is not streamed."""
        return dump({**self.head, "choices": choices, "usage": self.request.usage(num_new_tokens)})

    def chunk(self, choice: Mapping[str, Any]) -> bytes:
        """Return one event of a stream."""
        usage = {"usage": None} if self.request.include_usage else {}
        return event({**self.head, "choices": [choice], **usage})

    def end(self, num_new_tokens: int) -> bytes:
        """Return the last events of a stream."""
        usage = b""
        if self.request.include_usage:
            usage = event({**self.head, "choices": [], "usage": self.request.usage(num_new_tokens)})
        return usage + b"data: [DONE]\n\n"


def choice_of(
    index: int, text: str, logprobs: Mapping[str, Any] | None, reason: str | None
) -> dict[str, Any]:
    """Return a choice; `reason` is why it ended, in the words of the engine."""
    finish = {None: None, "stop": "stop"}.get(reason, "length")
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


# `json.dumps` with options makes an encoder for every call.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dump(value: object) -> bytes:
    """Return a value as JSON."""
    return _encode(value).encode("utf-8", "replace")


def json_response(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with JSON."""
    return Response(dump(content), status, headers, media_type="application/json")


def event(value: object, name: str | None = None) -> bytes:
    r"""Return a server-sent event, with a name if one is given.

    >>> event([1, 2], "runs")
    b'event: runs\ndata: [1,2]\n\n'
    """
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + dump(value) + b"\n\n"


ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(message: str, status: int, key: str | None = None) -> dict[str, Any]:
    """Return the body of an error in the format of OpenAI."""
    kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": key, "code": status}}
