"""Read the outline of a grammar file: headings at the margin, and indented items with weights below them.

Lines that are indented by more than four spaces continue the previous item. `#` after a space begins a
comment. The notations of the storybook and of the world book interpret the items.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from bytewright.errors import FormatError

ITEM = re.compile(r"(?:(?P<weight>\d+) )?(?:\[(?P<guard>[^\]]*)\] )?(?P<text>.*)")
TOKEN = re.compile(r"\{([^{}]*)\}|([(|)])|([^{}(|)]+)")
INDENT = 4

Slot = TypeVar("Slot")


@dataclass(frozen=True)
class Place:
    """A line of a file, for error messages."""

    file: str
    line: int

    def reject(self, problem: str) -> NoReturn:
        """Raise an error about this line."""
        raise FormatError(f"{self.file}, line {self.line}: {problem}", path=self.file)


@dataclass(frozen=True)
class Item:
    """One indented line with its continuation lines."""

    place: Place
    weight: int
    guard: str
    text: str


@dataclass
class Section:
    """A heading and the items below it."""

    place: Place
    kind: str
    name: str
    forms: list[str]
    items: list[Item] = field(default_factory=list)


def read_sections(text: str, file: str, heading: re.Pattern[str]) -> list[Section]:
    r"""Return the sections of a text; `heading` has groups for the kind, the name and, if any, the forms.

    >>> pattern = re.compile(r"(plot) ([a-z]+)(?:: (.*))?")
    >>> text = "plot hero: he, his\n    3 [age=old] king |\n        queen"
    >>> (section,) = read_sections(text, "example", pattern)
    >>> section.name, section.forms, section.items[0].weight, section.items[0].guard, section.items[0].text
    ('hero', ['he', 'his'], 3, 'age=old', 'king | queen')
    """
    sections: list[Section] = []
    for place, indent, line in _joined_lines(text, file):
        if indent:
            if not sections:
                place.reject("indented line before the first heading")
            sections[-1].items.append(_item(place, line))
        else:
            sections.append(_heading(place, line, heading))
    names: set[str] = set()
    for section in sections:
        if section.name in names:
            section.place.reject(f"{section.name} is defined twice")
        if not section.items:
            section.place.reject(f"no items below {section.kind} {section.name}")
        names.add(section.name)
    return sections


def _joined_lines(text: str, file: str) -> Iterator[tuple[Place, int, str]]:
    """Yield each line, joined with its continuation lines, with its place and its indentation."""
    begun: tuple[Place, int, str] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s+)#.*", "", raw).rstrip()
        if not line:
            continue
        indent = len(line) - len(line.lstrip())
        if indent > INDENT and begun is not None and begun[1]:
            begun = (begun[0], begun[1], f"{begun[2]} {line.strip()}")
            continue
        if begun is not None:
            yield begun
        begun = (Place(file, number), indent, line.strip())
    if begun is not None:
        yield begun


def _heading(place: Place, line: str, heading: re.Pattern[str]) -> Section:
    match = heading.fullmatch(line)
    if not match:
        place.reject(f"expected a heading such as 'phrase colour', found {line!r}")
    kind, name, *others = match.groups()
    return Section(place, kind, name, others[0].split(", ") if others and others[0] else [name])


def _item(place: Place, line: str) -> Item:
    match = ITEM.fullmatch(line)
    assert match, "the pattern matches every line"
    weight = int(match["weight"] or 1)
    if not weight or not match["text"]:
        place.reject(f"expected a weight of at least 1 and a text, found {line!r}")
    return Item(place, weight, match["guard"] or "", match["text"])


def read_template(
    text: str,
    place: Place,
    read_slot: Callable[[str], Slot],
    add_choice: Callable[[Sequence[tuple[str | Slot, ...]]], Slot],
) -> tuple[str | Slot, ...]:
    """Return the parts of a template with slots in braces, such as `{He} (sat|ran) {where}`.

    `read_slot` returns the part for a text in braces, and `add_choice` that for the texts between bars.

    >>> read_template("{He} (sat|ran).", Place("example", 1), str.upper, str)
    ('HE', ' ', "[('sat',), ('ran',)]", '.')
    """
    tokens = list(TOKEN.finditer(text))
    if "".join(token[0] for token in tokens) != text:
        place.reject(f"unmatched brace in {text!r}")

    def read_branches(at: int) -> tuple[list[tuple[str | Slot, ...]], int]:
        """Return the texts between bars up to the closing parenthesis, and the position of the latter."""
        branches: list[list[str | Slot]] = [[]]
        while at < len(tokens) and tokens[at][0] != ")":
            slot, mark, literal = tokens[at].groups()
            if mark == "|":
                branches.append([])
            elif mark == "(":
                inner, at = read_branches(at + 1)
                if len(inner) < 2:
                    place.reject("parentheses need at least two texts, separated by |")
                branches[-1].append(add_choice(inner))
            else:
                branches[-1].append(literal if slot is None else read_slot(slot))
            at += 1
        return [tuple(branch) for branch in branches], at

    branches, end = read_branches(0)
    if end != len(tokens) or len(branches) != 1:
        place.reject(f"unmatched parenthesis or bar in {text!r}")
    return branches[0]
