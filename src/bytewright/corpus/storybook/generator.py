"""Generate stories: a story is a function of (seed, index).

A hash of (seed, index) yields a stream of 64-bit words, one for each choice. A word w selects the alternative
at w * t / 2^64, where t is the sum of the weights. So each alternative has its stated probability, up to one
part in 2^64. The plot is drawn first, variable by variable, then its wording. No story is ever rejected,
because that would increase the probability of all others.

A story belongs to validation if the hash of its whole plot falls into a fixed tenth of all hashes. So no plot
occurs in both splits, for any seeds, and the text of a story does not affect its split.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from bytewright.corpus import SEPARATOR
from bytewright.corpus.storybook.grammar import Choice, Mention, Part, Plot, StoryGrammar

Split = Literal["train", "validation"]
VALIDATION_SHARE = 0.1
SPLIT_KEY = b"bytewright storybook: train or validation"
WORD_BITS = 64


@dataclass(frozen=True, slots=True)
class Story:
    """A story with its information content and its plot."""

    text: str
    bits: float
    """-log2 of its probability."""
    plot: dict[str, str]


class _Chooser:
    """A choice prepared for drawing: a table of results and costs for each relevant part of the plot."""

    __slots__ = ("choice", "depends_on", "results", "tables")

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.depends_on = choice.depends_on
        self.results: list[Any] = []
        self.tables: dict[object, _Table] = {}

    def table(self, plot: Plot) -> _Table:
        """Return the table for a plot; tables are created on first use."""
        depends_on = self.depends_on
        key = plot[depends_on[0]] if len(depends_on) == 1 else tuple([plot[k] for k in depends_on])
        table = self.tables.get(key)
        if table is None:
            table = self.tables[key] = self._make_table(plot)
        return table

    def _make_table(self, plot: Plot) -> _Table:
        outcomes: list[tuple[float, Any]] = []
        weights, costs = self.choice.weights(plot), self.choice.costs(plot)
        for weight, cost, result in zip(weights, costs, self.results, strict=True):
            outcomes += [(cost, result)] * weight
        return len(outcomes), outcomes


_Table = tuple[int, list[tuple[float, Any]]]
"""The sum t of the weights, and the bits and the result of the choice for each integer below t."""


class StoryGenerator:
    """Generates the stories of one grammar."""

    def __init__(self, grammar: StoryGrammar) -> None:
        self.grammar = grammar
        self._variables = [_Chooser(variable) for variable in grammar.variables]
        for chooser in self._variables:
            chooser.results = list(range(len(chooser.choice.alternatives)))
        rules = {name: _Chooser(rule) for name, rule in grammar.rules.items()}
        for chooser in rules.values():
            chooser.results = [
                tuple([_ready(part, rules) for part in option.parts])
                for option in chooser.choice.alternatives
            ]
        self._start = rules[grammar.start]
        self._stream = struct.Struct(f"<{grammar.max_choices}Q")

    def story(self, seed: int, index: int) -> Story:
        """Return one story."""
        draw = self._draws(seed, index)
        plot, plot_bits = self._draw_plot(draw)
        text, bits = self._write(plot, draw)
        return Story(text, plot_bits + bits, self.grammar.named(plot))

    def stories(self, seed: int, split: Split | None = None) -> Iterator[Story]:
        """Yield stories without end: all of them, or those of one split."""
        for index in count():
            if split is None or self.split_of(seed, index) == split:
                yield self.story(seed, index)

    def split_of(self, seed: int, index: int) -> Split:
        """Return the split of a story."""
        plot, _ = self._draw_plot(self._draws(seed, index))
        return self.split_of_plot(plot)

    def lines(self, seed: int, indices: range, split: Split) -> list[tuple[bytes, float]]:
        """Return the stories of a split among `indices` as bytes for a file, each with its bits."""
        lines = []
        for index in indices:
            draw = self._draws(seed, index)
            plot, plot_bits = self._draw_plot(draw)
            if self.split_of_plot(plot) == split:
                text, bits = self._write(plot, draw)
                lines.append((f"{text}{SEPARATOR}".encode(), plot_bits + bits))
        return lines

    def _write(self, plot: Plot, draw: Callable[[], int]) -> tuple[str, float]:
        """Return the text of a plot, and the bits of its wording."""
        pieces: list[str] = []
        bits = self._word(self._start, plot, draw, pieces.append)
        return "".join(pieces), bits

    def _draws(self, seed: int, index: int) -> Callable[[], int]:
        stream = self._stream
        key = hashlib.shake_128(f"storybook {seed} {index}".encode())
        return iter(stream.unpack(key.digest(stream.size))).__next__

    def _draw_plot(self, draw: Callable[[], int]) -> tuple[list[int], float]:
        plot: list[int] = []
        bits = 0.0
        for chooser in self._variables:
            total, outcomes = chooser.table(plot)
            cost, value = outcomes[draw() * total >> WORD_BITS]
            plot.append(value)
            bits += cost
        return plot, bits

    def split_of_plot(self, plot: Plot) -> Split:
        """Return the split of all stories with a plot."""
        values = "\n".join(self.grammar.named(plot).values())
        digest = hashlib.blake2b(values.encode(), key=SPLIT_KEY, digest_size=8).digest()
        return "validation" if int.from_bytes(digest) < VALIDATION_SHARE * 2**64 else "train"

    def _word(
        self, chooser: _Chooser, plot: Plot, draw: Callable[[], int], write: Callable[[str], None]
    ) -> float:
        total, outcomes = chooser.table(plot)
        bits, parts = outcomes[draw() * total >> WORD_BITS]
        for part in parts:
            kind = type(part)
            if kind is str:
                write(part)
            elif kind is tuple:
                write(part[1][plot[part[0]]])
            else:
                bits += self._word(part, plot, draw, write)
        return bits


def _ready(part: Part, rules: dict[str, _Chooser]) -> str | tuple[int, tuple[str, ...]] | _Chooser:
    if isinstance(part, str):
        return part
    return (part.variable, part.forms) if isinstance(part, Mention) else rules[part.rule]
