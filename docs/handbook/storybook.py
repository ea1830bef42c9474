"""Compute the figures of storybook.md."""

from __future__ import annotations

from math import log2

from records import percent, result

from bytewright.corpus.storybook import Storybook
from bytewright.corpus.storybook.generator import VALIDATION_SHARE

book = Storybook.load()
text = book.story(seed=1, index=0).text
entropy = book.entropy()
whole = result("2026-11-15-lab/base_experiment/whole-stories.json")["whole_stories"]
bits_above_floor = whole["above_floor"] * (entropy.text_bytes + 2)
"""Per story. In a file two line ends follow a story and count as bytes; the end token does not."""

FIGURES = [
    # One story, generated and parsed
    text[: text.index(".") + 1],
    # The floor
    f"average it takes {entropy.plot_bits:.0f} bits to",
    f"That is {percent(entropy.plot_bits / entropy.bits)} of the",
    f"A story has {entropy.bits / entropy.text_bytes:.2f} bits per",
    (
        f"need log₂ 10 = {-log2(VALIDATION_SHARE):.2f} of {entropy.bits:.0f} bits "
        f"less for each validation story, and {-log2(1 - VALIDATION_SHARE):.2f} less "
        "for"
    ),
    f"per step, needs {bits_above_floor:.1f} bits per",
]
GIVEN = {"256 windows": "the settings of that run"}
