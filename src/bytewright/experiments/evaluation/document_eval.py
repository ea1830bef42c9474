"""Evaluate a model on whole documents, and compare it with their entropy.

A document is read from the end token before it to its own end token. Its first token is predicted from the
preceding end token alone, and its own end token is predicted too. A source that writes one document after
another is coded the same way. So the bits of a model are comparable with the -log2 p of the source.

    ids    = [end] + document + [end]
    bits   = sum of -log2 p(ids[i] | the ids before it that fit into the context) for i = 1, 2, …
    result = sum of bits over all documents / sum of their bytes; the end token has no bytes

A document that is longer than the context is read in overlapping windows (`generate.scoring`). So every token
after the first window has at least half a context before it.

The windows of `train.evaluate` may begin inside a document. They lack its beginning, so their loss is
higher. `evaluate_text` evaluates the model of a run on a text file. If all its documents belong to the
language of the storybook, their entropy is the floor. For documents of the world book the bits are also
accounted for choice by choice (`world_eval`). `evaluate_documents` returns bits per byte alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int64

from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.storybook import Storybook, read_stories
from bytewright.data.sampler import Tokens
from bytewright.errors import BytewrightError, UsageError
from bytewright.experiments.evaluation.world_eval import (
    ExcessReport,
    account_excess,
    describe_mismatch,
    find_derivations,
)
from bytewright.formatting import Progress
from bytewright.generate.scoring import compute_losses, plan_windows
from bytewright.model import TransformerLM
from bytewright.tokenizer import Tokenizer
from bytewright.train.checkpoint_list import Which
from bytewright.train.config import DeviceName
from bytewright.train.run_model import open_model
from bytewright.train.setup import count_token_bytes, select_device


@dataclass(frozen=True)
class DocumentEvaluation:
    """Bits, predictions and bytes of each document, in the order of the file."""

    bits: Float64[np.ndarray, " documents"]
    """-log2 p of each document and its end token."""
    num_tokens: Int64[np.ndarray, " documents"]
    """Number of predictions per document, the end token included."""
    num_bytes: Int64[np.ndarray, " documents"]
    """Bytes of text per document."""

    @property
    def bits_per_byte(self) -> float:
        """Total bits divided by total bytes."""
        return float(self.bits.sum() / self.num_bytes.sum())

    @property
    def loss(self) -> float:
        """Mean loss per prediction, in nats."""
        return float(self.bits.sum() / self.num_tokens.sum() * math.log(2))

    def gap_to(self, floor_bits: Float64[np.ndarray, " documents"]) -> tuple[float, float]:
        """Return the bits per byte above the floor, given per document, and their standard error.

        Model and floor are compared on the same documents, so differences in difficulty cancel.
        """
        above = self.bits - floor_bits
        mean_bytes = self.num_bytes.mean()
        deviation = above - above.mean() / mean_bytes * self.num_bytes  # linearised error of a ratio
        error = deviation.std(ddof=1) / math.sqrt(len(above)) if len(above) > 1 else math.inf
        return float(above.mean() / mean_bytes), float(error / mean_bytes)


@dataclass(frozen=True)
class TextEvaluation:
    """The evaluation of a model on the documents of a text file, and their entropy if it is known."""

    evaluation: DocumentEvaluation
    context_length: int
    """The context of the model."""
    floor_bits: np.ndarray[tuple[int], np.dtype[np.float64]] | None
    """-log2 p of each document under its book; None if a document is not from a book."""
    excess: ExcessReport | None = None
    """For documents of the world book: the bits of the model and the true bits by kind of choice."""
    mismatch: str = ""
    """Why documents of the world book have no floor; empty if they have one."""

    @property
    def num_long(self) -> int:
        """The number of documents that do not fit into the context together with their end token."""
        return int((self.evaluation.num_tokens > self.context_length).sum())

    @property
    def floor(self) -> float | None:
        """The entropy of the documents in bits per byte."""
        if self.floor_bits is None:
            return None
        return float(self.floor_bits.sum() / self.evaluation.num_bytes.sum())

    @property
    def gap(self) -> tuple[float, float] | None:
        """Bits per byte above the floor, and their standard error."""
        return None if self.floor_bits is None else self.evaluation.gap_to(self.floor_bits)


@dataclass(frozen=True)
class DocumentTokens:
    """The documents of a text as token ids, ready to evaluate models on."""

    documents: Sequence[Tokens]
    end: int
    token_bytes: Int64[np.ndarray, " vocab"]

    @classmethod
    def read(cls, file: Path, tokenizer: Tokenizer) -> DocumentTokens:
        """Encode a text file and split it at its end tokens."""
        end = tokenizer.special_tokens.get(END_OF_TEXT)
        if end is None:
            raise UsageError(
                f"the tokenizer has no {END_OF_TEXT}, so the ends of documents cannot be located;"
                " train one with this special token, and a model with it",
                expected=END_OF_TEXT,
            )
        no_ids = np.zeros(0, np.uint16)  # an empty file has no pieces to concatenate
        ids = np.concatenate([no_ids, *tokenizer.encode_pieces(file)])
        newline = tokenizer.vocabulary.ids_of_ordinary_tokens.get(b"\n")
        documents = split_documents(ids, end, newline=newline)
        return cls(documents, end, count_token_bytes(tokenizer.vocabulary))

    def count_bytes(self) -> Int64[np.ndarray, " documents"]:
        """Return the number of bytes of each document."""
        return np.array([self.token_bytes[document].sum() for document in self.documents], dtype=np.int64)

    def evaluate(self, model: TransformerLM, progress: Progress | None = None) -> DocumentEvaluation:
        """Evaluate a model on all documents."""
        self.check_text()
        return self.summarise(evaluate_tokens(model, self.documents, self.end, progress=progress))

    def check_text(self) -> None:
        """Raise `UsageError` unless there is a document with text."""
        if not self.documents:
            raise UsageError("no whole documents to evaluate: found no end token")
        if not self.count_bytes().any():
            raise UsageError("no text to evaluate: the documents contain only end tokens")

    def summarise(self, token_bits: Sequence[Float64[np.ndarray, " _"]]) -> DocumentEvaluation:
        """Return the sums over the tokens of each document."""
        return DocumentEvaluation(
            bits=np.array([bits.sum() for bits in token_bits]),
            num_tokens=np.array([len(bits) for bits in token_bits]),
            num_bytes=self.count_bytes(),
        )


def evaluate_text(
    run: Path,
    file: Path,
    *,
    which: Which = "best",
    device: DeviceName = "auto",
    progress: Progress | None = None,
) -> TextEvaluation:
    """Evaluate the best or last checkpoint of `run` on the documents of a text file."""
    saved = open_model(run, which=which)
    try:
        text = DocumentTokens.read(file, saved.run.tokenizer)
    except UsageError as error:
        raise UsageError.at(run, error, key=error.key) from None
    try:
        text.check_text()
    except UsageError as error:
        raise UsageError.at(file, error) from None
    model = saved.load(device=select_device(device), precision=saved.training_precision)
    context_length = model.config.context_length
    token_bits = evaluate_tokens(model, text.documents, text.end, progress=progress)
    evaluation = text.summarise(token_bits)
    if derived := find_derivations(file, len(text.documents)):
        floor_bits = np.array([derivation.bits for _, derivation in derived])
        excess = account_excess(derived, text.documents, token_bits, text.token_bytes)
        return TextEvaluation(evaluation, context_length, floor_bits, excess)
    floor = find_floor(file, len(text.documents))
    return TextEvaluation(evaluation, context_length, floor, mismatch=describe_mismatch(file))


def evaluate_documents(
    run: Path, files: Mapping[str, Path], *, device: DeviceName = "auto"
) -> dict[str, float]:
    """Return the bits per byte of the documents of each file, for the last checkpoint of a run."""
    saved = open_model(run, which="last")
    model = saved.load(device=select_device(device), precision=saved.training_precision)
    return {
        name: DocumentTokens.read(file, saved.run.tokenizer).evaluate(model).bits_per_byte
        for name, file in files.items()
    }


def find_floor(file: Path, num_documents: int) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    """Return -log2 p of each document of a file, or None if a document is not from the storybook."""
    book = Storybook.load()
    bits: list[float] = []
    try:
        for text in read_stories(file):
            parse = book.parse(text)
            if not parse.num_derivations or len(bits) == num_documents:
                return None
            bits.append(parse.bits)
    except BytewrightError:  # not UTF-8, so not from the storybook
        return None
    return np.array(bits) if len(bits) == num_documents else None


def split_documents(tokens: Tokens, end: int, *, newline: int | None = None) -> list[Tokens]:
    """Split token ids at the end tokens, which are dropped; ids after the last one are dropped too.

    If end tokens are on lines of their own, every document but the first begins with the newline after an end
    token. If `newline` is the id of that token, it is prepended to the first one, so that all are evaluated
    alike.

    >>> tokens = np.array([5, 6, 0, 1, 7, 0], dtype=np.uint16)
    >>> [document.tolist() for document in split_documents(tokens, end=0, newline=1)]
    [[1, 5, 6], [1, 7]]
    """
    ends = np.flatnonzero(tokens == end)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    documents = [tokens[first:last] for first, last in zip(starts, ends, strict=True)]
    if newline is not None and documents:
        after_end = tokens[ends[0] + 1 : ends[0] + 2]
        if after_end.tolist() == [newline] and documents[0][:1].tolist() != [newline]:
            documents[0] = np.insert(documents[0], 0, newline)  # type: ignore[assignment]
    return documents


def evaluate_tokens(
    model: TransformerLM,
    documents: Sequence[Tokens],
    end: int,
    *,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> list[Float64[np.ndarray, " _"]]:
    """Return the bits of each token of each document, its end token included."""
    ids = [np.concatenate(([end], document, [end])).astype(np.int64) for document in documents]
    bits = [np.zeros(len(each) - 1) for each in ids]
    context_length = model.config.context_length
    windows = [
        (number, window)
        for number, row in enumerate(ids)
        for window in plan_windows(len(row), context_length)
    ]
    windows.sort(key=lambda each: each[1].end - each[1].start)  # similar lengths share a batch
    device = model.output_weight.device
    unfinished = Counter(document for document, _ in windows)
    done = 0
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        longest = batch[-1][1]
        rows = torch.full((len(batch), longest.end - longest.start), end, dtype=torch.long)
        for row, (document, window) in zip(rows, batch, strict=True):
            part = ids[document][window.start : window.end]
            row[: len(part)] = torch.from_numpy(part)
        found = compute_losses(model, rows.to(device)).cpu().double().numpy() / math.log(2)
        for row_bits, (document, window) in zip(found, batch, strict=True):
            kept = slice(window.first - window.start - 1, window.end - window.start - 1)
            bits[document][window.first - 1 : window.end - 1] = row_bits[kept]
            unfinished[document] -= 1
            done += not unfinished[document]
        if progress is not None:
            progress(done, len(ids))
    return bits
