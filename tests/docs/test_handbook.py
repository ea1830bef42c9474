"""The figures of the README, the handbook and the results are correct, and every one of them is checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from figures import EXAMPLE, ROOT, cells_of, check, load, refresh, render_table, write_section

HANDBOOK = sorted((ROOT / "docs" / "handbook").glob("*.md"))
RECORDS = {"tokenizer-optimisation-log.md"}
"""Pages that are themselves the record of what was measured."""
RESULTS = [path for path in sorted((ROOT / "docs" / "results").glob("*.md")) if path.name not in RECORDS]
PAGES = [ROOT / "README.md", *HANDBOOK, *RESULTS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_all_figures_of_the_page_are_correct_and_checked(page: Path) -> None:
    problems = check(page)
    assert not problems, f"{page} (python tests/docs/figures.py {page}):\n" + "\n".join(problems)


@pytest.mark.parametrize("page", HANDBOOK, ids=lambda page: page.stem)
def test_all_python_of_the_handbook_runs(page: Path) -> None:
    assert [block for block in EXAMPLE.findall(page.read_text()) if ">>>" not in block] == []


def test_there_are_pages() -> None:
    assert len(HANDBOOK) > 10
    assert len(RESULTS) > 3


PAGE = """
```python
>>> height = width + 1
>>> height
4
```
The area is **12**, which is
75 % of 16, in `9999` ways. Of 1,024 tokens each takes 9.46 ms. It was measured on 2026-11-15.

| n | square |
| --- | ---: |
| 1 | 1 |
| 2 | 4 |

> How far? And how
> fast at 0.25?

![The area](area.svg)
"""

SCRIPT = """
width = 3
FIGURES = [
    f"area is **{width * 4}**, which is {100 * width // 4} % of 16",
    [("n", "square"), (1, 1), (2, 4)],
    "How far? And how fast at 0.25?",
]
GIVEN = {"1,024 tokens": "the question", "9.46 ms": "noted when it was measured"}
PICTURES = {"area.svg": str(width)}

def prepare(folder):
    (folder / "notes").write_text("")
    return {"width": width}
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "area.svg").write_text("3")
    (tmp_path / "page.py").write_text(SCRIPT)
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path / "page.md"


def test_a_correct_page_has_no_problems(page: Path) -> None:
    assert check(page) == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("**12**", "**13**", "expected 1 times, found 0 times: area is **12**, which is 75 % of 16"),
        ("75 %", "74 %", "expected 1 times, found 0 times: area is **12**, which is 75 % of 16"),
        ("in `9999`", "area is **12**, which is 75 % of 16, in `9999`", "expected 1 times, found 2 times"),
        (">>> height\n4", ">>> height\n5", "Expected:\n    5\nGot:\n    4"),
        ("| 2 | 4 |", "| 2 | 5 |", "no such table in the page"),
        ("0.25?", "0.26?", "expected 1 times, found 0 times: How far?"),
        ("0.25?", "10.25?", "expected 1 times, found 0 times: How far?"),
        ("9.46 ms", "9.47 ms", "given, but not in the page: 9.46 ms"),
        ("ways.", "ways, or 3.5 of them.", "line 8: no script computes '3.5'"),
        ("ways.", "ways, 2 % of them.", "line 8: no script computes '2 %'"),
        ("ways.", "ways, +20 of them.", "line 8: no script computes '+20'"),
    ],
)
def test_a_wrong_or_unchecked_figure_is_named(page: Path, before: str, after: str, problem: str) -> None:
    assert before in PAGE
    page.write_text(PAGE.replace(before, after))
    assert problem in "\n".join(check(page))


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("width = 3", "width = 4", "found 0 times: area is **16**, which is 100 % of 16"),
        ("(2, 4)]", "(2, 4), (3, 9)]", "no such table in the page:\n| n   | square |"),
        ('"9.46 ms"', '"9.46"', "a number without a word next to it can match anywhere: 9.46"),
        ('f"area is', '"**12**", f"area is', "a number without a word next to it can match anywhere: **12**"),
        ('"9.46 ms"', '"9.5 ms"', "given, but not in the page: 9.5 ms"),
        ("str(width)", "str(width + 1)", "area.svg is not the picture that the script draws"),
        ("area.svg", "volume.svg", "volume.svg is not the picture that the script draws"),
        ("def prepare", "def unused", "NameError: name 'width' is not defined"),
    ],
)
def test_a_page_that_its_script_does_not_confirm_is_named(
    page: Path, before: str, after: str, problem: str
) -> None:
    page.with_suffix(".py").write_text(SCRIPT.replace(before, after))
    assert problem in "\n".join(check(page))


def test_a_section_that_is_not_current_is_named_and_can_be_written(page: Path) -> None:
    page.write_text(PAGE + "\n<!-- begin: runs -->\nOld text.\n<!-- end: runs -->\n\nAfterwards.\n")
    script = page.with_suffix(".py")
    script.write_text(SCRIPT + '\nSECTIONS = {"runs": ["There were 17 runs.", [("a", "b"), (1, 22)]]}\n')
    assert "the section runs is not current" in check(page)
    page.write_text(write_section(page.read_text(), "runs", load(page)["SECTIONS"]["runs"]))
    assert check(page) == []
    assert "Old text" not in page.read_text()
    assert page.read_text().endswith("Afterwards.\n")


def test_figures_of_a_page_without_a_script_are_named(page: Path) -> None:
    page.with_suffix(".py").unlink()
    assert "line 7: no script computes '12'" in check(page)


def test_refreshing_corrects_texts_and_tables_and_keeps_the_rest(page: Path) -> None:
    wrong = PAGE.replace("**12**", "**1,300.5**").replace("75 %", "0 %").replace("| 2 | 4 |", "| 2 | 5 |")
    table = [["n", "square"], ["1", "1"], ["2", "4"]]
    expected = PAGE.replace("| n | square |\n| --- | ---: |\n| 1 | 1 |\n| 2 | 4 |\n", render_table(table))
    assert refresh(wrong, load(page)["FIGURES"]) == expected
    assert cells_of(render_table(table)) == table
