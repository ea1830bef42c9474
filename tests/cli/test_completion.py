"""Completion scripts for shells, and help that is wrapped to the terminal."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from bytewright.cli.completion import describe_commands
from bytewright.cli.main import COMMANDS
from bytewright.shipped_recipes import list_recipes
from conftest import RunCommand

TRY = """
source {script}
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_bytewright
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def complete(script: Path, folder: Path, *words: str) -> list[str]:
    """Return what bash offers for the last word."""
    program = TRY.format(script=shlex.quote(str(script)), words=shlex.join(("bytewright", *words)))
    done = subprocess.run(
        ["bash", "-c", program], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    assert not done.stderr
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_choices_recipes_and_files(tmp_path: Path, run: RunCommand) -> None:
    script, folder = tmp_path / "script", tmp_path / "folder"
    folder.mkdir()
    (folder / "my runs.toml").touch()
    script.write_text(run("completion", "bash").out)
    firsts = complete(script, folder, "")
    assert set(firsts) == {name.split()[0] for name in COMMANDS} | {"--help", "--version"}
    assert complete(script, folder, "tokenizer", "enc") == ["encode", "encode-pairs"]
    assert complete(script, folder, "train", "--make") == ["--make-data"]
    assert complete(script, folder, "evaluate", "x", "--which", "") == ["best", "last"]
    recipes = {recipe.name for recipe in list_recipes() if recipe.kind == "train"}
    assert set(complete(script, folder, "train", "")) == {*recipes, "my runs.toml"}
    assert complete(script, folder, "train", "my") == ["my runs.toml"]
    assert complete(script, folder, "completion", "") == ["bash", "zsh", "fish"]
    assert complete(script, folder, "tokenizer", "encode", "tok", "my") == ["my runs.toml"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_names_every_command_and_option(run: RunCommand, shell: str) -> None:
    outcome = run("completion", shell)
    assert outcome.code == 0
    described = describe_commands()
    assert [command.name for command in described] == list(COMMANDS)
    for command in described:
        assert command.name.split()[-1] in outcome.out
        for option in command.options:
            assert (f"-l {option.name[2:]} " if shell == "fish" else option.name) in outcome.out
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=outcome.out, text=True, check=True, timeout=60)


@pytest.mark.parametrize("name", list(COMMANDS))
@pytest.mark.parametrize("width", [50, 80, 140])
def test_help_fits_the_terminal(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch, name: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    outcome = run(*name.split(), "--help")
    assert outcome.code == 0
    assert "For example:" in outcome.out
    long = [line for line in outcome.out.splitlines()[1:] if len(line) > width and len(line.split()) > 2]
    assert not long


def test_the_overview_fits_the_terminal(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = run("--help").out.split("examples:")[0].splitlines()
    assert all(len(line) <= 60 for line in lines if line.startswith("  "))
