"""The grammar: plot variables that are drawn first, and rules that express the plot in words.

A *variable* has weighted values. A *rule* has weighted alternatives, each a sequence of literal text,
mentions of variables and calls of other rules. A value or an alternative may have a *guard*: it can only be
chosen if variables drawn earlier have certain values. Each probability is a ratio of integers. It is the
weight of the chosen alternative divided by the weights of all alternatives whose guard holds. Rules are not
recursive, so the number of stories is finite.

Mentions and calls may be modified. `{a thing}` yields "a kite" or "an umbrella", whatever the first word
comes from. So the change is applied to the literal text, to the forms of a mention, or to a copy of the
called rule. The name of the copy is the name of the rule after a mark.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Guard = tuple[tuple[int, frozenset[int]], ...]
"""Pairs of (variable, allowed values); all of them must hold."""

Plot = Sequence[int]
"""The index of the value of each variable."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A placeholder for a form of a variable's value, such as `{thing}` or `{thing.use}`."""

    variable: int
    forms: tuple[str, ...]
    """The text for each value of the variable."""


@dataclass(frozen=True, slots=True)
class Call:
    """A placeholder for the text of another rule; the world book uses it, too."""

    rule: str


Part = str | Mention | Call
Parts = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """One option of a choice, with its weight and guard."""

    weight: int
    guard: Guard
    parts: Parts

    def allows(self, plot: Plot | Mapping[int, int]) -> bool:
        """Return whether a plot satisfies the guard; only the guarded variables are read."""
        return all(plot[variable] in values for variable, values in self.guard)


@dataclass(frozen=True)
class Choice:
    """A choice among weighted alternatives: the text of a rule or the value of a variable."""

    name: str
    alternatives: tuple[Alternative, ...]

    @functools.cached_property
    def depends_on(self) -> tuple[int, ...]:
        """The variables in the guards of the alternatives."""
        return tuple(sorted({variable for option in self.alternatives for variable, _ in option.guard}))

    def weights(self, plot: Plot | Mapping[int, int]) -> list[int]:
        """Return the weight of each alternative under a plot: 0 if its guard fails."""
        return [option.weight if option.allows(plot) else 0 for option in self.alternatives]

    def costs(self, plot: Plot | Mapping[int, int]) -> list[float]:
        """Return the cost of each alternative under a plot: -log2 of its probability."""
        key = tuple([plot[variable] for variable in self.depends_on])
        costs = self._known_costs.get(key)
        if costs is None:
            weights = self.weights(plot)
            total = sum(weights)
            if not total:
                raise ValueError(f"{self.name} has no alternative under the plot {plot}")
            costs = [math.log2(total / weight) if weight else math.inf for weight in weights]
            self._known_costs[key] = costs
        return costs

    @functools.cached_property
    def _known_costs(self) -> dict[tuple[int, ...], list[float]]:
        return {}


@dataclass(frozen=True)
class Variable(Choice):
    """A plot variable: alternative k is value k and has no parts."""

    forms: Mapping[str, tuple[str, ...]]
    """The texts of all values by the name of the form; the first form is the name of the value."""

    @property
    def values(self) -> tuple[str, ...]:
        """The names of the values."""
        return next(iter(self.forms.values()))


@dataclass(frozen=True)
class StoryGrammar:
    """The variables in the order of drawing, the rules by name, and the start rule."""

    variables: tuple[Variable, ...]
    rules: Mapping[str, Choice]
    start: str
    beats: frozenset[str]
    """The rules that consist of whole sentences; the others are phrases, or beats after a space."""

    def named(self, plot: Plot) -> dict[str, str]:
        """Return the names of the variables and of their values in a plot."""
        return {
            variable.name: variable.values[value]
            for variable, value in zip(self.variables, plot, strict=True)
        }

    def with_ancestors(self, numbers: Iterable[int]) -> list[int]:
        """Return variables, and all variables on which their values depend, in the order of drawing."""
        found: set[int] = set()
        waiting = list(numbers)
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += self.variables[number].depends_on
        return sorted(found)

    @functools.cached_property
    def max_choices(self) -> int:
        """The largest number of choices in a story, including those of its plot."""

        @functools.cache
        def most(rule: str) -> int:
            return 1 + max(sum(map(most, calls_of(option.parts))) for option in self.rules[rule].alternatives)

        return len(self.variables) + most(self.start)


