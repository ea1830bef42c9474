"""What may be used of the memory is what the container allows, where that is less than the machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from bytewright.account.devices import measure_device
from bytewright.system import total_memory, usable_memory
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
