"""A stage is recognised as done only if everything it depends on, and everything it made, is the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bytewright.demo.ledger import STAGES, StageCache

INPUTS = {"seed": 1, "size": 10}


@pytest.fixture
def ledger(tmp_path: Path) -> StageCache:
    (tmp_path / "made.txt").write_text("stories")
    ledger = StageCache(tmp_path)
    ledger.do("stories", INPUTS, ["made.txt"], lambda: {"num_stories": 7})
    return ledger


def test_a_stage_that_was_done_is_found_with_its_figures(ledger: StageCache) -> None:
    found = ledger.find("stories", dict(reversed(INPUTS.items())))
    assert found is not None
    assert found.facts == {"num_stories": 7}
    assert found.seconds >= 0


def test_the_identity_depends_on_results_but_not_on_durations(tmp_path: Path, ledger: StageCache) -> None:
    first = ledger.find("stories", INPUTS)
    assert first is not None
    again = ledger.keep("stories", INPUTS, ["made.txt"], {"num_stories": 7}, 99.0)
    assert again.identity == first.identity
    assert ledger.keep("stories", INPUTS, ["made.txt"], {"num_stories": 8}, 99.0).identity != first.identity
    (tmp_path / "made.txt").write_text("other stories")
    changed = ledger.keep("stories", INPUTS, ["made.txt"], {"num_stories": 7}, 99.0)
    assert changed.identity != first.identity


def damage(path: Path) -> None:
    path.write_text("storiez")


def change_version(path: Path) -> None:
    record = json.loads((path.parent / STAGES / "stories.json").read_text())
    record["fingerprint"] = "0" * 64
    (path.parent / STAGES / "stories.json").write_text(json.dumps(record))


def break_record(path: Path) -> None:
    (path.parent / STAGES / "stories.json").write_text("[")


def make_other_record(path: Path) -> None:
    (path.parent / STAGES / "stories.json").write_text('{"fingerprint": 3}')


@pytest.mark.parametrize("change", [damage, Path.unlink, change_version, break_record, make_other_record])
def test_a_stage_whose_files_or_record_changed_is_not_done(
    tmp_path: Path, ledger: StageCache, change: Callable[[Path], Any]
) -> None:
    change(tmp_path / "made.txt")
    assert ledger.find("stories", INPUTS) is None


def test_other_inputs_or_another_stage_are_not_done(ledger: StageCache) -> None:
    assert ledger.find("stories", {**INPUTS, "seed": 2}) is None
    assert ledger.find("stories", {"seed": 1}) is None
    assert ledger.find("tokens", INPUTS) is None


def test_a_stage_that_was_interrupted_is_not_done(tmp_path: Path) -> None:
    def interrupted() -> dict[str, Any]:
        raise KeyboardInterrupt

    ledger = StageCache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        ledger.do("stories", INPUTS, [], interrupted)
    assert ledger.find("stories", INPUTS) is None
