"""Two scaling curves that follow from the world alone, before any model is trained.

The *data curve*: after n mentions of people, some people have not occurred yet. A model cannot have learned
their facts, however large it is. The *capacity curve*: a model of N parameters that stores c bits in each
parameter can hold the facts of a limited number of people. At best these are the most frequent ones.

Both curves are exact sums over the buckets of `World`. For s > 1 and an unlimited number of people they are
power laws. The unseen share falls as n^-(1 - 1/s), and the share that does not fit falls as N^-(s - 1). The
product of a share and the bits that the facts of a mention cost without knowledge is the excess loss in bits
per mention.

A mention states only some facts, and a learner may need to read a fact several times. A model is limited by
data and by capacity at once. `unknown_share` takes all of this into account. `predict_fact_excess` returns
the excess in bits per document.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bytewright.corpus.storybook.grammar import Call
from bytewright.corpus.worldbook.grammar import WorldGrammar
from bytewright.corpus.worldbook.template_parts import Fact, Nest, Part, Person, Turn, owner_of, show_part
from bytewright.corpus.worldbook.world import World
from bytewright.errors import UsageError

PEOPLE = "people"
"""The genre that mentions people and states facts about them."""


def unseen_share(world: World, num_mentions: int) -> float:
    """Return the data curve: the probability that the next mention is of a person not mentioned so far.

    The sum over all people of p (1 - p)^n, for n independent mentions.
    """
    return unknown_share(world, num_mentions)


def people_that_fit(num_parameters: float, bits_per_parameter: float, fact_bits_per_person: float) -> float:
    """Return the number of people whose facts fit into a model."""
    return num_parameters * bits_per_parameter / fact_bits_per_person


def share_beyond(world: World, num_stored: float) -> float:
    """Return the probability of a mention of a person outside the `num_stored` most frequent ones."""
    total = world.cumulative[-1]
    return math.fsum(
        bucket.weight
        / total
        * min(1.0, max(0.0, (bucket.first - 1 + bucket.size - num_stored) / bucket.size))
        for bucket in world.buckets
    )


def unstored_share(
    world: World, num_parameters: float, *, bits_per_parameter: float = 2.0, fact_bits_per_person: float
) -> float:
    """Return the capacity curve: the share of mentions whose person does not fit into the model.

    Two bits per parameter is what published experiments with synthetic facts reached; it is an assumption.
    """
    return share_beyond(world, people_that_fit(num_parameters, bits_per_parameter, fact_bits_per_person))


def data_exponent(world: World) -> float:
    """Return b in unseen_share ~ n^-b, for s > 1 and mentions far fewer than people."""
    return 1 - 1 / float(world.exponent)


def capacity_exponent(world: World) -> float:
    """Return a in unstored_share ~ N^-a, for s > 1 and stored people far fewer than people."""
    return float(world.exponent) - 1


def local_exponent(sizes: Sequence[float], shares: Sequence[float]) -> float:
    """Return p of the power law size^-p through the first and the last point of a curve."""
    return math.log(shares[0] / shares[-1]) / math.log(sizes[-1] / sizes[0])


# From shares to bits per document


@dataclass(frozen=True, kw_only=True)
class Mentions:
    """How often documents mention people, and which facts a mention states."""

    per_document: float
    rates: Mapping[str, float]
    """The probability that a mention states a fact, by the name of the fact."""
    bits: Mapping[str, float]
    """The bits of each fact for a model that has not stored it."""

    @property
    def bits_per_mention(self) -> float:
        """The bits of the facts of a mention for a model that has stored none of them."""
        return math.fsum(self.rates[name] * self.bits[name] for name in self.rates)

    @property
    def fact_bits_per_person(self) -> float:
        """The bits of all facts about a person."""
        return math.fsum(self.bits.values())


def fact_bits(grammar: WorldGrammar) -> dict[str, float]:
    """Return the bits of each fact about a person for a model that has not stored it."""
    return {name: math.log2(len(grammar.lexicons[name].words)) for name in grammar.facts}


def count_mentions(grammar: WorldGrammar, num_sections: float) -> Mentions:
    """Return the expected mentions of documents with `num_sections` sections on average.

    Each section has the genre with the probability of the first section, because an urn is exchangeable. No
    section states a fact about a mention twice.
    """
    counts = _expect_parts(grammar, PEOPLE)
    share = grammar.genres[PEOPLE] / sum(grammar.genres.values())
    facts = dict.fromkeys(grammar.facts, 0.0)
    per_section = 0.0
    for part, count in counts.items():
        match part:
            case Person("new" | "other"):
                per_section += count
            case Fact(number):
                facts[grammar.facts[number]] += count
    return Mentions(
        per_document=num_sections * share * per_section,
        rates={name: count / per_section for name, count in facts.items()},
        bits=fact_bits(grammar),
    )


def _expect_parts(grammar: WorldGrammar, rule: str) -> dict[Part, float]:
    """Return the expected number of each part in the text of a rule, which must not nest or contain turns."""
    counts: dict[Part, float] = {}
    alternatives = grammar.rules[rule].alternatives
    total = sum(alternative.weight for alternative in alternatives)
    for alternative in alternatives:
        for part in alternative.parts:
            if isinstance(part, Nest | Turn):
                shown = show_part(part, grammar.facts)
                message = (
                    f"people cannot be counted in the rule {owner_of(rule)}, because it contains {shown}"
                )
                raise UsageError(message, key="grammar", found=shown)
            inner = _expect_parts(grammar, part.rule) if isinstance(part, Call) else {part: 1.0}
            for each, count in inner.items():
                counts[each] = counts.get(each, 0.0) + alternative.weight / total * count
    return counts


def unknown_share(
    world: World, num_mentions: float, *, rate: float = 1.0, num_needed: int = 1, num_stored: float = math.inf
) -> float:
    """Return the share of mentions whose fact a learner cannot predict after n mentions.

    A mention states the fact with probability `rate`. The learner can predict it if the person is one of the
    `num_stored` most frequent ones, and at least `num_needed` of the n mentions have stated it.
    """
    sizes = np.array([bucket.size for bucket in world.buckets], dtype=np.float64)
    firsts = np.array([bucket.first for bucket in world.buckets], dtype=np.float64)
    shares = np.array([bucket.weight for bucket in world.buckets], dtype=np.float64) / world.cumulative[-1]
    stated = np.minimum(rate * shares / sizes, 1 - 1e-12)
    # the binomial probability of fewer than num_needed statements, in logarithms
    term = num_mentions * np.log1p(-stated)
    too_few = term.copy()
    for number in range(min(num_needed, math.floor(num_mentions) + 1) - 1):
        term = term + np.log((num_mentions - number) / (number + 1)) + np.log(stated) - np.log1p(-stated)
        too_few = np.logaddexp(too_few, term)
    is_stored = np.clip((num_stored - (firsts - 1)) / sizes, 0.0, 1.0)
    return math.fsum(shares * (is_stored * np.exp(np.minimum(too_few, 0.0)) + 1 - is_stored))


def predict_fact_excess(
    world: World,
    mentions: Mentions,
    num_mentions: float,
    *,
    num_needed: int = 1,
    num_stored: float = math.inf,
) -> float:
    """Return the bits per document that unknown facts cost after n mentions.

    With the default values it is a bound for every learner. A fact is a hash, so a learner that has not read
    it needs its full bits.
    """
    return mentions.per_document * math.fsum(
        rate
        * mentions.bits[name]
        * unknown_share(world, num_mentions, rate=rate, num_needed=num_needed, num_stored=num_stored)
        for name, rate in mentions.rates.items()
    )
