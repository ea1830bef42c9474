"""The predicted curves agree with simulation, and with the power laws that they become in the limit."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from small_world import SMALL, TEXT

from bytewright.corpus.worldbook import Worldbook
from bytewright.corpus.worldbook.choices import Someone
from bytewright.corpus.worldbook.curves import (
    capacity_exponent,
    count_mentions,
    data_exponent,
    local_exponent,
    people_that_fit,
    predict_fact_excess,
    share_beyond,
    unknown_share,
    unseen_share,
    unstored_share,
)
from bytewright.corpus.worldbook.notation import read_world_grammar
from bytewright.corpus.worldbook.world import (
    FIRST,
    LAST,
    MAX_PEOPLE,
    Stream,
    World,
    is_woman,
    read_name,
    spell_name,
)
from bytewright.errors import UsageError
from rejection import rejects


def test_the_unseen_share_is_the_probability_of_a_new_person_after_n_draws() -> None:
    world = World(num_people=2_000, exponent=Decimal("1.2"))
    chance = Someone(world)
    probabilities = np.array([weight / total for weight, total in map(world.ratio, range(1, 2_001))])
    for num_mentions in (1, 30, 300):
        unseen = []
        for trial in range(150):
            stream = Stream((trial, num_mentions))
            seen = {chance.draw(stream.below) for _ in range(num_mentions)}
            unseen.append(1 - probabilities[[rank - 1 for rank in seen]].sum())
        error = np.std(unseen) / np.sqrt(len(unseen))
        assert abs(np.mean(unseen) - unseen_share(world, num_mentions)) < 4 * error + 1e-12
    assert unseen_share(world, 0) == pytest.approx(1)


def test_the_share_beyond_the_most_frequent_people_is_the_sum_of_the_others() -> None:
    world = World(num_people=5_000, exponent=Decimal("1.1"))
    probabilities = np.array([weight / total for weight, total in map(world.ratio, range(1, 5_001))])
    for num_stored in (0, 1, 77, 1_000, 4_999, 5_000, 9_999):
        assert share_beyond(world, num_stored) == pytest.approx(probabilities[num_stored:].sum(), abs=1e-12)
    assert people_that_fit(1_000, 2, 32) == 62.5
    assert unstored_share(world, 1_000, fact_bits_per_person=20) == pytest.approx(share_beyond(world, 100))


@pytest.mark.parametrize("exponent", ["1.25", "1.5", "2"])
def test_the_curves_have_the_stated_exponents(exponent: str) -> None:
    """The number of people is finite, and the curves bend down before it is reached: 5 % are allowed."""
    world = World(exponent=Decimal(exponent))
    mentions = [10**3, 10**4, 10**5]
    found = local_exponent(mentions, [unseen_share(world, n) for n in mentions])
    assert found == pytest.approx(data_exponent(world), rel=0.05)
    stored = [10**2, 10**3, 10**4]
    found = local_exponent(stored, [share_beyond(world, n) for n in stored])
    assert found == pytest.approx(capacity_exponent(world), rel=0.05)


def test_the_unknown_share_contains_both_curves_as_its_limits() -> None:
    world = World(num_people=5_000, exponent=Decimal("1.1"))
    for num_mentions in (0, 7, 1_000):
        expected = pytest.approx(unseen_share(world, num_mentions), rel=1e-12)
        assert unknown_share(world, num_mentions) == expected
    assert unknown_share(world, 1e12, num_stored=77) == pytest.approx(share_beyond(world, 77))
    assert unknown_share(world, 10, num_needed=11) == pytest.approx(1)  # more than there are


def test_the_unknown_share_is_the_probability_of_too_few_statements() -> None:
    world = World(num_people=300, exponent=Decimal("1.2"))
    probabilities = np.array([weight / total for weight, total in map(world.ratio, range(1, 301))])
    random = np.random.default_rng(0)
    stated = random.binomial(500, 0.4 * probabilities, size=(4_000, 300))
    is_unknown = (stated < 3) | (np.arange(300) >= 100)
    drawn = is_unknown @ probabilities
    error = drawn.std() / np.sqrt(len(drawn))
    expected = unknown_share(world, 500, rate=0.4, num_needed=3, num_stored=100)
    assert abs(drawn.mean() - expected) < 4 * error


def test_mentions_and_facts_are_counted_from_the_grammar() -> None:
    book = Worldbook()
    mentions = count_mentions(book.grammar, book.entropy().num_sections)
    kinds = [c.kind for n in range(150) for c in book.document("test", 1, n).derivation.choices]
    facts, people = kinds.count("fact"), kinds.count("person")
    assert facts / people == pytest.approx(sum(mentions.rates.values()), rel=0.05)
    assert mentions.rates["trade"] == mentions.rates["town"] == pytest.approx(1)
    assert mentions.fact_bits_per_person == 32
    nothing_known = predict_fact_excess(book.world, mentions, 0)
    assert nothing_known == pytest.approx(mentions.per_document * mentions.bits_per_mention)
    assert predict_fact_excess(book.world, mentions, 10**5, num_stored=0) == pytest.approx(nothing_known)
    small = count_mentions(SMALL.grammar, 1.5)  # the genre has weight 2 of 7; 2 of 5 sections have two people
    assert small.per_document == pytest.approx(1.5 * 2 / 7 * 7 / 5)
    assert small.rates == {"trade": pytest.approx(4 / 7)}


@pytest.mark.parametrize("slot", ["{nest people}", "{turn}"])
def test_mentions_in_nested_texts_and_turns_are_rejected(slot: str) -> None:
    grammar = read_world_grammar(
        TEXT.replace("    3 Look at {person}.", f"    3 Look at {{person}}. {slot} Yes.")
    )
    with rejects(UsageError, key="grammar", found=slot):
        count_mentions(grammar, 1.5)


def test_names_determine_people() -> None:
    world = World(seed=3)
    for rank in (1, 2, 127, 128, 129, 255, 256, 4_321, 2**29 + 7, MAX_PEOPLE):
        number = world.number_of(rank)
        name = spell_name(number)
        assert world.rank_of(number) == rank
        assert read_name(name + ",", 0) == (number, len(name))
        bucket = world.bucket_of(rank)
        assert bucket.first <= rank < bucket.first + bucket.size
    assert read_name("Albabeth", 0) is None
    assert read_name("Albabeth Ashberbanks", 0) is None
    assert is_woman(0)


def test_no_syllable_begins_with_another_one_of_its_place() -> None:
    for syllables in (*FIRST, *LAST):
        assert len(set(syllables)) == 32
        assert not any(a != b and b.startswith(a) for a in syllables for b in syllables)


def test_facts_are_spread_evenly() -> None:
    world = World()
    counts = np.bincount([world.fact(number, 1, 16) for number in range(16_000)], minlength=16)
    assert abs(counts - 1_000).max() < 150
    assert world.fact(5, 1, 2**30) != world.fact(5, 2, 2**30) != world.fact(6, 2, 2**30)
