"""Recognise from which of the generated books a text is: the storybook or the world book."""

from __future__ import annotations

import os
from itertools import islice
from typing import Literal

from bytewright.corpus.storybook import Storybook, read_stories
from bytewright.corpus.worldbook import World, Worldbook
from bytewright.corpus.worldbook.check import check_document

Book = Literal["storybook", "worldbook"]
DOCUMENTS_READ = 20
"""Texts of a model may be wrong in places, so several of them decide."""


def recognise_book(path: str | os.PathLike[str], world: World) -> Book:
    """Return the book whose grammar the first texts of a file follow further; the storybook if both fail."""
    storybook, worldbook = Storybook.load(), Worldbook(world)
    points = 0
    for text in islice(read_stories(path), DOCUMENTS_READ):
        checked = check_document(worldbook, text)
        in_world = len(text) if checked.leaves_at_character is None else checked.leaves_at_character - 1
        if in_world < len(text):
            parse = storybook.parse(text)
            in_world -= len(text) if parse.leaves_at is None else parse.leaves_at
        points += in_world
    return "worldbook" if points > 0 else "storybook"
