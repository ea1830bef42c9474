"""Records of runs are kept in results.json, grouped by setting and shown in reports."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bytewright.errors import BytewrightError, FormatError, UsageError
from bytewright.experiments.groups import group_runs
from bytewright.experiments.inputs import read_inputs, with_recomputed_costs
from bytewright.experiments.loss_metric import VALIDATION
from bytewright.experiments.records import RunRecord, measured_costs, read_floor, read_run
from bytewright.experiments.results import SweepInfo, read_results, write_results
from bytewright.report.charts import Chart
from bytewright.report.compose import build_report, write_report
from bytewright.report.figures import axis_figures, learning_curves, speed_figures
from bytewright.report.page import Table
from bytewright.report.tables import table_of_predictions, table_of_ratios
from bytewright.storage import atomic
from bytewright.train import train
from conftest import RunCommand
from example_records import make_record
from runs import make_config


def test_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    train(make_config(tmp_path), tmp_path / "a", console=Console(quiet=True))
    record = read_run(tmp_path / "a")
    assert record.status == "complete"
    assert record.num_steps == 24
    assert record.settings["optimizer.lr"] == 0.01
    assert record.last("validation_loss") is not None
    assert record.measured["seconds"] > 0
    assert record.floor is None
    (tmp_path / "corpus.json").write_text('{"floor_bits_per_byte": 0.5}')
    assert read_run(tmp_path / "a").floor == 0.5


@pytest.mark.parametrize("folder", ["", "x" * 5000])
@pytest.mark.parametrize("name", ["valid.npy", "x" * 5000, "\0"])
def test_damaged_or_impossible_data_have_no_floor(tmp_path: Path, folder: str, name: str) -> None:
    (tmp_path / "valid.npy.json").write_text("{")
    assert read_floor(str(tmp_path / folder / name)) is None


def test_results_json_keeps_everything_a_report_shows(tmp_path: Path) -> None:
    about = SweepInfo(name="rates", question="Which?", axes=["optimizer.lr"], baseline={"optimizer.lr": 0.1})
    records = [
        make_record(f"r{n}", 1 + n / 10, labels={"optimizer.lr": 0.1 * n}, settings={"optimizer.lr": 0.1 * n})
        for n in range(1, 4)
    ]
    write_results(tmp_path / "results.json", about, records)
    again_about, again = read_results(tmp_path / "results.json")
    assert again_about == about
    assert [dataclasses.replace(record, lines=[]) for record in again] == [
        dataclasses.replace(record, lines=[]) for record in records
    ]
    assert build_report(again, again_about) == build_report(read_inputs([tmp_path])[1], about)
    write_results(tmp_path / "again.json", again_about, again)
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "results.json").read_bytes()


def test_results_contain_no_absolute_paths(tmp_path: Path) -> None:
    settings = {"data.train": "/mnt/grace/data/book-563d29/bpe-512/train.npy", "sample_prompt": "/me"}
    command = ["/mnt/grace/.venv/bin/bytewright", "sweep", "recipes/x.toml", "--out=/mnt/grace/runs"]
    reason = "/mnt/grace/data/book/train.npy: has 3 tokens, not 1/2"
    record = make_record("a", settings=settings, status="failed", reason=reason)
    record = dataclasses.replace(record, environment={"command": command})
    write_report([record], None, tmp_path)
    for name in ("results.json", "report.md", "report.html"):
        assert "/mnt" not in (tmp_path / name).read_text()
        assert "grace" not in (tmp_path / name).read_text()
    _, (kept,) = read_results(tmp_path / "results.json")
    assert kept.settings["data.train"] == "book-563d29/bpe-512/train.npy"
    assert kept.settings["sample_prompt"] == "/me"
    assert kept.reason == "data/book/train.npy: has 3 tokens, not 1/2"
    assert kept.environment["command"] == ["bytewright", "sweep", "recipes/x.toml", "--out=runs"]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda value: value.update(format="other"), 'an object with "format"'),
        (lambda value: value.pop("runs"), "runs is missing"),
        (lambda value: value["runs"][0].update(status="fine"), "one of complete"),
        (lambda value: value["runs"][0]["metrics"]["loss"].pop(), "as many as there are steps"),
        (
            lambda value: value["runs"][0]["metrics"]["step"].__setitem__(0, "one"),
            "step should be a whole number",
        ),
        (lambda value: value["runs"][0].pop("labels"), "labels is missing"),
        (lambda value: value["about"].update(axes="lr"), "about.axes should be an array"),
    ],
)
def test_damaged_results_are_rejected(tmp_path: Path, damage: Any, sentence: str) -> None:
    path = tmp_path / "results.json"
    write_results(path, SweepInfo(name="a"), [make_record("a")])
    value = atomic.read_document(path)
    damage(value)
    path.write_text(json.dumps(value))
    with pytest.raises(FormatError) as caught:
        read_results(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert sentence in str(caught.value)


def test_runs_that_differ_only_in_their_seed_form_a_group() -> None:
    records = [
        make_record(f"{lr}-{seed}", end=lr * (1 + seed / 10), settings={"seed": seed, "optimizer.lr": lr})
        for lr in (1.0, 2.0)
        for seed in (0, 1, 2)
    ]
    first, second = group_runs(records)
    assert first.label == "lr 1"
    assert len(first.runs) == len(second.runs) == 3
    assert first.mean("loss") == pytest.approx(1.1, abs=0.01)
    assert first.spread("loss") == pytest.approx((1.0, 1.2), abs=0.01)
    points, spread = first.curve("validation_loss", "tokens")
    assert len(points) == len(spread) == 8
    assert all(low <= y <= high for (_, y), (low, high) in zip(points, spread, strict=True))


def test_runs_with_little_in_common_keep_their_names() -> None:
    unlike = {"model.d_model": 128, "batch_size": 8, "schedule.kind": "wsd", "optimizer.lr": 0.1}
    runs = [make_record("tiny", settings=unlike), make_record("lr-0.03", labels={"optimizer.lr": 0.03})]
    assert [group.label for group in group_runs(runs)] == ["tiny", "lr-0.03"]
    alike = [make_record(name, settings={"batch_size": size}) for name, size in (("a", 4), ("b", 8))]
    assert [group.label for group in group_runs(alike)] == ["batch size 4", "batch size 8"]


def ended_early(name: str, num_lines: int, **more: Any) -> RunRecord:
    record = make_record(name, **more)
    return dataclasses.replace(record, lines=record.lines[:num_lines])


def test_the_mean_curve_extends_to_the_end_of_seeds_of_different_length() -> None:
    # Runs with a budget of minutes end at different steps.
    long, short = make_record("long", 1.0), ended_early("short", 12, end=2.0)
    (group,) = [dataclasses.replace(group, runs=[long, short]) for group in group_runs([long])]
    points, spread = group.curve("validation_loss", "step")
    assert [x for x, _ in points] == [5, 10, (40 + 10) / 2]
    assert points[-1][1] == pytest.approx(group.mean("validation_loss"))
    assert spread[-1] == group.spread("validation_loss")
    apart = dataclasses.replace(short, lines=[{**line, "step": line["step"] + 1} for line in short.lines])
    (group,) = [dataclasses.replace(group, runs=[long, apart]) for group in group_runs([long])]
    ((x, y),), _ = group.curve("validation_loss", "step")
    assert (x, y) == pytest.approx(((40 + 11) / 2, group.mean("validation_loss")))


def test_a_stopped_seed_does_not_shorten_the_mean_curve() -> None:
    runs = [make_record("whole"), ended_early("stopped", 12, status="stopped"), ended_early("new", 0)]
    (group,) = [dataclasses.replace(group, runs=runs) for group in group_runs(runs[:1])]
    points, _ = group.curve("validation_loss", "step")
    assert [x for x, _ in points] == [5, 10, 15, 20, 25, 30, 35, 40]


def test_stopped_runs_count_only_if_no_run_is_complete(tmp_path: Path) -> None:
    def of_rate(rate: float, *runs: RunRecord) -> list[RunRecord]:
        labels = {"optimizer.lr": rate}
        return [
            dataclasses.replace(run, labels=labels | {"seed": seed}, settings={**run.settings, "seed": seed})
            for seed, run in enumerate(runs)
        ]

    cut = ended_early("cut", 12, end=0.1, status="stopped")
    mixed = of_rate(1.0, make_record("whole", 1.5), cut)
    about = SweepInfo(name="rates", axes=["optimizer.lr"], baseline={"optimizer.lr": 1.0})
    write_report([*mixed, *of_rate(2.0, cut)], about, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "lowest validation loss:** 1.6045" in text
    assert "(best of 1 finished, of 2 settings)" in text
    assert "| **lr 1** | **1 of 2** | **1.6045** |" in text
    assert "| lr 2 | 1 | 1.1255 so far |" in text
    (group, _) = group_runs([*mixed, *of_rate(2.0, cut)])
    assert group.spread("validation_loss") == (group.mean("validation_loss"),) * 2


def test_a_report_shows_divergence_and_differences(tmp_path: Path) -> None:
    def several(norm: str, end: float, **more: Any) -> list[Any]:
        return [
            make_record(
                f"{norm}{s}",
                end + s / 100,
                labels={"variant": norm, "seed": s},
                settings={"seed": s},
                floor=0.6,
                **more,
            )
            for s in range(3)
        ]

    gone = several("none", 9.0, status="diverged", reason="the loss was not finite from step 7 on")
    about = SweepInfo(name="norms", question="Why?", axes=["variant"], baseline={"variant": "pre"})
    write_report([*several("pre", 1.5), *several("post", 1.7), *gone], about, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "+0.1997 ± 0.0000" in text  # the same for every seed
    for seed in range(3):
        assert f"| none | {seed} | diverged | the loss was not finite from step 7 on |" in text
    assert "100%" not in text  # the baseline is not compared with itself
    assert "above the floor" in text
    assert "2.50 GB" in text  # predicted
    assert "2.40 GB" in text  # measured
    assert "abc123" in text
    assert text.count("The pre0 sat.") == 1
    assert len(list((tmp_path / "report-figures").iterdir())) == 4


@pytest.mark.parametrize("num_found", [1, 2])
def test_a_report_lists_missing_runs(tmp_path: Path, num_found: int) -> None:
    records = [make_record(f"lr-{n}", 1.5, labels={"optimizer.lr": 0.1 * n}) for n in (1, 2)][:num_found]
    missing = ["lr-3", "lr-4"]
    write_report(records, SweepInfo(name="rates", axes=["optimizer.lr"], missing=missing), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert f"**runs:** {num_found} of {num_found + 2}" in text
    assert "Not started: lr-3, lr-4." in text
    about, _ = read_results(tmp_path / "results.json")
    assert about is not None
    assert about.missing == missing


def test_the_curve_of_diverged_seeds_is_the_median() -> None:
    runs = [
        make_record(f"r{n}", end, status="diverged", reason="the loss was not finite from step 41 on")
        for n, end in enumerate((1.5, 1.6, 999.0))
    ]
    runs[0] = dataclasses.replace(runs[0], lines=[{**runs[0].lines[0], "step": 1}])
    (group,) = [dataclasses.replace(group, runs=runs) for group in group_runs(runs[:1])]
    points, spread = group.curve("loss", "step")
    assert spread == []
    assert points[0] == (1.0, runs[1].lines[0]["loss"])
    assert points[39][1] == runs[2].lines[39]["loss"]  # the median of two finite values and infinity
    assert points[-1][1] == float("inf")


def test_curves_are_drawn_relative_to_the_floor_if_they_stay_above_it() -> None:
    about = SweepInfo(name="rates", axes=["optimizer.lr"])
    records = [make_record(f"r{n}", n, labels={"optimizer.lr": 0.1 * n}, floor=0.3) for n in (1, 2, 3)]
    (figure, *_) = learning_curves(group_runs(records, about.axes), VALIDATION)
    assert isinstance(figure.chart, Chart)
    assert figure.chart.y.log
    assert figure.chart.y.origin == pytest.approx(0.6)  # in these runs two bits are one nat
    assert "0.6000" in figure.caption
    below = [dataclasses.replace(record, floor=0.6) for record in records]
    (figure, *_) = learning_curves(group_runs(below, about.axes), VALIDATION)
    assert isinstance(figure.chart, Chart)
    assert not figure.chart.y.log
    assert [reference.value for reference in figure.chart.references] == pytest.approx([1.2])


def test_a_caption_states_that_lines_are_omitted() -> None:
    about = SweepInfo(name="rates", axes=["optimizer.lr", "batch_size"])

    def captions(num_batch_sizes: int) -> list[str]:
        records = [
            dataclasses.replace(
                make_record(f"{lr} {size}", labels={"optimizer.lr": lr, "batch_size": size}),
                measured={"tokens_per_second": 1000.0 * size * lr},
            )
            for lr in (1.0, 2.0)
            for size in range(1, num_batch_sizes + 1)
        ]
        groups = group_runs(records, about.axes)
        figures = [*axis_figures(groups, VALIDATION, about), *speed_figures(groups, about)]
        assert all(len(figure.chart.series) <= 8 for figure in figures if isinstance(figure.chart, Chart))
        return [figure.caption for figure in figures if "first" in figure.caption]

    assert captions(8) == []
    against_loss, against_speed = captions(10)
    for caption in (against_loss, against_speed):
        assert caption.endswith("The chart shows the first 8 of 10 lines; the table has all.")


def test_equally_good_settings_are_counted() -> None:
    records = [
        dataclasses.replace(
            make_record(f"t{n}", labels={"sampling.temperature": n / 10}),
            settings={"sampling.temperature": n / 10},
            lines=[{"step": 0, "consistent": 1.0 if n < 4 else 0.5}],
        )
        for n in range(1, 6)
    ]
    page = build_report(records, SweepInfo(name="t", axes=["sampling.temperature"]))
    assert page.figures is not None
    assert page.figures.figures[0][1:] == ("temperature 0.1", "first of 3 equally good, of 5")


def test_a_report_needs_a_run() -> None:
    with pytest.raises(UsageError):
        build_report([])


def test_a_missing_run_is_rejected(tmp_path: Path, run: RunCommand) -> None:
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(BytewrightError):
            read_run(path)
        outcome = run("report", path)
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1
        assert str(path) in outcome.err


def test_predictions_are_added_to_runs_on_known_machines(tmp_path: Path) -> None:
    train(make_config(tmp_path, device="auto", precision="bf16"), tmp_path / "a", console=Console(quiet=True))
    record = read_run(tmp_path / "a")
    on_gpu = dataclasses.replace(record, environment={**record.environment, "cuda": "NVIDIA H200"})
    predicted = with_recomputed_costs(on_gpu).predicted
    of_model = {"parameters", "flops_per_token"}
    assert set(predicted) == of_model | {"memory_bytes", "tokens_per_second", "seconds"}
    assert predicted["seconds"] == pytest.approx(24 * 32 / predicted["tokens_per_second"])
    elsewhere = dataclasses.replace(record, environment={**record.environment, "cuda": "Slate 9000"})
    assert set(with_recomputed_costs(elsewhere).predicted) == of_model | {"memory_bytes"}


def test_the_report_of_a_run_has_predictions_and_measurements(tmp_path: Path) -> None:
    train(make_config(tmp_path, device="auto", precision="bf16"), tmp_path / "a", console=Console(quiet=True))
    record = read_run(tmp_path / "a")
    lines = [{**line, "memory_bytes": 1000 + line["step"]} for line in record.lines]
    record = dataclasses.replace(
        record,
        environment={**record.environment, "cuda": "NVIDIA H200"},
        measured={**record.measured, **measured_costs(lines)},
    )
    assert record.measured["memory_bytes"] == 1024  # the last line, of step 24, has the highest peak
    (table,) = table_of_predictions(with_recomputed_costs(record))
    assert isinstance(table, Table)
    rows = {str(row[0]): row[1:] for row in table.rows}
    names = ["parameters", "FLOPs per token", "tokens per second", "utilisation (MFU)", "time", "peak memory"]
    assert list(rows) == names
    assert all(None not in row for row in rows.values())
    assert rows["parameters"] == ["9,552", "9,552", "1.00"]
    assert rows["FLOPs per token"][0] == rows["FLOPs per token"][1]


def test_the_report_of_several_runs_has_the_ratio_of_prediction_to_measurement() -> None:
    groups = group_runs([make_record("a", labels={"x": 1}), make_record("b", labels={"x": 2})], ["x"], None)
    (table,) = table_of_ratios(groups)
    assert isinstance(table, Table)
    assert list(table.columns) == ["setting", "time", "memory"]
    assert [list(row[1:]) for row in table.rows] == [["1.05", "1.04"]] * 2
