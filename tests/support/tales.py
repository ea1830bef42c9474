"""Generate short stories for tests, the same for the same seed.

The stories repeat a few sentence templates, so a small tokenizer learns whole words from them. The storybook
(`bytewright.corpus.storybook`) generates stories of known probability instead.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from bytewright.corpus import END_OF_TEXT

NAMES = [
    "Mila",
    "Tom",
    "Nora",
    "Ben",
    "Ida",
    "Sam",
    "Lena",
    "Max",
    "Ava",
    "Finn",
    "Zoë",
    "Omar",
    "Yuki",
    "Rosa",
]
ANIMALS = ["fox", "owl", "hedgehog", "rabbit", "otter", "mouse", "crow", "badger", "squirrel", "frog"]
PLACES = ["the old mill", "the riverbank", "the quiet forest", "the hill", "the market", "the lighthouse"]
THINGS = ["a red kite", "a silver key", "a wooden boat", "a tiny lantern", "a map", "a blue umbrella"]
FEELINGS = ["happy", "curious", "a little afraid", "proud", "sleepy", "very surprised"]
WEATHER = ["the sun was shining", "it was raining softly", "the wind was singing", "snow lay everywhere"]

OPENINGS = [
    "One morning {name} went to {place}, and {weather}.",
    "Once upon a time there was a little {animal} who lived near {place}.",
    "{name} couldn't sleep, so {name} walked to {place} where {weather}.",
]
MIDDLES = [
    "There {name} found {thing}.",
    '"What\'s that?" asked the {animal}. "It\'s {thing}," said {name}.',
    "{name} was {feeling}, and the {animal} was {feeling2}.",
    "They looked for {thing} for {number} days.",
    'The {animal} said, "I\'ve never seen {thing} before!"',
    "Then {weather}, and they hid in {place} until it was over.",
]
ENDINGS = [
    "In the end they shared {thing} and were {feeling}.",
    "And from that day on {name} and the {animal} were friends.",
    '"We\'ll come back tomorrow," said {name}, and they went home.',
]


def write_stories(num_stories: int, seed: int = 0) -> Iterator[str]:
    r"""Yield stories, each followed by `<|endoftext|>`.

    >>> first, second = write_stories(2)
    >>> first.endswith("<|endoftext|>\n"), first == second, first == next(write_stories(1))
    (True, False, True)
    """
    chance = random.Random(seed)
    for _ in range(num_stories):
        yield f"{_write_story(chance)}\n{END_OF_TEXT}\n"


def _write_story(chance: random.Random) -> str:
    feeling, feeling2 = chance.sample(FEELINGS, 2)
    parts = {
        "name": chance.choice(NAMES),
        "animal": chance.choice(ANIMALS),
        "thing": chance.choice(THINGS),
        "feeling": feeling,
        "feeling2": feeling2,
        "number": chance.randint(2, 99),
    }
    shapes = [
        chance.choice(OPENINGS),
        *chance.sample(MIDDLES, chance.randint(2, 5)),
        chance.choice(ENDINGS),
    ]
    return " ".join(
        shape.format(**parts, place=chance.choice(PLACES), weather=chance.choice(WEATHER)) for shape in shapes
    )
