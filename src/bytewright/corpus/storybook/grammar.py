"""What a storybook is made of: plot variables that are drawn first, and rules that word them.

A *variable* has weighted values; a *rule* has weighted alternatives, each a sequence of literal text,
mentions of variables and calls of other rules. A value or an alternative may carry a *guard*: it can only be
chosen when variables drawn before have certain values. So every probability is a ratio of small integers: the
weight of what was chosen over the weights of all that could have been. No rule calls itself, so there are
finitely many stories.

This module knows neither how a grammar is written down (`notation`) nor what is done with it: `tell` makes
stories from it, `parse` finds their derivations, `entropy` computes what they weigh.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Guard = tuple[tuple[int, frozenset[int]], ...]
"""Pairs of (variable, values it may have); all of them must hold."""

Plot = Sequence[int]
"""For each variable the number of its value."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A place in a template where a form of a variable's value stands, such as `{thing}` or `{thing.use}`."""

    variable: int
    forms: tuple[str, ...]
    """For each value of the variable, what is written."""


@dataclass(frozen=True, slots=True)
class Call:
    """A place in a template where another rule's wording stands."""

    rule: str


Part = str | Mention | Call
Parts = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """One thing that can be chosen, with what it weighs and when it may be."""

    weight: int
    guard: Guard
    parts: Parts

    def allows(self, plot: Plot | Mapping[int, int]) -> bool:
        """Tell whether a plot satisfies the guard; only guarded variables are looked up."""
        return all(plot[variable] in values for variable, values in self.guard)


@dataclass(frozen=True)
class Choice:
    """A choice among weighted alternatives: the wording of a rule, or the value of a variable."""

    name: str
    alternatives: tuple[Alternative, ...]

    @functools.cached_property
    def depends_on(self) -> tuple[int, ...]:
        """The variables whose values decide which alternatives there are."""
        return tuple(sorted({variable for option in self.alternatives for variable, _ in option.guard}))

    def weights(self, plot: Plot | Mapping[int, int]) -> list[int]:
        """Give each alternative's weight under a plot: 0 where its guard fails."""
        return [option.weight if option.allows(plot) else 0 for option in self.alternatives]

    def costs(self, plot: Plot | Mapping[int, int]) -> list[float]:
        """Give what choosing each alternative costs under a plot: -log2 of its probability."""
        key = tuple([plot[variable] for variable in self.depends_on])
        costs = self._known_costs.get(key)
        if costs is None:
            weights = self.weights(plot)
            total = sum(weights)
            if not total:
                raise ValueError(f"{self.name} has nothing to choose under the plot {plot}")
            costs = [math.log2(total / weight) if weight else math.inf for weight in weights]
            self._known_costs[key] = costs
        return costs

    @functools.cached_property
    def _known_costs(self) -> dict[tuple[int, ...], list[float]]:
        return {}


@dataclass(frozen=True)
class Variable(Choice):
    """A plot variable: alternative k is value k, and has no parts."""

    forms: Mapping[str, tuple[str, ...]]
    """How its values are written, by the name of the form; the first form names the value."""

    @property
    def values(self) -> tuple[str, ...]:
        """The names of the values."""
        return next(iter(self.forms.values()))


@dataclass(frozen=True)
class Grammar:
    """Variables in the order in which they are drawn, rules by name, and the rule that words a story."""

    variables: tuple[Variable, ...]
    rules: Mapping[str, Choice]
    start: str
    beats: frozenset[str]
    """The rules that are made of whole sentences; the others are phrases, or beats after a space."""

    @functools.cached_property
    def numbers(self) -> Mapping[str, int]:
        """The number of each variable by its name."""
        return {variable.name: number for number, variable in enumerate(self.variables)}

    def named(self, plot: Plot) -> dict[str, str]:
        """Spell a plot out: the name of each variable and of its value."""
        return {
            variable.name: variable.values[value]
            for variable, value in zip(self.variables, plot, strict=True)
        }

    @functools.cached_property
    def max_choices(self) -> int:
        """The most choices that any one story takes, those of its plot included."""

        @functools.cache
        def most(rule: str) -> int:
            return 1 + max(
                sum(most(part.rule) for part in option.parts if isinstance(part, Call))
                for option in self.rules[rule].alternatives
            )

        return len(self.variables) + most(self.start)


def calls_of(parts: Iterable[Part]) -> list[str]:
    """List the rules that a template calls.

    >>> calls_of(("The ", Call("adjective"), " owl."))
    ['adjective']
    """
    return [part.rule for part in parts if isinstance(part, Call)]
