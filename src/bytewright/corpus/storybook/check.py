"""Check texts against the grammar: how many sentences are sound, how many stories well-formed and consistent.

The three checks are increasingly strict. A *sentence* is sound if some template generates it with any values.
A *story* has the right shape if its sentences are sound and follow each other as in a story. It is
*consistent* if it is in the language: one plot explains all of it. For an inconsistent story, the report
contains the position where it leaves the language and the variables with contradictory values. A *copy* is a
story that occurs verbatim in the training text.

A sentence ends with a full stop, a question mark or an exclamation mark outside quotation marks. It also ends
with a closing quotation mark after one of these, unless lower case follows. `"Oh no!" cried the owl.` is one
sentence, and so is a speech of several sentences. A line end always ends a sentence. The same rule cuts the
beats of the grammar into templates of single sentences.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from bytewright.corpus.books import CHARACTERS_SHOWN
from bytewright.corpus.storybook.grammar import Call, Part, Parts, StoryGrammar
from bytewright.corpus.storybook.parse import Facts, Parser, Step

ENDS = frozenset(".!?")
MAX_CACHED_SENTENCES = 100_000


@dataclass(frozen=True, kw_only=True)
class StoryCheck:
    """The result for one text."""

    num_sentences: int
    num_sound_sentences: int
    has_shape: bool
    """Whether all sentences are sound and follow each other as in a story."""
    is_consistent: bool
    """Whether the text is in the language."""
    bits: float
    """-log2 of its probability; infinite outside the language."""
    num_derivations: int
    contradictions: tuple[str, ...]
    """The plot variables for which the sound sentences imply different values."""
    leaves_at_character: int | None
    leaves_at_sentence: int | None
    """The position where the text leaves the language, counted from 1; None if it is in the language."""
    found: str
    """The text from that position on, shortened."""
    is_copy: bool
    is_of_other_book: bool = False
    """Whether the text has the shape of a text of another book; only the check of a file examines it."""


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The results for many texts; shares are between 0 and 1."""

    stories: tuple[StoryCheck, ...]

    @property
    def num_sentences(self) -> int:
        """The number of sentences in all stories."""
        return sum(story.num_sentences for story in self.stories)

    @property
    def sound_sentences(self) -> float:
        """The share of sentences that some template generates."""
        return sum(story.num_sound_sentences for story in self.stories) / max(1, self.num_sentences)

    @property
    def well_formed(self) -> float:
        """The share of stories that have the shape of a story."""
        return self._share(story.has_shape for story in self.stories)

    @property
    def consistent(self) -> float:
        """The share of stories that are in the language."""
        return self._share(story.is_consistent for story in self.stories)

    @property
    def copies(self) -> float:
        """The share of stories that occur in the training text."""
        return self._share(story.is_copy for story in self.stories)

    @property
    def bits_per_story(self) -> float | None:
        """The mean of -log2 of the probability over the stories in the language."""
        bits = [story.bits for story in self.stories if story.is_consistent]
        return sum(bits) / len(bits) if bits else None

    def _share(self, flags: Iterable[bool]) -> float:
        return sum(flags) / max(1, len(self.stories))


class Checker:
    """Checks texts against one grammar; it caches the templates of known sentences."""

    def __init__(self, grammar: StoryGrammar, parser: Parser) -> None:
        self.grammar = grammar
        self.parser = parser
        self._templates = [parser.steps(template) for template in sentence_templates(grammar)]
        self._firsts = [parser.first_characters(steps) for steps in self._templates]
        self._known: dict[str, list[tuple[Step, ...]]] = {}

    def check(self, text: str, training_stories: Container[str] = ()) -> StoryCheck:
        """Return the result for one text."""
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
        """Return whether some template generates a sentence."""
        return bool(self._templates_of(sentence))

    def contradictions(self, sentences: Iterable[str]) -> tuple[str, ...]:
        """Return the plot variables for which the sound sentences imply different values."""
        disagreed: set[int] = set()
        agreed: dict[int, frozenset[int]] = {}
        for sentence in filter(self.is_sound, sentences):
            implied, contradictory = self._read(sentence)
            disagreed |= contradictory
            for variable, values in implied.items():
                both = agreed.get(variable, values) & values
                if not both:
                    disagreed.add(variable)
                agreed[variable] = both or values
        return tuple(self.grammar.variables[number].name for number in sorted(disagreed))

    def _read(self, sentence: str) -> tuple[dict[int, frozenset[int]], set[int]]:
        """Return the values that a sentence implies for each variable, and the variables it contradicts."""
        readings = self._readings(sentence)
        if readings:
            return _union(readings), set()
        for number in range(len(self.grammar.variables)):
            readings = self._readings(sentence, frozenset([number]))
            if readings:
                return _union(readings), {number}
        return {}, set()  # several contradictions in one sentence are not resolved

    def _readings(self, sentence: str, ignored: frozenset[int] = frozenset()) -> list[Facts]:
        templates = self._templates_of(sentence)
        return [facts for steps in templates for facts in self.parser.facts(sentence, steps, ignored)]

    def _templates_of(self, sentence: str) -> list[tuple[Step, ...]]:
        """Return the templates that generate a sentence; results are cached."""
        known = self._known.get(sentence)
        if known is None:
            candidates = [
                steps
                for steps, starts in zip(self._templates, self._firsts, strict=True)
                if starts is None or sentence[:1] in starts
            ]
            if len(self._known) == MAX_CACHED_SENTENCES:
                self._known.clear()
            known = self._known[sentence] = self.parser.fitting(sentence, candidates)
        return known


