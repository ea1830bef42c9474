"""The bits of a model on the world book are assigned to choices, and every table adds up to the total."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bytewright.corpus import SEPARATOR
from bytewright.corpus.worldbook import World, Worldbook
from bytewright.corpus.worldbook.files import write_worldbook
from bytewright.data.sampler import Tokens
from bytewright.experiments.evaluation.document_eval import evaluate_text, evaluate_tokens
from bytewright.experiments.evaluation.world_eval import account_excess
from bytewright.generate.scoring import plan_windows
from bytewright.model import ModelConfig, TransformerLM
from bytewright.storage.manifest import manifest_path_of
from conftest import RunCommand
from runs import train_on_text

END, VOCAB = 0, 11
WORLD, BOOK = World(seed=3), Worldbook()


def make_model(context_length: int) -> TransformerLM:
    torch.manual_seed(3)
    return TransformerLM(
        ModelConfig(vocab_size=VOCAB, context_length=context_length, d_model=8, num_layers=2, num_heads=2)
    )


def make_documents(lengths: list[int]) -> list[Tokens]:
    chance = np.random.default_rng(1)
    return [chance.integers(1, VOCAB, length).astype(np.uint16) for length in lengths]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_long_documents_are_read_with_at_least_half_a_context(batch_size: int) -> None:
    context = 6
    model, documents = make_model(context), make_documents([20, 3])
    told: list[tuple[int, int]] = []
    found = evaluate_tokens(
        model, documents, END, batch_size=batch_size, progress=lambda *each: told.append(each)
    )
    assert told[-1] == (2, 2)
    ids = [END, *documents[0].tolist(), END]
    for window in plan_windows(len(ids), context):
        assert window.end - window.start <= context + 1
        for place in range(window.first, window.end):
            assert place - window.start >= min(place, context // 2)
            logits = model(torch.tensor([ids[window.start : place]]))[0, -1].double()
            expected = -torch.log_softmax(logits, dim=-1)[ids[place]].item() / math.log(2)
            assert found[0][place - 1] == pytest.approx(expected, rel=1e-4)


def test_a_perfect_model_of_bytes_has_no_excess_in_any_row() -> None:
    """Each byte is a token. A model that pays the true bits at the first byte of a choice has no excess."""
    book = Worldbook(WORLD)
    documents = [book.document("test", 1, index) for index in range(20)]
    ids = [np.frombuffer(f"\n{each.text}\n".encode(), dtype=np.uint8) for each in documents]
    bits = []
    for document in documents:
        each = np.zeros(len(document.text) + 3)
        for choice in document.derivation.choices:
            at_end = choice.start == len(document.text)
            each[-1 if at_end else choice.start + 1] += choice.bits
        bits.append(each)
    report = account_excess(
        [(each.text, each.derivation) for each in documents], ids, bits, np.ones(256, dtype=np.int64)
    )
    for table in report.tables.values():
        for row in table.values():
            assert row.excess == pytest.approx(0, abs=1e-9)
    assert report.total().true_bits == pytest.approx(sum(each.bits for each in documents))
    kinds = report.tables["kind"]
    assert kinds["text"].true_bits == kinds["fact"].true_bits == kinds["recall"].true_bits == 0
    assert kinds["length"].num_choices == sum(each.text.count("\n\n") + 1 for each in documents)
    assert len(report.tables["rank"]) > 4
    assert len(report.tables["depth"]) > 1


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with documents of a world, and a run of two steps on them."""
    folder = tmp_path_factory.mktemp("world")
    write_worldbook(folder / "world.txt", 40_000, world=WORLD, split="validation")
    train_on_text(folder / "world.txt", vocab_size=400, context_length=128)
    return folder


def test_every_table_of_a_run_adds_up_to_the_total(told: Path) -> None:
    measured = evaluate_text(told / "run", told / "world.txt")
    assert measured.excess is not None
    assert measured.floor_bits is not None
    for name in measured.excess.tables:
        total = measured.excess.total(name)
        assert abs(total.model_bits - measured.evaluation.bits.sum()) < 1e-6
        assert abs(total.true_bits - measured.floor_bits.sum()) < 1e-6
        assert total.num_tokens == measured.evaluation.num_tokens.sum()
    assert measured.gap is not None
    assert measured.gap[0] > 0


def test_without_the_manifest_the_facts_of_another_world_have_no_floor(told: Path, tmp_path: Path) -> None:
    (tmp_path / "world.txt").write_text((told / "world.txt").read_text())
    measured = evaluate_text(told / "run", tmp_path / "world.txt")
    assert measured.floor is None
    assert "states wrong facts" in measured.mismatch
    assert "world.txt.json" in measured.mismatch, "the cause that a user can remove"
    manifest_path_of(tmp_path / "world.txt").write_bytes(manifest_path_of(told / "world.txt").read_bytes())
    assert evaluate_text(told / "run", tmp_path / "world.txt").floor is not None


def test_the_last_line_end_of_a_file_may_be_missing(told: Path, tmp_path: Path) -> None:
    text = "".join(BOOK.document("test", 1, index).text + SEPARATOR for index in range(3))
    (tmp_path / "whole.txt").write_text(text)
    (tmp_path / "cut.txt").write_text(text.removesuffix("\n"))
    whole, cut = (evaluate_text(told / "run", tmp_path / f"{name}.txt") for name in ("whole", "cut"))
    assert cut.floor == whole.floor is not None
    assert cut.evaluation.bits_per_byte == whole.evaluation.bits_per_byte


def test_the_command_prints_the_excess(run: RunCommand, told: Path) -> None:
    outcome = run("evaluate", told / "run", "--stories", told / "world.txt")
    assert outcome.code == 0
    for heading in ("kind of choice", "rule", "rank of the person", "depth of nesting", "moves of the thing"):
        assert heading in outcome.out
    figures = json.loads(run("evaluate", told / "run", "--stories", told / "world.txt", "--json").out)
    rows = figures["excess"]["kind"].values()
    excess = sum(row["model_bits"] - row["true_bits"] for row in rows)
    num_bytes = (told / "world.txt").stat().st_size - figures["num_stories"] * len("<|endoftext|>")
    assert excess == pytest.approx(figures["above_floor"] * num_bytes, rel=1e-9)
