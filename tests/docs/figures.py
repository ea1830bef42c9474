"""Keeps the figures of a Markdown page true: every one is computed again, and one that differs is named.

A page may hold, none of it visible to a reader but the examples:

    ```python                         examples with >>>, run in order as doctests, all in one namespace
    <!-- python                       definitions that later figures use, and nobody needs to see
    ... -->
    2.13<!-- = f"{x:.2f}" -->         a figure and, right after it, the expression that it is the value of;
                                      one with spaces stands in **bold** or in `code`
    <!-- table: expression -->        before a table: the rows it consists of, headings first
    1,024<!-- given -->               a figure that a question gives, not one that we computed

In the prose of a page that has any of this, a number of four digits or more, with a decimal point or with a
per cent sign must have such a mark: so no figure can drift unseen. `python tests/docs/figures.py PAGE` writes
today's values into the page.
"""

from __future__ import annotations

import doctest
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HIDDEN = re.compile(r"<!-- python\n(.*?)-->", re.DOTALL)
FIGURE = re.compile(
    r"(?:(?P<mark>\*\*|`)(?P<marked>[^*`\n]*)(?P=mark)|(?P<bare>[^\s*`|()]+(?: [^\s*`|()\d]+)?))"
    r"<!-- = (?P<expression>.*?) -->"
)
TABLE = re.compile(r"^<!-- table: (?P<expression>.*?) -->\n(?P<rows>(?:^\|.*\n)*)", re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.,/-])\d[\d,]*(?:\.\d+)?(?: ?%)?")


def evaluate(page: str) -> tuple[dict[str, Any], list[str]]:
    """Run the examples and definitions of a page: their names, and the complaints about examples."""
    names: dict[str, Any] = {}
    complaints: list[str] = []
    blocks = sorted([*EXAMPLE.finditer(page), *HIDDEN.finditer(page)], key=lambda block: block.start())
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    for block in blocks:
        line = page.count("\n", 0, block.start()) + 1
        if block.re is HIDDEN:
            exec(compile(block[1], f"line {line}", "exec"), names)
            continue
        examples = doctest.DocTestParser().get_doctest(block[1], names, "page", "page", line)
        said: list[str] = []
        runner.run(examples, out=said.append, clear_globs=False)
        names.update(examples.globs)
        complaints += ["".join(said)] if said else []
    return names, complaints


def refresh(page: str, names: dict[str, Any]) -> str:
    """Write today's value in the place of every figure and table."""

    def figure(found: re.Match[str]) -> str:
        mark = found["mark"] or ""
        return f"{mark}{eval(found['expression'], names)}{mark}<!-- = {found['expression']} -->"

    def table(found: re.Match[str]) -> str:
        rows = render_table(eval(found["expression"], names))
        return f"<!-- table: {found['expression']} -->\n{rows}"

    return TABLE.sub(table, FIGURE.sub(figure, page))


def render_table(rows: Sequence[Sequence[object]]) -> str:
    """Write rows as a Markdown table: headings first, and numbers in all columns but the first."""
    headings, *rest = rows
    marks = ["---", *["---:" for _ in headings[1:]]]
    lines = [headings, marks, *rest]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def check(page: str) -> list[str]:
    """Give every complaint about a page; none for a page that is true."""
    names, complaints = evaluate(page)
    for find, render in ((FIGURE, _value_of), (TABLE, _rows_of)):
        for found in find.finditer(page):
            line = page.count("\n", 0, found.start()) + 1
            expected, stated = render(found, names)
            if expected != stated:
                complaints.append(
                    f"line {line}: states {stated!r}, but {found['expression']} is {expected!r}"
                )
    return complaints + unmarked(page)


def unmarked(page: str) -> list[str]:
    """Name the numbers in the prose of a page that nothing holds."""
    blank: Callable[[re.Match[str]], str] = lambda found: re.sub(r"[^\n]", " ", found[0])  # noqa: E731
    for pattern in (EXAMPLE, re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL), HIDDEN, TABLE, FIGURE):
        page = pattern.sub(blank, page)
    page = re.sub(r"\S+<!-- given -->|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", blank, page, flags=re.DOTALL)
    found_numbers = []
    for found in NUMBER.finditer(page):
        digits = re.sub(r"\D", "", found[0])
        if len(digits) >= 4 or "." in found[0] or "%" in found[0]:
            line = page.count("\n", 0, found.start()) + 1
            found_numbers.append(f"line {line}: nothing computes {found[0]!r}")
    return found_numbers


def _value_of(found: re.Match[str], names: dict[str, Any]) -> tuple[str, str]:
    return str(eval(found["expression"], names)), found["marked"] or found["bare"] or ""


def _rows_of(found: re.Match[str], names: dict[str, Any]) -> tuple[str, str]:
    return render_table(eval(found["expression"], names)), found["rows"]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        text = Path(name).read_text()
        known, wrong = evaluate(text)
        Path(name).write_text(refresh(text, known))
        print("\n".join(wrong) or f"{name}: refreshed")
