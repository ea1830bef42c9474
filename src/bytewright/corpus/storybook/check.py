"""Holds texts against the grammar: how many of their sentences, and how many of the stories, are sound.

Three questions, each stricter than the one before. Is a *sentence* one that some template gives, with
whatever fillers? Has the *story* the shape of a story, sentence after sentence? Is it *consistent*: in the
language, with one plot behind all of it? For a story that is not, the report says where it leaves the
language and which facts contradict each other. A copy is a story that stands word for word in the training
text.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from bytewright.corpus.storybook.grammar import Grammar
from bytewright.corpus.storybook.parse import Facts, Parser, Step
from bytewright.corpus.storybook.sentences import sentence_templates, split_sentences

CHARACTERS_SHOWN = 30
SENTENCES_REMEMBERED = 100_000


@dataclass(frozen=True, kw_only=True)
class StoryCheck:
    """What is to be said about one text."""

    num_sentences: int
    num_sound_sentences: int
    has_shape: bool
    """Every sentence is sound and they follow each other as in a story, whatever they say."""
    is_consistent: bool
    """The text is in the language."""
    bits: float
    """-log2 of its probability; infinite outside the language."""
    num_derivations: int
    contradictions: tuple[str, ...]
    """The plot variables about which its sound sentences disagree."""
    leaves_at_character: int | None
    leaves_at_sentence: int | None
    """Where it leaves the language, counted from 1; None when it does not."""
    found: str
    """The first words from that place on."""
    is_copy: bool


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What is to be said about many texts; shares are between 0 and 1."""

    stories: tuple[StoryCheck, ...]

    @property
    def num_sentences(self) -> int:
        """How many sentences there are in all stories together."""
        return sum(story.num_sentences for story in self.stories)

    @property
    def sound_sentences(self) -> float:
        """The share of sentences that some template gives."""
        return sum(story.num_sound_sentences for story in self.stories) / max(1, self.num_sentences)

    @property
    def well_formed(self) -> float:
        """The share of stories that have the shape of a story."""
        return self._share(story.has_shape for story in self.stories)

    @property
    def consistent(self) -> float:
        """The share of stories that are in the language, facts and all."""
        return self._share(story.is_consistent for story in self.stories)

    @property
    def copies(self) -> float:
        """The share of stories that stand in the training text."""
        return self._share(story.is_copy for story in self.stories)

    @property
    def bits_per_story(self) -> float | None:
        """The mean of -log2 of the probability, over the stories that are in the language."""
        bits = [story.bits for story in self.stories if story.is_consistent]
        return sum(bits) / len(bits) if bits else None

    def _share(self, flags: Iterable[bool]) -> float:
        return sum(flags) / max(1, len(self.stories))


class Checker:
    """Checks texts against one grammar; it remembers the sentences that it has seen."""

    def __init__(self, grammar: Grammar, parser: Parser) -> None:
        self.grammar = grammar
        self.parser = parser
        self._templates = [parser.steps(template) for template in sentence_templates(grammar)]
        self._firsts = [parser.first_characters(steps) for steps in self._templates]
        self._known: dict[str, list[tuple[Step, ...]]] = {}

    def check(self, text: str, training_stories: Container[str] = ()) -> StoryCheck:
        """Check one text."""
        parse = self.parser.parse(text)
        spans = split_sentences(text)
        sentences = [text[start:end] for start, end in spans]
        inside = parse.num_derivations > 0
        sound = len(spans) if inside else sum(map(self.is_sound, sentences))
        place = parse.leaves_at
        return StoryCheck(
            num_sentences=len(spans),
            num_sound_sentences=sound,
            has_shape=inside or (sound == len(spans) and self.parser.has_shape(text)),
            is_consistent=inside,
            bits=parse.bits,
            num_derivations=parse.num_derivations,
            contradictions=() if inside else self.contradictions(sentences),
            leaves_at_character=None if place is None else place + 1,
            leaves_at_sentence=None if place is None else max(1, sum(start <= place for start, _ in spans)),
            found="" if place is None else text[place : place + CHARACTERS_SHOWN],
            is_copy=text in training_stories,
        )

    def is_sound(self, sentence: str) -> bool:
        """Tell whether some template gives a sentence."""
        return bool(self._templates_of(sentence))

    def contradictions(self, sentences: Iterable[str]) -> tuple[str, ...]:
        """Name the plot variables about which the sound ones of some sentences disagree."""
        disagreed: set[int] = set()
        agreed: dict[int, frozenset[int]] = {}
        for sentence in filter(self.is_sound, sentences):
            said, doubtful = self._read(sentence)
            disagreed |= doubtful
            for variable, values in said.items():
                both = agreed.get(variable, values) & values
                if not both:
                    disagreed.add(variable)
                agreed[variable] = both or values
        return tuple(self.grammar.variables[number].name for number in sorted(disagreed))

    def _read(self, sentence: str) -> tuple[dict[int, frozenset[int]], set[int]]:
        """Give what a sentence says about each variable, and about which ones it contradicts itself."""
        readings = self._readings(sentence)
        if readings:
            return _union(readings), set()
        for number in range(len(self.grammar.variables)):
            readings = self._readings(sentence, frozenset([number]))
            if readings:
                return _union(readings), {number}
        return {}, set()  # more than one contradiction in one sentence: the story is inconsistent anyway

    def _readings(self, sentence: str, ignored: frozenset[int] = frozenset()) -> list[Facts]:
        templates = self._templates_of(sentence)
        return [facts for steps in templates for facts in self.parser.facts(sentence, steps, ignored)]

    def _templates_of(self, sentence: str) -> list[tuple[Step, ...]]:
        """Find the templates that give a sentence; those of sentences seen before are remembered."""
        known = self._known.get(sentence)
        if known is None:
            candidates = [
                steps
                for steps, starts in zip(self._templates, self._firsts, strict=True)
                if starts is None or sentence[:1] in starts
            ]
            if len(self._known) == SENTENCES_REMEMBERED:
                self._known.clear()
            known = self._known[sentence] = self.parser.fitting(sentence, candidates)
        return known


def _union(readings: Sequence[Facts]) -> dict[int, frozenset[int]]:
    """For each variable, the values that it has in some reading; no entry when a reading leaves it open."""
    said: dict[int, frozenset[int]] = {}
    for number, known in enumerate(zip(*readings, strict=True)):
        if all(values is not None for values in known):
            sets = [frozenset([values]) if isinstance(values, int) else values for values in known]
            said[number] = frozenset().union(*(values for values in sets if values is not None))
    return said
