"""Commands that compute nothing do not import torch, which takes seconds and hundreds of megabytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import bytewright
from bytewright.train import train
from runs import make_config

PROGRAM = """
import sys
from bytewright.cli.main import main
try:
    sys.exit(main())
finally:
    if "torch" in sys.modules:
        print("imported: torch", file=sys.stderr)
"""
"""The command `bytewright`; it reports whether it imported torch."""


def run_command(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(bytewright.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *command.split()],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two complete runs."""
    folder = tmp_path_factory.mktemp("startup")
    for name in ("first", "second"):
        train(make_config(folder), folder / "runs" / name, console=Console(quiet=True))
    return folder


@pytest.mark.parametrize(
    "command",
    [
        *("--help", "--version", "tokenizer --help", "train --help", "sweep --help", "studio --help"),
        *("runs", "runs --where status=complete --sort loss --json"),
        *("report runs/first", "report runs/first runs/second --out both", "report both/results.json"),
    ],
)
def test_a_command_that_computes_nothing_does_not_import_torch(folder: Path, command: str) -> None:
    done = run_command(folder, command)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "imported: torch" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        *("trian", "corpus sats", "train", "runs gone", "report gone", "resume gone", "sweep gone.toml"),
        *("train tyni", "sweep learnig_rate", "recipes tyni", "account --config tyni"),
        *("train gone.toml --out new", "evaluate gone", "evaluate runs/first gone.npy", "generate gone"),
        *("export gone --to hf --out new", "import gone --out new", "account --config gone.toml"),
        *("tokenizer inspect gone", "tokenizer encode gone gone.txt --out new.npy"),
    ],
)
def test_a_mistyped_command_or_path_is_rejected_without_torch(folder: Path, command: str) -> None:
    done = run_command(folder, command)
    assert done.returncode == 2
    assert done.stderr.startswith("bytewright: ")
    assert done.stderr.count("\n") == 1


def test_a_run_of_an_earlier_version_is_reported_with_the_same_costs(folder: Path) -> None:
    """Such a run has not recorded its costs, so they are computed with torch."""
    run = folder / "runs" / "second"
    done = run_command(folder, "report runs/second")
    recorded = (run / "report.md").read_text()
    (run / "costs.json").unlink()
    again = run_command(folder, "report runs/second")
    assert done.returncode == again.returncode == 0
    assert "imported: torch" in again.stderr
    assert (run / "report.md").read_text() == recorded
