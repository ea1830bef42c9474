"""Text of one choice: ids to whole characters, stop strings, and log-probabilities with text offsets.

`ChoiceText.feed` returns text that is final: it never ends inside a character, or inside a possible beginning
of a stop string. The text does not depend on how the ids arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bytewright.serve.jobs import TokenScore
from bytewright.tokenizer import Tokenizer


def name_token(token: bytes) -> str:
    r"""Return a token as the API shows it; bytes that are not UTF-8 are written as `bytes:\x..`.

    >>> name_token(b" cat"), name_token(b"\xe2\x80")
    (' cat', 'bytes:\\xe2\\x80')
    """
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


@dataclass
class Logprobs:
    """Log-probabilities of tokens, as lists with one element per token."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def take(self, count: int) -> Logprobs:
        """Remove the first tokens and return them."""
        lists: list[list[Any]] = [self.tokens, self.token_logprobs, self.top_logprobs, self.text_offset]
        taken = Logprobs(*(items[:count] for items in lists))
        for items in lists:
            del items[:count]
        return taken


class ChoiceText:
    """The text of one choice, from the ids of the engine.

    With `echo`, the text starts with the prompt: feed its ids with `feed_prompt` first.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, has_logprobs: bool = False) -> None:
        self._tokenizer, self._stop, self._has_logprobs = tokenizer, tuple(stop), has_logprobs
        self._decoder = tokenizer.stream_decoder()
        self._held = ""
        """Text that may be the beginning of a stop string."""
        self._num_decoded = self._num_final = 0
        self._pending = Logprobs()
        self.num_tokens = 0
        """The number of new tokens, up to the one that completes a stop string."""
        self.is_stopped = False
        """Whether a stop string was found; the text ends before it."""

    def feed_prompt(self, text: str, ids: Sequence[int], scores: Sequence[TokenScore]) -> str:
        """Return the prompt as text; `scores` has one element for each id but the first."""
        if self._has_logprobs:
            decoder = self._tokenizer.stream_decoder()
            num_decoded = 0
            for id, score in zip(ids, [None, *scores], strict=True):
                self._record(id, score, num_decoded + decoder.breaks_character(id))
                num_decoded += len(decoder.feed(id))
        self._num_decoded = self._num_final = len(text)
        return text

    def feed(self, ids: Sequence[int], scores: Sequence[TokenScore] = ()) -> str:
        """Return the text that these ids complete; nothing after a stop string."""
        pieces = []
        for place, id in enumerate(ids):
            if self.is_stopped:
                break
            self.num_tokens += 1
            if self._has_logprobs:
                offset = self._num_decoded + self._decoder.breaks_character(id)
                self._record(id, scores[place], offset)
            piece = self._decoder.feed(id)
            self._num_decoded += len(piece)
            pieces.append(self._release(piece))
        return "".join(pieces)

    def finish(self) -> str:
        """Return the rest of the text at its end."""
        if self.is_stopped:
            return ""
        rest = self._release(self._decoder.finish())
        if not self.is_stopped:
            rest += self._held
            self._num_final += len(self._held)
        return rest

    def take_logprobs(self, *, is_last: bool) -> dict[str, Any] | None:
        """Return the log-probabilities of the tokens whose text was returned; None without `logprobs`."""
        if not self._has_logprobs:
            return None
        offsets = self._pending.text_offset
        count = len(offsets)
        if self.is_stopped or not is_last:
            count = sum(offset < self._num_final for offset in offsets)
        return vars(self._pending.take(count))

    def _record(self, id: int, score: TokenScore | None, offset: int) -> None:
        name = name_token(self._tokenizer.vocab[id])
        self._pending.tokens.append(name)
        self._pending.text_offset.append(offset)
        self._pending.token_logprobs.append(None if score is None else score.logprob)
        top = None
        if score is not None:
            vocab = self._tokenizer.vocab
            top = {name_token(vocab[other]): logprob for other, logprob in score.top}
            top.setdefault(name, score.logprob)
        self._pending.top_logprobs.append(top)

    def _release(self, piece: str) -> str:
        """Add a piece to the held text; return the part of it that is final."""
        if not self._stop:
            self._num_final += len(piece)
            return piece
        text = self._held + piece
        found = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if found:
            self.is_stopped, self._held = True, ""
            text = text[: min(found)]
        else:
            num_held = find_overlap(text, self._stop)
            self._held = text[len(text) - num_held :]
            text = text[: len(text) - num_held]
        self._num_final += len(text)
        return text


def find_overlap(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest end of `text` with which a stop string begins.

    >>> find_overlap("the en", ["end", "n"]), find_overlap("the", ["x"])
    (2, 0)
    """
    longest = min(len(text), max(map(len, stops)) - 1)
    for length in range(longest, 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
