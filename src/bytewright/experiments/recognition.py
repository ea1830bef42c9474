"""Recognise whether a run was trained on the storybook, whose true probabilities can then be shown."""

from __future__ import annotations

from pathlib import Path

from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.storybook import Storybook
from bytewright.data.tokenfile import TokenFile
from bytewright.errors import BytewrightError
from bytewright.experiments.records import read_corpus_name
from bytewright.train.run import Run

RECOGNISED_CHARACTERS = 60
"""A text that begins like a story for so many characters is one."""
DECODED_TOKENS = 300
"""The number of tokens of the training data that are decoded to recognise their text."""


def is_of_storybook(run: Run) -> bool:
    """Return whether a run was trained on the storybook.

    The record of its data decides, or else the beginning of its data, or else its last sample.
    """
    try:
        data = run.settings.get("data.train")
        name = read_corpus_name(data)
        if name is not None:
            return name == "storybook"
        text = _read_first_document(run, data) or _read_last_sample(run)
    except (BytewrightError, OSError):
        return False
    if not text:
        return False
    parse = Storybook.load().parse(text)
    return parse.leaves_at is None or parse.leaves_at >= RECOGNISED_CHARACTERS


def _read_first_document(run: Run, data: object) -> str:
    """Return the first document of the training data, truncated; an empty text if the data are missing."""
    if not isinstance(data, str) or not Path(data).exists():
        return ""
    text = run.tokenizer.decode(TokenFile.open(data).tokens[:DECODED_TOKENS])
    return text.split(END_OF_TEXT)[0].strip()


def _read_last_sample(run: Run) -> str:
    samples = run.samples
    return samples[max(samples)].strip() if samples else ""
