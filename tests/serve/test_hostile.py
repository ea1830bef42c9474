"""A real server with hostile clients, other sites, keys and broken weights."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bytewright.errors import UsageError
from bytewright.serve.app import make_app
from bytewright.serve.guard import GuardOptions
from bytewright.serve.service import EngineOptions, Service
from hostile_clients import attack
from rejection import rejects
from servers import GOOD, HANG_SECONDS, LIMITS, LONG, QUICK, RunningServer, running_server, write_run

POISONED = 66
"""The id of "B", whose embedding is not finite."""


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    return write_run(tmp_path_factory.mktemp("serve") / "tiny", tokenizer, poisoned_id=POISONED)


@pytest.fixture(scope="module")
def server(run_path: Path) -> Iterator[RunningServer]:
    with running_server(run_path, *LIMITS, *QUICK) as server:
        yield server
        server.stop()
        assert "Traceback" not in server.log


def wait_until_idle(server: RunningServer) -> None:
    """Wait until no slot is in use; a leak would be a hang."""
    deadline = time.monotonic() + HANG_SECONDS
    while server.metric("slots_in_use") or server.metric("waiting_texts"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_client_that_does_not_read_is_disconnected(server: RunningServer) -> None:
    body = json.dumps({**LONG, "n": 6, "logprobs": 20, "stream": True}).encode()
    before = server.metric("disconnects_total")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(server.raw_head("/v1/completions", len(body)) + body)
        deadline = time.monotonic() + HANG_SECONDS
        while server.metric("disconnects_total") == before:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    wait_until_idle(server)


def test_a_poisoned_request_fails_alone(server: RunningServer) -> None:
    expected = server.complete(**GOOD)["choices"]
    with ThreadPoolExecutor(4) as pool:
        good = [pool.submit(server.complete, **GOOD) for _ in range(3)]
        poisoned = pool.submit(server.post, "/v1/completions", {"prompt": [POISONED] * 3, "max_tokens": 5})
        assert poisoned.result().status_code == 500
        assert poisoned.result().json()["error"]["type"] == "server_error"
        assert [it.result()["choices"] for it in good] == [expected] * 3
    for _ in range(3):  # in the slot of the poisoned request, too
        assert server.complete(**GOOD)["choices"] == expected


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "app://{own}"},
        {"Origin": "{own}"},
    ],
)
def test_requests_of_other_sites_are_rejected(server: RunningServer, headers: dict[str, str]) -> None:
    headers = {name: value.format(own=f"127.0.0.1:{server.port}") for name, value in headers.items()}
    response = server.post("/v1/completions", GOOD, headers=headers)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_names_of_this_machine_and_its_own_pages_are_accepted(server: RunningServer, host: str) -> None:
    headers = {"Host": f"{host}:{server.port}", "Origin": f"http://{host}:{server.port}"}
    assert server.get("/health", headers=headers).status_code == 200


def check_after_attack(server: RunningServer, num_requests: int) -> None:
    """Attack the server; it must answer as before, free its slots, log nothing, and not grow."""
    log = server.log
    expected = server.complete(**GOOD)["choices"]
    attack(server.port, num_requests // 4, seed=100)  # memory that is used once and then kept
    wait_until_idle(server)
    before = server.resident_bytes()
    attack(server.port, num_requests - num_requests // 4)
    wait_until_idle(server)
    assert server.complete(**GOOD)["choices"] == expected
    assert server.resident_bytes() < 1.05 * before
    assert server.log == log


def test_the_server_survives_hostile_clients(server: RunningServer) -> None:
    check_after_attack(server, 240)


@pytest.mark.slow
def test_the_server_survives_10000_hostile_requests(server: RunningServer) -> None:
    check_after_attack(server, 10_000)


def request_app(app: Any, method: str, path: str, **options: Any) -> httpx2.Response:
    """Send a request to an app in this process."""

    async def request() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **options)

    return asyncio.run(request())


@pytest.mark.parametrize("key", ["secret", "schlüssel"])
def test_an_api_key_protects_all_paths_but_health(key: str) -> None:
    """A request with the key is accepted, so it is answered with 503: no model is loaded."""
    app = make_app(Service(EngineOptions()), GuardOptions(api_key=key))
    assert request_app(app, "GET", "/health").json() == {"status": "loading"}
    assert request_app(app, "GET", "/v1/models").status_code == 401
    right = key.encode()
    for given, status in ((b"wrong", 401), (right + b"2", 401), (b"\xe9", 401), (right, 503)):
        assert request_app(app, "GET", "/v1/models", headers={b"authorization": given}).status_code == 401
        headers = {b"authorization": b"bearer " + given}  # schemes of any case are equal
        assert request_app(app, "GET", "/v1/models", headers=headers).status_code == status
        headers = {b"authorization": b"Bearer " + given}
        for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions")):
            assert request_app(app, method, path, headers=headers, json=GOOD).status_code == status


def test_other_machines_are_only_served_with_a_key() -> None:
    with rejects(UsageError, key="api_key"):
        GuardOptions(host="0.0.0.0")
    options = GuardOptions(host="0.0.0.0", api_key="secret")
    assert options.accepts_host("example.org:8000")
    named = GuardOptions(host="0.0.0.0", api_key="secret", allowed_hosts=("example.org",))
    assert named.accepts_host("Example.org:8000")
    assert not named.accepts_host("other.org")


def test_a_loopback_address_accepts_only_its_own_and_allowed_names() -> None:
    options = GuardOptions(host="127.0.0.2", allowed_hosts=("example.org",))
    for name in ("localhost", "127.0.0.1", "[::1]", "127.0.0.2", "example.org"):
        assert options.accepts_host(f"{name}:8000")
    assert not options.accepts_host("other.org:8000")
    assert not GuardOptions().accepts_host("example.org:8000")


def test_requests_are_answered_with_503_while_the_model_is_loaded() -> None:
    app = make_app(Service(EngineOptions()), GuardOptions())
    for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/health")):
        response = request_app(app, method, path, json=GOOD)
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
