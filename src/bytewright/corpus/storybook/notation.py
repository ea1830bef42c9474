r"""Read a grammar from its text notation, and report mistakes with their line.

    plot sex: he, him, his              # a plot variable, and the forms in which its values are written
        he | him | his
        she | her | her
    syllables first
        Mi Lo Ta
    plot name
        [sex=she] {first} + la na ri    # every first half with every second half
        3 [sex=he] Tom, Ben             # a weight each; without one it is 1
    beat story
        {Name} (had|found) {a colour} kite. {He} flew it {how}.
    phrase how
        with {his} {colour} gloves
        [sex=he] in the rain
    words colour
        red, blue, orange

A section is a heading at the margin with items below it. Items are indented by four spaces, and lines that
are indented further continue the previous item.

An item can be chosen if its guard holds. The guard `[sex=she name!=Mila]` tests values of variables that are
drawn earlier, and `[sex.him=her]` tests a form of the value. In a template, `{x}` inserts a variable, one of
its forms, or a rule. `{X}` inserts it with a capital, `{a x}` with its article, and `(x|y)` inserts either
text. A `beat` consists of whole sentences. ` / ` between sentences begins a paragraph. `-` is an empty beat,
and the space before it is omitted. `words` lists alternatives between commas. The first beat is the story.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from bytewright.corpus.sections import Item, Place, Section, read_sections, read_template
from bytewright.corpus.storybook.grammar import (
    ARTICLE,
    CAPITAL,
    SPACE,
    Alternative,
    Call,
    Choice,
    Guard,
    Mention,
    Part,
    Parts,
    StoryGrammar,
    Variable,
    add_changed_rules,
    calls_of,
    change,
    original_name,
)

HEADING = re.compile(r"(syllables|plot|beat|phrase|words) ([a-z_]+)(?:: ([a-z_]+(?:, [a-z_]+)*))?")
CONDITION = re.compile(r"([a-z_]+)(?:\.([a-z_]+))?(!?=)(\S+)")
REFERENCE = re.compile(r"(?:([aA]) )?([A-Za-z_]+)(?:\.([a-z_]+))?")


def read_story_grammar(text: str, file: str = "grammar") -> StoryGrammar:
    r"""Return the grammar written in `text`; error messages name `file`.

    >>> grammar = read_story_grammar("plot name\n    Tom, Ida\nbeat story\n    {name} (sat|ran).")
    >>> grammar.variables[0].values, list(grammar.rules)
    (('Tom', 'Ida'), ['story', 'story(1)'])
    """
    return _Reader(read_sections(text, file, HEADING), Place(file, text.count("\n") + 1)).read()


class _Reader:
    def __init__(self, sections: Sequence[Section], end: Place) -> None:
        self.sections = sections
        self.place = end
        self.syllables: dict[str, list[str]] = {}
        self.variables: list[Variable] = []
        self.rules: dict[str, Choice] = {}
        self.kinds = {each.name: each.kind for each in sections if each.kind in ("beat", "phrase", "words")}
        self.beats = [name for name, kind in self.kinds.items() if kind == "beat"]

    def read(self) -> StoryGrammar:
        if not self.beats:
            self.place.reject("expected at least one beat")
        for section in self.sections:
            self.place = section.place
            if section.kind == "syllables":
                self.syllables[section.name] = " ".join(item.text for item in section.items).split()
            elif section.kind == "plot":
                self._read_variable(section)
        for section in self.sections:
            self.place = section.place
            if section.name in self.kinds:
                self._read_rule(section)
        unchangeable = add_changed_rules(self.rules, self.beats)
        if unchangeable:
            self.place.reject(f"{unchangeable} can be empty, so it cannot get an article, capital or space")
        self._check_recursion()
        return StoryGrammar(tuple(self.variables), self._used_rules(), self.beats[0], frozenset(self.beats))

    # Variables

    def _read_variable(self, section: Section) -> None:
        options: list[Alternative] = []
        rows: list[tuple[str, ...]] = []
        for item in section.items:
            self.place = item.place
            values = [tuple(form.strip() for form in item.text.split("|"))]
            if len(section.forms) == 1:
                values = [(value,) for value in self._listed(item.text)]
            for value in values:
                if len(value) != len(section.forms):
                    self.place.reject(f"{section.name} needs {len(section.forms)} forms, found {len(value)}")
                options.append(Alternative(item.weight, self._guard(item), ()))
                rows.append(value)
        columns = tuple(zip(*rows, strict=True))
        twice = [value for value, count in Counter(columns[0]).items() if count > 1]
        if twice:
            section.place.reject(f"{section.name} has the value {twice[0]!r} twice")
        forms = dict(zip(section.forms, columns, strict=True))
        self.variables.append(Variable(section.name, tuple(options), forms))

    def _guard(self, item: Item) -> Guard:
        guard = []
        for condition in item.guard.split():
            match = CONDITION.fullmatch(condition)
            if not match:
                self.place.reject(f"expected a condition such as season=winter, found {condition!r}")
            name, form, relation, wanted = match.groups()
            number = next((k for k, variable in enumerate(self.variables) if variable.name == name), None)
            if number is None:
                self.place.reject(f"no plot variable {name} is drawn above")
            forms = self.variables[number].forms
            if form is not None and form not in forms:
                self.place.reject(f"{name} has no form {form}")
            spelled = forms[form] if form else self.variables[number].values
            listed = set(wanted.split(","))
            if not listed <= set(spelled):
                self.place.reject(f"{name} is never {min(listed - set(spelled))!r}")
            chosen = [k for k, value in enumerate(spelled) if (value in listed) == (relation == "=")]
            guard.append((number, frozenset(chosen)))
        return tuple(guard)

    def _listed(self, text: str) -> list[str]:
        """Return the entries between commas, or all combinations of syllables."""
        if " + " in text:
            return ["".join(chosen) for chosen in itertools.product(*map(self._syllables, text.split(" + ")))]
        listed = [entry.strip() for entry in text.split(",")]
        if not all(listed):
            self.place.reject(f"empty entry between commas in {text!r}")
        return listed

    def _syllables(self, text: str) -> list[str]:
        """Return the listed syllables, or those of the list that is named in braces."""
        if not text.startswith("{"):
            return text.split()
        if text[1:-1] not in self.syllables:
            self.place.reject(f"no syllables named {text[1:-1]} are defined above")
        return self.syllables[text[1:-1]]

    # Rules

    def _read_rule(self, section: Section) -> None:
        options = []
        for item in section.items:
            self.place = item.place
            guard = self._guard(item)
            templates = self._templates(section, item.text)
            options += [Alternative(item.weight, guard, template) for template in templates]
        self.rules[section.name] = Choice(section.name, tuple(options))

    def _templates(self, section: Section, text: str) -> list[Parts]:
        if section.kind == "words":
            return [self._template(section, entry) for entry in self._listed(text)]
        if section.kind == "phrase":
            return [self._template(section, text)]
        if text == "-":
            return [()]
        return [self._spaced(self._template(section, text.replace(" / ", "\n")))]

    def _template(self, section: Section, text: str) -> Parts:
        def add_choice(branches: Sequence[Parts]) -> Part:
            number = sum(name.startswith(f"{section.name}(") for name in self.rules) + 1
            name = f"{section.name}({number})"
            self.rules[name] = Choice(name, tuple(Alternative(1, (), parts) for parts in branches))
            return Call(name)

        return read_template(text, self.place, self._reference, add_choice)

    def _reference(self, text: str) -> Part:
        match = REFERENCE.fullmatch(text)
        if not match:
            self.place.reject(f"expected a name in braces, found {text!r}")
        indefinite, name, form = match.groups()
        part = self._resolve(name.lower(), form)
        if indefinite:
            part = change(part, ARTICLE)
        return change(part, CAPITAL) if (indefinite or name)[0].isupper() else part

    def _resolve(self, name: str, form: str | None) -> Part:
        found: list[Part] = [Call(name)] if form is None and name in self.kinds else []
        for number, variable in enumerate(self.variables):
            if variable.name == name and (form is None or form in variable.forms):
                found.append(Mention(number, variable.forms[form] if form else variable.values))
            elif form is None and name in variable.forms:
                found.append(Mention(number, variable.forms[name]))
        if len(found) != 1:
            wanted = f"{name}.{form}" if form else name
            self.place.reject(f"{{{wanted}}} is {'ambiguous' if found else 'not defined'}")
        return found[0]

    def _spaced(self, parts: Parts) -> Parts:
        """Move the space before each beat into the beat, so that it is omitted if the beat is empty."""
        made: list[Part] = []
        for part in parts:
            before = made[-1] if made else ""
            is_beat = isinstance(part, Call) and part.rule in self.beats
            if is_beat and isinstance(before, str) and before.endswith(" "):
                made[-1:] = [before[:-1]] if before[:-1] else []
                part = change(part, SPACE)
            made.append(part)
        return tuple(made)

    def _check_recursion(self) -> None:
        finished: set[str] = set()

        def visit(name: str, path: tuple[str, ...]) -> None:
            if name in path:
                self.place.reject(f"{name} calls itself: {' -> '.join([*path, name])}")
            if name not in finished:
                for option in self.rules[name].alternatives:
                    for called in calls_of(option.parts):
                        visit(called, (*path, name))
                finished.add(name)

        for name in self.rules:
            visit(name, ())

    def _used_rules(self) -> dict[str, Choice]:
        used: dict[str, Choice] = {}
        waiting = [self.beats[0]]
        while waiting:
            name = waiting.pop()
            if name not in used:
                used[name] = self.rules[name]
                waiting += [called for option in used[name].alternatives for called in calls_of(option.parts)]
                # The checker needs the sentences of a beat without the space.
                waiting += [name[1:]] if name[0] == SPACE else []
        unused = set(self.kinds) - {original_name(name) for name in used}
        if unused:
            self.place.reject(f"unused: {', '.join(sorted(unused))}")
        return used
