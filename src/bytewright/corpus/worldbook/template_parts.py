"""The parts of templates: literal text, and slots.

A *rule* has weighted alternatives. Each is a sequence of literal text and of slots. A slot draws something
and writes it, mentions what was drawn before, or calls another rule. A *lexicon* is a list of words with
weights.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from bytewright.corpus.storybook.grammar import Call, article, with_capital

Form = Literal["plain", "article", "capital"]
Operation = Literal["=", "+", "-", "*"]
ZIPF_SCALE = 2**24
THING, NAME = "thing", "name"
"""The lexicons of the things that change hands, and of the people who have them."""
TURNS = ("introduce", "move", "ask")
"""The rules of a turn: a thing appears, a thing changes hands, somebody asks who has a thing."""
PRONOUNS = {"he": ("she", "he"), "him": ("her", "him"), "his": ("her", "his"), "own": ("hers", "his")}
WORD_CHARACTER = re.compile(r"[A-Za-z0-9-]")


@dataclass(frozen=True)
class Lexicon:
    """Words with integer weights; `forms` has the texts of all words by the name of the form."""

    name: str
    words: tuple[str, ...]
    weights: tuple[int, ...]

    @functools.cached_property
    def forms(self) -> Mapping[Form, tuple[str, ...]]:
        """The texts of all words in each form."""
        return {
            "plain": self.words,
            "article": tuple(f"{article(word)} {word}" for word in self.words),
            "capital": tuple(map(with_capital, self.words)),
        }

    @functools.cached_property
    def cumulative(self) -> tuple[int, ...]:
        """The sum of the weights of all words up to each word, inclusive."""
        return tuple(accumulate(self.weights))

    @functools.cached_property
    def is_uniform(self) -> bool:
        """Whether all words have the same weight."""
        return len(set(self.weights)) == 1

    @functools.cached_property
    def _numbers(self) -> Mapping[Form, Mapping[str, int]]:
        return {form: {text: k for k, text in enumerate(texts)} for form, texts in self.forms.items()}

    @functools.cached_property
    def _lengths(self) -> Mapping[Form, list[int]]:
        return {
            form: sorted({len(text) for text in texts}, reverse=True) for form, texts in self.forms.items()
        }

    def find(self, form: Form, text: str, at: int) -> int | None:
        """Return the number of the word at a position, or None if there is no word of this lexicon."""
        for length in self._lengths[form]:
            number = self._numbers[form].get(text[at : at + length])
            if number is not None and not WORD_CHARACTER.match(text, at + length):
                return number
        return None


@dataclass(frozen=True)
class Nest:
    """The text of another rule with variables of its own, one level deeper."""

    rule: str


@dataclass(frozen=True)
class Pick:
    """A word of a lexicon, stored in a variable if it has a name; it differs from the word of `other`."""

    lexicon: str
    form: Form = "plain"
    variable: str | None = None
    other: str | None = None


@dataclass(frozen=True)
class Repeat:
    """The word of a variable."""

    variable: str
    form: Form = "plain"


@dataclass(frozen=True)
class Person:
    """The name of a person: of a new one, of one other than the last new one, or again of the last one."""

    which: Literal["new", "other", "same"]


@dataclass(frozen=True)
class Fact:
    """A fact about the last person: the position in the list of facts, and the form."""

    number: int
    form: Form = "plain"


@dataclass(frozen=True)
class Pronoun:
    """A pronoun for the last person."""

    forms: tuple[str, str]
    """For a woman and for a man."""


@dataclass(frozen=True)
class Number:
    """A random number from `low` to `high`; `operation` combines it with the result so far."""

    operation: Operation
    low: int
    high: int


@dataclass(frozen=True)
class Result:
    """The result of the calculation so far."""


@dataclass(frozen=True)
class Turn:
    """A turn of the things: one of the rules `TURNS`."""


@dataclass(frozen=True)
class Thing:
    """A thing: a new one, one of those in play, or again the last one."""

    which: Literal["new", "old", "same"]
    form: Form = "plain"


@dataclass(frozen=True)
class Holder:
    """A person who has the last thing: the first one, the next one, or the present one."""

    which: Literal["first", "next", "present"]


Part = str | Call | Nest | Pick | Repeat | Person | Fact | Pronoun | Number | Result | Turn | Thing | Holder


@dataclass(frozen=True)
class Template:
    """A template with its weight."""

    weight: int
    parts: tuple[Part, ...]

    @functools.cached_property
    def nests(self) -> bool:
        """Whether the template begins another level; such alternatives are excluded at the deepest level."""
        return any(isinstance(part, Nest) for part in self.parts)


@dataclass(frozen=True)
class Rule:
    """A choice among alternatives."""

    name: str
    alternatives: tuple[Template, ...]


def zipf_weights(num_words: int) -> tuple[int, ...]:
    """Return integer weights proportional to 1 / rank.

    >>> [weight / ZIPF_SCALE for weight in zipf_weights(4)]
    [1.0, 0.5, 0.3333333134651184, 0.25]
    """
    return tuple(ZIPF_SCALE // rank for rank in range(1, num_words + 1))


def show_part(part: Part, facts: Sequence[str]) -> str:
    """Return a part in the notation of a grammar, for error messages; `facts` has the names of the facts.

    >>> show_part(Pick("animal", "article", "other", "hero"), facts=[])
    '{a other=animal-hero}'
    >>> show_part(Fact(0, "capital"), facts=["town"])
    '{person.Town}'
    """
    match part:
        case str():
            return repr(part)
        case Call(rule):
            return _show_slot(rule) if rule == owner_of(rule) else "(…|…)"
        case Nest(rule):
            return _show_slot(f"nest {rule}")
        case Pick(lexicon, form, variable, other):
            return _show_slot(lexicon, form, f"{variable}=" if variable else "", f"-{other}" if other else "")
        case Repeat(variable, form):
            return _show_slot(variable, form)
        case Person(which):
            return {"new": "{person}", "other": "{person.other}", "same": "{person.name}"}[which]
        case Fact(number, form):
            return _show_slot(facts[number], form, "person.")
        case Pronoun(forms):
            woman, man = (form.lower() for form in forms)
            name = next(name for name, known in PRONOUNS.items() if known == (woman, man))
            return _show_slot(name, "plain" if forms == (woman, man) else "capital", "person.")
        case Number(operation, low, high):
            return _show_slot(f"#{operation.removeprefix('=')}{low}-{high}")
        case Result():
            return "{#}"
        case Turn():
            return "{turn}"
        case Thing("same", form):
            return _show_slot("thing", form)
        case Thing(which, form):
            return _show_slot(which, form, "thing.")
        case Holder("present"):
            return "{holder}"
        case Holder(which):
            return _show_slot(f"holder.{which}")


def _show_slot(name: str, form: Form = "plain", before: str = "", after: str = "") -> str:
    indefinite = "a " if form == "article" else ""
    return f"{{{indefinite}{before}{with_capital(name) if form == 'capital' else name}{after}}}"


def owner_of(rule: str) -> str:
    """Return the rule that a grammar defines and that contains a choice in parentheses, such as tale(2).

    >>> owner_of("tale(2)"), owner_of("tale")
    ('tale', 'tale')
    """
    return rule.partition("(")[0]


def called_rules(parts: Iterable[Part]) -> list[str]:
    """Return the names of the rules that a template calls, turns included."""
    called: list[str] = []
    for part in parts:
        if isinstance(part, Call | Nest):
            called.append(part.rule)
        elif isinstance(part, Turn):
            called += TURNS
    return called
