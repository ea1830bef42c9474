"""A report shows final values with their unit, diverged seeds, costs and predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from bytewright.experiments.groups import Group, group_runs
from bytewright.experiments.loss_metric import DOCUMENTS, VALIDATION
from bytewright.experiments.records import RunRecord, measured_costs
from bytewright.experiments.results import SweepInfo
from bytewright.report.charts import Chart, Dot, DotChart
from bytewright.report.compose import build_report, write_report
from bytewright.report.draw import draw_chart
from bytewright.report.figures import axis_figures, learning_curves
from bytewright.report.page import Table
from bytewright.report.tables import table_of_costs, table_of_groups
from example_records import make_record


def test_the_best_sampling_setting_has_the_highest_mean_and_length_is_in_words() -> None:
    def sampled(temperature: float, distinct: float) -> RunRecord:
        return dataclasses.replace(
            make_record("sampled", labels={"sampling.temperature": temperature}),
            settings={"sampling.temperature": temperature},
            lines=[
                {"step": 0, "distinct_stories": distinct, "words_per_story": 131.4, "distinct_words": 0.25}
            ],
        )

    runs = [sampled(0.5, 1.0), sampled(0.5, 0.2), sampled(1.0, 0.8), sampled(1.0, 0.8)]
    facts = build_report(runs, SweepInfo(name="t", axes=["sampling.temperature"])).figures
    assert facts is not None
    assert list(facts.figures) == [
        ("best setting", "temperature 1", "of 2"),
        ("distinct stories", "80.0%", ""),
        ("distinct words", "25.0%", "of all words"),
        ("length", "131.4", "words per story"),
    ]


def test_a_setting_with_diverged_seeds_is_not_the_best_and_shows_their_number(tmp_path: Path) -> None:
    def seeds(rate: float, ends: Sequence[float], num_lost: int) -> list[RunRecord]:
        return [
            make_record(
                f"{rate} {seed}",
                end,
                status="diverged" if seed < num_lost else "complete",
                labels={"optimizer.lr": rate, "seed": seed},
                settings={"seed": seed},
            )
            for seed, end in enumerate(ends)
        ]

    about = SweepInfo(name="rates", axes=["optimizer.lr"], baseline={"optimizer.lr": 1.0})
    calm, edge, gone = seeds(1.0, [1.5] * 3, 0), seeds(2.0, [1.2] * 3, 2), seeds(3.0, [1.2] * 3, 3)
    page = write_report([*calm, *edge, *gone], about, tmp_path).with_suffix(".md").read_text()
    assert "**best setting:** lr 1 (best of 1 without diverged seeds, of 3 settings)" in page
    assert "**lowest validation loss:** 1.6045 (nats per token, of settings without diverged seeds)" in page
    sentence = "2 of 3 seeds of lr 2 diverged; its value excludes them."
    groups = group_runs([*calm, *edge, *gone], about.axes)
    (against,) = axis_figures(groups, VALIDATION, about)
    assert isinstance(against.chart, Chart)
    assert against.chart.series[0].crosses == [(2.0, "lr 2 (2 of 3 diverged)")]
    assert draw_chart(against.chart).count('class="gone"') == 2
    assert sentence in against.caption
    (curves, *_) = learning_curves(groups, VALIDATION)
    assert isinstance(curves.chart, Chart)
    assert curves.chart.x.label == "steps"
    words = [series.full_label for series in curves.chart.series]
    assert words == ["lr 1", "lr 2 (2 of 3 diverged)", "lr 3 (diverged)"]
    assert sentence in curves.caption
    table = table_of_groups(groups, VALIDATION, about, groups[0])
    assert sentence in table.caption
    assert "as good after" not in table.columns  # they were as good for a while, but did not stay so

    only = build_report([*edge, *gone], about).figures
    assert only is not None
    assert only.figures[1] == ("best setting", "lr 2", "although 2 of 3 seeds diverged")
    dots = _dots_of(group_runs([*calm, *edge], about.axes))
    assert [dot.label for dot in dots] == ["lr 1", "lr 2 (2 of 3 diverged)"]


def _dots_of(groups: Sequence[Group]) -> Sequence[Dot]:
    figures = axis_figures(groups, VALIDATION, SweepInfo(name="rates", axes=["optimizer.lr"], design="star"))
    (chart,) = [figure.chart for figure in figures if isinstance(figure.chart, DotChart)]
    return chart.dots


def test_a_caption_lists_settings_that_vary_with_the_axis() -> None:
    def made(size: int, **more: object) -> RunRecord:
        settings = {"batch_size": size, "data.train": f"{size}.npy", "eval_every": size, **more}
        return make_record(f"{size}", labels={"batch_size": size}, settings=settings)

    about = SweepInfo(name="sizes", axes=["batch_size"])
    alone = group_runs([made(size) for size in (1, 4)], about.axes)
    assert "Varied together" not in axis_figures(alone, VALIDATION, about)[0].caption
    paired = [
        made(1, **{"optimizer.lr": 1e-3, "schedule.warmup": 9}),
        made(4, **{"optimizer.lr": 2e-3, "schedule.warmup": 5}),
    ]
    (figure,) = axis_figures(group_runs(paired, about.axes), VALIDATION, about)
    sentence = (
        "Varied together with the batch size: `optimizer.lr` (1e-3 to 2e-3) and `schedule.warmup` (9 to 5)."
    )
    assert sentence in figure.caption


def test_a_report_has_the_final_loss_of_every_seed(tmp_path: Path) -> None:
    runs = [
        make_record(
            f"{seed}",
            1.5 + seed / 10,
            status="diverged" if seed == 2 else "complete",
            labels={"optimizer.lr": 1.0, "seed": seed},
            settings={"seed": seed},
        )
        for seed in range(3)
    ]
    page = write_report(runs, SweepInfo(name="rates", axes=["optimizer.lr"]), tmp_path).with_suffix(".md")
    for row in ("| lr 1 | 0 | 1.6045 |", "| lr 1 | 1 | 1.7043 |", "| lr 1 | 2 | diverged |"):
        assert row in page.read_text()
    alone = [dataclasses.replace(runs[0], labels={"optimizer.lr": rate}) for rate in (1.0, 2.0)]
    page = write_report(alone, SweepInfo(name="rates", axes=["optimizer.lr"]), tmp_path).with_suffix(".md")
    assert "of every seed" not in page.read_text()


def test_the_environment_contains_the_processor(tmp_path: Path) -> None:
    record = make_record("a")
    record = dataclasses.replace(record, environment={**record.environment, "processor": "Abacus 9"})
    assert "| processor | Abacus 9 |" in write_report([record], None, tmp_path).with_suffix(".md").read_text()


def test_the_caption_states_when_predictions_were_made() -> None:
    groups = group_runs([make_record("a", labels={"x": 1}), make_record("b", labels={"x": 2})], ["x"], None)
    (table,) = table_of_costs(groups)
    assert isinstance(table, Table)
    assert "made before the run if its record has them, and with the report otherwise" in table.caption


def test_the_median_of_an_even_number_of_lines_is_the_mean_of_the_middle_two() -> None:
    lines = [{"step": n, "tokens_per_second": speed} for n, speed in enumerate((10.0, 40.0, 20.0, 90.0))]
    assert measured_costs(lines) == {"tokens_per_second": 30.0}


def test_the_loss_of_whole_documents_is_first_in_the_report_of_one_run() -> None:
    windows = make_record("run", floor=0.5)
    *lines, last = windows.lines
    whole = dataclasses.replace(windows, lines=[*lines, {**last, DOCUMENTS.name: 0.75}])
    for record, first, above in [
        (windows, ("validation loss, windows", "1.6045"), "0.3022"),
        (whole, ("bits per byte, whole documents", "0.75000"), "0.2500"),
    ]:
        shown = build_report([record]).figures
        assert shown is not None
        assert shown.figures[0][:2] == first
        assert [fact[1] for fact in shown.figures if fact[0] == "above the floor"] == [above]
