"""Compare all results for a small grammar with an enumeration of its stories."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from small_grammar import SMALL, all_stories, small_grammar

from bytewright.corpus.storybook import Storybook
from bytewright.corpus.storybook.check import sentence_templates, split_sentences
from bytewright.corpus.storybook.entropy import compute_story_entropy
from bytewright.corpus.storybook.generator import StoryGenerator
from bytewright.corpus.storybook.notation import read_story_grammar
from bytewright.corpus.storybook.parse import Parser

GRAMMAR = small_grammar()
STORIES = list(all_stories(GRAMMAR))


def test_the_probabilities_of_all_derivations_add_up_to_one_and_no_text_occurs_twice() -> None:
    assert len(STORIES) > 1000
    assert sum(probability for probability, _, _ in STORIES) == 1
    assert math.isclose(math.fsum(float(p) for p, _, _ in STORIES), 1, abs_tol=1e-9)
    assert len({text for _, text, _ in STORIES}) == len(STORIES)


def test_every_text_parses_back_to_its_one_derivation_and_its_probability() -> None:
    parser = Parser(GRAMMAR)
    for probability, text, plot in STORIES:
        parse = parser.parse(text)
        assert (parse.num_derivations, parse.plot, parse.leaves_at) == (1, plot, None)
        assert parse.bits == pytest.approx(-math.log2(probability), abs=1e-9)


def test_entropy_and_length_agree_with_the_enumeration() -> None:
    entropy = compute_story_entropy(GRAMMAR)
    assert entropy.bits == pytest.approx(sum(-float(p) * math.log2(p) for p, _, _ in STORIES), abs=1e-9)
    assert entropy.text_bytes == pytest.approx(
        sum(float(p) * len(t.encode()) for p, t, _ in STORIES), abs=1e-9
    )


def test_stories_are_generated_with_their_stated_probability() -> None:
    """A chi-squared test over the hundred most probable texts and all others together."""
    generator, num_stories = StoryGenerator(GRAMMAR), 8_000
    expected = sorted(((p, text) for p, text, _ in STORIES), reverse=True)[:100]
    generated = Counter(generator.story(7, index).text for index in range(num_stories))
    known = {text for _, text in expected}
    counts = [(float(p) * num_stories, generated[text]) for p, text in expected]
    rest = float(1 - sum((p for p, _ in expected), Fraction(0))) * num_stories
    counts.append((rest, sum(count for text, count in generated.items() if text not in known)))
    statistic = sum((seen - mean) ** 2 / mean for mean, seen in counts)
    assert statistic < 100 + 4 * math.sqrt(2 * 100)  # four standard deviations of chi-squared with 100


def test_a_generated_story_has_its_plot_and_bits() -> None:
    generator = StoryGenerator(GRAMMAR)
    weights = {text: (probability, plot) for probability, text, plot in STORIES}
    for index in range(500):
        story = generator.story(1, index)
        probability, plot = weights[story.text]
        assert story.plot == plot
        assert story.bits == pytest.approx(-math.log2(probability), abs=1e-9)


def test_the_parser_counts_all_derivations_and_adds_their_probabilities() -> None:
    """Without its guard, the second layout yields the same text as the first if there is no friend."""
    ambiguous = read_story_grammar(SMALL.replace("2 [friend!=none] {opening}", "2 {opening}"))
    parser = Parser(ambiguous)
    weights: dict[str, list[Fraction]] = {}
    for probability, text, _ in all_stories(ambiguous):
        weights.setdefault(text, []).append(probability)
    twice = [text for text, probabilities in weights.items() if len(probabilities) == 2]
    assert twice
    for text in twice[:100]:
        parse = parser.parse(text)
        assert parse.num_derivations == 2
        assert parse.bits == pytest.approx(-math.log2(sum(weights[text])), abs=1e-9)


def test_a_variable_that_is_never_mentioned_causes_several_derivations() -> None:
    hidden = read_story_grammar("plot mood\n    glad, sad\nbeat story\n    It rained.")
    parse = Parser(hidden).parse("It rained.")
    assert parse.num_derivations == 2
    assert parse.plot is None
    assert parse.bits == pytest.approx(0.0, abs=1e-12)


def test_a_rule_without_an_allowed_alternative_is_an_error() -> None:
    hole = read_story_grammar(
        "plot sky\n    blue, grey\nbeat story\n    {sky} {end}.\nphrase end\n    [sky=blue] sun"
    )
    with pytest.raises(ValueError, match="end has no alternative"):
        compute_story_entropy(hole)


def test_sentence_templates_generate_every_sentence_of_every_story() -> None:
    checker = Storybook(GRAMMAR).checker
    sentences = {text[start:end] for _, text, _ in STORIES for start, end in split_sentences(text)}
    assert all(map(checker.is_sound, sentences))
    assert not any(
        map(checker.is_sound, ["Tom", "Tom laughed", "Tom laughed. Tom laughed.", "tom laughed.", ""])
    )
    assert len(sentence_templates(GRAMMAR)) < len(sentences)


@pytest.mark.parametrize("cut", [1, 17, -1])
def test_a_text_that_is_not_a_story_has_no_derivation(cut: int) -> None:
    parser = Parser(GRAMMAR)
    for _, text, _ in STORIES[:: len(STORIES) // 50]:
        parse = parser.parse(text[:cut])
        assert (parse.num_derivations, parse.bits, parse.plot) == (0, math.inf, None)
        assert parse.leaves_at == len(text[:cut])
        assert parser.parse(text + " And.").leaves_at in (len(text), len(text) + 1)
