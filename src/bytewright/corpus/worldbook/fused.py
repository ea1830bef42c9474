"""Compile a grammar and a world for the fused generator, which is written in Rust (`crates/worldbook`).

`machine` is the reference: a test compares documents byte for byte. An instruction has five numbers: an
operation, and up to four arguments, which are indices into the tables of the program. -1 means none.
"""

from __future__ import annotations

from typing import get_args

from bytewright._native import WorldbookWriter
from bytewright.corpus.storybook.grammar import Call
from bytewright.corpus.worldbook.grammar import WorldGrammar
from bytewright.corpus.worldbook.machine import Machine
from bytewright.corpus.worldbook.template_parts import (
    NAME,
    THING,
    TURNS,
    Fact,
    Form,
    Holder,
    Nest,
    Number,
    Operation,
    Part,
    Person,
    Pick,
    Pronoun,
    Repeat,
    Result,
    Thing,
    Turn,
)
from bytewright.corpus.worldbook.world import FIRST, LAST

Instruction = tuple[int, int, int, int, int]
FORMS, OPERATIONS = get_args(Form), get_args(Operation)


def make_writer(machine: Machine) -> WorldbookWriter:
    """Return the fused generator of a machine's grammar and world."""
    grammar, world, limits = machine.grammar, machine.world, machine.grammar.limits
    compiler = _Compiler(grammar)
    rules = [
        [(each.weight, [compiler.instruction(part) for part in each.parts]) for each in rule.alternatives]
        for rule in grammar.rules.values()
    ]
    return WorldbookWriter(
        texts=list(compiler.texts),
        lexicons=[
            (each.forms["plain"], each.forms["article"], each.forms["capital"], each.weights)
            for each in grammar.lexicons.values()
        ],
        rules=rules,
        genres=[(compiler.rules[name], weight) for name, weight in grammar.genres.items()],
        facts=[compiler.lexicons[name] for name in grammar.facts],
        turns=[(compiler.rules[name], weight) for name, weight in zip(TURNS, grammar.turns, strict=True)],
        things_and_names=(compiler.lexicons[THING], compiler.lexicons[NAME]),
        num_variables=len(compiler.variables),
        recency=list(machine.recency),
        limits=(
            limits.max_sections,
            limits.max_depth,
            limits.max_things,
            limits.urn_gain,
            limits.stop_weight,
        ),
        seed=world.seed,
        buckets=[(bucket.first, bucket.size, bucket.weight) for bucket in world.buckets],
        syllables=[list(syllables) for syllables in (*FIRST, *LAST)],
    )


class _Compiler:
    """Numbers the names of a grammar."""

    def __init__(self, grammar: WorldGrammar) -> None:
        self.rules = {name: number for number, name in enumerate(grammar.rules)}
        self.lexicons = {name: number for number, name in enumerate(grammar.lexicons)}
        self.texts: dict[str, int] = {}
        self.variables: dict[str, int] = {}
        self.lexicon_of: dict[str, str] = {
            part.variable: part.lexicon
            for rule in grammar.rules.values()
            for alternative in rule.alternatives
            for part in alternative.parts
            if isinstance(part, Pick) and part.variable is not None
        }

    def instruction(self, part: Part) -> Instruction:
        """Return the instruction of a part."""
        operation, *arguments = self._encode(part)
        padded = [*arguments, *[-1] * (4 - len(arguments))]
        return operation, padded[0], padded[1], padded[2], padded[3]

    def _encode(self, part: Part) -> tuple[int, ...]:
        match part:
            case str():
                return 0, self._text(part)
            case Call(name):
                return 1, self.rules[name]
            case Nest(name):
                return 2, self.rules[name]
            case Pick(name, form, variable, other):
                return (
                    3,
                    self.lexicons[name],
                    FORMS.index(form),
                    self._variable(variable),
                    self._variable(other),
                )
            case Repeat(variable, form):
                lexicon = self.lexicons[self.lexicon_of[variable]]
                return 4, self._variable(variable), lexicon, FORMS.index(form)
            case Person(which):
                return (("new", "other", "same").index(which) + 5,)
            case Fact(number, form):
                return 8, number, FORMS.index(form)
            case Pronoun(forms):
                return 9, self._text(forms[0]), self._text(forms[1])
            case Number(operation, low, high):
                return 10, OPERATIONS.index(operation), low, high
            case Result():
                return (11,)
            case Turn():
                return (12,)
            case Thing(which, form):
                return ("new", "old", "same").index(which) + 13, FORMS.index(form)
            case Holder(which):
                return (("first", "next", "now").index(which) + 16,)

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def _variable(self, name: str | None) -> int:
        return -1 if name is None else self.variables.setdefault(name, len(self.variables))
