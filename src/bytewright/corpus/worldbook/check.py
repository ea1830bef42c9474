"""Check texts against a world book: which documents are in its language, and which of their facts are right.

A text that a model has written may state a wrong fact, holder or sum. `check_document` then counts the
mistake, accepts the word, and continues. So it reports how many of the facts are right, and where the text
leaves the grammar. `recognise_book` decides whether a text is from the storybook or from a world book.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Literal

from bytewright.corpus.books import CHARACTERS_SHOWN, check_file, read_stories
from bytewright.corpus.storybook import Storybook
from bytewright.corpus.worldbook.book import Worldbook
from bytewright.corpus.worldbook.derivation import LanguageError, ParsingBuilder
from bytewright.corpus.worldbook.template_parts import WORD_CHARACTER
from bytewright.corpus.worldbook.world import World
from bytewright.formatting import Progress
from bytewright.storage.filesystem import StrPath

FACTS = ("fact", "recall", "result")
"""Mentions that follow from the world, from the things before, or from a calculation."""
TEXTS_RECOGNISED = 20
"""How many texts decide which book a file is from: texts of a model may be wrong in places."""
ANSWER = re.compile(r"(?:an? (?=[a-z]))?[A-Za-z]+|\d+")
"""A single word, with its article if it has one, or a number."""

Book = Literal["storybook", "worldbook"]


@dataclass(frozen=True, kw_only=True)
class DocumentCheck:
    """The result for one text."""

    is_consistent: bool
    """Whether the text is in the language: the grammar generates it, and all its facts are right."""
    has_shape: bool
    """Whether the grammar would generate it with other facts."""
    bits: float
    """-log2 of its probability; infinite outside the language."""
    leaves_at_character: int | None
    """Where the text leaves the grammar, counted from 1; None if it has the shape of a document."""
    kind: str
    """The kind of the choice that the parser could not recognise at this position."""
    found: str
    """The text from that position on, shortened."""
    facts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each kind of `FACTS`, how many were stated and how many of them were right."""
    is_copy: bool = False
    is_of_other_book: bool = False
    """Whether the text has the shape of a story of the storybook; only the check of a file examines it."""


@dataclass(frozen=True, kw_only=True)
class WorldReport:
    """The results for many texts; shares are between 0 and 1."""

    documents: tuple[DocumentCheck, ...]

    @property
    def well_formed(self) -> float:
        """The share of documents that have the shape of a document."""
        return _share([each.has_shape for each in self.documents])

    @property
    def consistent(self) -> float:
        """The share of documents that are in the language."""
        return _share([each.is_consistent for each in self.documents])

    @property
    def copies(self) -> float:
        """The share of documents that occur in the training text."""
        return _share([each.is_copy for each in self.documents])

    @property
    def bits_per_document(self) -> float | None:
        """The mean of -log2 of the probability over the documents in the language."""
        bits = [each.bits for each in self.documents if each.is_consistent]
        return math.fsum(bits) / len(bits) if bits else None

    def right_facts(self, kind: str) -> tuple[int, int]:
        """Return how many facts of a kind were stated, and how many of them were right."""
        stated = [each.facts.get(kind, (0, 0)) for each in self.documents]
        return sum(total for total, _ in stated), sum(right for _, right in stated)


def _share(flags: list[bool]) -> float:
    return sum(flags) / max(1, len(flags))


def check_document(book: Worldbook, text: str) -> DocumentCheck:
    """Return the result for one text."""
    builder = _LenientBuilder(text)
    error: LanguageError | None = None
    try:
        derivation = book.machine.run(builder)
    except LanguageError as caught:
        error = caught
    facts = {
        kind: (builder.stated[kind], builder.stated[kind] - builder.wrong[kind])
        for kind in FACTS
        if builder.stated[kind]
    }
    inside = error is None and not builder.wrong.total()
    return DocumentCheck(
        is_consistent=inside,
        has_shape=error is None,
        bits=derivation.bits if inside else math.inf,
        leaves_at_character=None if error is None else error.position + 1,
        kind="" if error is None else error.kind,
        found="" if error is None else text[error.position : error.position + CHARACTERS_SHOWN],
        facts=facts,
    )


def check_document_file(
    path: StrPath,
    world: World,
    *,
    training_path: StrPath | None = None,
    num_workers: int = 1,
    progress: Progress | None = None,
) -> WorldReport:
    """Check every document of a file; documents that also occur in the training file are copies."""
    checks = check_file(
        path, partial(_check, world), training_path=training_path, num_workers=num_workers, progress=progress
    )
    return WorldReport(documents=checks)


@functools.lru_cache(maxsize=4)
def _book_of(world: World) -> Worldbook:
    return Worldbook(world)


def _check(world: World, text: str) -> DocumentCheck:
    checked = check_document(_book_of(world), text)
    if checked.has_shape:
        return checked
    return dataclasses.replace(checked, is_of_other_book=Storybook.load().checker.check(text).has_shape)


def is_document(world: World, text: str) -> bool:
    """Return whether a text has the shape of a document of a world book; its facts may be wrong."""
    return check_document(_book_of(world), text).has_shape


class _LenientBuilder(ParsingBuilder):
    """Reads a document; a wrong fact is counted and accepted if a word or number is in its place."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.stated: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()

    def accept_text(self, kind: str, text: str) -> None:
        """Compare the text with the document."""
        end = self.at + len(text)
        other = ANSWER.match(self.text, self.at) if kind in FACTS else None
        is_right = self.text.startswith(text, self.at) and not WORD_CHARACTER.match(self.text, end)
        if other is None or is_right:
            super().accept_text(kind, text)
        else:  # also 120 instead of 12
            self.wrong[kind] += 1
            self.at += other.end() - end  # the caller adds the expected length
        if kind in FACTS:
            self.stated[kind] += 1


def recognise_book(path: StrPath, world: World) -> Book:
    """Return the book whose grammar the first texts of a file follow further; the storybook if both fail."""
    storybook, worldbook = Storybook.load(), Worldbook(world)
    num_ahead = 0  # characters by which the grammar of the world book is followed further
    for text in islice(read_stories(path), TEXTS_RECOGNISED):
        checked = check_document(worldbook, text)
        in_world = len(text) if checked.leaves_at_character is None else checked.leaves_at_character - 1
        if in_world < len(text):
            parse = storybook.parse(text)
            in_world -= len(text) if parse.leaves_at is None else parse.leaves_at
        num_ahead += in_world
    return "worldbook" if num_ahead > 0 else "storybook"