def _union(readings: Sequence[Facts]) -> dict[int, frozenset[int]]:
    """Return the values of each variable over all readings; omit variables that a reading leaves open."""
    implied: dict[int, frozenset[int]] = {}
    for number, known in enumerate(zip(*readings, strict=True)):
        if all(values is not None for values in known):
            sets = [frozenset([values]) if isinstance(values, int) else values for values in known]
            implied[number] = frozenset().union(*(values for values in sets if values is not None))
    return implied


# Sentences


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Return the start and the end of each sentence of a text.

    >>> text = 'It was late. "Go home! Now!" said the owl.'
    >>> [text[start:end] for start, end in split_sentences(text)]
    ['It was late.', '"Go home! Now!" said the owl.']
    """
    found: list[tuple[int, int]] = []
    start = 0
    quoted = False
    for at, character in enumerate(text):
        if character == "\n":
            quoted = False
        elif character == '"':
            quoted = not quoted
        if character == "\n" or (not quoted and _ends_here(text, at)):
            found.append((start, at if character == "\n" else at + 1))
            start = at + 1
            while start < len(text) and text[start] == " ":
                start += 1
    found.append((start, len(text)))
    return [(start, end) for start, end in found if start < end]


def _ends_here(text: str, at: int) -> bool:
    """Return whether a character, outside quotation marks or closing them, is the last of a sentence."""
    after = text[at + 1 : at + 3]
    if text[at] in ENDS:
        return not after or after[0] in " \n"
    if text[at] == '"' and at and text[at - 1] in ENDS:
        return (
            not after or after[0] == "\n" or (after[0] == " " and (after[1:].isupper() or after[1:] == '"'))
        )
    return False


def sentence_templates(grammar: StoryGrammar) -> list[Parts]:
    """Return the templates of single sentences in the beats of a grammar."""
    templates: dict[Parts, None] = {}
    for name in sorted(grammar.beats):
        for option in grammar.rules[name].alternatives:
            templates.update(dict.fromkeys(_cut(option.parts, grammar)))
    return list(templates)


def _cut(parts: Parts, grammar: StoryGrammar) -> list[Parts]:
    # Replace each mention and each call by one letter, so that `split_sentences` can be applied.
    units: list[Part] = []
    letters: list[str] = []
    for part in parts:
        units += list(part) if isinstance(part, str) else [part]
        letters += list(part) if isinstance(part, str) else [_stand_in(part, grammar)]
    return [_joined(units[start:end]) for start, end in split_sentences("".join(letters))]


def _stand_in(part: Part, grammar: StoryGrammar) -> str:
    """Return a line end for whole sentences, else a letter in the case of the first letter of the part."""
    if isinstance(part, Call) and part.rule.lstrip() in grammar.beats:
        return "\n"
    while isinstance(part, Call):
        part = next(option.parts[0] for option in grammar.rules[part.rule].alternatives if option.parts)
    first = part if isinstance(part, str) else part.forms[0]
    return "A" if first[:1].isupper() or first[:1] == '"' else "a"


def _joined(units: Sequence[Part]) -> Parts:
    """Join successive letters to literal texts."""
    made: list[Part] = []
    for unit in units:
        if made and isinstance(unit, str) and isinstance(made[-1], str):
            made[-1] += unit
        else:
            made.append(unit)
    return tuple(made)
