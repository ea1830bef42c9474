"""After a power failure at any operation, the disk has exactly the old or exactly the new state.

The tests simulate the disk as `storage.atomic` documents it: contents that were not synced are undefined, and
any subset of the name changes in a folder that were not synced may be lost. After each recorded operation the
tests check *every* state that this model allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import scenarios
from scenarios import SCENARIOS, Scenario

from bytewright.storage import filesystem
from bytewright.storage.manifest import MANIFEST

pytestmark = pytest.mark.fault


@dataclass(eq=False)
class File:
    content: bytes | None = None
    """The contents known to be on disk; None from each write, or the creation, to the next sync."""


@dataclass(eq=False)
class Directory:
    synced: dict[str, File | Directory] = field(default_factory=dict)
    pending: list[Callable[[dict[str, File | Directory]], None]] = field(default_factory=list)
    partly_removed: bool = False

    def change(self, change: Callable[[dict[str, File | Directory]], None]) -> None:
        self.pending.append(change)

    def now(self) -> dict[str, File | Directory]:
        return self.after(self.pending)

    def after(
        self, changes: list[Callable[[dict[str, File | Directory]], None]]
    ) -> dict[str, File | Directory]:
        names = dict(self.synced)
        for change in changes:
            change(names)
        return names

    def possible(self) -> Iterator[dict[str, File | Directory]]:
        """Yield every set of names that a power failure may leave."""
        for kept in itertools.product([True, False], repeat=len(self.pending)):
            yield self.after(list(itertools.compress(self.pending, kept)))


class ModelDisk:
    """Simulate the disk during one scenario; compute the states of its target after a power failure."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = self._load(root)
        self.num_operations = 0
        self.checks: list[Callable[[], None]] = []

    def _load(self, path: Path) -> Directory:
        names = {
            child.name: self._load(child) if child.is_dir() else File(child.read_bytes())
            for child in path.iterdir()
        }
        return Directory(synced=dict(names))

    def _directory(self, path: Path) -> Directory:
        node = self.top
        for part in path.relative_to(self.root).parts:
            child = node.now()[part]
            assert isinstance(child, Directory)
            node = child
        return node

    def follow(self, operation: str, *paths: Path) -> None:
        """Apply an operation from `filesystem.before_operation`, before it happens on the real disk."""
        for check in self.checks:
            check()
        self.num_operations += 1
        path = paths[0]
        if not path.is_relative_to(self.root):
            return  # a folder above the scenario's root
        if path == self.root:
            assert operation == "sync"
            self._sync(self.top)
            return
        parent, name = self._directory(path.parent), path.name
        node = parent.now().get(name)
        if operation in ("create", "mkdir"):
            made = File() if operation == "create" else Directory()
            parent.change(lambda names: names.update({name: made}))
        elif operation == "write":
            assert isinstance(node, File)
            node.content = None
        elif operation == "sync" and isinstance(node, File):
            node.content = path.read_bytes()
        elif operation == "sync" and isinstance(node, Directory):
            self._sync(node)
        elif operation == "rename" and node is not None:
            assert paths[1].parent == path.parent
            parent.change(lambda names: (names.pop(name, None), names.update({paths[1].name: node}))[1])
        elif operation == "exchange" and node is not None:
            assert paths[1].parent == path.parent
            other = parent.now()[paths[1].name]
            parent.change(lambda names: names.update({name: other, paths[1].name: node}))
        elif operation == "remove":
            if isinstance(node, Directory):
                node.partly_removed = True
            parent.change(lambda names: (names.pop(name, None), None)[1])
        else:
            raise AssertionError(f"unknown operation {operation!r} on {path}")

    @staticmethod
    def _sync(directory: Directory) -> None:
        directory.synced, directory.pending = directory.now(), []

    def possible_states(self, target: str) -> Iterator[scenarios.State | str]:
        """Yield what a reader may find after a power failure now; a string describes a broken state."""
        *folders, name = target.split("/")
        yield from self._states_below(self.top, folders, name)

    def _states_below(
        self, directory: Directory, folders: list[str], name: str
    ) -> Iterator[scenarios.State | str]:
        for names in directory.possible():
            if folders:
                child = names.get(folders[0])
                if isinstance(child, Directory):
                    yield from self._states_below(child, folders[1:], name)
                else:
                    yield None
                continue
            node = names.get(name) or names.get(f".{name}.bytewright-old")
            if node is None:
                yield None
            elif isinstance(node, File):
                yield "a file with contents never synced" if node.content is None else node.content
            else:
                yield from self._folder_states(node)

    @staticmethod
    def _folder_states(folder: Directory) -> Iterator[scenarios.State | str]:
        if folder.partly_removed:
            yield "a folder whose files are being removed"
            return
        for names in folder.possible():
            contents = {name: node.content for name, node in names.items() if isinstance(node, File)}
            if None in contents.values():
                yield "a folder with a file whose contents were never synced"
            elif contents and MANIFEST not in contents:
                yield "a folder without its manifest"
            else:
                yield {name: data for name, data in contents.items() if name != MANIFEST and data is not None}


def run_checked(
    scenario: Scenario, root: Path, monkeypatch: pytest.MonkeyPatch
) -> list[scenarios.State | str]:
    """Run a scenario and check the model after each operation; return the possible final states."""
    root.mkdir()
    scenario.prepare(root)
    model = ModelDisk(root)

    def check() -> None:
        for state in model.possible_states(scenario.target):
            assert state in (scenario.old, scenario.new), f"after operation {model.num_operations}: {state!r}"

    model.checks.append(check)
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "before_operation", model.follow)
        if not scenario.can_exchange:
            patch.setattr(filesystem.Directory, "exchange", scenarios.cannot_exchange)
        scenario.act(root)
    check()
    assert model.num_operations >= 3
    return list(model.possible_states(scenario.target))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_power_failure_at_any_operation_leaves_old_or_new_and_at_the_end_new(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final_states = run_checked(scenario, tmp_path / "checked", monkeypatch)
    assert final_states
    assert all(state == scenario.new for state in final_states), "the call has returned: nothing may be lost"


@pytest.mark.parametrize("name", ["file-replaced", "folder-created", "folder-replaced"])
def test_the_model_finds_contents_that_are_not_synced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    monkeypatch.setattr(filesystem.NewFile, "sync", lambda file: None)
    with pytest.raises(AssertionError, match="never synced"):
        run_checked(scenario, tmp_path / "checked", monkeypatch)


@pytest.mark.parametrize("name", ["folder-replaced", "folder-replaced-without-exchange", "folder-removed"])
def test_the_model_finds_names_that_are_not_synced_before_old_files_are_removed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    monkeypatch.setattr(filesystem.Directory, "sync", lambda path: None)
    with pytest.raises(AssertionError, match="after operation"):
        run_checked(scenario, tmp_path / "checked", monkeypatch)
