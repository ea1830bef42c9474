"""Keeps the figures of a Markdown page true: every one is computed again, and one that differs is named.

A page may hold, none of it visible to a reader but the examples:

    ```python                         examples with >>>, run in order as doctests, all in one namespace
    <!-- python                       definitions that later figures use, and nobody needs to see
    ... -->
    2.13<!-- = f"{x:.2f}" -->         a figure and, right after it, the expression that it is the value of;
                                      one with spaces stands in **bold** or in `code`
    <!-- table: expression -->        before a table: the rows it consists of, headings first
    <!-- quote: expression -->        before lines that begin with >: the text that they are
    ![words](x.svg)<!-- drawn: expression -->    a picture, and the text of its file
    1,024<!-- given -->               a figure that a question gives, not one that we computed
    9.46<!-- noted -->                a figure that was read off when it was measured and is in no file;
                                      on a line of its own before a table: all of that table

Every expression may use `result("results/NAME.json")`, a committed result below `docs`, `recipe("NAME")`, and
`lab_runs()`, the runs of all sweeps.

In the prose of a page that has any of this, a number of four digits or more, with a decimal point or with a
per cent sign must have such a mark: so no figure can drift unseen. `python tests/docs/marks.py PAGE` writes
today's values into the page.
"""

from __future__ import annotations

import doctest
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

EXAMPLE = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
HIDDEN = re.compile(r"<!-- python\n(.*?)-->", re.DOTALL)
FIGURE = re.compile(
    r"(?:(?P<mark>\*\*|`)(?P<marked>[^*`\n]*)(?P=mark)|(?P<bare>[^\s*`|()]+(?: [^\s*`|()\d]+)?))"
    r"<!-- = (?P<expression>.*?) -->"
)
TABLE = re.compile(r"^<!-- table: (?P<expression>.*?) -->\n(?P<rows>(?:^\|.*\n)*)", re.MULTILINE)
QUOTE = re.compile(r"^<!-- quote: (?P<expression>.*?) -->\n(?P<rows>(?:^>.*\n)*)", re.MULTILINE)
PICTURE = re.compile(r"\]\((?P<path>[\w.-]+\.svg)\)<!-- drawn: (?P<expression>.*?) -->")
NOTED_TABLE = re.compile(r"^<!-- noted -->\n(?:^\|.*\n)*", re.MULTILINE)
MARKED_BY_HAND = re.compile(r"\S+<!-- (?:given|noted) -->")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
NOT_PROSE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|\b\d{4}-\d\d-\d\d\b", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.,/+-])\d[\d,]*(?:\.\d+)?(?: ?%)?")

QUOTE_WIDTH = 118


def result(path: str) -> Any:
    """Read a committed result, named by its path below `docs`."""
    return json.loads((ROOT / "docs" / path).read_text())


def recipe(name: str) -> dict[str, Any]:
    """Read a recipe by its name."""
    return tomllib.loads((ROOT / "recipes" / f"{name}.toml").read_text())


def lab_runs() -> list[dict[str, Any]]:
    """Return the runs of all sweeps that trained, each with all its settings, and once if sweeps share it."""
    runs: dict[tuple[float, float], dict[str, Any]] = {}
    for path in sorted((ROOT / "docs" / "results").glob("*-lab/*/results.json")):
        sweep = json.loads(path.read_text())
        for run in sweep["runs"]:
            if "tokens_per_second" in (measured := run["measured"]):
                settings = sweep["settings"] | run["settings"]
                key = (measured["tokens_per_second"], measured["seconds"])
                runs.setdefault(key, run | {"settings": settings})
    return list(runs.values())


def has_marks(page: str) -> bool:
    """Tell whether any figure of a page is held by something."""
    return bool(re.search(r"<!-- (?:=|table:|quote:|drawn:|noted|given|python\n)", page))


def evaluate(page: str) -> tuple[dict[str, Any], list[str]]:
    """Run the examples and definitions of a page: their names, and the complaints about them."""
    names: dict[str, Any] = {"result": result, "recipe": recipe, "lab_runs": lab_runs}
    complaints: list[str] = []
    blocks = sorted([*EXAMPLE.finditer(page), *HIDDEN.finditer(page)], key=lambda block: block.start())
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for block in blocks:
        line = line_of(page, block)
        if block.re is HIDDEN:
            try:
                exec(compile(block[1], f"line {line}", "exec"), names)
            except Exception as error:
                complaints.append(f"line {line}: the hidden definitions fail: {error!r}")
            continue
        examples = doctest.DocTestParser().get_doctest(block[1], names, "page", "page", line)
        said: list[str] = []
        runner.run(examples, out=said.append, clear_globs=False)
        names.update(examples.globs)
        complaints += ["".join(said)] if said else []
    return names, complaints


