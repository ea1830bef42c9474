r"""Read the grammar of a world book from its text notation, and report mistakes with their line.

    limits numbers
        max_sections 64
    genres genres
        3 tale                          # the weight of the genre in a new document
    facts facts
        trade                           # each fact is a lexicon
    turns turns
        2 introduce                     # the weights of the turns of things
    words animal
        fox, owl, hare                  # all words have the same weight
    zipf herb
        thyme, sage                     # the weight falls as 1 / rank
    join town
        Ash Oak + ford mere             # every first half with every second half
    pairs thing
        brass iron + key bell           # the same with a space between the halves
    range year
        1600-1855
    rule tale
        2 Once there was {a hero=animal}. The {hero} met {a other=animal-hero}.

In a template, `{x}` calls the rule x, picks a word of the lexicon x, or mentions the variable x. `{v=x}`
picks a word and stores it in the variable v; `{v=x-w}` picks one that differs from the word of w. A variable
is mentioned only after its word is drawn, and a person only after `{person}`. `{nest x}` calls the rule x
one level deeper, with variables and a person of its own. `{person}` draws a person, `{person.other}`
another one, `{person.name}` repeats the last name, `{person.trade}` is a fact, and `{person.he}` is a
pronoun. `{#10-99}` draws a number, `{#+2-9}` draws a number and adds it, `{#}` writes the result.
`{thing.new}`, `{thing.old}`, `{thing}`, `{holder.first}`, `{holder.next}` and `{holder}` are explained in
`machine`. `{a x}` adds the article, and `{X}` a capital. `(x|y)` is either text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NoReturn

from bytewright.corpus.sections import Item, Place, Section, read_sections, read_template
from bytewright.corpus.storybook.grammar import Call
from bytewright.corpus.worldbook.grammar import GrammarError, Limits, WorldGrammar
from bytewright.corpus.worldbook.template_parts import (
    PRONOUNS,
    TURNS,
    Fact,
    Form,
    Holder,
    Lexicon,
    Nest,
    Number,
    Operation,
    Part,
    Person,
    Pick,
    Pronoun,
    Repeat,
    Result,
    Rule,
    Template,
    Thing,
    Turn,
    called_rules,
    show_part,
    zipf_weights,
)
from bytewright.errors import FormatError

HEADING = re.compile(r"(limits|genres|facts|turns|words|zipf|join|pairs|range|rule) ([a-z_]+)")
LEXICONS = ("words", "zipf", "join", "pairs", "range")
LIMIT = re.compile(r"([a-z_]+) (\d{1,9})")
RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
NUMBER = re.compile(r"#([+*-]?)(\d+)-(\d+)")
SLOT = re.compile(r"(?:([aA]) )?(?:([a-z]+)=)?([A-Za-z_]+)(?:\.([A-Za-z]+))?(?:-([a-z]+))?")

OPERATIONS: Mapping[str, Operation] = {"": "=", "+": "+", "-": "-", "*": "*"}
THINGS: Mapping[str | None, Literal["new", "old", "same"]] = {None: "same", "new": "new", "old": "old"}
HOLDERS: Mapping[str | None, Literal["first", "next", "present"]] = {
    None: "present",
    "first": "first",
    "next": "next",
}


def read_world_grammar(text: str, file: str = "grammar") -> WorldGrammar:
    """Return the grammar written in `text`; error messages name `file`, and the line if there is one."""
    return _Reader(read_sections(text, file, HEADING), file).read()


class _Reader:
    def __init__(self, sections: Sequence[Section], file: str) -> None:
        self.sections = sections
        self.file = file
        self.place = Place(file, 1)
        """The item that is being read."""
        self.places: dict[tuple[str, int | None], Place] = {}
        """The items of rules by their number, and the headings of sections by name and None."""
        self.rules: dict[str, Rule] = {}
        self.names = {each.name for each in sections if each.kind == "rule"}
        self.lexicons: dict[str, Lexicon] = {}
        self.facts: tuple[str, ...] = ()

    def read(self) -> WorldGrammar:
        for section in self.sections:
            self.places.setdefault((section.kind, None), section.place)  # of sections that are not repeated
            self.places[section.name, None] = section.place
            if section.kind in LEXICONS:
                self.place = section.place
                self.lexicons[section.name] = self._lexicon(section)
        self.facts = tuple(item.text for item in self._items("facts", self.lexicons))
        for section in self.sections:
            if section.kind == "rule":
                self._read_rule(section)
        genres = {item.text: item.weight for item in self._items("genres")}
        turns = {item.text: item.weight for item in self._items("turns", TURNS)}
        limits = self._limits()
        self._check_names()
        weights = tuple(turns.get(rule, 0) for rule in TURNS)
        try:
            return WorldGrammar(self.rules, self.lexicons, genres, self.facts, weights, Limits(**limits))
        except GrammarError as error:
            self._reject(error)

    def _reject(self, error: GrammarError) -> NoReturn:
        """Raise an error with the file, and with the line of what is wrong if it is in the file."""
        for place in ((str(error.section), error.alternative), (str(error.section), None)):
            if place in self.places:
                self.places[place].reject(error.problem)
        raise FormatError.at(self.file, error.problem)

    def _items(self, kind: str, known: Collection[str] | None = None) -> list[Item]:
        """Return the items of all sections of a kind; reject an item that is not one of the known names."""
        items = [item for section in self.sections if section.kind == kind for item in section.items]
        for item in items:
            if known is not None and item.text not in known:
                item.place.reject(f"{item.text!r} is not one of {', '.join(known)}")
        return items

    def _limits(self) -> dict[str, int]:
        limits: dict[str, int] = {}
        for item in self._items("limits"):
            match = LIMIT.fullmatch(item.text)
            if not match or match[1] not in Limits.__dataclass_fields__:
                item.place.reject(f"expected a limit such as max_depth 3, found {item.text!r}")
            limits[match[1]] = int(match[2])
            self.places.setdefault((match[1], None), item.place)
        for name in Limits.__dataclass_fields__:
            if name not in limits:
                raise FormatError.at(self.file, f"the limit {name} is missing")
        return limits

    def _check_names(self) -> None:
        """Check that the rules which genres, slots and turns call are defined, and that each rule is used."""
        used = set[str]()
        calls = [(item.text, item.place) for item in self._items("genres")]
        while calls:
            name, place = calls.pop()
            if name not in self.rules:
                place.reject(f"rule {name} is not defined")
            if name not in used:
                used.add(name)
                for number, alternative in enumerate(self.rules[name].alternatives):
                    place = self.places[name, number]
                    calls += [(called, place) for called in called_rules(alternative.parts)]
        for section in self.sections:
            if section.kind == "rule" and section.name not in used:
                section.place.reject(f"the rule {section.name} is not used")

    # Lexicons

    def _lexicon(self, section: Section) -> Lexicon:
        words: list[str] = []
        for item in section.items:
            self.place = item.place
            words += self._words(section.kind, item.text)
        weights = zipf_weights(len(words)) if section.kind == "zipf" else (1,) * len(words)
        return Lexicon(section.name, tuple(words), weights)

    def _words(self, kind: str, text: str) -> list[str]:
        if kind == "range":
            match = RANGE.fullmatch(text)
            if not match or int(match[1]) > int(match[2]):
                self.place.reject(f"expected a range such as 1600-1855, found {text!r}")
            return [str(number) for number in range(int(match[1]), int(match[2]) + 1)]
        if kind in ("words", "zipf") and " + " not in text:
            listed = [word.strip() for word in text.removesuffix(",").split(",")]
            if not all(listed):
                self.place.reject(f"expected words separated by one comma each, found {text!r}")
            return listed
        halves = [half.split() for half in text.split(" + ")]
        if len(halves) != 2:
            self.place.reject(f"expected two lists of halves, such as Ash Oak + ford mere, found {text!r}")
        left, right = halves
        between = " " if kind == "pairs" else ""
        # Both halves change from word to word, so that the frequent words of a Zipf lexicon are not alike.
        return [
            f"{first}{between}{right[(place + turn) % len(right)]}"
            for turn in range(len(right))
            for place, first in enumerate(left)
        ]

    # Rules

    def _read_rule(self, section: Section) -> None:
        alternatives: list[Template] = []
        for number, item in enumerate(section.items):
            self.place = self.places[section.name, number] = item.place
            alternatives.append(Template(item.weight, self._template(section.name, item.text)))
        self.rules[section.name] = Rule(section.name, tuple(alternatives))

    def _template(self, rule: str, text: str) -> tuple[Part, ...]:
        def add_choice(branches: Sequence[tuple[Part, ...]]) -> Part:
            if not all(branches):
                self.place.reject("a text between parentheses and bars is empty")
            number = sum(name.startswith(f"{rule}(") for name in self.rules) + 1
            name = f"{rule}({number})"
            self.rules[name] = Rule(name, tuple(Template(1, parts) for parts in branches))
            self.places |= {(name, number): self.place for number in range(len(branches))}
            return Call(name)

        return read_template(text, self.place, self._slot, add_choice)

    def _slot(self, text: str) -> Part:
        if text == "#":
            return Result()
        if text == "turn":
            return Turn()
        if match := NUMBER.fullmatch(text):
            operation, low, high = match.groups()
            return Number(OPERATIONS[operation], int(low), int(high))
        if text.startswith("nest "):
            return Nest(text.removeprefix("nest "))
        match = SLOT.fullmatch(text)
        if not match:
            self.place.reject(f"expected a slot, found {{{text}}}")
        indefinite, variable, name, property_, other = match.groups()
        is_capital = (property_ or name)[0].isupper()
        form: Form = "article" if indefinite else "capital" if is_capital else "plain"
        part = self._resolve(name.lower(), property_ and property_.lower(), form, variable, other)
        if (shown := show_part(part, self.facts)) != f"{{{text}}}":
            self.place.reject(f"{{{text}}} is not defined; expected {shown}")
        return part

    def _resolve(
        self, name: str, property_: str | None, form: Form, variable: str | None, other: str | None
    ) -> Part:
        if name == "person":
            if property_ in (None, "other", "name"):
                return Person("same" if property_ == "name" else "other" if property_ else "new")
            if property_ in PRONOUNS:
                woman, man = PRONOUNS[property_]
                return Pronoun((woman.capitalize(), man.capitalize()) if form == "capital" else (woman, man))
            if property_ in self.facts:
                return Fact(self.facts.index(property_), form)
        elif name == "thing":
            if property_ in (None, "new", "old"):
                return Thing(THINGS[property_], form)
        elif name == "holder":
            if property_ in (None, "first", "next"):
                return Holder(HOLDERS[property_])
        elif property_ is None and name in self.lexicons:
            return Pick(name, form, variable, other)
        elif property_ is None:
            return Call(name) if name in self.names else Repeat(name, form)
        return self.place.reject(f"{{{name}.{property_}}} is not defined")
