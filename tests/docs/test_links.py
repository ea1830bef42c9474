"""Links, anchors, paths, names, commands and options in the pages exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from links import ROOT, commands_in, find_pages, find_problems, find_problems_of_command

from conftest import RunCommand

PAGES = find_pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_paths_and_names_of_a_page_exist(page: Path) -> None:
    assert find_problems(page) == []


def test_every_page_of_the_handbook_is_in_its_index() -> None:
    handbook = ROOT / "docs" / "handbook"
    index = (handbook / "README.md").read_text()
    assert [page.name for page in handbook.glob("*.md") if f"({page.name}" not in index] == ["README.md"]


def test_the_path_of_a_batch_turns_back_at_most_three_times() -> None:
    """Each row names a module of the package and links to a function in it."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("## The path of a batch")[2].partition("## ")[0]
    rows = re.findall(r"^\| (↩ )?`([\w/]+\.py)` \| (.*?) \|", section, re.MULTILINE)
    modules = [module for _, module, _ in rows]
    assert len(set(modules)) >= 15
    for place, (mark, module, links) in enumerate(rows):
        assert (ROOT / "src" / "bytewright" / module).is_file()
        assert set(re.findall(r"\]\((.*?)\)", links)) == {f"src/bytewright/{module}"}
        assert bool(mark) == (module in modules[:place])
    assert sum(bool(mark) for mark, _, _ in rows) <= 3


def test_no_result_contains_an_absolute_path_of_a_machine() -> None:
    """Paths below /usr/share are allowed: a distribution installs them at the same place everywhere."""
    for path in (ROOT / "docs" / "results").rglob("*.json"):
        assert not re.findall(r'"/(?!usr/share/)[^"]*"', path.read_text()), path


@pytest.fixture
def help_of(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.setenv("COLUMNS", "200")  # so that no option is split over two lines
    return cache(lambda command: run(*command.split(), "--help").out)


def test_every_command_on_a_page_exists_with_its_options(help_of: Callable[[str], str]) -> None:
    lines = [(page, number, line) for page in PAGES for number, line in commands_in(page)]
    assert len(lines) > 20
    for page, number, line in lines:
        assert find_problems_of_command(line, help_of) == [], (
            f"{page.relative_to(ROOT)}, line {number}: {line}"
        )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("bytewright tokenizer train stories.txt --out tok --vocab-size 10000", None),
        (
            "bytewright tokenizer train stories.txt --vocab 10000",
            "bytewright tokenizer train has no option --vocab",
        ),
        ("bytewright tokenise stories.txt", "bytewright has no command tokenise"),
        ("bytewright sweep recipes/no_such.toml", "recipes/no_such.toml does not exist"),
        ("python benchmarks/no_such.py --json benchmarks/out/x.json", "benchmarks/no_such.py does not exist"),
        ("make haste", "make has no target haste"),
    ],
)
def test_a_command_that_does_not_exist_is_found(
    help_of: Callable[[str], str], line: str, problem: str | None
) -> None:
    assert find_problems_of_command(line, help_of) == ([problem] if problem else [])


TEXT = "[`find_problems`](links.py), `tests/docs/links.py::find_problems` and [above](#a-page-with-a-link)."


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("", "", None),
        ("(links.py)", "(chains.py)", "line 3: chains.py does not exist"),
        ("[`find_problems`]", "[`find_more`]", "line 3: links.py does not define find_more"),
        ("links.py::find", "chains.py::find", "line 3: `tests/docs/chains.py` does not exist"),
        ("::find_problems", "::find_more", "line 3: `tests/docs/links.py` does not define find_more"),
        (
            "#a-page",
            "#another-page",
            "line 3: #another-page-with-a-link: the page has no such heading",
        ),
    ],
)
def test_a_broken_link_path_or_name_is_found(
    tmp_path: Path, before: str, after: str, problem: str | None
) -> None:
    (tmp_path / "links.py").write_text("def find_problems(): ...\n")
    page = tmp_path / "page.md"
    page.write_text(f"# A page, with a `link`\n\n{TEXT.replace(before, after)}\n")
    assert find_problems(page) == ([problem] if problem else [])
