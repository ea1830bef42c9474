"""Errors of a cluster are one sentence with the remedy; the number of pending tasks is bounded."""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import sys
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import bytewright
from bytewright import executors
from bytewright.errors import ClusterError, FormatError, UsageError
from bytewright.executors import map_in_order, map_unordered, open_cluster
from conftest import RunCommand
from dask_processes import start_cluster


def unused_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("address", ["", "local", "local:0", "local:x", "head:8786", "tcp://", "local:-1"])
def test_a_wrong_address_is_rejected(address: str) -> None:
    with pytest.raises(UsageError) as raised, open_cluster(address):
        pass
    assert (raised.value.key, raised.value.found) == ("cluster", address)


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[cluster\]'"), open_cluster("local:2"):
        pass


def test_an_unreachable_scheduler_is_one_sentence(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 1)
    address = unused_address()
    with pytest.raises(ClusterError) as raised, open_cluster(address):
        pass
    assert raised.value.found == address
    outcome = run("corpus", "storybook", "--size", "1MB", "--out", tmp_path / "s.txt", "--cluster", address)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert not list(tmp_path.iterdir())


def test_a_scheduler_without_workers_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    with start_cluster(tmp_path, 0) as cluster:
        monkeypatch.setattr(executors, "WORKER_SECONDS", 2)
        with pytest.raises(ClusterError, match="dask worker"), open_cluster(cluster.address):
            pass


def test_workers_without_the_package_or_of_another_version_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata of the package decides; a worker of another environment has other metadata."""
    pytest.importorskip("distributed")
    other = tmp_path / "other" / "bytewright-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: bytewright\nVersion: 9.9.9\n")
    path = os.pathsep.join([str(other.parent), os.environ.get("PYTHONPATH", "")])
    with (
        start_cluster(tmp_path, 1, environment={"PYTHONPATH": path}) as cluster,
        pytest.raises(ClusterError) as raised,
        open_cluster(cluster.address),
    ):
        pass
    assert (raised.value.key, raised.value.found) == ("version", "9.9.9")


def test_a_worker_that_joins_later_is_checked_by_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    assert executors._run(bytewright.__version__, len, "abc") == 3
    with pytest.raises(ClusterError) as raised:
        executors._run("0.0.1", len, "abc")
    assert (raised.value.expected, raised.value.found) == ("0.0.1", bytewright.__version__)


class Failing(Executor):
    """An executor whose tasks fail with a given exception."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if isinstance(self.error, CancelledError):
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(self.error)
        return future


class KilledWorker(Exception):  # noqa: N818
    """Named like the exception of Dask for a task that ended several workers."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CancelledError(), ClusterError),
        (KilledWorker("task"), ClusterError),
        (ModuleNotFoundError("No module named 'bytewright'", name="bytewright"), ClusterError),
        (FormatError("damaged"), FormatError),
        (ZeroDivisionError("a bug"), ZeroDivisionError),
    ],
)
def test_errors_of_tasks_are_explained_unless_they_are_bugs(
    error: BaseException, kind: type[Exception]
) -> None:
    for function in (map_unordered, map_in_order):
        with pytest.raises(kind):
            list(function(Failing(error), len, ["a"], num_workers=1))


def test_an_error_of_the_cluster_keeps_its_fields_when_it_is_sent() -> None:
    error = ClusterError("no", path="a", key="cluster", expected=1, found=2)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.path, copy.key, copy.expected, copy.found) == ("no", Path("a"), "cluster", 1, 2)


def test_the_number_of_pending_tasks_is_bounded_and_the_rest_is_cancelled() -> None:
    taken = itertools.count()

    with ThreadPoolExecutor(2) as executor:
        for function in (map_unordered, map_in_order):
            start = next(taken)
            with closing(function(executor, _identity, taken, num_workers=3)) as results:
                next(results)
            assert next(taken) - start <= 1 + 3 * executors.TASKS_PER_WORKER


def _identity(number: int) -> int:
    return number
