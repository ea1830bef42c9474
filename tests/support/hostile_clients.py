"""Clients that do everything wrong: fuzzed requests, slow ones, and disconnects at random moments."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

SECONDS = 60

VALUES: list[object] = [
    *(None, True, -1, 0, 1, 2**31, 2**64, -(2**63), 1e308, 0.5),
    *("", "a", "\ud800", "\x00", "é" * 300),
    *([], {}, [[]], [{}], [None], [1, 2], [1.5], ["a", 1], {"a": {"b": []}}, [0] * 300),
]
PATH = "/v1/completions"
KEYS = (
    *("prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "echo"),
    *("logprobs", "stream", "stream_options", "model", "user", "best_of", "unknown", ""),
)


class HostileClient:
    """Sends one kind of bad request after another, chosen at random."""

    def __init__(self, port: int, seed: int) -> None:
        self.port, self.random = port, random.Random(seed)

    def attack(self) -> None:
        """Send one bad request; what the server answers does not matter."""
        kinds: list[Callable[[socket.socket], None]] = [
            self.send_fuzzed_json,
            self.send_fuzzed_json,
            self.send_bytes,
            self.send_bad_headers,
            self.send_large_body,
            self.leave_early,
            self.leave_early,
        ]
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), SECONDS) as it:
            it.settimeout(SECONDS)
            self.random.choice(kinds)(it)

    def request(
        self, body: bytes, *headers: str, length: int | None = None, path: str = "/v1/completions"
    ) -> bytes:
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            f"Content-Length: {len(body) if length is None else length}",
            "Connection: close",
            *headers,
        ]
        return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body

    def fuzzed_object(self) -> dict[str, object]:
        request: dict[str, object] = {"prompt": "Once", "max_tokens": self.random.randint(0, 4)}
        for _ in range(self.random.randint(0, 4)):
            request[self.random.choice(KEYS)] = self.random.choice(VALUES)
        if isinstance(number := request.get("n"), int) and number > 4:
            request["n"] = 4
        return request

    def send_fuzzed_json(self, connection: socket.socket) -> None:
        body = json.dumps(self.fuzzed_object()).encode()
        if self.random.random() < 0.4:
            damaged = bytearray(body)
            for _ in range(self.random.randint(1, 5)):
                damaged[self.random.randrange(len(damaged))] = self.random.randrange(256)
            body = bytes(damaged)
        path = self.random.choice(["/v1/completions", "/v1/completions", "/tokenize", "/detokenize"])
        connection.sendall(self.request(body, path=path))
        read_all(connection)

    def send_bytes(self, connection: socket.socket) -> None:
        connection.sendall(self.random.randbytes(self.random.randint(1, 3000)))
        connection.shutdown(socket.SHUT_WR)
        read_all(connection)

    def send_bad_headers(self, connection: socket.socket) -> None:
        header = self.random.choice(
            [
                "Host: evil.example",
                "Origin: http://evil.example",
                "X: " + "a" * self.random.choice([10, 70_000]),
                "Content-Length: -1",
                "Content-Length: 99999999999999999999",
                "Transfer-Encoding: chunked",
                "Authorization: Bearer " + "é" * 50,
                "Expect: 100-continue",
                ": empty",
                "Upgrade: websocket",
                "Connection: upgrade",
            ]
        )
        connection.sendall(self.request(b"{}", header))
        connection.shutdown(socket.SHUT_WR)
        read_all(connection)

    def send_large_body(self, connection: socket.socket) -> None:
        length = self.random.choice([100_000, 10**9])
        connection.sendall(self.request(b'{"prompt": "' + b"a" * 90_000, length=length))
        connection.shutdown(socket.SHUT_WR)
        read_all(connection)

    def leave_early(self, connection: socket.socket) -> None:
        """Disconnect at a random moment of a request that would take long."""
        body = json.dumps(
            {
                "prompt": "Once upon a time",
                "max_tokens": 120,
                "n": self.random.randint(1, 3),
                "stream": self.random.random() < 0.7,
            }
        ).encode()
        request = self.request(body)
        if self.random.random() < 0.3:
            connection.sendall(request[: self.random.randrange(len(request))])
            return
        connection.sendall(request)
        connection.settimeout(self.random.choice([0.001, 0.01, 0.1, 0.5]))
        with contextlib.suppress(TimeoutError):
            connection.recv(self.random.choice([1, 200, 2000]))
        if self.random.random() < 0.5:  # a reset instead of an orderly end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


def read_all(connection: socket.socket) -> bytes:
    """Return everything that the server sends before it closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def attack(port: int, num_requests: int, *, num_clients: int = 8, seed: int = 0) -> None:
    """Send bad requests from several clients at the same time."""

    def run(number: int) -> None:
        client = HostileClient(port, seed + number)
        for _ in range(num_requests // num_clients):
            client.attack()

    with ThreadPoolExecutor(num_clients) as pool:
        list(pool.map(run, range(num_clients)))