def calls_of(parts: Iterable[Part]) -> list[str]:
    """Return the names of the rules that a template calls.

    >>> calls_of(("The ", Call("adjective"), " owl."))
    ['adjective']
    """
    return [part.rule for part in parts if isinstance(part, Call)]


# Changes to the beginning of a template: an article, a capital letter, a space


def article(words: str) -> str:
    """Return "a" or "an", depending on the sound of the first letters.

    >>> [article(words) for words in ("owl", "fox", "unicorn", "honest", "old goat", "one-eyed cat")]
    ['an', 'a', 'a', 'an', 'an', 'a']
    """
    if re.match(r"uni[a-z]*(orn|form)|use|one\b|eu", words, re.IGNORECASE):
        return "a"
    return "an" if re.match(r"[aeiou]|hour|honest", words, re.IGNORECASE) else "a"


def with_article(words: str) -> str:
    """Return `words` after the indefinite article."""
    return f"{article(words)} {words}"


def with_capital(words: str) -> str:
    """Return `words` with the first letter as a capital."""
    return words[:1].upper() + words[1:]


def with_space(words: str) -> str:
    """Return `words` after a space."""
    return f" {words}"


ARTICLE, CAPITAL, SPACE = "&", "^", " "
CHANGES: Mapping[str, Callable[[str], str]] = {
    ARTICLE: with_article,
    CAPITAL: with_capital,
    SPACE: with_space,
}
"""The changes by their marks."""


def change(part: Part, mark: str) -> Part:
    """Return a part with a changed beginning.

    >>> change("owl", ARTICLE), change(Mention(0, ("he", "she")), CAPITAL), change(Call("end"), SPACE)
    ('an owl', Mention(variable=0, forms=('He', 'She')), Call(rule=' end'))
    """
    if isinstance(part, str):
        return CHANGES[mark](part)
    if isinstance(part, Mention):
        return Mention(part.variable, tuple(map(CHANGES[mark], part.forms)))
    return Call(f"{mark}{part.rule}")


def original_name(rule: str) -> str:
    """Return the name of a rule in the grammar, without the marks of changes."""
    return rule.lstrip("".join(CHANGES))


def add_changed_rules(rules: dict[str, Choice], may_be_empty: Iterable[str]) -> str | None:
    """Add the copies of rules that are called with a mark; return the name of a rule that cannot be changed.

    A rule with an empty alternative has no beginning to change. Rules in `may_be_empty` may still follow a
    space, which is omitted together with the text.
    """
    allowed = {f"{SPACE}{name}" for name in may_be_empty}
    options = [option for rule in rules.values() for option in rule.alternatives]
    wanted = [name for option in options for name in calls_of(option.parts)]
    while wanted:
        name = wanted.pop()
        if name in rules:
            continue
        original = rules.get(name[1:])
        if original is None:  # changed twice: add the rule that is changed once first
            wanted += [name, name[1:]]
            continue
        if name not in allowed and not all(option.parts for option in original.alternatives):
            return name[1:]
        changed = tuple(_changed(option, name[0]) for option in original.alternatives)
        rules[name] = Choice(name, changed)
        wanted += [called for option in changed for called in calls_of(option.parts)]
    return None


def _changed(option: Alternative, mark: str) -> Alternative:
    if not option.parts:
        return option
    return Alternative(option.weight, option.guard, (change(option.parts[0], mark), *option.parts[1:]))
