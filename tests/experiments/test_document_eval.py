"""Whole documents are evaluated by definition; only those of a book have a floor."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from bytewright.corpus.storybook import write_stories
from bytewright.data.sampler import Tokens
from bytewright.errors import UsageError
from bytewright.experiments.evaluation.document_eval import (
    DocumentEvaluation,
    DocumentTokens,
    TextEvaluation,
    evaluate_text,
    evaluate_tokens,
    split_documents,
)
from bytewright.model import ModelConfig, TransformerLM
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.train import train_tokenizer
from bytewright.train import train
from bytewright.train.run import Run
from bytewright.train.run_files import find_checkpoint
from conftest import RunCommand
from rejection import rejects
from runs import make_config, train_on_text

END = 0
VOCAB = 11
TOKEN_BYTES = np.array([0, *range(1, VOCAB)], dtype=np.int64)


def make_model(context_length: int = 16) -> TransformerLM:
    torch.manual_seed(3)
    return TransformerLM(
        ModelConfig(vocab_size=VOCAB, context_length=context_length, d_model=8, num_layers=2, num_heads=2)
    )


def make_stories(lengths: list[int]) -> list[Tokens]:
    chance = np.random.default_rng(1)
    return [chance.integers(1, VOCAB, length).astype(np.uint16) for length in lengths]


def bits_by_definition(model: TransformerLM, story: Tokens) -> float:
    """Return the bits of a story, computed without batching, one prediction after the other."""
    ids = [END, *story.tolist(), END]
    bits = 0.0
    for place in range(1, len(ids)):
        logits = model(torch.tensor([ids[:place]]))[0, -1].double()
        bits -= torch.log_softmax(logits, dim=-1)[ids[place]].item() / math.log(2)
    return bits


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_the_bits_of_every_story_match_the_definition(batch_size: int) -> None:
    model, stories = make_model(), make_stories([5, 1, 15, 7, 3, 15, 2])
    told: list[tuple[int, int]] = []
    bits = evaluate_tokens(
        model, stories, END, batch_size=batch_size, progress=lambda done, total: told.append((done, total))
    )
    found = DocumentTokens(stories, END, TOKEN_BYTES).summarise(bits)
    expected = [bits_by_definition(model, story) for story in stories]
    assert found.bits == pytest.approx(expected, rel=1e-5)
    assert found.num_tokens.tolist() == [len(story) + 1 for story in stories]
    assert found.num_bytes.tolist() == [int(story.sum()) for story in stories]
    assert found.bits_per_byte == pytest.approx(sum(expected) / sum(int(story.sum()) for story in stories))
    assert found.loss == pytest.approx(sum(expected) * math.log(2) / sum(len(story) + 1 for story in stories))
    assert told[-1] == (7, 7)


def test_a_uniform_model_needs_the_log_of_the_vocabulary_per_prediction() -> None:
    model, stories = make_model(), make_stories([4, 9])
    with torch.no_grad():
        model.output_weight.zero_()
    found = DocumentTokens(stories, END, TOKEN_BYTES).evaluate(model)
    assert found.bits == pytest.approx([5 * math.log2(VOCAB), 10 * math.log2(VOCAB)])


def test_tokens_are_split_at_end_tokens() -> None:
    tokens = np.array([3, 4, END, 5, END, END, 6, 7], dtype=np.uint16)
    assert [story.tolist() for story in split_documents(tokens, END)] == [[3, 4], [5], []]
    assert split_documents(tokens[:2], END) == []


def test_the_first_story_gets_the_newline_that_the_others_begin_with() -> None:
    def split(*tokens: int) -> list[list[int]]:
        ids = np.array(tokens, dtype=np.uint16)
        return [story.tolist() for story in split_documents(ids, END, newline=1)]

    assert split(5, 1, END, 1, 6, 1, END, 1) == [[1, 5, 1], [1, 6, 1]]
    assert split(5, 1, END, 1) == [[1, 5, 1]], "tokens after the last end token belong to the next story"
    assert split(1, 5, END, 1, 6, END) == [[1, 5], [1, 6]], "the first story has a newline"
    assert split(5, END, 6, END) == [[5], [6]], "the other stories have no newline"
    assert split(END, 1, 6, END) == [[1], [1, 6]]
    assert split(5, END) == [[5]]


def test_a_tokenizer_without_the_end_token_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("An owl slept.\n<|endoftext|>\n")
    tokenizer = Tokenizer.from_vocabulary(train_tokenizer(file, 260, []).vocabulary)
    with rejects(UsageError, expected="<|endoftext|>"):
        DocumentTokens.read(file, tokenizer)


def test_a_document_counts_as_long_if_it_does_not_fit_with_its_end_token() -> None:
    stories = make_stories([7, 8, 2, 9])
    evaluation = DocumentTokens(stories, END, TOKEN_BYTES).evaluate(make_model(context_length=8))
    assert TextEvaluation(evaluation, 8, None).num_long == 2


def test_the_gap_to_a_floor_is_computed_per_story() -> None:
    chance = np.random.default_rng(0)
    num_bytes = chance.integers(300, 900, 4000)
    floor = num_bytes * 0.4 + chance.normal(0, 30, 4000)  # some stories are harder than others
    above = num_bytes * 0.05 + chance.normal(0, 3, 4000)
    evaluation = DocumentEvaluation(floor + above, num_bytes // 4, num_bytes)
    gap, error = evaluation.gap_to(floor)
    assert gap == pytest.approx(evaluation.bits_per_byte - floor.sum() / num_bytes.sum())
    assert abs(gap - 0.05) < 3 * error
    assert error == pytest.approx(3 / math.sqrt(4000) / num_bytes.mean(), rel=0.1), "hardness cancels"
    assert evaluation.gap_to(evaluation.bits) == (0.0, 0.0)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stories, and a run of two steps on them."""
    folder = tmp_path_factory.mktemp("told")
    write_stories(folder / "stories.txt", 8_000, seed=1, split="validation")
    train_on_text(folder / "stories.txt", vocab_size=500, context_length=700)
    return folder


