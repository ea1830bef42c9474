"""`Worldbook`: a grammar in a world, with its generator, parser and entropy."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import count
from typing import Literal

from bytewright.corpus.worldbook.derivation import Derivation, GeneratingBuilder, ParsingBuilder
from bytewright.corpus.worldbook.entropy import DocumentEntropy, compute_document_entropy
from bytewright.corpus.worldbook.grammar import WorldGrammar
from bytewright.corpus.worldbook.machine import Machine
from bytewright.corpus.worldbook.notation import read_world_grammar
from bytewright.corpus.worldbook.world import Stream, World

GRAMMAR_FILE = "worldbook.grammar"
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Document:
    """A document with its derivation."""

    text: str
    derivation: Derivation

    @property
    def bits(self) -> float:
        """-log2 of its probability."""
        return self.derivation.bits


@functools.cache
def load_grammar() -> WorldGrammar:
    """Return the grammar of Bytewright's world book; it is read once."""
    return read_world_grammar(
        resources.files(__package__).joinpath(GRAMMAR_FILE).read_text("utf-8"), GRAMMAR_FILE
    )


class Worldbook:
    """Generates and parses the documents of one world.

    >>> book = Worldbook()
    >>> document = book.document("train", seed=1, index=7)
    >>> book.parse(document.text) == document.derivation
    True
    """

    def __init__(self, world: World | None = None, grammar: WorldGrammar | None = None) -> None:
        self.world = world or World()
        self.grammar = grammar or load_grammar()
        self.machine = Machine(self.grammar, self.world)

    def document(self, split: Split, seed: int, index: int) -> Document:
        """Return the document with a number; equal arguments yield equal documents."""
        builder = GeneratingBuilder(Stream(self.stream_key(split, seed, index)).below)
        derivation = self.machine.run(builder)
        return Document("".join(builder.pieces), derivation)

    def stream_key(self, split: Split, seed: int, index: int) -> tuple[int, ...]:
        """Return the key of the random numbers of a document; the splits have disjoint keys."""
        return (self.world.seed, 3, SPLITS.index(split), seed, index)

    def documents(self, split: Split, seed: int = 1) -> Iterator[Document]:
        """Yield the documents of a split without end."""
        return (self.document(split, seed, index) for index in count())

    def entropy(self) -> DocumentEntropy:
        """Return the exact mean information content of a document."""
        return self._entropy

    @functools.cached_property
    def _entropy(self) -> DocumentEntropy:
        return compute_document_entropy(self.machine)

    def parse(self, text: str) -> Derivation:
        """Return the derivation of a text; raise `LanguageError` if it has none."""
        return self.machine.run(ParsingBuilder(text))