def line_of(page: str, found: re.Match[str]) -> int:
    """Say on which line, counted from 1, something was found."""
    return page.count("\n", 0, found.start()) + 1


def render_table(rows: Sequence[Sequence[object]]) -> str:
    """Write rows as a Markdown table, headings first.

    The first column is words and the others are numbers; where the last one is sentences, all are words.
    """
    headings, *rest = rows
    are_words = all(str(row[-1]).endswith(".") for row in rest)
    marks = ["---", *["---" if are_words else "---:" for _ in headings[1:]]]
    lines = [headings, marks, *rest]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def render_quote(text: str) -> str:
    """Write a text as quoted lines of limited width."""
    return "".join(f"> {line}\n" for line in textwrap.wrap(" ".join(text.split()), QUOTE_WIDTH))


Stated = tuple[re.Match[str], str, str, Callable[[Any], str]]
"""A mark; what stands before the words that it holds; these words; and how a value is put into words."""


def stated(page: str) -> Iterator[Stated]:
    """Find everything that a page states as the value of an expression."""
    for found in FIGURE.finditer(page):
        yield found, found["mark"] or "", found["marked"] or found["bare"] or "", str
    for pattern, render in ((TABLE, render_table), (QUOTE, render_quote)):
        for found in pattern.finditer(page):
            yield found, page[found.start() : found.start("rows")], found["rows"], render


def refresh(page: str, names: dict[str, Any]) -> str:
    """Write today's value in the place of every figure, table and quotation."""
    for found, before, words, render in sorted(stated(page), key=lambda it: it[0].start(), reverse=True):
        start = found.start() + len(before)
        page = page[:start] + render(eval(found["expression"], names)) + page[start + len(words) :]
    return page


def check(page: str, folder: Path = ROOT) -> list[str]:
    """Give every complaint about a page whose pictures lie in `folder`; none for a page that is true."""
    names, complaints = evaluate(page)
    claims = list(stated(page))
    claims += [(found, "", _text_of(folder / found["path"]), str) for found in PICTURE.finditer(page)]
    for found, _, words, render in claims:
        place, expression = f"line {line_of(page, found)}", found["expression"]
        try:
            expected = render(eval(expression, names))
        except Exception as error:
            complaints.append(f"{place}: {expression} cannot be computed: {error!r}")
            continue
        if expected != words:
            complaints.append(f"{place}: states {words[:500]!r}, but {expression} is {expected[:500]!r}")
    return complaints + idle_marks(page) + unmarked(page)


def idle_marks(page: str) -> list[str]:
    """Name the marks that have nothing before them that could be a figure: they would hold nothing."""
    held = {found.end() for found in FIGURE.finditer(page)}
    marks = re.finditer(r"<!-- = .*?-->", FENCE.sub(_blank, page), re.DOTALL)
    return [
        f"line {line_of(page, found)}: nothing stands before this mark"
        for found in marks
        if found.end() not in held
    ]


def unmarked(page: str) -> list[str]:
    """Name the numbers in the prose of a page that nothing holds."""
    for pattern in (FENCE, HIDDEN, TABLE, QUOTE, NOTED_TABLE, FIGURE, MARKED_BY_HAND, NOT_PROSE):
        page = pattern.sub(_blank, page)
    found_numbers = []
    for found in NUMBER.finditer(page):
        digits = re.sub(r"\D", "", found[0])
        if len(digits) >= 4 or "." in found[0] or "%" in found[0]:
            found_numbers.append(f"line {line_of(page, found)}: nothing computes {found[0]!r}")
    return found_numbers


def _text_of(path: Path) -> str:
    return path.read_text() if path.exists() else f"no file {path.name}"


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        text = Path(name).read_text()
        known, wrong = evaluate(text)
        Path(name).write_text(refresh(text, known))
        for picture in PICTURE.finditer(text):
            (Path(name).parent / picture["path"]).write_text(eval(picture["expression"], known))
        print("\n".join(wrong) or f"{name}: refreshed")
