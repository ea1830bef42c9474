"""The grammar of a world book: rules, lexicons and genres, and the checks that make it unambiguous.

The grammar can be read from left to right without backtracking, so each text has at most one derivation:

- The alternatives of a rule begin with literal texts, possibly those of the rule they call first. None of
  these texts begins with a text of another alternative. So the next characters determine the alternative.
- A word that is drawn is followed by a character that cannot continue it. No word of a lexicon is the
  beginning of another one of the same lexicon up to a word boundary. So the next characters determine the
  word.

`WorldGrammar` checks both properties when it is created. It also checks that every document can be written:
calls end, choices have outcomes, and things are mentioned only while they are in play.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from bytewright.corpus.storybook.grammar import Call
from bytewright.corpus.worldbook.template_parts import (
    NAME,
    THING,
    TURNS,
    WORD_CHARACTER,
    Holder,
    Lexicon,
    Nest,
    Number,
    Part,
    Person,
    Pick,
    Repeat,
    Rule,
    Thing,
    Turn,
    called_rules,
)
from bytewright.errors import FormatError

MAX_CALLS = 200
"""Rules may call each other this deeply, over all levels of nesting: the machine is recursive."""
MAX_NUMBER = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The numbers of a grammar."""

    max_sections: int
    max_depth: int
    """The deepest level of nesting; the outermost one is 0."""
    max_things: int
    urn_gain: int
    """The weight that each section adds to its genre in the same document."""
    stop_weight: int
    """After n sections, a document ends with weight `stop_weight` against n + 1."""


