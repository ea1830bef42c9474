"""Compute the exact entropy of a document from the probabilities of the grammar.

Each text has one derivation. So the entropy is the sum over all choices of the entropy of the choice times
the expected number of its occurrences. Nothing is sampled.

- *Rules* without things have an expectation of their own: e = H + P e'. H is the entropy of the choice of an
  alternative, and P the expected number of calls of each rule. The unknowns are indexed by rule and
  depth. Calls go to other rules or to a greater depth, so the system is triangular, and substitution solves
  it.
- *Things*: the entropy of a turn depends only on the number of things in play. The sum runs over the
  distribution of this number.
- *Genres*: the number of sections of one genre among n is that of a two-coloured Pólya urn. Its distribution
  is computed for every n. The length of a document does not depend on the genres.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from bytewright.corpus.storybook.grammar import Call
from bytewright.corpus.worldbook.grammar import WorldGrammar
from bytewright.corpus.worldbook.machine import Machine
from bytewright.corpus.worldbook.template_parts import (
    NAME,
    THING,
    TURNS,
    Holder,
    Lexicon,
    Nest,
    Number,
    Part,
    Person,
    Pick,
    Rule,
    Thing,
    Turn,
)

InPlay = tuple[float, ...]
"""The probability of each number of things in play."""


@dataclass(frozen=True, kw_only=True)
class DocumentEntropy:
    """The mean information content of a document in bits, and the mean number of its sections."""

    genre_bits: float
    length_bits: float
    section_bits: dict[str, float]
    """The bits in the sections of each genre, per document."""
    num_sections: float

    @property
    def bits(self) -> float:
        """Bits per document."""
        return math.fsum([self.genre_bits, self.length_bits, *self.section_bits.values()])


def compute_document_entropy(machine: Machine) -> DocumentEntropy:
    """Return the exact means over all documents."""
    grammar = machine.grammar
    reached, length_bits = _compute_lengths(grammar)
    sections = _Sections(machine)
    genre_bits, section_bits = 0.0, {}
    for genre in grammar.genres:
        occurrences, bits = _expect_genre(grammar, genre, reached)
        genre_bits += bits
        in_play: InPlay = (1.0,) + (0.0,) * grammar.limits.max_things
        means = []
        for occurs in occurrences:
            bits, in_play = sections.expect(Call(genre), 0, in_play)
            means.append(occurs * bits)
        section_bits[genre] = math.fsum(means)
    return DocumentEntropy(
        genre_bits=genre_bits,
        length_bits=length_bits,
        section_bits=section_bits,
        num_sections=math.fsum(reached),
    )


def entropy_of(weights: Sequence[int]) -> float:
    """Return the entropy of a choice in bits.

    >>> entropy_of([1, 1, 2])
    1.5
    """
    total = sum(weights)
    return math.fsum(weight / total * math.log2(total / weight) for weight in weights if weight)


def _compute_lengths(grammar: WorldGrammar) -> tuple[list[float], float]:
    """Return the probability of at least n sections, for n = 1, 2, …, and the bits of the length."""
    limits = grammar.limits
    reached, bits = [1.0], 0.0
    for num_sections in range(1, limits.max_sections):
        weights = (limits.stop_weight, num_sections + 1)
        bits += reached[-1] * entropy_of(weights)
        reached.append(reached[-1] * weights[1] / sum(weights))
    return reached, bits


def _expect_genre(grammar: WorldGrammar, genre: str, reached: Sequence[float]) -> tuple[list[float], float]:
    """Return the probabilities of a first, second, … section of a genre, and the bits of choosing it."""
    gain, own, total = grammar.limits.urn_gain, grammar.genres[genre], sum(grammar.genres.values())
    counts = [1.0]  # the probability of each number of sections of the genre so far
    occurrences, bits = [0.0] * len(reached), []
    for num_before, exists in enumerate(reached):
        after = [0.0] * (len(counts) + 1)
        for count, probability in enumerate(counts):
            share = (own + gain * count) / (total + gain * num_before)
            bits.append(exists * probability * share * -math.log2(share))
            occurrences[count] += exists * probability * share
            after[count + 1] += probability * share
            after[count] += probability * (1 - share)
        counts = after
    return occurrences, math.fsum(bits)


class _Sections:
    """The expected bits of the parts of a section."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.grammar = machine.grammar
        recency = machine.recency
        self._recent = [0.0, *(entropy_of(recency[: size + 1]) for size in range(len(recency)))]

    def expect(self, part: Part, depth: int, in_play: InPlay) -> tuple[float, InPlay]:
        """Return the expected bits of a part, and the distribution of the number of things in play after it.

        `in_play` is that distribution before the part. It may sum to less than 1: to the probability that the
        part occurs.
        """
        match part:
            case Call(name) | Nest(name):
                depth += isinstance(part, Nest)
                if name not in self.grammar.rules_with_things:
                    return sum(in_play) * self._bits_of_rule(name, depth), in_play
                return self._expect_rule(self.grammar.rules[name], depth, in_play)
            case Turn():
                return self._expect_turn(depth, in_play)
            case Thing("new"):
                size = len(self.grammar.lexicons[THING].words)
                return math.fsum(p * math.log2(size - k) for k, p in enumerate(in_play) if p), in_play
            case Thing("old"):
                return math.fsum(p * self._recent[k] for k, p in enumerate(in_play)), in_play
        return sum(in_play) * self._bits_of_slot(part), in_play

    def _expect_rule(self, rule: Rule, depth: int, in_play: InPlay) -> tuple[float, InPlay]:
        weights = self._weights(rule, depth)
        bits, after = sum(in_play) * entropy_of(weights), (0.0,) * len(in_play)
        for weight, alternative in zip(weights, rule.alternatives, strict=True):
            now = _scale(in_play, weight / sum(weights))
            for part in alternative.parts if weight else ():
                more, now = self.expect(part, depth, now)
                bits += more
            after = _add(after, now) if weight else after
        return bits, after

    def _expect_turn(self, depth: int, in_play: InPlay) -> tuple[float, InPlay]:
        bits, after = 0.0, [0.0] * (len(in_play) + 1)
        for size, probability in enumerate(in_play):
            if probability:
                bits_here, introduces = self._expect_turn_with(size, depth)
                bits += probability * bits_here
                after[size] += probability * (1 - introduces)
                after[size + 1] += probability * introduces
        return bits, tuple(after[:-1])

    @functools.cache  # noqa: B019
    def _expect_turn_with(self, num_things: int, depth: int) -> tuple[float, float]:
        """Return the expected bits of a turn with `num_things` in play, and the probability of a new one."""
        weights = self.machine.turn_weights(num_things)
        only = tuple(float(number == num_things) for number in range(self.grammar.limits.max_things + 1))
        bits = entropy_of(weights)
        for weight, rule in zip(weights, TURNS, strict=True):
            if weight:
                bits += weight / sum(weights) * self.expect(Call(rule), depth, only)[0]
        return bits, weights[0] / sum(weights)

    def _weights(self, rule: Rule, depth: int) -> list[int]:
        deepest = depth == self.grammar.limits.max_depth
        return [0 if deepest and each.nests else each.weight for each in rule.alternatives]

    @functools.cache  # noqa: B019
    def _bits_of_rule(self, name: str, depth: int) -> float:
        rule = self.grammar.rules[name]
        weights = self._weights(rule, depth)
        total = sum(weights)
        means = [entropy_of(weights)]
        for weight, alternative in zip(weights, rule.alternatives, strict=True):
            for part in alternative.parts if weight else ():
                if isinstance(part, Call | Nest):
                    bits = self._bits_of_rule(part.rule, depth + isinstance(part, Nest))
                else:
                    bits = self._bits_of_slot(part)
                means.append(weight / total * bits)
        return math.fsum(means)

    def _bits_of_slot(self, part: Part) -> float:
        lexicons, world = self.grammar.lexicons, self.machine.world
        match part:
            case Pick(name, _, _, other):
                return _bits_of_word(lexicons[name], is_other=other is not None)
            case Person("new"):
                return world.person_entropy
            case Person("other"):
                return world.other_person_entropy
            case Number(_, low, high):
                return math.log2(high - low + 1)
            case Holder("first"):
                return _bits_of_word(lexicons[NAME], is_other=False)
            case Holder("next"):
                return _bits_of_word(lexicons[NAME], is_other=True)
        return 0.0


def _bits_of_word(lexicon: Lexicon, *, is_other: bool) -> float:
    """Return the entropy of a word, or of one that differs from a word that was drawn before."""
    if not is_other:
        return entropy_of(lexicon.weights)
    total = lexicon.cumulative[-1]
    bits, shares = entropy_of(lexicon.weights), [weight / total for weight in lexicon.weights]
    return math.fsum(p * ((bits + p * math.log2(p)) / (1 - p) + math.log2(1 - p)) for p in shares)


def _scale(in_play: InPlay, factor: float) -> InPlay:
    return tuple(factor * probability for probability in in_play)


def _add(left: InPlay, right: InPlay) -> InPlay:
    return tuple(a + b for a, b in zip(left, right, strict=True))
