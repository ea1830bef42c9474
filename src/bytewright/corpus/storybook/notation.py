r"""Reads a grammar from the plain text in which people write it, and complains about what makes no sense.

    plot sex: he, him, his
        he | him | his
        she | her | her
    syllables first
        Mi Lo Ta
    plot name
        [sex=she] {first} + la na ri        # every first half with every second half
        3 [sex=he] Tom                      # a weight; without one it is 1
    beat story
        {Name} (had|found) {a colour} kite. {farewell}
    phrase verdict
        it was {quality}
        nobody liked it
    words quality
        good, bad, [sex=he] splendid

An indented line is one thing that can be chosen (of `words`, each between commas is); a line indented further
continues it. `[season=winter,autumn
friend!=none]` guards it: it can be chosen only when variables drawn above have such values, or values with
such a form. In a template `{x}` stands for a variable, one of its forms, or a rule; `{X}` for the same with a
capital, `{a x}` for the same with its article, `(x|y)` for either text. A `beat` consists of whole sentences;
` / ` between them starts a new paragraph, and the template `-` is an empty beat, which takes its space along.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from bytewright.corpus.storybook.grammar import (
    Alternative,
    Call,
    Choice,
    Grammar,
    Guard,
    Mention,
    Part,
    Parts,
    Variable,
    calls_of,
)
from bytewright.errors import FormatError

HEADING = re.compile(r"(syllables|plot|beat|phrase|words) ([a-z_]+)(?:: ([a-z_]+(?:, [a-z_]+)*))?")
ITEM = re.compile(r"(?:(?P<weight>\d+) )?(?:\[(?P<guard>[^\]]*)\] )?(?P<text>.*)", re.DOTALL)
CONDITION = re.compile(r"([a-z_]+)(?:\.([a-z_]+))?(!?=)(\S+)")
TOKEN = re.compile(r"\{([^{}]*)\}|([(|)])|([^{}(|)]+)")
REFERENCE = re.compile(r"(?:([aA]) )?([A-Za-z_]+)(?:\.([a-z_]+))?")
INDENT = 4


def article(words: str) -> str:
    """Choose between "a" and "an" by the sound that the first letters make.

    >>> [article(words) for words in ("owl", "fox", "unicorn", "hour", "old goat", "umbrella")]
    ['an', 'a', 'a', 'an', 'an', 'an']
    """
    if re.match(r"uni|use|one\b|eu", words, re.IGNORECASE):
        return "a"
    return "an" if re.match(r"[aeiou]|hour|honest", words, re.IGNORECASE) else "a"


def with_article(words: str) -> str:
    """Put the indefinite article before words."""
    return f"{article(words)} {words}"


def with_capital(words: str) -> str:
    """Make the first letter a capital, leaving the others as they are."""
    return words[:1].upper() + words[1:]


def with_space(words: str) -> str:
    """Put a space before words, if there are any."""
    return words and f" {words}"


# What can be done to the beginning of a text, by the mark under which the changed rule is kept.
ARTICLE, CAPITAL, SPACE = "&", "^", " "
CHANGES: Mapping[str, Callable[[str], str]] = {
    ARTICLE: with_article,
    CAPITAL: with_capital,
    SPACE: with_space,
}
MARKS = "".join(CHANGES)


@dataclass
class _Section:
    kind: str
    name: str
    forms: list[str]
    line: int
    items: list[tuple[int, str]] = field(default_factory=list)


def read_grammar(text: str, file: str = "grammar") -> Grammar:
    r"""Read a grammar; its first beat words the story. `file` is what complaints call it.

    >>> grammar = read_grammar("plot name\n    Tom\n    Ida\nbeat story\n    {name} (sat|ran).")
    >>> grammar.variables[0].values, len(grammar.rules)
    (('Tom', 'Ida'), 2)
    """
    return _Reader(file).read(text)


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.line = 0
        self.syllables: dict[str, list[str]] = {}
        self.variables: list[Variable] = []
        self.rules: dict[str, Choice] = {}
        self.kinds: dict[str, str] = {}
        self.current = ""
        self.num_inline = 0

    def read(self, text: str) -> Grammar:
        sections = list(self._sections(text))
        rules = [section for section in sections if section.kind in ("beat", "phrase", "words")]
        for section in sections:
            if section.kind == "syllables":
                self.syllables[section.name] = [word for _, item in section.items for word in item.split()]
            elif section.kind == "plot":
                self._read_variable(section)
        for section in rules:
            self.kinds[section.name] = section.kind
        for section in rules:
            self._read_rule(section)
        start = next((section.name for section in rules if section.kind == "beat"), None)
        if start is None:
            self._refuse("has no beat to begin with")
        self._complete()
        self._refuse_circles()
        rules_used = self._reachable(start)
        beats = frozenset(name for name in self.kinds if self.kinds[name] == "beat")
        return Grammar(tuple(self.variables), rules_used, start, beats)

    def _refuse(self, complaint: str) -> NoReturn:
        raise FormatError(f"{self.file}, line {self.line}: {complaint}")

    # Lines

    def _sections(self, text: str) -> Iterator[_Section]:
        section: _Section | None = None
        names: set[str] = set()
        for self.line, raw in enumerate(text.splitlines(), 1):
            line = re.sub(r"(^|\s+)#.*", "", raw).rstrip()
            if not line:
                continue
            indent = len(line) - len(line.lstrip())
            if indent == 0:
                if section is not None:
                    yield section
                heading = HEADING.fullmatch(line)
                if not heading:
                    self._refuse(f"expected a heading such as 'phrase colour', found {line!r}")
                kind, name, forms = heading.groups()
                if name in names:
                    self._refuse(f"{name} is defined twice")
                names.add(name)
                section = _Section(kind, name, (forms or "").split(", ") if forms else [name], self.line)
            elif section is None:
                self._refuse("an indented line stands before the first heading")
            elif indent == INDENT or not section.items:
                section.items.append((self.line, line.strip()))
            else:
                number, begun = section.items[-1]
                section.items[-1] = (number, f"{begun} {line.strip()}")
        if section is not None:
            yield section

    def _item(self, text: str) -> tuple[int, Guard, str]:
        match = ITEM.fullmatch(text)
        assert match, "the pattern fits every line"
        weight = int(match["weight"] or 1)
        if not weight or not match["text"]:
            self._refuse(f"a weight of at least 1 and a text are needed, found {text!r}")
        return weight, self._guard(match["guard"] or ""), match["text"]

    def _guard(self, text: str) -> Guard:
        guard = []
        for condition in text.split():
            match = CONDITION.fullmatch(condition)
            if not match:
                self._refuse(f"expected a condition such as season=winter, found {condition!r}")
            name, form, relation, wanted = match.groups()
            number, variable = self._variable(name)
            spelled = variable.forms.get(form or next(iter(variable.forms)))
            if spelled is None:
                self._refuse(f"{name} has no form {form}")
            unknown = set(wanted.split(",")) - set(spelled)
            if unknown:
                self._refuse(f"{name} is never {min(unknown)!r}")
            inside = relation == "="
            chosen = [k for k, spelling in enumerate(spelled) if (spelling in wanted.split(",")) == inside]
            guard.append((number, frozenset(chosen)))
        return tuple(guard)

    def _variable(self, name: str) -> tuple[int, Variable]:
        number = next((k for k, variable in enumerate(self.variables) if variable.name == name), None)
        if number is None:
            self._refuse(f"there is no plot variable {name} above")
        return number, self.variables[number]

    # Variables

    def _read_variable(self, section: _Section) -> None:
        options: list[Alternative] = []
        columns: list[tuple[str, ...]] = []
        for self.line, item in section.items:
            weight, guard, text = self._item(item)
            for column in self._values(text):
                if len(column) != len(section.forms):
                    self._refuse(f"{section.name} needs {len(section.forms)} forms, found {len(column)}")
                options.append(Alternative(weight, guard, ()))
                columns.append(column)
        if not columns:
            self._refuse(f"{section.name} has no values")
        spelled = tuple(zip(*columns, strict=True))
        if len(set(spelled[0])) < len(spelled[0]):
            self._refuse(f"{section.name} has the same value twice")
        forms = dict(zip(section.forms, spelled, strict=True))
        self.variables.append(Variable(section.name, tuple(options), forms))

    def _values(self, text: str) -> list[tuple[str, ...]]:
        if " + " in text:
            pieces = [self._syllables(half) for half in text.split(" + ")]
            return [("".join(chosen),) for chosen in itertools.product(*pieces)]
        if "|" not in text:
            return [(value,) for value in self._listed(text)]
        return [tuple(form.strip() for form in text.split("|"))]

    def _listed(self, text: str) -> list[str]:
        listed = [entry.strip() for entry in text.split(",")]
        if not all(listed):
            self._refuse(f"an empty entry between commas in {text!r}")
        return listed

    def _syllables(self, text: str) -> list[str]:
        """Give the syllables that are listed, or those of the list that is named in braces."""
        if not text.startswith("{"):
            return text.split()
        if text[1:-1] not in self.syllables:
            self._refuse(f"there are no syllables called {text[1:-1]} above")
        return self.syllables[text[1:-1]]

    # Rules

    def _read_rule(self, section: _Section) -> None:
        self.current, self.num_inline = section.name, 0
        options = []
        for self.line, item in section.items:
            weight, guard, text = self._item(item)
            options += [Alternative(weight, guard, parts) for parts in self._wordings(section.kind, text)]
        if not options:
            self._refuse(f"{section.name} has no alternatives")
        self.rules[section.name] = Choice(section.name, tuple(options))

    def _wordings(self, kind: str, text: str) -> list[Parts]:
        if " + " in text:
            return list(self._values(text))
        if kind == "words":
            return [self._template(word) for word in self._listed(text)]
        if kind == "phrase":
            return [self._template(text)]
        return [() if text == "-" else self._spaced(self._template(text.replace(" / ", "\n")))]

    def _template(self, text: str) -> Parts:
        tokens = list(TOKEN.finditer(text))
        if "".join(token[0] for token in tokens) != text:
            self._refuse(f"a brace stands alone in {text!r}")
        branches, end = self._branches(tokens, 0)
        if end != len(tokens) or len(branches) != 1:
            self._refuse(f"parentheses do not match in {text!r}")
        return branches[0]

    def _branches(self, tokens: Sequence[re.Match[str]], start: int) -> tuple[list[Parts], int]:
        """Read alternatives up to the parenthesis that closes them; return them and where that stands."""
        branches: list[list[Part]] = [[]]
        at = start
        while at < len(tokens) and tokens[at][0] != ")":
            reference, mark, literal = tokens[at].groups()
            if mark == "|":
                branches.append([])
            elif mark == "(":
                inner, at = self._branches(tokens, at + 1)
                branches[-1].append(self._inline(inner))
            else:
                branches[-1].append(literal if reference is None else self._reference(reference))
            at += 1
        return [tuple(branch) for branch in branches], at

    def _inline(self, branches: Sequence[Parts]) -> Call:
        self.num_inline += 1
        name = f"{self.current}({self.num_inline})"
        if len(branches) < 2:
            self._refuse("parentheses around a single text")
        self.rules[name] = Choice(name, tuple(Alternative(1, (), parts) for parts in branches))
        return Call(name)

    def _reference(self, text: str) -> Part:
        match = REFERENCE.fullmatch(text)
        if not match:
            self._refuse(f"expected a name in braces, found {text!r}")
        indefinite, name, form = match.groups()
        is_capital = (indefinite or name)[0].isupper()
        changes = (ARTICLE if indefinite else "") + (CAPITAL if is_capital else "")
        part = self._resolve(name.lower(), form)
        for change in changes:
            part = self._change(part, change)
        return part

    def _resolve(self, name: str, form: str | None) -> Part:
        found: list[Part] = []
        if form is None and name in self.kinds:
            found.append(Call(name))
        for number, variable in enumerate(self.variables):
            if variable.name == name and (form is None or form in variable.forms):
                found.append(Mention(number, variable.forms[form] if form else variable.values))
            elif form is None and name in variable.forms:
                found.append(Mention(number, variable.forms[name]))
        wanted = f"{name}.{form}" if form else name
        if len(found) != 1:
            self._refuse(f"{{{wanted}}} means {'several things' if found else 'nothing'} here")
        return found[0]

    # Changes to the beginning of a part: an article, a capital, a space

    def _change(self, part: Part, change: str) -> Part:
        if isinstance(part, str):
            return CHANGES[change](part)
        if isinstance(part, Mention):
            return Mention(part.variable, tuple(map(CHANGES[change], part.forms)))
        return Call(f"{change}{part.rule}")

    def _spaced(self, parts: Parts) -> Parts:
        """Move the space before a beat into the beat, so that an empty one takes it along."""
        made: list[Part] = []
        for part in parts:
            is_beat = isinstance(part, Call) and self.kinds.get(part.rule) == "beat"
            if is_beat and made and isinstance(made[-1], str) and made[-1].endswith(" "):
                before = made.pop()
                assert isinstance(before, str)
                made += [before[:-1]] if before[:-1] else []
                part = self._change(part, SPACE)
            made.append(part)
        return tuple(made)

    def _complete(self) -> None:
        """Make the changed rules that are called: `^colour` is `colour` with a capital."""
        options = [option for rule in self.rules.values() for option in rule.alternatives]
        wanted = [name for option in options for name in calls_of(option.parts)]
        while wanted:
            name = wanted.pop()
            if name in self.rules:
                continue
            original = self.rules.get(name[1:])
            if original is None:  # changed twice: first make the one that is changed once
                wanted += [name, name[1:]]
                continue
            changed = tuple(self._changed(option, name) for option in original.alternatives)
            self.rules[name] = Choice(name, changed)
            wanted += [called for option in changed for called in calls_of(option.parts)]

    def _changed(self, option: Alternative, name: str) -> Alternative:
        if not option.parts:
            if name[0] == SPACE and self.kinds.get(name[1:]) == "beat":
                return option
            self._refuse(f"{name[1:]} may be empty, so it cannot begin with an article, a capital or a space")
        first = self._change(option.parts[0], name[0])
        return Alternative(option.weight, option.guard, (first, *option.parts[1:]))

    def _refuse_circles(self) -> None:
        finished: set[str] = set()

        def visit(name: str, path: tuple[str, ...]) -> None:
            if name in path:
                self._refuse(f"{name} calls itself: {' -> '.join([*path, name])}")
            if name not in finished:
                for option in self.rules[name].alternatives:
                    for called in calls_of(option.parts):
                        visit(called, (*path, name))
                finished.add(name)

        for name in self.rules:
            visit(name, ())

    def _reachable(self, start: str) -> dict[str, Choice]:
        reached: dict[str, Choice] = {}
        waiting = [start]
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached[name] = self.rules[name]
                waiting += [
                    called for option in reached[name].alternatives for called in calls_of(option.parts)
                ]
                # Whoever wants to see a beat's sentences by themselves wants them without the space.
                waiting += [name[1:]] if name[0] == SPACE else []
        idle = set(self.kinds) - {name.lstrip(MARKS) for name in reached}
        if idle:
            self._refuse(f"nothing calls {', '.join(sorted(idle))}")
        return reached
