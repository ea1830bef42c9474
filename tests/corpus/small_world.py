"""A world book that is small enough to enumerate, with every kind of slot."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from bytewright.corpus.worldbook import Derivation, Worldbook
from bytewright.corpus.worldbook.choices import Between, Distribution, LexiconWord, Someone, Weighted
from bytewright.corpus.worldbook.derivation import DerivationBuilder
from bytewright.corpus.worldbook.notation import read_world_grammar
from bytewright.corpus.worldbook.world import World

TEXT = """
limits numbers
    max_sections 2
    max_depth 1
    max_things 2
    urn_gain 3
    stop_weight 2
genres genres
    2 people
    1 tale
    3 things
    1 sums
facts facts
    trade
turns turns
    2 introduce
    3 move
    1 ask
words trade
    baker, engraver
zipf animal
    owl, fox
words place
    hill, mill
words name
    Ada, Bo
pairs thing
    tin + cup bell ring
rule people
    2 Here is {person}, {a person.trade}. {person.He} met {person.other}, {a person.trade}, and
        {person.name} left.
    3 Look at {person}.
rule tale
    3 Once {a animal} {sat} on the {where=place}. It left the {where} for the {there=place-where}.
    2 Listen to the {animal}. {nest tale} That was all.
rule sat
    sat
    2 slept
rule things
    {turn} {rest}
rule rest
    1 Enough.
    2 {turn} Good night.
rule introduce
    Now {holder.first} had {a thing.new}.
rule move
    The {thing.old} went from {holder} to {holder.next}.
rule ask
    Who had the {thing.old}? {holder} had the {thing}.
rule sums
    Take {#2-3} and {#+4-5}, then {#*1-2} times, less {#-1-1}: {#}.
"""

SMALL = Worldbook(World(seed=5, exponent=Decimal("0.7"), num_people=3), read_world_grammar(TEXT))


def list_outcomes(distribution: Distribution) -> list[int]:
    """Return all outcomes that have a weight."""
    match distribution:
        case Weighted():
            return [number for number, weight in enumerate(distribution.weights) if weight]
        case LexiconWord(lexicon, _, excluded):
            return [number for number in range(len(lexicon.words)) if number not in excluded]
        case Someone(world, excluded_rank):
            return [rank for rank in range(1, world.num_people + 1) if rank != excluded_rank]
        case Between(low, high):
            return list(range(low, high + 1))
    raise AssertionError(distribution)


class EnumeratingBuilder(DerivationBuilder):
    """Follows given outcomes and takes the first outcome of each further choice."""

    def __init__(self, path: list[int]) -> None:
        super().__init__()
        self.path = path
        self.taken: list[tuple[int, list[int]]] = []
        """Each outcome with all outcomes of its choice."""
        self.text = ""

    def select(self, kind: str, distribution: Distribution) -> int:
        outcomes = list_outcomes(distribution)
        number = len(self.taken)
        outcome = self.path[number] if number < len(self.path) else outcomes[0]
        self.taken.append((outcome, outcomes))
        return outcome

    def accept_text(self, kind: str, text: str) -> None:
        self.text += text


def enumerate_documents(book: Worldbook) -> Iterator[tuple[str, Derivation]]:
    """Yield all documents of a small world book, each with its derivation."""
    path: list[int] | None = []
    while path is not None:
        builder = EnumeratingBuilder(path)
        derivation = book.machine.run(builder)
        yield builder.text, derivation
        path = None
        for number in reversed(range(len(builder.taken))):
            outcome, outcomes = builder.taken[number]
            if outcome != outcomes[-1]:
                follower = outcomes[outcomes.index(outcome) + 1]
                path = [*(each for each, _ in builder.taken[:number]), follower]
                break
