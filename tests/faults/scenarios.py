"""Write scenarios for fault injection: each replaces an old state on disk by a new one.

Readers may only ever find the old or the new state. As a program (`python scenarios.py NAME FOLDER`), this
module runs the scenario once for each k, in a process that kills itself before disk operation k. The
resulting files are in FOLDER/k.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bytewright.errors import StorageError
from bytewright.storage import atomic, filesystem

State = bytes | dict[str, bytes] | None

OLD_FOLDER = {"a.txt": b"old a", "b.txt": b"old b"}
NEW_FOLDER = {"a.txt": b"new a", "c.bin": b"head" + bytes(4000)}


@dataclass(frozen=True)
class Scenario:
    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path], None]
    old: State
    new: State
    target: str = "target"
    can_exchange: bool = True

    def read_state(self, root: Path) -> State:
        """Return the target as a reader finds it: bytes of a file, verified files of a folder, or None."""
        target = root / self.target
        try:
            if target.is_file():
                return atomic.read_bytes(target)
            if target.is_dir() and not os.listdir(target):
                return {}
            folder = atomic.open_folder(target)
        except StorageError:
            return None
        return {name: folder.read_bytes(name) for name in folder.files}


def _no_preparation(root: Path) -> None:
    pass


def _old_file(root: Path) -> None:
    atomic.write_bytes(root / "target", b"old")


def _old_folder(root: Path) -> None:
    with atomic.write_folder(root / "target") as folder:
        for name, data in OLD_FOLDER.items():
            folder.write_bytes(name, data)


def _new_file(root: Path) -> None:
    atomic.write_bytes(root / "target", b"new")


def _new_stream(root: Path) -> None:
    with atomic.write_stream(root / "target") as stream:
        stream.write(b"????")
        stream.flush()
        stream.write(b"body")
        stream.seek(0)
        stream.write(b"head")


def _new_folder(root: Path, target: str = "target") -> None:
    with atomic.write_folder(root / target, replace=True) as folder:
        folder.write_bytes("a.txt", NEW_FOLDER["a.txt"])
        with folder.write_stream("c.bin") as stream:
            stream.write(bytes(4))
            stream.flush()
            stream.write(bytes(4000))
            stream.seek(0)
            stream.write(b"head")


SCENARIOS = [
    Scenario("file-created", _no_preparation, _new_file, None, b"new"),
    Scenario("file-replaced", _old_file, _new_file, b"old", b"new"),
    Scenario("stream-replaced", _old_file, _new_stream, b"old", b"headbody"),
    Scenario("folder-created", _no_preparation, _new_folder, None, NEW_FOLDER),
    Scenario(
        "folder-created-below-missing-folders",
        _no_preparation,
        lambda root: _new_folder(root, "x/y/target"),
        None,
        NEW_FOLDER,
        target="x/y/target",
    ),
    Scenario("empty-folder-filled", lambda root: (root / "target").mkdir(), _new_folder, {}, NEW_FOLDER),
    Scenario("folder-replaced", _old_folder, _new_folder, OLD_FOLDER, NEW_FOLDER),
    Scenario(
        "folder-replaced-without-exchange",
        _old_folder,
        _new_folder,
        OLD_FOLDER,
        NEW_FOLDER,
        can_exchange=False,
    ),
    Scenario(
        "folder-removed", _old_folder, lambda root: atomic.remove_folder(root / "target"), OLD_FOLDER, None
    ),
]


def cannot_exchange(parent: filesystem.Directory, first: str, second: str) -> bool:
    """Replace `Directory.exchange` as on a file system that cannot exchange names."""
    return False


def kill_before_operation(k: int) -> None:
    """Send SIGKILL to this process before its k-th disk operation."""
    seen = 0

    def count_and_kill(operation: str, *paths: Path) -> None:
        nonlocal seen
        seen += 1
        if seen == k:
            os.kill(os.getpid(), signal.SIGKILL)

    filesystem.before_operation = count_and_kill


def main(name: str, base: Path) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    if not scenario.can_exchange:
        filesystem.Directory.exchange = cannot_exchange  # type: ignore[method-assign, assignment]
    for k in range(1, 1000):
        root = base / str(k)
        root.mkdir(parents=True)
        scenario.prepare(root)
        child = os.fork()
        if child == 0:
            kill_before_operation(k)
            scenario.act(root)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return  # the scenario has fewer than k operations
        if not os.WIFSIGNALED(status):
            sys.exit(f"operation {k}: the child failed instead of being killed")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
