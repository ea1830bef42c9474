"""`sweep` shows what is to come as far as it is known, and says how it ended where nothing came of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bytewright.cli.sweep import show_plan
from bytewright.lab.plan import Planned
from bytewright.lab.sweep import Sweep, read_sweep
from conftest import Run
from runs import make_ids, write_tokens

BASE = """
batch_size = 4
device = "cpu"
[model]
vocab_size = 40
context_length = 8
d_model = 16
num_layers = 1
num_heads = 2
[data]
train = "train.npy"
[budget]
steps = 24
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "rates.toml").write_text(
        'base = "base.toml"\nquestion = "Which?"\n[axes]\n"optimizer.lr" = [1e-3]'
    )
    return read_sweep(tmp_path / "rates.toml")


def test_a_plan_leaves_blank_what_cannot_be_predicted(
    sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trial,) = sweep.trials
    for predicted in ({"memory_bytes": 2.5e9}, {"seconds": 90.0}, {}):
        planned = Planned(
            trial=trial, run=tmp_path / trial.name, state="new", detail="is new", predicted=predicted
        )
        show_plan(sweep, [planned])
        told = capsys.readouterr().out
        assert "is new" in told
        assert ("2.5 GB" in told) == ("memory_bytes" in predicted)
        assert ("of training" in told) == ("seconds" in predicted)
        assert "1 of 1 runs to do" in told


def test_a_sweep_of_which_every_run_failed_says_so(
    sweep: Sweep, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tokens(tmp_path / "train.npy", make_ids(500))
    outcome = run("sweep", "rates.toml", "--set", "model.vocab_size=3")
    assert outcome.code == 1
    *_, reason, end = outcome.err.splitlines()
    assert reason.startswith("[1/1] lr-1e-3: failed: train.npy")
    assert end == f"{Path('runs/rates')}: has no report, for every run failed as it began."


def test_the_help_of_resume_promises_what_it_does(run: Run) -> None:
    """It goes on from the last checkpoint, and refuses to be given one."""
    told = " ".join(run("resume", "--help").out.split())
    assert "The folder of the run." in told
    assert "of one checkpoint" not in told
    assert "of one checkpoint" in " ".join(run("evaluate", "--help").out.split())
