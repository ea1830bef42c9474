"""Cuts the plain text of a grammar into sections, and those into items with their weights and guards.

A section begins with a heading at the margin; its items are indented by four spaces; a line indented further
continues the item above it; `#` begins a remark. What the items mean is not known here: see `notation`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from bytewright.errors import FormatError

HEADING = re.compile(r"(syllables|plot|beat|phrase|words) ([a-z_]+)(?:: ([a-z_]+(?:, [a-z_]+)*))?")
ITEM = re.compile(r"(?:(?P<weight>\d+) )?(?:\[(?P<guard>[^\]]*)\] )?(?P<text>.*)")
INDENT = 4


@dataclass(frozen=True)
class Place:
    """A line of a file, to be named when something is wrong there."""

    file: str
    line: int

    def refuse(self, complaint: str) -> NoReturn:
        """Complain about what stands here."""
        raise FormatError(f"{self.file}, line {self.line}: {complaint}")


@dataclass(frozen=True)
class Item:
    """One indented line, with those that continue it."""

    place: Place
    weight: int
    guard: str
    text: str


@dataclass
class Section:
    """A heading and what stands below it."""

    place: Place
    kind: str
    name: str
    forms: list[str]
    items: list[Item] = field(default_factory=list)


def read_sections(text: str, file: str) -> list[Section]:
    r"""Cut a text into sections.

    >>> (section,) = read_sections("plot hero: he, his\n    3 [age=old] king |\n        queen", "example")
    >>> section.name, section.forms, section.items[0].weight, section.items[0].guard, section.items[0].text
    ('hero', ['he', 'his'], 3, 'age=old', 'king | queen')
    """
    sections: list[Section] = []
    for place, indent, line in _joined_lines(text, file):
        if indent:
            if not sections:
                place.refuse("an indented line stands before the first heading")
            sections[-1].items.append(_item(place, line))
        else:
            sections.append(_heading(place, line))
    names: set[str] = set()
    for section in sections:
        if section.name in names:
            section.place.refuse(f"{section.name} is defined twice")
        if not section.items:
            section.place.refuse(f"nothing stands below {section.kind} {section.name}")
        names.add(section.name)
    return sections


def _joined_lines(text: str, file: str) -> Iterator[tuple[Place, int, str]]:
    """Give each line with those that continue it, where it begins, and how far it is indented."""
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


def _heading(place: Place, line: str) -> Section:
    match = HEADING.fullmatch(line)
    if not match:
        place.refuse(f"expected a heading such as 'phrase colour', found {line!r}")
    kind, name, forms = match.groups()
    return Section(place, kind, name, forms.split(", ") if forms else [name])


def _item(place: Place, line: str) -> Item:
    match = ITEM.fullmatch(line)
    assert match, "the pattern fits every line"
    weight = int(match["weight"] or 1)
    if not weight or not match["text"]:
        place.refuse(f"a weight of at least 1 and a text are needed, found {line!r}")
    return Item(place, weight, match["guard"] or "", match["text"])
