"""A run records its machine, its versions and its commit."""

from importlib import metadata
from pathlib import Path

import pytest

import bytewright
from bytewright.train.run_files import describe_environment, find_commit


def test_the_commit_in_the_environment_variable_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEWRIGHT_COMMIT", "abc123")
    assert describe_environment()["commit"] == "abc123"


def test_the_processor_is_recorded_by_its_name() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists() or "model name" not in cpuinfo.read_text():
        pytest.skip("nobody tells it here")
    assert f": {describe_environment()['processor']}\n" in cpuinfo.read_text()


def test_a_source_tree_that_is_not_installed_has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.version("bytewright")

    def find_none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", find_none)
    assert bytewright.__version__ == installed
    assert describe_environment()["bytewright"] == installed


def test_the_commit_is_that_of_the_source_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BYTEWRIGHT_COMMIT", raising=False)
    commit = find_commit()
    has_history = (Path(__file__).parents[2] / ".git").exists()
    assert commit is None or len(commit.removesuffix("-dirty")) >= 7
    assert not has_history or commit is not None


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BYTEWRIGHT_COMMIT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_commit() is None
