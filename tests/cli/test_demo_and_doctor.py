"""The demo goes the whole way and leaves nothing; the doctor tells what is there and what is not."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from pathlib import Path
from types import ModuleType

import pytest

from bytewright.cli.demo_text import write_stories
from conftest import Run


def test_the_demo_announces_each_stage_and_the_text_comes_back(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    outcome = run("demo")
    assert outcome.code == 0
    for stage in range(1, 6):
        assert f"\n{stage}. " in outcome.out
    assert "byte for byte" in outcome.out
    assert "bug" not in outcome.out
    assert list(tmp_path.iterdir()) == []


def test_the_demo_keeps_what_it_made_on_request_and_makes_the_same_again(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run("demo", "--keep", tmp_path / name).code == 0
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {"stories.txt", "stories.npy", "stories.npy.json", "tokenizer"}
    for name in ("stories.txt", "stories.npy", "stories.npy.json", "tokenizer/vocabulary.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_stories_depend_on_the_seed_alone() -> None:
    assert list(write_stories(5, seed=1)) == list(write_stories(5, seed=1))
    assert list(write_stories(5, seed=1)) != list(write_stories(5, seed=2))
    assert list(write_stories(9))[:4] == list(write_stories(4))


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
