"""The kinds of choices: distributions with integer weights whose outcomes can be drawn and recognised.

Each distribution draws an outcome, recognises the outcome in a text, and lists all outcomes. It states the
probability of an outcome as a ratio of integers. Drawing and recognising are inverse to each other. So one
machine generates documents and parses them, and both state the same ratios.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from bytewright.corpus.worldbook.slots import Form, Lexicon
from bytewright.corpus.worldbook.world import Below, World, read_name, spell_name

SECTION_BREAK = "\n\n"
DIGITS = re.compile(r"0|[1-9][0-9]{0,17}")


class Distribution(Protocol):
    """A choice among outcomes, which are integers."""

    def draw(self, below: Below) -> int:
        """Return a random outcome."""

    def recognise(self, text: str, at: int) -> int | None:
        """Return the outcome that the text shows at a position; None if it shows none."""

    def ratio(self, outcome: int) -> tuple[int, int]:
        """Return the probability of an outcome as numerator and denominator."""

    def text(self, outcome: int) -> str:
        """Return the text of an outcome; it is empty if a rule writes it."""

    def outcomes(self) -> Iterator[int]:
        """Yield all outcomes that have a weight."""


class Options:
    """A choice among alternatives, which the literal texts at their beginnings show."""

    __slots__ = ("cumulative", "firsts", "weights")

    def __init__(self, firsts: Sequence[tuple[str, ...]], weights: Sequence[int]) -> None:
        self.firsts = firsts
        self.weights = weights
        self.cumulative = list(accumulate(weights))

    def draw(self, below: Below) -> int:
        """Return the number of an alternative."""
        return bisect_right(self.cumulative, below(self.cumulative[-1]))

    def recognise(self, text: str, at: int) -> int | None:
        """Return the alternative that begins like the text."""
        for number, firsts in enumerate(self.firsts):
            if self.weights[number] and text.startswith(firsts, at):
                return number
        return None

    def ratio(self, outcome: int) -> tuple[int, int]:
        """Return weight and sum of weights."""
        return self.weights[outcome], self.cumulative[-1]

    def text(self, outcome: int) -> str:
        """Return nothing: the alternative writes its own text."""
        return ""

    def outcomes(self) -> Iterator[int]:
        """Yield the alternatives."""
        return (number for number, weight in enumerate(self.weights) if weight)


@dataclass(frozen=True, slots=True)
class LexiconWord:
    """A word of a lexicon, other than the `excluded` ones."""

    lexicon: Lexicon
    form: Form
    excluded: Sequence[int] = ()

    def draw(self, below: Below) -> int:
        """Return the number of a word; an excluded word is drawn again."""
        number = None
        while number is None or number in self.excluded:
            number = bisect_right(self.lexicon.cumulative, below(self.lexicon.cumulative[-1]))
        return number

    def recognise(self, text: str, at: int) -> int | None:
        """Return the word at the position."""
        number = self.lexicon.find(self.form, text, at)
        return None if number in self.excluded else number

    def ratio(self, outcome: int) -> tuple[int, int]:
        """Return the weight, and the sum of the weights that are not excluded."""
        weights = self.lexicon.weights
        excluded = sum(weights[number] for number in self.excluded)
        return weights[outcome], self.lexicon.cumulative[-1] - excluded

    def text(self, outcome: int) -> str:
        """Return the word in its form."""
        return self.lexicon.forms[self.form][outcome]

    def outcomes(self) -> Iterator[int]:
        """Yield all words that are not excluded."""
        return (number for number in range(len(self.lexicon.words)) if number not in self.excluded)


@dataclass(frozen=True, slots=True)
class Recent:
    """One of the things in play; the probability falls as 1 / position in the order of last mention."""

    lexicon: Lexicon
    form: Form
    things: Sequence[int]
    """The numbers of the things; the one that was mentioned last comes first."""
    weights: Sequence[int]
    """The weight of each position."""

    def draw(self, below: Below) -> int:
        """Return the position of a thing."""
        cumulative = list(accumulate(self.weights[: len(self.things)]))
        return bisect_right(cumulative, below(cumulative[-1]))

    def recognise(self, text: str, at: int) -> int | None:
        """Return the position of the thing in the text."""
        number = self.lexicon.find(self.form, text, at)
        return self.things.index(number) if number in self.things else None

    def ratio(self, outcome: int) -> tuple[int, int]:
        """Return weight and sum of weights."""
        return self.weights[outcome], sum(self.weights[: len(self.things)])

    def text(self, outcome: int) -> str:
        """Return the thing in its form."""
        return self.lexicon.forms[self.form][self.things[outcome]]

    def outcomes(self) -> Iterator[int]:
        """Yield all positions."""
        return iter(range(len(self.things)))


@dataclass(frozen=True, slots=True)
class Someone:
    """A person of the world, other than the one with the rank `excluded`; the outcome is the rank."""

    world: World
    excluded: int | None = None

    def draw(self, below: Below) -> int:
        """Return a rank: first the bucket, then the rank inside it; an excluded rank is drawn again."""
        rank = None
        while rank is None or rank == self.excluded:
            bucket = self.world.buckets[bisect_right(self.world.cumulative, below(self.world.cumulative[-1]))]
            rank = bucket.first + below(bucket.size)
        return rank

    def recognise(self, text: str, at: int) -> int | None:
        """Return the rank of the person with the name in the text."""
        found = read_name(text, at)
        if found is None:
            return None
        rank = self.world.rank_of(found[0])
        return rank if 1 <= rank <= self.world.num_people and rank != self.excluded else None

    def ratio(self, outcome: int) -> tuple[int, int]:
        """Return the probability of the rank, given that it is not the excluded one."""
        weight, total = self.world.ratio(outcome)
        if self.excluded is None:
            return weight, total
        excluded_weight, excluded_total = self.world.ratio(self.excluded)
        return weight * excluded_total, total * (excluded_total - excluded_weight)

    def text(self, outcome: int) -> str:
        """Return the name."""
        return spell_name(self.world.number_of(outcome))

    def outcomes(self) -> Iterator[int]:
        """Yield all ranks."""
        return (rank for rank in range(1, self.world.num_people + 1) if rank != self.excluded)


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `low` to `high`."""

    low: int
    high: int

    def draw(self, below: Below) -> int:
        """Return a number."""
        return self.low + below(self.high - self.low + 1)

    def recognise(self, text: str, at: int) -> int | None:
        """Return the number in the text."""
        match = DIGITS.match(text, at)
        return int(match[0]) if match and self.low <= int(match[0]) <= self.high else None

    def ratio(self, outcome: int) -> tuple[int, int]:
        """Return the probability, which is the same for all numbers."""
        return 1, self.high - self.low + 1

    def text(self, outcome: int) -> str:
        """Return the digits."""
        return str(outcome)

    def outcomes(self) -> Iterator[int]:
        """Yield all numbers."""
        return iter(range(self.low, self.high + 1))


@dataclass(frozen=True, slots=True)
class SectionEnd:
    """Whether another section follows (1) or the document ends (0)."""

    stop: int
    go: int

    def draw(self, below: Below) -> int:
        """Return 0 or 1."""
        return int(below(self.stop + self.go) >= self.stop)

    def recognise(self, text: str, at: int) -> int | None:
        """Return 0 at the end of the text, and 1 before another section."""
        if at == len(text):
            return 0
        return 1 if self.go and text.startswith(SECTION_BREAK, at) else None

    def ratio(self, outcome: int) -> tuple[int, int]:
        """Return weight and sum of weights."""
        return (self.go if outcome else self.stop), self.stop + self.go

    def text(self, outcome: int) -> str:
        """Return the break between two sections, or nothing."""
        return SECTION_BREAK if outcome else ""

    def outcomes(self) -> Iterator[int]:
        """Yield the outcomes that have a weight."""
        return iter((0, 1) if self.go else (0,))
