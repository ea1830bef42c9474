"""Compute the exact entropy and mean length of a story from the probabilities of the grammar.

The entropy of a story is the sum of the entropies of all choices, each multiplied by the probability that the
choice occurs. The sum is exact because each text has one derivation. The probability of a choice depends on
the plot only through the variables in the guards on the path to it. So the sums run over those variables, not
over all plots. Nothing is sampled; a test compares the results with the mean over many stories.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bytewright.corpus.storybook.grammar import Choice, Mention, Parts, StoryGrammar, Variable, calls_of

Variables = tuple[int, ...]
Table = Mapping[tuple[int, ...], float]
"""A number for each combination of values of a set of variables."""


@dataclass(frozen=True, kw_only=True)
class StoryEntropy:
    """The mean information content and length of a story."""

    plot_bits: float
    wording_bits: float
    text_bytes: float
    """The bytes of the story without the separator."""

    @property
    def bits(self) -> float:
        """Bits per story."""
        return self.plot_bits + self.wording_bits


@dataclass
class _Expectation:
    """The means over a part of a template, as far as they do not depend on the plot."""

    bits: float = 0.0
    num_bytes: float = 0.0
    mentions: defaultdict[Mention, float] = field(default_factory=lambda: defaultdict(float))
    calls: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The expected number of calls of each rule that depends on the plot."""

    def add(self, other: _Expectation, times: float) -> None:
        self.bits += times * other.bits
        self.num_bytes += times * other.num_bytes
        for mention, count in other.mentions.items():
            self.mentions[mention] += times * count
        for rule, count in other.calls.items():
            self.calls[rule] += times * count


def compute_story_entropy(grammar: StoryGrammar) -> StoryEntropy:
    """Return the exact means over all stories of a grammar."""
    return _Calculation(grammar).run()


