"""Sweeps on books evaluate each model on whole validation documents, and judge it on test documents."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bytewright.errors import UsageError
from bytewright.experiments.corpora import CorpusConfig, document_files
from bytewright.experiments.evaluation.document_eval import evaluate_text
from bytewright.experiments.inputs import read_sweep_folder
from bytewright.experiments.loss_metric import DOCUMENTS, VALIDATION, choose_metric
from bytewright.experiments.results import read_results, write_results
from bytewright.laws.points import points_of_runs
from bytewright.report.compare import TEST, compare_runs, floor_of
from bytewright.report.compose import build_report
from bytewright.report.page import Table
from bytewright.train.run import Run
from runs import RECIPE
from sweeps import SweepRunner

SWEEP = """
base = "base.toml"
seeds = 1
baseline = { "optimizer.lr" = 1e-3 }
keep = "model"
[set]
"model.context_length" = 128
"budget.steps" = 4
[axes]
"optimizer.lr" = [1e-3, 1e-2]
[corpus]
worldbook = 60_000
validation_size = 8_000
vocab_size = 300
"""


def test_models_are_evaluated_on_whole_documents_and_judged_on_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(RECIPE)
    (tmp_path / "rates.toml").write_text(SWEEP)
    runner = SweepRunner(tmp_path)
    runner.run()
    about, records = read_sweep_folder(runner.folder)
    assert [record.status for record in records] == ["complete"] * 2
    trial = runner.sweep.trials[0]
    files = document_files(trial.corpus, Run(runner.folder / trial.name).config.data)
    assert files[DOCUMENTS.name].name == "validation.txt"
    assert files[TEST.name].stat().st_size <= 2_000
    assert files[TEST.name].read_text() not in files[DOCUMENTS.name].read_text()

    # the same figures as `bytewright evaluate --stories`
    run = runner.folder / trial.name
    for name, file in files.items():
        evaluated = evaluate_text(run, file, which="last", device="cpu")
        assert records[0].last(name) == pytest.approx(evaluated.evaluation.bits_per_byte, rel=1e-6)

    # they choose and judge, also when read from results.json
    (comparison,) = compare_runs(records, about)
    assert comparison.metric is DOCUMENTS
    assert comparison.curve_metric is VALIDATION
    floor = floor_of(records, DOCUMENTS)
    assert floor == records[0].floor
    write_results(tmp_path / "results.json", about, records)
    for each in (records, read_results(tmp_path / "results.json")[1]):
        page = build_report(each, about)
        results = next(section for section in page.sections if section.title == "Results")
        table = next(block for block in results.blocks if isinstance(block, Table))
        assert {"test documents", "to baseline"} <= set(table.columns)
        assert "Differences are of the test documents." in table.caption
        points = points_of_runs(each[:1], "rates")
        assert points.floor == floor
        assert points.losses.tolist() == pytest.approx([record.last(DOCUMENTS.name) for record in each[:1]])
    without = [
        dataclasses.replace(record, lines=[*record.lines[:-1], {"step": 1, "validation_loss": 2.0}])
        for record in records
    ]
    assert choose_metric(without) is not DOCUMENTS


def test_the_storybook_has_a_test_text_on_request() -> None:
    assert CorpusConfig(storybook=1000).num_test_bytes == 0
    assert CorpusConfig(storybook=1000, test_size=500).num_test_bytes == 500
    assert CorpusConfig(worldbook=1000, validation_size=800).num_test_bytes == 200
    assert CorpusConfig(worldbook=1000, test_size=0).num_test_bytes == 0
    with pytest.raises(UsageError) as caught:
        CorpusConfig(text=Path("novels.txt"), test_size=500)
    assert caught.value.key == "corpus.test_size"
