"""The commands of the README's tour run in order, and then its Python examples."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from figures import EXAMPLE, ROOT

from bytewright import shipped_recipes
from bytewright.tokenizer import Tokenizer
from conftest import RunCommand

TOUR = re.compile(r"^## A tour.*?^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORTER = {
    "tiny.toml": {"steps = 800": "steps = 4"},
    "smoke.toml": {"steps = 120": "steps = 4"},
    "learning_rate.toml": {
        "storybook = 3_000_000": "storybook = 300_000",
        "validation_size = 200_000": "validation_size = 50_000",
    },
}
"""Replacements in the recipes for the fast test; the commands stay unchanged."""


def read_tour() -> list[str]:
    """Return the commands of the tour without their comments."""
    (block,) = TOUR.findall((ROOT / "README.md").read_text())
    lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line]


def copy_recipes(folder: Path) -> Path:
    """Copy the recipes of the repository into `folder / "recipes"`."""
    return shutil.copytree(ROOT / "recipes", folder / "recipes")


def run_python() -> dict[str, Any]:
    """Run the Python examples of the README on the files that the tour created in the current folder."""
    blocks = EXAMPLE.findall((ROOT / "README.md").read_text())
    assert len(blocks) >= 2
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    return names


def test_the_tour_contains_the_commands_in_the_comments_of_its_recipe() -> None:
    comments = re.findall(r"^# +(bytewright .*)$", (ROOT / "recipes/tiny.toml").read_text(), re.MULTILINE)
    assert len(comments) == 6
    assert [line for line in read_tour() if line in comments] == comments


def test_all_commands_of_the_tour_and_the_python_examples_run(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = copy_recipes(tmp_path)
    for name, changes in SHORTER.items():
        text = (recipes / name).read_text()
        for long, short in changes.items():
            assert long in text
            text = text.replace(long, short)
        (recipes / name).write_text(text)
    monkeypatch.setattr(shipped_recipes, "FOLDER", recipes)
    monkeypatch.chdir(tmp_path)
    for line in read_tour():
        command, _, target = line.partition(" > ")
        program, *words = shlex.split(command)
        assert program == "bytewright", line
        outcome = run(*words)
        assert outcome.code == 0, f"{line}: {outcome.err}"
        if target:
            Path(target).write_text(outcome.out)
    assert Path("runs/learning_rate-smoke/report.html").is_file()
    assert Path("runs/tiny/report.html").is_file()
    names = run_python()
    assert isinstance(names["tokenizer"], Tokenizer)
    assert names["tokenizer"].decode(names["ids"]) == "Once upon a time"
    assert len(names["completion"].ids) == 20
    assert names["loss"].item() < 10


@pytest.mark.slow
def test_the_tour_runs_in_a_shell_with_unchanged_recipes(tmp_path: Path) -> None:
    script = "\n".join([f'bytewright() {{ {sys.executable} -m bytewright "$@"; }}', *read_tour()])
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