@dataclass(frozen=True)
class WorldGrammar:
    """Rules and lexicons by name, the genres with their weights, the facts, and the weights of turns."""

    rules: Mapping[str, Rule]
    lexicons: Mapping[str, Lexicon]
    genres: Mapping[str, int]
    facts: tuple[str, ...]
    """The lexicon of each fact."""
    turns: tuple[int, ...]
    """The weight of each rule of `TURNS`."""
    limits: Limits

    def __post_init__(self) -> None:
        for lexicon in self.lexicons.values():
            _check_words(lexicon)
        self._check_limits()
        self._check_calls()
        for rule in self.rules.values():
            self._check_rule(rule)
        self._check_variables()
        self._check_places_of_things()
        _check_prefixes("the genres", [self.firsts_of(Call(genre)) for genre in self.genres])
        _check_prefixes("the turns", [self.firsts_of(Call(rule)) for rule in TURNS])

    @functools.cached_property
    def rules_with_things(self) -> frozenset[str]:
        """The rules that contain a slot about things, or call such a rule."""
        found = {
            name
            for name, rule in self.rules.items()
            for alternative in rule.alternatives
            if any(isinstance(part, Turn | Thing) for part in alternative.parts)
        }
        while more := {
            name
            for name, rule in self.rules.items()
            for alternative in rule.alternatives
            if name not in found and not found.isdisjoint(called_rules(alternative.parts))
        }:
            found |= more
        return frozenset(found)

    def _all_parts(self) -> Iterator[Part]:
        for rule in self.rules.values():
            for alternative in rule.alternatives:
                yield from alternative.parts

    def firsts_of(self, part: Part) -> tuple[str, ...]:
        """Return all literal texts with which the text of a part can begin; none if it begins with a slot."""
        if isinstance(part, str):
            return (part,)
        if isinstance(part, Turn):
            return tuple(first for rule in TURNS for first in self._firsts_of_rule(rule))
        if isinstance(part, Call | Nest):
            return self._firsts_of_rule(part.rule)
        return ()

    def _firsts_of_rule(self, name: str) -> tuple[str, ...]:
        found: list[str] = []
        for alternative in self.rules[name].alternatives:
            firsts = self.firsts_of(alternative.parts[0])
            if not firsts:
                return ()
            found += firsts
        return tuple(found)

    @functools.cached_property
    def firsts(self) -> Mapping[str, tuple[tuple[str, ...], ...]]:
        """For each rule, the literal texts with which each of its alternatives can begin."""
        return {
            name: tuple(self.firsts_of(alternative.parts[0]) for alternative in rule.alternatives)
            for name, rule in self.rules.items()
        }

    def _check_limits(self) -> None:
        """Check that turns have rules and weights, and that the lexicons have enough words for the limits."""
        if len(self.turns) != len(TURNS) or not all(self.turns) or not self.rules.keys() >= {*TURNS}:
            _reject(f"the turns need a rule and a weight each: {', '.join(TURNS)}")
        if not {THING, NAME} <= self.lexicons.keys():
            _reject(f"turns need the lexicons {THING} and {NAME}")
        if not (self.lexicons[THING].is_uniform and self.lexicons[NAME].is_uniform):
            _reject(f"{THING} and {NAME} need equal weights")
        for limit in ("max_sections", "max_things", "stop_weight"):
            if getattr(self.limits, limit) < 1:
                _reject(f"{limit} must be at least 1, but is {getattr(self.limits, limit)}")
        for name, num_needed in ((THING, self.limits.max_things + 1), (NAME, 2)):
            if (num_words := len(self.lexicons[name].words)) < num_needed:
                _reject(f"{name} needs at least {num_needed} words, but has {num_words}")

    def _check_calls(self) -> None:
        """Check that calls end: a rule calls itself only one level deeper, and after some text."""
        calls = {
            name: {
                called
                for alternative in rule.alternatives
                for called in called_rules(
                    part
                    for number, part in enumerate(alternative.parts)
                    if not number or not isinstance(part, Nest)
                )
            }
            for name, rule in self.rules.items()
        }
        num_calls = 0  # the longest chain of calls inside a level
        while ended := {name for name, called in calls.items() if called.isdisjoint(calls)}:
            num_calls += 1
            for name in ended:
                del calls[name]
        if calls:
            names = ", ".join(sorted(calls))
            _reject(f"these rules call each other without nest, or before any text: {names}")
        if (depth := num_calls * (self.limits.max_depth + 1)) > MAX_CALLS:
            _reject(f"rules can call each other {depth} deep; the limit is {MAX_CALLS}, so reduce max_depth")

    def _check_variables(self) -> None:
        """Check that variables are drawn, and that the entropy of words that differ from others is known."""
        picks = [part for part in self._all_parts() if isinstance(part, Pick)]
        lexicon_of: dict[str, str] = {}
        for pick in picks:
            if pick.variable and lexicon_of.setdefault(pick.variable, pick.lexicon) != pick.lexicon:
                both = f"{lexicon_of[pick.variable]} and {pick.lexicon}"
                _reject(f"{pick.variable} is drawn from {both}; use a variable for each lexicon")
        mentioned = {part.variable for part in self._all_parts() if isinstance(part, Repeat)}
        if unknown := {*mentioned, *(pick.other for pick in picks if pick.other)} - lexicon_of.keys():
            _reject(f"no rule, lexicon or variable has the name {min(unknown)}")
        for pick in picks:
            if pick.other and len(self.lexicons[pick.lexicon].words) < 2:
                _reject(f"{pick.lexicon} has one word, so none can differ from {pick.other}")
            for other in picks:
                if pick.other is None or other.variable != pick.other:
                    continue
                if other.lexicon != pick.lexicon or (
                    other.other and not self.lexicons[pick.lexicon].is_uniform
                ):
                    _reject(
                        f"{pick.variable} must differ from a word that is drawn from all of {pick.lexicon}"
                    )

    def _check_places_of_things(self) -> None:
        """Check that a thing is in play where it is mentioned, and that an introduction draws a new one."""
        outside = self._rules_below(self.genres)
        introductions, others = self._rules_below(TURNS[:1]), self._rules_below(TURNS[1:])
        for name, rule in self.rules.items():
            for part in (part for alternative in rule.alternatives for part in alternative.parts):
                match part:
                    case Turn():
                        excluded, place = introductions | others, "outside the rules of turns"
                    case Thing("new") | Holder("first"):
                        excluded, place = outside | others, "in the rule introduce and in rules that it calls"
                    case Thing() | Holder():
                        excluded, place = outside | introductions, "in move, ask and the rules that they call"
                    case _:
                        continue
                if name in excluded:
                    _reject(f"{part} may only be used {place}, but is in {name}")
        if not (self._always_has(TURNS[0], Thing) and self._always_has(TURNS[0], Holder)):
            _reject(f"each alternative of {TURNS[0]} needs {{thing.new}} and {{holder.first}}")

    def _rules_below(self, names: Iterable[str]) -> frozenset[str]:
        """Return some rules and all that they call, without those that are called by a turn alone."""
        found, waiting = set[str](), list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                parts = [part for alternative in self.rules[name].alternatives for part in alternative.parts]
                waiting += [part.rule for part in parts if isinstance(part, Call | Nest)]
        return frozenset(found)

    def _always_has(self, name: str, kind: type[Thing | Holder]) -> bool:
        """Return whether every text of a rule contains a slot of a kind."""
        return all(
            any(
                isinstance(part, kind) or (isinstance(part, Call) and self._always_has(part.rule, kind))
                for part in alternative.parts
            )
            for alternative in self.rules[name].alternatives
        )

    def _check_rule(self, rule: Rule) -> None:
        if len(rule.alternatives) > 1:
            _check_prefixes(rule.name, list(self.firsts[rule.name]))
        if all(alternative.nests for alternative in rule.alternatives):
            _reject(f"every alternative of {rule.name} nests, so it has none at the deepest level")
        for alternative in rule.alternatives:
            for part in alternative.parts:
                if isinstance(part, Number) and not 0 <= part.low <= part.high < MAX_NUMBER:
                    _reject(
                        f"in {rule.name}, a range of numbers is empty or exceeds {MAX_NUMBER - 1}: {part}"
                    )
            for part, after in pairwise(alternative.parts):
                is_ended = isinstance(after, str) and not WORD_CHARACTER.match(after)
                if not is_ended and self._ends_with_word(part):
                    _reject(f"in {rule.name}, a slot must be followed by a space or punctuation: {part}")

    def _ends_with_word(self, part: Part) -> bool:
        """Return whether the text of a part can end with a word that is drawn, not mentioned."""
        match part:
            case Call(name) | Nest(name):
                return any(self._ends_with_word(each.parts[-1]) for each in self.rules[name].alternatives)
            case Turn():
                return any(self._ends_with_word(Call(rule)) for rule in TURNS)
            case (
                Pick() | Number() | Person("new" | "other") | Thing("new" | "old") | Holder("first" | "next")
            ):
                return True
        return False


def _check_words(lexicon: Lexicon) -> None:
    for texts in lexicon.forms.values():
        known = set(texts)
        if len(known) < len(texts):
            repeated = next(text for text in texts if texts.count(text) > 1)
            _reject(f"{lexicon.name} contains {repeated!r} twice")
        for text in texts:
            for end in re.finditer(r"(?<=[A-Za-z0-9-])(?![A-Za-z0-9-])", text):
                if end.start() < len(text) and text[: end.start()] in known:
                    _reject(f"{lexicon.name} contains {text!r} and its beginning {text[: end.start()]!r}")


def _check_prefixes(name: str, firsts: list[tuple[str, ...]]) -> None:
    """Check that the beginnings of different alternatives exclude each other."""
    if not all(firsts):
        _reject(f"an alternative of {name} begins with a slot; begin it with literal text")
    owners = sorted((first, number) for number, each in enumerate(firsts) for first in each)
    # In sorted order, a text is followed directly by the texts that begin with it.
    for (text, owner), (longer, other) in pairwise(owners):
        if owner != other and longer.startswith(text):
            _reject(f"two alternatives of {name} can begin with {text!r}")


def _reject(problem: str) -> None:
    raise FormatError(f"grammar of the world book: {problem}")
