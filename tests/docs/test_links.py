"""What the pages point at is there: links, anchors, paths, names, commands and their options."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from links import ROOT, commands_in, complain, find_pages

from bytewright.cli.main import COMMANDS, main

PAGES = find_pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_that_a_page_points_at_is_there(page: Path) -> None:
    assert complain(page) == []


def test_every_page_of_the_handbook_is_in_its_index() -> None:
    handbook = ROOT / "docs" / "handbook"
    index = (handbook / "README.md").read_text()
    assert [page.name for page in handbook.glob("*.md") if f"({page.name}" not in index] == ["README.md"]


def test_every_command_on_a_page_exists_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    helps: dict[str, str] = {}
    targets = {line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ": " in line}
    wrong = []
    for page in PAGES:
        for number, line in commands_in(page):
            place = f"{page.relative_to(ROOT)}, line {number}: {line}"
            program, *words = line.split()
            if program == "make" and words[0] not in targets:
                wrong.append(f"{place}: no such target")
            if program == "python" and words[0].endswith(".py") and not (ROOT / words[0]).exists():
                wrong.append(f"{place}: no such script")
            if program == "bytewright":
                known = [" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in COMMANDS]
                if not known:
                    wrong.extend([] if words[0].isupper() else [f"{place}: no such command"])
                    continue
                help = helps.setdefault(known[0], helps.get(known[0]) or _help_of(known[0]))
                options = [word.partition("=")[0] for word in words if word.startswith("--")]
                wrong += [f"{place}: no option {option}" for option in options if option not in help]
    assert not wrong, "\n".join(wrong)
    assert helps


def _help_of(command: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    return said.getvalue()


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
