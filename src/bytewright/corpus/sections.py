"""Read the outline of a grammar file: headings at the margin, and indented items with weights below them.

Lines that are indented by more than four spaces continue the previous item. `#` after a space begins a
comment. The notations of the storybook and of the world book interpret the items.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from bytewright.errors import FormatError

ITEM = re.compile(r"(?:(?P<weight>\d+) )?(?:\[(?P<guard>[^\]]*)\] )?(?P<text>.*)")
INDENT = 4


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
    r"""Return the sections of a text; `heading` has groups for the kind, the name and the forms.

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
    kind, name, forms = match.groups()
    return Section(place, kind, name, forms.split(", ") if forms else [name])


def _item(place: Place, line: str) -> Item:
    match = ITEM.fullmatch(line)
    assert match, "the pattern matches every line"
    weight = int(match["weight"] or 1)
    if not weight or not match["text"]:
        place.reject(f"expected a weight of at least 1 and a text, found {line!r}")
    return Item(place, weight, match["guard"] or "", match["text"])
