"""Windows that start at documents: each once per epoch, as a function of seed and step."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from bytewright.data.sampler import DocumentSampler, find_documents, gather_windows, split_windows
from bytewright.errors import UsageError
from bytewright.model import TransformerLM, language_model_loss
from bytewright.tokenizer import Tokenizer
from bytewright.train import load_model, resume, train
from bytewright.train.metrics_log import read_metrics
from bytewright.train.setup import make_window_sampler, open_inputs
from rejection import rejects
from runs import digest, make_config

END = 0


def test_windows_start_at_end_tokens_and_are_complete() -> None:
    tokens = np.array([7, 7, END, 8, 8, 8, END, 9, END, 9, 9], dtype=np.uint16)
    assert find_documents(tokens, END, 4).tolist() == [2, 6]
    assert find_documents(tokens, END, 2).tolist() == [2, 6, 8]
    assert find_documents(tokens, END, 11).tolist() == []


def test_every_document_occurs_once_per_epoch_in_a_new_order() -> None:
    sampler = DocumentSampler(first_tokens=np.arange(0, 500, 5), batch_size=7, seed=3)
    order = np.concatenate([sampler.starts(step) for step in range(100)])
    epochs = [order[:100], order[100:200], order[200:300]]
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(0, 500, 5))
    assert not np.array_equal(epochs[0], epochs[1])
    again = DocumentSampler(first_tokens=np.arange(0, 500, 5), batch_size=7, seed=3)
    assert np.array_equal(again.starts(42), sampler.starts(42)), "any step can be asked for at any time"
    other = DocumentSampler(first_tokens=np.arange(0, 500, 5), batch_size=7, seed=4)
    assert not np.array_equal(other.starts(42), sampler.starts(42))


def test_data_without_a_document_is_rejected() -> None:
    with rejects(UsageError, key="first_tokens"):
        DocumentSampler(first_tokens=np.array([], dtype=np.int64), batch_size=7, seed=3)


@pytest.fixture
def data_folder(tmp_path: Path, tokenizer: Path, stories: Path) -> Path:
    """A folder with the token files of a run."""
    ours = Tokenizer.load(tokenizer)
    for name in ("train", "validation"):
        ours.encode_file(stories, tmp_path / f"{name}.npy")
    ours.save(tmp_path / "tokenizer")
    return tmp_path


def test_a_run_with_windows_at_documents_resumes_with_the_same_bits(data_folder: Path) -> None:
    quiet = Console(file=io.StringIO())
    config = make_config(
        data_folder,
        model={"vocab_size": 400},
        data={"tokenizer": str(data_folder / "tokenizer"), "windows": "documents"},
    )
    inputs = open_inputs(config)
    end = Tokenizer.load(data_folder / "tokenizer").special_tokens["<|endoftext|>"]
    assert all(inputs.train[start] == end for start in make_window_sampler(config, inputs).starts(5))
    train(config, data_folder / "whole", console=quiet)
    assert json.loads((data_folder / "whole" / "config.json").read_text())["data"]["windows"] == "documents"

    def interrupt(model: TransformerLM) -> dict[str, float]:
        signal.raise_signal(signal.SIGTERM)
        return {}

    assert train(config, data_folder / "run", console=quiet, probe=interrupt).received
    resume(data_folder / "run", console=quiet)
    assert digest(data_folder / "run") == digest(data_folder / "whole")


def test_windows_at_documents_require_a_tokenizer_with_an_end_token(tmp_path: Path) -> None:
    config = make_config(tmp_path, data={"windows": "documents"})
    with rejects(UsageError, key="data.tokenizer"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_run_on_documents_is_validated_on_windows_that_begin_with_documents(data_folder: Path) -> None:
    config = make_config(
        data_folder,
        model={"vocab_size": 400},
        data={"tokenizer": str(data_folder / "tokenizer"), "windows": "documents"},
        eval_tokens=16 * 8,
    )
    train(config, data_folder / "run", console=Console(file=io.StringIO()))
    tokens = open_inputs(config).validation
    assert tokens is not None
    end = Tokenizer.load(data_folder / "tokenizer").special_tokens["<|endoftext|>"]
    documents = find_documents(tokens, end, 8)
    spread = documents[np.arange(16) * len(documents) // 16]
    windows = torch.from_numpy(gather_windows(tokens, spread, 8))
    with torch.no_grad():
        loss = language_model_loss(load_model(data_folder / "run", which="last"), *split_windows(windows))
    recorded = [line for line in read_metrics(data_folder / "run/metrics.jsonl") if "validation_loss" in line]
    assert recorded[-1]["validation_loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_validation_data_without_a_document_is_rejected_before_the_run_begins(data_folder: Path) -> None:
    Tokenizer.load(data_folder / "tokenizer").encode_file(
        write_words(data_folder / "words.txt"), data_folder / "validation.npy"
    )
    config = make_config(
        data_folder,
        model={"vocab_size": 400},
        data={"tokenizer": str(data_folder / "tokenizer"), "windows": "documents"},
    )
    with rejects(UsageError, path=data_folder / "validation.npy", key="data.windows"):
        train(config, data_folder / "run")
    assert not (data_folder / "run").exists()


def write_words(path: Path) -> Path:
    """Write a text without end tokens."""
    path.write_text("An owl sat in an old oak. " * 20)
    return path
