"""The fuzz targets of `fuzz/readers` work: they accept valid files and their seeds find no error."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

READERS = Path(__file__).parents[2] / "fuzz" / "readers"


@pytest.mark.parametrize("module", ["targets", "model_targets"])
def test_no_seed_of_a_fuzz_target_is_a_finding(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(READERS))
    loaded = importlib.import_module(module)
    targets = loaded.make_targets(tmp_path)
    assert list(targets) == loaded.NAMES
    for target in targets.values():
        for seed in importlib.import_module("targets").seeds()[::6]:
            target(seed)
