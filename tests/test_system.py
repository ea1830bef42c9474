"""The memory that a container allows, and functions that run on threads while there is memory for threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bytewright.account.devices import measure_device
from bytewright.system import Background, total_memory, usable_memory
from conftest import Run


@pytest.mark.parametrize(
    ("words", "expected"),
    [("1000000\n", 1_000_000), ("max\n", None), ("9223372036854771712\n", None), ("", None)],
)
def test_the_limit_of_a_container_counts_where_it_is_lower(
    tmp_path: Path, words: str, expected: int | None
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(words)
    assert usable_memory([tmp_path / "missing", limit]) == (expected or total_memory())


def test_the_accountant_and_the_doctor_know_the_limit(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr("bytewright.account.devices.usable_memory", lambda: 123_000_000)
    monkeypatch.setattr("bytewright.account.devices.measure_matmul", lambda *_, **__: 1e9)
    monkeypatch.setattr("bytewright.account.devices._measure_copy", lambda _: 1e9)
    assert measure_device("cpu").memory_bytes == 123_000_000
    monkeypatch.setattr("bytewright.cli.doctor.usable_memory", lambda: 123_000_000)
    assert "limited to 0.1 GB here" in run("doctor").out


def test_functions_run_on_other_threads_and_futures_raise_their_exceptions() -> None:
    both_run = threading.Barrier(2, timeout=60)  # two functions that wait for each other need two threads
    with Background(2) as background:
        futures = [background.submit(both_run.wait) for _ in range(2)]
        assert sorted(future.result() for future in futures) == [0, 1]
        with pytest.raises(ZeroDivisionError):
            background.submit(divmod, 1, 0).result()
        assert background.submit(threading.current_thread).result() is not threading.current_thread()


def test_functions_run_in_submit_if_there_is_no_memory_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bytewright.system.ROOM_FOR_THREAD", 2**60)
    with Background(2) as background:
        assert background.submit(threading.current_thread).result() is threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            background.submit(divmod, 1, 0).result()


def test_functions_that_have_not_started_are_dropped_at_exit() -> None:
    done: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go.wait(60)
        done.append(1)

    with Background(1) as background:
        background.submit(wait)
        background.submit(done.append, 2)
        begun.wait(60)
        threading.Timer(0.05, go.set).start()
    assert done == [1]
