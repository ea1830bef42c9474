"""Small runs for tests: token files, recipes and configs of tiny models, and digests of finished runs."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bytewright.account import Device
from bytewright.corpus import END_OF_TEXT
from bytewright.data.sampler import Tokens
from bytewright.data.tokenfile import TokenFileWriter
from bytewright.storage.config_reader import build
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.train import train_tokenizer
from bytewright.train import train
from bytewright.train.checkpoint import CheckpointFolder
from bytewright.train.config import TrainConfig
from bytewright.train.metrics import MEASURED_FIELDS, finite
from bytewright.train.metrics_log import read_metrics
from bytewright.train.run_files import RunWriter

VOCAB_SIZE = 40

TWO_CORES = Device(
    name="two cores",
    flops_per_second={"fp32": 187e9, "tf32": 187e9, "bf16": 418e9},
    bytes_per_second=30e9,
    memory_bytes=16e9,
    kind="cpu",
    is_measured=True,
)
"""The rates of docs/results/2026-11-15-two-cores.md, for predictions on a CPU."""

RECIPE = """
batch_size = 4
device = "cpu"
log_every = 4
eval_every = 8
eval_tokens = 64
save_every = 8
[model]
vocab_size = 40
context_length = 8
d_model = 16
num_layers = 1
num_heads = 2
[data]
train = "train.npy"
validation = "validation.npy"
[budget]
steps = 24
[optimizer]
lr = 0.01
"""
STORY_RECIPE = """
batch_size = 4
device = "cpu"
eval_tokens = 256
[model]
vocab_size = 400
context_length = 16
d_model = 16
num_layers = 1
num_heads = 2
[data]
train = "train.npy"
validation = "valid.npy"
tokenizer = "tok"
[optimizer]
lr = 0.01
[budget]
"""
"""The recipe of a run on encoded stories, up to its budget."""
# After an update at a rate of 1e30 every gradient overflows on every processor, because it is multiplied by
# the head and by the gain of the last norm, each about 1e30.
SWEEP = 'base = "base.toml"\nquestion = "Which?"\n[axes]\n"optimizer.lr" = [1e-3, 1e-2, 1e30]\n'


def make_ids(count: int, seed: int = 0) -> Tokens:
    """Return ids that increase by 1 or 2 at random; the lowest possible loss is about ln 2."""
    climbs = np.random.default_rng(seed).integers(1, 3, count)
    return (np.cumsum(climbs) % VOCAB_SIZE).astype(np.uint16)


def write_tokens(
    path: Path, ids: Tokens, *, vocab_size: int = VOCAB_SIZE, fingerprint: str = "a" * 64
) -> Path:
    """Write a token file with its manifest."""
    with TokenFileWriter(path, tokenizer_fingerprint=fingerprint, vocabulary_size=vocab_size) as writer:
        writer.append(ids)
    return path


def write_sweep(folder: Path) -> Path:
    """Write a sweep over three learning rates with its recipe and data; the last rate diverges."""
    write_tokens(folder / "train.npy", make_ids(2000))
    write_tokens(folder / "validation.npy", make_ids(500, seed=1))
    (folder / "base.toml").write_text(RECIPE)
    (folder / "rates.toml").write_text(SWEEP)
    return folder


def make_fields(folder: Path) -> dict[str, Any]:
    """Return the fields of a config for a run of 24 steps, and write its data into `folder`."""
    if not (folder / "train.npy").exists():
        write_tokens(folder / "train.npy", make_ids(2000))
        write_tokens(folder / "validation.npy", make_ids(500, seed=1))
    return {
        "model": {
            "vocab_size": VOCAB_SIZE,
            "context_length": 8,
            "d_model": 16,
            "num_layers": 2,
            "num_heads": 2,
        },
        "data": {"train": str(folder / "train.npy"), "validation": str(folder / "validation.npy")},
        "budget": {"steps": 24},
        "optimizer": {"lr": 0.01},
        "schedule": {"warmup": 3},
        "batch_size": 4,
        "device": "cpu",
        "log_every": 3,
        "eval_every": 8,
        "eval_tokens": 64,
        "save_every": 7,
    }


def make_config(folder: Path, **changes: Any) -> TrainConfig:
    """Return a config; a dict in `changes` replaces single fields of a nested table."""
    fields = make_fields(folder)
    for name, value in changes.items():
        fields[name] = {**fields.get(name, {}), **value} if isinstance(value, dict) else value
    return build(TrainConfig, fields, source="test")


def train_on_text(text: Path, *, vocab_size: int, context_length: int) -> Path:
    """Train a tokenizer on a text and a model for two steps; return the new folder `run` next to the text."""
    folder = text.parent
    vocabulary = train_tokenizer(text, vocab_size, [END_OF_TEXT]).vocabulary
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    tokenizer.save(folder / "tokenizer")
    for name in ("train", "validation"):
        tokenizer.encode_file(text, folder / f"{name}.npy")
    config = make_config(
        folder,
        model={"vocab_size": vocab_size, "context_length": context_length},
        data={"tokenizer": str(folder / "tokenizer")},
        budget={"steps": 2},
        batch_size=1,
    )
    train(config, folder / "run")
    return folder / "run"


def write_sampled(folder: Path) -> Path:
    """Write the folder of a sweep over two sampling temperatures, next to the run of its model."""
    sweep = folder / "generate"
    RunWriter.create(sweep / "model", make_config(folder)).close()
    for temperature in (0.5, 1.0):
        path = sweep / f"temperature-{temperature:g}"
        path.mkdir()
        outcome = {
            "status": "complete",
            "labels": {"sampling.temperature": temperature},
            "sampling": {"temperature": temperature, "top_p": 1.0},
            "figures": {"consistent": 1.0 - temperature / 2, "ended": 1.0, "words_per_story": 9.0},
        }
        (path / "outcome.json").write_text(json.dumps(outcome))
        (path / "stories.txt").write_text("There was a fox.")
    return sweep


def rerun_unchecked(request: pytest.FixtureRequest) -> bool:
    """Run a test again in a process without run-time type checks; return False in that process.

    The first call runs all tests of the module that call this function, in one process, because it takes
    three seconds to start it.
    """
    if os.environ.get("BYTEWRIGHT_UNCHECKED"):
        return False
    tests = tuple(
        item.nodeid
        for item in request.session.items
        if item.path == request.path and "rerun_unchecked" in item.function.__code__.co_names  # type: ignore[attr-defined]
    )
    slow = ("--slow",) if request.config.getoption("--slow") else ()
    output = _run_unchecked(request.config.rootpath, (*slow, *tests))
    assert f"PASSED {request.node.nodeid}" in output.splitlines(), output[-3000:]
    return True


@functools.cache
def _run_unchecked(root: Path, arguments: tuple[str, ...]) -> str:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rA",
            "--show-capture=no",
            "-p",
            "no:cacheprovider",
            *arguments,
        ],
        env={**os.environ, "BYTEWRIGHT_UNCHECKED": "1"},
        cwd=root,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def metrics_without_clock(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run without fields that depend on time or machine."""
    return [
        {name: value for name, value in record.items() if name not in MEASURED_FIELDS}
        for record in read_metrics(run / "metrics.jsonl")
    ]


def digest(run: Path) -> dict[str, str]:
    """Return SHA-256 digests of the last checkpoint and of the metrics without measured times."""
    checkpoints = CheckpointFolder(run / "checkpoints")
    last = checkpoints.at(checkpoints.steps()[-1])
    return {
        "step": last.name,
        "weights": hashlib.sha256((last / "model.safetensors").read_bytes()).hexdigest(),
        "optimizer": hashlib.sha256((last / "optimizer.safetensors").read_bytes()).hexdigest(),
        "settings": repr(json.loads((last / "state.json").read_text())["optimizer"]),
        "metrics": hashlib.sha256(repr(finite(metrics_without_clock(run))).encode()).hexdigest(),
    }


def equal(left: Any, right: Any) -> bool:
    """Return whether two states are equal in type and value; NaN equals NaN."""
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right and type(left) is type(right)) or (left != left and right != right)
