"""Measure the server under load: ours, llama-cpp-python's server and `transformers serve`, on loopback.

    python benchmarks/serving.py runs/tiny                            # 1, 8, 32 and 128 clients, 30 s each
    python benchmarks/serving.py runs/tiny --only bytewright --clients 1 8 --seconds 5

Install locust, 'llama-cpp-python[server]' and 'transformers[serving]'; a server whose package is missing is
skipped. locust generates the load in a process of its own. Every client sends one request after another: a
prompt of `--prompt-tokens` tokens, `--new-tokens` greedy tokens, as a stream. The table shows tokens per
second, and p50 and p99 of four times: until the first token, between tokens, of the whole request (from
sending it to its last token), and of the whole request divided by its tokens. llama.cpp gets the run as GGUF
in F32, and transformers as a Llama in float32. The servers run one after the other. By default each chooses
its number of threads; `--threads` sets it for all. Use an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import describe_machine, installed_versions, source_commit, wide_console
from rich.table import Table

from bytewright.storage import atomic
from bytewright.train import Run

OURS = "bytewright"
READY_SECONDS = 300


def main() -> None:
    """Start each server in turn, send the load, print the table and write the JSON."""
    arguments = parse_arguments()
    console = wide_console()
    about = {
        "machine": describe_machine(),
        "commit": source_commit(),
        "versions": installed_versions(["torch", "uvicorn", "llama-cpp-python", "transformers", "locust"]),
        "settings": {key: str(value) for key, value in vars(arguments).items()},
    }
    console.print(about)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        prompt = write_prompt(arguments)
        for name in arguments.only:
            command = command_of(name, arguments, Path(folder))
            if command is None:
                console.print(f"{name} is skipped: its package is not installed", style="bold red")
                continue
            for num_clients in arguments.clients:
                with running(command, arguments) as url:
                    figures = send_load(url, prompt, num_clients, arguments, Path(folder))
                rows.append({"server": name, "clients": num_clients, **figures})
                console.print(rows[-1])
    print_table(console, rows)
    if arguments.json:
        atomic.write_json(arguments.json, {**about, "rows": rows})


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the run to serve")
    names = [OURS, "llama-cpp-python", "transformers"]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=int, default=30, help="duration of each load")
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=100)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--threads", type=int, help="of each server (default: its own choice)")
    parser.add_argument("--port", type=int, default=18200)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def write_prompt(arguments: argparse.Namespace) -> str:
    """Return a text of about `--prompt-tokens` tokens."""
    tokenizer = Run.open(arguments.run).tokenizer
    ids = tokenizer.encode("Once upon a time there was a cat who lived in a house. " * 50)
    return tokenizer.decode(ids[: arguments.prompt_tokens])


def command_of(name: str, arguments: argparse.Namespace, folder: Path) -> Sequence[str] | None:
    """Return the command that starts a server; None if its package is missing."""
    port = str(arguments.port)
    bytewright = [sys.executable, "-m", "bytewright"]
    if name == OURS:
        return [*bytewright, "serve", str(arguments.run), "--port", port, "--slots", str(arguments.slots)]
    if name == "llama-cpp-python":
        if importlib.util.find_spec("llama_cpp") is None or importlib.util.find_spec("gguf") is None:
            return None
        file = folder / "model.gguf"
        if not file.exists():
            export = [*bytewright, "export", str(arguments.run), "--to", "gguf", "--out", str(file)]
            subprocess.run(export, check=True)
        threads = []
        if arguments.threads is not None:
            threads = ["--n_threads", str(arguments.threads), "--n_threads_batch", str(arguments.threads)]
        # By default a new request ends the one that is being answered.
        options = ["--model", str(file), "--port", port, "--interrupt_requests", "False", *threads]
        return [sys.executable, "-m", "llama_cpp.server", *options]
    if shutil.which("transformers") is None:
        return None
    model = folder / "hf"
    if not model.exists():
        export = [*bytewright, "export", str(arguments.run), "--to", "hf", "--out", str(model)]
        subprocess.run(export, check=True)
    return ["transformers", "serve", str(model), "--port", port, "--device", "cpu"]


@contextlib.contextmanager
def running(command: Sequence[str], arguments: argparse.Namespace) -> Iterator[str]:
    """Start a server, wait until it accepts connections and answers, and stop it at the end."""
    hub = Path(tempfile.gettempdir(), "bytewright-empty-hub")  # transformers lists the models of this folder
    hub.mkdir(exist_ok=True)
    environment = {**os.environ, "HF_HUB_CACHE": str(hub)}
    if arguments.threads is not None:
        environment["OMP_NUM_THREADS"] = str(arguments.threads)
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    url = f"http://127.0.0.1:{arguments.port}"
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start: {' '.join(command)}")
            time.sleep(0.5)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(READY_SECONDS)
        wait_until_closed(arguments.port)


def answers(url: str) -> bool:
    """Return whether the server lists its models."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def wait_until_closed(port: int) -> None:
    """Wait until the port is free for the next server."""
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.1)


def send_load(
    url: str, prompt: str, num_clients: int, arguments: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Run locust against a server and return its figures."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as response:
        models = json.load(response)["data"]
    result = folder / "load.json"
    load = {
        "model": models[0]["id"] if models else str(folder / "hf"),
        "prompt": prompt,
        "max_tokens": arguments.new_tokens,
        "result": str(result),
        "warm_up": min(5, arguments.seconds / 4),
    }
    command = [
        *(sys.executable, "-m", "locust", "-f", str(Path(__file__).with_name("serving_load.py"))),
        *("--headless", "--users", str(num_clients), "--spawn-rate", str(num_clients)),
        *("--run-time", f"{arguments.seconds}s", "--host", url, "--only-summary", "--loglevel", "ERROR"),
        *("--stop-timeout", "0"),
    ]
    environment = {**os.environ, "SERVING_LOAD": json.dumps(load)}
    subprocess.run(command, env=environment, check=False, timeout=arguments.seconds + 120)
    figures: dict[str, Any] = json.loads(result.read_text())
    return figures


def print_table(console: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Print one line per server and number of clients."""
    table = Table(title="Requests on loopback", title_justify="left")
    headings = (
        "server",
        "clients",
        "tokens/s",
        "first token p50, p99 ms",
        "next token p50, p99 ms",
        "request p50, p99 ms",
        "request ÷ tokens p50, p99 ms",
        "errors",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "server" else "right")
    for row in rows:
        table.add_row(
            row["server"],
            str(row["clients"]),
            f"{row['tokens_per_second']:,.0f}",
            format_quantiles(row["first_token_ms"], ",.0f"),
            format_quantiles(row["next_token_ms"], ",.1f"),
            format_quantiles(row["request_ms"], ",.0f"),
            format_quantiles(row["request_ms_per_token"], ",.1f"),
            str(row["errors"]),
            style="bold" if re.match(OURS, row["server"]) else None,
        )
    console.print(table)


def format_quantiles(quantiles: dict[str, float | None], spec: str) -> str:
    """Format the median and the 99th percentile; "none" if nothing was timed."""
    values = (quantiles[key] for key in ("p50", "p99"))
    return ", ".join("none" if value is None else format(value, spec) for value in values)


if __name__ == "__main__":
    main()
