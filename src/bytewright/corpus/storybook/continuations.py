"""The exact distribution of what follows a prefix of a story, word by word.

A *state* is a point inside a derivation. It has the parts that are still to be written, and for each plot
variable the set of its possible values. A *distribution* has the probability of each state in which the text
so far can end. The probability of a prefix is the sum over its states. `words` extends a distribution by
every possible word.

The plot is drawn as late as possible. A variable is left open until a guard or a mention needs it. Then the
state is split by what the guards and the texts distinguish, not by value: `[pal!=none]` makes two states, not
thirty-three. This is exact. A choice depends on the plot through its guards only. Within a state each of
these guards is either true for all possible values or false for all of them.

A *word* extends up to the next space that follows a character other than white space, so it begins with its
space: `" owl."`. Words can contain line breaks: the last word of a paragraph includes the first word of the
next one. Pre-tokenisation by the patterns gpt2 and gpt4 has a boundary at the end of each word.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bytewright.corpus.storybook.grammar import Call, Choice, Mention, Part, Parts, StoryGrammar

MAX_CACHED_WORDS = 200_000
"""The caches are emptied when they hold this many words."""
WORD_BOUNDARY = re.compile(r"(?<=\S)(?= )")
PLAIN_WORD = re.compile(r"\S+")
OPEN = 0
"""The number of the set of a variable that is not yet drawn."""

Facts = tuple[int, ...]
"""For each plot variable the number of its set of possible values."""


class _Rest:
    """The parts that are still to be written: one part, and those after it. Equal rests are one object."""

    __slots__ = ("after", "begins_with_space", "part")

    def __init__(self, part: Part, after: _Rest | None, begins_with_space: bool) -> None:
        self.part = part
        self.after = after
        self.begins_with_space = begins_with_space
        """Whether all texts of the part begin with a space; then a word ends before it in any case."""


State = tuple[Facts, _Rest | None]
"""The facts and the rest; without a rest, the story has ended."""
StateDistribution = Mapping[State, float]
"""The probability of each state, up to a common factor."""


class Word(NamedTuple):
    """A possible next word."""

    text: str
    ends_story: bool
    probability: float
    """Relative to the distribution: the probabilities of all words sum to those of its states."""
    distribution: StateDistribution
    """The states after the word; their probabilities sum to that of the word."""


class _Options(NamedTuple):
    """The ways to write a part that lead to the same facts."""

    changes: tuple[tuple[int, int], ...]
    """The variables whose set of values changes, each with the number of the new set."""
    literals: list[tuple[str, float]]
    """Single texts with their probabilities; no word ends inside or before them."""
    templates: list[tuple[Parts, float]]


_Tail = tuple[str, State, float]
"""The end of a word: its text, the state after it, and its probability."""


class Continuations:
    """Extends the prefixes of the stories of one grammar; intermediate results are cached.

    Several threads may use it.
    """

    def __init__(self, grammar: StoryGrammar) -> None:
        self.grammar = grammar
        self._open: Facts = (OPEN,) * len(grammar.variables)
        self._sets: list[frozenset[int]] = [frozenset()]
        self._numbers: dict[frozenset[int], int] = {}
        self._rests: dict[tuple[Hashable, _Rest | None], _Rest] = {}
        self._start = Call(grammar.start)
        self._spaces: dict[str, bool] = {}
        self._ancestors: dict[int, tuple[int, ...]] = {}
        self._weights: dict[tuple[int, ...], Sequence[int]] = {}
        self._options: dict[tuple[int, ...], list[_Options]] = {}
        self._tails: dict[tuple[Facts, _Rest | None, bool], list[_Tail]] = {}
        self._num_cached = 0
        self._lock = threading.Lock()

    def start(self, before: str = "", after: str = "") -> StateDistribution:
        """Return the distribution before a story that stands between two fixed texts."""
        with self._lock:
            return {(self._open, self._push((before, self._start, after), None)): 1.0}

    def words(self, distribution: StateDistribution) -> list[Word]:
        """Return all words that can follow, each with its probability and the distribution after it."""
        found: dict[tuple[str, bool], dict[State, float]] = {}
        with self._lock:
            for (facts, rest), probability in distribution.items():
                for text, state, share in self._find_tails(facts, rest, False):
                    states = found.setdefault((text, state[1] is None), {})
                    states[state] = states.get(state, 0.0) + probability * share
        return [Word(text, ends, sum(states.values()), states) for (text, ends), states in found.items()]

    # Words: the texts that a rest can produce up to the next boundary

    def _find_tails(self, facts: Facts, rest: _Rest | None, in_word: bool) -> list[_Tail]:
        """Return the ends of a word, all that a rest can produce.

        `in_word` is whether a character other than white space precedes, so that a space ends the word.
        """
        key = (facts, rest, in_word)
        tails = self._tails.get(key)
        if tails is None:
            tails = self._make_tails(facts, rest, in_word)
            self._num_cached += 1 + len(tails)
            if self._num_cached > MAX_CACHED_WORDS:
                self._tails.clear()
                self._num_cached = 0
            self._tails[key] = tails
        return tails

    def _make_tails(self, facts: Facts, rest: _Rest | None, in_word: bool) -> list[_Tail]:
        if rest is None:
            return [("", (self._open, None), 1.0)]
        if in_word and rest.begins_with_space:
            return [("", (facts, rest), 1.0)]
        part, after = rest.part, rest.after
        if isinstance(part, str):
            tails = self._find_tails(facts, after, not part[-1].isspace())
            return [(part + text, state, share) for text, state, share in tails]
        found: dict[tuple[str, State], float] = {}
        for changes, literals, templates in self._find_options(part, facts):
            known = _changed(facts, changes)
            for parts, probability in templates:
                for text, state, share in self._find_tails(known, self._push(parts, after), in_word):
                    end = (text, state)
                    found[end] = found.get(end, 0.0) + probability * share
            if literals:
                tails = self._find_tails(known, after, True)
                for literal, probability in literals:
                    for text, state, share in tails:
                        end = (literal + text, state)
                        found[end] = found.get(end, 0.0) + probability * share
        return [(text, state, share) for (text, state), share in found.items()]

    def _push(self, parts: Parts, after: _Rest | None) -> _Rest | None:
        """Return the rest that consists of some parts and of the rest after them."""
        for part in reversed(parts):
            pieces: Sequence[Part] = WORD_BOUNDARY.split(part) if isinstance(part, str) else (part,)
            for piece in reversed(pieces):
                if piece == "":
                    continue
                key = (piece if isinstance(piece, str) else id(piece), after)
                rest = self._rests.get(key)
                if rest is None:
                    rest = self._rests[key] = _Rest(piece, after, self._begins_with_space(piece))
                after = rest
        return after

    def _begins_with_space(self, part: Part) -> bool:
        if isinstance(part, str):
            return part.startswith(" ")
        if isinstance(part, Mention):
            return all(form.startswith(" ") for form in part.forms)
        if part.rule not in self._spaces:
            options = self.grammar.rules[part.rule].alternatives
            self._spaces[part.rule] = all(
                bool(option.parts) and self._begins_with_space(option.parts[0]) for option in options
            )
        return self._spaces[part.rule]

    # Options: how a part can be written under given facts

    def _find_options(self, part: Mention | Call, facts: Facts) -> list[_Options]:
        """Return the ways to write a part; the probabilities of all of them sum to 1."""
        relevant = self._relevant_variables(part)
        key = (id(part), *[facts[number] for number in relevant])
        options = self._options.get(key)
        if options is None:
            made: dict[tuple[tuple[int, int], ...], _Options] = {}
            for parts, known, probability in self._write(part, facts):
                changes = tuple([(k, known[k]) for k in relevant if known[k] != facts[k]])
                group = made.setdefault(changes, _Options(changes, [], []))
                text = parts[0] if len(parts) == 1 else None
                if isinstance(text, str) and PLAIN_WORD.fullmatch(text):
                    group.literals.append((text, probability))
                else:
                    group.templates.append((parts, probability))
            options = self._options[key] = list(made.values())
        return options

    def _write(self, part: Mention | Call, facts: Facts) -> Iterator[tuple[Parts, Facts, float]]:
        if isinstance(part, Mention):
            for drawn, share in self._draw(facts, part.variable):
                for known, probability in self._split(drawn, part.variable, part.forms):
                    value = next(iter(self._sets[known[part.variable]]))
                    yield (part.forms[value],), known, share * probability
            return
        rule = self.grammar.rules[part.rule]
        for known, share in self._decide_guards(facts, rule):
            weights = rule.weights(self._example(known, rule))
            total = sum(weights)
            if not total:
                raise ValueError(f"{rule.name} has no alternative under a plot")
            for weight, option in zip(weights, rule.alternatives, strict=True):
                if weight:
                    yield option.parts, known, share * (weight / total)

    def _relevant_variables(self, part: Mention | Call) -> tuple[int, ...]:
        """Return the variables that writing a part can narrow: those it reads and their ancestors."""
        relevant = self._ancestors.get(id(part))
        if relevant is None:
            read = (part.variable,) if isinstance(part, Mention) else self.grammar.rules[part.rule].depends_on
            relevant = self._ancestors[id(part)] = tuple(self.grammar.with_ancestors(read))
        return relevant

    # Facts: the plot as far as it is decided

    def _decide_guards(self, facts: Facts, choice: Choice) -> list[tuple[Facts, float]]:
        """Split facts so that each guard of a choice is true for all possible plots or false for all."""
        found = [(facts, 1.0)]
        for number in choice.depends_on:
            guards = {
                values
                for option in choice.alternatives
                for variable, values in option.guard
                if variable == number
            }
            count = len(self.grammar.variables[number].alternatives)
            labels = [frozenset(values for values in guards if value in values) for value in range(count)]
            found = [
                (known, share * drawn_share * probability)
                for earlier, share in found
                for drawn, drawn_share in self._draw(earlier, number)
                for known, probability in self._split(drawn, number, labels)
            ]
        return found

    def _draw(self, facts: Facts, number: int) -> list[tuple[Facts, float]]:
        """Return facts in which a variable has a set of values, split by what its values depend on."""
        if facts[number] != OPEN:
            return [(facts, 1.0)]
        found = []
        for known, share in self._decide_guards(facts, self.grammar.variables[number]):
            weights = self._weights_of(number, known)
            possible = frozenset(value for value, weight in enumerate(weights) if weight)
            found.append((_changed(known, ((number, self._number(possible)),)), share))
        return found

    def _split(self, facts: Facts, number: int, labels: Sequence[Hashable]) -> list[tuple[Facts, float]]:
        """Split the values of a drawn variable by their labels, each part with its probability."""
        weights = self._weights_of(number, facts)
        groups: dict[Hashable, list[int]] = {}
        for value in self._sets[facts[number]]:
            groups.setdefault(labels[value], []).append(value)
        if len(groups) == 1:
            return [(facts, 1.0)]
        total = sum(weights[value] for value in self._sets[facts[number]])
        found = []
        for values in groups.values():
            known = _changed(facts, ((number, self._number(frozenset(values))),))
            found.append((known, sum(weights[value] for value in values) / total))
        return found

    def _weights_of(self, number: int, facts: Facts) -> Sequence[int]:
        """Return the weights of the values of a variable, whose guards the facts decide."""
        variable = self.grammar.variables[number]
        key = (number, *[facts[k] for k in variable.depends_on])
        weights = self._weights.get(key)
        if weights is None:
            weights = self._weights[key] = variable.weights(self._example(facts, variable))
        return weights

    def _example(self, facts: Facts, choice: Choice) -> dict[int, int]:
        """Return one of the possible values of each variable that a choice depends on."""
        return {number: next(iter(self._sets[facts[number]])) for number in choice.depends_on}

    def _number(self, values: frozenset[int]) -> int:
        number = self._numbers.get(values)
        if number is None:
            number = self._numbers[values] = len(self._sets)
            self._sets.append(values)
        return number


def _changed(facts: Facts, changes: tuple[tuple[int, int], ...]) -> Facts:
    if not changes:
        return facts
    made = list(facts)
    for number, values in changes:
        made[number] = values
    return tuple(made)
