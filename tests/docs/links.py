"""Finds what Markdown pages point at, and names what is not there.

Checked are the relative links of a page with their anchors, paths of the repository in backticks, and
names: [`softmax`](layers.py) promises that this file defines `softmax`, and so does `layers.py::softmax`.
Of commands in code blocks, the command must exist with each of its options, and so must the files of the
repository that they name. Nothing is fetched: addresses of the web are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from bytewright.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "crates", "docs", "fuzz", "recipes", "src", "tests")
BUILT = ("benchmarks/data/", "benchmarks/out/", "fuzz/artifacts/", "fuzz/corpus/", "fuzz/target/")
"""What is made or downloaded on the way and is not in the repository."""
SOURCES = (".grammar", ".md", ".py", ".rs", ".toml")

FENCE = re.compile(r"^ *```[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")
CODE = re.compile(r"(?<!`)`(?P<text>[^`\n]+)`(?!`)")
PATH = re.compile(r"(?P<path>[\w.*-]+(?:/[\w.*-]+)+/?)(?:::(?P<name>\w+))?")
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
NAME = re.compile(r"`([A-Za-z_][\w.]*)`")


def find_pages() -> list[Path]:
    """List every Markdown file of the repository, without what was built or downloaded."""
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
    ours = [path for path in below if _is_ours(path.relative_to(ROOT).as_posix())]
    return sorted(ROOT.glob("*.md")) + sorted(ours)


def complain(page: Path) -> list[str]:
    """Name every link, path and name of a page that leads nowhere."""
    text = page.read_text()
    prose = FENCE.sub(_blank, COMMENT.sub(_blank, text))
    return [
        f"line {prose.count(chr(10), 0, found.start()) + 1}: {complaint}"
        for pattern, judge in ((LINK, _judge_link), (CODE, _judge_code))
        for found in pattern.finditer(prose)
        if (complaint := judge(page, found))
    ]


def anchors_of(text: str) -> set[str]:
    """Spell the anchors of a page's headings as the usual hosts of Markdown do.

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
    """Tell whether a source file defines a name; of a dotted one, its last part."""
    last = re.escape(name.rpartition(".")[2])
    definition = rf"\b(?:def|class|fn|struct|enum|trait|const) {last}\b|^ *{last}(?::[^=\n]+)? = "
    return bool(re.search(definition, path.read_text(), re.MULTILINE))


def commands_in(page: Path) -> Iterator[tuple[int, str]]:
    """Give the lines of a page's code blocks that run something of ours, with their numbers."""
    text = page.read_text()
    for block in FENCE.finditer(text):
        first = text.count("\n", 0, block.start(1)) + 1
        for number, line in enumerate(block[1].splitlines(), first):
            command = line.partition("  #")[0].strip()
            if command.startswith(("bytewright ", "python ", "make ")):
                yield number, command


def judge_command(line: str, help_of: Callable[[str], str]) -> list[str]:
    """Name what a command line asks for that is not there: a file, a target of make, a command, an option."""
    program, *words = line.split()
    missing = [word for word in words if _is_ours(word) and not (ROOT / word).exists()]
    wrong = [f"{word} is not there" for word in missing]
    if program == "make" and not re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
        wrong.append(f"make has no target {words[0]}")
    if program == "bytewright":
        command = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), None)
        if command is None:
            return [*wrong, f"bytewright has no command {words[0]}"]
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        unknown = [option for option in options if not re.search(rf"{option}(?![\w-])", help_of(command))]
        wrong += [f"bytewright {command} has no option {option}" for option in unknown]
    return wrong


def _judge_link(page: Path, found: re.Match[str]) -> str | None:
    target, _, anchor = found["target"].partition("#")
    if re.match(r"[a-z]+:", target):
        return None
    path = page.parent / target if target else page
    if not path.exists():
        return f"{found['target']} is not there"
    if anchor and anchor not in anchors_of(path.read_text()):
        return f"{found['target']}: no heading of that page has this anchor"
    name = NAME.fullmatch(found["text"])
    if name and path.suffix in (".py", ".rs") and name[1] != path.name and not defines(path, name[1]):
        return f"{target} does not define {name[1]}"
    return None


def _judge_code(page: Path, found: re.Match[str]) -> str | None:
    said = PATH.fullmatch(found["text"])
    if not said or not (_is_ours(said["path"]) or said["path"].endswith(SOURCES)):
        return None  # a path on the reader's own machine, or no path at all
    places = (ROOT, ROOT / "src" / "bytewright", page.parent)
    paths = [path for place in places for path in place.glob(said["path"].rstrip("/"))]
    if not paths:
        return f"`{said['path']}` is not there"
    if said["name"] and not any(defines(path, said["name"]) for path in paths):
        return f"`{said['path']}` does not define {said['name']}"
    return None


def _is_ours(path: str) -> bool:
    return path.startswith(tuple(f"{folder}/" for folder in FOLDERS)) and not path.startswith(BUILT)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])
