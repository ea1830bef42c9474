"""Tells stories: story `index` under a `seed` is always the same, whoever asks and in whatever order.

A keyed hash of (seed, index) gives a stream of 64-bit words, one for each choice. A word w chooses among
weights that add up to t by w * t / 2^64, so each alternative is as probable as its weight says, up to one
part in 2^64. First the plot is drawn, variable after variable, then it is worded. Nothing is ever taken back:
a story that was rejected afterwards would make all the others more probable than stated.

Validation stories are those whose whole plot hashes into one tenth of all hashes. No plot is in both halves,
whatever the seeds; a story's text never decides where it goes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from bytewright.corpus import SEPARATOR
from bytewright.corpus.storybook.grammar import Choice, Grammar, Mention, Part, Plot

Split = Literal["train", "validation"]
VALIDATION_SHARE = 0.1
SPLIT_KEY = b"bytewright storybook: train or validation"


WORD_BITS = 64


@dataclass(frozen=True, slots=True)
class Story:
    """A story, what it weighs, and the plot behind it."""

    text: str
    bits: float
    """-log2 of its probability."""
    plot: dict[str, str]


class _Chooser:
    """A choice made ready: for every plot that it can depend on, what each draw means and costs."""

    __slots__ = ("choice", "depends_on", "results", "tables")

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.depends_on = choice.depends_on
        self.results: list[Any] = []
        self.tables: dict[object, _Table] = {}

    def table(self, plot: Plot) -> _Table:
        """Find the table for a plot; it is made when it is needed first."""
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
"""The sum t of the weights, and for each number below t the bits and the result of the choice."""


class Teller:
    """Tells the stories of one grammar."""

    def __init__(self, grammar: Grammar) -> None:
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
        """Tell one story."""
        draw = self._draws(seed, index)
        plot, plot_bits = self._draw_plot(draw)
        pieces: list[str] = []
        bits = self._word(self._start, plot, draw, pieces.append)
        return Story("".join(pieces), plot_bits + bits, self.grammar.named(plot))

    def stories(self, seed: int, split: Split | None = None, start: int = 0) -> Iterator[Story]:
        """Tell stories without end: all of them, or those of one split."""
        for index in count(start):
            if split is None or self.split_of(seed, index) == split:
                yield self.story(seed, index)

    def split_of(self, seed: int, index: int) -> Split:
        """Tell in which split a story is, by its plot alone."""
        plot, _ = self._draw_plot(self._draws(seed, index))
        return self.split_of_plot(plot)

    def lines(self, seed: int, indices: range, split: Split) -> list[tuple[bytes, float]]:
        """Tell those of some stories that are in a split as they stand in a file, each with its bits."""
        told = []
        for index in indices:
            draw = self._draws(seed, index)
            plot, plot_bits = self._draw_plot(draw)
            if self.split_of_plot(plot) != split:
                continue
            pieces: list[str] = []
            bits = self._word(self._start, plot, draw, pieces.append)
            pieces.append(SEPARATOR)
            told.append(("".join(pieces).encode(), plot_bits + bits))
        return told

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
        """Tell in which split all stories with a plot are, whatever the seed."""
        values = [
            variable.values[value] for variable, value in zip(self.grammar.variables, plot, strict=True)
        ]
        digest = hashlib.blake2b("\n".join(values).encode(), key=SPLIT_KEY, digest_size=8).digest()
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
