"""Evaluate a model on whole documents, and compare it with their entropy.

A *story* is a document that fits into the context, as those of the storybook do. Each story is read from the
end token before it to its own end token. Its first token is predicted from the preceding end token alone, and
its own end token is predicted too. A source that writes one document after another is coded the same way. So
the bits of a model are comparable with the -log2 p of the source.

    ids    = [end] + story + [end]
    bits   = sum of -log2 p(ids[i] | ids[:i]) for i = 1, 2, …
    result = sum of bits over all stories / sum of their bytes; the end token has no bytes

The windows of `train.evaluate` may begin inside a story. They lack its beginning, so their loss is higher.
`evaluate_text` evaluates the model of a run on a text file. If all its stories belong to the language of the
storybook, their entropy is the floor. Documents of the world book may be longer than the context, and their
bits are accounted for choice by choice (`world_eval`). `evaluate_documents` returns bits per byte alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Integer
from torch import Tensor

from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.storybook import Storybook, read_stories
from bytewright.corpus.worldbook import Derivation
from bytewright.data.sampler import Tokens
from bytewright.errors import BytewrightError, UsageError
from bytewright.experiments.evaluation.token_eval import evaluate_tokens
from bytewright.experiments.evaluation.world_eval import (
    ExcessReport,
    account_excess,
    describe_mismatch,
    find_derivations,
)
from bytewright.formatting import Progress
from bytewright.generate.scoring import compute_losses
from bytewright.model import TransformerLM
from bytewright.tokenizer import Tokenizer
from bytewright.train.checkpoint_list import Which
from bytewright.train.config import DeviceName
from bytewright.train.run_model import open_model
from bytewright.train.setup import count_token_bytes, select_device


@dataclass(frozen=True)
class StoryEvaluation:
    """Bits, predictions and bytes of each story, in the order of the file."""

    bits: Float64[np.ndarray, " stories"]
    """-log2 p of each story and its end token."""
    num_tokens: Int64[np.ndarray, " stories"]
    """Number of predictions per story, the end token included."""
    num_bytes: Int64[np.ndarray, " stories"]
    """Bytes of text per story."""

    @property
    def bits_per_byte(self) -> float:
        """Total bits divided by total bytes."""
        return float(self.bits.sum() / self.num_bytes.sum())

    @property
    def loss(self) -> float:
        """Mean loss per prediction, in nats."""
        return float(self.bits.sum() / self.num_tokens.sum() * math.log(2))

    def gap_to(self, floor_bits: Float64[np.ndarray, " stories"]) -> tuple[float, float]:
        """Return the bits per byte above the floor, given per story, and their standard error.

        Model and floor are compared on the same stories, so differences in difficulty cancel.
        """
        above = self.bits - floor_bits
        mean_bytes = self.num_bytes.mean()
        deviation = above - above.mean() / mean_bytes * self.num_bytes  # linearised error of a ratio
        error = deviation.std(ddof=1) / math.sqrt(len(above)) if len(above) > 1 else math.inf
        return float(above.mean() / mean_bytes), float(error / mean_bytes)


@dataclass(frozen=True)
class TextEvaluation:
    """The evaluation of a model on the stories of a text file, and their entropy if it is known."""

    evaluation: StoryEvaluation
    floor_bits: np.ndarray[tuple[int], np.dtype[np.float64]] | None
    """-log2 p of each story under its book; None if a story is not from a book."""
    excess: ExcessReport | None = None
    """For documents of the world book: the bits of the model and the true bits by kind of choice."""
    mismatch: str = ""
    """Why documents of the world book have no floor; empty if they have one."""

    @property
    def floor(self) -> float | None:
        """The entropy of the stories in bits per byte."""
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

    def evaluate(self, model: TransformerLM, progress: Progress | None = None) -> StoryEvaluation:
        """Evaluate a model on all documents; each must fit into the context."""
        return evaluate_stories(model, self.documents, self.end, self.token_bytes, progress=progress)


def evaluate_text(
    run: Path,
    file: Path,
    *,
    which: Which = "best",
    device: DeviceName = "auto",
    progress: Progress | None = None,
) -> TextEvaluation:
    """Evaluate the best or last checkpoint of `run` on the stories of a text file."""
    saved = open_model(run, which=which)
    try:
        text = DocumentTokens.read(file, saved.run.tokenizer)
    except UsageError as error:
        raise UsageError.at(run, error, key=error.key) from None
    model = saved.load(device=select_device(device), precision=saved.training_precision)
    derived = find_derivations(file, len(text.documents))
    try:
        if derived:
            return _evaluate_world(model, text, derived, progress)
        evaluation = text.evaluate(model, progress)
    except UsageError as error:
        mismatch = describe_mismatch(file)
        raise UsageError.at(file, f"{mismatch}; {error}" if mismatch else error) from None
    return TextEvaluation(evaluation, find_floor(file, len(text.documents)), mismatch=describe_mismatch(file))


def evaluate_documents(
    run: Path, files: Mapping[str, Path], *, device: DeviceName = "auto"
) -> dict[str, float]:
    """Return the bits per byte of the documents of each file, for the last checkpoint of a run.

    Documents that are longer than the context are read in overlapping windows (`token_eval`).
    """
    saved = open_model(run, which="last")
    model = saved.load(device=select_device(device), precision=saved.training_precision)
    found = {}
    for name, file in files.items():
        text = DocumentTokens.read(file, saved.run.tokenizer)
        bits = sum(float(each.sum()) for each in evaluate_tokens(model, text.documents, text.end))
        found[name] = bits / sum(int(text.token_bytes[story].sum()) for story in text.documents)
    return found


def _evaluate_world(
    model: TransformerLM,
    text: DocumentTokens,
    derived: list[tuple[str, Derivation]],
    progress: Progress | None,
) -> TextEvaluation:
    token_bits = evaluate_tokens(model, text.documents, text.end, progress=progress)
    evaluation = StoryEvaluation(
        bits=np.array([bits.sum() for bits in token_bits]),
        num_tokens=np.array([len(bits) for bits in token_bits]),
        num_bytes=np.array([text.token_bytes[story].sum() for story in text.documents]),
    )
    floor_bits = np.array([derivation.bits for _, derivation in derived])
    excess = account_excess(derived, text.documents, token_bits, text.token_bytes)
    return TextEvaluation(evaluation, floor_bits, excess)


def find_floor(file: Path, num_stories: int) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    """Return -log2 p of each story of a file, or None if a story is not from the storybook."""
    book = Storybook.load()
    bits: list[float] = []
    try:
        for text in read_stories(file):
            parse = book.parse(text)
            if not parse.num_derivations or len(bits) == num_stories:
                return None
            bits.append(parse.bits)
    except BytewrightError:  # not UTF-8, so not from the storybook
        return None
    return np.array(bits) if len(bits) == num_stories else None


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


def evaluate_stories(
    model: TransformerLM,
    stories: Sequence[Tokens],
    end: int,
    token_bytes: Int64[np.ndarray, " vocab"],
    *,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> StoryEvaluation:
    """Evaluate a model on whole stories; each must fit into the context together with its end token."""
    check_lengths(stories, model.config.context_length)
    num_bytes = np.array([token_bytes[story].sum() for story in stories], dtype=np.int64)
    if not num_bytes.any():
        raise UsageError("no text to evaluate: the stories contain only end tokens")
    bits = np.zeros(len(stories))
    done = 0
    for numbers in _batches_by_length(stories, batch_size):
        ids, is_story = pad_stories([stories[number] for number in numbers], end)
        device = model.output_weight.device
        losses = compute_losses(model, ids.to(device)) * is_story.to(device)
        bits[numbers] = losses.sum(dim=-1).cpu().double().numpy() / math.log(2)
        done += len(numbers)
        if progress is not None:
            progress(done, len(stories))
    num_tokens = np.array([len(story) + 1 for story in stories], dtype=np.int64)
    return StoryEvaluation(bits, num_tokens, num_bytes)


def check_lengths(stories: Sequence[Tokens], context_length: int) -> None:
    """Raise `UsageError` if there are no stories, or if one does not fit into the context."""
    if not stories:
        raise UsageError("no whole stories to evaluate: found no end token")
    longest = max(range(len(stories)), key=lambda number: len(stories[number]))
    if len(stories[longest]) + 1 > context_length:
        message = (
            f"story {longest + 1} has {len(stories[longest])} tokens, but a context of {context_length} holds"
            f" {context_length - 1} and the end token; evaluate a model with a longer context, or remove this"
            " story"
        )
        raise UsageError(message, expected=context_length - 1, found=len(stories[longest]))


def pad_stories(
    stories: Sequence[Tokens], end: int
) -> tuple[Integer[Tensor, "batch longest"], Bool[Tensor, "batch predictions"]]:
    """Return a batch of stories, each between two end tokens, and a mask of the predictions that count.

    Padding does not affect a story, since attention is causal.

    >>> ids, is_story = pad_stories([np.array([5, 6]), np.array([7])], end=0)
    >>> ids.tolist(), is_story.tolist()
    ([[0, 5, 6, 0], [0, 7, 0, 0]], [[True, True, True], [True, True, False]])
    """
    longest = max(map(len, stories))
    ids = torch.full((len(stories), longest + 2), end, dtype=torch.long)
    for row, story in zip(ids, stories, strict=True):
        row[1 : len(story) + 1] = torch.from_numpy(story.astype(np.int64))
    lengths = torch.tensor([len(story) + 1 for story in stories])
    return ids, torch.arange(longest + 1) < lengths.unsqueeze(-1)


def _batches_by_length(stories: Sequence[Tokens], batch_size: int) -> Iterator[list[int]]:
    """Yield batches of story indices; stories of similar length share a batch, to save padding."""
    order = sorted(range(len(stories)), key=lambda number: len(stories[number]))
    for first in range(0, len(order), batch_size):
        yield order[first : first + batch_size]
