"""`sweep` prints its plan, executes runs one by one or in parallel, and reports how they ended."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pytest

from bytewright.cli.sweep import print_plan
from bytewright.experiments.plan import PlannedRun
from bytewright.experiments.sweep import read_sweep
from conftest import RunCommand
from runs import SWEEP, write_sweep

ONE_RATE = SWEEP.replace("1e-3, 1e-2, 1e30", "1e-3")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_sweep(tmp_path)


def test_sweep_prints_its_plan_first_and_its_report_last(place: Path, run: RunCommand) -> None:
    planned = run("sweep", "rates.toml", "--plan")
    assert planned.code == 0
    assert "3 of 3 runs to do" in planned.out
    assert "1 of 1 runs to do" in run("sweep", "rates.toml", "--plan", "--only", "lr-0.01").out
    assert not (place / "runs").exists()

    done = run("sweep", "rates.toml", "--only", "lr-0.01")
    assert done.code == 0
    assert (place / "runs/rates/lr-0.01/outcome.json").is_file()
    assert not (place / "runs/rates/report.html").exists()

    done = run("sweep", "rates.toml")
    assert done.code == 0, done
    assert done.out.splitlines()[-1] == "runs/rates/report.html"
    assert "2 of 3 runs to do" in done.out
    assert "[3/3] lr-1e+30: diverged" in done.err
    assert "diverged" in (place / "runs/rates/report.md").read_text()


def test_a_finished_run_without_checkpoints_is_not_restarted(place: Path, run: RunCommand) -> None:
    assert run("sweep", "rates.toml", "--only", "lr-0.01", "--only", "lr-1e+30").code == 0
    for name, ended in (("lr-0.01", "is complete"), ("lr-1e+30", "has diverged")):
        metrics = place / "runs/rates" / name / "metrics.jsonl"
        before = metrics.read_bytes()
        rejected = run("resume", f"runs/rates/{name}")
        assert rejected.code == 2
        assert f"{name} {ended}, and its checkpoints were not kept" in rejected.err
        assert metrics.read_bytes() == before
    (place / "runs/rates/lr-0.01/metrics.jsonl").write_bytes(b"")
    assert "2 of 3 runs to do" in run("sweep", "rates.toml", "--plan").out, (
        "one whose lines are gone is not done"
    )


def test_a_run_with_lost_metrics_is_reported_and_is_not_the_best(place: Path, run: RunCommand) -> None:
    (place / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-3, 1e-2"))
    assert run("sweep", "rates.toml").code == 0
    won = "**best setting:** lr 0.01"
    assert won in (place / "runs/rates/report.md").read_text()
    metrics = place / "runs/rates/lr-0.01/metrics.jsonl"
    whole = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(whole[:3]))
    lost = "its record ends at step 12 of 24"
    listed = run("runs", "runs")
    assert f"runs/rates/lr-0.01 failed: {lost}" in listed.err
    assert run("report", "runs/rates").code == 0
    text = (place / "runs/rates/report.md").read_text()
    assert won not in text
    assert f"failed | {lost}" in text
    assert f"{lost}, restarts" in run("sweep", "rates.toml", "--plan").out
    again = run("sweep", "rates.toml")
    assert again.code == 0
    assert f"lr-0.01: {lost}, restarts" in again.err
    assert won in (place / "runs/rates/report.md").read_text()


def test_a_touched_text_is_accepted_and_a_changed_text_is_rejected(
    place: Path, run: RunCommand, stories: Path
) -> None:
    shutil.copy(stories, place / "own.txt")
    corpus = '[corpus]\ntext = "own.txt"\nvocab_size = 300\n'
    (place / "rates.toml").write_text(ONE_RATE + corpus)
    assert run("sweep", "rates.toml").code == 0
    os.utime(place / "own.txt", ns=(1, 1))
    again = run("sweep", "rates.toml")
    assert again.code == 0, again
    assert "0 of 1 runs to do" in again.out
    with (place / "own.txt").open("ab") as stream:
        stream.write(b"The end.\n")
    rejected = run("sweep", "rates.toml")
    assert rejected.code == 2
    assert "runs/rates/lr-1e-3 was made with corpus = 'own-" in rejected.err


def test_complete_runs_need_no_memory(place: Path, run: RunCommand) -> None:
    (place / "rates.toml").write_text(ONE_RATE)
    assert run("sweep", "rates.toml").code == 0
    assert "0 of 1 runs to do" in run("sweep", "rates.toml", "--jobs", "100_000_000", "--plan").out


@pytest.mark.parametrize("name", ["pages.jsonl", "pages.txt.gz"])
def test_a_corpus_that_is_not_plain_text_is_rejected_before_any_work(
    place: Path, run: RunCommand, name: str
) -> None:
    text = b'{"text": "One."}\n'
    (place / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    rejected = run("sweep", "rates.toml", "--plan", "--set", f"corpus.text={name}")
    assert rejected.code == 2
    assert f"{name}: expected plain text" in rejected.err


@pytest.mark.parametrize("key", ["corpus.text", "data.train", "data.validation", "data.tokenizer"])
def test_a_missing_file_is_reported_before_any_work(place: Path, run: RunCommand, key: str) -> None:
    rejected = run("sweep", "rates.toml", "--plan", "--set", f"{key}=none")
    assert (rejected.code, rejected.out) == (2, "")
    assert rejected.err == "bytewright: none does not exist; the run lr-1e-3 needs it\n"


def test_several_runs_execute_in_parallel(place: Path, run: RunCommand) -> None:
    (place / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-3, 1e-2"))
    done = run("sweep", "rates.toml", "--jobs", "2")
    assert done.code == 0, done
    assert [line.split()[0] for line in done.err.splitlines() if line.startswith("[")] == ["[1/2]", "[2/2]"]
    for name in ("lr-1e-3", "lr-0.01"):
        assert (place / "runs/rates" / name / "outcome.json").is_file()


def test_mistakes_are_one_sentence(place: Path, run: RunCommand) -> None:
    for arguments, words in [
        (["rates.toml", "--only", "lr-3"], "has no run 'lr-3'; it has lr-1e-3"),
        (["missing.toml"], "missing.toml does not exist"),
        ([], "SWEEP is missing"),
        (["rates.toml", "--scale", "smoke"], "no scale 'smoke'"),
        (["rates.toml", "--set", "optimizer.lrr=3"], "bytewright: --set: unknown key optimizer.lrr"),
        (["rates.toml", "--set", "optimizer.lr=3"], "bytewright: --set: optimizer.lr cannot have one value"),
        (["rates.toml", "--jobs", "0"], "--jobs must be at least 1"),
        (["rates.toml", "rates.toml"], "would share a folder"),
    ]:
        outcome = run("sweep", *arguments)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome
        assert words in outcome.err


def test_a_folder_of_runs_instead_of_a_run_is_an_error_that_names_them(place: Path, run: RunCommand) -> None:
    (place / "rates.toml").write_text('keep = "model"\n' + ONE_RATE)
    assert run("sweep", "rates.toml").code == 0
    shutil.copytree("runs/rates/lr-1e-3", "runs/alone")
    for arguments, names in [
        (["report", "runs"], ["sweep runs/rates, run runs/alone", "`bytewright report runs/rates`"]),
        (["report", "runs/alone", "runs", "--out", "both"], ["sweep runs/rates, run runs/alone"]),
        (["fit", "runs"], ["`bytewright fit runs/rates`"]),
        (["generate", "runs"], ["contains runs: runs/alone, runs/rates/lr-1e-3;"]),
        (["resume", "runs"], ["contains runs: runs/alone, runs/rates/lr-1e-3;"]),
    ]:
        rejected = run(*arguments)
        assert (rejected.code, rejected.err.count("\n")) == (2, 1), rejected
        assert all(name in rejected.err for name in names), rejected
    assert run("report", "runs/alone").code == run("report", "runs/rates").code == 0


def test_a_plan_leaves_unknown_predictions_blank(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = read_sweep(place / "rates.toml")
    trial = sweep.trials[0]
    for predicted in ({"memory_bytes": 2.5e9}, {"seconds": 90.0}, {}):
        planned = PlannedRun(
            trial=trial,
            run=place / trial.name,
            state="new",
            detail="is new",
            predicted=predicted,
            seconds=predicted.get("seconds"),
        )
        print_plan(sweep, [planned])
        printed = capsys.readouterr().out
        assert "is new" in printed
        assert ("2.5 GB" in printed) == ("memory_bytes" in predicted)
        assert ("of training" in printed) == ("seconds" in predicted)
        assert "1 of 1 runs to do" in printed


def test_a_sweep_whose_runs_all_failed_has_no_report(place: Path, run: RunCommand) -> None:
    (place / "rates.toml").write_text(ONE_RATE)
    outcome = run("sweep", "rates.toml", "--set", "model.vocab_size=3")
    assert outcome.code == 1
    *_, reason, end = outcome.err.splitlines()
    assert reason.startswith("[1/1] lr-1e-3: failed: train.npy")
    assert end == f"{Path('runs/rates')}: every run failed at its start, so there is no report."


def test_the_help_of_resume_lists_the_allowed_changes(run: RunCommand) -> None:
    """`resume` continues from the last checkpoint and does not accept the folder of a checkpoint."""
    printed = " ".join(run("resume", "--help").out.split())
    assert "The folder of the run." in printed
    assert "of one checkpoint" not in printed
    assert "of one checkpoint" in " ".join(run("evaluate", "--help").out.split())
