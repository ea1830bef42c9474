"""A grammar that uses the whole notation and is small enough to enumerate, with its enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

from bytewright.corpus.storybook.grammar import Mention, Part, Plot, StoryGrammar
from bytewright.corpus.storybook.notation import read_story_grammar

SMALL = """
plot sex: he, him, his
    he | him | his
    2 she | her | her
syllables last
    la na
plot name
    [sex=she] Mi + {last}
    3 [sex=he] Tom
    [sex=he] Arno
plot thing: thing, use, class
    kite | fly it | light
    umbrella | open it | light
    3 drum | play it | heavy
plot trouble
    3 [thing.class=light] blown
    lost
plot friend
    none, two snails
beat story
    {opening} {loved} {company} / {went_wrong} {end} {good_night}
    2 [friend!=none] {opening} {company} {loved} / {went_wrong} {end} {good_night}
beat opening
    Once there (was|lived) {a kind} called {name}.
    2 {A kind} called {name} was (very |)happy.
phrase kind
    old owl
    5 [trouble=lost] unicorn
    {size} fox
words size
    tiny, enormous
beat loved
    {He} had {a thing}. {He} loved to {use}.
    2 {He} had {a thing} with {a size} handle.
beat company
    [friend=none] -
    [friend!=none] {His} friends were {friend}.
    [friend!=none trouble=blown] {Friend} went with {him}.
beat went_wrong
    [trouble=blown] The wind blew the {thing} away. "Oh no!" cried {name}.
    [trouble=lost] {Name} lost {his} {thing}, "my only {thing}!"
beat end
    {Name} laughed.
beat good_night
    -
    "Good night. Sleep well," said {the_elder}.
phrase the_elder
    [sex=he] {his} mother
    [sex=she] {his} father
"""


def small_grammar() -> StoryGrammar:
    return read_story_grammar(SMALL, "small")


def all_plots(grammar: StoryGrammar) -> Iterator[tuple[Fraction, list[int]]]:
    """Yield every plot with its probability, by the definition."""
    for plot in itertools.product(*(range(len(variable.values)) for variable in grammar.variables)):
        probability = Fraction(1)
        for variable, value in zip(grammar.variables, plot, strict=True):
            weights = variable.weights(plot)
            probability *= Fraction(weights[value], sum(weights))
        if probability:
            yield probability, list(plot)


def all_wordings(grammar: StoryGrammar, rule: str, plot: Plot) -> Iterator[tuple[Fraction, str]]:
    """Yield the text of each derivation of a rule under a plot, with its probability."""
    choice = grammar.rules[rule]
    weights = choice.weights(plot)
    for weight, option in zip(weights, choice.alternatives, strict=True):
        if weight:
            parts = [list(wordings_of_part(grammar, part, plot)) for part in option.parts]
            for chosen in itertools.product(*parts):
                probability = Fraction(weight, sum(weights))
                for part_probability, _ in chosen:
                    probability *= part_probability
                yield probability, "".join(text for _, text in chosen)


def wordings_of_part(grammar: StoryGrammar, part: Part, plot: Plot) -> Iterator[tuple[Fraction, str]]:
    if isinstance(part, str):
        yield Fraction(1), part
    elif isinstance(part, Mention):
        yield Fraction(1), part.forms[plot[part.variable]]
    else:
        yield from all_wordings(grammar, part.rule, plot)


def all_stories(grammar: StoryGrammar) -> Iterator[tuple[Fraction, str, dict[str, str]]]:
    """Yield the probability, text and plot of each derivation of a story."""
    for plot_probability, plot in all_plots(grammar):
        for probability, text in all_wordings(grammar, grammar.start, plot):
            yield plot_probability * probability, text, grammar.named(plot)
