"""`sweep` shows what is to come as far as it is known, and says how it ended where nothing came of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bytewright.cli.sweep import show_plan
from bytewright.lab.plan import Planned
from bytewright.lab.sweep import Sweep, read_sweep

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
