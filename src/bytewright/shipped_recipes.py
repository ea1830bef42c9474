"""The recipes and sweeps that come with Bytewright: list them, find one by name, read how to make its data.

They are the files of `recipes/` in the repository; an installed package contains copies. The comment at the
top of each file begins with one sentence about it. Indented lines of the comment are commands: those that
make the data, and the one that runs the recipe.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import dataclass
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Literal

from bytewright.errors import UsageError, find_closest

FOLDER = Path(str(resources.files("bytewright") / "recipes"))
SUFFIX = ".toml"
COMMAND = re.compile(r"^#   (\S.*)$", re.MULTILINE)
"""A line of a recipe's comment that is a command."""
RUNS = ("train", "sweep")
"""The commands that run a recipe; all other commands in its comment make data."""


@dataclass(frozen=True)
class DataCommand:
    """One command that makes data: its words, and the file or folder that it writes."""

    words: tuple[str, ...]
    output: Path

    @property
    def is_ours(self) -> bool:
        """Whether it is a command of Bytewright, which can be run without a shell."""
        return self.words[0] == "bytewright"

    def __str__(self) -> str:
        return shlex.join(self.words)


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe or sweep that comes with Bytewright."""

    name: str
    path: Path
    kind: Literal["train", "sweep"]
    """The command that runs it."""
    summary: str
    """The first sentence of its comment."""

    @property
    def text(self) -> str:
        """The contents of its file."""
        return self.path.read_text(encoding="utf-8")

    @property
    def data_commands(self) -> list[DataCommand]:
        """The commands that make its data, in order; a sweep makes its data itself."""
        return [command for command in map(_parse_command, COMMAND.findall(self.text)) if command]


def list_recipes() -> list[ShippedRecipe]:
    """Return all recipes and sweeps that come with Bytewright, by name; recipes of runs first.

    >>> [recipe.name for recipe in list_recipes() if recipe.kind == "train"]
    ['base', 'isoflop', 'laptop', 'novels', 'novels_muon', 'short', 'smoke', 'tiny']
    """
    recipes = [_read(path) for path in sorted(FOLDER.resolve().glob(f"*{SUFFIX}"))]
    return sorted(recipes, key=lambda recipe: recipe.kind, reverse=True)


def find_recipe(recipe: Path) -> Path:
    """Return the file that `recipe` means: an existing file, or the name of a shipped recipe.

    >>> find_recipe(Path("tiny")).name
    'tiny.toml'
    """
    if recipe.is_file():
        return recipe
    shipped = {known.name: known.path for known in list_recipes()}
    if str(recipe) in shipped:
        return shipped[str(recipe)]
    if recipe.stem in shipped and recipe.suffix == SUFFIX:
        message = f"{recipe} does not exist; write {recipe.stem} for the recipe that comes with Bytewright"
        raise UsageError(message, path=recipe, key=recipe.stem)
    if (recipe / "environment.json").is_file():
        message = f"{recipe} is a run, not a recipe; `bytewright resume {recipe}` continues it"
        raise UsageError(message, path=recipe)
    problem = f"there is no file and no recipe {str(recipe)!r}"
    if recipe.exists() or recipe.suffix or len(recipe.parts) > 1:
        problem = f"{recipe} is not a file" if recipe.exists() else f"{recipe} does not exist"
    meant = {name: name for name in shipped} | {f"{name}{SUFFIX}": name for name in shipped}
    meant |= {path.name: str(path) for path in recipe.parent.glob(f"*{SUFFIX}")}
    near = find_closest(recipe.name, meant)
    hint = f"did you mean {meant[near]}?" if near else "`bytewright recipes` lists the recipes that exist"
    raise UsageError(f"{problem}; {hint}", path=recipe, expected=sorted(shipped))


def find_shipped(path: Path) -> ShippedRecipe | None:
    """Return the shipped recipe that the file at `path` is, or is an unchanged copy of."""
    for recipe in list_recipes():
        if recipe.path.name == path.name and recipe.path.read_bytes() == path.read_bytes():
            return recipe
    return None


def _read(path: Path) -> ShippedRecipe:
    text = path.read_text(encoding="utf-8")
    paragraph = takewhile(lambda line: line.strip() not in ("", "#"), text.splitlines())
    comment = " ".join(line[1:].strip() for line in paragraph)
    summary = re.split(r"(?<=\.) (?=[A-Z`])", comment, maxsplit=1)[0]
    return ShippedRecipe(path.stem, path, "sweep" if "question" in tomllib.loads(text) else "train", summary)


def _parse_command(line: str) -> DataCommand | None:
    words = tuple(shlex.split(line, comments=True))
    if words[0] == "bytewright" and words[1] in RUNS:
        return None
    return DataCommand(words, Path(words[words.index("--out") + 1]))
