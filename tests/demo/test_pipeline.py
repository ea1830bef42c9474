"""The demo goes all the way, can be interrupted anywhere, and does nothing twice."""

from __future__ import annotations

import dataclasses
import re
import shutil
import signal
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tiny import TINY, Shown, show_tiny

from bytewright.corpus.storybook import read_stories
from bytewright.demo import Plan, stages
from bytewright.errors import StorageError, UsageError
from bytewright.experiments.records import read_run
from bytewright.experiments.story_eval import evaluate_text
from bytewright.model import TransformerLM
from bytewright.train.metrics import read_metrics
from runs import digest

pytestmark = pytest.mark.slow  # each trains a model: minutes in all

STAGE_FUNCTIONS = [
    "tell_stories",
    "learn_tokens",
    "encode_stories",
    "time_step",
    "train_model",
    "measure_model",
    "sample_stories",
    "check_samples",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Shown]:
    folder = tmp_path_factory.mktemp("demo") / "demo"
    return folder, show_tiny(folder)


@pytest.fixture
def copy(finished: tuple[Path, Shown], tmp_path: Path) -> Path:
    """A finished demo that may be broken."""
    shutil.copytree(finished[0], tmp_path / "demo")
    return tmp_path / "demo"


def results(folder: Path) -> dict[str, bytes]:
    """What the demo made, less what the clock decides."""
    kept = [stages.TRAIN, stages.VALIDATION, stages.TRAIN_TOKENS, stages.SAMPLES, "tokenizer/vocabulary.json"]
    return {name: (folder / name).read_bytes() for name in kept}


def test_every_stage_is_announced_with_what_it_does_and_how_long_it_takes(
    finished: tuple[Path, Shown],
) -> None:
    lines = [line for line in finished[1].text.splitlines() if " of 7. " in line]
    assert [line.split(" of 7. ")[0] for line in lines] == list("1234567")
    assert all(re.search(r"\(about \d[\d.]* (ms|s|min)\b", line) for line in lines), lines


def test_the_last_line_is_the_path_of_the_report(finished: tuple[Path, Shown]) -> None:
    folder, shown = finished
    assert Path(shown.text.splitlines()[-1]) == (folder / "report.html").absolute()
    assert shown.outcome.report.is_file()
    assert shown.outcome.received is None


def test_the_model_is_shown_against_the_floor_while_it_learns(finished: tuple[Path, Shown]) -> None:
    folder, shown = finished
    lines = [line for line in shown.text.splitlines() if "above the floor of" in line and "step" in line]
    assert len(lines) == TINY.num_looks
    measured = [
        record["story_bits_per_byte"]
        for record in read_metrics(folder / "run" / "metrics.jsonl")
        if "story_bits_per_byte" in record
    ]
    assert measured == sorted(measured, reverse=True), "it learns from the first step on"


def test_the_figure_is_that_of_the_same_stories_as_the_floor(finished: tuple[Path, Shown]) -> None:
    """`evaluate --stories` finds the same by another way: it parses the text, and encodes it again."""
    folder, shown = finished
    measured = evaluate_text(folder / "run", folder / stages.VALIDATION, which="last", device="cpu")
    assert measured.gap is not None
    said = f"{measured.evaluation.bits_per_byte:.4f} bits per byte, which is {measured.gap[0]:.4f}"
    assert said in shown.text
    assert f"above the floor of {measured.floor:.4f}." in shown.text
    record = read_run(folder / "run")
    assert record.floor == pytest.approx(measured.floor)


