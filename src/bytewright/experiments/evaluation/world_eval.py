"""Account for the bits of a model on documents of the world book, choice by choice.

    excess = bits of the model - bits of the true probabilities

Both are assigned to the choices of the derivation. A choice owns the text that shows it. Choices that the
same text shows, such as the genre and the first words of a section, are listed under the first of them. A
token belongs to the choice that owns its last byte, because tokens begin with the space before a word. The
end token belongs to the choice to end the document. Text that no choice owns follows from the template: kind
`text`.

Each table groups all choices by one property, so the rows of each table add up to the same totals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64

from bytewright.corpus import SEPARATOR
from bytewright.corpus.storybook import read_stories
from bytewright.corpus.worldbook import Derivation, DerivedChoice, World, Worldbook
from bytewright.corpus.worldbook.check import check_document, recognise_book
from bytewright.corpus.worldbook.files import read_world_manifest
from bytewright.data.sampler import Tokens
from bytewright.errors import BytewrightError
from bytewright.storage.manifest import manifest_path_of

TEXT = DerivedChoice(kind="text", rule="text", start=0, end=0, weight=1, total=1, depth=0)
"""The owner of text that no choice shows."""


@dataclass
class ExcessRow:
    """The sums over the choices with one value of a property."""

    num_choices: int = 0
    num_tokens: int = 0
    true_bits: float = 0.0
    model_bits: float = 0.0

    @property
    def excess(self) -> float:
        """The bits of the model above the true ones."""
        return self.model_bits - self.true_bits


ExcessTable = dict[str, ExcessRow]


def add_rows(rows: Iterable[ExcessRow]) -> ExcessRow:
    """Return the sums of rows."""
    total = ExcessRow()
    for row in rows:
        total.num_choices += row.num_choices
        total.num_tokens += row.num_tokens
        total.true_bits += row.true_bits
        total.model_bits += row.model_bits
    return total


def decade(number: int | None) -> str:
    """Return the decade of a number as text.

    >>> decade(7), decade(10), decade(123), decade(None)
    ('1-9', '10-99', '100-999', '-')
    """
    if number is None:
        return "-"
    low = 10 ** (len(str(max(number, 1))) - 1)
    return f"{low:,}-{10 * low - 1:,}"


PROPERTIES: dict[str, Callable[[DerivedChoice], str]] = {
    "kind": lambda choice: choice.kind,
    "rule": lambda choice: choice.rule.partition("(")[0],
    "rank": lambda choice: decade(choice.rank),
    "distance": lambda choice: decade(choice.distance),
    "depth": lambda choice: str(choice.depth),
    "moves": lambda choice: "-" if choice.moves is None else str(choice.moves),
}
"""The property of each table, as the label of a row."""


@dataclass(frozen=True)
class ExcessReport:
    """The tables over all documents by the name of the property."""

    tables: dict[str, ExcessTable]

    def total(self, name: str = "kind") -> ExcessRow:
        """Return the sums over the rows of a table."""
        return add_rows(self.tables[name].values())


def find_derivations(file: Path, num_documents: int) -> list[tuple[str, Derivation]] | None:
    """Return the texts and derivations of a file of the world book; None if a document is not from it.

    The manifest next to the file states the world; without one it is the default world. Documents must end
    as in the files that Bytewright writes, so that their tokens can be located.
    """
    manifest = read_world_manifest(file)
    book = Worldbook(World() if manifest is None else manifest.world)
    try:
        found: list[tuple[str, Derivation]] = []
        for text in read_stories(file):
            if len(found) == num_documents:
                return None
            found.append((text, book.parse(text)))
    except BytewrightError:
        return None
    size = sum(len(text) + len(SEPARATOR) for text, _ in found)
    sizes = size, size - 1  # an editor may have removed the last line end, which belongs to no document
    return found if len(found) == num_documents and file.stat().st_size in sizes else None


def describe_mismatch(file: Path) -> str:
    """Return why a text of the world book has no derivations; empty if the text is not of the world book.

    The cause is often a missing manifest, or documents of several worlds in one file.
    """
    try:
        manifest = read_world_manifest(file)
        world = World() if manifest is None else manifest.world
        if recognise_book(file, world) != "worldbook":
            return ""
        book = Worldbook(world)
        for number, text in enumerate(read_stories(file), 1):
            checked = check_document(book, text)
            if not checked.is_consistent:
                place = checked.leaves_at_character
                leaves = f"leaves the grammar at character {place}"
                problem = "states wrong facts" if place is None else leaves
                default = f"which is the default without the manifest {manifest_path_of(file).name}"
                source = "as in the manifest" if manifest else default
                return f"document {number} {problem} in the world with seed {world.seed}, {source}"
    except BytewrightError:
        return ""
    return ""


def account_excess(
    documents: Sequence[tuple[str, Derivation]],
    tokens: Sequence[Tokens],
    bits: Sequence[Float64[np.ndarray, " _"]],
    token_bytes: Int64[np.ndarray, " vocab"],
) -> ExcessReport:
    """Return the tables of documents, given the ids and the bits of their tokens, the end token included."""
    tables: dict[str, ExcessTable] = {name: {} for name in PROPERTIES}
    for (text, derivation), ids, token_bits in zip(documents, tokens, bits, strict=True):
        groups = [list(group) for _, group in groupby(derivation.choices, key=lambda choice: choice.start)]
        owners = find_owners(text, groups, ids, token_bytes)
        model_bits = np.bincount(owners, weights=token_bits, minlength=len(groups) + 1)
        num_tokens = np.bincount(owners, minlength=len(groups) + 1)
        for number, group in enumerate([[TEXT], *groups]):
            true_bits = sum(choice.bits for choice in group)
            for name, label in PROPERTIES.items():
                row = tables[name].setdefault(label(group[0]), ExcessRow())
                row.num_choices += group[0] is not TEXT
                row.num_tokens += int(num_tokens[number])
                row.true_bits += true_bits
                row.model_bits += float(model_bits[number])
    return ExcessReport({name: _sort_rows(name, table) for name, table in tables.items()})


def _sort_rows(name: str, table: ExcessTable) -> ExcessTable:
    """Order rows by their number, or by their excess if the labels are names."""
    if name in ("kind", "rule"):
        return dict(sorted(table.items(), key=lambda item: -item[1].excess))
    return dict(sorted(table.items(), key=lambda item: (len(item[0].partition("-")[0]), item[0])))


def find_owners(
    text: str,
    groups: Sequence[Sequence[DerivedChoice]],
    ids: Tokens,
    token_bytes: Int64[np.ndarray, " vocab"],
) -> Int64[np.ndarray, " predictions"]:
    """Return the owner of each token and of the end token: 0 for text, or the number of a group from 1."""
    owner_of_byte = np.zeros(len(text), dtype=np.int64)
    for number, group in enumerate(groups, 1):
        owner_of_byte[group[0].start : group[0].end] = number
    ends = np.cumsum(token_bytes[ids])
    num_before = int(ends[-1]) - len(text) - 1  # the line end after the end token of the document before
    places = ends - 1 - num_before
    owners = np.full(len(ids) + 1, len(groups), dtype=np.int64)
    owners[:-1][places < 0] = 0
    is_inside = (places >= 0) & (places < len(text))
    owners[:-1][is_inside] = owner_of_byte[places[is_inside]]
    return owners
