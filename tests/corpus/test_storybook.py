"""Properties of the storybook: exact probabilities, correct English, and enough different stories."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from itertools import islice

import pytest

from bytewright.corpus.storybook import Story, Storybook
from bytewright.corpus.storybook.check import split_sentences
from bytewright.corpus.storybook.grammar import article
from bytewright.errors import UsageError
from rejection import rejects

BOOK = Storybook.load()


def stories(num_stories: int, seed: int = 1) -> Iterator[Story]:
    return islice(BOOK.stories(seed), num_stories)


def assert_parses_back(num_stories: int) -> None:
    for story in stories(num_stories):
        parse = BOOK.parse(story.text)
        assert parse.num_derivations == 1, story.text
        assert parse.plot == story.plot
        assert parse.bits == pytest.approx(story.bits, abs=1e-6)


def assert_entropy_is_the_mean(num_stories: int) -> None:
    generated = list(stories(num_stories, seed=2))
    entropy = BOOK.entropy()
    for mean, samples in (
        (entropy.bits, [story.bits for story in generated]),
        (entropy.text_bytes, [float(len(story.text.encode())) for story in generated]),
    ):
        error = statistics.stdev(samples) / math.sqrt(num_stories)
        assert abs(statistics.fmean(samples) - mean) < 3 * error


def test_stories_parse_back_to_their_own_derivation_and_probability() -> None:
    assert_parses_back(400)


@pytest.mark.slow
def test_a_hundred_thousand_stories_parse_back_to_their_own_derivation_and_probability() -> None:
    assert_parses_back(100_000)


def test_the_entropy_from_the_probabilities_is_the_mean_over_stories() -> None:
    assert_entropy_is_the_mean(4_000)


@pytest.mark.slow
def test_the_entropy_from_the_probabilities_is_the_mean_over_a_hundred_thousand_stories() -> None:
    assert_entropy_is_the_mean(100_000)


def test_the_entropy_per_byte_is_in_the_range_of_real_stories() -> None:
    entropy = BOOK.entropy()
    assert 0.35 < entropy.bits / entropy.text_bytes < 0.6


def test_no_two_stories_are_equal() -> None:
    assert len({story.text for story in stories(5_000)}) == 5_000


@pytest.mark.slow
def test_no_two_of_a_million_stories_are_equal() -> None:
    assert len({hash(story.text) for story in stories(1_000_000)}) == 1_000_000


@pytest.mark.slow
def test_a_hundred_megabytes_have_six_thousand_different_words() -> None:
    words: set[str] = set()
    num_bytes = 0
    for story in BOOK.stories(1):
        num_bytes += len(story.text)
        words.update(re.findall(r"[a-z]+(?:[-'][a-z]+)*", story.text.lower()))
        if num_bytes > 100_000_000:
            break
    assert len(words) >= 6_000


def test_a_story_has_between_60_and_300_words() -> None:
    assert all(60 <= len(story.text.split()) <= 300 for story in stories(1_000))


def test_the_facts_of_the_plot_occur_in_the_text() -> None:
    for story in stories(200):
        for fact in ("name", "place", "thing", "helper", "dream", "chore", "season", "elder"):
            assert story.plot[fact] in story.text, fact


def test_a_promise_is_kept_and_a_wish_comes_true() -> None:
    for story in stories(100):
        assert len(re.findall(rf"\b{story.plot['chore']} the \w+", story.text)) >= 2
        assert len(re.findall(rf"\b{story.plot['dream']} (?:an?|the)\b", story.text)) >= 2


# English


def test_every_article_agrees_with_the_next_word() -> None:
    for story in stories(600):
        for found, word in re.findall(r"\b([Aa]n?) ([a-z][a-z-]*)", story.text):
            assert article(word) == found.lower(), f"{found} {word}"


def test_spaces_capitals_and_quotation_marks_are_correct() -> None:
    for story in stories(600):
        assert not re.search(r"  | \n|\n |\n\n|^\s|\s$| [.,!?]|\.\.|,,", story.text)
        assert story.text.isascii()
        for paragraph in story.text.split("\n"):
            assert paragraph.count('"') % 2 == 0
            assert re.search(r'[.!?]"?$', paragraph)
        for start, end in split_sentences(story.text):
            assert re.match(r'"?[A-Z]', story.text[start:end]), story.text[start:end]


def test_no_word_is_repeated() -> None:
    for story in stories(1_500):
        assert not re.search(r"\b(\w+) \1\b", story.text), story.text


def test_pronouns_agree_with_the_hero() -> None:
    strangers = {"she": r"\b[Hh](e|is|im)\b", "he": r"\b([Ss]he|[Hh]er)\b"}
    for story in stories(400):
        assert not re.search(strangers[story.plot["sex"]], story.text), story.text


# Splits and floors


def test_a_story_depends_only_on_seed_and_index() -> None:
    again = Storybook(BOOK.grammar)
    assert [again.story(5, index) for index in (7, 3)] == [BOOK.story(5, index) for index in (7, 3)]
    assert BOOK.story(5, 3) != BOOK.story(6, 3)
    assert BOOK.story(5, 3) != BOOK.story(5, 4)


def test_training_and_validation_stories_share_no_plot_for_any_seed() -> None:
    train = {tuple(story.plot.values()) for story in islice(BOOK.stories(1, "train"), 1_000)}
    validation = {tuple(story.plot.values()) for story in islice(BOOK.stories(1, "validation"), 200)}
    assert not train & validation
    splits = [BOOK.generator.split_of(seed, index) for seed in (1, 2) for index in range(1_000)]
    assert 0.07 < splits.count("validation") / len(splits) < 0.13
    # The split depends only on the plot, so the same plot under another seed has the same split.
    for index in range(300):
        story = BOOK.story(1, index)
        plot = [BOOK.grammar.variables[k].values.index(value) for k, value in enumerate(story.plot.values())]
        assert BOOK.generator.split_of_plot(plot) == BOOK.generator.split_of(1, index)


def test_the_floor_is_the_sum_over_the_given_stories() -> None:
    generated = list(stories(50))
    floor = BOOK.floor(story.text for story in generated)
    assert floor.num_stories == 50
    assert floor.bits == pytest.approx(sum(story.bits for story in generated), abs=1e-6)
    assert floor.text_bytes == sum(len(story.text) for story in generated)
    assert floor.file_bytes == floor.text_bytes + 50 * len("\n<|endoftext|>\n")
    assert floor.bits_per_byte == pytest.approx(floor.bits / (floor.text_bytes + 50 * len("\n\n")))
    with rejects(UsageError, key="story 2", found=" The end."):
        BOOK.floor([generated[0].text, generated[1].text + " The end."])
