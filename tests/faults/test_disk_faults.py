"""After a failure or a kill at any disk operation, the disk has exactly the old or exactly the new state."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import scenarios
from scenarios import SCENARIOS, Scenario

from bytewright.errors import StorageError
from bytewright.storage import filesystem
from conftest import HANG_SECONDS

pytestmark = pytest.mark.fault

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def fail_from(first: int, last: int) -> Callable[..., None]:
    """Raise "no space left" before operations `first` to `last`."""
    seen = 0

    def hook(operation: str, *paths: Path) -> None:
        nonlocal seen
        seen += 1
        if first <= seen <= last:
            raise OSError(errno.ENOSPC, f"injected at {operation}")

    return hook


def count_operations(scenario: Scenario, root: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    operations: list[str] = []
    root.mkdir()
    scenario.prepare(root)
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "before_operation", lambda operation, *paths: operations.append(operation))
        scenario.act(root)
    assert scenario.read_state(root) == scenario.new
    return len(operations)


def error_of(scenario: Scenario, root: Path) -> StorageError | None:
    try:
        scenario.act(root)
    except StorageError as error:
        return error
    return None


def leftovers(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*") if path.name.startswith(".")]


@pytest.fixture(autouse=True)
def _exchange_or_not(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.callspec.params["scenario"].can_exchange:
        monkeypatch.setattr(filesystem.Directory, "exchange", scenarios.cannot_exchange)


@every_scenario
@pytest.mark.parametrize("disk_stays_full", [False, True], ids=["once", "from-then-on"])
def test_a_full_disk_at_any_operation_leaves_old_or_new(
    scenario: Scenario, disk_stays_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_operations = count_operations(scenario, tmp_path / "count", monkeypatch)
    assert num_operations >= 3
    seen_states = []
    for k in range(1, num_operations + 1):
        root = tmp_path / str(k)
        root.mkdir()
        scenario.prepare(root)
        with monkeypatch.context() as patch:
            patch.setattr(filesystem, "before_operation", fail_from(k, sys.maxsize if disk_stays_full else k))
            error = error_of(scenario, root)
        state = scenario.read_state(root)
        assert state in (scenario.old, scenario.new), f"operation {k}"
        if error is None:
            assert state == scenario.new, f"operation {k} failed without an error"
        else:
            assert error.errno == errno.ENOSPC
            assert "no space left on the disk" in str(error)
        seen_states.append(state)
        if state == scenario.old and not disk_stays_full:
            assert leftovers(root) == [], f"operation {k}"
            assert [path.name for path in root.iterdir()] == ([] if scenario.old is None else ["target"])
        if scenario.new is not None:
            scenario.act(root)
            assert scenario.read_state(root) == scenario.new, f"operation {k}: the second attempt failed"
            assert leftovers(root) == [], f"operation {k}: the second attempt must remove temporary files"
    assert scenario.old in seen_states


@every_scenario
def test_a_kill_at_any_operation_leaves_old_or_new_and_the_next_write_removes_leftovers(
    scenario: Scenario, tmp_path: Path
) -> None:
    subprocess.run(
        [sys.executable, scenarios.__file__, scenario.name, str(tmp_path / "killed")],
        check=True,
        timeout=HANG_SECONDS,
    )
    roots = sorted((tmp_path / "killed").iterdir(), key=lambda root: int(root.name))
    states = [scenario.read_state(root) for root in roots]
    num_old = states.count(scenario.old)
    assert 0 < num_old < len(states)
    assert states == [scenario.old] * num_old + [scenario.new] * (len(states) - num_old)
    assert any(leftovers(root) for root in roots), "no kill left a temporary file, so all came too late"
    for root in roots:
        if scenario.new is not None:
            scenario.act(root)
            assert scenario.read_state(root) == scenario.new
            assert leftovers(root) == []
