"""A model on the stories of a text: the floor is there for storybook stories, and only for those."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bytewright.corpus.storybook import write_stories
from bytewright.errors import UsageError
from bytewright.experiments.story_eval import evaluate_text
from bytewright.tokenizer import Tokenizer
from bytewright.train import train
from bytewright.train.checkpoint import find_checkpoint
from bytewright.train.run import load_tokenizer_of
from conftest import Run
from runs import make_config


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stories, and a run of a step or two on them."""
    folder = tmp_path_factory.mktemp("told")
    write_stories(folder / "stories.txt", 8_000, seed=1, split="validation")
    from bytewright.tokenizer.train import train_tokenizer

    vocabulary = train_tokenizer(folder / "stories.txt", 500, ["<|endoftext|>"]).vocabulary
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    tokenizer.save(folder / "tokenizer")
    for name in ("train", "validation"):
        tokenizer.encode_file(folder / "stories.txt", folder / f"{name}.npy")
    config = make_config(
        folder,
        model={"vocab_size": 500, "context_length": 700},
        data={"tokenizer": str(folder / "tokenizer")},
        budget={"steps": 2},
        batch_size=1,
    )
    train(config, folder / "run")
    return folder


def test_storybook_stories_have_a_floor_and_the_model_is_above_it(told: Path) -> None:
    measured = evaluate_text(told / "run", told / "stories.txt")
    assert measured.floor is not None
    assert measured.gap is not None
    gap, error = measured.gap
    assert measured.evaluation.bits_per_byte == pytest.approx(measured.floor + gap)
    assert gap > 10 * error > 0


def test_the_order_of_stories_does_not_matter(told: Path, tmp_path: Path) -> None:
    """No end token and no newline stand before the first story, but it is measured like the others."""
    stories = (told / "stories.txt").read_text().split("<|endoftext|>\n")[:-1]
    (tmp_path / "turned.txt").write_text("".join(f"{story}<|endoftext|>\n" for story in reversed(stories)))
    measured = [evaluate_text(told / "run", path) for path in (told / "stories.txt", tmp_path / "turned.txt")]
    there, turned = (each.evaluation for each in measured)
    assert turned.num_bytes.tolist() == there.num_bytes.tolist()[::-1]
    assert turned.bits == pytest.approx(there.bits[::-1], rel=1e-5)


def test_other_stories_are_measured_without_a_floor(told: Path, tmp_path: Path) -> None:
    for name, text in (("a.txt", b"An owl slept.\n<|endoftext|>\n"), ("b.txt", b"\xff\xfe<|endoftext|>")):
        (tmp_path / name).write_bytes(text)
        measured = evaluate_text(told / "run", tmp_path / name)
        assert measured.floor is None
        assert measured.gap is None
        assert len(measured.evaluation.bits) == 1


def test_what_cannot_be_measured_is_refused(told: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("owl " * 900 + "<|endoftext|>")
    with pytest.raises(UsageError, match=r"long.txt: story 0 has \d+ tokens, but a context of 700"):
        evaluate_text(told / "run", tmp_path / "long.txt")
    (tmp_path / "endless.txt").write_text("owl")
    with pytest.raises(UsageError, match=r"endless.txt: there are no whole stories"):
        evaluate_text(told / "run", tmp_path / "endless.txt")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(UsageError, match=r"empty.txt: there are no whole stories"):
        evaluate_text(told / "run", tmp_path / "empty.txt")


def test_stories_without_a_byte_are_one_sentence(run: Run, told: Path, tmp_path: Path) -> None:
    (tmp_path / "bare.txt").write_text("<|endoftext|>" * 2)
    for more in ([], ["--json"]):
        outcome = run("evaluate", told / "run", "--stories", tmp_path / "bare.txt", *more)
        assert (outcome.code, outcome.out) == (2, "")
        assert "bare.txt: there is no text to measure" in outcome.err.splitlines()[-1]


def test_one_story_has_no_standard_error(run: Run, told: Path, tmp_path: Path) -> None:
    story = (told / "stories.txt").read_text().split("<|endoftext|>")[0]
    (tmp_path / "one.txt").write_text(f"{story}<|endoftext|>\n")
    figures = json.loads(run("evaluate", told / "run", "--stories", tmp_path / "one.txt", "--json").out)
    assert figures["above_floor"] > 0
    assert figures["standard_error"] is None
    assert "±" not in run("evaluate", told / "run", "--stories", tmp_path / "one.txt").out


def test_a_run_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    train(make_config(tmp_path, budget={"steps": 1}), tmp_path / "run")
    (tmp_path / "a.txt").write_text("owl<|endoftext|>")
    with pytest.raises(UsageError, match="keeps no tokenizer"):
        evaluate_text(tmp_path / "run", tmp_path / "a.txt")


def test_a_checkpoint_that_lies_by_itself_is_not_read_with_a_tokenizer_that_lies_near_it(
    told: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "models/ours"
    shutil.copytree(find_checkpoint(told / "run"), alone)
    shutil.copytree(told / "tokenizer", tmp_path / "tokenizer")
    with pytest.raises(UsageError, match="ours keeps no tokenizer"):
        evaluate_text(alone, told / "stories.txt")
    with pytest.raises(UsageError, match="ours keeps no tokenizer"):
        load_tokenizer_of(alone)
    assert load_tokenizer_of(find_checkpoint(told / "run")).vocab_size == 500


def test_the_command_prints_both_figures(run: Run, told: Path, tmp_path: Path) -> None:
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
    assert "not both" in outcome.err
