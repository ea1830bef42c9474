"""What a run cannot do is refused in one sentence, before anything is made."""

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
from bytewright.tokenizer.formats import write_bytewright
from bytewright.tokenizer.vocabulary import Vocabulary
from bytewright.train import TrainConfig, resume, train
from bytewright.train.setup import read_vocabulary_of
from runs import make_config, make_ids, write_tokens


def expect_refusal(
    config: TrainConfig, run: Path, kind: type[BytewrightError], message: str, quiet: Console
) -> None:
    """The refusal is one sentence, and nothing was made."""
    existed = run.exists()
    with pytest.raises(kind, match=message) as raised:
        train(config, run, console=quiet)
    assert "\n" not in str(raised.value)
    assert run.exists() == existed


def test_bad_data_is_refused_before_anything_is_made(tmp_path: Path, quiet: Console) -> None:
    run = tmp_path / "run"

    def refuse(kind: type[BytewrightError], message: str, **changes: Any) -> None:
        expect_refusal(make_config(tmp_path, **changes), run, kind, message, quiet)

    refuse(StorageError, "nothing.npy: no such file", data={"train": str(tmp_path / "nothing.npy")})
    refuse(
        UsageError,
        r"train.npy: has 2000 tokens, but a context of 2000 needs at least 2001",
        model={"context_length": 2000},
    )
    refuse(
        FormatError,
        r"train.npy: was encoded with a vocabulary of 40 tokens .* but the model has 39",
        model={"vocab_size": 39},
    )
    other = write_tokens(tmp_path / "other.npy", make_ids(500), fingerprint="b" * 64)
    refuse(
        TokenizerError,
        r"other.npy: was encoded with tokenizer bbbbbbbbbbbb…, but aaaaaaaaaaaa… is used here",
        data={"validation": str(other)},
    )
    cut = write_tokens(tmp_path / "cut.npy", make_ids(500))
    os.truncate(cut, 600)
    refuse(FormatError, r"cut.npy: has 600 bytes, but", data={"train": str(cut)})
    outside = write_tokens(tmp_path / "outside.npy", np.array([3] * 50 + [60] + [3] * 50), vocab_size=64)
    manifest = tmp_path / "outside.npy.json"
    atomic.write_document(manifest, atomic.read_document(manifest) | {"vocabulary_size": 40})
    refuse(
        FormatError,
        r"outside.npy: token id 60 at position 50 is outside the vocabulary \(40\)",
        data={"train": str(outside)},
    )
    refuse(UsageError, "document boundaries cannot be located", data={"windows": "documents"})


def test_an_existing_run_is_refused_with_the_way_to_continue_it(tmp_path: Path, quiet: Console) -> None:
    train(make_config(tmp_path, budget={"steps": 1}), tmp_path / "run", console=quiet)
    expect_refusal(
        make_config(tmp_path), tmp_path / "run", UsageError, "continue it with `bytewright resume", quiet
    )


def test_a_folder_with_other_files_is_refused(tmp_path: Path, quiet: Console) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    expect_refusal(
        make_config(tmp_path), tmp_path / "run", UsageError, "is not empty .it holds 'thesis.tex'", quiet
    )


def test_too_little_space_for_the_checkpoints_is_refused_before_the_first_step(
    tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    expect_refusal(make_config(tmp_path), tmp_path / "run", StorageError, "the disk has 0 MB left", quiet)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, quiet: Console) -> None:
    expect_refusal(
        make_config(tmp_path, device="cuda"), tmp_path / "run", UsageError, "this machine has none", quiet
    )


def test_other_data_than_at_the_checkpoint_is_refused_on_resume(tmp_path: Path, quiet: Console) -> None:
    train(make_config(tmp_path), tmp_path / "run", console=quiet)
    write_tokens(tmp_path / "train.npy", make_ids(2000, seed=9))
    with pytest.raises(FormatError, match="the data has changed since step 24 was saved"):
        resume(tmp_path / "run", console=quiet)


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path, quiet: Console) -> None:
    with pytest.raises(UsageError, match="is not a run") as caught:
        resume(tmp_path, console=quiet)
    assert caught.value.path == tmp_path


def test_a_tokenizer_with_more_ids_than_the_tokens_claim_is_refused(tmp_path: Path) -> None:
    """A table of all ids is made: one token with the id 2^32 - 1 would make it 34 GB."""
    bytes_alone = {id: bytes([id]) for id in range(256)}
    vocabulary = Vocabulary.from_parts(bytes_alone, [], {"<|endoftext|>": 2**32 - 1})
    write_bytewright(vocabulary, tmp_path / "tok")
    path = write_tokens(tmp_path / "a.npy", make_ids(50), fingerprint=vocabulary.fingerprint)
    with pytest.raises(FormatError, match=r"a\.npy: its manifest has a vocabulary of 40, but that of"):
        read_vocabulary_of(TokenFile.open(path), tmp_path / "tok")