def test_stories_of_the_storybook_have_a_floor_below_the_loss(told: Path) -> None:
    measured = evaluate_text(told / "run", told / "stories.txt")
    assert measured.floor is not None
    assert measured.gap is not None
    gap, error = measured.gap
    assert measured.evaluation.bits_per_byte == pytest.approx(measured.floor + gap)
    assert gap > 10 * error > 0


def test_the_order_of_stories_does_not_matter(told: Path, tmp_path: Path) -> None:
    stories = (told / "stories.txt").read_text().split("<|endoftext|>\n")[:-1]
    (tmp_path / "turned.txt").write_text("".join(f"{story}<|endoftext|>\n" for story in reversed(stories)))
    measured = [evaluate_text(told / "run", path) for path in (told / "stories.txt", tmp_path / "turned.txt")]
    there, turned = (each.evaluation for each in measured)
    assert turned.num_bytes.tolist() == there.num_bytes.tolist()[::-1]
    assert turned.bits == pytest.approx(there.bits[::-1], rel=1e-5)


def test_other_stories_have_no_floor(told: Path, tmp_path: Path) -> None:
    for name, text in (("a.txt", b"An owl slept.\n<|endoftext|>\n"), ("b.txt", b"\xff\xfe<|endoftext|>")):
        (tmp_path / name).write_bytes(text)
        measured = evaluate_text(told / "run", tmp_path / name)
        assert measured.floor is None
        assert measured.gap is None
        assert len(measured.evaluation.bits) == 1


