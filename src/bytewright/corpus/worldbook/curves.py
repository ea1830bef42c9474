"""Two scaling curves that follow from the world alone, before any model is trained.

The *data curve*: after n mentions of people, some people have not occurred yet. A model cannot have learned
their facts, however large it is. The *capacity curve*: a model of N parameters that stores c bits in each
parameter can hold the facts of a limited number of people. At best these are the most frequent ones.

Both curves are exact sums over the buckets of `World`. For s > 1 and an unlimited number of people they are
power laws: the unseen share falls as n^-(1 - 1/s), and the share that does not fit falls as N^-(s - 1). The
product of a share and the bits that the facts of a mention cost without knowledge is the excess loss in bits
per mention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bytewright.corpus.worldbook.world import World


def unseen_share(world: World, num_mentions: int) -> float:
    """Return the data curve: the probability that the next mention is of a person not mentioned so far.

    The sum over all people of p (1 - p)^n, for n independent mentions.
    """
    total = world.cumulative[-1]
    return math.fsum(
        bucket.weight / total * math.exp(num_mentions * math.log1p(-bucket.weight / (total * bucket.size)))
        if bucket.weight < total * bucket.size
        else float(num_mentions == 0)
        for bucket in world.buckets
    )


def people_that_fit(num_parameters: float, bits_per_parameter: float, bits_per_person: float) -> float:
    """Return the number of people whose facts fit into a model."""
    return num_parameters * bits_per_parameter / bits_per_person


def share_beyond(world: World, num_people: float) -> float:
    """Return the probability of a mention of a person outside the `num_people` most frequent ones."""
    total = world.cumulative[-1]
    return math.fsum(
        bucket.weight
        / total
        * min(1.0, max(0.0, (bucket.first - 1 + bucket.size - num_people) / bucket.size))
        for bucket in world.buckets
    )


def unstored_share(
    world: World, num_parameters: float, *, bits_per_parameter: float = 2.0, bits_per_person: float
) -> float:
    """Return the capacity curve: the share of mentions whose person does not fit into the model.

    Two bits per parameter is what published experiments with synthetic facts reached; it is an assumption.
    """
    return share_beyond(world, people_that_fit(num_parameters, bits_per_parameter, bits_per_person))


def data_exponent(world: World) -> float:
    """Return a in unseen_share ~ n^-a, for s > 1 and mentions far fewer than people."""
    return 1 - 1 / float(world.exponent)


def capacity_exponent(world: World) -> float:
    """Return a in unstored_share ~ N^-a, for s > 1 and stored people far fewer than people."""
    return float(world.exponent) - 1


def local_exponent(sizes: Sequence[float], shares: Sequence[float]) -> float:
    """Return a of the power law size^-a through the first and the last point of a curve."""
    return math.log(shares[0] / shares[-1]) / math.log(sizes[-1] / sizes[0])
