"""The doctor tells what is there and what is not."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from types import ModuleType

import pytest

from conftest import Run


def test_the_doctor_finds_what_is_there(run: Run) -> None:
    outcome = run("doctor", "--json")
    report = json.loads(outcome.out)
    found = {finding["name"]: finding["found"] for finding in report["findings"]}
    assert {"cores", "memory", "python", "torch", "gpu", "native extension"} <= set(found)
    assert found["torch"] == importlib.metadata.version("torch")
    assert report["healthy"] is (outcome.code == 0)


def test_the_doctor_names_what_is_missing_with_a_remedy(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = importlib.import_module

    def without_native(name: str, package: str | None = None) -> ModuleType:
        if name == "bytewright._native":
            raise ImportError("not built")
        return real_import(name, package)

    monkeypatch.setattr(importlib, "import_module", without_native)
    outcome = run("doctor")
    assert outcome.code == 1
    assert "native extension is missing: run make setup" in outcome.out
    report = json.loads(run("doctor", "--json").out)
    assert report["healthy"] is False
