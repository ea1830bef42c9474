"""`bytewright demo`, from nothing to a report; the slow tests are in test_pipeline.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import TINY

from conftest import RunCommand


def test_the_command_ends_with_the_report_and_its_run_can_be_used(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bytewright.demo.pipeline.Plan", lambda: TINY)
    outcome = run("demo", "--out", tmp_path / "demo")
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[-1] == str(tmp_path / "demo" / "report.html")
    assert run("generate", tmp_path / "demo" / "run", "--max-new-tokens", "5").code == 0
    assert "bits per byte" in run("evaluate", tmp_path / "demo" / "run").out
    (validation,) = (tmp_path / "demo" / "data").rglob("validation.txt")
    measured = run("evaluate", tmp_path / "demo" / "run", "--stories", validation)
    assert "entropy of these stories" in measured.out
