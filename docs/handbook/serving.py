"""The figures of serving.md: limits of requests and of the engine."""

from bytewright.generate.slots import CHUNK_TOKENS
from bytewright.serve.protocol import DEFAULT_MAX_TOKENS, MAX_CHOICES, MAX_LOGPROBS, MAX_STOPS

FIGURES = [
    f"the prompt is only scored | {DEFAULT_MAX_TOKENS} |",
    f"up to {MAX_STOPS} texts; the result",
    f"at most {MAX_CHOICES} texts in all",
    f"of up to {MAX_LOGPROBS} likeliest tokens",
    f"chunks of at most {CHUNK_TOKENS} tokens",
]
GIVEN = {
    "status 400 for a wrong request, 401 for a wrong key, 404, 405, 408 for": "codes of HTTP",
    "body and 413 for": "a code of HTTP",
    "The status is 429 with": "a code of HTTP",
    "by itself is answered with 400": "a code of HTTP",
    "is full, and 500 when the model fails on this request. It is 503 while": "codes of HTTP",
    "answered with 503, accepted": "a code of HTTP",
    "200 random requests": "tests/serve/test_serving_engine.py, with --slow",
}
