"""The process of `bytewright studio`: its start, wrong commands, and its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from conftest import RunCommand
from servers import HANG_SECONDS, RunningServer
from studios import write_run


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_studio_and_its_open_streams(tmp_path: Path, number: int, code: int) -> None:
    write_run(tmp_path / "run")
    server = RunningServer(tmp_path, command="studio")
    with httpx2.stream(
        "GET", f"{server.url}/api/runs/events", timeout=HANG_SECONDS, verify=False
    ) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: runs"
        assert server.stop(number) == code
        assert "Traceback" not in server.log


def test_a_port_in_use_is_one_sentence(tmp_path: Path, run: RunCommand) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = run("studio", tmp_path, "--port", str(port))
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert str(port) in outcome.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_need_a_key(
    tmp_path: Path, run: RunCommand, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BYTEWRIGHT_API_KEY", raising=False)
    outcome = run("studio", tmp_path, "--host", host)
    assert outcome.code == 2
    assert "API key" in outcome.err


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_folder_that_is_not_one_is_rejected(tmp_path: Path, run: RunCommand, name: str) -> None:
    (tmp_path / "file").touch()
    outcome = run("studio", tmp_path / name)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1


def test_a_missing_extra_is_one_sentence(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['starlette'] = None; from bytewright.cli.main import main; sys.exit(main())"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, "studio", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env=environment,
    )
    assert done.returncode == 2
    assert "pip install '.[serve]'" in done.stderr
    assert done.stderr.count("\n") == 1
