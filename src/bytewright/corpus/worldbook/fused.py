"""Compile a grammar and a world for the fused generator, which is written in Rust (`crates/worldbook`).

`machine` is the reference: a test compares documents byte for byte. An instruction has five numbers: an
`Opcode` and its arguments, padded with -1. The function `part` in `crates/bpe-python/src/worldbook.rs`
decodes it, and `Writer::write_part` in `crates/worldbook` executes it.
"""

from __future__ import annotations

from enum import IntEnum
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


class Opcode(IntEnum):
    """The operation of an instruction, with its arguments. Most of these are indices of the named kind."""

    TEXT = 0  # text
    CALL = 1  # rule
    NEST = 2  # rule
    PICK = 3  # lexicon, form, variable or -1, variable of the word that must differ or -1
    REPEAT = 4  # variable, its lexicon, form
    NEW_PERSON = 5  # none
    OTHER_PERSON = 6  # none
    SAME_PERSON = 7  # none
    FACT = 8  # fact, form
    PRONOUN = 9  # text for a woman, text for a man
    NUMBER = 10  # index in OPERATIONS; the bounds themselves: lowest number, highest number
    RESULT = 11  # none
    TURN = 12  # none
    NEW_THING = 13  # form
    OLD_THING = 14  # form
    SAME_THING = 15  # form
    FIRST_HOLDER = 16  # none
    NEXT_HOLDER = 17  # none
    PRESENT_HOLDER = 18  # none


PERSONS = {"new": Opcode.NEW_PERSON, "other": Opcode.OTHER_PERSON, "same": Opcode.SAME_PERSON}
THINGS = {"new": Opcode.NEW_THING, "old": Opcode.OLD_THING, "same": Opcode.SAME_THING}
HOLDERS = {"first": Opcode.FIRST_HOLDER, "next": Opcode.NEXT_HOLDER, "present": Opcode.PRESENT_HOLDER}


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
                return Opcode.TEXT, self._text(part)
            case Call(name):
                return Opcode.CALL, self.rules[name]
            case Nest(name):
                return Opcode.NEST, self.rules[name]
            case Pick(name, form, variable, other):
                variables = self._variable(variable), self._variable(other)
                return Opcode.PICK, self.lexicons[name], FORMS.index(form), *variables
            case Repeat(variable, form):
                lexicon = self.lexicons[self.lexicon_of[variable]]
                return Opcode.REPEAT, self._variable(variable), lexicon, FORMS.index(form)
            case Person(which):
                return (PERSONS[which],)
            case Fact(number, form):
                return Opcode.FACT, number, FORMS.index(form)
            case Pronoun(forms):
                return Opcode.PRONOUN, self._text(forms[0]), self._text(forms[1])
            case Number(operation, low, high):
                return Opcode.NUMBER, OPERATIONS.index(operation), low, high
            case Result():
                return (Opcode.RESULT,)
            case Turn():
                return (Opcode.TURN,)
            case Thing(which, form):
                return THINGS[which], FORMS.index(form)
            case Holder(which):
                return (HOLDERS[which],)

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def _variable(self, name: str | None) -> int:
        return -1 if name is None else self.variables.setdefault(name, len(self.variables))
