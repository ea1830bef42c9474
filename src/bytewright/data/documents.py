"""Windows that begin where documents begin: every fact that a document goes back to is in sight.

A window cut anywhere begins in mid-document, and what it refers to may lie before it: the name of a hero, the
promise made. Where documents are shorter than the context, it pays to begin each window at the end token
before a document; what is left of the window is the beginning of the next. Like `WindowSampler` this is a
pure function of (data, seed, step), every document once per epoch, in a fresh order each epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jaxtyping import Int64

from bytewright.data.sampler import Tokens, shuffle_epochs
from bytewright.errors import UsageError


def find_documents(tokens: Tokens, end: int, context_length: int) -> Int64[np.ndarray, " documents"]:
    """Find where each document's window begins: at the end token before it, with a whole window to come.

    The first document of a file has none before it and is left out.

    >>> find_documents(np.array([5, 0, 6, 7, 0, 8, 0, 9], dtype=np.uint16), end=0, context_length=3).tolist()
    [1, 4]
    """
    ends = np.flatnonzero(tokens == end)
    return ends[ends + context_length < len(tokens)].astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class DocumentSampler:
    """Which documents a step sees.

    >>> sampler = DocumentSampler(first_tokens=np.array([1, 4, 9, 12]), batch_size=2, seed=0)
    >>> sorted(sampler.starts(0).tolist() + sampler.starts(1).tolist())
    [1, 4, 9, 12]
    """

    first_tokens: Int64[np.ndarray, " documents"]
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if not len(self.first_tokens):
            raise UsageError(
                "the data has no end token with a whole window after it: no document to begin at"
            )

    def windows(self, step: int) -> Int64[np.ndarray, " batch"]:
        """Give the numbers of the documents at `step`, counted from 0."""
        first = step * self.batch_size
        return shuffle_epochs(np.arange(first, first + self.batch_size), len(self.first_tokens), self.seed)

    def starts(self, step: int) -> Int64[np.ndarray, " batch"]:
        """Give the position of each window's first token."""
        first_tokens: npt.NDArray[np.int64] = self.first_tokens[self.windows(step)]
        return first_tokens
