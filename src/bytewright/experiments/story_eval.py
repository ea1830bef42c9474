"""A run's model on a file of stories, each read whole, beside their entropy where it is known.

The file is encoded with the run's own tokenizer and cut at its end tokens. If every story of it is in the
storybook's language, the sum of their -log2 p is the floor; of other texts nobody knows it. What is computed
for each story is in `train.evaluate_stories`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.storybook import Storybook, read_stories
from bytewright.errors import BytewrightError, UsageError
from bytewright.tokenizer import Tokenizer
from bytewright.train.checkpoint import find_checkpoint, load_model
from bytewright.train.config import Device
from bytewright.train.evaluate_stories import Progress, StoryEvaluation, evaluate_stories, split_stories
from bytewright.train.inputs import count_token_bytes
from bytewright.train.run import config_of_checkpoint, run_of_checkpoint
from bytewright.train.setup import dtype_of, find_device


@dataclass(frozen=True)
class WholeStories:
    """What a model takes for stories, and what they carry."""

    evaluation: StoryEvaluation
    floor_bits: np.ndarray[tuple[int], np.dtype[np.float64]] | None
    """-log2 p of each story under the storybook; None if some story is not from it."""

    @property
    def floor(self) -> float | None:
        """The entropy of these stories in bits per byte."""
        if self.floor_bits is None:
            return None
        return float(self.floor_bits.sum() / self.evaluation.num_bytes.sum())

    @property
    def gap(self) -> tuple[float, float] | None:
        """Bits per byte above the floor, and the standard error."""
        return None if self.floor_bits is None else self.evaluation.gap_to(self.floor_bits)


def evaluate_text(
    run: Path, file: Path, *, which: str = "best", device: Device = "auto", progress: Progress | None = None
) -> WholeStories:
    """Measure the best or last checkpoint of `run` on the stories of a text file."""
    checkpoint = find_checkpoint(run, which=which)
    folder = run_of_checkpoint(checkpoint)
    if folder is None or not (folder / "tokenizer").is_dir():
        raise UsageError(f"{run} keeps no tokenizer, so it cannot read a text; train with data.tokenizer set")
    tokenizer = Tokenizer.load(folder / "tokenizer")
    end = tokenizer.special_tokens.get(END_OF_TEXT)
    if end is None:
        raise UsageError(f"{run}: its tokenizer has no {END_OF_TEXT}, so it does not know where stories end")
    nothing = np.zeros(0, np.uint16)  # an empty file has no pieces at all
    ids = np.concatenate([nothing, *tokenizer.encode_pieces(file)])
    stories = split_stories(ids, end, newline=tokenizer.vocabulary.ids_of_ordinary_tokens.get(b"\n"))
    config = config_of_checkpoint(checkpoint)
    compute_dtype = dtype_of(config.precision) if config else None
    model = load_model(checkpoint, device=find_device(device), compute_dtype=compute_dtype)
    token_bytes = count_token_bytes(tokenizer.vocabulary)
    try:
        evaluation = evaluate_stories(model, stories, end, token_bytes, progress=progress)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None
    return WholeStories(evaluation, find_floor(file, len(stories)))


def find_floor(file: Path, num_stories: int) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    """Weigh the stories of a file with the grammar; None as soon as one is not from the storybook."""
    book = Storybook.load()
    bits: list[float] = []
    try:
        for text in read_stories(file):
            parse = book.parse(text)
            if not parse.num_derivations or len(bits) == num_stories:
                return None
            bits.append(parse.bits)
    except BytewrightError:  # not UTF-8: no story of ours
        return None
    return np.array(bits) if len(bits) == num_stories else None
