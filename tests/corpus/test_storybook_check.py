"""The checker finds mistakes in a text with their positions, and accepts correct stories."""

from __future__ import annotations

import math
import re
from itertools import islice

import pytest

from bytewright.corpus.storybook import Story, Storybook
from bytewright.corpus.storybook.check import StoryCheck, split_sentences
from bytewright.corpus.storybook.grammar import article

BOOK = Storybook.load()
STORIES = list(islice(BOOK.stories(3), 60))


def check(text: str) -> StoryCheck:
    (checked,) = BOOK.check_stories([text]).stories
    return checked


def replace_last(text: str, old: str, new: str) -> str:
    """Replace the last mention only, so that the first one contradicts it."""
    *_, last = re.finditer(rf"\b{old}\b", text)
    return text[: last.start()] + new + text[last.end() :]


def other_value(story: Story, name: str) -> str:
    """Return another value of a variable that can be drawn in the same plots and has the same article."""
    variable = next(each for each in BOOK.grammar.variables if each.name == name)
    value = story.plot[name]
    guard = variable.alternatives[variable.values.index(value)].guard
    return next(
        each
        for each, option in zip(variable.values, variable.alternatives, strict=True)
        if each != value and option.guard == guard and article(each) == article(value)
    )


def test_generated_stories_pass_all_checks() -> None:
    report = BOOK.check_stories([story.text for story in STORIES])
    assert (report.sound_sentences, report.well_formed, report.consistent, report.copies) == (1, 1, 1, 0)
    assert report.num_sentences == sum(len(split_sentences(story.text)) for story in STORIES)
    assert report.bits_per_story == pytest.approx(sum(story.bits for story in STORIES) / len(STORIES))
    assert all(story.leaves_at_character is None and not story.contradictions for story in report.stories)


def test_a_wrong_name_is_a_contradiction_in_a_well_formed_story() -> None:
    for story in STORIES[:20]:
        wrong = replace_last(story.text, story.plot["name"], other_value(story, "name"))
        checked = check(wrong)
        assert checked.has_shape
        assert not checked.is_consistent
        assert checked.contradictions == ("name",)
        assert checked.bits == math.inf
        assert checked.num_sound_sentences == checked.num_sentences


def test_the_position_where_a_story_leaves_the_language_is_reported() -> None:
    for story in STORIES[:20]:
        name = story.plot["name"]
        place = story.text.rindex(name)
        other = "Zzz"
        checked = check(story.text[:place] + other + story.text[place + len(name) :])
        assert checked.leaves_at_character in (place + 1, place + 2)  # some name begins with Z
        (sentence,) = [
            number
            for number, (start, end) in enumerate(split_sentences(story.text), 1)
            if start <= place < end
        ]
        assert checked.leaves_at_sentence == sentence
        assert checked.found.startswith("Zzz"[checked.leaves_at_character - place - 1 :])
        assert checked.num_sound_sentences == checked.num_sentences - 1
        assert not checked.has_shape


@pytest.mark.parametrize("variable", ["thing", "helper"])
def test_an_object_that_changes_is_a_contradiction(variable: str) -> None:
    for story in STORIES[:20]:
        if story.plot[variable] == "ant":  # no other value has the same guard and article
            continue
        checked = check(replace_last(story.text, story.plot[variable], other_value(story, variable)))
        assert checked.has_shape
        assert not checked.is_consistent
        assert variable in checked.contradictions, (variable, checked)


def test_a_pronoun_that_changes_is_a_contradiction() -> None:
    for story in STORIES[:20]:
        he, she = ("he", "she") if story.plot["sex"] == "he" else ("she", "he")
        wrong = re.sub(rf"\b{he}\b", she, story.text, count=1, flags=0)
        if wrong != story.text:
            checked = check(wrong)
            assert not checked.is_consistent
            assert "sex" in checked.contradictions


def test_a_place_that_changes_is_a_contradiction() -> None:
    mentioning = [story for story in STORIES if story.text.count(story.plot["place"]) == 2]
    assert mentioning
    for story in mentioning:
        checked = check(replace_last(story.text, story.plot["place"], other_value(story, "place")))
        assert checked.has_shape
        assert checked.contradictions == ("place",)


def test_sentences_in_the_wrong_order_are_sound_but_the_story_is_not_well_formed() -> None:
    first, *rest = STORIES[0].text.split("\n")
    checked = check("\n".join([*rest, first]))
    assert checked.num_sound_sentences == checked.num_sentences
    assert not checked.has_shape
    assert checked.leaves_at_sentence == 1


def test_copies_of_training_stories_are_counted() -> None:
    texts = [story.text for story in STORIES[:10]]
    assert BOOK.check_stories(texts, training_stories=set(texts[:3])).copies == pytest.approx(0.3)


@pytest.mark.parametrize(
    "text", ["", "Once", "\x00\x01", "é" * 1000, "a " * 5000, '"' * 999, STORIES[0].text * 3]
)
def test_any_text_can_be_checked(text: str) -> None:
    checked = check(text)
    assert not checked.is_consistent
    assert checked.leaves_at_character is not None
    assert BOOK.check_stories([]).consistent == 0
