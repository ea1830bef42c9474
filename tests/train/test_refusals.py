"""Runs that cannot work are rejected before anything is created."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from bytewright.data.tokenfile import TokenFile
from bytewright.errors import (
    BytewrightError,
    FormatError,
    StorageError,
    TokenizerError,
    UsageError,
)
from bytewright.storage import atomic
from bytewright.tokenizer.formats import read_vocabulary_of, write_bytewright
from bytewright.tokenizer.vocabulary import Vocabulary
from bytewright.train import TrainConfig, resume, train
from rejection import rejects
from runs import make_config, make_ids, write_tokens


def assert_rejected(
    config: TrainConfig, run: Path, kind: type[BytewrightError], console: Console, **fields: object
) -> None:
    """Assert that `train` raises an error with these fields and creates nothing."""
    existed = run.exists()
    with rejects(kind, **fields):
        train(config, run, console=console)
    assert run.exists() == existed


def test_invalid_data_is_rejected_before_anything_is_created(tmp_path: Path, quiet: Console) -> None:
    run = tmp_path / "run"

    def reject(kind: type[BytewrightError], fields: dict[str, Any], **changes: Any) -> None:
        assert_rejected(make_config(tmp_path, **changes), run, kind, quiet, **fields)

    missing, train_file = tmp_path / "nothing.npy", tmp_path / "train.npy"
    reject(StorageError, {"path": missing}, data={"train": str(missing)})
    too_few = {"path": train_file, "expected": 2001, "found": 2000}
    reject(UsageError, too_few, model={"context_length": 2000})
    too_large = {"path": train_file, "key": "model.vocab_size", "expected": 39, "found": 40}
    reject(FormatError, too_large, model={"vocab_size": 39})
    other = write_tokens(tmp_path / "other.npy", make_ids(500), fingerprint="b" * 64)
    other_tokenizer = {"path": other, "expected": "a" * 64, "found": "b" * 64}
    reject(TokenizerError, other_tokenizer, data={"validation": str(other)})
    cut = write_tokens(tmp_path / "cut.npy", make_ids(500))
    os.truncate(cut, 600)
    reject(FormatError, {"path": cut, "found": 600}, data={"train": str(cut)})
    outside = write_tokens(tmp_path / "outside.npy", np.array([3] * 50 + [60] + [3] * 50), vocab_size=64)
    manifest = tmp_path / "outside.npy.json"
    atomic.write_document(manifest, atomic.read_document(manifest) | {"vocabulary_size": 40})
    reject(FormatError, {"path": outside, "found": 60}, data={"train": str(outside)})
    reject(UsageError, {"key": "data.tokenizer"}, data={"windows": "documents"})


def test_an_existing_run_is_rejected(tmp_path: Path, quiet: Console) -> None:
    train(make_config(tmp_path, budget={"steps": 1}), tmp_path / "run", console=quiet)
    assert_rejected(make_config(tmp_path), tmp_path / "run", UsageError, quiet, path=tmp_path / "run")


def test_a_folder_with_other_files_is_rejected(tmp_path: Path, quiet: Console) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    assert_rejected(make_config(tmp_path), tmp_path / "run", UsageError, quiet, found="thesis.tex")


def test_too_little_disk_space_is_rejected_before_the_first_step(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    assert_rejected(make_config(tmp_path), tmp_path / "run", StorageError, quiet, found=1000)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device_is_rejected(tmp_path: Path, quiet: Console) -> None:
    config = make_config(tmp_path, device="cuda")
    assert_rejected(config, tmp_path / "run", UsageError, quiet, key="device", found="cuda")


def test_a_resume_with_changed_data_is_rejected(tmp_path: Path, quiet: Console) -> None:
    train(make_config(tmp_path), tmp_path / "run", console=quiet)
    write_tokens(tmp_path / "train.npy", make_ids(2000, seed=9))
    with rejects(FormatError, path=tmp_path / "run", key="data"):
        resume(tmp_path / "run", console=quiet)


def test_a_folder_that_is_not_a_run_cannot_be_resumed(tmp_path: Path, quiet: Console) -> None:
    with rejects(UsageError, path=tmp_path):
        resume(tmp_path, console=quiet)


def test_a_tokenizer_larger_than_that_of_the_tokens_is_rejected(tmp_path: Path) -> None:
    """A table of all ids is made: one token with the id 2^32 - 1 would make it 34 GB."""
    bytes_alone = {id: bytes([id]) for id in range(256)}
    vocabulary = Vocabulary.from_parts(bytes_alone, [], {"<|endoftext|>": 2**32 - 1})
    write_bytewright(vocabulary, tmp_path / "tok")
    path = write_tokens(tmp_path / "a.npy", make_ids(50), fingerprint=vocabulary.fingerprint)
    with rejects(FormatError, path=path, expected=vocabulary.size, found=40):
        read_vocabulary_of(TokenFile.open(path), tmp_path / "tok")
