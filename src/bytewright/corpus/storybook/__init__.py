"""The storybook: stories from a grammar in which each choice has a stated probability.

The plot of a story is drawn first, then its wording. Each text has one derivation, so -log2 p of a story is
exact. So is the entropy, which is the expected minimum loss (the floor) of any model of the grammar. The
grammar is in `storybook.grammar`, in the notation of `notation`. `next_tokens` has the true
probabilities of each token. Start with `book`; `files` writes and checks files.
"""

from bytewright.corpus.books import KnownStories, read_stories
from bytewright.corpus.storybook.book import Floor, Storybook
from bytewright.corpus.storybook.check import CheckReport, StoryCheck
from bytewright.corpus.storybook.entropy import StoryEntropy
from bytewright.corpus.storybook.files import Written, check_story_file, write_stories
from bytewright.corpus.storybook.generator import Split, Story
from bytewright.corpus.storybook.next_tokens import NextTokens, Position
from bytewright.corpus.storybook.parse import Parse

__all__ = [
    "CheckReport",
    "Floor",
    "KnownStories",
    "NextTokens",
    "Parse",
    "Position",
    "Split",
    "Story",
    "StoryCheck",
    "StoryEntropy",
    "Storybook",
    "Written",
    "check_story_file",
    "read_stories",
    "write_stories",
]
