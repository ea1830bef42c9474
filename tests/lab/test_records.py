"""How a run ended is told by its own lines; and its record survives the way through results.json."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from imagined_runs import make_record
from rich.console import Console

from bytewright.errors import BytewrightError, FormatError, UsageError
from bytewright.lab.figures import VALIDATION, learning_curves
from bytewright.lab.groups import group_runs
from bytewright.lab.page import Table
from bytewright.lab.plots import Chart
from bytewright.lab.predict import compare_record
from bytewright.lab.records import judge, measure, read_run
from bytewright.lab.report import build_report, write_report
from bytewright.lab.results import About, read_all, read_results, write_results
from bytewright.lab.tables import table_of_predictions, table_of_ratios
from bytewright.train import train
from bytewright.train.run_folder import RunFolder
from conftest import Run
from runs import make_config

SETTINGS = {
    "model.vocab_size": 40,
    "model.context_length": 8,
    "batch_size": 4,
    "budget.steps": 20,
    "max_refused": 3,
}


def lines(*losses: float, every: int = 5) -> list[dict[str, Any]]:
    return [{"step": (n + 1) * every, "loss": loss, "validation_loss": loss} for n, loss in enumerate(losses)]


def overfitting(*pairs: tuple[float | None, float]) -> list[dict[str, Any]]:
    return [
        {"step": (n + 1) * 5, "validation_loss": validation} | ({} if loss is None else {"loss": loss})
        for n, (loss, validation) in enumerate(pairs)
    ]


REFUSED = {"event": "refused: the loss is not finite"}


@pytest.mark.parametrize(
    ("found", "events", "status", "word"),
    [
        (lines(3, 2, 1, 1), [], "complete", ""),
        (lines(3, 2), [], "stopped", "step 10"),
        ([], [], "stopped", "before its first line"),
        (lines(3, 2), [REFUSED | {"step": step} for step in (11, 12, 13)], "diverged", "from step 11"),
        (lines(3, 2, 1, 1), [REFUSED | {"step": 7}], "complete", ""),
        (lines(3, 2), [REFUSED | {"step": step} for step in (2, 7, 11)], "stopped", "step 10"),
        (lines(3, 2), [REFUSED | {"step": step} for step in (2, 7, 9, 11, 12)], "stopped", "step 10"),
        (lines(3, 2), [REFUSED | {"step": step} for step in (2, 9, 11, 12, 13)], "diverged", "from step 11"),
        (lines(9, 8, 7, 4.75), [], "diverged", "worse than guessing (3.69)"),
        (lines(4, 3.9, 3.8, 3.75), [], "complete", ""),
        (lines(3, 2, 1, 2.5), [], "diverged", "after 1 at step 15"),
        (lines(3, 2, 1, 1.9), [], "complete", ""),
        (lines(3, 90, 40, 2), [], "diverged", "rose to 90 by step 10"),
        (lines(90, 40, 3, 2), [], "complete", ""),
        (overfitting((3, 3), (2, 2), (1, 3), (0.1, 3.5)), [], "complete", ""),
        (overfitting((3, 3), (2, 2), (0.1, 4), (0.1, 9)), [], "complete", ""),
        (overfitting((3, 3), (2, 2), (0.1, 9), (0.1, 2.1)), [], "complete", ""),
        (overfitting((3, 3), (2, 2), (3, 3), (3.1, 3.5)), [], "diverged", "after 2 at step 10"),
        (overfitting((3, 3), (2, 2), (None, 3), (None, 3.5)), [], "diverged", "after 2 at step 10"),
        (overfitting((9, 9), (8, 8), (7, 7), (6, 6)), [], "diverged", "worse than guessing (3.69)"),
    ],
)
def test_a_run_is_judged_by_its_lines(
    found: list[dict[str, Any]], events: list[dict[str, Any]], status: str, word: str
) -> None:
    judged, reason = judge(SETTINGS, found, events)
    assert judged == status
    assert word in reason


def test_a_budget_in_tokens_or_minutes_ends_a_run_too() -> None:
    tokens = {**SETTINGS, "budget.steps": None, "budget.tokens": 20 * 32 - 5}
    assert judge(tokens, lines(3, 2, 1, 1), [])[0] == "complete"
    minutes = {**SETTINGS, "budget.steps": None, "budget.minutes": 1.0}
    short = [line | {"seconds": 30.0} for line in lines(3, 2)]
    assert judge(minutes, short, [])[0] == "stopped"
    assert judge(minutes, [*short, {"step": 15, "loss": 1.0, "seconds": 59.5}], [])[0] == "complete"


def test_a_run_of_minutes_is_over_when_its_planned_steps_are(tmp_path: Path) -> None:
    run = tmp_path / "a"
    train(make_config(tmp_path, budget={"steps": None, "minutes": 0.05}), run, console=Console(quiet=True))
    assert read_run(run).status == "complete"
    *most, last = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(most))
    assert read_run(run).status == "stopped"
    (run / "metrics.jsonl").write_text("".join([*most, last]))
    config = json.loads((run / "config.json").read_text())
    config["budget"]["minutes"] = 5.0
    (run / "config.json").write_text(json.dumps(config))
    assert read_run(run).status == "stopped"


def test_minutes_beside_steps_are_counted_to_the_last() -> None:
    both = {**SETTINGS, "budget.steps": 20, "budget.minutes": 1.0}
    assert judge(both, [{"step": 15, "loss": 1.0, "seconds": 57.0}], [])[0] == "stopped"
    assert judge(both, [{"step": 15, "loss": 1.0, "seconds": 60.0}], [])[0] == "complete"


def test_lines_that_go_on_to_the_end_outdo_how_an_earlier_session_ended(tmp_path: Path) -> None:
    run = tmp_path / "a"
    train(make_config(tmp_path), run, console=Console(quiet=True))
    (run / "outcome.json").write_text('{"status": "failed", "reason": "no memory", "labels": {"x": 1}}')
    record = read_run(run)
    assert (record.status, record.reason, record.labels) == ("complete", "", {"x": 1})


KEPT = sorted((Path(__file__).parents[2] / "docs/results").glob("*/*/results.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.name)
def test_kept_verdicts_are_those_that_their_lines_give_today(path: Path) -> None:
    _, records = read_results(path)
    trained = [
        record
        for record in records
        if record.column("loss") and "not finite" not in record.reason  # refusals are not kept
    ]
    assert trained or all(record.num_steps == 0 for record in records)
    for record in trained:
        assert (record.name, *judge(record.settings, record.lines, [])) == (
            record.name,
            record.status,
            record.reason,
        )


def test_a_real_run_is_read_back(tmp_path: Path) -> None:
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


def test_results_keep_all_that_a_report_needs(tmp_path: Path) -> None:
    about = About(name="rates", question="Which?", axes=["optimizer.lr"], baseline={"optimizer.lr": 0.1})
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
    assert build_report(again, again_about) == build_report(read_all([tmp_path])[1], about)
    write_results(tmp_path / "again.json", again_about, again)
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "results.json").read_bytes()


def test_no_folder_of_the_machine_is_written(tmp_path: Path) -> None:
    settings = {"data.train": "/mnt/grace/data/book-563d29/bpe-512/train.npy", "sample_prompt": "/me"}
    command = ["/mnt/grace/.venv/bin/bytewright", "sweep", "recipes/x.toml", "--out=/mnt/grace/runs"]
    record = dataclasses.replace(make_record("a", settings=settings), environment={"command": command})
    write_report([record], None, tmp_path)
    for name in ("results.json", "report.md", "report.html"):
        assert "/mnt" not in (tmp_path / name).read_text()
        assert "grace" not in (tmp_path / name).read_text()
    _, (kept,) = read_results(tmp_path / "results.json")
    assert kept.settings["data.train"] == "book-563d29/bpe-512/train.npy"
    assert kept.settings["sample_prompt"] == "/me"
    assert kept.environment["command"] == ["bytewright", "sweep", "recipes/x.toml", "--out=runs"]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda value: value.update(format="other"), 'says "format"'),
        (lambda value: value.pop("runs"), "runs is missing"),
        (lambda value: value["runs"][0].update(status="fine"), "one of complete"),
        (lambda value: value["runs"][0]["metrics"]["loss"].pop(), "as many as there are steps"),
        (lambda value: value["runs"][0]["metrics"]["step"].__setitem__(0, "one"), "whole numbers"),
        (lambda value: value["runs"][0].pop("labels"), "labels is missing"),
        (lambda value: value["about"].update(axes="lr"), "about.axes should be an array"),
    ],
)
def test_damaged_results_are_one_sentence(tmp_path: Path, damage: Any, sentence: str) -> None:
    path = tmp_path / "results.json"
    write_results(path, About(name="a"), [make_record("a")])
    value = json.loads(path.read_text())
    damage(value)
    path.write_text(json.dumps(value))
    with pytest.raises(FormatError, match=r"results\.json") as caught:
        read_results(path)
    assert sentence in str(caught.value)


def test_runs_that_differ_in_their_seed_alone_are_one_group() -> None:
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


def test_a_report_says_what_diverged_and_what_the_difference_is(tmp_path: Path) -> None:
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
    about = About(name="norms", question="Why?", axes=["variant"], baseline={"variant": "pre"})
    write_report([*several("pre", 1.5), *several("post", 1.7), *gone], about, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "+0.1997 ± 0.0082" in text
    for seed in range(3):
        assert f"| none | {seed} | diverged | the loss was not finite from step 7 on |" in text
    assert "100%" not in text  # the baseline is not compared with itself
    assert "above the floor" in text
    assert "2.50 GB" in text  # predicted, beside
    assert "2.40 GB" in text  # measured
    assert "abc123" in text
    assert text.count("The pre0 sat.") == 1
    assert len(list((tmp_path / "report-figures").iterdir())) == 4


def test_of_seeds_that_all_diverged_the_curve_is_the_median() -> None:
    runs = [
        make_record(f"r{n}", end, status="diverged", reason="the loss was not finite from step 41 on")
        for n, end in enumerate((1.5, 1.6, 999.0))
    ]
    runs[0] = dataclasses.replace(runs[0], lines=[{**runs[0].lines[0], "step": 1}])
    (group,) = [dataclasses.replace(group, runs=runs) for group in group_runs(runs[:1])]
    points, spread = group.curve("loss", "step")
    assert spread == []
    assert points[0] == (1.0, runs[1].lines[0]["loss"])
    assert points[39][1] == runs[2].lines[39]["loss"]  # of a number, a higher one, and none
    assert points[-1][1] == float("inf")


def test_curves_are_drawn_above_the_floor_and_only_what_stays_above_it() -> None:
    about = About(name="rates", axes=["optimizer.lr"])
    records = [make_record(f"r{n}", n, labels={"optimizer.lr": 0.1 * n}, floor=0.3) for n in (1, 2, 3)]
    (figure, *_) = learning_curves(group_runs(records, about.axes), VALIDATION, about)
    assert isinstance(figure.chart, Chart)
    assert figure.chart.y.log
    assert figure.chart.y.origin == pytest.approx(0.6)  # two bits of these runs are one nat
    assert "0.6000" in figure.caption
    below = [dataclasses.replace(record, floor=0.6) for record in records]
    (figure, *_) = learning_curves(group_runs(below, about.axes), VALIDATION, about)
    assert isinstance(figure.chart, Chart)
    assert not figure.chart.y.log
    assert [reference.value for reference in figure.chart.references] == pytest.approx([1.2])


def test_a_run_as_good_as_the_best_is_said_to_be_one_of_several() -> None:
    records = [
        dataclasses.replace(
            make_record(f"t{n}", labels={"sampling.temperature": n / 10}),
            settings={"sampling.temperature": n / 10},
            lines=[{"step": 0, "consistent": 1.0 if n < 4 else 0.5}],
        )
        for n in range(1, 6)
    ]
    page = build_report(records, About(name="t", axes=["sampling.temperature"]))
    assert page.facts is not None
    assert page.facts.facts[0][1:] == ("temperature 0.1", "first of 3 that are equally good, of 5")


def test_a_report_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no runs to report"):
        build_report([])


def test_a_missing_run_is_one_sentence(tmp_path: Path, run: Run) -> None:
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(BytewrightError):
            read_run(path)
        outcome = run("report", path)
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1
        assert str(path) in outcome.err


def test_a_run_is_said_to_be_running_while_its_writer_lives(tmp_path: Path, run: Run) -> None:
    def statuses() -> list[str]:
        return [row["status"] for row in json.loads(run("runs", tmp_path, "--json").out)]

    with RunFolder.create(tmp_path / "one", make_config(tmp_path)):
        assert statuses() == ["running"]
    assert statuses() == ["stopped"]


@pytest.mark.parametrize("status", ["failed", "diverged", "stopped"])
def test_a_run_that_goes_on_is_running_whatever_an_earlier_session_came_to(
    tmp_path: Path, run: Run, status: str
) -> None:
    with RunFolder.create(tmp_path / "one", make_config(tmp_path)) as folder:
        folder.metrics.write_text('{"step": 3, "loss": 2.5}\n')
        outcome = {"status": status, "reason": "no memory", "labels": {}}
        (folder.path / "outcome.json").write_text(json.dumps(outcome))
        (row,) = json.loads(run("runs", tmp_path, "--json").out)
        assert (row["status"], row["reason"], row["loss"]) == ("running", "", 2.5)
    (row,) = json.loads(run("runs", tmp_path, "--json").out)
    assert (row["status"], row["reason"]) == (status, "no memory")


@pytest.mark.parametrize("damage", [b"{\n", b"[]\n", b"\xff\n"])
def test_a_run_that_cannot_be_read_is_listed_with_the_reason_beside_the_others(
    tmp_path: Path, run: Run, damage: bytes
) -> None:
    for name in ("bad", "good"):
        RunFolder.create(tmp_path / name, make_config(tmp_path)).close()
    (tmp_path / "bad/metrics.jsonl").write_bytes(damage)
    bad, good = json.loads(run("runs", tmp_path, "--json").out)
    assert (bad["run"], bad["status"]) == (str(tmp_path / "bad"), "unreadable")
    assert "metrics.jsonl" in bad["reason"]
    assert good["status"] == "stopped"
    listed = run("runs", tmp_path, "--sort=-lr")
    assert listed.code == 0
    assert listed.out.index("good") < listed.out.index("bad")
    assert bad["reason"] in listed.err
    assert "good" not in run("runs", tmp_path, "--where", "status=unreadable").out


def test_numbers_are_not_more_or_less_than_words(tmp_path: Path, run: Run) -> None:
    RunFolder.create(tmp_path / "one", make_config(tmp_path)).close()
    for sign in ("<", "<=", ">", ">="):
        for word in ("abc", "nan", ""):
            outcome = run("runs", tmp_path, "--where", f"lr{sign}{word}")
            assert (outcome.code, outcome.out) == (2, "")
            assert outcome.err.count("\n") == 1
            assert f"compares numbers with '{word}', which is none" in outcome.err
    assert "stopped" in run("runs", tmp_path, "--where", "lr!=abc").out
    assert "stopped" in run("runs", tmp_path, "--where", "started>2020").out


def test_the_commands_list_and_report_real_runs(tmp_path: Path, run: Run) -> None:
    for lr in (0.01, 0.02):
        config = make_config(tmp_path, optimizer={"lr": lr}, budget={"steps": 8})
        train(config, tmp_path / f"runs/lr-{lr}", console=Console(quiet=True))
    listed = run("runs", tmp_path / "runs", "--sort=-lr", "--json")
    rows = json.loads(listed.out)
    assert [row["optimizer.lr"] for row in rows] == [0.02, 0.01]
    assert {row["status"] for row in rows} == {"complete"}
    assert run("runs", tmp_path, "--where", "lr<0.015").out.count("complete") == 1
    assert run("runs", tmp_path, "--where", "norm=post").out == "No runs.\n"
    assert "did you mean 'lr'" in run("runs", tmp_path, "--sort", "lrr").err
    assert run("runs", tmp_path, "--where", "lr").code == 2
    assert run("runs", tmp_path / "gone").code == 2

    both = [tmp_path / "runs" / name for name in ("lr-0.01", "lr-0.02")]
    assert run("report", *both).code == 2
    assert run("report", *both, "--out", tmp_path / "both").out.strip() == str(tmp_path / "both/report.html")
    assert run("report", both[0]).code == 0
    assert (both[0] / "report.html").is_file()


def test_a_run_on_a_known_machine_gets_its_predictions_afterwards(tmp_path: Path) -> None:
    train(make_config(tmp_path, device="auto"), tmp_path / "a", console=Console(quiet=True))
    record = read_run(tmp_path / "a")
    on_gpu = dataclasses.replace(record, environment={**record.environment, "cuda": "NVIDIA H200"})
    predicted = compare_record(on_gpu).predicted
    of_model = {"parameters", "flops_per_token"}
    assert set(predicted) == of_model | {"memory_bytes", "tokens_per_second", "seconds"}
    assert predicted["seconds"] == pytest.approx(24 * 32 / predicted["tokens_per_second"])
    elsewhere = dataclasses.replace(record, environment={**record.environment, "cuda": "Slate 9000"})
    assert set(compare_record(elsewhere).predicted) == of_model | {"memory_bytes"}


def test_the_report_of_a_run_has_what_was_predicted_beside_what_was_measured(tmp_path: Path) -> None:
    train(make_config(tmp_path, device="auto"), tmp_path / "a", console=Console(quiet=True))
    record = read_run(tmp_path / "a")
    lines = [{**line, "memory_bytes": 1000 + line["step"]} for line in record.lines]
    record = dataclasses.replace(
        record,
        environment={**record.environment, "cuda": "NVIDIA H200"},
        measured={**record.measured, **measure(lines)},
    )
    assert record.measured["memory_bytes"] == 1024  # the last line, of step 24, has the highest peak
    (table,) = table_of_predictions(compare_record(record))
    assert isinstance(table, Table)
    rows = {str(row[0]): row[1:] for row in table.rows}
    names = ["parameters", "FLOPs per token", "peak memory", "tokens per second", "utilisation (MFU)", "time"]
    assert list(rows) == names
    assert all(None not in row for row in rows.values())
    assert rows["parameters"] == ["9,552", "9,552", "1.00"]
    assert rows["FLOPs per token"][0] == rows["FLOPs per token"][1]


def test_the_report_of_several_runs_has_what_was_predicted_over_what_was_measured() -> None:
    groups = group_runs([make_record("a", labels={"x": 1}), make_record("b", labels={"x": 2})], ["x"], None)
    (table,) = table_of_ratios(groups)
    assert isinstance(table, Table)
    assert list(table.columns) == ["setting", "parameters", "FLOPs", "memory", "tokens/s", "time"]
    assert [list(row[1:]) for row in table.rows] == [[None, None, "1.04", None, "1.05"]] * 2
