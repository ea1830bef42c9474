"""The machine that executes a grammar: a builder makes the choices, and the machine stores the state.

Things: a turn introduces a thing with its first holder, moves a thing in play to another holder, or contains
a question about the holder. A thing in play is chosen by its position in the order of last mention. The
present holder follows from the turns before, so it has 0 bits, however long ago the last of them was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bytewright.corpus.storybook.grammar import Call
from bytewright.corpus.worldbook.choices import Between, LexiconWord, Options, Recent, SectionEnd, Someone
from bytewright.corpus.worldbook.derivation import Derivation, DerivationBuilder
from bytewright.corpus.worldbook.grammar import WorldGrammar
from bytewright.corpus.worldbook.template_parts import (
    NAME,
    THING,
    TURNS,
    Fact,
    Holder,
    Nest,
    Number,
    Part,
    Person,
    Pick,
    Pronoun,
    Repeat,
    Result,
    Rule,
    Thing,
    Turn,
    zipf_weights,
)
from bytewright.corpus.worldbook.world import World, is_woman, spell_name


@dataclass(slots=True)
class _Held:
    """A thing in play."""

    number: int
    holder: int
    moves: int
    known_at: int
    """The position where the text last stated the holder."""


@dataclass(slots=True)
class _State:
    """The state of a document."""

    things: list[_Held] = field(default_factory=list)
    """The things in play; the one that was mentioned last comes first."""
    first_holder: int | None = None
    new_thing: int | None = None


@dataclass(slots=True)
class _Frame:
    """The variables of a section, or of one level of nesting."""

    words: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The lexicon and the number of the word of each variable."""
    main: int = 0
    """The rank of the last new person."""
    rank: int = 0
    number: int = 0
    """The rank and the number of the last person."""
    result: int = 0


