"""The demo completes, and an interrupted demo continues with the same results."""

from __future__ import annotations

import dataclasses
import re
import shutil
import signal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tiny import TINY, Shown, show_tiny

from bytewright.corpus.storybook import read_stories
from bytewright.demo import Plan, pipeline
from bytewright.demo.pipeline import NUM_STAGES
from bytewright.errors import StorageError, UsageError
from bytewright.experiments import corpora
from bytewright.experiments.evaluation.document_eval import DocumentTokens, evaluate_text
from bytewright.experiments.records import read_run
from bytewright.model import TransformerLM
from bytewright.train.config import DataConfig
from bytewright.train.metrics_log import read_metrics
from runs import digest

pytestmark = pytest.mark.slow  # each trains a model

STAGE_FUNCTIONS = [
    "prepare_corpus",
    "predict_run",
    "train",
    "evaluate_text",
    "generate_stories",
    "check_story_file",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Shown]:
    folder = tmp_path_factory.mktemp("demo") / "demo"
    return folder, show_tiny(folder)


@pytest.fixture
def copy(finished: tuple[Path, Shown], tmp_path: Path) -> Path:
    """A copy of a finished demo, at the path that its run records."""
    shutil.copytree(finished[0], tmp_path / "demo")
    return tmp_path / "demo"


def results(folder: Path) -> dict[str, bytes]:
    """Return the files that do not depend on time."""
    names = {"train.txt", "validation.txt", "train.npy", "samples.txt", "vocabulary.json"}
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.name in names}


def validation_of(folder: Path) -> Path:
    (path,) = (folder / "data").rglob("validation.txt")
    return path


def test_every_stage_is_announced_with_its_expected_time(finished: tuple[Path, Shown]) -> None:
    lines = [line for line in finished[1].text.splitlines() if f" of {NUM_STAGES}. " in line]
    assert [line.split(" of ")[0] for line in lines] == list("12345")
    assert all(re.search(r"\(about \d[\d.]* (ms|s|min)\b", line) for line in lines), lines


def test_the_last_line_is_the_path_of_the_report(finished: tuple[Path, Shown]) -> None:
    folder, shown = finished
    assert Path(shown.text.splitlines()[-1]) == (folder / "report.html").absolute()
    assert shown.outcome.report.is_file()
    assert shown.outcome.received is None


def test_the_loss_on_whole_stories_is_recorded_during_training(finished: tuple[Path, Shown]) -> None:
    measured = [
        record["story_bits_per_byte"]
        for record in read_metrics(finished[0] / "run" / "metrics.jsonl")
        if "story_bits_per_byte" in record
    ]
    assert len(measured) == TINY.num_evaluations
    assert measured == sorted(measured, reverse=True), "the loss decreases from the first step on"


def test_loss_and_floor_are_those_of_the_validation_stories(finished: tuple[Path, Shown]) -> None:
    folder, shown = finished
    measured = evaluate_text(folder / "run", validation_of(folder), which="last", device="cpu")
    assert measured.gap is not None
    assert (
        f"{measured.evaluation.bits_per_byte:.4f} bits per byte, which is {measured.gap[0]:.4f}" in shown.text
    )
    assert f"above the floor of {measured.floor:.4f}." in shown.text
    assert read_run(folder / "run").floor == pytest.approx(measured.floor)


class References(HTMLParser):
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("src", "href", "srcset", "data", "action") and value and value[0] != "#":
                self.found.append(value)
        assert tag != "script"


def test_the_report_is_one_file_without_requests(finished: tuple[Path, Shown]) -> None:
    folder, shown = finished
    page = shown.outcome.report.read_text()
    references = References()
    references.feed(page)
    assert all(reference.startswith("data:") for reference in references.found)
    assert "url(" not in page
    assert "@import" not in page
    for heading in ("Loss curve", "Generated stories", "How the stories were checked", "Tokens", "Cost"):
        assert f"<h2>{heading}</h2>" in page
    assert "entropy floor" in page
    assert page.count("<article>") >= TINY.num_samples
    assert read_run(folder / "run").settings["model.vocab_size"] == 600


def test_a_second_run_changes_no_file_and_prints_the_same_results(finished: tuple[Path, Shown]) -> None:
    folder, first = finished
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = show_tiny(folder)
    assert again.text.splitlines()[-1] == first.text.splitlines()[-1]
    assert [path.name for path in before if path.read_bytes() != before[path]] == []
    (training,) = [line for line in again.text.splitlines() if line.startswith("2 of ")]
    assert training.endswith("(already complete).")
    (result,) = [line for line in first.text.splitlines() if "above the floor" in line]
    assert result in again.text


def test_a_demo_interrupted_in_any_stage_continues(
    finished: tuple[Path, Shown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    for name in STAGE_FUNCTIONS:
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                show_tiny(folder)
    show_tiny(folder)
    assert results(folder) == results(finished[0])


def test_ctrl_c_during_training_saves_and_the_next_run_gives_the_same_bits(
    finished: tuple[Path, Shown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    evaluate = DocumentTokens.evaluate

    def interrupted(stories: DocumentTokens, model: TransformerLM) -> Any:
        signal.raise_signal(signal.SIGINT)
        return evaluate(stories, model)

    with monkeypatch.context() as patch:
        patch.setattr(DocumentTokens, "evaluate", interrupted)
        shown = show_tiny(folder)
    assert shown.outcome.received == signal.SIGINT
    assert f"Saved step {TINY.eval_every}; the same command continues." in shown.text
    assert not shown.outcome.report.exists()
    again = show_tiny(folder)
    assert again.outcome.report.exists()
    assert digest(folder / "run")["weights"] == digest(finished[0] / "run")["weights"]
    assert results(folder) == results(finished[0])


def test_damaged_results_are_computed_again(finished: tuple[Path, Shown], copy: Path) -> None:
    (copy / "results.json").write_text("[")
    (copy / "samples.txt").unlink()
    show_tiny(copy)
    assert results(copy) == results(finished[0])


def test_another_plan_replaces_only_what_depends_on_it(copy: Path) -> None:
    show_tiny(copy)  # the copied run refers to the data of the original; this one to its own
    weights = digest(copy / "run")["weights"]
    show_tiny(copy, dataclasses.replace(TINY, temperature=0.1))
    assert digest(copy / "run")["weights"] == weights
    assert len(list(read_stories(copy / "samples.txt"))) <= TINY.num_samples
    show_tiny(copy, dataclasses.replace(TINY, num_steps=1, num_samples=1))
    assert read_run(copy / "run").num_steps == 1


def test_a_folder_with_other_files_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    for folder in (tmp_path, tmp_path / "run" / "thesis.txt"):
        with pytest.raises(UsageError) as caught:
            show_tiny(folder)
        assert caught.value.path == folder
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_full_disk_is_reported_and_the_next_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise StorageError("cannot write train.txt: no space left on the disk")

    with monkeypatch.context() as patch:
        patch.setattr(corpora, "_write_books", full)
        with pytest.raises(StorageError):
            show_tiny(tmp_path / "demo")
    assert show_tiny(tmp_path / "demo").outcome.report.is_file()


def test_the_plan_trains_on_a_cpu_and_reads_each_story_about_once() -> None:
    plan = Plan()
    config = plan.train_config(DataConfig(train=Path("train.npy")))
    assert config.device == "cpu"
    assert plan.num_samples == 200
    assert config.num_steps == plan.num_steps
    assert config.tokens_per_step * plan.num_steps * 3 < plan.train_bytes
