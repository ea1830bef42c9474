"""Find all derivations of a text: the plots and choices that generate exactly this story.

The search applies the rules from left to right. It carries the known values of each variable, from mentions
and guards: one value, a set of values, or unknown. At the end, it computes the probability of the derivation
for each plot that remains. The number of derivations should be 1, and the bits are -log2 of the probability.

A second search ignores the relations between mentions and guards. It determines whether a text or a sentence
has the right shape, although its facts may contradict each other.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bytewright.corpus.storybook.grammar import Choice, Guard, Mention, Part, Parts, StoryGrammar

LONGEST_LITERAL = 1000

Known = int | frozenset[int] | None
"""The possible values of a variable: one value, a set of values, or None if all are possible."""

Facts = tuple[Known, ...]
Trail = tuple["_Option", "Trail"] | None
"""The choices made so far, in reverse order."""


@dataclass(frozen=True, slots=True)
class Parse:
    """The derivations of a text."""

    num_derivations: int
    bits: float
    """-log2 of the probability of the text; infinite if it is not in the language."""
    plot: dict[str, str] | None
    """The plot if there is exactly one derivation."""
    leaves_at: int | None
    """The length of the longest common prefix with a story if the text is not in the language."""


class _Rule:
    """A rule indexed for the search, so that few of its options are tried at a position.

    Options that are one literal text are found by that text. The others are listed by their possible first
    characters, and options that can be empty are listed under every character.
    """

    __slots__ = ("anywhere", "by_character", "in_order", "lengths", "literals", "options")

    def __init__(self) -> None:
        self.options: list[_Option] = []
        self.literals: dict[str, list[_Option]] = {}
        self.lengths: list[int] = []
        self.in_order: list[str] = []
        self.by_character: dict[str, list[_Option]] = {}
        self.anywhere: list[_Option] = []

    def index(self, starts: Sequence[frozenset[str] | None]) -> None:
        """Index the options by their possible first characters, which are None if an option can be empty."""
        others: list[tuple[_Option, frozenset[str] | None]] = []
        for option, start in zip(self.options, starts, strict=True):
            if len(option.parts) == 1 and isinstance(option.parts[0], str):
                self.literals.setdefault(option.parts[0], []).append(option)
            else:
                others.append((option, start))
        self.lengths = sorted({len(text) for text in self.literals})
        self.in_order = sorted(self.literals)
        self.anywhere = [option for option, start in others if start is None]
        for character in frozenset().union(*(start for _, start in others if start is not None)):
            self.by_character[character] = [
                option for option, start in others if start is None or character in start
            ]


class _Option:
    __slots__ = ("choice", "guard", "number", "parts")

    def __init__(self, choice: Choice, number: int, parts: tuple[Step, ...]) -> None:
        self.choice = choice
        self.number = number
        self.guard: Guard = choice.alternatives[number].guard
        self.parts = parts


class _Slot:
    """A mention indexed for the search: the possible values for each text."""

    __slots__ = ("forms", "in_order", "lengths", "values", "variable")

    def __init__(self, mention: Mention) -> None:
        self.variable = mention.variable
        self.forms = mention.forms
        grouped: dict[str, set[int]] = {}
        for value, form in enumerate(mention.forms):
            grouped.setdefault(form, set()).add(value)
        self.values = {form: frozenset(values) for form, values in grouped.items()}
        self.lengths = sorted({len(form) for form in grouped})
        self.in_order = sorted(grouped)


Step = str | _Slot | _Rule
"""A part of a template, indexed for the search."""


class Parser:
    """Parses the stories of one grammar."""

    def __init__(self, grammar: StoryGrammar) -> None:
        self.grammar = grammar
        self._slots: dict[Mention, _Slot] = {}
        self._rules = {name: _Rule() for name in grammar.rules}
        for name, choice in grammar.rules.items():
            self._rules[name].options = [
                _Option(choice, number, self.steps(option.parts))
                for number, option in enumerate(choice.alternatives)
            ]
        self._firsts: dict[int, frozenset[str] | None] = {}
        for rule in self._rules.values():
            rule.index([self.first_characters(option.parts) for option in rule.options])
        self._start = self._rules[grammar.start]
        self._unknown: Facts = (None,) * len(grammar.variables)

    def parse(self, text: str) -> Parse:
        """Return the derivations of a text."""
        search = _Search(text)
        found: list[tuple[float, list[int]]] = []
        for end, facts, trail in search.rule(self._start, 0, self._unknown, None):
            if end == len(text):
                found += self._weigh(facts, trail)
        if not found:
            return Parse(0, math.inf, None, self._leaves_at(text))
        plot = self.grammar.named(found[0][1]) if len(found) == 1 else None
        return Parse(len(found), _sum_of_probabilities([bits for bits, _ in found]), plot, None)

    def has_shape(self, text: str) -> bool:
        """Return whether a text is a story if the relations between mentions and guards are ignored."""
        return len(text) in _Shape(text).ends_of_rule(self._start, 0)

    def fitting(self, text: str, templates: Iterable[tuple[Step, ...]]) -> list[tuple[Step, ...]]:
        """Return the templates whose shape the whole text has."""
        shape = _Shape(text)
        return [steps for steps in templates if len(text) in shape.ends_of_steps(steps, 0)]

    def facts(
        self, text: str, steps: tuple[Step, ...], ignored: frozenset[int] = frozenset()
    ) -> Iterator[Facts]:
        """Yield the facts that the whole text implies, for each way to derive it from a template.

        Values of the `ignored` variables are not compared.
        """
        for end, facts, _ in _Search(text, ignored=ignored).steps(steps, 0, 0, self._unknown, None):
            if end == len(text):
                yield facts

    def steps(self, parts: Parts) -> tuple[Step, ...]:
        """Return a template indexed for the search."""
        return tuple(self._step(part) for part in parts)

    def _step(self, part: Part) -> Step:
        if isinstance(part, str):
            return part
        if isinstance(part, Mention):
            return self._slots.setdefault(part, _Slot(part))
        return self._rules[part.rule]

    def first_characters(self, steps: Sequence[Step]) -> frozenset[str] | None:
        """Return the possible first characters of a template; None if its first part can be empty."""
        return self._first_characters_of(steps[0]) if steps else None

    def _first_characters_of(self, step: Step) -> frozenset[str] | None:
        if isinstance(step, str):
            return frozenset(step[:1]) or None
        if isinstance(step, _Slot):
            return None if 0 in step.lengths else frozenset(form[0] for form in step.forms)
        if id(step) not in self._firsts:
            starts = [self.first_characters(option.parts) for option in step.options]
            known = [start for start in starts if start is not None]
            whole = len(known) == len(starts)
            self._firsts[id(step)] = frozenset().union(*known) if whole else None
        return self._firsts[id(step)]

    def _weigh(self, facts: Facts, trail: Trail) -> list[tuple[float, list[int]]]:
        """Return each plot that the facts allow, with the bits of the whole derivation."""
        plots: list[tuple[float, list[int]]] = [(0.0, [])]
        for variable, known in zip(self.grammar.variables, facts, strict=True):
            wider = []
            for bits, plot in plots:
                costs = variable.costs(plot)
                values = range(len(costs)) if known is None else (known,) if isinstance(known, int) else known
                wider += [
                    (bits + costs[value], [*plot, value]) for value in values if costs[value] < math.inf
                ]
            plots = wider
        choices = []
        while trail is not None:
            option, trail = trail
            choices.append(option)
        return [
            (bits + sum([option.choice.costs(plot)[option.number] for option in choices]), plot)
            for bits, plot in plots
        ]

    def _leaves_at(self, text: str) -> int:
        search = _Search(text, tracking=True)
        for end, _, _ in search.rule(self._start, 0, self._unknown, None):
            search.furthest = max(search.furthest, end)
        return search.furthest


class _Search:
    """A search through one text with the facts known at each position.

    With `tracking`, it also records the furthest position up to which the text agrees with the grammar.
    """

    def __init__(self, text: str, *, tracking: bool = False, ignored: frozenset[int] = frozenset()) -> None:
        self.text = text
        self.tracking = tracking
        self.ignored = ignored
        self.furthest = 0

    def rule(self, rule: _Rule, at: int, facts: Facts, trail: Trail) -> Iterator[tuple[int, Facts, Trail]]:
        """Yield each derivation of a rule from a position on: its end, the facts and the choices."""
        if self.tracking:
            self._miss(rule.in_order, at)
        text = self.text
        for length in rule.lengths:
            if at + length > len(text):
                break
            for option in rule.literals.get(text[at : at + length], ()):
                narrowed = self._narrow(facts, option.guard) if option.guard else facts
                if narrowed is not None:
                    yield at + length, narrowed, (option, trail)
        for option in rule.by_character.get(text[at : at + 1], rule.anywhere):
            narrowed = self._narrow(facts, option.guard) if option.guard else facts
            if narrowed is not None:
                yield from self.steps(option.parts, 0, at, narrowed, (option, trail))

    def steps(
        self, steps: tuple[Step, ...], first: int, at: int, facts: Facts, trail: Trail
    ) -> Iterator[tuple[int, Facts, Trail]]:
        """Yield each derivation of the rest of a template."""
        text = self.text
        for number in range(first, len(steps)):
            step = steps[number]
            if isinstance(step, str):
                if not text.startswith(step, at):
                    if self.tracking:
                        self._miss([step], at)
                    return
                at += len(step)
            elif isinstance(step, _Slot):
                readings = self._slot(step, at, facts)
                if len(readings) != 1:
                    for end, known in readings:
                        yield from self.steps(steps, number + 1, end, known, trail)
                    return
                at, facts = readings[0]
            else:
                for end, known, chosen in self.rule(step, at, facts, trail):
                    yield from self.steps(steps, number + 1, end, known, chosen)
                return
        yield at, facts, trail

    def _slot(self, slot: _Slot, at: int, facts: Facts) -> list[tuple[int, Facts]]:
        variable = slot.variable
        known = facts[variable]
        if isinstance(known, int):
            form = slot.forms[known]
            if self.text.startswith(form, at):
                return [(at + len(form), facts)]
            if self.tracking:
                self._miss([form], at)
            return []
        readings = []
        for length in slot.lengths:
            if at + length > len(self.text):
                break
            values = slot.values.get(self.text[at : at + length])
            if values and known is not None:
                values = values & known
            if values:
                readings.append((at + length, self._learn(facts, variable, values)))
        if self.tracking and not readings:
            self._miss(slot.in_order, at)
        return readings

    def _narrow(self, facts: Facts, guard: Guard) -> Facts | None:
        """Return the facts restricted by a guard; None if they contradict it."""
        for variable, allowed in guard:
            known = facts[variable]
            if isinstance(known, int):
                if known not in allowed:
                    return None
                continue
            left = allowed if known is None else allowed & known
            if not left:
                return None
            facts = self._learn(facts, variable, left)
        return facts

    def _learn(self, facts: Facts, variable: int, values: frozenset[int]) -> Facts:
        if variable in self.ignored:
            return facts
        known: Known = next(iter(values)) if len(values) == 1 else values
        return (*facts[:variable], known, *facts[variable + 1 :])

    def _miss(self, wanted: Sequence[str], at: int) -> None:
        """Record how far the text agrees with the closest of the `wanted` texts, which are sorted."""
        text = self.text
        near = bisect_left(wanted, text[at : at + LONGEST_LITERAL])
        for literal in wanted[max(0, near - 1) : near + 1]:
            shared = len(literal)
            while not text.startswith(literal[:shared], at):
                shared -= 1
            self.furthest = max(self.furthest, at + shared)


class _Shape:
    """The same search without facts; the ends of a rule at a position are cached."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._known: dict[tuple[int, int], frozenset[int]] = {}

    def ends_of_rule(self, rule: _Rule, at: int) -> frozenset[int]:
        """Return all positions where a rule that begins at `at` can end."""
        key = (id(rule), at)
        ends = self._known.get(key)
        if ends is None:
            text = self.text
            found = {end for end in _ends(rule.lengths, at, text) if text[at:end] in rule.literals}
            for option in rule.by_character.get(text[at : at + 1], rule.anywhere):
                found |= self.ends_of_steps(option.parts, at)
            ends = frozenset(found)
            self._known[key] = ends
        return ends

    def ends_of_steps(self, steps: Iterable[Step], at: int) -> set[int]:
        """Return all positions where a template that begins at `at` can end."""
        places = {at}
        for step in steps:
            if isinstance(step, str):
                places = {place + len(step) for place in places if self.text.startswith(step, place)}
            elif isinstance(step, _Slot):
                places = {
                    end
                    for place in places
                    for end in _ends(step.lengths, place, self.text)
                    if self.text[place:end] in step.values
                }
            else:
                places = {end for place in places for end in self.ends_of_rule(step, place)}
            if not places:
                break
        return places


def _ends(lengths: Sequence[int], at: int, text: str) -> Iterator[int]:
    """Return the ends of texts with the given lengths that fit into the text."""
    return (at + length for length in lengths if at + length <= len(text))


def _sum_of_probabilities(bits: list[float]) -> float:
    if len(bits) == 1:
        return bits[0]
    least = min(bits)
    return least - math.log2(sum(2.0 ** (least - each) for each in bits))
