"""The derivation of a document, and the builders that make its choices.

`GeneratingBuilder` draws the choices from random numbers and writes a document. `ParsingBuilder` recognises
them in a text. Both record the same derivation: every choice with its span in the text, its ratio, and the
circumstances on which its difficulty depends.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from bytewright.corpus.books import CHARACTERS_SHOWN
from bytewright.corpus.worldbook.choices import Distribution, Options, Someone
from bytewright.corpus.worldbook.world import Below
from bytewright.errors import FormatError, shorten


class DerivedChoice(NamedTuple):
    """A choice of a derivation, or a mention that follows from earlier choices and has 0 bits."""

    kind: str
    """What is chosen: genre, length, wording, word, person, fact, number, result, thing, holder, …"""
    rule: str
    """The rule in which the choice occurs."""
    start: int
    end: int
    """The text that shows the choice. For an alternative it is the literal text at its beginning."""
    weight: int
    total: int
    """The probability is weight / total."""
    depth: int
    rank: int | None = None
    """The rank of the person, for names and facts."""
    distance: int | None = None
    """For the holder of a thing: the characters since the text last stated it."""
    moves: int | None = None
    """For the holder of a thing: how often the thing has changed hands."""

    @property
    def bits(self) -> float:
        """-log2 of the probability."""
        return math.log2(self.total / self.weight)


@dataclass(frozen=True)
class Derivation:
    """All choices of a document in the order of the text."""

    choices: tuple[DerivedChoice, ...]

    @functools.cached_property
    def bits(self) -> float:
        """-log2 of the probability of the document."""
        return math.fsum(choice.bits for choice in self.choices)

    @property
    def probability(self) -> Fraction:
        """The exact probability of the document."""
        product = Fraction(1)
        for choice in self.choices:
            product *= Fraction(choice.weight, choice.total)
        return product


EXPECTED = {
    "genre": "the beginning of a section",
    "length": "the end of the document, or another section",
    "wording": "the beginning of a sentence or a phrase",
}
"""What a text shows for the kinds of choices whose names do not say it."""


class LanguageError(FormatError):
    """A text is not a document of a world."""

    def __init__(self, text: str, at: int, kind: str, expected: str = "") -> None:
        what = shorten(expected) if expected else EXPECTED.get(kind, f"a {kind}")
        found = text[at : at + CHARACTERS_SHOWN]
        super().__init__(
            f"the text is not a document of this world: expected {what} at character {at + 1}, but found"
            f" {shorten(found) if found else 'the end of the text'}",
            expected=what,
            found=found,
        )
        self.position = at
        """The position of the first character that no document of the world has there."""
        self.kind = kind
        """The kind of the choice that could not be recognised, or of the text that differs."""


class DerivationBuilder:
    """Makes the choices of one document and records them; subclasses draw or recognise them."""

    def __init__(self) -> None:
        self.at = 0
        self.depth = 0
        self.rule = ""
        self.choices: list[DerivedChoice] = []
        self._open: list[tuple[Any, ...]] = []
        """Choices that no text has shown yet."""

    def choose(self, kind: str, distribution: Distribution) -> int:
        """Make a choice, write its text if it has one, and return the outcome."""
        outcome = self.select(kind, distribution)
        weight, total = distribution.ratio(outcome)
        text = distribution.text(outcome)
        rank = outcome if isinstance(distribution, Someone) else None
        self._open.append((kind, self.rule, self.at, weight, total, self.depth, rank, None, None))
        if text:
            self.put(kind, text)
        return outcome

    def mention(
        self,
        kind: str,
        text: str,
        *,
        rank: int | None = None,
        distance: int | None = None,
        moves: int | None = None,
    ) -> None:
        """Write a text that follows from earlier choices."""
        self._open.append((kind, self.rule, self.at, 1, 1, self.depth, rank, distance, moves))
        self.put(kind, text)

    def put(self, kind: str, text: str) -> None:
        """Write a text, or check that it is there; it shows all choices made since the last text."""
        self.accept_text(kind, text)
        self.at += len(text)
        self._close()

    def _close(self) -> None:
        for kind, rule, start, *others in self._open:
            self.choices.append(DerivedChoice(kind, rule, start, self.at, *others))
        self._open.clear()

    def finish(self) -> Derivation:
        """Return the derivation; the last choice is to end the document."""
        self._close()
        return Derivation(tuple(self.choices))

    def select(self, kind: str, distribution: Distribution) -> int:
        """Return the outcome of a choice."""
        raise NotImplementedError

    def accept_text(self, kind: str, text: str) -> None:
        """Write a text, or raise `LanguageError` if the document differs."""
        raise NotImplementedError


class GeneratingBuilder(DerivationBuilder):
    """Draws the choices and writes the document."""

    def __init__(self, below: Below) -> None:
        super().__init__()
        self.below = below
        self.pieces: list[str] = []

    def select(self, kind: str, distribution: Distribution) -> int:
        """Draw an outcome."""
        return distribution.draw(self.below)

    def accept_text(self, kind: str, text: str) -> None:
        """Write the text."""
        self.pieces.append(text)


class ParsingBuilder(DerivationBuilder):
    """Recognises the choices in a given document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def select(self, kind: str, distribution: Distribution) -> int:
        """Recognise the outcome."""
        outcome = distribution.recognise(self.text, self.at)
        if outcome is None:
            firsts = distribution.firsts if isinstance(distribution, Options) else ()
            shared = max((self._shared(text) for texts in firsts for text in texts), default=0)
            raise LanguageError(self.text, self.at + shared, kind)
        return outcome

    def accept_text(self, kind: str, text: str) -> None:
        """Compare the text with the document."""
        if not self.text.startswith(text, self.at):
            shared = self._shared(text)
            raise LanguageError(self.text, self.at + shared, kind, text[shared:])

    def _shared(self, text: str) -> int:
        """Return how many characters of a text are in the document."""
        found = self.text[self.at : self.at + len(text)]
        return next(
            (k for k, pair in enumerate(zip(text, found, strict=False)) if len(set(pair)) > 1), len(found)
        )
