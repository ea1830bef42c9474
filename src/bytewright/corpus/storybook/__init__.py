"""The storybook: little stories from a grammar whose every choice has a stated probability.

A plot is drawn first, then worded; each text has one derivation, so -log2 p of a story is exact, and so is
the entropy: the floor under the loss of every model of the grammar. The grammar itself is in
`storybook.grammar`, to be read; `notation` says how.
"""

from bytewright.corpus.storybook.book import Floor, Storybook
from bytewright.corpus.storybook.check import CheckReport, StoryCheck
from bytewright.corpus.storybook.entropy import Entropy
from bytewright.corpus.storybook.files import KnownStories, Written, check_file, read_stories, write_stories
from bytewright.corpus.storybook.parse import Parse
from bytewright.corpus.storybook.tell import Split, Story

__all__ = [
    "CheckReport",
    "Entropy",
    "Floor",
    "KnownStories",
    "Parse",
    "Split",
    "Story",
    "StoryCheck",
    "Storybook",
    "Written",
    "check_file",
    "read_stories",
    "write_stories",
]
