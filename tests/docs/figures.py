"""Check every figure of a Markdown page against the script of the same name.

`docs/handbook/bpe.py` computes the figures of `docs/handbook/bpe.md`, and `docs/readme.py` those of the
README. A page without figures needs no script. A script may define:

    FIGURES   a list of texts that the page must contain, with the computed figures in them, and of tables as
              lists of rows with the headings first
    GIVEN     texts with figures that nothing computes, such as settings, each with its source
    SECTIONS  texts and tables by the name of a section: what the page has between <!-- begin: NAME --> and
              <!-- end: NAME -->, such as a section that depends on whether a result exists
    PICTURES  files next to the page, each with its expected content
    prepare   a function of a temporary folder that returns names for the examples of the page

Line breaks do not matter. A text of FIGURES must occur in the page as often as in the list. Every number of
two digits or more, with a decimal point or with a per cent sign must be part of such a text or table, unless
it is in code or ends a name such as UTF-16. So a wrong figure fails the test, and so does a figure that
nothing checks. Examples with >>> run as doctests in one namespace.

`python tests/docs/figures.py PAGE` writes the current values into a page and prints what is left to do.
"""

from __future__ import annotations

import doctest
import re
import runpy
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPT_OF_README = ROOT / "docs" / "readme.py"

EXAMPLE = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
NOT_PROSE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|\b\d{4}-\d\d-\d\d\b", re.DOTALL)
NUMERIC = re.compile(r"[*+\u2212\u2013-]*\d|[\u2013-]?$")
NUMBER = re.compile(r"(?<![\w.,/])(?<!\w-)[+\u2212-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?: ?%)?")

Table = Sequence[Sequence[object]]


def load(page: Path) -> dict[str, Any]:
    """Run the script of a page and return its names; there are none if it has no script."""
    script = SCRIPT_OF_README if page == ROOT / "README.md" else page.with_suffix(".py")
    if str(ROOT / "docs") not in sys.path:
        sys.path.insert(0, str(ROOT / "docs"))  # for docs/records.py
    return runpy.run_path(str(script)) if script.exists() else {}


def check(page: Path, names: dict[str, Any] | None = None) -> list[str]:
    """Return everything that is wrong with a page; nothing for a page whose figures are all correct."""
    text = page.read_text()
    names = load(page) if names is None else names
    sections, given = names.get("SECTIONS", {}), names.get("GIVEN", {})
    figures = [*names.get("FIGURES", []), *(it for blocks in sections.values() for it in blocks)]
    texts = Counter(" ".join(it.split()) for it in figures if isinstance(it, str))
    tables = [as_cells(it) for it in figures if not isinstance(it, str)]
    problems, covered = run_examples(text, names), []
    for expected in [*texts, *given]:
        found = [match.span() for match in pattern_of(expected).finditer(text)]
        covered += found
        if expected in texts and len(found) != texts[expected]:
            problems.append(f"expected {texts[expected]} times, found {len(found)} times: {expected}")
        if expected in given and not found:
            problems.append(f"given, but not in the page: {expected}")
        if not re.search(r"[^\W\d_]", expected):
            problems.append(f"a number without a word next to it can match anywhere: {expected}")
    for rows in tables:
        found = [table.span() for table in TABLE.finditer(text) if cells_of(table[0]) == rows]
        covered += found
        problems += [] if found else [f"no such table in the page:\n{render_table(rows)}"]
    problems += [
        f"the section {name} is not current"
        for name in sections
        if write_section(text, name, sections[name]) != text
    ]
    for name, content in names.get("PICTURES", {}).items():
        if not (page.parent / name).exists() or (page.parent / name).read_text() != content:
            problems.append(f"{name} is not the picture that the script draws")
    return problems + list(unchecked(text, covered))


def unchecked(text: str, covered: list[tuple[int, int]]) -> Iterator[str]:
    """Name the numbers of a page that are outside of the covered places and of code."""
    for start, end in covered:
        text = text[:start] + blank(text[start:end]) + text[end:]
    for pattern in (FENCE, NOT_PROSE):
        text = pattern.sub(lambda found: blank(found[0]), text)
    for found in NUMBER.finditer(text):
        if len(re.findall(r"\d", found[0])) > 1 or "%" in found[0]:
            yield f"line {text.count(chr(10), 0, found.start()) + 1}: no script computes {found[0]!r}"


