"""`doctor` reports the machine, missing parts and an outdated native extension."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from bytewright.cli.doctor import OPTIONAL_PACKAGES, find_newer_source
from conftest import RunCommand


def test_doctor_reports_the_machine_and_the_packages(run: RunCommand) -> None:
    outcome = run("doctor", "--json")
    report = json.loads(outcome.out)
    found = {finding["name"]: finding["found"] for finding in report["findings"]}
    assert {"cores", "memory", "python", "torch", "gpu", "native extension"} <= set(found)
    assert found["torch"] == importlib.metadata.version("torch")
    assert report["healthy"] is (outcome.code == 0)


def test_doctor_prints_a_remedy_for_a_missing_extension(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = importlib.import_module

    def without_native(name: str, package: str | None = None) -> ModuleType:
        if name == "bytewright._native":
            raise ImportError("not built")
        return real_import(name, package)

    monkeypatch.setattr(importlib, "import_module", without_native)
    outcome = run("doctor")
    assert outcome.code == 1
    assert "native extension: run make setup" in outcome.out
    report = json.loads(run("doctor", "--json").out)
    assert report["healthy"] is False


def test_a_missing_optional_package_is_listed_but_is_no_problem(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_version = importlib.metadata.version

    def without_starlette(name: str) -> str:
        if name == "starlette":
            raise importlib.metadata.PackageNotFoundError
        return real_version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_starlette)
    report = json.loads(run("doctor", "--json").out)
    (extra,) = (finding for finding in report["findings"] if finding["name"] == "serve (optional)")
    assert extra["found"] == "missing: starlette; only serve and studio need it"
    assert extra["remedy"] is None


def test_the_optional_packages_are_those_of_the_extras() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    listed = {package for packages, _ in OPTIONAL_PACKAGES.values() for package in packages}
    of_users = {package for name in set(extras) - {"test", "bench"} for package in extras[name]}
    assert listed == of_users - {"llama-cpp-python"}  # only tests need it


def test_an_extension_older_than_the_rust_sources_of_a_checkout_is_reported(tmp_path: Path) -> None:
    source, extension = tmp_path / "crates" / "bpe" / "src" / "lib.rs", tmp_path / "_native.so"
    source.parent.mkdir(parents=True)
    for path, seconds in ((source, 1000), (extension, 2000)):
        path.touch()
        os.utime(path, (seconds, seconds))
    assert find_newer_source(extension, tmp_path / "crates") is None
    os.utime(source, (3000, 3000))
    assert find_newer_source(extension, tmp_path / "crates") == Path("crates/bpe/src/lib.rs")
    assert find_newer_source(extension, tmp_path / "installed") is None
