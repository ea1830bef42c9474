"""A report compares only comparable runs, by a metric that all complete runs have."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bytewright.experiments.groups import group_runs
from bytewright.experiments.inputs import _identify_validation, describe_runs
from bytewright.experiments.loss_metric import BITS, TRAINING, VALIDATION, choose_metric
from bytewright.experiments.records import RunRecord
from bytewright.experiments.results import SweepInfo
from bytewright.report.charts import Chart
from bytewright.report.compose import build_report, write_report
from bytewright.report.page import Figure, Page, Table
from bytewright.tokenizer import Tokenizer
from bytewright.train.metrics import Metric
from conftest import RunCommand
from example_records import make_record
from runs import STORY_RECIPE


def validated(name: str, text: str, *, tokens: str = "", **settings: Any) -> RunRecord:
    """Return a run that was validated on a text, encoded as `tokens`."""
    path = f"/home/ada/data/{text}.npy"
    record = make_record(name, settings={"data.train": path, "data.validation": path, **settings})
    return dataclasses.replace(record, validation={"text": text, "tokens": tokens or text})


def figures_of(page: Page) -> list[Figure]:
    return [block for section in page.sections for block in section.blocks if isinstance(block, Figure)]


def sentences_of(page: Page) -> str:
    return " ".join(block for section in page.sections for block in section.blocks if isinstance(block, str))


def facts_of(page: Page) -> dict[str, tuple[str, str]]:
    assert page.figures is not None
    return {name: (value, remark[0]) for name, value, *remark in page.figures.figures}


@pytest.mark.parametrize("path", ["\0", "/", "x" * 5000, "\ud800", 7])
def test_invalid_paths_of_validation_data_are_tolerated(tmp_path: Path, path: object) -> None:
    records = [make_record(name, settings={"data.validation": path}) for name in ("a", "b")]
    assert "validation texts" not in facts_of(build_report(records))
    assert _identify_validation(tmp_path, records[0]) == {}


@pytest.mark.parametrize(
    "about", [None, SweepInfo(name="corpora", axes=["variant"], baseline={"variant": "a"})]
)
def test_runs_on_different_texts_are_neither_ranked_nor_drawn_together(about: SweepInfo | None) -> None:
    runs = [validated("a", "stories"), validated("b", "prose")]
    if about:
        runs = [dataclasses.replace(run, labels={"variant": run.name}) for run in runs]
    page = build_report(runs, about)
    assert facts_of(page)["validation texts"] == ("2", "not comparable with each other")
    assert set(facts_of(page)) == {"validation texts", "runs", "total time"}
    assert "validated on 2 different texts" in sentences_of(page)
    charts = [figure.chart for figure in figures_of(page)]
    assert [chart.title for chart in charts] == [
        "Bits per byte by steps: a on stories.npy",
        "Bits per byte by steps: b on prose.npy",
    ]
    tables = [block for block in page.sections[0].blocks if isinstance(block, Table)]
    assert [table.caption.partition(". ")[0] for table in tables] == [
        "Validated on stories.npy",
        "Validated on prose.npy",
    ]
    assert all(not table.best and "to baseline" not in table.columns for table in tables)


def test_runs_are_ranked_among_those_on_the_same_text() -> None:
    faster = validated("c", "stories", batch_size=8)
    page = build_report([validated("a", "stories"), validated("b", "prose"), faster])
    both, alone = [block for block in page.sections[0].blocks if isinstance(block, Table)]
    assert [row[0] for row in both.rows] == ["a", "c"]
    assert both.best == [0]
    assert [row[0] for row in alone.rows] == ["b"]
    titles = [figure.chart.title for figure in figures_of(page)]
    assert titles[0] == "Final bits per byte: stories.npy"
    assert [title.partition(":")[0] for title in titles[1:]] == [
        *("Bits per byte by steps", "Bits per byte by tokens", "Bits per byte by seconds"),
        "Bits per byte by steps",
    ]


def test_runs_of_two_tokenizers_on_one_text_are_compared_by_bits_per_byte() -> None:
    page = build_report(
        [validated("a", "stories", tokens="as 300"), validated("b", "stories", tokens="as 400")]
    )
    assert facts_of(page)["lowest bits per byte"] == ("0.8022", "of validation text")
    assert "The tokenizers differ, so losses per token are not comparable" in sentences_of(page)


def test_a_report_notes_different_evaluation_windows() -> None:
    page = build_report([validated("a", "stories"), validated("b", "stories", eval_tokens=9)])
    assert "The runs differ in `eval_tokens`" in sentences_of(page)
    assert "lowest validation loss" in facts_of(page)


def test_runs_with_many_differences_keep_their_names_and_have_no_chart_per_setting() -> None:
    unlike: dict[str, Any] = {"model.d_model": 8, "batch_size": 8, "optimizer.lr": 0.1, "schedule.warmup": 3}
    runs = [validated("tiny", "stories"), validated("base", "stories", **unlike)]
    assert describe_runs(runs).axes == []
    page = build_report(runs)
    assert len(figures_of(page)) == 4  # the final loss, and the curves by steps, tokens and seconds
    curves = [figure.chart for figure in figures_of(page) if isinstance(figure.chart, Chart)]
    assert [series.label for series in curves[0].series] == ["tiny", "base"]


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({"data.train": "/home/ada/more.npy"}, ["a", "b"]),  # a path does not name a run
        ({"log_every": 7, "save_every": 9}, ["a", "b"]),  # nor does what makes no difference
        ({"optimizer.lr": 0.1, "log_every": 7}, ["lr none", "lr 0.1"]),
    ],
)
def test_labels_contain_only_short_settings_that_matter(settings: Any, labels: list[str]) -> None:
    runs = [make_record("a"), make_record("b", settings=settings)]
    assert [group.label for group in group_runs(runs)] == labels


def test_a_varied_path_is_shown_by_its_last_part() -> None:
    runs = [
        make_record(name, labels={"corpus.text": f"/home/ada/texts/{name}.txt"}) for name in ("news", "prose")
    ]
    assert [group.label for group in group_runs(runs, ["corpus.text"])] == ["text news.txt", "text prose.txt"]


def test_many_settings_that_differ_are_rows_and_runs_are_columns() -> None:
    unlike: dict[str, Any] = {"model.d_model": 8, "batch_size": 8, "optimizer.lr": 0.1}
    page = build_report([validated("tiny", "stories"), validated("base", "stories", **unlike)])
    (settings,) = [section for section in page.sections if section.title == "Settings"]
    table = settings.blocks[0]
    assert isinstance(table, Table)
    assert table.columns == ["run", "tiny", "base"]
    assert ["`batch_size`", 4, 8] in list(map(list, table.rows))


def test_texts_are_identified_by_their_contents(
    tmp_path: Path, stories: Path, tokenizer: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs a and b read one text with two tokenizers; c reads another text at the path of a's."""
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(f"{STORY_RECIPE}steps = 2\n")
    text = stories.read_text()
    Path("valid.txt").write_text(text[: len(text) // 2])
    other = run("tokenizer", "train", stories, "--out", "other", "--vocab-size", "300")
    assert other.code == 0, other
    for folder, suffix in ((tokenizer, ""), (Path("other"), "-other")):
        loaded = Tokenizer.load(folder)
        loaded.encode_file(stories, f"train{suffix}.npy")
        loaded.encode_file("valid.txt", f"valid{suffix}.npy")
    Tokenizer.load(tokenizer).save("tok")
    data = ["data.train=train-other.npy", "data.validation=valid-other.npy", "data.tokenizer=other"]
    assert run("train", "small.toml", "--out", "runs/a").code == 0
    assert run("train", "small.toml", "--out", "runs/b", "--set", *data).code == 0

    assert run("report", "runs/a", "runs/b", "--out", "one").code == 0
    page = Path("one/report.md").read_text()
    assert "The tokenizers differ" in page
    assert "lowest bits per byte" in page

    Path("valid.txt").write_text(text[len(text) // 2 :])
    Tokenizer.load(tokenizer).encode_file("valid.txt", "valid.npy")
    assert run("train", "small.toml", "--out", "runs/c").code == 0
    assert run("report", "runs/a", "runs/c", "--out", "two").code == 0
    page = Path("two/report.md").read_text()
    assert "- **validation texts:** 2 (not comparable with each other)" in page
    assert str(tmp_path) not in page
    assert run("report", "two/results.json", "--out", "again").code == 0
    assert "- **validation texts:** 2" in Path("again/report.md").read_text()


WHOLE = make_record("whole", labels={"optimizer.lr": 1e-3})


def cut(num_lines: int, **more: Any) -> RunRecord:
    """Return a run of `num_lines` lines; the fifth is the first with a validation loss."""
    record = make_record("cut", labels={"optimizer.lr": 3e-3}, **({"status": "stopped"} | more))
    return dataclasses.replace(record, lines=record.lines[:num_lines])


def unevaluated() -> RunRecord:
    lines = [{"step": line["step"], "loss": line["loss"]} for line in WHOLE.lines]
    return dataclasses.replace(WHOLE, lines=lines)


@pytest.mark.parametrize(
    ("records", "metric"),
    [
        ([WHOLE, cut(3)], VALIDATION),
        ([WHOLE, cut(0, status="failed")], VALIDATION),
        ([WHOLE, cut(3, status="diverged")], VALIDATION),
        ([cut(6), cut(3)], VALIDATION),
        ([cut(6, status="diverged"), cut(3)], VALIDATION),
        ([cut(3), cut(2)], TRAINING),
        ([cut(0)], TRAINING),
        ([unevaluated(), WHOLE], TRAINING),
        ([WHOLE, cut(3, settings={"model.vocab_size": 2000})], BITS),
    ],
)
def test_runs_without_an_evaluation_do_not_determine_the_metric(
    records: list[RunRecord], metric: Metric
) -> None:
    assert choose_metric(records) == metric


@pytest.mark.parametrize("early", [cut(3, reason="at step 3"), cut(0, status="failed", reason="no memory")])
def test_the_report_of_an_unfinished_sweep_shows_the_validation_loss(
    early: RunRecord, tmp_path: Path
) -> None:
    about = SweepInfo(name="rates", axes=["optimizer.lr"])
    facts = build_report([WHOLE, early], about).figures
    assert facts is not None
    assert facts.figures[0] == ("lowest validation loss", "1.6045", "nats per token")
    page = write_report([WHOLE, early], about, tmp_path).with_suffix(".md").read_text()
    assert "Validation loss by steps" in page
    assert early.reason in page