def run_examples(text: str, names: dict[str, Any]) -> list[str]:
    """Run the examples of a page in order and return the failures."""
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        namespace = names["prepare"](Path(folder)) if "prepare" in names else {}
        for block in EXAMPLE.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            examples = doctest.DocTestParser().get_doctest(block[1], namespace, "page", "page", line)
            runner.run(examples, out=failures.append, clear_globs=False)
            namespace = examples.globs
    return ["".join(failures)] if failures else []


def pattern_of(text: str, *, any_numbers: bool = False) -> re.Pattern[str]:
    """Match a text whatever its line breaks, also in a quotation; on request with any numbers in it."""
    pieces = NUMBER.split(" ".join(text.split())) if any_numbers else [" ".join(text.split())]
    pattern = f"({NUMBER.pattern})".join(re.escape(piece).replace(r"\ ", r"[\s>]+") for piece in pieces)
    return re.compile(rf"(?<![\w.,+\u2212-]){pattern}(?!\w|[.,]\d)")


def cells_of(table: str) -> list[list[str]]:
    """Split a Markdown table into its cells, without the line below the headings."""
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
    return rows[:1] + rows[2:]


def as_cells(rows: Table) -> list[list[str]]:
    """Write the values of a table as the page shows them."""
    return [[str(cell).strip() for cell in row] for row in rows]


def render_table(rows: Table, width: int = 118) -> str:
    """Write rows as a Markdown table: columns of numbers to the right, and padded if the lines stay short."""
    cells = as_cells(rows)
    right = [all(map(NUMERIC.match, column[1:])) for column in zip(*cells, strict=True)]
    right[0] = False
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    if sum(widths) + 3 * len(widths) + 1 > width:
        widths = [3] * len(widths)
    rule = ["-" * (size - is_number) + ":" * is_number for size, is_number in zip(widths, right, strict=True)]
    lines = [
        [
            cell.rjust(size) if is_number else cell.ljust(size)
            for cell, size, is_number in zip(row, widths, right, strict=True)
        ]
        for row in cells
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in [lines[0], rule, *lines[1:]])


def refresh(text: str, figures: Sequence[str | Table]) -> str:
    """Write the expected values into a page, where the words around them or the headings show the place."""
    for expected in figures:
        if isinstance(expected, str):
            if pattern_of(expected).search(text):
                continue
            found = list(pattern_of(expected, any_numbers=True).finditer(text))
            values = NUMBER.findall(" ".join(expected.split()))
            if len(found) == 1:
                for group in range(len(values), 0, -1):
                    start, end = found[0].span(group)
                    text = text[:start] + values[group - 1] + text[end:]
    by_headings: dict[tuple[str, ...], list[Table]] = {}
    for rows in figures:
        if not isinstance(rows, str):
            by_headings.setdefault(tuple(as_cells(rows)[0]), []).append(rows)

    def renew(found: re.Match[str]) -> str:
        expected = by_headings.get(tuple(cells_of(found[0])[0]), [])
        return render_table(expected.pop(0)) if expected else found[0]

    return TABLE.sub(renew, text)


def write_section(text: str, name: str, blocks: Sequence[str | Table]) -> str:
    """Replace the text between the marks of a section by texts, filled, and tables."""
    start, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
    before, found, rest = text.partition(start)
    assert found, f"the page has no {start}"
    assert end in rest, f"the page has no {end}"
    written = [fill(it, 118) + "\n" if isinstance(it, str) else render_table(it) for it in blocks]
    return before + start + "\n" + "\n".join(written) + "\n" + rest[rest.index(end) :]


def blank(text: str) -> str:
    """Replace everything but line breaks by spaces."""
    return re.sub(r"[^\n]", " ", text)


if __name__ == "__main__":
    for page in map(Path.resolve, map(Path, sys.argv[1:])):
        names = load(page)
        text = refresh(page.read_text(), names.get("FIGURES", []))
        for name, blocks in names.get("SECTIONS", {}).items():
            text = write_section(text, name, blocks)
        page.write_text(text)
        for name, content in names.get("PICTURES", {}).items():
            (page.parent / name).write_text(content)
        print("\n".join(check(page, names)) or f"{page.name}: all figures are correct")