@pytest.mark.parametrize("text", ["owl", "", "<|endoftext|>" * 2])
def test_a_text_without_whole_stories_is_rejected(told: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.txt").write_text(text)
    with pytest.raises(UsageError) as caught:
        evaluate_text(told / "run", tmp_path / "bad.txt")
    assert caught.value.path == tmp_path / "bad.txt"


def test_the_command_rejects_stories_without_text(run: RunCommand, told: Path, tmp_path: Path) -> None:
    (tmp_path / "bare.txt").write_text("<|endoftext|>" * 2)
    for more in ([], ["--json"]):
        outcome = run("evaluate", told / "run", "--stories", tmp_path / "bare.txt", *more)
        assert (outcome.code, outcome.out) == (2, "")
        assert "bare.txt" in outcome.err.splitlines()[-1]


def test_long_documents_are_read_in_windows_with_a_remark(
    run: RunCommand, told: Path, tmp_path: Path
) -> None:
    (tmp_path / "long.txt").write_text("owl " * 900 + "<|endoftext|>An owl.<|endoftext|>")
    outcome = run("evaluate", told / "run", "--stories", tmp_path / "long.txt")
    assert outcome.code == 0
    assert "1 of 2 documents is longer than the context of 700 tokens" in outcome.err
    figures = json.loads(run("evaluate", told / "run", "--stories", tmp_path / "long.txt", "--json").out)
    assert (figures["num_stories"], figures["num_longer_than_context"]) == (2, 1)


def test_one_story_has_no_standard_error(run: RunCommand, told: Path, tmp_path: Path) -> None:
    story = (told / "stories.txt").read_text().split("<|endoftext|>")[0]
    (tmp_path / "one.txt").write_text(f"{story}<|endoftext|>\n")
    figures = json.loads(run("evaluate", told / "run", "--stories", tmp_path / "one.txt", "--json").out)
    assert figures["above_floor"] > 0
    assert figures["standard_error"] is None
    assert "±" not in run("evaluate", told / "run", "--stories", tmp_path / "one.txt").out


def test_a_run_without_a_tokenizer_is_rejected(tmp_path: Path) -> None:
    train(make_config(tmp_path, budget={"steps": 1}), tmp_path / "run")
    (tmp_path / "a.txt").write_text("owl<|endoftext|>")
    with pytest.raises(UsageError) as caught:
        evaluate_text(tmp_path / "run", tmp_path / "a.txt")
    assert (caught.value.path, caught.value.key) == (tmp_path / "run", "data.tokenizer")


def test_a_checkpoint_outside_a_run_does_not_use_a_tokenizer_next_to_it(told: Path, tmp_path: Path) -> None:
    alone = tmp_path / "models/ours"
    shutil.copytree(find_checkpoint(told / "run"), alone)
    shutil.copytree(told / "tokenizer", tmp_path / "tokenizer")
    with pytest.raises(UsageError) as caught:
        evaluate_text(alone, told / "stories.txt")
    assert caught.value.key == "data.tokenizer"
    assert Run.open(told / "run").tokenizer.vocab_size == 500


def test_the_command_prints_both_figures(run: RunCommand, told: Path, tmp_path: Path) -> None:
    shown = run("evaluate", told / "run", "--stories", told / "stories.txt")
    assert shown.code == 0
    assert "bits per byte, whole stories" in shown.out
    assert "entropy of these stories" in shown.out
    figures = json.loads(run("evaluate", told / "run", "--stories", told / "stories.txt", "--json").out)
    assert figures["above_floor"] == pytest.approx(figures["bits_per_byte"] - figures["floor"])
    assert figures["checkpoint"] == str(find_checkpoint(told / "run"))
    assert figures["file"] == str(told / "stories.txt")
    assert figures["checkpoint"] in shown.out
    assert figures["file"] in shown.out
    (tmp_path / "a.txt").write_text("An owl slept.<|endoftext|>")
    assert "entropy" not in run("evaluate", told / "run", "--stories", tmp_path / "a.txt").out
    outcome = run("evaluate", told / "run", told / "train.npy", "--stories", told / "stories.txt")
    assert outcome.code == 2
    assert "only one of" in outcome.err
