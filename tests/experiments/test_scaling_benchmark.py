"""The benchmarks of scaling and of capacity: their documents, their plans and small runs of both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bytewright.account import count_flops
from bytewright.corpus.storybook import read_stories
from bytewright.corpus.worldbook import Worldbook
from bytewright.corpus.worldbook.files import write_worldbook
from bytewright.corpus.worldbook.world import World
from bytewright.experiments.evaluation.document_eval import DocumentTokens, evaluate_tokens
from bytewright.experiments.evaluation.world_eval import account_excess, find_derivations
from bytewright.experiments.sweep import read_sweep
from bytewright.model import ModelConfig, TransformerLM
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.train import train_tokenizer

ROOT = Path(__file__).parents[2]
LEVELS = {"isoflop_low": 5e14, "isoflop_middle": 2e15, "isoflop_high": 8e15}


@pytest.fixture
def capacity(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import capacity

    return capacity


@pytest.fixture
def world_documents(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import world_documents

    return world_documents


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import scaling

    return scaling


def test_points_state_a_sweep_a_width_and_seeds(scaling: Any) -> None:
    assert scaling.Point.parse("isotoken:128:3") == scaling.Point("isotoken", 128, range(3))
    assert scaling.Point.parse("isotoken:128:5-9").seeds == range(5, 10)
    assert scaling.Point.parse("isotoken:128:0-0").seeds == range(1)


@pytest.mark.parametrize(
    "text", ["isotoken:128", "isotoken:wide:3", "isotoken:128:0", "isotoken:128:9-5", "::3"]
)
def test_a_malformed_point_is_one_sentence(
    scaling: Any, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--json", "out.json", "--points", text])
    with pytest.raises(SystemExit, match="2"):
        scaling.parse_arguments()
    message = capsys.readouterr().err.splitlines()[-1]
    assert repr(text) in message
    assert "isotoken:128:5-9" in message


def test_a_point_of_a_width_that_its_sweep_lacks_is_rejected(scaling: Any) -> None:
    trials = read_sweep(ROOT / "recipes" / "isoflop_low.toml").trials
    width = trials[0].config.model.d_model
    assert {each.config.seed for each in scaling.Point("isoflop_low", width, range(2)).trials(trials)} == {
        0,
        1,
    }
    with pytest.raises(SystemExit, match=str(width)):
        scaling.Point("isoflop_low", 7, range(2)).trials(trials)


@pytest.mark.parametrize("name", LEVELS)
def test_all_sizes_of_a_level_have_the_same_compute_and_no_text_is_used_twice(name: str) -> None:
    for trial in read_sweep(ROOT / "recipes" / f"{name}.toml").trials:
        config, corpus = trial.config, trial.corpus
        assert config.num_steps is not None
        assert corpus is not None
        num_tokens = config.num_steps * config.tokens_per_step
        flops = count_flops(config.model).training / config.model.context_length * num_tokens
        assert flops == pytest.approx(LEVELS[name], rel=0.002)
        assert 4 * num_tokens < (corpus.worldbook or 0)  # a token has more than 4 bytes


def test_the_bits_by_cell_add_up_to_the_table_by_kind(tmp_path: Path, world_documents: Any) -> None:
    file = tmp_path / "test.txt"
    write_worldbook(file, 40_000, world=World(), split="test")
    tokenizer = Tokenizer.from_vocabulary(train_tokenizer(file, 400, ["<|endoftext|>"]).vocabulary)
    documents = world_documents.Documents.read(file, Worldbook(), tokenizer, num_any=10**6, context_length=32)
    config = ModelConfig(vocab_size=400, context_length=32, d_model=16, num_layers=1, num_heads=1)
    model = TransformerLM(config, compute_dtype=torch.bfloat16)
    by_cell = documents.model_bits(model).sum(axis=0)
    text = DocumentTokens.read(file, tokenizer)
    derived = find_derivations(file, len(text.documents))
    assert derived is not None
    model.compute_dtype = None
    bits = evaluate_tokens(model, text.documents, text.end)
    table = account_excess(derived, text.documents, bits, text.token_bytes).tables["kind"]
    for kind, row in table.items():
        cells = [number for number, cell in enumerate(documents.cells) if cell[0] == kind]
        assert by_cell[cells].sum() == pytest.approx(row.model_bits, abs=1e-2)  # batches are padded otherwise
        assert documents.true_bits[:, cells].sum() == pytest.approx(row.true_bits, abs=1e-6)
        assert documents.num_choices[:, cells].sum() == row.num_choices


@pytest.mark.slow
def test_the_driver_trains_all_runs_at_a_small_scale(tmp_path: Path) -> None:
    out = tmp_path / "scaling.json"
    command = [sys.executable, "benchmarks/scaling.py", "--json", str(out), "--scale", "smoke"]
    subprocess.run([*command, "--documents", "20", "--limit", "600"], cwd=ROOT, check=True)
    found = json.loads(out.read_text())
    assert len(found["runs"]) == 6
    assert not any("error" in run for run in found["runs"])
    assert {point["seed"] for point in found["points"]} == {0, 1}
    for point in found["points"]:
        assert sum(point["excess"].values()) == pytest.approx(point["loss"] - point["floor"], abs=1e-9)


def test_documents_about_people_only_can_be_parsed(tmp_path: Path, capacity: Any) -> None:
    book = capacity.people_book(1000)
    file = tmp_path / "people.txt"
    capacity.write_documents(file, book, "test", 50_000)
    documents = list(read_stories(file))
    assert file.stat().st_size >= 50_000
    assert documents[:20] == [book.document("test", 1, index).text for index in range(20)]
    for text in documents[:20]:
        assert {choice.kind for choice in book.parse(text).choices} >= {"person", "fact"}
    assert [capacity.octave(rank) for rank in (1, 3, 64, None)] == ["1-1", "2-3", "64-127", "-"]


@pytest.mark.slow
def test_the_capacity_benchmark_trains_all_runs_at_a_small_scale(tmp_path: Path) -> None:
    out = tmp_path / "capacity.json"
    settings = "--widths 16 32 --people 500 --tokens 2e5 --vocab-size 300 --seeds 2 --documents 20"
    command = [sys.executable, "benchmarks/capacity.py", "--json", str(out), *settings.split()]
    subprocess.run(command, cwd=ROOT, check=True)
    found = json.loads(out.read_text())
    assert not any("error" in run for run in found["runs"])
    rates, rest = found["runs"][:3], found["runs"][3:]
    assert len({run["lr"] for run in rates}) == 3
    assert sorted((run["width"], run["seed"]) for run in rest) == [
        (16, 0), (16, 0), (16, 1), (32, 0), (32, 0), (32, 1),
    ]  # fmt: skip
    test = found["sets"]["test"]
    for run in found["runs"]:
        assert sum(run["model_bits"]["test"]) > sum(test["true_bits"])
