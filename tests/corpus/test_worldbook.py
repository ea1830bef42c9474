"""Properties of the world book: exact probabilities, one derivation per text, and correct English."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import islice

import pytest
from small_world import SMALL, enumerate_documents

from bytewright.corpus.storybook.grammar import article
from bytewright.corpus.worldbook import Document, LanguageError, World, Worldbook
from bytewright.corpus.worldbook.book import SPLITS
from bytewright.errors import FormatError
from rejection import rejects

BOOK = Worldbook()


def documents(num_documents: int, seed: int = 1) -> Iterator[Document]:
    return islice(BOOK.documents("train", seed), num_documents)


# Exactness


def test_enumeration_of_a_small_world_yields_its_entropy_to_twelve_digits() -> None:
    found = list(enumerate_documents(SMALL))
    probabilities = [derivation.probability for _, derivation in found]
    assert len(found) > 5_000
    assert sum(probabilities) == 1, "as fractions, without rounding"
    bits = math.fsum(float(p) * -math.log2(p) for p in probabilities)
    assert SMALL.entropy().bits == pytest.approx(bits, rel=1e-12, abs=0)


def test_no_two_derivations_of_a_small_world_yield_the_same_text() -> None:
    found = list(enumerate_documents(SMALL))
    assert len({text for text, _ in found}) == len(found)
    for text, derivation in found[::7]:
        assert SMALL.parse(text) == derivation


def assert_parses_back(num_documents: int) -> None:
    for document in documents(num_documents):
        parsed = BOOK.parse(document.text)
        assert parsed == document.derivation, document.text
        assert parsed.probability == document.derivation.probability, "as fractions, without rounding"


def test_documents_parse_back_to_their_own_derivation_and_probability() -> None:
    assert_parses_back(300)


@pytest.mark.slow
def test_ten_thousand_documents_parse_back_to_their_own_derivation_and_probability() -> None:
    assert_parses_back(10_000)


def assert_entropy_is_the_mean(num_documents: int) -> None:
    bits = [document.bits for document in documents(num_documents, seed=2)]
    error = statistics.stdev(bits) / math.sqrt(num_documents)
    assert abs(statistics.fmean(bits) - BOOK.entropy().bits) < 3 * error


def test_the_entropy_from_the_probabilities_is_the_mean_over_documents() -> None:
    assert_entropy_is_the_mean(1_000)


@pytest.mark.slow
def test_the_entropy_from_the_probabilities_is_the_mean_over_thirty_thousand_documents() -> None:
    assert_entropy_is_the_mean(30_000)


def test_the_choices_of_a_kind_occur_as_often_as_the_entropy_states() -> None:
    """The means of the genres agree separately, so that errors cannot cancel."""
    generated = list(documents(600, seed=3))
    entropy = BOOK.entropy()
    for kind, expected in (("genre", entropy.genre_bits), ("length", entropy.length_bits)):
        bits = [sum(c.bits for c in each.derivation.choices if c.kind == kind) for each in generated]
        error = statistics.stdev(bits) / math.sqrt(len(bits))
        assert abs(statistics.fmean(bits) - expected) < 3.5 * error


# Derivations


def test_spans_show_their_choices_in_the_order_of_the_text() -> None:
    for document in documents(40):
        choices = document.derivation.choices
        assert all(0 <= choice.start <= choice.end <= len(document.text) for choice in choices)
        assert [choice.start for choice in choices] == sorted(choice.start for choice in choices)
        assert choices[-1].kind == "length"
        assert choices[-1].start == len(document.text)
        for choice in choices:
            shown = document.text[choice.start : choice.end]
            if choice.kind == "person":
                assert re.fullmatch(r"[A-Z][a-z]+ [A-Z][a-z]+", shown)
            if choice.kind in ("number", "result"):
                assert shown.isdigit()


def test_a_recalled_holder_is_the_last_one_that_the_text_stated() -> None:
    """An independent reader with regular expressions follows the things and finds the same holders."""
    sentence = re.compile(
        r"(?:In the \w+|From the city|After the flood|By pure luck) (?P<first>\w+)"
        r" (?:found|brought|was left with|won)"
        r" an? (?P<new>[\w ]+)\."
        r"|rent had been paid to (?P<paid>\w+) with an? (?P<with>[\w ]+)\."
        r"|(?:The|That night the) (?P<moved>[\w ]+?) (?:went|passed|was stolen) from (?P<a>\w+)"
        r" (?:to|by) (?P<b>\w+)\."
        r"|For the (?P<priced>[\w ]+), (?P<c>\w+) got a fair price from (?P<d>\w+)\."
        r"|As for the (?P<lent>[\w ]+), (?P<e>\w+) (?:gave|lent|lost|sold) it to (?P<f>\w+)\."
        r"|Who had the (?P<asked>[\w ]+) now\? (?P<g>\w+) did\."
    )
    num_moves = 0
    for document in documents(150, seed=5):
        holders: dict[str, str] = {}
        for match in sentence.finditer(document.text):
            found = match.groupdict()
            for thing, holder in (("new", "first"), ("with", "paid")):
                if found[thing]:
                    assert found[thing] not in holders
                    holders[found[thing]] = found[holder]
            for thing, before, after in (("moved", "a", "b"), ("priced", "c", "d"), ("lent", "e", "f")):
                if found[thing]:
                    assert holders[found[thing]] == found[before] != found[after]
                    holders[found[thing]] = found[after]
                    num_moves += 1
            if found["asked"]:
                assert holders[found["asked"]] == found["g"]
    assert num_moves > 100


def test_recalls_state_their_distance_and_their_moves() -> None:
    recalls = [
        choice for each in documents(300) for choice in each.derivation.choices if choice.kind == "recall"
    ]
    assert all(choice.bits == 0 for choice in recalls)
    assert max(choice.moves or 0 for choice in recalls) >= 4
    distances = [choice.distance or 0 for choice in recalls]
    assert min(distances) < 40
    assert max(distances) > 4_000


def test_sums_are_correct() -> None:
    num_sums = 0
    for document in documents(200):
        for a, b, c in re.findall(
            r"in (\d+) crates with (\d+) in each\? The answer is (\d+)\.", document.text
        ):
            assert int(a) * int(b) == int(c)
            num_sums += 1
        pattern = r"(\d+) \w+\. Then (\d+) more [^.]*\. In all there were (\d+)"
        for a, b, c in re.findall(pattern, document.text):
            assert int(a) + int(b) == int(c)
            num_sums += 1
    assert num_sums > 10


def test_a_person_has_the_same_facts_in_all_documents() -> None:
    facts: dict[str, set[tuple[str, str]]] = {}
    for document in documents(300):
        for name, trade, town in re.findall(
            r"page on (\w+ \w+), an? (\w+) in (\w+)\.", document.text
        ) + re.findall(r" (\w+ \w+), an? (\w+) from (\w+) w", document.text):
            facts.setdefault(name, set()).add((trade, town))
    assert len(facts) > 50
    assert all(len(each) == 1 for each in facts.values())


# The language


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (r"page on (\w+ \w+), an? (\w+) in", "an ogre", "fact"),
        (r"Who had the [\w ]+ now\? (\w+) did", "Nobody", "recall"),
        (r"The answer is (\d+)\.", "1000", "result"),
    ],
)
def test_a_wrong_fact_leaves_the_language_at_its_place(before: str, after: str, kind: str) -> None:
    document = next(each for each in documents(500) if re.search(before, each.text))
    match = re.search(before, document.text)
    assert match is not None
    start, end = match.span(match.lastindex or 0)
    with pytest.raises(LanguageError) as caught:
        BOOK.parse(document.text[:start] + after + document.text[end:])
    assert start - 3 <= caught.value.position <= start + 1
    assert caught.value.kind == kind


def test_incomplete_and_longer_texts_are_not_in_the_language() -> None:
    text = next(documents(1)).text
    for other in (text[:-1], text + " ", text + "\n\n", "", "Once.", text.replace("a", "e", 1)):
        with rejects(LanguageError) as caught:
            BOOK.parse(other)
        assert isinstance(caught.value, FormatError)


@pytest.mark.parametrize(
    ("text", "position", "kind", "found"),
    [
        ("It was", 6, "genre", ""),
        ("There was once a dog slept", 15, "word", "a dog slept"),
        ("There was once a wise fox beside the kiln", 41, "text", ""),
    ],
)
def test_the_error_about_a_text_has_the_place_and_what_is_found_there(
    text: str, position: int, kind: str, found: str
) -> None:
    with rejects(LanguageError, position=position, found=found) as caught:
        BOOK.parse(text)
    assert getattr(caught.value, "kind", "") == kind


def test_another_world_has_other_facts() -> None:
    document = next(each for each in documents(100) if "parish book" in each.text)
    with pytest.raises(LanguageError):
        Worldbook(World(seed=2)).parse(document.text)


def test_a_document_depends_only_on_world_split_seed_and_index() -> None:
    again = Worldbook(World(seed=1))
    assert [again.document("test", 5, index) for index in (7, 3)] == [
        BOOK.document("test", 5, index) for index in (7, 3)
    ]
    texts = {
        BOOK.document(split, seed, index).text for split in SPLITS for seed in (1, 2) for index in (3, 4)
    }
    assert len(texts) == 12
    flatter = Worldbook(World(exponent=Decimal("1.1")))
    assert [flatter.document("test", 5, index) for index in range(9)] != [
        BOOK.document("test", 5, index) for index in range(9)
    ]


# English


def test_every_article_agrees_with_the_next_word() -> None:
    for document in documents(200):
        for found, word in re.findall(r"\b([Aa]n?) ([a-z][a-z-]*)", document.text):
            assert article(word) == found.lower(), f"{found} {word}"


def test_spaces_and_capitals_are_correct() -> None:
    for document in documents(200):
        assert document.text.isascii()
        assert not re.search(r"  | \n|\n |\n\n\n|^\s|\s$| [.,!?]|\.\.|,,", document.text)
        for section in document.text.split("\n\n"):
            assert re.match(r'"?[A-Z]', section)
            assert section.endswith(".")
            assert not re.search(r"[.?] [a-z]", section), section
            assert section.count('"') % 2 == 0


def test_no_word_is_repeated() -> None:
    for document in documents(300):
        assert not re.search(r"\b(\w+) \1\b", document.text), document.text


def test_probabilities_of_persons_sum_to_one() -> None:
    world = World(num_people=1_000)
    assert sum(Fraction(*world.ratio(rank)) for rank in range(1, 1_001)) == 1
