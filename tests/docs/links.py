"""Find links, paths, names and commands in Markdown pages that do not exist.

For each page it checks relative links with their anchors and paths of the repository in backticks. A name is
checked as well: [`softmax`](layers.py) and `layers.py::softmax` require that this file defines `softmax`. For
commands in code blocks, the command, its options and the named files of the repository must exist. Web
addresses are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from bytewright.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "crates", "docs", "fuzz", "recipes", "src", "tests")
BUILT = ("benchmarks/data/", "benchmarks/out/", "fuzz/artifacts/", "fuzz/corpus/", "fuzz/target/")
"""Generated or downloaded files that are not in the repository."""
SOURCES = (".grammar", ".md", ".py", ".rs", ".toml")

FENCE = re.compile(r"^ *```[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")
CODE = re.compile(r"(?<!`)`(?P<text>[^`\n]+)`(?!`)")
PATH = re.compile(r"(?P<path>[\w.*-]+(?:/[\w.*-]+)+/?)(?:::(?P<name>\w+))?")
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
NAME = re.compile(r"`([A-Za-z_][\w.]*)`")


def find_pages() -> list[Path]:
    """Return all Markdown files of the repository, without generated or downloaded ones."""
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
    ours = [path for path in below if _is_ours(path.relative_to(ROOT).as_posix())]
    return sorted(ROOT.glob("*.md")) + sorted(ours)


def find_problems(page: Path) -> list[str]:
    """Return every link, path and name of a page that does not exist."""
    text = page.read_text()
    prose = FENCE.sub(_blank, COMMENT.sub(_blank, text))
    return [
        f"line {prose.count(chr(10), 0, found.start()) + 1}: {problem}"
        for pattern, check in ((LINK, _check_link), (CODE, _check_code))
        for found in pattern.finditer(prose)
        if (problem := check(page, found))
    ]


def anchors_of(text: str) -> set[str]:
    """Return the anchors of the headings of a page, in the form that GitHub uses.

    >>> sorted(anchors_of("# What `x` costs, and why\\n## Twice\\n## Twice"))
    ['twice', 'twice-1', 'what-x-costs-and-why']
    """
    anchors: set[str] = set()
    for heading in HEADING.findall(FENCE.sub(_blank, COMMENT.sub("", text))):
        words = LINK.sub(r"\g<text>", heading).strip().lower()
        anchor = unique = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 0
        while unique in anchors:
            number += 1
            unique = f"{anchor}-{number}"
        anchors.add(unique)
    return anchors


def defines(path: Path, name: str) -> bool:
    """Return whether a source file defines a name, or the last part of a dotted name."""
    last = re.escape(name.rpartition(".")[2])
    definition = rf"\b(?:def|class|fn|struct|enum|trait|const) {last}\b|^ *{last}(?::[^=\n]+)? = "
    return bool(re.search(definition, path.read_text(), re.MULTILINE))


def commands_in(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the commands in the code blocks of a page that belong to this repository, with line numbers."""
    text = page.read_text()
    for block in FENCE.finditer(text):
        first = text.count("\n", 0, block.start(1)) + 1
        for number, line in enumerate(block[1].splitlines(), first):
            command = line.partition("  #")[0].strip()
            if command.startswith(("bytewright ", "python ", "make ")):
                yield number, command


def find_problems_of_command(line: str, help_of: Callable[[str], str]) -> list[str]:
    """Return the files, targets of make, commands and options of a command line that do not exist."""
    program, *words = line.split()
    missing = [word for word in words if _is_ours(word) and not (ROOT / word).exists()]
    problems = [f"{word} does not exist" for word in missing]
    if program == "make" and not re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
        problems.append(f"make has no target {words[0]}")
    if program == "bytewright":
        command = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), None)
        if command is None:
            return [*problems, f"bytewright has no command {words[0]}"]
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        unknown = [option for option in options if not re.search(rf"{option}(?![\w-])", help_of(command))]
        problems += [f"bytewright {command} has no option {option}" for option in unknown]
    return problems


def _check_link(page: Path, found: re.Match[str]) -> str | None:
    target, _, anchor = found["target"].partition("#")
    if re.match(r"[a-z]+:", target):
        return None
    path = page.parent / target if target else page
    if not path.exists():
        return f"{found['target']} does not exist"
    if anchor and anchor not in anchors_of(path.read_text()):
        return f"{found['target']}: the page has no such heading"
    name = NAME.fullmatch(found["text"])
    if name and path.suffix in (".py", ".rs") and name[1] != path.name and not defines(path, name[1]):
        return f"{target} does not define {name[1]}"
    return None


def _check_code(page: Path, found: re.Match[str]) -> str | None:
    named = PATH.fullmatch(found["text"])
    if not named or not (_is_ours(named["path"]) or named["path"].endswith(SOURCES)):
        return None  # a path on the machine of the reader, or not a path
    places = (ROOT, ROOT / "src" / "bytewright", page.parent)
    paths = [path for place in places for path in place.glob(named["path"].rstrip("/"))]
    if not paths:
        return f"`{named['path']}` does not exist"
    if named["name"] and not any(defines(path, named["name"]) for path in paths):
        return f"`{named['path']}` does not define {named['name']}"
    return None


def _is_ours(path: str) -> bool:
    return path.startswith(tuple(f"{folder}/" for folder in FOLDERS)) and not path.startswith(BUILT)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])
