"""The figures of serving.md: limits of requests and of the engine."""

from bytewright.cli.models.serve import SLOTS
from bytewright.generate.prompt_chunks import CHUNK_TOKENS, FIRST_CHUNKS, FIRST_TOKENS, LATER_CHUNKS
from bytewright.serve.protocol import (
    DEFAULT_MAX_TOKENS,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_STOP_LENGTH,
    MAX_STOPS,
)

FIGURES = [
    f"the prompt is only scored | {DEFAULT_MAX_TOKENS} |",
    f"up to {MAX_STOPS} texts, of 1 to {MAX_STOP_LENGTH:,} characters each; the result",
    f"at most {MAX_CHOICES} texts in all",
    f"of up to {MAX_LOGPROBS} likeliest tokens",
    f"the smallest multiple of `--threads` from {SLOTS} on",
    f"chunks of at most {CHUNK_TOKENS} tokens",
    f"up to {FIRST_CHUNKS} first chunks with {FIRST_TOKENS} tokens in all, or {LATER_CHUNKS} later chunks",
    [
        ("status", "reason"),
        ("400", "the request is wrong; `error.param` of the body names the option"),
        ("401", "the API key is missing or wrong"),
        ("403", "the Host or the Origin header is not allowed ([why](#limits-and-security))"),
        ("404, 405", "there is no such path or model, or the path does not accept the method"),
        ("408, 413", "the body arrives too slowly, or is too large"),
        ("429, with `Retry-After`", "the queue has no room for the request"),
        ("500", "the model failed on this request"),
        (
            "503, with `Retry-After`",
            "the model is being loaded, the server shuts down, too many connections are open, or the GPU has"
            " failed (restart the server)",
        ),
    ],
]
GIVEN = {
    "another name is answered with 404": "a code of HTTP",
    "is answered with 429": "a code of HTTP",
    "is answered with 400": "a code of HTTP",
    "new requests with 503": "a code of HTTP",
    "200 random requests": "tests/serve/test_serving_engine.py, with --slow",
}
