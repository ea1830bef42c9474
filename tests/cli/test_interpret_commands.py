"""`next`, `losses`, `attention`, `lens` and `tokenizer tokens` print what the library returns."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from bytewright.generate.interpret import logit_lens, predict_next_token, token_losses
from bytewright.model import ModelConfig, TransformerLM
from bytewright.tokenizer import Tokenizer, Vocabulary
from bytewright.train.run_model import open_model, write_imported_model
from conftest import RunCommand
from story_runs import train_on_stories

TEXT = "The dog ran.\n"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """A saved model with random weights; it has more ids than its tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "random"
    vocabulary = Tokenizer.load(tokenizer).vocabulary
    config = ModelConfig(
        vocab_size=vocabulary.size + 3, context_length=32, d_model=16, num_layers=2, num_heads=2
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        write_imported_model(folder, TransformerLM(config), vocabulary)
    return folder


@pytest.fixture(scope="module")
def storybook_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_on_stories(tmp_path_factory.mktemp("stories"))


def test_next_prints_the_true_probabilities_of_a_model_of_the_storybook(
    storybook_run: Path, run: RunCommand
) -> None:
    printed = json.loads(run("next", storybook_run, "--top", "400", "--json").out)
    assert {row["shown"]: row["true_probability"] for row in printed["next"] if row["true_probability"]} == {
        r"\n": 1.0
    }
    assert printed["true_entropy_bits"] == pytest.approx(0)
    printed = json.loads(run("next", storybook_run, "--prompt", "Once", "--top", "400", "--json").out)
    assert sum(row["true_probability"] for row in printed["next"]) == pytest.approx(1)
    shown = run("next", storybook_run, "--prompt", "Once", "--top", "3").out
    assert "\\nTokens" not in shown  # an escaped line break
    assert shown.splitlines()[0].split() == ["token", "id", "probability", "true", "probability"]
    rows = run("next", storybook_run, "--top", "400").out.splitlines()[1:-2]
    assert {row.split()[-1] for row in rows} == {"1.0000", "0"}  # what the grammar forbids is not rounded
    outside = json.loads(run("next", storybook_run, "--prompt", "Zebras", "--json").out)
    assert "true_entropy_bits" not in outside
    assert "true_probability" not in outside["next"][0]


@pytest.fixture(scope="module")
def ids(tokenizer: Path) -> list[int]:
    return Tokenizer.load(tokenizer).encode(TEXT)


def test_next_prints_the_most_probable_tokens(model_folder: Path, ids: list[int], run: RunCommand) -> None:
    printed = json.loads(run("next", model_folder, "--prompt", TEXT, "--top", "3", "--json").out)
    saved = open_model(model_folder)
    size = saved.run.tokenizer.vocab_size
    best = predict_next_token(saved.load(), ids)[:size].topk(3)
    assert [row["id"] for row in printed["next"]] == best.indices.tolist()
    assert [row["probability"] for row in printed["next"]] == pytest.approx(best.values.tolist())
    shown = run("next", model_folder, "--prompt", TEXT, "--top", "3").out
    assert [line.split()[-2] for line in shown.splitlines()[1:]] == [str(id) for id in best.indices.tolist()]


def test_losses_prints_the_loss_of_each_token(model_folder: Path, ids: list[int], run: RunCommand) -> None:
    printed = json.loads(run("losses", model_folder, "--text", TEXT, "--json").out)
    saved = open_model(model_folder)
    tokenizer = saved.run.tokenizer
    before = [*sorted(tokenizer.special_tokens.values())[:1], *tokenizer.encode("\n")]
    expected = token_losses(saved.load(), before + ids)[-len(ids) :].tolist()
    assert [row["loss"] for row in printed["losses"]] == pytest.approx(expected)
    assert b"".join(bytes.fromhex(row["bytes"]) for row in printed["losses"]) == TEXT.encode()
    assert printed["bits_per_byte"] == pytest.approx(sum(expected) / math.log(2) / len(TEXT))
    lines = run("losses", model_folder, "--text", TEXT).out.splitlines()
    assert lines[-2].strip() == ""
    assert f"tokens: mean loss {printed['loss']:.4f}" in lines[-1]
    assert "\\n" not in lines[-1]  # an escaped line break


def test_losses_reads_a_file(model_folder: Path, tmp_path: Path, run: RunCommand) -> None:
    (tmp_path / "story.txt").write_text(TEXT)
    from_file = run("losses", model_folder, tmp_path / "story.txt", "--json")
    assert json.loads(from_file.out) == json.loads(run("losses", model_folder, "--text", TEXT, "--json").out)


def test_attention_prints_all_heads_or_draws_one(model_folder: Path, ids: list[int], run: RunCommand) -> None:
    weights = json.loads(run("attention", model_folder, "--prompt", TEXT, "--json").out)["weights"]
    assert (len(weights), len(weights[0]), len(weights[0][0])) == (2, 2, len(ids))
    table = run("attention", model_folder, "--prompt", TEXT).out.splitlines()
    assert len(table) == 1 + 2 * 2 + 2  # the last line is the legend
    assert all(column in table[-1] for column in ("itself", "previous", "first", "distance"))
    itself = [weights[1][0][place][place] for place in range(1, len(ids))]
    assert table[3].split()[:3] == ["1", "0", f"{sum(itself) / len(itself):.2f}"]
    drawn = run("attention", model_folder, "--prompt", TEXT, "--layer", "0", "--head", "1").out.splitlines()
    assert len(drawn) == len(ids) + 2
    assert "██" in drawn[0]  # the first token has only itself
    assert "░ from 0.2, ▒ from 0.4, ▓ from 0.6, █ from 0.8" in drawn[-1]


def test_lens_prints_the_prediction_of_every_layer(
    model_folder: Path, ids: list[int], run: RunCommand
) -> None:
    printed = json.loads(run("lens", model_folder, "--prompt", TEXT, "--top", "2", "--json").out)
    layers = logit_lens(open_model(model_folder).load(), ids, top=2)
    found = [[[one["id"] for one in best] for best in layer] for layer in printed["layers"]]
    assert found == [layer.ids.tolist() for layer in layers]
    table = run("lens", model_folder, "--prompt", TEXT).out.splitlines()
    assert table[0].split() == ["token", "embeddings", "layer", "0", "layer", "1"]
    assert len(table) == 1 + len(ids) + 2
    assert "most probable next tokens" in table[-1]


def test_an_id_without_a_token_is_listed(tmp_path: Path, run: RunCommand) -> None:
    tokens = {id: bytes([id]) for id in range(256)} | {259: b"the"}  # 256 to 258 have no token
    vocabulary = Vocabulary.from_parts(tokens, [], {"<|endoftext|>": 260})
    config = ModelConfig(vocab_size=261, context_length=8, d_model=16, num_layers=1, num_heads=2)
    write_imported_model(tmp_path / "model", TransformerLM(config), vocabulary)
    printed = json.loads(run("next", tmp_path / "model", "--prompt", "a", "--top", "261", "--json").out)
    without = [(row["bytes"], row["shown"]) for row in printed["next"] if row["id"] == 257]
    assert without == [("", "id 257")]


def test_tokens_lists_positions_ids_and_bytes(tokenizer: Path, ids: list[int], run: RunCommand) -> None:
    rows = json.loads(run("tokenizer", "tokens", tokenizer, "--text", TEXT, "--json").out)
    assert [row["id"] for row in rows] == ids
    for row in rows:
        token = bytes.fromhex(row["bytes"])
        assert TEXT.encode()[row["start"] :].startswith(token)
    table = run("tokenizer", "tokens", tokenizer, "--text", TEXT).out.splitlines()
    assert len(table) == 1 + len(ids)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["next", "--top", "0"], "--top"),
        (["next", "--prompt", "a " * 100], "context"),
        (["losses"], "--text"),
        (["losses", "--text", ""], "empty"),
        (["attention", "--prompt", "The dog", "--layer", "1"], "--head"),
        (["attention", "--prompt", "The dog", "--layer", "2", "--head", "0"], "--layer"),
        (["lens", "--prompt", "The dog", "--top", "100000"], "--top"),
    ],
)
def test_wrong_input_is_one_sentence(
    model_folder: Path, run: RunCommand, arguments: list[str], word: str
) -> None:
    command, *rest = arguments
    outcome = run(command, model_folder, *rest)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert word in outcome.err