class Machine:
    """Executes a grammar in a world."""

    def __init__(self, grammar: WorldGrammar, world: World) -> None:
        self.grammar = grammar
        self.world = world
        self.recency = zipf_weights(grammar.limits.max_things)
        self._genres = list(grammar.genres)
        self._genre_firsts = [grammar.firsts_of(Call(genre)) for genre in self._genres]
        self._turn_firsts = [grammar.firsts_of(Call(rule)) for rule in TURNS]
        self._options = {
            name: [
                Options(grammar.firsts[name], [each.weight for each in rule.alternatives]),
                Options(grammar.firsts[name], [each.weight * (not each.nests) for each in rule.alternatives]),
            ]
            for name, rule in grammar.rules.items()
        }

    def run(self, builder: DerivationBuilder) -> Derivation:
        """Make all choices of one document with a builder."""
        limits, state = self.grammar.limits, _State()
        weights = list(self.grammar.genres.values())
        for num_sections in range(1, limits.max_sections + 1):
            builder.rule = "document"
            genre = builder.choose("genre", Options(self._genre_firsts, tuple(weights)))
            weights[genre] += limits.urn_gain
            self._write_rule(self.grammar.rules[self._genres[genre]], builder, state, _Frame())
            builder.rule = "document"
            go = num_sections + 1 if num_sections < limits.max_sections else 0
            if not builder.choose("length", SectionEnd(limits.stop_weight, go)):
                break
        return builder.finish()

    def _write_rule(self, rule: Rule, builder: DerivationBuilder, state: _State, frame: _Frame) -> None:
        builder.rule = rule.name
        number = 0
        if len(rule.alternatives) > 1:
            number = builder.choose(
                "wording", self._options[rule.name][builder.depth == self.grammar.limits.max_depth]
            )
        for part in rule.alternatives[number].parts:
            if isinstance(part, str):
                builder.put("text", part)
            else:
                self._write_slot(part, builder, state, frame)
                builder.rule = rule.name

    def _write_slot(self, part: Part, builder: DerivationBuilder, state: _State, frame: _Frame) -> None:
        grammar = self.grammar
        match part:
            case Call(name):
                self._write_rule(grammar.rules[name], builder, state, frame)
            case Nest(name):
                builder.depth += 1
                self._write_rule(grammar.rules[name], builder, state, _Frame())
                builder.depth -= 1
            case Pick(name, form, variable, other):
                taken = () if other is None else (frame.words[other][1],)
                number = builder.choose("word", LexiconWord(grammar.lexicons[name], form, taken))
                if variable is not None:
                    frame.words[variable] = (name, number)
            case Repeat(variable, form):
                name, number = frame.words[variable]
                builder.mention("mention", grammar.lexicons[name].forms[form][number])
            case Person("same"):
                builder.mention("mention", spell_name(frame.number))
            case Person(which):
                excluded = frame.main if which == "other" else None
                frame.rank = builder.choose("person", Someone(self.world, excluded))
                frame.number = self.world.number_of(frame.rank)
                if which == "new":
                    frame.main = frame.rank
            case Fact(kind, form):
                lexicon = grammar.lexicons[grammar.facts[kind]]
                value = self.world.fact(frame.number, kind, len(lexicon.words))
                builder.mention("fact", lexicon.forms[form][value], rank=frame.rank)
            case Pronoun(forms):
                builder.mention("pronoun", forms[0 if is_woman(frame.number) else 1])
            case Number(operation, low, high):
                number = builder.choose("number", Between(low, high))
                frame.result = _combine(frame.result, operation, number)
            case Result():
                builder.mention("result", str(frame.result))
            case Turn():
                self._write_turn(builder, state, frame)
            case Thing():
                self._write_thing(part, builder, state)
            case Holder(which):
                self._write_holder(which, builder, state)
            case _:
                raise AssertionError(part)

    # Things

    def _write_turn(self, builder: DerivationBuilder, state: _State, frame: _Frame) -> None:
        turn = builder.choose("turn", Options(self._turn_firsts, self.turn_weights(len(state.things))))
        rule = self.grammar.rules[TURNS[turn]]
        self._write_rule(rule, builder, state, frame)
        if rule.name == "introduce":
            assert state.new_thing is not None
            assert state.first_holder is not None
            state.things.insert(0, _Held(state.new_thing, state.first_holder, 0, builder.at))
        else:
            state.things[0].known_at = builder.at

    def turn_weights(self, num_things: int) -> Sequence[int]:
        """Return the weights of the turns, which depend on the number of things in play."""
        introduce, *others = self.grammar.turns
        if not num_things:
            return introduce, 0, 0
        return (introduce if num_things < self.grammar.limits.max_things else 0), *others

    def _write_thing(self, part: Thing, builder: DerivationBuilder, state: _State) -> None:
        lexicon = self.grammar.lexicons[THING]
        if part.which == "new":
            excluded = [thing.number for thing in state.things]
            state.new_thing = builder.choose("thing", LexiconWord(lexicon, part.form, excluded))
        elif part.which == "old":
            numbers = [thing.number for thing in state.things]
            position = builder.choose("recent thing", Recent(lexicon, part.form, numbers, self.recency))
            state.things.insert(0, state.things.pop(position))
        else:
            builder.mention("mention", lexicon.forms[part.form][state.things[0].number])

    def _write_holder(self, which: str, builder: DerivationBuilder, state: _State) -> None:
        lexicon = self.grammar.lexicons[NAME]
        if which == "first":
            state.first_holder = builder.choose("holder", LexiconWord(lexicon, "plain"))
            return
        thing = state.things[0]
        if which == "next":
            thing.holder = builder.choose("holder", LexiconWord(lexicon, "plain", (thing.holder,)))
            thing.moves += 1
        else:
            builder.mention(
                "recall", lexicon.words[thing.holder], distance=builder.at - thing.known_at, moves=thing.moves
            )


def _combine(result: int, operation: str, number: int) -> int:
    match operation:
        case "+":
            return result + number
        case "-":
            return result - number
        case "*":
            return result * number
    return number
