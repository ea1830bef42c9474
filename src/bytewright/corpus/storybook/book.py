"""`Storybook`: a grammar with its generator, parser, checker and entropy."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from importlib import resources

from bytewright.corpus import SEPARATOR
from bytewright.corpus.books import bits_per_byte
from bytewright.corpus.storybook.check import Checker, CheckReport
from bytewright.corpus.storybook.continuations import Continuations
from bytewright.corpus.storybook.entropy import StoryEntropy, compute_story_entropy
from bytewright.corpus.storybook.generator import Split, Story, StoryGenerator
from bytewright.corpus.storybook.grammar import StoryGrammar
from bytewright.corpus.storybook.next_tokens import NextTokens, TokenizerLike
from bytewright.corpus.storybook.notation import read_story_grammar
from bytewright.corpus.storybook.parse import Parse, Parser
from bytewright.errors import UsageError

GRAMMAR_FILE = "storybook.grammar"


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The information content of given stories: the expected minimum loss of any model.

    A model that computed the hash of the split (`StoryGenerator.split_of_plot`) would need log2 10 bits less
    for each validation story.
    """

    num_stories: int
    bits: float
    """The sum of -log2 of their probabilities; the end of a story is certain, so its token has 0 bits."""
    text_bytes: int
    """The bytes of the stories without separators."""
    file_bytes: int
    """The bytes of the stories with the `SEPARATOR` after each."""

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the file."""
        return bits_per_byte(self.bits, self.file_bytes, self.num_stories)


class Storybook:
    """Generates and parses stories, and computes their information content.

    >>> book = Storybook.load()
    >>> story = book.story(seed=1, index=0)
    >>> parse = book.parse(story.text)
    >>> parse.num_derivations, parse.plot == story.plot, abs(parse.bits - story.bits) < 1e-6
    (1, True, True)
    """

    def __init__(self, grammar: StoryGrammar) -> None:
        self.grammar = grammar
        self.generator = StoryGenerator(grammar)

    @classmethod
    @functools.cache
    def load(cls) -> Storybook:
        """Return the storybook of Bytewright; it is read once."""
        text = resources.files(__package__).joinpath(GRAMMAR_FILE).read_text("utf-8")
        return cls(read_story_grammar(text, GRAMMAR_FILE))

    @functools.cached_property
    def parser(self) -> Parser:
        """The parser of this grammar."""
        return Parser(self.grammar)

    @functools.cached_property
    def checker(self) -> Checker:
        """The checker of this grammar."""
        return Checker(self.grammar, self.parser)

    def story(self, seed: int, index: int) -> Story:
        """Return the story with a number; equal arguments yield equal stories."""
        return self.generator.story(seed, index)

    def stories(self, seed: int, split: Split | None = None) -> Iterator[Story]:
        """Yield stories without end: all of them, or those of one split."""
        return self.generator.stories(seed, split)

    def parse(self, text: str) -> Parse:
        """Return the result of finding all derivations of a text."""
        return self.parser.parse(text)

    def next_tokens(self, tokenizer: TokenizerLike) -> NextTokens:
        """Return the true next-token probabilities of stories for a tokenizer."""
        return NextTokens(self._continuations, tokenizer)

    @functools.cached_property
    def _continuations(self) -> Continuations:
        return Continuations(self.grammar)

    def entropy(self) -> StoryEntropy:
        """Return the exact mean information content and length of a story."""
        return self._entropy

    @functools.cached_property
    def _entropy(self) -> StoryEntropy:
        return compute_story_entropy(self.grammar)

    def floor(self, texts: Iterable[str]) -> Floor:
        """Return the sum of the information content of stories; each must be in the language."""
        bits, text_bytes, num_stories = 0.0, 0, 0
        for text in texts:
            parse = self.parse(text)
            num_stories += 1
            if not parse.num_derivations:
                message = (
                    f"story {num_stories} is not in the storybook's language: it leaves the language after"
                    f" {parse.leaves_at} characters; only stories in the language have a floor"
                )
                raise UsageError(message, key=f"story {num_stories}", found=text[parse.leaves_at :])
            bits += parse.bits
            text_bytes += len(text.encode())
        file_bytes = text_bytes + num_stories * len(SEPARATOR)
        return Floor(num_stories=num_stories, bits=bits, text_bytes=text_bytes, file_bytes=file_bytes)

    def check_stories(self, texts: Iterable[str], training_stories: Container[str] = ()) -> CheckReport:
        """Return the results of checking each text against the grammar."""
        checks = tuple(self.checker.check(text, training_stories) for text in texts)
        return CheckReport(stories=checks)
