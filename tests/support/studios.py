"""Folders of small runs for the studio, which are written without training, and studios that show them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2

from bytewright.model import ModelConfig, TransformerLM
from bytewright.serve.guard import GuardOptions
from bytewright.serve.server import ServerOptions, listening_socket
from bytewright.studio.app import StudioServer
from bytewright.tokenizer import Tokenizer, train_bpe
from bytewright.train.config import BudgetConfig, DataConfig, OptimizerConfig, TrainConfig
from bytewright.train.metrics_log import MetricsLog
from bytewright.train.run_files import RunWriter
from bytewright.train.run_model import write_imported_model

HANG_SECONDS = 300
TEXT = "the cat sat on the mat, and the other cat sat on the other mat. naïve café, 12 mats.\n" * 40
END, USER = "<|endoftext|>", "<|user|>"


def write_tokenizer(folder: Path, vocab_size: int, special_tokens: Sequence[str] = (END,)) -> Tokenizer:
    """Train a tokenizer on a few words and save it."""
    text = folder.parent / f"{folder.name}.txt"
    text.parent.mkdir(parents=True, exist_ok=True)
    text.write_text(TEXT)
    tokenizer = Tokenizer(*train_bpe(text, vocab_size, list(special_tokens)), list(special_tokens))
    tokenizer.save(folder)
    return tokenizer


def write_chat_model(folder: Path) -> Tokenizer:
    """Write a model without training, whose tokenizer has two special tokens: `END` and `USER`."""
    tokenizer = write_tokenizer(folder.parent / "chat_tokenizer", 300, [END, USER])
    config = ModelConfig(vocab_size=300, context_length=16, d_model=16, num_layers=1, num_heads=2)
    write_imported_model(folder, TransformerLM(config), tokenizer.vocabulary)
    return tokenizer


def make_config(folder: Path, *, steps: int = 100, lr: float = 1e-3) -> TrainConfig:
    """Return the config of a run; its data need not exist."""
    return TrainConfig(
        model=ModelConfig(vocab_size=300, context_length=16, d_model=16, num_layers=1, num_heads=2),
        data=DataConfig(train=folder / "train.npy", validation=folder / "validation.npy"),
        budget=BudgetConfig(steps=steps),
        optimizer=OptimizerConfig(lr=lr),
        batch_size=4,
        device="cpu",
    )


def make_record(step: int, *, loss: float | None = None, **more: Any) -> dict[str, Any]:
    """Return a record of metrics at a step."""
    record = {
        "step": step,
        "tokens": 64 * step,
        "seconds": step / 10,
        "loss": 1 + 4 / (1 + step / 10) if loss is None else loss,
        "lr": 1e-3,
        "gradient_norm": 0.5,
        "tokens_per_second": 640.0,
    }
    return record | more


def evaluated(step: int) -> dict[str, Any]:
    """Return the fields of an evaluation."""
    loss = 1.1 + 4 / (1 + step / 10)
    return {"validation_loss": loss, "bits_per_byte": loss / 2}


def write_run(
    path: Path, *, steps: int = 100, end: int | None = None, tokenizer: Tokenizer | None = None, **config: Any
) -> Path:
    """Write a run that has recorded `end` of its steps: complete, or stopped before that."""
    end = steps if end is None else end
    with RunWriter.create(path, make_config(path.parent, steps=steps, **config)) as writer:
        if tokenizer is not None:
            writer.write_tokenizer(tokenizer.vocabulary)
        append_records(path, range(10, end + 1, 10))
        if end >= 50:
            writer.write_sample(50, "the cat sat <b>on</b> the mat")
    return path


def append_records(path: Path, steps: range) -> None:
    """Append records to the log of a run; every second one has an evaluation."""
    log_path = path / "metrics.jsonl"
    log = MetricsLog(log_path, log_path.stat().st_size if log_path.exists() else 0)
    for step in steps:
        log.write(make_record(step, **(evaluated(step) if step % 20 == 0 else {})))
    log.close()


def write_floor(folder: Path, bits_per_byte: float) -> None:
    """Record the entropy of the validation text of the runs in a folder."""
    (folder / "corpus.json").write_text(json.dumps({"floor_bits_per_byte": bits_per_byte}))


def write_runs_and_tokenizers(folder: Path) -> Path:
    """Write two tokenizers, a sweep of two runs with a floor and a report, an incomplete and a broken run."""
    tokenizer = write_tokenizer(folder / "tokenizers" / "large", 320)
    write_tokenizer(folder / "tokenizers" / "small", 270)
    write_run(folder / "sweep" / "first", tokenizer=tokenizer)
    write_run(folder / "sweep" / "second", lr=3e-3)
    write_floor(folder / "sweep", 0.4)
    write_run(folder / "growing", end=30)
    (write_run(folder / "broken") / "config.json").write_text("<script>alert(1)</script>")
    (folder / "sweep" / "report.html").write_text("<title>A report</title><p>Report</p>")
    return folder


class OpenStudio:
    """A studio that a thread of this process serves on a free port."""

    def __init__(self, server: StudioServer, port: int) -> None:
        self.server, self.port = server, port
        self.url = f"http://127.0.0.1:{port}"
        unlimited = httpx2.Limits(max_connections=None)
        self.client = httpx2.Client(base_url=self.url, timeout=HANG_SECONDS, limits=unlimited, verify=False)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        """Send a GET request."""
        return self.client.get(path, **options)

    def post(self, path: str, json: object, **options: Any) -> httpx2.Response:
        """Send a POST request with a JSON body."""
        return self.client.post(path, json=json, **options)

    def run_ids(self) -> dict[str, str]:
        """Return the ids of the runs by name."""
        return {run["name"]: run["id"] for run in self.get("/api/runs").json()["runs"]}

    @contextlib.contextmanager
    def stream(self, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """Yield the events of a stream: names and data."""
        with self.client.stream("GET", path) as response:
            assert response.status_code == 200, response.read()
            yield read_events(response)


def read_events(response: httpx2.Response) -> Iterator[tuple[str, Any]]:
    """Yield the server-sent events of a response."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@contextlib.contextmanager
def open_studio(folder: Path, *, api_key: str | None = None) -> Iterator[OpenStudio]:
    """Serve the studio of a folder; its streams and the server end with the block."""
    options = ServerOptions(port=0, guard=GuardOptions(api_key=api_key))
    started = threading.Event()
    server = StudioServer(folder, options, announce=lambda line: started.set())
    with listening_socket(options) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert started.wait(HANG_SECONDS)
        studio = OpenStudio(server, listener.getsockname()[1])
        try:
            yield studio
        finally:
            studio.client.close()
            server.studio.end_streams()
            server.should_exit = True
            thread.join(HANG_SECONDS)
