"""The machine that executes a grammar: it asks a pen for each choice, and keeps the state of the world.

A *pen* makes the choices. `DrawingPen` draws them from random numbers and writes a document. `ReadingPen`
recognises them in a text. Both record the same derivation: every choice with its span in the text, its ratio,
and the circumstances that make it easy or hard to predict.

Things: a turn introduces a thing with its first holder, moves a thing in play to another holder, or asks who
has a thing. A thing in play is chosen by its position in the order of last mention. The present holder
follows from the turns before, so it has 0 bits, however long ago the last of them was.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from bytewright.corpus.worldbook.choices import Between, Distribution, Ending, Options, Recent, Someone, Word
from bytewright.corpus.worldbook.grammar import (
    NAME,
    THING,
    TURNS,
    Call,
    Fact,
    Grammar,
    Holder,
    Mention,
    Nest,
    Number,
    Part,
    Person,
    Pick,
    Pronoun,
    Result,
    Rule,
    Thing,
    Turn,
    zipf_weights,
)
from bytewright.corpus.worldbook.world import Below, World, is_woman, spell

CHARACTERS_SHOWN = 30


class Choice(NamedTuple):
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

    choices: tuple[Choice, ...]

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


class LanguageError(Exception):
    """A text is not in the language: the position, the kind of the failed choice, and the expected text."""

    def __init__(self, at: int, kind: str, expected: str) -> None:
        super().__init__(f"expected {expected or kind} at {at}")
        self.at = at
        self.kind = kind
        self.expected = expected


class Pen:
    """Makes the choices of one document and records them."""

    def __init__(self) -> None:
        self.at = 0
        self.depth = 0
        self.rule = ""
        self.choices: list[Choice] = []
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
        self.check(kind, text)
        self.at += len(text)
        self._close()

    def _close(self) -> None:
        for kind, rule, start, *others in self._open:
            self.choices.append(Choice(kind, rule, start, self.at, *others))
        self._open.clear()

    def finish(self) -> Derivation:
        """Return the derivation; the last choice is to end the document."""
        self._close()
        return Derivation(tuple(self.choices))

    def select(self, kind: str, distribution: Distribution) -> int:
        """Return the outcome of a choice."""
        raise NotImplementedError

    def check(self, kind: str, text: str) -> None:
        """Write a text, or raise `LanguageError` if the document differs."""
        raise NotImplementedError


class DrawingPen(Pen):
    """Draws the choices and writes the document."""

    def __init__(self, below: Below) -> None:
        super().__init__()
        self.below = below
        self.pieces: list[str] = []

    def select(self, kind: str, distribution: Distribution) -> int:
        """Draw an outcome."""
        return distribution.draw(self.below)

    def check(self, kind: str, text: str) -> None:
        """Write the text."""
        self.pieces.append(text)


class ReadingPen(Pen):
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
            raise LanguageError(self.at + shared, kind, "")
        return outcome

    def check(self, kind: str, text: str) -> None:
        """Compare the text with the document."""
        if not self.text.startswith(text, self.at):
            raise LanguageError(self.at + self._shared(text), kind, text)

    def _shared(self, text: str) -> int:
        """Return how many characters of a text are in the document."""
        found = self.text[self.at : self.at + len(text)]
        return next(
            (k for k, pair in enumerate(zip(text, found, strict=False)) if len(set(pair)) > 1), len(found)
        )


@dataclass(slots=True)
class _Held:
    """A thing in play."""

    number: int
    holder: int
    moves: int
    known_at: int
    """The position where the text last stated the holder."""


@dataclass(slots=True)
class _State:
    """The state of a document."""

    things: list[_Held] = field(default_factory=list)
    """The things in play; the one that was mentioned last comes first."""
    first_holder: int | None = None
    new_thing: int | None = None


@dataclass(slots=True)
class _Frame:
    """The variables of a section, or of one level of nesting."""

    words: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The lexicon and the number of the word of each variable."""
    main: int = 0
    """The rank of the last new person."""
    rank: int = 0
    number: int = 0
    """The rank and the number of the last person."""
    result: int = 0


