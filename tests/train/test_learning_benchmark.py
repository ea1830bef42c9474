"""The benchmark of recipes: equal settings give equal results, also with a reused learner."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bytewright.tokenizer import Tokenizer

pytestmark = pytest.mark.slow  # trains several models

SMALL = """model.vocab_size=400 model.d_model=32 model.d_ff=64 model.num_heads=2 model.num_layers=1
    model.context_length=32 batch_size=4 budget.tokens=2000 precision=fp32 schedule.warmup=3"""


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import learning

    return learning


@pytest.fixture
def bench(tmp_path: Path, learning: Any, stories: Path, tokenizer: Path) -> Any:
    loaded = Tokenizer.load(tokenizer)
    loaded.save(tmp_path / "tokenizer")
    (tmp_path / "validation.txt").write_text(stories.read_text()[:4000])
    loaded.encode_file(stories, tmp_path / "train.npy")
    loaded.encode_file(tmp_path / "validation.txt", tmp_path / "validation.npy")
    settings = tuple(SMALL.split())
    return learning.Comparison(
        learning.Options(data=tmp_path, json=tmp_path / "out.json", device="cpu", set=settings)
    )


def test_the_baseline_and_ours_learn_alike_from_equal_settings(bench: Any) -> None:
    settings = "schedule.kind=cosine optimizer.lr=5e-3"
    ours, theirs = bench.learn(f"adamw {settings}"), bench.learn(f"plain {settings}")
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
    assert ours["num_parameters"] == theirs["num_parameters"]
    assert ours["bits_per_byte"] > 0
    assert ours["tokens"] == theirs["tokens"] == ours["training_curve"][-1][0]
    for (_, left), (_, right) in zip(ours["training_curve"], theirs["training_curve"], strict=True):
        assert left == pytest.approx(right, abs=1e-3)


@pytest.mark.parametrize("run", ["adamw optimizer.lr=5e-3", "muon optimizer.name=muon", "plain seed=1"])
def test_a_reused_learner_gives_the_same_results(bench: Any, run: str) -> None:
    first = bench.learn(run)
    learner = bench._learner
    assert bench.learn(f"{run} optimizer.lr=1e-4")["loss"] != first["loss"]
    again = bench.learn(run)
    assert bench._learner is learner
    assert again["loss"] == first["loss"]
    assert again["training_curve"] == first["training_curve"]


def test_a_change_of_a_compiled_setting_creates_a_new_learner(bench: Any) -> None:
    bench.learn("adamw")
    learner = bench._learner
    bench.learn("adamw optimizer.weight_decay=0.5")
    assert bench._learner is not learner


def test_the_sweep_comes_first_and_then_the_best_from_other_seeds(learning: Any) -> None:
    sweep = ["plain a=1", "plain a=2", "muon b=1"]
    done: list[dict[str, Any]] = []
    asked = []
    losses = {"plain a=1": 3.0, "plain a=2": 2.5, "muon b=1": None}
    while run := learning.next_run(sweep, done, 2):
        asked.append(run)
        seed = 1 if "seed=1" in run else 0
        done.append({"run": run, "contestant": run.split()[0], "seed": seed, "loss": losses.get(run, 2.4)})
    assert asked == [*sweep, "plain a=2 seed=1"]
    assert learning.losses_by_seed(done, done[1]) == {0: 2.5, 1: 2.4}


def test_results_under_other_conditions_are_not_mixed(tmp_path: Path, learning: Any, bench: Any) -> None:
    record = learning.open_record(bench.options, bench)
    learning.atomic.write_json(bench.options.json, record)
    assert learning.open_record(bench.options, bench)["conditions"] == record["conditions"]
    other = dataclasses.replace(bench.options, set=(*bench.options.set, "batch_size=8"))
    with pytest.raises(SystemExit, match="under other conditions"):
        learning.open_record(other, bench)