class References(HTMLParser):
    """Everything that a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("src", "href", "srcset", "data", "action") and value and value[0] != "#":
                self.found.append(value)
        assert tag != "script"


def test_the_report_is_one_file_that_needs_no_network_and_shows_everything(
    finished: tuple[Path, Shown],
) -> None:
    folder, shown = finished
    page = shown.outcome.report.read_text()
    references = References()
    references.feed(page)
    assert all(reference.startswith("data:") for reference in references.found)
    assert "url(" not in page
    assert "@import" not in page
    for heading in ("The curve", "Stories it told", "How they were checked", "Tokens", "What it cost"):
        assert f"<h2>{heading}</h2>" in page
    assert "entropy floor" in page
    assert page.count("<article>") >= TINY.num_samples
    parameters = read_run(folder / "run").settings["model.vocab_size"]
    assert parameters == 600


def test_a_second_run_does_nothing_and_says_the_same(finished: tuple[Path, Shown]) -> None:
    folder, first = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    again = show_tiny(folder)
    assert again.text.count("done already") == 7
    assert again.text.splitlines()[-1] == first.text.splitlines()[-1]
    changed = {path.name for path, time in before.items() if path.stat().st_mtime_ns != time}
    assert changed <= {"report.html", "plan.json"}
    figures = [line for line in first.text.splitlines() if "above the floor" in line and "which" in line]
    assert figures[0] in again.text


def test_an_interruption_at_every_stage_is_made_good_by_the_next_run(
    finished: tuple[Path, Shown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    for name in STAGE_FUNCTIONS:  # each run comes one stage further than the one before
        with monkeypatch.context() as patch:
            patch.setattr(stages, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                show_tiny(folder)
        assert folder.exists() == (name != "tell_stories"), "nothing is left of a demo that made nothing"
    show_tiny(folder)
    assert results(folder) == results(finished[0])


def test_ctrl_c_during_the_training_saves_and_the_next_run_goes_on_bit_for_bit(
    finished: tuple[Path, Shown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    measure = stages.Validation.measure

    def interrupted(validation: stages.Validation, model: TransformerLM) -> Any:
        signal.raise_signal(signal.SIGINT)
        return measure(validation, model)

    with monkeypatch.context() as patch:
        patch.setattr(stages.Validation, "measure", interrupted)
        shown = show_tiny(folder)
    assert shown.outcome.received == signal.SIGINT
    assert f"Saved step {TINY.steps_between_looks}; the same command goes on from there." in shown.text
    assert not shown.outcome.report.exists()
    again = show_tiny(folder)
    assert again.outcome.report.exists()
    assert digest(folder / "run")["weights"] == digest(finished[0] / "run")["weights"]
    assert results(folder) == results(finished[0])


def test_what_was_changed_is_made_again_with_all_that_follows(
    finished: tuple[Path, Shown], copy: Path
) -> None:
    (copy / stages.TRAIN).write_text("something else")
    again = show_tiny(copy)
    assert "1 of 7. Telling 0.06 MB" in again.text
    assert again.text.count("done already") == 6, "the same stories came out, so the rest still holds"
    assert results(copy) == results(finished[0])


def test_another_plan_makes_only_what_depends_on_it(copy: Path) -> None:
    again = show_tiny(copy, dataclasses.replace(TINY, temperature=0.1))
    assert again.text.count("done already") == 5
    assert len(list(read_stories(copy / stages.SAMPLES))) <= TINY.num_samples
    again = show_tiny(copy, dataclasses.replace(TINY, num_steps=1, num_samples=1))
    assert again.text.count("done already") == 3
    assert read_run(copy / "run").num_steps == 1


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="is not empty and holds no demo"):
        show_tiny(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with pytest.raises(UsageError, match="is a file"):
        show_tiny(tmp_path / "run" / "thesis.txt")


def test_a_disk_that_refuses_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Mapping[str, Any]:
        raise StorageError("cannot write stories/train.txt: no space left on the disk")

    with monkeypatch.context() as patch:
        patch.setattr(stages, "write_stories", full)
        with pytest.raises(StorageError):
            show_tiny(tmp_path / "demo")
    assert show_tiny(tmp_path / "demo").outcome.report.is_file()


def test_the_plan_of_the_demo_keeps_what_it_promises() -> None:
    plan = Plan()
    config = plan.train_config(Path("demo"), plan.vocab_size)
    assert config.device == "cpu"
    assert plan.num_samples == 200
    assert config.num_steps == plan.num_steps
    assert config.tokens_per_step * plan.num_steps * 3 < plan.train_bytes, (
        "no story is seen much more than once"
    )
