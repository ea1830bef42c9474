"""Documents of the world book with known bits, and the excess of a model by kind, rank and distance.

A *cell* is a kind of choice, with a label of the person's rank, such as its decade, and the decade of the
distance of a recall. Every token belongs to one cell, so the bits of a model by cell are one sum per cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bytewright.corpus.storybook import read_stories
from bytewright.corpus.worldbook import Worldbook
from bytewright.experiments.evaluation.document_eval import DocumentTokens, evaluate_tokens
from bytewright.experiments.evaluation.world_eval import TEXT, decade, find_owners
from bytewright.tokenizer import Tokenizer


@dataclass(frozen=True)
class Documents:
    """Token ids of documents, the cell of each of their tokens, and the true bits of each cell."""

    ids: list[np.ndarray[Any, Any]]
    end: int
    cells: list[tuple[str, str, str]]
    """Kind, label of the rank, decade of the distance."""
    cell_of_token: list[np.ndarray[Any, Any]]
    true_bits: np.ndarray[Any, Any]
    """By document and cell."""
    num_choices: np.ndarray[Any, Any]
    """By document and cell."""
    num_bytes: np.ndarray[Any, Any]
    """By document."""

    @classmethod
    def read(
        cls,
        file: Path,
        book: Worldbook,
        tokenizer: Tokenizer,
        *,
        num_any: int,
        context_length: int,
        label_rank: Callable[[int | None], str] = decade,
    ) -> Documents:
        """Return the first `num_any` documents of a file, and those after them that fit into the context."""
        text = DocumentTokens.read(file, tokenizer)
        numbers: dict[tuple[str, str, str], int] = {}
        ids, owners, bits, choices, sizes = [], [], [], [], []
        for number, (story, tokens) in enumerate(zip(read_stories(file), text.documents, strict=True)):
            if number >= num_any and len(tokens) + 1 > context_length:
                continue
            groups = [list(g) for _, g in groupby(book.parse(story).choices, key=lambda choice: choice.start)]
            firsts = [TEXT, *(group[0] for group in groups)]
            labels = [(each.kind, label_rank(each.rank), decade(each.distance)) for each in firsts]
            cells = np.array([numbers.setdefault(label, len(numbers)) for label in labels])
            ids.append(np.asarray(tokens))
            owners.append(cells[find_owners(story, groups, tokens, text.token_bytes)])
            bits.append(
                list(zip(cells, [0.0, *(sum(c.bits for c in group) for group in groups)], strict=True))
            )
            choices.append(cells[1:])
            sizes.append(int(text.token_bytes[tokens].sum()))
        true_bits = np.zeros((len(ids), len(numbers)))
        num_choices = np.zeros((len(ids), len(numbers)), dtype=np.int64)
        for row, (pairs, of_choices) in enumerate(zip(bits, choices, strict=True)):
            for cell, each in pairs:
                true_bits[row, cell] += each
            np.add.at(num_choices[row], of_choices, 1)
        return cls(ids, text.end, list(numbers), owners, true_bits, num_choices, np.array(sizes))

    def fitting(self, context_length: int) -> np.ndarray[Any, Any]:
        """Return which documents fit into the context with their end token."""
        return np.array([len(each) + 1 <= context_length for each in self.ids])

    def model_bits(self, model: Any) -> np.ndarray[Any, Any]:
        """Return the bits of a model by document and cell, computed in float32 (TF32 on a GPU)."""
        precision, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
        compute_dtype, model.compute_dtype = model.compute_dtype, None
        try:
            found = evaluate_tokens(model, self.ids, self.end, batch_size=64)
        finally:
            model.compute_dtype = compute_dtype
            torch.backends.cuda.matmul.allow_tf32 = precision
        rows = [
            np.bincount(cells, weights=bits, minlength=len(self.cells))
            for cells, bits in zip(self.cell_of_token, found, strict=True)
        ]
        return np.array(rows)

    def summarise(self, chosen: np.ndarray[Any, Any]) -> dict[str, Any]:
        """Return what the chosen documents contain, by cell."""
        return {
            "documents": int(chosen.sum()),
            "bytes": int(self.num_bytes[chosen].sum()),
            "tokens": int(sum(len(self.ids[i]) + 1 for i in np.flatnonzero(chosen))),
            "true_bits": self.true_bits[chosen].sum(axis=0).tolist(),
            "choices": self.num_choices[chosen].sum(axis=0).tolist(),
        }


@dataclass(frozen=True)
class DocumentEvaluation:
    """Measures a model on validation documents, and on two sets of test documents."""

    validation: Documents
    test: Documents
    num_any: int
    context_length: int

    def sets(self) -> dict[str, tuple[Documents, np.ndarray[Any, Any]]]:
        """Return the documents of each set: any length, or only those that fit into the context."""
        first = np.arange(len(self.test.ids)) < self.num_any
        return {
            "validation": (self.validation, np.ones(len(self.validation.ids), dtype=bool)),
            "test": (self.test, first),
            "fitting": (self.test, self.test.fitting(self.context_length)),
        }

    def __call__(self, model: Any) -> Mapping[str, Any]:
        """Return the bits of the model by cell for each set."""
        found = {id(each): each.model_bits(model) for each in (self.validation, self.test)}
        return {
            "model_bits": {
                name: found[id(documents)][chosen].sum(axis=0).tolist()
                for name, (documents, chosen) in self.sets().items()
            }
        }
