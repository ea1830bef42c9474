"""The world behind a world book: people drawn by a power law, with names and facts computed from hashes.

Nothing about a person is stored. The *rank* of a person is the position by frequency, from 1. A keyed
bijection maps the rank to a 30-bit number, which the name spells, and a hash of (world seed, number) yields
the facts. So a name determines the person, its probability and its facts, and each is computed in constant
time.

Ranks follow p_i ∝ i^-s in steps. Up to rank 127 each rank has its own probability. Above, each octave has 64
buckets of equal size, and all ranks of a bucket have the same probability. A bucket has an integer weight:
its number of ranks times (its middle rank)^-s, scaled and rounded. So each probability is a ratio of
integers, and sums over 2^30 people are sums over 1,600 buckets.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from itertools import accumulate

from bytewright.errors import wrong_value

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: the increment of splitmix64."""
NAME_BITS = 30
MAX_PEOPLE = 2**NAME_BITS - 1
BUCKET_BITS = 6
"""Each octave of ranks has 2^6 buckets."""
WEIGHT_SCALE = 2**44
"""The sum of the weights of the buckets, up to rounding."""


def _syllables(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST = (
    _syllables(
        "Al An Bra Cal Da Del Ed El Fa Fen Ga Gri Hal Ho Is Jo Ka Ker Li Lo Mar Mi Na Ol "
        "Per Ro Sa Sel Ta Tor Va Wil"
    ),
    _syllables(
        "ba be bi bo da de di do fa fe ga ge la le li lo ma me mi mo na ne ni no ra re ri ro sa se ta te"
    ),
    _syllables(
        "beth dra la lind lis na nelle nia ra rie sa sy tha tta va wen "  # the names of women
        "bert dan don fred gar kin lf mund ger rek ric ron ster ton vin win"  # and of men
    ),
)
LAST = (
    _syllables(
        "Ash Bell Birch Black Bram Brook Clay Cran Dun Elder Fair Fern Gold Green Hart Hazel Hol Kirk Lang "
        "Linden March Nor Oak Pen Red Rush Stan Thorn Under Wake West Wood"
    ),
    _syllables(
        "ber den der ding fer gen ger ham hen ker king lan lar len ler ling man mer ming nel ner ning "
        "pen per ring ros sel ser ten ter ton ver"
    ),
    _syllables(
        "bank beck borne brook bury by church cliff combe cote croft dale down fall field ford gate "
        "grove ham hill holt house land ley more mouth ridge shaw stead thorpe wick worth"
    ),
)
"""The syllables of first and last names; in no place does one begin with another one."""
SYLLABLE_BITS = 5

Below = Callable[[int], int]
"""Returns a random integer in 0 … n-1."""


def mix(value: int) -> int:
    """Return a hash of a 64-bit number: the finaliser of splitmix64, which is a bijection.

    >>> hex(mix(1))
    '0x5692161d100b05e5'
    """
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def mix_all(*parts: int) -> int:
    """Return a hash of several numbers; their order matters."""
    state = 0
    for part in parts:
        state = mix((state + GOLDEN & MASK) ^ (part & MASK))
    return state


@dataclass(frozen=True, slots=True)
class Bucket:
    """Neighbouring ranks of equal probability."""

    first: int
    """The lowest rank of the bucket."""
    size: int
    weight: int
    """The weight of the whole bucket."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A world: its seed, the exponent of its frequencies, and its number of people."""

    seed: int = 1
    exponent: Decimal = Decimal("1.25")
    num_people: int = MAX_PEOPLE

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise wrong_value("seed", "from 0 to 2^64 - 1", self.seed)
        if not (self.exponent.is_finite() and 0 <= self.exponent <= 4):
            raise wrong_value("exponent", "from 0 to 4", str(self.exponent))
        if not 2 <= self.num_people <= MAX_PEOPLE:
            raise wrong_value("num_people", f"from 2 to {MAX_PEOPLE}", self.num_people)

    # Frequencies

    @functools.cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets in the order of their ranks."""
        spans: list[tuple[int, int]] = []
        rank = 1
        while rank <= self.num_people:
            size = 1 << max(0, rank.bit_length() - 1 - BUCKET_BITS)
            size = min(size, self.num_people + 1 - rank)
            spans.append((rank, size))
            rank += size
        with localcontext(prec=30):  # decimal arithmetic rounds in the same way on every machine
            masses = [size * (Decimal(2 * first + size - 1) / 2) ** -self.exponent for first, size in spans]
            scale = WEIGHT_SCALE / sum(masses, start=Decimal(0))
            weights = [max(1, round(mass * scale)) for mass in masses]
        return tuple(
            Bucket(first, size, weight) for (first, size), weight in zip(spans, weights, strict=True)
        )

    @functools.cached_property
    def cumulative(self) -> tuple[int, ...]:
        """The sum of the weights of all buckets up to each bucket, inclusive."""
        return tuple(accumulate(bucket.weight for bucket in self.buckets))

    def bucket_of(self, rank: int) -> Bucket:
        """Return the bucket that contains a rank."""
        shift = max(0, rank.bit_length() - 1 - BUCKET_BITS)
        return self.buckets[(rank >> shift) - 1 + (shift << BUCKET_BITS)]

    def ratio(self, rank: int) -> tuple[int, int]:
        """Return the probability of a rank as numerator and denominator."""
        bucket = self.bucket_of(rank)
        return bucket.weight, self.cumulative[-1] * bucket.size

    @functools.cached_property
    def person_entropy(self) -> float:
        """The entropy of one draw of a person, in bits."""
        total = self.cumulative[-1]
        return math.fsum(
            bucket.weight / total * math.log2(total * bucket.size / bucket.weight) for bucket in self.buckets
        )

    @functools.cached_property
    def other_person_entropy(self) -> float:
        """The entropy of a draw of a person other than a person drawn before: a mean over the latter.

        Without rank i, the entropy is (H + p_i log2 p_i) / (1 - p_i) + log2(1 - p_i).
        """
        total = self.cumulative[-1]
        means = []
        for bucket in self.buckets:
            share = bucket.weight / (total * bucket.size)
            rest = 1 - share
            without = (self.person_entropy + share * math.log2(share)) / rest + math.log2(rest)
            means.append(bucket.weight / total * without)
        return math.fsum(means)

    # Names

    def number_of(self, rank: int) -> int:
        """Return the 30-bit number of a rank: a Feistel network with four rounds on two halves of 15 bits."""
        left, right = rank >> 15, rank & 0x7FFF
        for key in self.round_keys:
            left, right = right, left ^ (mix(right ^ key) & 0x7FFF)
        return left << 15 | right

    def rank_of(self, number: int) -> int:
        """Return the rank of a number; it is 0 or above `num_people` if nobody has this number."""
        left, right = number >> 15, number & 0x7FFF
        for key in reversed(self.round_keys):
            left, right = right ^ (mix(left ^ key) & 0x7FFF), left
        return left << 15 | right

    @functools.cached_property
    def round_keys(self) -> tuple[int, ...]:
        """The keys of the Feistel network."""
        return tuple(mix_all(self.seed, 1, number) for number in range(4))

    def fact(self, number: int, kind: int, num_values: int) -> int:
        """Return the value of a fact about a person: an index below `num_values`."""
        return mix(mix(self.fact_key ^ number) + kind * GOLDEN & MASK) * num_values >> 64

    @functools.cached_property
    def fact_key(self) -> int:
        """The key of all facts."""
        return mix_all(self.seed, 2)


def spell_name(number: int) -> str:
    """Return the name of a person: 15 bits of the number spell the first name, 15 bits the last name.

    >>> spell_name(0), read_name("Albabeth Ashberbank, a cooper", 0)
    ('Albabeth Ashberbank', (0, 19))
    """
    digits = [number >> shift & 31 for shift in range(NAME_BITS - SYLLABLE_BITS, -1, -SYLLABLE_BITS)]
    parts = [syllables[digit] for syllables, digit in zip((*FIRST, *LAST), digits, strict=True)]
    return f"{''.join(parts[:3])} {''.join(parts[3:])}"


def read_name(text: str, at: int) -> tuple[int, int] | None:
    """Return the number that the name at a position spells, and the end of the name; None without a name.

    No syllable of a place begins with another one of this place, so there is one reading at most.
    """
    number = 0
    for place, syllables in enumerate((*FIRST, *LAST)):
        if place == len(FIRST):
            if not text.startswith(" ", at):
                return None
            at += 1
        digit = next((digit for digit, each in enumerate(syllables) if text.startswith(each, at)), None)
        if digit is None:
            return None
        number = number << SYLLABLE_BITS | digit
        at += len(syllables[digit])
    return None if text[at : at + 1].isalpha() else (number, at)


def is_woman(number: int) -> bool:
    """Return whether a person has the name of a woman: the last syllable of the first name decides."""
    return number >> 3 * SYLLABLE_BITS & 31 < 16


class Stream:
    """The random numbers of one document: splitmix64, started at a hash of the key."""

    def __init__(self, key: Sequence[int]) -> None:
        self.state = mix_all(*key)

    def below(self, total: int) -> int:
        """Return an integer below `total`, which is at most 2^64; its probabilities are exact to 2^-64."""
        self.state = self.state + GOLDEN & MASK
        return mix(self.state) * total >> 64
