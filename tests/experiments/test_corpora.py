"""The data of a sweep is created once, reused, completed if files are missing, and validated."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from pathlib import Path

import pytest

from bytewright.corpus.storybook import Storybook, read_stories
from bytewright.data.tokenfile import TokenFile
from bytewright.errors import BytewrightError, UsageError
from bytewright.experiments.corpora import (
    COPY_BYTES,
    CorpusConfig,
    corpus_name,
    prepare_corpus,
    token_digests,
    token_folder,
)
from bytewright.experiments.evaluation.stories import SamplingPlan, generate_stories
from bytewright.experiments.plan import check_same_data
from bytewright.experiments.records import read_floor
from bytewright.experiments.sweep import Trial
from bytewright.storage import atomic
from bytewright.tokenizer import Tokenizer
from bytewright.train.config import DataConfig
from conftest import RunCommand
from example_records import make_record
from rejection import rejects
from runs import make_config

STORIES = CorpusConfig(storybook=60_000, validation_size=20_000, vocab_size=300)


def make(config: CorpusConfig, root: Path) -> tuple[DataConfig, list[str]]:
    phases: list[str] = []
    data = prepare_corpus(config, root, lambda phase, done, total, unit: phases.append(phase))
    return data, phases


def test_a_storybook_is_generated_encoded_and_reused(tmp_path: Path) -> None:
    data, phases = make(STORIES, tmp_path)
    assert "encode" in phases
    assert data.tokenizer is not None
    assert data.validation is not None
    tokenizer = Tokenizer.load(data.tokenizer)
    assert tokenizer.vocab_size == 300
    assert tokenizer.decode(TokenFile.open(data.train).tokens).startswith(
        next(iter(read_stories(data.train.parents[1] / "train.txt")))
    )
    again, phases = make(STORIES, tmp_path)
    assert again == data
    assert phases == []


def test_the_floor_counts_bytes_as_evaluations_do(tmp_path: Path) -> None:
    data, _ = make(STORIES, tmp_path)
    path = data.train.parents[1] / "validation.txt"
    floor = Storybook.load().floor(read_stories(path))
    assert floor.num_stories > 5
    assert read_floor(str(data.validation)) == pytest.approx(floor.bits_per_byte)
    # A model that reached it would have this loss per token, whatever the tokenizer.
    record = make_record("a", floor=read_floor(str(data.validation)))
    assert record.floor == pytest.approx(floor.bits_per_byte)
    # Commands that encode a generated text write no corpus.json.
    assert data.tokenizer is not None
    encoded = Tokenizer.load(data.tokenizer).encode_file(path, tmp_path / "ids" / "validation.npy")
    assert read_floor(str(encoded.path)) == pytest.approx(floor.bits_per_byte)


def test_only_missing_files_are_created_again(tmp_path: Path) -> None:
    data, _ = make(STORIES, tmp_path)
    before = data.train.stat().st_mtime_ns
    assert data.validation is not None
    data.validation.unlink()
    _, phases = make(STORIES, tmp_path)
    assert set(phases) == {"encode"}
    assert data.validation.is_file()
    assert data.train.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["train.txt", "validation.txt"])
def test_a_missing_text_is_created_again(tmp_path: Path, stories: Path, name: str) -> None:
    for config in (STORIES, CorpusConfig(text=stories, vocab_size=300)):
        data, _ = make(config, tmp_path)
        before = token_digests(data)
        text = data.train.parents[1] / name
        content = text.read_bytes()
        text.unlink()
        shutil.rmtree(data.train.parent)
        again, _ = make(config, tmp_path)
        assert text.read_bytes() == content
        assert token_digests(again) == before


def test_the_folder_depends_on_the_seed(tmp_path: Path) -> None:
    first, _ = make(STORIES, tmp_path)
    second, _ = make(CorpusConfig(storybook=60_000, validation_size=20_000, vocab_size=300, seed=2), tmp_path)
    assert first.train.parents[1] != second.train.parents[1]
    assert first.train.read_bytes() != second.train.read_bytes()


def test_the_end_of_a_text_is_held_out_at_a_line_end(tmp_path: Path, stories: Path) -> None:
    config = CorpusConfig(text=stories, vocab_size=300)
    data, _ = make(config, tmp_path)
    folder = data.train.parents[1]
    train, validation = (folder / "train.txt").read_bytes(), (folder / "validation.txt").read_bytes()
    assert train + validation == stories.read_bytes()
    assert train.endswith(b"\n")
    assert 0 < len(validation) <= len(train) // 49
    assert atomic.read_document(folder / "corpus.json") == {"text": stories.name}


def test_a_text_that_is_shortened_while_it_is_copied_is_rejected(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"a line of text\n" * (2 * COPY_BYTES // 15))

    def shorten(phase: str, done: int, total: int, unit: str) -> None:
        if phase == "split the text":
            os.truncate(text, 1000)

    with rejects(UsageError, path=text):
        prepare_corpus(CorpusConfig(text=text, vocab_size=300), tmp_path / "data", shorten)


def test_a_text_with_validation_text_is_not_copied(tmp_path: Path, stories: Path) -> None:
    data, _ = make(CorpusConfig(text=stories, validation=stories, vocab_size=300), tmp_path)
    assert not (data.train.parents[1] / "train.txt").exists()
    assert data.validation is not None
    assert data.train.read_bytes() == data.validation.read_bytes()


def test_invalid_corpora_are_rejected(tmp_path: Path, stories: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "line.txt").write_text("one line without an end")
    for config in (
        CorpusConfig(text=tmp_path / "gone.txt"),
        CorpusConfig(text=tmp_path / "empty.txt"),
        CorpusConfig(text=tmp_path / "line.txt"),
        CorpusConfig(text=stories, vocab_size=100_000),
        CorpusConfig(storybook=10),
    ):
        with pytest.raises(BytewrightError) as caught:
            make(config, tmp_path / "data")
        assert "\n" not in str(caught.value)
    for fields in (
        {},
        {"storybook": 10, "text": stories},
        {"storybook": 0},
        {"storybook": 9, "vocab_size": 9},
        {"worldbook": 9, "exponent": 5.0},
        {"worldbook": 9, "people": 1},
    ):
        with pytest.raises(UsageError) as rejected:
            CorpusConfig(**fields)
        assert str(rejected.value.key).startswith("corpus.")


def test_a_sweep_samples_from_one_model_with_several_settings(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(
        """
        batch_size = 4
        device = "cpu"
        eval_tokens = 256
        data = { train = "none.npy" }
        budget = { steps = 12 }
        model = { vocab_size = 300, context_length = 32, d_model = 16, num_layers = 1, num_heads = 2 }
        """
    )
    (tmp_path / "heat.toml").write_text(
        """
        base = "base.toml"
        question = "How hot?"
        sampling = { num_stories = 3 }
        axes = { "sampling.temperature" = [0.5, 1.0] }
        corpus = { storybook = 60_000, validation_size = 20_000, vocab_size = 300 }
        """
    )
    lost = ("--set", "optimizer.lr=1e30", "--out", "lost")
    for words in ("the run diverged", "no model to sample from (diverged"):  # also the second time
        refused = run("sweep", "heat.toml", *lost)
        assert refused.code == 2
        assert words in refused.err

    done = run("sweep", "heat.toml")
    assert done.code == 0, done
    assert re.search(r"model +12 +\d+ m?s +[\d.]+ \w*B +new, all trials sample from it", done.out)
    assert re.search("3 of 3 runs to do, about .* of training", done.out)
    folder = tmp_path / "runs/heat"
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
        "model",
        "report-figures",
        "temperature-0.5",
        "temperature-1",
    ]
    assert len(list(read_stories(folder / "temperature-1/stories.txt"))) == 3
    text = (folder / "report.md").read_text()
    assert "stories consistent throughout" in text
    assert "temperature 0.5" in text
    assert (folder / "report.html").is_file()

    before = (folder / "temperature-1/stories.txt").read_text()
    (folder / "temperature-1/outcome.json").unlink()
    again = run("sweep", "heat.toml", "--jobs", "2")
    assert "1 of 2 runs to do" in again.out
    assert (folder / "temperature-1/stories.txt").read_text() == before
    plan = SamplingPlan(num_stories=3, temperature=1.0)
    (told, _), (retold_stories, _) = (
        generate_stories(folder / "model", dataclasses.replace(plan, seed=seed), device="cpu")
        for seed in (0, 1)
    )
    assert told == list(read_stories(folder / "temperature-1/stories.txt"))
    assert not set(told) & set(retold_stories)

    other = run("sweep", "heat.toml", "--set", "sampling.num_stories=4")
    assert other.code == 2
    assert "sampling.num_stories = 3, but the sweep has 4" in other.err
    retold = run("sweep", "heat.toml", "--set", "corpus.seed=2")
    assert retold.code == 2
    assert "runs/heat/model was made with corpus = 'storybook-0.06MB-" in retold.err
    longer = run("sweep", "heat.toml", "--set", "budget.steps=13")
    assert longer.code == 2
    assert "runs/heat/model was made with budget.steps = 12, but the sweep has 13" in longer.err


def test_a_run_on_another_corpus_is_rejected_but_not_one_of_another_machine(
    tmp_path: Path, stories: Path
) -> None:
    def look(corpus: CorpusConfig, train: str) -> None:
        config = make_config(tmp_path)
        trial = Trial(name="one", labels={}, config=config, corpus=corpus)
        check_same_data(trial, DataConfig(train=Path(train)), tmp_path / "one")

    def mine(text: Path, vocab_size: int = 300) -> CorpusConfig:
        return CorpusConfig(text=text, vocab_size=vocab_size)

    stories = Path(shutil.copy(stories, tmp_path / "own.txt"))
    here, _ = make(mine(stories), tmp_path)
    name = here.train.parts[-3]
    os.utime(stories, ns=(1, 1))  # as a checkout does
    (tmp_path / "copies").mkdir()
    copy = Path(shutil.copy(stories, tmp_path / "copies/renamed.txt"))
    gone = tmp_path / "gone" / "own.txt"
    for corpus, train in [
        (STORIES, f"/of/another/machine/{token_folder(STORIES)}/train.npy"),
        (mine(stories), str(here.train)),
        (mine(stories), f"/of/another/{name}/bpe-300/train.npy"),
        (mine(copy), str(here.train)),
        (mine(gone), "/of/another/own-abcdef/bpe-300/train.npy"),  # a missing text cannot be compared
    ]:
        look(corpus, train)

    retold = dataclasses.replace(STORIES, seed=2)
    for corpus, train in [
        (STORIES, f"/of/another/machine/{token_folder(retold)}/train.npy"),
        (STORIES, f"/of/another/machine/{token_folder(STORIES).parent}/bpe-400/train.npy"),
        (mine(stories, vocab_size=400), str(here.train)),
        (mine(stories), "/of/another/yours-abcdef/bpe-300/train.npy"),
    ]:
        with pytest.raises(UsageError) as caught:
            look(corpus, train)
        assert (caught.value.path, caught.value.key) == (tmp_path / "one", "corpus")
    content = stories.read_bytes()
    stories.write_bytes(content.replace(b"a", b"e", 1))
    now = token_folder(mine(stories)).parts[0]
    with pytest.raises(UsageError) as refused:
        look(mine(stories), str(here.train))
    assert (refused.value.expected, refused.value.found) == (f"{now}/bpe-300", f"{name}/bpe-300")


def test_a_text_is_identified_by_its_contents_not_its_path(tmp_path: Path, stories: Path) -> None:
    text, other = (Path(shutil.copy(stories, tmp_path / name)) for name in ("own.txt", "other.txt"))
    with other.open("ab") as stream:
        stream.write(b"More.\n")
    alone, validated = CorpusConfig(text=text), CorpusConfig(text=text, validation=other)
    reports: list[tuple[str, int, int, str]] = []
    name = corpus_name(alone, lambda *report: reports.append(report))
    size = text.stat().st_size
    assert reports[-1] == ("read the text", size, size, "bytes")
    assert len({name, corpus_name(validated), corpus_name(CorpusConfig(text=text, validation=text))}) == 3
    os.utime(text, ns=(1, 1))
    (tmp_path / "copies").mkdir()
    copy = Path(shutil.copy(text, tmp_path / "copies"))
    assert corpus_name(alone) == corpus_name(CorpusConfig(text=copy)) == name
    reports.clear()
    assert corpus_name(alone, lambda *report: reports.append(report)) == name
    assert reports == []  # the text was hashed before
