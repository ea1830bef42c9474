"""Recipes by name: they are listed, found, printed and trained, and their data is made on request."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bytewright
from bytewright.errors import UsageError
from bytewright.shipped_recipes import find_recipe, find_shipped, list_recipes
from bytewright.train import Run, read_recipe
from conftest import HANG_SECONDS, RunCommand
from rejection import rejects

ROOT = Path(__file__).parents[2]
SHORT = ("--set", "budget.steps=2", "sample_every=0")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_shipped_recipes_are_those_of_the_repository() -> None:
    assert {recipe.path.name for recipe in list_recipes()} == {
        path.name for path in (ROOT / "recipes").glob("*.toml")
    }


def test_a_file_that_is_not_text_is_rejected(run: RunCommand, folder: Path) -> None:
    (folder / "mine.toml").write_bytes(b"# caf\xe9")
    outcome = run("recipes", "mine.toml")
    assert (outcome.code, "Traceback" in outcome.err) == (2, False)
    assert "mine.toml" in outcome.err


def test_every_recipe_is_listed_in_one_line(run: RunCommand) -> None:
    lines = run("recipes").out.splitlines()
    assert len(lines) == 1 + len(list_recipes())
    for recipe, line in zip(list_recipes(), lines[1:], strict=True):
        assert line.split()[:2] == [recipe.name, recipe.kind]
        assert recipe.summary in line
        assert recipe.summary.endswith((".", "?"))
        assert len(recipe.summary) <= 115
    fields = json.loads(run("recipes", "--json").out)
    assert [field["name"] for field in fields] == [recipe.name for recipe in list_recipes()]


def test_a_recipe_is_printed_by_name(run: RunCommand) -> None:
    assert run("recipes", "tiny").out == (ROOT / "recipes" / "tiny.toml").read_text()


@pytest.mark.parametrize("recipe", [recipe for recipe in list_recipes() if recipe.kind == "train"], ids=str)
def test_the_commands_in_a_recipe_make_all_its_data(recipe: object) -> None:
    assert isinstance(recipe, type(list_recipes()[0]))
    data = read_recipe(recipe.path).data
    outputs = [command.output for command in recipe.data_commands]
    for path in (data.train, data.validation, data.tokenizer):
        assert path is not None
        assert any(path.is_relative_to(output) for output in outputs)


def test_a_file_has_precedence_over_a_name(folder: Path) -> None:
    (folder / "tiny").write_text("seed = 1")
    assert find_recipe(Path("tiny")) == Path("tiny")
    (folder / "short").mkdir()  # a folder is not a recipe
    assert find_recipe(Path("short")).name == "short.toml"


@pytest.mark.parametrize("name", ["tny", "recipes/tiny.toml", "gone.toml", "here/gone", ".", "tiny.tml"])
def test_an_unknown_recipe_is_rejected(folder: Path, run: RunCommand, name: str) -> None:
    with rejects(UsageError, path=Path(name)):
        find_recipe(Path(name))
    for command in ("train", "sweep", "recipes"):
        outcome = run(command, name)
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("tyni", "tiny"), ("tniy", "tiny"), ("tny", "tiny"), ("learnig_rate", "learning_rate")),
        *(("mien.toml", "mine.toml"), ("mine", "mine.toml"), ("recipes/tyni.toml", "tiny")),
    ],
)
def test_an_unknown_recipe_suggests_the_closest_one(
    folder: Path, run: RunCommand, name: str, meant: str
) -> None:
    (folder / "mine.toml").write_text("seed = 1")
    for command in ("train", "sweep", "recipes", "account --config"):
        assert f"; did you mean {meant}?" in run(*command.split(), name).err


def test_missing_data_is_rejected_with_the_commands_that_make_it(folder: Path, run: RunCommand) -> None:
    outcome = run("train", "tiny")
    assert outcome.code == 2
    shipped = find_shipped(find_recipe(Path("tiny")))
    assert shipped is not None
    assert [line.strip() for line in outcome.err.splitlines()[1:-1]] == [
        str(command) for command in shipped.data_commands
    ]
    assert "--make-data" in outcome.err.splitlines()[-1]
    assert not any(folder.iterdir())


def test_make_data_makes_the_data_once(folder: Path, run: RunCommand) -> None:
    first = run("train", "smoke", "--make-data", *SHORT)
    assert first.code == 0, first.err
    assert Run("runs/smoke").status.state == "complete"
    second = run("train", "smoke", "--make-data", "--out", "again", *SHORT)
    assert second.code == 0
    assert "storybook" not in second.err
    os.remove("data/smoke-valid.npy")
    third = run("train", "smoke", "--make-data", "--out", "third", *SHORT)
    assert third.code == 0
    assert third.err.count("exists already") == 4


def test_make_data_continues_after_a_kill(folder: Path, run: RunCommand) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(bytewright.__file__).parents[1])}
    words = ["train", "smoke", "--make-data", *SHORT]
    process = subprocess.Popen(
        [sys.executable, "-m", "bytewright", *words], env=environment, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + HANG_SECONDS
    while not (folder / "data" / "smoke.txt").exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    text = (folder / "data" / "smoke.txt").stat()
    assert not (folder / "runs").exists()
    assert run(*words).code == 0
    assert (folder / "data" / "smoke.txt").stat().st_mtime_ns == text.st_mtime_ns
    assert Run("runs/smoke").status.state == "complete"


def test_make_data_runs_commands_of_shipped_recipes_only(folder: Path, run: RunCommand) -> None:
    """A recipe must not run code: the comments of a user's file are shown, not executed."""
    source = find_recipe(Path("tiny"))
    copy = Path(shutil.copy(source, folder / "tiny.toml"))
    assert find_shipped(copy) is not None
    copy.write_text(source.read_text().replace("5MB", "6MB"))
    assert find_shipped(copy) is None
    outcome = run("train", copy, "--make-data")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    outcome = run("train", "novels", "--make-data")  # a Python script makes its data from the user's text
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert [path.name for path in folder.iterdir()] == ["tiny.toml"]


def test_an_existing_run_is_rejected_before_data_is_made(folder: Path, run: RunCommand) -> None:
    (folder / "runs" / "smoke").mkdir(parents=True)
    (folder / "runs" / "smoke" / "config.json").write_text("{}")
    assert run("train", "smoke", "--make-data").code == 2
    assert not (folder / "data").exists()


def test_a_sweep_is_found_by_name(folder: Path, run: RunCommand) -> None:
    outcome = run("sweep", "learning_rate", "--scale", "smoke", "--plan")
    assert outcome.code == 0
    assert "runs to do" in outcome.out


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("maturin") is None, reason="needs maturin, which builds the wheel")
def test_an_installed_wheel_trains_a_recipe_by_name(tmp_path: Path) -> None:
    def execute(*words: str, **options: object) -> str:
        done = subprocess.run(words, capture_output=True, text=True, **options)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    execute("maturin", "build", "--release", "--out", str(tmp_path / "wheels"), cwd=ROOT)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    command = (sys.executable, "-m", "bytewright")
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}}
    assert len(execute(*command, "recipes", **options).splitlines()) == 1 + len(list_recipes())
    execute(*command, "train", "smoke", "--make-data", *SHORT, **options)
    assert Run(tmp_path / "runs" / "smoke").status.state == "complete"
    plan = execute(*command, "sweep", "adamw", "--scale", "smoke", "--plan", **options)
    assert "runs to do" in plan
