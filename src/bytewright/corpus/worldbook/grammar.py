"""The grammar of a world book: rules, lexicons and genres, and the checks that make it unambiguous.

The grammar can be read from left to right without backtracking, so each text has at most one derivation:

- The alternatives of a rule begin with literal texts, possibly those of the rule they call first. None of
  these texts begins with a text of another alternative. So the next characters determine the alternative.
- A word that is drawn is followed by a character that cannot continue it. No word of a lexicon is the
  beginning of another one of the same lexicon up to a word boundary. So the next characters determine the
  word.

`WorldGrammar` checks both properties when it is created. It also checks that every document can be written:
calls end, choices have outcomes, words and people are drawn before they are mentioned, and things are
mentioned only while they are in play.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

from bytewright.corpus.storybook.grammar import Call
from bytewright.corpus.worldbook.template_parts import (
    NAME,
    THING,
    TURNS,
    WORD_CHARACTER,
    Fact,
    Holder,
    Lexicon,
    Nest,
    Number,
    Part,
    Person,
    Pick,
    Pronoun,
    Repeat,
    Rule,
    Thing,
    Turn,
    called_rules,
    owner_of,
    show_part,
)
from bytewright.errors import FormatError

MAX_CALLS = 200
"""Rules may call each other this deeply, over all levels of nesting: the machine is recursive."""
MAX_NUMBER = 2**20
MAX_WEIGHTS = 2**32
"""The largest sum of the weights of one choice."""
MAX_RESULT = 2**63
"""Results of calculations are smaller than this: the fused generator has integers of 64 bits."""
PERSON = "{person}"
"""Marks a person among the names of variables."""


class GrammarError(FormatError):
    """A grammar is ambiguous, or not every document can be written."""

    def __init__(self, problem: str, section: str | None = None, alternative: int | None = None) -> None:
        super().__init__(f"grammar of the world book: {problem}", key=section)
        self.problem = problem
        self.section = section
        """The rule, the lexicon or the limit that is wrong; None if something is missing."""
        self.alternative = alternative
        """The number of the alternative of the rule, if one is wrong."""


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
        self._check_weights()
        self._check_calls()
        for rule in self.rules.values():
            self._check_rule(rule)
        self._check_variables()
        self._check_order()
        self._check_results()
        self._check_places_of_things()
        _check_prefixes("genres", [self.firsts_of(Call(genre)) for genre in self.genres])
        _check_prefixes("turns", [self.firsts_of(Call(rule)) for rule in TURNS])

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

    def _all_parts(self) -> Iterator[tuple[str, int, Part]]:
        """Yield every part with its rule and the number of its alternative."""
        for name, rule in self.rules.items():
            for number, alternative in enumerate(rule.alternatives):
                for part in alternative.parts:
                    yield name, number, part

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
            _reject(f"the turns need a rule and a weight each: {', '.join(TURNS)}", "turns")
        if not {THING, NAME} <= self.lexicons.keys():
            _reject(f"turns need the lexicons {THING} and {NAME}")
        for limit in ("max_sections", "max_things", "stop_weight"):
            if getattr(self.limits, limit) < 1:
                _reject(f"{limit} must be at least 1, but is {getattr(self.limits, limit)}", limit)
        for name, num_needed in ((THING, self.limits.max_things + 1), (NAME, 2)):
            if not self.lexicons[name].is_uniform:
                _reject(f"the words of {name} need equal weights", name)
            if (num_words := len(self.lexicons[name].words)) < num_needed:
                _reject(f"{name} needs at least {num_needed} words, but has {num_words}", name)

    def _check_weights(self) -> None:
        """Check that the weights of each choice have a sum that the fused generator can hold."""
        choices = {name: [each.weight for each in rule.alternatives] for name, rule in self.rules.items()}
        for name, weights in (choices | {"genres": [*self.genres.values()], "turns": [*self.turns]}).items():
            if (total := sum(weights)) > MAX_WEIGHTS:
                what = name if name in ("genres", "turns") else _show_rule(name)
                problem = f"the weights of {what} have the sum {total}; the limit is {MAX_WEIGHTS}"
                _reject(problem, name, weights.index(max(weights)))

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
            names = sorted(set(map(owner_of, calls)))
            problem = f"these rules call each other without nest, or before any text: {', '.join(names)}"
            _reject(problem, names[0])
        if (depth := num_calls * (self.limits.max_depth + 1)) > MAX_CALLS:
            problem = f"rules can call each other {depth} deep; the limit is {MAX_CALLS}, so reduce max_depth"
            _reject(problem, "max_depth")

    def _check_variables(self) -> None:
        """Check that variables are drawn, and that the entropy of words that differ from others is known."""
        lexicon_of: dict[str, str] = {}
        differing: set[str] = set()  # the variables whose words differ from other words
        for name, number, part in self._all_parts():
            if isinstance(part, Pick) and part.variable is not None:
                lexicon = lexicon_of.setdefault(part.variable, part.lexicon)
                if part.lexicon != lexicon:
                    problem = f"draws a word of {part.lexicon}, but {part.variable} has words of {lexicon}"
                    self._reject_part(f"{problem}; use another variable", part, name, number)
                if part.other is not None:
                    differing.add(part.variable)
        for name, number, part in self._all_parts():
            for variable in sorted(_needs(part) - lexicon_of.keys() - {PERSON}):
                problem = f"no rule, lexicon or variable has the name {variable}"
                self._reject_part(problem, part, name, number)
            if not isinstance(part, Pick) or part.other is None:
                continue
            lexicon, problem = lexicon_of[part.other], ""
            if lexicon != part.lexicon:
                problem = (
                    f"must differ from {part.other}, which has words of {lexicon}, not of {part.lexicon}"
                )
            elif len(self.lexicons[lexicon].words) < 2:
                problem = f"must differ from {part.other}, but {lexicon} has one word"
            elif part.other in differing and not self.lexicons[lexicon].is_uniform:
                problem = (
                    f"must differ from {part.other}, which differs from another word;"
                    f" the words of {lexicon} need equal weights for this"
                )
            if problem:
                self._reject_part(problem, part, name, number)

    def _check_order(self) -> None:
        """Check that a word or a person is drawn before it is mentioned, in all documents."""
        nothing = frozenset[str]()
        before: dict[str, frozenset[str]] = {}  # what is drawn before a rule, wherever it is called
        calls = [(genre, nothing) for genre in self.genres]
        while calls:
            name, before_call = calls.pop()
            if name in before and before[name] <= before_call:
                continue
            before[name] = before_call & before.get(name, before_call)
            for number, alternative in enumerate(self.rules[name].alternatives):
                drawn = before[name]
                for part in alternative.parts:
                    for missing in _needs(part) - drawn:
                        draw = PERSON if missing == PERSON else f"{{{missing}=…}}"
                        problem = f"must come after {draw}, whichever alternatives are chosen"
                        self._reject_part(problem, part, name, number)
                    inside = nothing if isinstance(part, Nest) else drawn
                    calls += [(called, inside) for called in called_rules([part])]
                    drawn |= self._draws(part)

    def _draws(self, part: Part) -> frozenset[str]:
        """Return the variables that every text of a part draws, and `PERSON` if it draws a person."""
        match part:
            case Pick(_, _, str(variable)):
                return frozenset({variable})
            case Person("new"):
                return frozenset({PERSON})
            case Call() | Turn():
                return frozenset.intersection(
                    *(
                        frozenset().union(*map(self._draws, alternative.parts))
                        for rule in called_rules([part])
                        for alternative in self.rules[rule].alternatives
                    )
                )
        return frozenset()

    def _check_results(self) -> None:
        """Check that the result of a calculation is always below `MAX_RESULT`."""

        @functools.cache
        def largest_after(name: str, before: int) -> int:
            """Return the largest absolute result after a rule, given the one before it."""
            largest = 0
            for number, alternative in enumerate(self.rules[name].alternatives):
                result = before
                for part in alternative.parts:
                    match part:
                        case Number("=", _, high):
                            result = high
                        case Number("*", _, high):
                            result *= high
                        case Number(_, _, high):
                            result += high
                        case Call() | Turn():
                            result = max(largest_after(rule, result) for rule in called_rules([part]))
                    if result >= MAX_RESULT:
                        problem = f"can have the result {result}, which must be less than 2^63"
                        self._reject_part(f"{problem}; use smaller numbers", part, name, number)
                largest = max(largest, result)
            return largest

        for name in self.rules:
            largest_after(name, 0)

    def _check_places_of_things(self) -> None:
        """Check that a thing is in play where it is mentioned, and that an introduction draws a new one."""
        outside = self._rules_below(self.genres)
        introductions, others = self._rules_below(TURNS[:1]), self._rules_below(TURNS[1:])
        for name, number, part in self._all_parts():
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
                self._reject_part(f"may only be used {place}", part, name, number)
        if not (self._always_has(TURNS[0], Thing) and self._always_has(TURNS[0], Holder)):
            _reject(f"each alternative of {TURNS[0]} needs {{thing.new}} and {{holder.first}}", TURNS[0])

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
            problem = (
                f"every alternative of {_show_rule(rule.name)} nests, so it has none at the deepest level"
            )
            _reject(problem, rule.name)
        for number, alternative in enumerate(rule.alternatives):
            for part in alternative.parts:
                if isinstance(part, Number) and part.low > part.high:
                    self._reject_part("is an empty range of numbers", part, rule.name, number)
                if isinstance(part, Number) and not 0 <= part.low <= part.high < MAX_NUMBER:
                    problem = f"has numbers outside 0 to {MAX_NUMBER - 1}"
                    self._reject_part(problem, part, rule.name, number)
            for part, after in pairwise(alternative.parts):
                is_ended = isinstance(after, str) and not WORD_CHARACTER.match(after)
                if not is_ended and self._ends_with_word(part):
                    problem = "must be followed by a space or punctuation"
                    self._reject_part(problem, part, rule.name, number)

    def _reject_part(self, problem: str, part: Part, rule: str, alternative: int) -> NoReturn:
        """Raise an error about a part of an alternative."""
        shown = show_part(part, self.facts)
        _reject(f"in {_show_rule(rule)}, {shown} {problem}", rule, alternative)

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


def _needs(part: Part) -> frozenset[str]:
    """Return the variables that must be drawn before a part, and `PERSON` if it needs a person."""
    match part:
        case Pick(_, _, _, str(other)):
            return frozenset({other})
        case Repeat(variable):
            return frozenset({variable})
        case Person("other" | "same") | Fact() | Pronoun():
            return frozenset({PERSON})
    return frozenset()


def _check_words(lexicon: Lexicon) -> None:
    for texts in lexicon.forms.values():
        known = set(texts)
        if len(known) < len(texts):
            repeated = next(text for text in texts if texts.count(text) > 1)
            _reject(f"{lexicon.name} contains {repeated!r} twice", lexicon.name)
        for text in texts:
            for end in re.finditer(r"(?<=[A-Za-z0-9-])(?![A-Za-z0-9-])", text):
                beginning = text[: end.start()]
                if beginning != text and beginning in known:
                    problem = f"{lexicon.name} contains {text!r} and its beginning {beginning!r}"
                    _reject(problem, lexicon.name)


def _check_prefixes(section: str, firsts: list[tuple[str, ...]]) -> None:
    """Check that alternatives of a rule, genres or turns have beginnings that exclude each other."""
    what = section if section in ("genres", "turns") else f"alternatives of {_show_rule(section)}"
    for number, each in enumerate(firsts):
        if not each:
            _reject(f"{what} must begin with literal text, but one begins with a slot", section, number)
    owners = sorted((first, number) for number, each in enumerate(firsts) for first in each)
    # In sorted order, a text is followed directly by the texts that begin with it.
    for (text, owner), (longer, other) in pairwise(owners):
        if owner != other and longer.startswith(text):
            _reject(f"two {what} can begin with {text!r}", section, max(owner, other))


def _show_rule(name: str) -> str:
    owner = owner_of(name)
    return f"the rule {owner}" if owner == name else f"a choice (…|…) of the rule {owner}"


def _reject(problem: str, section: str | None = None, alternative: int | None = None) -> NoReturn:
    raise GrammarError(problem, section, alternative)
