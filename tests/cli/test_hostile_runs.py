"""A hostile run folder: every command answers in one sentence, soon and in little memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from rich.console import Console

from bytewright.tokenizer import Tokenizer
from bytewright.train import train
from conftest import Outcome, Run
from runs import make_config

TOO_LONG = 60
"""Seconds after which a command counts as hanging: far more than any of them takes."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, stories: Path, tokenizer: Path) -> Path:
    """A folder with a complete run, its tokens and its tokenizer."""
    folder = tmp_path_factory.mktemp("original")
    shutil.copytree(tokenizer, folder / "tok")
    Tokenizer.load(tokenizer).encode_file(stories, folder / "stories.npy")
    config = make_config(
        folder,
        model={"vocab_size": 400, "num_layers": 1},
        data={
            "train": str(folder / "stories.npy"),
            "validation": str(folder / "stories.npy"),
            "tokenizer": str(folder / "tok"),
        },
        budget={"steps": 8},
        schedule={"kind": "constant", "warmup": 0},
    )
    train(config, folder / "run", console=Console(quiet=True))
    return folder


@pytest.fixture
def place(tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, to be spoiled."""
    shutil.copytree(original, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """Fail instead of waiting for ever."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still not done after {TOO_LONG} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(TOO_LONG)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def assert_answered(outcome: Outcome) -> None:
    """The command worked, or it was refused in one sentence."""
    assert outcome.code in (0, 1, 2), outcome
    assert outcome.code == 0 or outcome.err.splitlines()[-1].startswith("bytewright: "), outcome


# Files that are not files


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("metrics.jsonl", "resume run"),
        ("metrics.jsonl", "runs ."),
        (".lock", "runs ."),
        (".lock", "resume run"),
        ("config.json", "evaluate run"),
        ("environment.json", "runs ."),
        ("outcome.json", "runs ."),
        ("samples/step-000008.txt", "runs ."),
        ("tokenizer/manifest.json", "generate run --max-new-tokens 2"),
        ("tokenizer/vocabulary.json", "generate run --max-new-tokens 2"),
        ("checkpoints/step-000008/manifest.json", "generate run --max-new-tokens 2"),
        ("checkpoints/step-000008/model.safetensors", "generate run --max-new-tokens 2"),
        ("checkpoints/step-000008/state.json", "evaluate run"),
    ],
)
def test_a_pipe_for_a_file_of_a_run_is_not_waited_for(place: Path, run: Run, name: str, command: str) -> None:
    pipe = place / "run" / name
    pipe.parent.mkdir(exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with no_hang():
        assert_answered(run(*command.split()))
