"""The true probabilities of the next token of a story, and their entropy.

    P(next token = t | tokens so far) = P(encodings that begin with these tokens and t)
                                        / P(encodings that begin with these tokens)

P is the probability of a story under the grammar. The encoding of a story is that of its document: the story
between two line breaks, followed by the end token. Text files contain stories in this form (`SEPARATOR`).

Token boundaries are treated exactly. A token can end inside a word, and it can be the end of one word and the
beginning of another one. So the probabilities of all next words are computed first (`continuations`), and
each word is encoded as a whole. Words are encoded independently of each other. The tokens so far select the
words whose encoding begins with them. A prefix that no story has, such as a cut-off token at the end of a
prompt, has no next token here. A model assigns probabilities to all tokens.

Probabilities are sums and products of positive floats, so their relative error is below 1e-12.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.storybook.continuations import WORD_BOUNDARY, Continuations, StateDistribution
from bytewright.errors import UsageError

PATTERNS = ("gpt2", "gpt4")
"""The pre-tokenisation patterns that have a boundary at the end of every word."""
LINE_BREAK = "\n"
MAX_CACHED_ENCODINGS = 200_000


class TokenizerLike(Protocol):
    """What is used of a `Tokenizer`, whose package comes after this one."""

    @property
    def pattern(self) -> str:
        """The pre-tokenisation pattern."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The ids of the special tokens."""

    def encode_batch(self, texts: Sequence[str]) -> Iterable[Iterable[int]]:
        """Return the ids of each text."""


class _Candidate(NamedTuple):
    """A possible current word."""

    ids: tuple[int, ...]
    """Its encoding; if it ends the story, with the end token."""
    probability: float
    distribution: StateDistribution
    """The states of the grammar after the word; empty after the end of the story."""


class Position:
    """A place between two tokens of a story: what can follow, and how probable it is."""

    def __init__(self, tokens: NextTokens, groups: Sequence[tuple[int, Sequence[_Candidate]]]) -> None:
        self._tokens = tokens
        self._groups = groups
        """Words with the same number of tokens before this place. There are several groups if the tokens so
        far are a whole word, and also the beginning of a longer one."""

    @functools.cached_property
    def probabilities(self) -> Mapping[int, float]:
        """The probability of each possible next token; they sum to 1."""
        masses: dict[int, float] = {}
        for place, candidates in self._groups:
            for ids, probability, _ in candidates:
                id = ids[place]
                masses[id] = masses.get(id, 0.0) + probability
        total = math.fsum(masses.values())
        return {id: mass / total for id, mass in masses.items()}

    @property
    def entropy(self) -> float:
        """The entropy of the next token in bits: the smallest expected -log2 p of any prediction."""
        return abs(math.fsum(p * math.log2(p) for p in self.probabilities.values()))  # no -0.0

    def after(self, id: int) -> Position | None:
        """Return the place after one more token; None if no story continues with it."""
        groups: list[tuple[int, Sequence[_Candidate]]] = []
        for place, candidates in self._groups:
            kept = [each for each in candidates if each.ids[place] == id]
            longer = [each for each in kept if len(each.ids) > place + 1]
            if longer:
                groups.append((place + 1, longer))
            for complete in kept:
                if len(complete.ids) == place + 1:
                    groups.append((0, self._tokens.candidates(complete.distribution, complete.probability)))
        return Position(self._tokens, groups) if groups else None


class NextTokens:
    """Computes the true next-token probabilities of stories for one tokenizer."""

    def __init__(self, continuations: Continuations, tokenizer: TokenizerLike) -> None:
        if tokenizer.pattern not in PATTERNS:
            message = (
                "true probabilities need a tokenizer with the pattern gpt2 or gpt4, which encode words"
                " independently of each other"
            )
            raise UsageError(message, key="pattern", expected=PATTERNS, found=tokenizer.pattern)
        for token in tokenizer.special_tokens:
            if WORD_BOUNDARY.search(token):
                message = f"true probabilities need special tokens without inner spaces, but one is {token!r}"
                raise UsageError(message, key="special_tokens", found=token)
        if END_OF_TEXT not in tokenizer.special_tokens:
            message = f"true probabilities need a tokenizer with {END_OF_TEXT}, which ends a story"
            raise UsageError(message, key="special_tokens", expected=END_OF_TEXT)
        self.end = tokenizer.special_tokens[END_OF_TEXT]
        self._continuations = continuations
        self._tokenizer = tokenizer
        self._encodings: dict[str, tuple[int, ...]] = {}

    def start(self, *, after_end: bool = True) -> Position:
        """Return the place before a story: after an end token, or at the beginning of a file.

        Every story but the first of a file begins with the line break after an end token.
        """
        before = LINE_BREAK if after_end else ""
        distribution = self._continuations.start(before, LINE_BREAK)
        return Position(self, [(0, self.candidates(distribution, 1.0))])

    def positions(self, ids: Sequence[int]) -> list[Position | None]:
        """Return the places before each token and after the last; None where no story has these tokens.

        An end token starts a new story. Without one at the beginning, the tokens are read as the first story
        of a file. If no such story begins with the first token, they are read as a story after an end token.
        """
        place: Position | None = self.start(after_end=False)
        if ids and place is not None and place.after(ids[0]) is None:
            place = None if ids[0] == self.end else self.start()
        found = [place]
        for id in ids:
            place = self.start() if id == self.end else place and place.after(id)
            found.append(place)
        return found

    def candidates(self, distribution: StateDistribution, probability: float) -> list[_Candidate]:
        """Return the words after a distribution; their probabilities sum to `probability`."""
        if not distribution:
            distribution = self._continuations.start(LINE_BREAK, LINE_BREAK)
        words = self._continuations.words(distribution)
        missing = [word.text for word in words if word.text not in self._encodings]
        if missing:
            if len(self._encodings) + len(missing) > MAX_CACHED_ENCODINGS:
                self._encodings.clear()
                missing = [word.text for word in words]
            for text, ids in zip(missing, self._tokenizer.encode_batch(missing), strict=True):
                self._encodings[text] = tuple(map(int, ids))
        scale = probability / math.fsum(word.probability for word in words)
        return [
            _Candidate(
                (*self._encodings[word.text], self.end) if word.ends_story else self._encodings[word.text],
                word.probability * scale,
                {} if word.ends_story else word.distribution,
            )
            for word in words
        ]
