"""`bytewright runs` lists all runs, active and damaged ones included, and filters them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from bytewright.errors import FormatError, UsageError
from bytewright.experiments.listing import Row, filter_rows, list_runs
from bytewright.experiments.records import read_run
from bytewright.storage import atomic
from bytewright.studio.folder import StudioFolder
from bytewright.studio.watch import RunTable
from bytewright.train import resume, train
from bytewright.train.metrics_log import MetricsLog
from bytewright.train.run_files import RunWriter
from conftest import RunCommand
from rejection import rejects
from runs import make_config, write_sampled


def test_a_run_is_listed_as_running_while_a_process_holds_its_lock(tmp_path: Path, run: RunCommand) -> None:
    def statuses() -> list[str]:
        return [row["status"] for row in json.loads(run("runs", tmp_path, "--json").out)]

    with RunWriter.create(tmp_path / "one", make_config(tmp_path)):
        assert statuses() == ["running"]
    assert statuses() == ["stopped"]


@pytest.mark.parametrize("status", ["failed", "diverged", "stopped"])
def test_a_resumed_run_is_running_whatever_an_earlier_session_recorded(
    tmp_path: Path, run: RunCommand, status: str
) -> None:
    with RunWriter.create(tmp_path / "one", make_config(tmp_path)) as folder:
        folder.metrics.write_text('{"step": 3, "loss": 2.5}\n')
        outcome = {"status": status, "reason": "no memory", "labels": {}}
        (folder.path / "outcome.json").write_text(json.dumps(outcome))
        (row,) = json.loads(run("runs", tmp_path, "--json").out)
        assert (row["status"], row["reason"], row["loss"]) == ("running", "", 2.5)
    (row,) = json.loads(run("runs", tmp_path, "--json").out)
    assert (row["status"], row["reason"]) == (status, "no memory")
    assert ("no memory" in run("runs", tmp_path).err) == (status != "stopped")


@pytest.mark.parametrize("damage", [b"{\n", b"[]\n", b"\xff\n", b'{"event": "refused"}\n'])
def test_an_unreadable_run_is_listed_with_the_reason(tmp_path: Path, run: RunCommand, damage: bytes) -> None:
    for name in ("bad", "good"):
        RunWriter.create(tmp_path / name, make_config(tmp_path)).close()
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


@pytest.mark.parametrize("name", ["config.json", "environment.json", "outcome.json", "metrics.jsonl"])
def test_a_changed_digit_in_a_file_of_a_run_is_detected(tmp_path: Path, name: str) -> None:
    with RunWriter.create(tmp_path / "one", make_config(tmp_path)) as folder:
        log = MetricsLog(folder.metrics)
        log.write({"step": 3, "loss": 2.5})
        log.close()
    atomic.write_document(folder.path / "outcome.json", {"status": "complete", "step": 3})
    assert read_run(folder.path).num_steps == 3
    path = folder.path / name
    sound = path.read_text()
    digit = next(place for place, letter in enumerate(sound) if letter in "2345")
    path.write_text(sound[:digit] + str(int(sound[digit]) + 1) + sound[digit + 1 :])
    with rejects(FormatError, path=path):
        read_run(folder.path)


@pytest.mark.parametrize("name", ["samples", "samples/step-000003.txt"])
def test_a_text_behind_a_symbolic_link_is_not_shown(tmp_path: Path, name: str) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/step-000003.txt").write_text("the key of the house")
    with RunWriter.create(tmp_path / "one", make_config(tmp_path)) as folder:
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).symlink_to(tmp_path / "private" / name.removeprefix("samples").strip("/"))
    with rejects(FormatError, path=folder.path / "samples/step-000003.txt"):
        read_run(folder.path)


def test_numbers_cannot_be_ordered_against_text(tmp_path: Path, run: RunCommand) -> None:
    RunWriter.create(tmp_path / "one", make_config(tmp_path)).close()
    for sign in ("<", "<=", ">", ">="):
        for word in ("abc", "nan", ""):
            outcome = run("runs", tmp_path, "--where", f"lr{sign}{word}")
            assert (outcome.code, outcome.out) == (2, "")
            assert outcome.err.count("\n") == 1
            assert f"compares numbers with '{word}'" in outcome.err
    assert "stopped" in run("runs", tmp_path, "--where", "lr!=abc").out
    assert "stopped" in run("runs", tmp_path, "--where", "started>2020").out


def test_a_setting_that_is_a_list_is_compared_as_text() -> None:
    rows: list[Row] = [
        {"run": "a", "sizes": [1, 2]},
        {"run": "b", "sizes": None},
        {"run": "c", "sizes": True},
    ]
    for condition, name in (("sizes=[1, 2]", "a"), ("sizes=none", "b"), ("sizes=true", "c")):
        assert [row["run"] for row in filter_rows(rows, [condition])] == [name]


def test_the_commands_list_and_report_real_runs(tmp_path: Path, run: RunCommand) -> None:
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


def test_a_report_shows_the_current_state_of_a_run(tmp_path: Path, run: RunCommand) -> None:
    path = tmp_path / "one"
    train(make_config(tmp_path, schedule={"kind": "constant"}), path, console=Console(quiet=True))
    assert run("report", path).code == 0
    fields = atomic.read_document(path / "config.json")
    fields["budget"]["steps"] = 30
    (path / "config.json").write_text(json.dumps(fields))
    assert resume(path, console=Console(quiet=True)).step == 30
    assert run("report", path).code == 0
    (reported,) = json.loads((path / "results.json").read_text())["runs"]
    assert reported["metrics"]["step"][-1] == 30


def test_sampled_texts_are_listed_with_their_model(tmp_path: Path, run: RunCommand) -> None:
    sweep = write_sampled(tmp_path)
    names = [Path(row["run"]).name for row in json.loads(run("runs", sweep, "--json").out)]
    assert names == ["model", "temperature-0.5", "temperature-1"]
    (row,) = json.loads(run("runs", sweep / "temperature-1", "--json").out)
    assert (row["status"], row["consistent"], row["words_per_story"]) == ("complete", 0.5, 9.0)
    assert (row["step"], row["started"]) == (None, None)
    told = run("runs", sweep, "--where", "temperature<0.7", "--sort", "consistent").out
    assert "0.7500" in told
    assert "temperature-1" not in told


def test_runs_can_be_filtered_by_their_labels_in_a_sweep(tmp_path: Path, run: RunCommand) -> None:
    for name in ("silu", "swiglu"):
        RunWriter.create(tmp_path / name, make_config(tmp_path)).close()
        outcome = {"status": "stopped", "labels": {"variant": name}}
        (tmp_path / name / "outcome.json").write_text(json.dumps(outcome))
    (row,) = json.loads(run("runs", tmp_path, "--where", "variant=silu", "--json").out)
    assert row["run"] == str(tmp_path / "silu")
    rows = json.loads(run("runs", tmp_path, "--sort=-variant", "--json").out)
    assert [row["variant"] for row in rows] == ["swiglu", "silu"]


def test_a_run_without_its_config_is_listed_as_unreadable(tmp_path: Path, run: RunCommand) -> None:
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost/outcome.json").write_text('{"status": "complete", "labels": {}}')
    listed = run("runs", tmp_path)
    assert "unreadable" in listed.out
    assert "it has no config.json" in listed.err


def test_a_file_instead_of_a_folder_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.touch()
    with rejects(UsageError, path=file):
        list_runs([file])


def test_the_loss_of_windows_and_that_of_whole_documents_have_different_headings(
    tmp_path: Path, run: RunCommand
) -> None:
    for name in ("demo", "sweep"):
        with RunWriter.create(tmp_path / name, make_config(tmp_path)) as folder:
            line = {"step": 24, "loss": 2.5, "validation_loss": 2.0, "bits_per_byte": 0.5, "is_last": True}
            line |= {"story_bits_per_byte": 0.25} if name == "demo" else {}
            folder.metrics.write_text(json.dumps(line) + "\n")
            documents = {"documents": {"document_bits_per_byte": 0.125}} if name == "sweep" else {}
            outcome = {"status": "complete", "reason": "", "labels": {}, "step": 24, **documents}
            (folder.path / "outcome.json").write_text(json.dumps(outcome))
    rows = json.loads(run("runs", tmp_path, "--json").out)
    assert [(row["bits_per_byte"], row["document_bits_per_byte"]) for row in rows] == [
        (0.5, 0.25),
        (0.5, 0.125),
    ]
    heading = run("runs", tmp_path).out.splitlines()[0]
    for title in ("validation loss (windows)", "bits per byte (windows)", "bits per byte (whole documents)"):
        assert title in heading
    table = RunTable(StudioFolder(tmp_path))
    table.refresh()
    shown = {found.name: found.summary["document_bits_per_byte"] for found in table.runs.values()}
    assert shown == {"demo": 0.25, "sweep": 0.125}
