"""A real server under overload, with slow clients, and at its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bytewright.cli.models.serve import default_threads
from bytewright.serve.app import make_app
from bytewright.serve.server import ServerOptions, _Server, configure, listening_socket
from bytewright.serve.service import Service
from hostile_clients import read_all
from servers import GOOD, HANG_SECONDS, LIMITS, LONG, QUICK, RunningServer, running_server, write_run


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    return write_run(tmp_path_factory.mktemp("serve") / "tiny", tokenizer)


@pytest.fixture(scope="module")
def server(run_path: Path) -> Iterator[RunningServer]:
    with running_server(run_path, *LIMITS, *QUICK) as server:
        yield server
        server.stop()
        assert "Traceback" not in server.log


def try_to_complete(server: RunningServer, body: dict[str, Any]) -> tuple[int, str]:
    """Return the status and the body; status 0 if the connection was refused."""
    try:
        response = server.post("/v1/completions", body)
    except httpx2.ConnectError:
        return 0, ""
    return response.status_code, response.text


def test_a_full_queue_is_answered_with_429_and_a_time(server: RunningServer) -> None:
    with ThreadPoolExecutor(20) as pool:
        responses = list(pool.map(lambda _: server.post("/v1/completions", LONG), range(20)))
    statuses = [response.status_code for response in responses]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 6
    for response in responses:
        if response.status_code == 429:
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["type"] == "rate_limit_error"
    assert len({response.json()["choices"][0]["text"] for response in responses if response.is_success}) == 1
    server.complete(**GOOD)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_large_body_is_answered_with_413(server: RunningServer, is_chunked: bool) -> None:
    body = b'{"prompt": "' + b"a" * 100_000 + b'"}'
    content = iter([body[:50_000], body[50_000:]]) if is_chunked else body
    response = httpx2.post(
        f"{server.url}/v1/completions", content=content, timeout=HANG_SECONDS, verify=False
    )
    assert response.status_code == 413


def test_a_slow_body_is_answered_with_408(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), HANG_SECONDS) as connection:
        connection.sendall(server.raw_head("/tokenize", 100) + b"{")
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_a_slow_body_of_an_answered_request_ends_the_connection(server: RunningServer) -> None:
    """No route reads this body. Each byte of it must not extend the time."""
    deadline = time.monotonic() + HANG_SECONDS
    with socket.create_connection(("127.0.0.1", server.port), HANG_SECONDS) as connection:
        connection.sendall(server.raw_head("/missing", 10**6))
        assert connection.recv(2**16).startswith(b"HTTP/1.1 404 ")
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                connection.sendall(b"x")
                time.sleep(0.1)
    assert time.monotonic() < deadline


def test_slow_headers_end_the_connection(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), HANG_SECONDS) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: ")
        with contextlib.suppress(ConnectionResetError):
            assert read_all(connection) == b""


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_request_that_has_arrived_when_the_server_ends_is_answered(is_accepted: bool) -> None:
    """The event loop has not read the request, or not accepted its connection, when `shutdown` begins."""

    async def answer() -> bytes:
        options = ServerOptions(port=0)
        service = Service(options.engine)
        config = configure(make_app(service, options.guard), options)
        with listening_socket(options) as listener:
            server = _Server(config, service, options, announce=lambda text: None)
            config.load()
            server.lifespan = config.lifespan_class(config)
            await server.startup([listener])
            port = listener.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), HANG_SECONDS) as connection:
                if is_accepted:
                    while not server.server_state.connections:
                        await asyncio.sleep(0.01)
                head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
                connection.sendall(f"{head}Content-Length: 15\r\n\r\n".encode() + b'{"prompt": "a"}')
                service.drain()
                await server.shutdown([listener])
                return read_all(connection)

    assert asyncio.run(answer()).startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize("drain_seconds", ["300", "0"])
def test_sigterm_under_load_ends_every_request_cleanly(run_path: Path, drain_seconds: str) -> None:
    with running_server(run_path, "--slots", "2", "--drain-seconds", drain_seconds) as server:
        expected = server.complete(**LONG)["choices"][0]
        with ThreadPoolExecutor(12) as pool:
            whole = [pool.submit(try_to_complete, server, LONG) for _ in range(6)]
            streams = [pool.submit(try_to_complete, server, {**LONG, "stream": True}) for _ in range(6)]
            # All requests are accepted: a connection that waits in the kernel's queue is reset at the end.
            while not any(request.done() for request in [*whole, *streams]):
                if server.metric("slots_in_use") + server.metric("waiting_texts") >= 12:
                    break
                time.sleep(0.01)
            code = server.stop()
        assert code == 143
        assert "Traceback" not in server.log
        results = [it.result() for it in whole]
        statuses = {status for status, _ in results} | {it.result()[0] for it in streams}
        assert statuses <= ({0, 200, 503} if drain_seconds == "300" else {0, 200, 503, 500})
        for status, text in results:
            if status == 200:
                assert json.loads(text)["choices"][0] == expected
            elif status:
                assert json.loads(text)["error"]["message"]
        for status, text in (it.result() for it in streams):
            if status == 200:
                last = [line for line in text.splitlines() if line][-1]
                assert last == "data: [DONE]" or "error" in json.loads(last.removeprefix("data: "))
        if drain_seconds == "300":  # everything that was accepted is complete
            assert sum(status == 200 for status, _ in results) >= 1


@pytest.mark.parametrize(
    ("number", "is_ignored"), [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGINT, True)]
)
def test_a_signal_does_not_wait_for_the_model(
    run_path: Path, tmp_path: Path, number: signal.Signals, is_ignored: bool
) -> None:
    """Loading calls `set_num_threads` first. Finalisation of Python aborts a process that computes then."""
    plugin = tmp_path / "slow.py"
    plugin.write_text(
        "import signal, time, torch\n"
        f"if {is_ignored}: signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job\n"
        "def compute_for_long(num_threads):\n"
        f"    end = time.monotonic() + {2 * HANG_SECONDS}\n"
        "    while time.monotonic() < end:\n"
        "        torch.ones(300, 300) @ torch.ones(300, 300)\n"
        "torch.set_num_threads = compute_for_long\n"
    )
    server = RunningServer(run_path, "--plugin", str(plugin))
    assert server.get("/health").json() == {"status": "loading"}
    assert server.stop(number) == 128 + number
    assert server.log.endswith("ed while the model was being loaded\n")
    assert "Traceback" not in server.log


def test_a_second_signal_ends_the_requests_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn would wait for them for some seconds, while the engine continues."""
    options = ServerOptions(drain_seconds=HANG_SECONDS)
    service = Service(options.engine)
    service.num_open = 1
    num_stops = 0

    async def stop() -> None:
        nonlocal num_stops
        num_stops += 1

    async def send_signals() -> list[bool]:
        config = configure(make_app(service, options.guard), options)
        server = _Server(config, service, options, announce=lambda text: None)
        ends = []
        for _ in range(2):
            server.handle_exit(signal.SIGTERM, None)
            ends.append(await server.on_tick(1))
        return ends

    monkeypatch.setattr(service, "stop", stop)
    assert asyncio.run(send_signals()) == [False, True]
    assert num_stops == 1


def test_a_core_is_left_to_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [default_threads(num_cores) for num_cores in (1, 2, 16)] == [1, 1, 15]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert default_threads(16) == 4


def test_small_writes_are_sent_at_once() -> None:
    async def has_no_delay() -> bool:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            found.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listening_socket(ServerOptions(port=0)) as listener:
            async with await asyncio.start_server(accept, sock=listener):
                _, client = await asyncio.open_connection(*listener.getsockname()[:2])
                option = await found
                client.close()
        return bool(option)

    assert asyncio.run(has_no_delay())
