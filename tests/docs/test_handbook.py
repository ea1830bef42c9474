"""Every figure of the handbook is what the package computes today."""

from __future__ import annotations

from pathlib import Path

import pytest
from figures import check, evaluate, refresh

HANDBOOK = Path(__file__).parents[2] / "docs" / "handbook"
PAGES = sorted(HANDBOOK.glob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_figure_of_the_page_is_computed(path: Path) -> None:
    complaints = check(path.read_text())
    assert not complaints, f"{path.name} (python tests/docs/figures.py {path} mends figures):\n" + "\n".join(
        complaints
    )


def test_there_are_pages() -> None:
    assert PAGES


PAGE = """
<!-- python
width = 3
rows = [("n", "square"), (1, 1), (2, 4)]
-->
```python
>>> height = width + 1
>>> height
4
```
An area of **12**<!-- = width * height --> and a share of 75 %<!-- = f"{100 * width // height} %" -->
out of 1,024<!-- given --> in `9999` ways.

<!-- table: rows -->
| n | square |
| --- | ---: |
| 1 | 1 |
| 2 | 4 |
"""


def test_a_true_page_has_no_complaints() -> None:
    assert check(PAGE) == []


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("**12**", "**13**", "line 11: states '13', but width * height is '12'"),
        ("75 %", "74 %", "states '74 %'"),
        (">>> height\n4", ">>> height\n5", "Expected:\n    5\nGot:\n    4"),
        ("| 2 | 4 |", "| 2 | 5 |", "states"),
        ("1,024<!-- given -->", "1,024", "line 12: nothing computes '1,024'"),
        ("ways.", "ways, or 3.5 of them.", "nothing computes '3.5'"),
        ("ways.", "ways, 20 % of them.", "nothing computes '20 %'"),
    ],
)
def test_a_figure_that_drifts_is_named(before: str, after: str, complaint: str) -> None:
    assert before in PAGE
    assert complaint in "\n".join(check(PAGE.replace(before, after)))


def test_refreshing_mends_every_figure() -> None:
    wrong = PAGE.replace("**12**", "**13**").replace("75 %", "0 %").replace("| 2 | 4 |", "| 2 | 5 |")
    names, _ = evaluate(wrong)
    assert refresh(wrong, names) == PAGE
