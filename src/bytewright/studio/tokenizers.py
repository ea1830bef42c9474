"""The endpoints of the view Tokenizer: the tokenizers of the folder, the tokens of a text, and their merges.

A text is sent as JSON and answered with one entry per token. A token that ends inside a character has no
text; the page shows its bytes. A request can list several tokenizers; the first that can be read is used, so
that a page does not begin with the error of a damaged one. The merges of a token are listed in the order of
their creation, which is the order in which encoding applies them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from bytewright.errors import BytewrightError, FormatError
from bytewright.serve.guard import RejectedError
from bytewright.serve.protocol import json_response, read_body
from bytewright.storage.json_reader import Json
from bytewright.studio.context import Studio
from bytewright.studio.folder import TOKENIZER_FILES
from bytewright.tokenizer import Tokenizer, Vocabulary
from bytewright.tokenizer.formats import read_vocabulary
from bytewright.tokenizer.inspect import show_token
from bytewright.tokenizer.vocabulary import Merge

MAX_TEXT_BYTES = 500_000
MAX_TOKENS = 4000
"""How many tokens of a text are described; the counts are those of the whole text."""
MAX_MERGES = 200
MAX_CANDIDATES = 16
"""How many tokenizers a request can list."""
NUM_LOADED = 8
"""How many tokenizers stay in memory."""


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer in memory, with the number of the merge that makes each token."""

    tokenizer: Tokenizer
    modified: float

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the tokenizer."""
        return self.tokenizer.vocabulary

    @cached_property
    def merge_numbers(self) -> Mapping[bytes, int]:
        """The number of the merge that makes a token, from 1 on, by the token's bytes."""
        return {left + right: number for number, (left, right) in enumerate(self.vocabulary.merges, start=1)}


class TokenizerCache:
    """Loads the tokenizers of the folder by id, and keeps those that were used last."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self._loaded: OrderedDict[str, LoadedTokenizer] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, id: str) -> LoadedTokenizer:
        """Return the tokenizer with an id; it is read again if its folder changed."""
        found = self.studio.folder.find_tokenizer(id)
        with self._lock:
            loaded = self._loaded.get(id)
            if loaded is None or loaded.modified != found.modified:
                tokenizer = Tokenizer.from_vocabulary(read_vocabulary(found.path))
                loaded = LoadedTokenizer(tokenizer, found.modified)
                self._loaded[id] = loaded
            self._loaded.move_to_end(id)
            while len(self._loaded) > NUM_LOADED:
                self._loaded.popitem(last=False)
        return loaded

    def load_first(self, ids: Sequence[str]) -> tuple[str, LoadedTokenizer]:
        """Return the first tokenizer that can be read, with its id; if none can, raise the first error."""
        errors = []
        for id in ids:
            try:
                return id, self.load(id)
            except BytewrightError as error:
                errors.append(error)
        raise errors[0]


def make_routes(studio: Studio) -> list[BaseRoute]:
    """Return the endpoints."""
    cache = TokenizerCache(studio)

    async def list_tokenizers(request: Request) -> Response:
        return json_response({"tokenizers": await studio.compute(describe_tokenizers, studio)})

    async def encode(request: Request) -> Response:
        body = await read_body(request, ["tokenizer", "text"])
        text = body["text"].as_text()
        if len(text.encode()) > MAX_TEXT_BYTES:
            message = f"the text is longer than {MAX_TEXT_BYTES:,} bytes; shorten it"
            raise FormatError(message, key="text", expected=MAX_TEXT_BYTES)
        id, loaded = await studio.compute(cache.load_first, read_candidates(body["tokenizer"]))
        return json_response({"tokenizer": id, **await studio.compute(describe_text, loaded, text)})

    async def show_merges(request: Request) -> Response:
        body = await read_body(request, ["tokenizer", "token"])
        loaded = await studio.compute(cache.load, body["tokenizer"].as_text())
        return json_response(await studio.compute(describe_token, loaded, body["token"].as_integer()))

    return [
        Route("/api/tokenizer", list_tokenizers),
        Route("/api/tokenizer/encode", encode, methods=["POST"]),
        Route("/api/tokenizer/token", show_merges, methods=["POST"]),
    ]


def read_candidates(tokenizer: Json) -> list[str]:
    """Return the ids of the tokenizers of a request: one id, or a list of them."""
    if not isinstance(tokenizer.value, list):
        return [tokenizer.as_text()]
    ids = [each.as_text() for each in tokenizer.elements()]
    if not 0 < len(ids) <= MAX_CANDIDATES:
        raise tokenizer.error(f"an id, or 1 to {MAX_CANDIDATES} of them")
    return ids


def describe_tokenizers(studio: Studio) -> list[dict[str, Any]]:
    """Return the name and the size of each tokenizer; equal tokenizers have equal sizes."""
    return [
        {"id": each.id, "name": each.name, "num_bytes": count_bytes(each.path)}
        for each in studio.folder.scan().tokenizers.values()
    ]


def count_bytes(path: Path) -> int:
    """Return the size of the files of a tokenizer, at least 1."""
    num_bytes = 0
    for name in TOKENIZER_FILES:
        with contextlib.suppress(OSError):  # a format has only some of the files, and they can be removed
            num_bytes += (path / name).stat().st_size
    return num_bytes or 1


def describe_text(loaded: LoadedTokenizer, text: str) -> dict[str, Any]:
    """Return the tokens of a text, and its counts."""
    ids = loaded.tokenizer.encode(text)
    tokens, special_ids = loaded.vocabulary.tokens, set(loaded.vocabulary.special_tokens.values())
    num_bytes = len(text.encode())
    described = [
        {"id": id, "text": _text_of(tokens[id]), "bytes": tokens[id].hex(), "special": id in special_ids}
        for id in ids[:MAX_TOKENS]
    ]
    return {
        "fingerprint": loaded.vocabulary.fingerprint,
        "tokens": described,
        "num_tokens": len(ids),
        "num_distinct": len(set(ids)),
        "num_bytes": num_bytes,
        "vocab_size": loaded.vocabulary.size,
        "num_merges": len(loaded.vocabulary.merges),
    }


def describe_token(loaded: LoadedTokenizer, id: int) -> dict[str, Any]:
    """Return a token and the merges that build it, in the order of their creation."""
    if id not in loaded.vocabulary.tokens:
        raise RejectedError(404, "the tokenizer has no token with this id")
    token = loaded.vocabulary.tokens[id]
    special = id in loaded.vocabulary.special_tokens.values()
    merges = [] if special else list_merges(loaded, token)
    return {
        "id": id,
        "shown": show_token(token, 60),
        "bytes": token[:60].hex(),
        "num_bytes": len(token),
        "special": special,
        "merges": [
            {
                "number": number,
                "left": show_token(left, 40),
                "right": show_token(right, 40),
                "result": show_token(left + right, 40),
            }
            for number, (left, right) in merges[:MAX_MERGES]
        ],
        "num_merges": len(merges),
    }


def list_merges(loaded: LoadedTokenizer, token: bytes) -> list[tuple[int, Merge]]:
    """Return the distinct merges that build a token, with their numbers, in order.

    Each merge is followed to its two halves until single bytes are left.
    """
    found: dict[int, Merge] = {}
    pending = [token]
    while pending:
        number = loaded.merge_numbers.get(pending.pop())
        if number is not None and number not in found:
            found[number] = loaded.vocabulary.merges[number - 1]
            pending += found[number]
    return sorted(found.items())


def _text_of(token: bytes) -> str | None:
    """Return the text of a token, or None if its bytes are not whole characters."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None
