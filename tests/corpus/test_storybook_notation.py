"""The notation of grammars: what it means, and one sentence with the line for every mistake in it."""

from __future__ import annotations

import pytest
from small_grammar import all_stories

from bytewright.corpus.storybook.notation import read_grammar
from bytewright.errors import FormatError


def texts(grammar: str) -> set[str]:
    return {text for _, text, _ in all_stories(read_grammar(grammar))}


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


def test_an_empty_beat_takes_its_space_along_and_a_slash_begins_a_paragraph() -> None:
    grammar = (
        "beat story\n    One. {two} {two} / {three} End.\nbeat two\n    -\n    Two.\nbeat three\n    Three."
    )
    assert texts(grammar) == {
        "One.\nThree. End.",
        "One. Two.\nThree. End.",
        "One. Two. Two.\nThree. End.",
    }


def test_syllables_weights_guards_and_remarks() -> None:
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
    weights = {text: probability for probability, text, _ in all_stories(read_grammar(grammar))}
    assert weights["Tom was glad."] == 2 * weights["Lona was sad."] == 4 * weights["Mila was sad."]


@pytest.mark.parametrize(
    ("grammar", "line", "complaint"),
    [
        ("plot name\n    Tom\n", 3, "there is no beat"),
        ("    Tom", 1, "an indented line stands before the first heading"),
        ("plott name\n    Tom", 1, "expected a heading such as 'phrase colour', found 'plott name'"),
        ("beat story\n    A.\nbeat story\n    B.", 3, "story is defined twice"),
        ("beat story\n    {end}\nphrase end", 3, "nothing stands below phrase end"),
        ("beat story\n    0 A.", 2, "a weight of at least 1"),
        ("beat story\n    [mood=glad] A.", 2, "no plot variable mood is drawn above"),
        ("plot mood\n    glad\nbeat story\n    [mood=sad] A.", 4, "mood is never 'sad'"),
        ("plot mood\n    glad\nbeat story\n    [mood.x=sad] A.", 4, "mood has no form x"),
        ("plot mood\n    glad\nbeat story\n    [mood] A.", 4, "expected a condition such as season=winter"),
        ("plot mood\n    glad, glad\nbeat story\n    A.", 1, "mood has the value 'glad' twice"),
        ("plot mood\n    glad,\nbeat story\n    A.", 2, "nothing stands between two commas"),
        ("plot sex: he, his\n    he\nbeat story\n    A.", 2, "sex needs 2 forms, found 1"),
        ("plot name\n    {front} + la\nbeat story\n    A.", 2, "there are no syllables called front above"),
        ("beat story\n    {end}", 2, "{end} means nothing"),
        ("plot x: end\n    a\nbeat story\n    {end}\nphrase end\n    b", 4, "{end} means several things"),
        ("beat story\n    {a b c}", 2, "expected a name in braces"),
        ("beat story\n    {end", 2, "a brace stands alone"),
        ("beat story\n    (a|b", 2, "parentheses do not match"),
        ("beat story\n    a|b", 2, "parentheses do not match"),
        ("beat story\n    (a)", 2, "parentheses around a single text"),
        ("beat story\n    {a end}.\nphrase end\n    (x|)", 4, "may be empty"),
        ("beat story\n    {end}\nphrase end\n    {story}", 4, "calls itself: story -> end -> story"),
        ("beat story\n    A.\nphrase end\n    b", 4, "nothing calls end"),
    ],
)
def test_a_mistake_is_named_with_its_line(grammar: str, line: int, complaint: str) -> None:
    with pytest.raises(FormatError) as refused:
        read_grammar(grammar, "tale.grammar")
    assert str(refused.value).startswith(f"tale.grammar, line {line}: ")
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)
