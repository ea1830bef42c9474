"""The kinds of choices: distributions with integer weights whose outcomes can be drawn and recognised.

Each distribution draws an outcome, recognises the outcome in a text, and states its probability as a ratio of
integers. Drawing and recognising are inverse to each other. So one machine generates documents and parses
them, and both state the same ratios.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from bytewright.corpus.worldbook.template_parts import Form, Lexicon
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


class Weighted:
    """A choice among the positions of a list of weights; subclasses recognise the outcome in a text."""

    __slots__ = ("cumulative", "weights")

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = weights
        self.cumulative = list(accumulate(weights))

    def draw(self, below: Below) -> int:
        """Return a position."""
        return bisect_right(self.cumulative, below(self.cumulative[-1]))

    def ratio(self, outcome: int) -> tuple[int, int]:
        """Return weight and sum of weights."""
        return self.weights[outcome], self.cumulative[-1]


class Options(Weighted):
    """A choice among alternatives, which the literal texts at their beginnings show."""

    __slots__ = ("firsts",)

    def __init__(self, firsts: Sequence[tuple[str, ...]], weights: Sequence[int]) -> None:
        super().__init__(weights)
        self.firsts = firsts

    def recognise(self, text: str, at: int) -> int | None:
        """Return the alternative that begins like the text."""
        for number, firsts in enumerate(self.firsts):
            if self.weights[number] and text.startswith(firsts, at):
                return number
        return None

    def text(self, outcome: int) -> str:
        """Return nothing: the alternative writes its own text."""
        return ""


class Recent(Weighted):
    """One of the things in play; the outcome is the position in `things`, the last mentioned one first."""

    __slots__ = ("form", "lexicon", "things")

    def __init__(self, lexicon: Lexicon, form: Form, things: Sequence[int], weights: Sequence[int]) -> None:
        super().__init__(weights[: len(things)])
        self.lexicon = lexicon
        self.form: Form = form
        self.things = things

    def recognise(self, text: str, at: int) -> int | None:
        """Return the position of the thing in the text."""
        number = self.lexicon.find(self.form, text, at)
        return self.things.index(number) if number in self.things else None

    def text(self, outcome: int) -> str:
        """Return the thing in its form."""
        return self.lexicon.forms[self.form][self.things[outcome]]


class SectionEnd(Weighted):
    """Whether another section follows (1, with the weight `go`) or the document ends (0)."""

    __slots__ = ()

    def __init__(self, stop: int, go: int) -> None:
        super().__init__((stop, go))

    def recognise(self, text: str, at: int) -> int | None:
        """Return 0 at the end of the text, and 1 before another section."""
        if at == len(text):
            return 0
        return 1 if self.weights[1] and text.startswith(SECTION_BREAK, at) else None

    def text(self, outcome: int) -> str:
        """Return the break between two sections, or nothing."""
        return SECTION_BREAK if outcome else ""


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