class _Calculation:
    def __init__(self, grammar: StoryGrammar) -> None:
        self.grammar = grammar
        self.bits = 0.0
        self.num_bytes = 0.0
        self._expectations: dict[str, _Expectation] = {}
        self._joints: dict[Variables, Table] = {}

    def run(self) -> StoryEntropy:
        plot_bits = 0.0
        for variable in self.grammar.variables:
            for values, probability in self.joint(variable.depends_on).items():
                plot_bits += probability * _entropy(variable, variable.depends_on, values)
        self._visit(self.grammar.start, (), {(): 1.0})
        return StoryEntropy(plot_bits=plot_bits, wording_bits=self.bits, text_bytes=self.num_bytes)

    def joint(self, wanted: Variables) -> Table:
        """Return the probability of each combination of values of the `wanted` variables."""
        if wanted not in self._joints:
            self._joints[wanted] = self._eliminate(wanted)
        return self._joints[wanted]

    def _eliminate(self, wanted: Variables) -> Table:
        needed = self.grammar.with_ancestors(wanted)
        table: dict[tuple[int, ...], float] = {(): 1.0}
        kept: Variables = ()
        for position, number in enumerate(needed):
            variable = self.grammar.variables[number]
            later = needed[position + 1 :]
            still = {parent for child in later for parent in self.grammar.variables[child].depends_on}
            now = tuple(k for k in (*kept, number) if k in wanted or k in still)
            wider: dict[tuple[int, ...], float] = {}
            for values, probability in table.items():
                known = dict(zip(kept, values, strict=True))
                for value, cost in enumerate(variable.costs(known)):
                    if cost < math.inf:
                        known[number] = value
                        key = tuple(known[k] for k in now)
                        wider[key] = wider.get(key, 0.0) + probability * 2.0**-cost
            table, kept = wider, now
        assert kept == wanted, "both are sorted"
        return table

    def _visit(self, name: str, path: Variables, reach: Table) -> None:
        """Add the means of a rule; `reach` is the probability of its use, given the `path` variables."""
        rule = self.grammar.rules[name]
        variables = tuple(sorted({*path, *rule.depends_on}))
        along = [variables.index(number) for number in path]
        options: list[dict[tuple[int, ...], float]] = [{} for _ in rule.alternatives]
        for values, probability in self.joint(variables).items():
            reached = reach.get(tuple([values[k] for k in along]), 0.0)
            if not reached:
                continue
            costs = rule.costs(dict(zip(variables, values, strict=True)))
            for cost, option in zip(costs, options, strict=True):
                if cost < math.inf:
                    option[values] = reached * 2.0**-cost
            self.bits += probability * reached * _entropy_of(costs)
        for alternative, table in zip(rule.alternatives, options, strict=True):
            if table:
                self._follow(self._expect(alternative.parts), variables, table)

    def _follow(self, expected: _Expectation, variables: Variables, reach: Table) -> None:
        joint = self.joint(variables)
        probability = sum(joint[values] * reached for values, reached in reach.items())
        self.bits += probability * expected.bits
        self.num_bytes += probability * expected.num_bytes
        for mention, count in expected.mentions.items():
            self.num_bytes += count * self._mean_length(mention, variables, reach)
        for rule, count in expected.calls.items():
            scaled = {values: count * reached for values, reached in reach.items()}
            self._visit(rule, variables, scaled)

    def _mean_length(self, mention: Mention, variables: Variables, reach: Table) -> float:
        """Return the mean of (reached) x (bytes of the mention)."""
        number = mention.variable
        lengths = [len(form.encode()) for form in mention.forms]
        apart = number not in self.grammar.with_ancestors(variables)
        variable = self.grammar.variables[number]
        # Given its parents, a variable without descendants among `variables` is independent of them. So its
        # mean length can be computed first, which matters for names with thousands of values.
        added = variable.depends_on if apart else (number,)
        wider = tuple(sorted({*variables, *added}))
        along = [wider.index(k) for k in variables]
        total = 0.0
        for values, probability in self.joint(wider).items():
            reached = reach.get(tuple([values[k] for k in along]), 0.0)
            if reached:
                known = dict(zip(wider, values, strict=True))
                length = _mean(lengths, variable, known) if apart else lengths[known[number]]
                total += probability * reached * length
        return total

    @functools.cached_property
    def _depends(self) -> Mapping[str, bool]:
        """Whether the text of each rule depends on the plot, by its own guards or those of called rules."""

        @functools.cache
        def depends(name: str) -> bool:
            rule = self.grammar.rules[name]
            calls = [called for option in rule.alternatives for called in calls_of(option.parts)]
            return bool(rule.depends_on) or any(map(depends, calls))

        return {name: depends(name) for name in self.grammar.rules}

    def _expect(self, parts: Parts) -> _Expectation:
        made = _Expectation()
        for part in parts:
            if isinstance(part, str):
                made.num_bytes += len(part.encode())
            elif isinstance(part, Mention):
                made.mentions[part] += 1
            elif self._depends[part.rule]:
                made.calls[part.rule] += 1
            else:
                made.add(self._expect_rule(part.rule), 1.0)
        return made

    def _expect_rule(self, name: str) -> _Expectation:
        """Return the means over the alternatives of a rule that does not depend on the plot."""
        if name not in self._expectations:
            rule = self.grammar.rules[name]
            costs = rule.costs(())
            made = _Expectation(bits=_entropy_of(costs))
            for cost, option in zip(costs, rule.alternatives, strict=True):
                made.add(self._expect(option.parts), 2.0**-cost)
            self._expectations[name] = made
        return self._expectations[name]


def _entropy_of(costs: Iterable[float]) -> float:
    return math.fsum(cost * 2.0**-cost for cost in costs if cost < math.inf)


def _entropy(choice: Choice, variables: Variables, values: tuple[int, ...]) -> float:
    return _entropy_of(choice.costs(dict(zip(variables, values, strict=True))))


def _mean(numbers: list[int], variable: Variable, known: Mapping[int, int]) -> float:
    costs = variable.costs(known)
    return math.fsum(
        number * 2.0**-cost for number, cost in zip(numbers, costs, strict=True) if cost < math.inf
    )
