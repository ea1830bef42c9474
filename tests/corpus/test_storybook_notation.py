"""The meaning of the grammar notation, and one sentence with the line for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_grammar import all_stories

from bytewright.corpus.storybook.notation import read_story_grammar
from bytewright.errors import FormatError


def texts(grammar: str) -> set[str]:
    return {text for _, text, _ in all_stories(read_story_grammar(grammar))}


def test_articles_and_capitals_reach_the_first_word_through_rules_and_variables() -> None:
    grammar = """
plot pet
    owl, fox
beat story
    {A creature} met {a pet} and {A pet}.
phrase creature
    {size} {pet}
words size
    old, wee
"""
    assert texts(grammar) == {
        "An old owl met an owl and An owl.",
        "A wee owl met an owl and An owl.",
        "An old fox met a fox and A fox.",
        "A wee fox met a fox and A fox.",
    }


def test_the_space_before_an_empty_beat_is_omitted_and_a_slash_begins_a_paragraph() -> None:
    grammar = (
        "beat story\n    One. {two} {two} / {three} End.\nbeat two\n    -\n    Two.\nbeat three\n    Three."
    )
    assert texts(grammar) == {
        "One.\nThree. End.",
        "One. Two.\nThree. End.",
        "One. Two. Two.\nThree. End.",
    }


def test_syllables_weights_guards_and_comments() -> None:
    grammar = """
syllables front
    Mi   # a remark
    Lo
plot name
    {front} + la na
    2 Tom
plot mood
    [name=Tom,Mila] glad
    [name!=Tom] sad
beat story
    {name} was
        {mood}.
"""
    assert texts(grammar) == {
        "Tom was glad.",
        "Mila was glad.",
        "Mila was sad.",
        "Mina was sad.",
        "Lola was sad.",
        "Lona was sad.",
    }
    weights = {text: probability for probability, text, _ in all_stories(read_story_grammar(grammar))}
    assert weights["Tom was glad."] == 2 * weights["Lona was sad."] == 4 * weights["Mila was sad."]


@pytest.mark.parametrize(
    ("grammar", "line", "problem"),
    [
        ("plot name\n    Tom\n", 3, "expected at least one beat"),
        ("    Tom", 1, "indented line before the first heading"),
        ("plott name\n    Tom", 1, "expected a heading such as 'phrase colour', found 'plott name'"),
        ("beat story\n    A.\nbeat story\n    B.", 3, "story is defined twice"),
        ("beat story\n    {end}\nphrase end", 3, "no items below phrase end"),
        ("beat story\n    0 A.", 2, "expected a weight of at least 1"),
        ("beat story\n    [mood=glad] A.", 2, "no plot variable mood is drawn above"),
        ("plot mood\n    glad\nbeat story\n    [mood=sad] A.", 4, "mood is never 'sad'"),
        ("plot mood\n    glad\nbeat story\n    [mood.x=sad] A.", 4, "mood has no form x"),
        ("plot mood\n    glad\nbeat story\n    [mood] A.", 4, "expected a condition such as season=winter"),
        ("plot mood\n    glad, glad\nbeat story\n    A.", 1, "mood has the value 'glad' twice"),
        ("plot mood\n    glad,\nbeat story\n    A.", 2, "empty entry between commas"),
        ("plot sex: he, his\n    he\nbeat story\n    A.", 2, "sex needs 2 forms, found 1"),
        ("plot name\n    {front} + la\nbeat story\n    A.", 2, "no syllables named front are defined above"),
        ("beat story\n    {end}", 2, "{end} is not defined"),
        ("plot x: end\n    a\nbeat story\n    {end}\nphrase end\n    b", 4, "{end} is ambiguous"),
        ("beat story\n    {a b c}", 2, "expected a name in braces"),
        ("beat story\n    {end", 2, "unmatched brace"),
        ("beat story\n    (a|b", 2, "unmatched parenthesis or bar"),
        ("beat story\n    a|b", 2, "'a|b'"),
        ("beat story\n    (a)", 2, "parentheses need at least two texts"),
        (
            "beat story\n    {a end}.\nphrase end\n    (x|)",
            4,
            "can be empty, so it cannot get an article",
        ),
        ("beat story\n    {end}\nphrase end\n    {story}", 4, "calls itself: story -> end -> story"),
        ("beat story\n    A.\nphrase end\n    b", 4, "unused: end"),
    ],
)
def test_an_error_names_the_line(grammar: str, line: int, problem: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_story_grammar(grammar, "tale.grammar")
    assert str(caught.value).startswith(f"tale.grammar, line {line}: ")
    assert problem in str(caught.value)
    assert caught.value.path == Path("tale.grammar")
    assert "\n" not in str(caught.value)
