"""Real server processes on loopback, and small runs for them to serve."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import torch

from bytewright.model import ModelConfig, TransformerLM
from bytewright.tokenizer import Tokenizer
from bytewright.train.run_model import write_imported_model

HANG_SECONDS = 300

LIMITS = ("--slots", "2", "--max-waiting", "6", "--max-body-kb", "64")
QUICK = ("--read-seconds", "3", "--write-seconds", "1")
"""Options of a server with a small queue, and with short timeouts."""
GOOD = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "logprobs": 2}
LONG = {"prompt": "Once upon a time", "max_tokens": 80, "temperature": 0}
"""Requests; at temperature 0 the model of `write_run` does not choose the poisoned token within 80 tokens."""


def write_run(folder: Path, tokenizer: Path, *, poisoned_id: int | None = None) -> Path:
    """Write a run with a small untrained model; with `poisoned_id`, that token's embedding is not finite."""
    vocabulary = Tokenizer.load(tokenizer).vocabulary
    with torch.random.fork_rng():
        torch.manual_seed(5)
        config = ModelConfig(
            vocab_size=vocabulary.size, context_length=160, d_model=32, num_layers=2, num_heads=4
        )
        model = TransformerLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(2)
            if poisoned_id is not None:
                model.token_embeddings.weight[poisoned_id] = torch.nan
    write_imported_model(folder, model, vocabulary)
    return folder


class RunningServer:
    """A process of `bytewright serve`, or of another command that serves a folder."""

    def __init__(self, run: Path, *options: str, command: str = "serve") -> None:
        command_line = [sys.executable, "-m", "bytewright", command, str(run), "--port", "0", *options]
        # One thread: on a loaded machine, threads of so small a model mostly wait for each other.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command_line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        address = self._find_address()
        self.url = f"http://127.0.0.1:{address}"
        self.port = address

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def _find_address(self) -> int:
        for _ in range(HANG_SECONDS * 50):
            for line in self.lines:
                if found := re.search(r"listening on http://\S+:(\d+)", line):
                    return int(found[1])
            assert self.process.poll() is None, self.log
            time.sleep(0.02)
        raise AssertionError(self.log)

    @property
    def log(self) -> str:
        """Everything that the server has printed."""
        return "".join(self.lines)

    def wait_until_ready(self) -> None:
        """Wait until the model is loaded."""
        for _ in range(HANG_SECONDS * 50):
            if self.get("/health").status_code == 200:
                return
            time.sleep(0.02)
        raise AssertionError(self.log)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        """Send a GET request."""
        return httpx2.get(self.url + path, timeout=HANG_SECONDS, verify=False, **options)

    def post(self, path: str, json: object, **options: Any) -> httpx2.Response:
        """Send a POST request with a JSON body."""
        return httpx2.post(self.url + path, json=json, timeout=HANG_SECONDS, verify=False, **options)

    def raw_head(self, path: str, length: int) -> bytes:
        """Return the request line and the headers of a POST request."""
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        return f"{head}Content-Length: {length}\r\n\r\n".encode()

    def complete(self, **options: Any) -> dict[str, Any]:
        """Return the response to a request for completions, which must succeed."""
        response = self.post("/v1/completions", options)
        assert response.status_code == 200, response.text
        content: dict[str, Any] = response.json()
        return content

    def metric(self, name: str) -> float:
        """Return a figure of /metrics."""
        found = re.search(rf"^bytewright_{name} (\S+)$", self.get("/metrics").text, re.MULTILINE)
        assert found, name
        return float(found[1])

    def resident_bytes(self) -> int:
        """Return the resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found
        return 1024 * int(found[1])

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(signal_number)
        code = self.process.wait(HANG_SECONDS)
        self._reader.join(HANG_SECONDS)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@contextlib.contextmanager
def running_server(run: Path, *options: str) -> Iterator[RunningServer]:
    """Start a server, wait until it is ready, and stop it at the end."""
    server = RunningServer(run, *options)
    try:
        server.wait_until_ready()
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
