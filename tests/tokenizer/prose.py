"""Megabytes of reproducible prose with realistic word statistics.

Words are strung together from syllables, stems share their endings, and the commonest word is far commoner
than the next (Zipf's law). Punctuation, contractions, numbers, line ends and other scripts are strewn in. So
there are thousands of merges to find, most of them among ties. It is not meant to be read.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache

from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import count_texts, train_tokenizer

END = "<|endoftext|>"

ONSETS = [
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "th",
    "v",
    "w",
]
VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ee", "ou", "ö", "é"]
CODAS = ["", "", "", "n", "r", "s", "t", "nd", "ng", "st", "ck", "l", "m"]
ENDINGS = ["", "", "", "s", "ed", "er", "ing", "ly", "ness", "'s", "n't", "'ll"]
OTHER_SCRIPTS = [
    "слово",
    "дерево",
    "日本語",
    "文章",
    "한국어",
    "नमस्ते",
    "مرحبا",
    "🙂",
    "naïve",
    "ﬁn",
    "e\u0301te\u0301",
]
JOINTS = (
    [" "] * 24
    + [", "] * 3
    + [". "] * 3
    + ["; ", "! ", "? ", '." ', " - ", "...", ".\n", ".\n\n", "  ", "\r\n", "\t"]
)


def make_words(num_words: int, draw: random.Random) -> list[str]:
    """Return distinct words; earlier ones are shorter."""
    words: dict[str, None] = {}
    while len(words) < num_words:
        num_syllables = 1 + min(3, int(draw.expovariate(1.0) + len(words) / num_words))
        stem = "".join(
            draw.choice(ONSETS) + draw.choice(VOWELS) + draw.choice(CODAS) for _ in range(num_syllables)
        )
        for ending in draw.sample(ENDINGS, k=3):
            words[stem + ending] = None
    return list(words)[:num_words]


def write_documents(num_documents: int, seed: int = 0, num_words: int = 6000) -> Iterator[str]:
    """Return documents of about 2 kB each, without the special token."""
    draw = random.Random(seed)
    words = make_words(num_words, draw) + OTHER_SCRIPTS * 3
    frequencies = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(words))))
    for _ in range(num_documents):
        length = draw.randint(100, 500)
        chosen = draw.choices(words, cum_weights=frequencies, k=length)
        for place in range(0, length, 37):
            chosen[place] = chosen[place].capitalize()
        for place in range(0, length, 53):
            chosen[place] = str(draw.randint(0, 3000))
        joints = draw.choices(JOINTS, k=length)
        yield "".join(itertools.chain.from_iterable(zip(chosen, joints, strict=True)))


def write_corpus(num_documents: int, seed: int = 0) -> bytes:
    """Return documents, each followed by the special token."""
    return "".join(document + END for document in write_documents(num_documents, seed)).encode()


@cache
def the_prose() -> bytes:
    """Return 1.5 MB of documents, which is enough for several threads."""
    return write_corpus(500, seed=5)


@cache
def the_tokenizer() -> Tokenizer:
    """Return a tokenizer trained on the prose."""
    counter = count_texts([the_prose()], [END])
    return Tokenizer.from_vocabulary(train_tokenizer(counter, 2000, [END]).vocabulary)
