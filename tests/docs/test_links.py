"""What the pages point at is there: links, anchors, paths, names, commands and their options."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from links import ROOT, commands_in, complain, find_pages, judge_command

from conftest import Run

PAGES = find_pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_that_a_page_points_at_is_there(page: Path) -> None:
    assert complain(page) == []


def test_every_page_of_the_handbook_is_in_its_index() -> None:
    handbook = ROOT / "docs" / "handbook"
    index = (handbook / "README.md").read_text()
    assert [page.name for page in handbook.glob("*.md") if f"({page.name}" not in index] == ["README.md"]


def test_no_result_names_a_folder_of_the_machine_it_comes_from() -> None:
    """Texts that a distribution installs are the exception: there they have the same place everywhere."""
    for path in (ROOT / "docs" / "results").rglob("*.json"):
        assert not re.findall(r'"/(?!usr/share/)[^"]*"', path.read_text()), path


@pytest.fixture
def help_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.setenv("COLUMNS", "200")  # no option is broken over two lines
    return cache(lambda command: run(*command.split(), "--help").out)


def test_every_command_on_a_page_exists_with_its_options(help_of: Callable[[str], str]) -> None:
    lines = [(page, number, line) for page in PAGES for number, line in commands_in(page)]
    assert len(lines) > 20
    for page, number, line in lines:
        assert judge_command(line, help_of) == [], f"{page.relative_to(ROOT)}, line {number}: {line}"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("bytewright tokenizer train stories.txt --out tok --vocab-size 10000", None),
        (
            "bytewright tokenizer train stories.txt --vocab 10000",
            "bytewright tokenizer train has no option --vocab",
        ),
        ("bytewright tokenise stories.txt", "bytewright has no command tokenise"),
        ("bytewright sweep recipes/no_such.toml", "recipes/no_such.toml is not there"),
        ("python benchmarks/no_such.py --json benchmarks/out/x.json", "benchmarks/no_such.py is not there"),
        ("make haste", "make has no target haste"),
    ],
)
def test_a_command_that_is_not_there_is_named(
    help_of: Callable[[str], str], line: str, complaint: str | None
) -> None:
    assert judge_command(line, help_of) == ([complaint] if complaint else [])


HERE = "[`complain`](links.py), `tests/docs/links.py::complain` and [above](#a-page-with-a-link)."


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("", "", None),
        ("(links.py)", "(chains.py)", "line 3: chains.py is not there"),
        ("[`complain`]", "[`rejoice`]", "line 3: links.py does not define rejoice"),
        ("links.py::complain", "chains.py::complain", "line 3: `tests/docs/chains.py` is not there"),
        ("::complain", "::rejoice", "line 3: `tests/docs/links.py` does not define rejoice"),
        (
            "#a-page",
            "#another-page",
            "line 3: #another-page-with-a-link: no heading of that page has this anchor",
        ),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, before: str, after: str, complaint: str | None) -> None:
    (tmp_path / "links.py").write_text("def complain(): ...\n")
    page = tmp_path / "page.md"
    page.write_text(f"# A page, with a `link`\n\n{HERE.replace(before, after)}\n")
    assert complain(page) == ([complaint] if complaint else [])