class Machine:
    """Executes a grammar in a world."""

    def __init__(self, grammar: Grammar, world: World) -> None:
        self.grammar = grammar
        self.world = world
        self.recency = zipf_weights(grammar.limits.max_things)
        self._genres = list(grammar.genres)
        self._genre_firsts = [grammar.firsts_of(Call(genre)) for genre in self._genres]
        self._turn_firsts = [grammar.firsts_of(Call(rule)) for rule in TURNS] if grammar.uses_things else []
        self._options = {
            name: [
                Options(grammar.firsts[name], [each.weight for each in rule.alternatives]),
                Options(grammar.firsts[name], [each.weight * (not each.nests) for each in rule.alternatives]),
            ]
            for name, rule in grammar.rules.items()
        }

    def run(self, pen: Pen) -> Derivation:
        """Make all choices of one document with a pen."""
        limits, state = self.grammar.limits, _State()
        weights = list(self.grammar.genres.values())
        for num_sections in range(1, limits.max_sections + 1):
            pen.rule = "document"
            genre = pen.choose("genre", Options(self._genre_firsts, tuple(weights)))
            weights[genre] += limits.urn_gain
            self._write_rule(self.grammar.rules[self._genres[genre]], pen, state, _Frame())
            pen.rule = "document"
            go = num_sections + 1 if num_sections < limits.max_sections else 0
            if not pen.choose("length", Ending(limits.stop_weight, go)):
                break
        return pen.finish()

    def _write_rule(self, rule: Rule, pen: Pen, state: _State, frame: _Frame) -> None:
        pen.rule = rule.name
        number = 0
        if len(rule.alternatives) > 1:
            number = pen.choose(
                "wording", self._options[rule.name][pen.depth == self.grammar.limits.max_depth]
            )
        for part in rule.alternatives[number].parts:
            if isinstance(part, str):
                pen.put("text", part)
            else:
                self._write_slot(part, pen, state, frame)
                pen.rule = rule.name

    def _write_slot(self, part: Part, pen: Pen, state: _State, frame: _Frame) -> None:
        grammar = self.grammar
        match part:
            case Call(name):
                self._write_rule(grammar.rules[name], pen, state, frame)
            case Nest(name):
                pen.depth += 1
                self._write_rule(grammar.rules[name], pen, state, _Frame())
                pen.depth -= 1
            case Pick(name, form, variable, other):
                taken = () if other is None else (frame.words[other][1],)
                number = pen.choose("word", Word(grammar.lexicons[name], form, taken))
                if variable is not None:
                    frame.words[variable] = (name, number)
            case Mention(variable, form):
                name, number = frame.words[variable]
                pen.mention("mention", grammar.lexicons[name].forms[form][number])
            case Person("same"):
                pen.mention("mention", spell(frame.number))
            case Person(which):
                excluded = frame.main if which == "other" else None
                frame.rank = pen.choose("person", Someone(self.world, excluded))
                frame.number = self.world.number_of(frame.rank)
                if which == "new":
                    frame.main = frame.rank
            case Fact(kind, form):
                lexicon = grammar.lexicons[grammar.facts[kind]]
                value = self.world.fact(frame.number, kind, len(lexicon.words))
                pen.mention("fact", lexicon.forms[form][value], rank=frame.rank)
            case Pronoun(forms):
                pen.mention("pronoun", forms[0 if is_woman(frame.number) else 1])
            case Number(operation, low, high):
                number = pen.choose("number", Between(low, high))
                frame.result = _combine(frame.result, operation, number)
            case Result():
                pen.mention("result", str(frame.result))
            case Turn():
                self._write_turn(pen, state, frame)
            case Thing():
                self._write_thing(part, pen, state)
            case Holder(which):
                self._write_holder(which, pen, state)
            case _:
                raise AssertionError(part)

    # Things

    def _write_turn(self, pen: Pen, state: _State, frame: _Frame) -> None:
        turn = pen.choose("turn", Options(self._turn_firsts, self.turn_weights(len(state.things))))
        rule = self.grammar.rules[TURNS[turn]]
        self._write_rule(rule, pen, state, frame)
        if rule.name == "introduce":
            assert state.new_thing is not None
            assert state.first_holder is not None
            state.things.insert(0, _Held(state.new_thing, state.first_holder, 0, pen.at))
        else:
            state.things[0].known_at = pen.at

    def turn_weights(self, num_things: int) -> Sequence[int]:
        """Return the weights of the turns, which depend on the number of things in play."""
        introduce, *others = self.grammar.turns
        if not num_things:
            return introduce, 0, 0
        return (introduce if num_things < self.grammar.limits.max_things else 0), *others

    def _write_thing(self, part: Thing, pen: Pen, state: _State) -> None:
        lexicon = self.grammar.lexicons[THING]
        if part.which == "new":
            excluded = [thing.number for thing in state.things]
            state.new_thing = pen.choose("thing", Word(lexicon, part.form, excluded))
        elif part.which == "old":
            numbers = [thing.number for thing in state.things]
            position = pen.choose("recent thing", Recent(lexicon, part.form, numbers, self.recency))
            state.things.insert(0, state.things.pop(position))
        else:
            pen.mention("mention", lexicon.forms[part.form][state.things[0].number])

    def _write_holder(self, which: str, pen: Pen, state: _State) -> None:
        lexicon = self.grammar.lexicons[NAME]
        if which == "first":
            state.first_holder = pen.choose("holder", Word(lexicon, "plain"))
            return
        thing = state.things[0]
        if which == "next":
            thing.holder = pen.choose("holder", Word(lexicon, "plain", (thing.holder,)))
            thing.moves += 1
        else:
            pen.mention(
                "recall",
                lexicon.words[thing.holder],
                distance=pen.at - thing.known_at,
                moves=thing.moves,
            )


def _combine(result: int, operation: str, number: int) -> int:
    match operation:
        case "+":
            return result + number
        case "-":
            return result - number
        case "*":
            return result * number
    return number
