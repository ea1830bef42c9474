"""Every figure of the handbook and the reports is what the package computes today, or what a file says."""

from __future__ import annotations

from pathlib import Path

import pytest
from figures import EXAMPLE, ROOT, check, evaluate, has_marks, refresh

HANDBOOK = sorted((ROOT / "docs" / "handbook").glob("*.md"))
RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))
WITHOUT_MARKS = {"tokenizer-optimisation-log.md"}
"""Reports whose figures nothing holds yet; a page that gets its first mark is checked like all others."""
PAGES = [*HANDBOOK, *(path for path in [ROOT / "README.md", *RESULTS] if has_marks(path.read_text()))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_figure_of_the_page_is_computed(path: Path) -> None:
    complaints = check(path.read_text(), path.parent)
    assert not complaints, f"{path.name} (python tests/docs/figures.py {path} mends figures):\n" + "\n".join(
        complaints
    )


def test_a_new_report_has_marks() -> None:
    assert {path.name for path in RESULTS} - {path.name for path in PAGES} <= WITHOUT_MARKS


@pytest.mark.parametrize("path", HANDBOOK, ids=lambda path: path.stem)
def test_all_python_of_the_handbook_runs(path: Path) -> None:
    assert [block for block in EXAMPLE.findall(path.read_text()) if ">>>" not in block] == []


def test_there_are_pages() -> None:
    assert HANDBOOK
    assert RESULTS


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
out of 1,024<!-- given --> in `9999` ways, and 9.46<!-- noted --> ms.

<!-- table: rows -->
| n | square |
| --- | ---: |
| 1 | 1 |
| 2 | 4 |

<!-- noted -->
| n | ms |
|---|---|
| 1 | 0.84 |

<!-- quote: recipe("tiny")["optimizer"]["lr"] and "how far?  And how\\nfast?" -->
> how far? And how fast?

It was an **NVIDIA H200**<!-- = result("results/2026-11-15-h200-exact-resume.json")["device"] -->.
![It looks like this.](area.svg)<!-- drawn: str(width) -->
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "area.svg").write_text("3")
    return tmp_path


def test_a_true_page_has_no_complaints(folder: Path) -> None:
    assert check(PAGE, folder) == []


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("**12**", "**13**", "line 11: states '13', but width * height is '12'"),
        ("75 %", "74 %", "states '74 %'"),
        (">>> height\n4", ">>> height\n5", "Expected:\n    5\nGot:\n    4"),
        ("| 2 | 4 |", "| 2 | 5 |", "states"),
        ("> how far?", "> how  far?", "states"),
        ("NVIDIA H200", "NVIDIA H100", "states 'NVIDIA H100'"),
        ("-h200-exact", "-h300-exact", "cannot be computed: FileNotFoundError"),
        ("width = 3", "width = 3 / 0", "line 2: the hidden definitions fail: ZeroDivisionError"),
        ("**12**<", "**1 * 2**<", "line 11: nothing stands before this mark"),
        ("1,024<!-- given -->", "1,024", "line 12: nothing computes '1,024'"),
        ("9.46<!-- noted -->", "9.46", "line 12: nothing computes '9.46'"),
        ("<!-- noted -->\n|", "|", "nothing computes '0.84'"),
        ("ways,", "ways, or 3.5 of them,", "nothing computes '3.5'"),
        ("ways,", "ways, 20 % of them,", "nothing computes '20 %'"),
        ("(area.svg)", "(volume.svg)", "line 29: states 'no file volume.svg', but str(width) is '3'"),
        ("drawn: str(width)", "drawn: str(height)", "line 29: states '3', but str(height) is '4'"),
    ],
)
def test_a_figure_that_drifts_is_named(folder: Path, before: str, after: str, complaint: str) -> None:
    assert before in PAGE
    assert complaint in "\n".join(check(PAGE.replace(before, after), folder))


def test_refreshing_mends_every_figure() -> None:
    wrong = PAGE.replace("**12**", "**13**").replace("75 %", "0 %").replace("| 2 | 4 |", "| 2 | 5 |")
    wrong = wrong.replace("> how far?", "> how\n> far?")
    names, _ = evaluate(wrong)
    assert refresh(wrong, names) == PAGE
