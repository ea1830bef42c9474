"""The inputs of a report: unreadable runs are named, other files ignored, mixtures rejected."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bytewright.experiments.inputs import read_inputs
from bytewright.storage.atomic import write_json
from conftest import RunCommand
from runs import SWEEP, write_sampled, write_sweep


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of two learning rates, with its report."""
    from bytewright.cli.main import main

    place = write_sweep(tmp_path_factory.mktemp("swept"))
    (place / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-3, 1e-2"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["sweep", "rates.toml"]) == 0
    return place / "runs/rates"


@pytest.fixture
def sweep(swept: Path, tmp_path: Path) -> Path:
    """A copy of the sweep that a test may damage."""
    return Path(shutil.copytree(swept, tmp_path / "rates"))


def test_an_unreadable_run_is_named_and_does_not_hide_others(sweep: Path, run: RunCommand) -> None:
    (sweep / "lr-0.01/metrics.jsonl").write_text("{\n")
    for paths in ([sweep], [sweep / "lr-1e-3", sweep / "lr-0.01"]):
        out = sweep.parent / f"report-{len(paths)}"
        reported = run("report", *paths, "--out", out)
        assert reported.code == 0, reported
        assert reported.err.startswith(
            "left out lr-0.01, which cannot be read: lr-0.01/metrics.jsonl, line 1: "
        )
        for path in (out / "report.html", out / "report.md"):
            assert "Unreadable: lr-0.01: lr-0.01/metrics.jsonl, line 1: " in path.read_text()
        facts = (out / "report.md").read_text()
        assert "- **runs:** 1 of 2 (none diverged, 1 unreadable)" in facts
        assert run("report", out / "results.json", "--out", out / "again").code == 0
        assert (out / "again/report.md").read_text() == facts


def test_unreadable_runs_of_equal_name_are_both_named(sweep: Path) -> None:
    other = Path(shutil.copytree(sweep, sweep.parent / "other"))
    for folder in (sweep, other):
        (folder / "lr-0.01/metrics.jsonl").write_text("{\n")
    about, records = read_inputs([sweep / "lr-1e-3", sweep / "lr-0.01", other / "lr-0.01"])
    assert about is not None
    assert list(about.unreadable) == ["rates/lr-0.01", "other/lr-0.01"]
    assert len(records) == 1


def test_invalid_labels_make_only_their_run_unreadable(sweep: Path, run: RunCommand) -> None:
    write_json(sweep / "lr-0.01/outcome.json", {"status": "complete", "labels": [1]})
    listed = run("runs", sweep)
    assert listed.code == 0, listed
    assert "labels in its outcome should be a JSON object" in listed.err
    assert "lr-1e-3" in listed.out


def test_a_sweep_without_readable_runs_is_rejected_with_the_reason(sweep: Path, run: RunCommand) -> None:
    for name in ("lr-1e-3", "lr-0.01"):
        (sweep / name / "metrics.jsonl").write_text("{\n")
    refused = run("report", sweep)
    assert refused.code == 2
    assert "lr-1e-3/metrics.jsonl" in refused.err


def test_a_missing_config_is_the_reason_given(sweep: Path) -> None:
    (sweep / "lr-0.01/config.json").unlink()
    about, records = read_inputs([sweep])
    assert [record.name for record in records] == ["lr-1e-3"]
    assert about is not None
    assert about.unreadable == {"lr-0.01": "lr-0.01: is not a run: it has no config.json"}


def test_other_files_in_the_folder_of_a_sweep_are_ignored(sweep: Path, run: RunCommand) -> None:
    everything = sorted(sweep.iterdir())
    assert {"report-figures", "report.html", "results.json"} <= {path.name for path in everything}
    assert [record.name for record in read_inputs(everything)[1]] == ["lr-0.01", "lr-1e-3"]
    assert run("report", *everything, "--out", sweep.parent / "all").code == 0


def test_a_mixture_of_inputs_is_rejected(sweep: Path, tmp_path: Path, run: RunCommand) -> None:
    (tmp_path / "empty").mkdir()
    for path, words in [
        (sweep, "is a sweep"),
        (tmp_path / "empty", "is not a run: it has no config.json"),
        (sweep / "lr-7", "does not exist"),
        (shutil.copy(sweep / "results.json", tmp_path), "is a file"),
    ]:
        refused = run("report", sweep / "lr-0.01", path, "--out", tmp_path / "out")
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert words in refused.err


def test_sampled_texts_are_reported_without_the_run_of_their_model(tmp_path: Path) -> None:
    sweep = write_sampled(tmp_path)
    about = {"name": "t", "question": "", "expectation": "", "notes": "", "axes": ["sampling.temperature"]}
    plan = {"about": about | {"design": "grid", "baseline": {}}, "runs": []}
    (sweep / "sweep.json").write_text(json.dumps(plan))
    names = [record.name for record in read_inputs(sorted(sweep.iterdir()))[1]]
    assert names == ["temperature-0.5", "temperature-1"]
    (sweep / "temperature-1/results.json").write_text("of an earlier report")
    assert [record.name for record in read_inputs([sweep / "temperature-1"])[1]] == ["temperature-1"]


@pytest.mark.parametrize("name", ["../other", "/etc", "a/b", "..", "", "a\0b"])
def test_a_sweep_must_not_name_runs_outside_its_folder(sweep: Path, name: str, run: RunCommand) -> None:
    plan = json.loads((sweep / "sweep.json").read_text())
    plan.pop("checksum", None)
    plan["runs"][0]["name"] = name
    (sweep / "sweep.json").write_text(json.dumps(plan))
    outcome = run("report", sweep)
    assert outcome.code == 2
    assert "sweep.json: runs[0].name " in outcome.err
